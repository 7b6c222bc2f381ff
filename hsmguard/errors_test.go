package hsmguard_test

import (
	"context"
	"crypto"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/hsmguard"
	"github.com/secsy-pki/secsy-pki/keys"
)

// A broken is a device all of whose calls fail, each after a moment.
type broken struct {
	device
	err error
}

func (b *broken) Key(context.Context, string) (keys.Key, error) { return nil, b.err }

func (b *broken) Generate(ctx context.Context, _ string, _ keys.Algorithm) (keys.Key, error) {
	b.call(ctx)
	return nil, b.err
}

func (b *broken) Sign(ctx context.Context, _ []byte, _ crypto.SignerOpts) ([]byte, error) {
	b.call(ctx)
	return nil, b.err
}

func (b *broken) Decrypt(ctx context.Context, _ []byte, _ crypto.DecrypterOpts) ([]byte, error) {
	b.call(ctx)
	return nil, b.err
}

// A store whose keys break while they are used.
type breaking struct{ *broken }

func (b breaking) Key(context.Context, string) (keys.Key, error) { return b.broken, nil }

// What fails at the device fails for its caller, in its own words and when it
// does, as no waiting makes it better; and its seat is there for the next,
// however often that happens.
func TestErrorsOfTheDeviceComeBackAtOnceAndKeepNoSeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lost := errors.New("the session handle is invalid")
		g := newGate(t, gate.Config{Seats: 2, MaxQueue: 8, MaxWait: time.Minute})
		guard := hsmguard.New(hsmguard.Config{Gate: g})
		d := &broken{err: lost}
		d.takes = time.Millisecond
		s := guard.Keys(breaking{d})
		k := keyOf(t, s)
		begin := time.Now()
		for name, call := range map[string]func() error{
			"signing":    func() error { return sign(t.Context(), k) },
			"decrypting": func() error { _, err := k.(keys.Decrypter).Decrypt(t.Context(), nil, nil); return err },
			"making": func() error {
				_, err := s.(keys.Generator).Generate(t.Context(), "new", keys.ECDSAP256)
				return err
			},
		} {
			for range 100 {
				if err := call(); !errors.Is(err, lost) || errors.Is(err, keys.ErrBusy) {
					t.Fatalf("%s: %v, want what the device said", name, err)
				}
			}
		}
		if took := time.Since(begin); took != 300*time.Millisecond {
			t.Errorf("300 calls of 1 ms took %s", took)
		}
		if st := g.Stat(); st.InFlight != 0 || st.Queued != 0 || st.Limit != 2 {
			t.Errorf("%+v: want both seats free", st)
		}
		begin = time.Now()
		if _, err := guard.Keys(d).Key(t.Context(), "k"); !errors.Is(err, lost) || time.Since(begin) != 0 {
			t.Errorf("a key that can't be opened: %v after %s", err, time.Since(begin))
		}
	})
}
