package keys_test

import (
	"context"
	"crypto"
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/keys/keystest"
)

func signLate(t *testing.T, k keys.Key) error {
	t.Helper()
	digest := sha256.Sum256(nil)
	_, err := k.Sign(t.Context(), digest[:], crypto.SHA256)
	return err
}

// A late key is nothing but a public key until its device is back, and then it
// is the key; as long as it isn't, nobody is told that something was signed.
func TestALateKeyIsFoundOnceItsDeviceIsBack(t *testing.T) {
	t.Parallel()
	for name, find := range map[string]func(context.Context, *keys.LateKey) error{
		"looked for": func(ctx context.Context, k *keys.LateKey) error { return k.Find(ctx) },
		"signed with": func(ctx context.Context, k *keys.LateKey) error {
			digest := sha256.Sum256(nil)
			_, err := k.Sign(ctx, digest[:], crypto.SHA256)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := keystest.New()
			made, err := s.Generate(t.Context(), "k", keys.ECDSAP256)
			if err != nil {
				t.Fatal(err)
			}
			s.Away(9 * time.Second)
			k := keys.Later(s, "k", made.Public(), errors.New("no token"))
			if k.Public() != made.Public() {
				t.Error("it has another public key")
			}
			if err := keys.Ready(k); !errors.Is(err, keys.ErrBusy) || !strings.Contains(err.Error(), "no token") {
				t.Errorf("before anybody looked: %v", err)
			}
			if err := find(t.Context(), k); !errors.Is(err, keys.ErrBusy) {
				t.Errorf("while it is away: %v", err)
			}
			if busy, ok := errors.AsType[*keys.BusyError](keys.Ready(k)); !ok || busy.RetryAfter != 9*time.Second {
				t.Errorf("ready: %v", keys.Ready(k))
			}
			s.Back()
			if err := keys.Ready(k); !errors.Is(err, keys.ErrBusy) {
				t.Errorf("it was found by asking whether it is ready: %v", err)
			}
			if err := find(t.Context(), k); err != nil {
				t.Fatal(err)
			}
			if err := keys.Ready(k); err != nil {
				t.Errorf("ready: %v", err)
			}
			// Found once, it is as ready as its device, and not looked for again.
			s.Away(3 * time.Second)
			if err := k.Find(t.Context()); err != nil {
				t.Errorf("looking again: %v", err)
			}
			if err := keys.Ready(k); !errors.Is(err, keys.ErrBusy) {
				t.Errorf("ready: %v", err)
			}
			s.Back()
			if err := signLate(t, k); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestALateKeyThatTurnsOutAnotherIsNeverSignedWith(t *testing.T) {
	t.Parallel()
	s, other := keystest.New(), keystest.New()
	wanted, err := other.Generate(t.Context(), "k", keys.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Generate(t.Context(), "k", keys.ECDSAP256); err != nil {
		t.Fatal(err)
	}
	k := keys.Later(s, "k", wanted.Public(), keys.ErrBusy)
	for name, err := range map[string]error{"finding": k.Find(t.Context()), "signing": signLate(t, k), "ready": keys.Ready(k), "finding again": k.Find(t.Context())} {
		if !errors.Is(err, keys.ErrOtherKey) || errors.Is(err, keys.ErrBusy) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s.Asked() != 0 {
		t.Error("it was asked to sign")
	}
}

// A token may come back before its keys are restored.
func TestALateKeyThatIsMissingMayComeYet(t *testing.T) {
	t.Parallel()
	s, elsewhere := keystest.New(), keystest.New()
	private, err := keys.NewPrivateKey(keys.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := elsewhere.Put("k", private)
	if err != nil {
		t.Fatal(err)
	}
	k := keys.Later(s, "k", wanted.Public(), keys.ErrBusy)
	if err := k.Find(t.Context()); !errors.Is(err, keys.ErrNotFound) {
		t.Errorf("finding: %v", err)
	}
	for name, err := range map[string]error{"signing": signLate(t, k), "ready": keys.Ready(k)} {
		if busy, ok := errors.AsType[*keys.BusyError](err); !ok || busy.RetryAfter < time.Second || !errors.Is(err, keys.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.Put("k", private); err != nil {
		t.Fatal(err)
	}
	if err := signLate(t, k); err != nil {
		t.Error(err)
	}
}
