package ocsp

import (
	"context"
	"crypto"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
)

// A liar signs something else while it lies.
type liar struct {
	KeyStore
	lies atomic.Bool
}

type lyingKey struct {
	keys.Key
	of *liar
}

func (l *liar) Key(ctx context.Context, label string) (keys.Key, error) {
	k, err := l.KeyStore.Key(ctx, label)
	return lyingKey{k, l}, err
}

func (l *liar) Generate(ctx context.Context, label string, alg keys.Algorithm) (keys.Key, error) {
	k, err := l.KeyStore.Generate(ctx, label, alg)
	return lyingKey{k, l}, err
}

func (k lyingKey) Sign(ctx context.Context, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if k.of.lies.Load() {
		digest = make([]byte, len(digest))
	}
	return k.Key.Sign(ctx, digest, opts)
}

// TestAWrongSignatureIsNeverKept: one that is for many is checked each time. Of
// those for one client the first is, one each spotCheck, and all after a wrong one.
func TestAWrongSignatureIsNeverKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l := &liar{KeyStore: w.keys}
		s := w.server(func(c *Config) { c.Keys, c.Nonce = l, InsistNonce })
		n := int64(0)
		signs := func(nonce bool) bool {
			n++
			c := w.leaf(0, 100+n, Status{State: ca.Issued})
			query := w.query(0, c, crypto.SHA1)
			if nonce {
				query = encodeRequest(t, idsOf(t, query), nonceOf(int(n)))
			}
			return doPost(s, query, requestType).Body.Len() > 100
		}
		for i, step := range []struct {
			lies, nonce, signed bool
			wait                time.Duration
		}{
			{lies: true, nonce: true},                                              // the first is checked
			{lies: true, nonce: true},                                              // and all after a wrong one
			{nonce: true, signed: true},                                            // until one is right
			{lies: true, nonce: true, signed: true},                                // which is believed
			{lies: true, nonce: true, wait: spotCheck},                             // for so long
			{lies: true, nonce: true, wait: spotCheck / 2},                         // and not at all now
			{signed: true},                                                         // one for all proves it as well
			{lies: true},                                                           // and is always checked
			{lies: true, nonce: true},                                              // to the end of all belief
			{nonce: true, signed: true}, {nonce: true, signed: true}, {lies: true}, // as here
		} {
			time.Sleep(step.wait)
			l.lies.Store(step.lies)
			if got := signs(step.nonce); got != step.signed {
				t.Errorf("step %d: signed %v", i, got)
			}
		}
	})
}
