package keystest_test

import (
	"context"
	"crypto"
	"crypto/sha256"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/keys/keystest"
)

func TestMemoryIsAStore(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	places := make(map[string]*keystest.Store)
	keystest.TestStore(t, func(_ *testing.T, place string) keystest.StoreGenerator {
		mu.Lock()
		defer mu.Unlock()
		if places[place] == nil {
			places[place] = keystest.New()
		}
		return places[place]
	})
}

func newKey(t *testing.T, s *keystest.Store) keys.Key {
	t.Helper()
	k, err := s.Generate(t.Context(), "k", keys.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestFailuresComeInTheOrderAskedFor(t *testing.T) {
	t.Parallel()
	s := keystest.New()
	k := newKey(t, s)
	digest := sha256.Sum256(nil)
	s.FailNext(1, keys.ErrBusy)
	s.FailNext(1, keystest.ErrDevice)
	for i, want := range []error{keys.ErrBusy, keystest.ErrDevice, nil} {
		if _, err := k.Sign(t.Context(), digest[:], crypto.SHA256); !errors.Is(err, want) {
			t.Errorf("signature %d: %v, want %v", i, err, want)
		}
	}
	s.Fail(keystest.ErrDevice)
	for range 2 {
		if _, err := k.Sign(t.Context(), digest[:], crypto.SHA256); !errors.Is(err, keystest.ErrDevice) {
			t.Errorf("signature: %v, want ErrDevice", err)
		}
	}
	s.Fail(nil)
	if _, err := k.Sign(t.Context(), digest[:], crypto.SHA256); err != nil {
		t.Errorf("signature after the failure ended: %v", err)
	}
	if got := s.Signed(); len(got) != 2 || s.Signatures() != 2 || got[0].Label != "k" || string(got[0].Digest) != string(digest[:]) {
		t.Errorf("Signed = %v", got)
	}
}

func TestHeldSignatureWaitsForReleaseOrContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := keystest.New()
		k := newKey(t, s)
		digest := sha256.Sum256(nil)
		hold := s.Hold()
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		stayed := make(chan error, 1)
		go func() { _, err := k.Sign(ctx, digest[:], crypto.SHA256); left <- err }()
		go func() { _, err := k.Sign(t.Context(), digest[:], crypto.SHA256); stayed <- err }()
		<-hold.Arrived
		<-hold.Arrived
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("who left got %v", err)
		}
		synctest.Wait()
		if s.Signatures() != 0 {
			t.Error("a held signature was made")
		}
		hold.Release()
		if err := <-stayed; err != nil || s.Signatures() != 1 {
			t.Errorf("who stayed got %v, %d signatures", err, s.Signatures())
		}
	})
}
