package keystest_test

import (
	"context"
	"crypto"
	"crypto/sha256"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

func TestADeviceThatIsAwaySaysSoWithoutBeingCalled(t *testing.T) {
	t.Parallel()
	s := keystest.New()
	k := newKey(t, s)
	digest := sha256.Sum256(nil)
	if err := keys.Ready(k); err != nil {
		t.Errorf("before: %v", err)
	}
	s.Away(7 * time.Second)
	_, signing := k.Sign(t.Context(), digest[:], crypto.SHA256)
	_, finding := s.Key(t.Context(), "k")
	_, making := s.Generate(t.Context(), "l", keys.ECDSAP256)
	for name, err := range map[string]error{
		"asking": keys.Ready(k), "signing": signing, "finding": finding, "making": making, "destroying": s.Destroy(t.Context(), "k"),
	} {
		if busy, ok := errors.AsType[*keys.BusyError](err); !ok || busy.RetryAfter != 7*time.Second {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.Back()
	if _, err := k.Sign(t.Context(), digest[:], crypto.SHA256); err != nil || keys.Ready(k) != nil || s.Signatures() != 1 || s.Asked() != 2 {
		t.Errorf("after: %v, %d of %d signatures", err, s.Signatures(), s.Asked())
	}
}

func TestAHungSignatureIsNeverMadeAndReturnsWhenToldTo(t *testing.T) {
	t.Parallel()
	s := keystest.New()
	k := newKey(t, s)
	digest := sha256.Sum256(nil)
	hang := s.Hang()
	_, err := k.Sign(t.Context(), digest[:], crypto.SHA256)
	hung, ok := errors.AsType[*keys.HungError](err)
	if !ok || errors.Is(err, keys.ErrBusy) {
		t.Fatalf("got %v", err)
	}
	hang.Recover()
	if _, err := k.Sign(t.Context(), digest[:], crypto.SHA256); err != nil {
		t.Errorf("after its recovery: %v", err)
	}
	select {
	case <-hung.Returned:
		t.Error("it returned by itself")
	default:
	}
	hang.Return()
	<-hung.Returned
	if s.Signatures() != 1 {
		t.Errorf("%d signatures", s.Signatures())
	}
}

func TestADestroyedKeyIsNotFound(t *testing.T) {
	t.Parallel()
	s := keystest.New()
	newKey(t, s)
	if err := s.Destroy(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Key(t.Context(), "k"); !errors.Is(err, keys.ErrNotFound) {
		t.Errorf("finding it: %v", err)
	}
	if err := s.Destroy(t.Context(), "k"); !errors.Is(err, keys.ErrNotFound) {
		t.Errorf("destroying it again: %v", err)
	}
}

func TestWhatMayBeRepeatedIsTold(t *testing.T) {
	t.Parallel()
	s := keystest.New()
	k := newKey(t, s)
	digest := sha256.Sum256(nil)
	for _, ctx := range []context.Context{t.Context(), keys.Repeatable(t.Context())} {
		if _, err := k.Sign(ctx, digest[:], crypto.SHA256); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.Signed(); got[0].Repeatable || !got[1].Repeatable {
		t.Errorf("%+v", got)
	}
}
