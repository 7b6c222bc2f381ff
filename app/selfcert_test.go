package app

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
)

// shown is what the https listener shows, with what is on file.
func shown(t *testing.T, s *selfCert) *tls.Certificate {
	t.Helper()
	c, err := s.get(nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// copyOf is s as the next start has it: with nothing to show yet.
func copyOf(s *selfCert) *selfCert {
	return &selfCert{ca: s.ca, ledger: s.ledger, keys: s.keys, chain: s.chain, file: s.file, names: s.names, log: s.log}
}

func TestTheHTTPSCertificateIsKeptAsLongAsItFits(t *testing.T) {
	t.Parallel()
	a := built(t, newCA(t))
	s := a.selfCert
	first := shown(t, s)
	again := copyOf(s)
	if err := again.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(shown(t, again).Certificate[0], first.Certificate[0]) {
		t.Error("another was issued without need")
	}
	key, err := s.key(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other, err := s.keys.Generate(t.Context(), "other", keys.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]struct {
		spoil func(*selfCert)
		key   keys.Key
	}{
		"no certificate with its chain": {func(s *selfCert) { s.file = os.DevNull }, key},
		"another key":                   {func(*selfCert) {}, other},
		"other names":                   {func(s *selfCert) { s.names = append(s.names, ca.Identifier{Type: ca.IP, Value: "::1"}) }, key},
	} {
		spoilt := copyOf(s)
		c.spoil(spoilt)
		if _, err := spoilt.load(t.Context(), c.key); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	absent := copyOf(s)
	absent.file = t.TempDir() + "/absent"
	if _, err := absent.load(t.Context(), key); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	is, _ := a.ca.Issuer(a.issuers[0].ID)
	is.Active = false
	defer func() { is.Active = true }()
	if _, err := s.load(t.Context(), key); err == nil || !strings.Contains(err.Error(), "no longer active") {
		t.Errorf("got %v", err)
	}
}

func TestTheHTTPSCertificateIsRenewedAtTwoThirds(t *testing.T) {
	t.Parallel()
	a := built(t, newCA(t))
	s := a.selfCert
	old := shown(t, s)
	life := old.Leaf.NotAfter.Sub(old.Leaf.NotBefore)
	if got := renewAt(old.Leaf); got.Sub(old.Leaf.NotBefore) != life*2/3 {
		t.Errorf("it is renewed at %s", got)
	}
	leaf := *old.Leaf
	leaf.NotBefore = time.Now().Add(-life)
	leaf.NotAfter = time.Now().Add(life / 3)
	due := *old
	due.Leaf = &leaf
	key, err := s.key(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.fits(t.Context(), &due, key); err == nil || !strings.Contains(err.Error(), "due for renewal") {
		t.Errorf("got %v", err)
	}
	s.current.Store(&due)
	// run renews what is due within a minute; so that no test waits for that,
	// it is told to here.
	if err := s.renew(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	fresh := shown(t, s)
	if bytes.Equal(fresh.Certificate[0], old.Certificate[0]) || s.fits(t.Context(), fresh, key) != nil {
		t.Error("there is no new certificate that fits")
	}
	if kept, err := s.load(t.Context(), key); err != nil || !bytes.Equal(kept.Certificate[0], fresh.Certificate[0]) {
		t.Errorf("the new one is not on file: %v", err)
	}
}

func TestAFileThatCannotBeWrittenIsNoReasonNotToServe(t *testing.T) {
	t.Parallel()
	a := built(t, newCA(t))
	s := a.selfCert
	s.file = t.TempDir() + "/absent/https.pem"
	old := shown(t, s)
	key, err := s.key(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.renew(t.Context(), key); err != nil || bytes.Equal(shown(t, s).Certificate[0], old.Certificate[0]) {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(a.logged(), "keeping the https certificate") {
		t.Errorf("nothing is said in\n%s", a.logged())
	}
}

func TestAFailedRenewalKeepsTheOldCertificateAndIsTriedAgain(t *testing.T) {
	t.Parallel()
	a := built(t, newCA(t))
	old := *shown(t, a.selfCert)
	synctest.Test(t, func(t *testing.T) {
		leaf := *old.Leaf
		leaf.NotBefore = time.Now()
		leaf.NotAfter = leaf.NotBefore.Add(3 * time.Hour)
		due := old
		due.Leaf = &leaf
		var tries atomic.Int32
		s := &selfCert{log: a.log, keys: failing{&tries}, ca: forgetful{}}
		s.current.Store(&due)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.run(ctx) }()
		time.Sleep(time.Until(renewAt(&leaf)))
		synctest.Wait()
		if n := tries.Load(); n != 0 {
			t.Errorf("it was tried %d times before it was due", n)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := tries.Load(); n < 3 || n > 11 {
			t.Errorf("it was tried %d times in 10 minutes", n)
		}
		if c, err := s.get(nil); err != nil || c != &due {
			t.Errorf("the old certificate is gone: %v", err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("got %v", err)
		}
	})
}

// forgetful is a CA that never heard of a certificate.
type forgetful struct{ certifier }

func (forgetful) Record(context.Context, ca.Serial) (ca.Record, error) {
	return ca.Record{}, ca.ErrNotFound
}

// failing is a key store that is out of order.
type failing struct{ tries *atomic.Int32 }

func (f failing) Key(context.Context, string) (keys.Key, error) {
	f.tries.Add(1)
	return nil, errors.New("out of order")
}

func (f failing) Generate(context.Context, string, keys.Algorithm) (keys.Key, error) {
	return nil, errors.New("out of order")
}

// TestARevokedHTTPSCertificateIsReplacedAtOnce takes the certificate away from
// the running program, its key given up as compromised: the next handshake has
// another certificate, for another key, and so has the next start.
func TestARevokedHTTPSCertificateIsReplacedAtOnce(t *testing.T) {
	t.Parallel()
	a := built(t, newCA(t))
	s := a.selfCert
	old := shown(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.run(ctx) }()
	err := a.ca.Revoke(t.Context(), ca.Revocation{
		Serial: ca.SerialOf(old.Leaf.SerialNumber), Reason: ca.KeyCompromise, BlockKey: true, Requester: ca.Requester{Actor: "operator:uid/0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for bytes.Equal(shown(t, s).Certificate[0], old.Certificate[0]) {
		select {
		case err := <-done:
			t.Fatalf("renewal ended: %v", err)
		case <-t.Context().Done():
			t.Fatal("the revoked certificate is still shown")
		default:
			runtime.Gosched()
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	fresh := shown(t, s)
	if bytes.Equal(fresh.Leaf.RawSubjectPublicKeyInfo, old.Leaf.RawSubjectPublicKeyInfo) {
		t.Error("it is for the compromised key")
	}
	again := copyOf(s)
	if err := again.prepare(t.Context()); err != nil || !bytes.Equal(shown(t, again).Certificate[0], fresh.Certificate[0]) {
		t.Errorf("the next start shows another: %v", err)
	}
}

func TestARevokedHTTPSCertificateOnFileIsNotUsed(t *testing.T) {
	t.Parallel()
	a := built(t, newCA(t))
	old := shown(t, a.selfCert)
	err := a.ca.Revoke(t.Context(), ca.Revocation{
		Serial: ca.SerialOf(old.Leaf.SerialNumber), Reason: ca.Superseded, Requester: ca.Requester{Actor: "operator:uid/0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	again := copyOf(a.selfCert)
	if err := again.prepare(t.Context()); err != nil || bytes.Equal(shown(t, again).Certificate[0], old.Certificate[0]) {
		t.Errorf("the revoked one is shown: %v", err)
	}
}
