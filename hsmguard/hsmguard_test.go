package hsmguard_test

import (
	"context"
	"crypto"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/hsmguard"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/keys/keystest"
)

// A device is a store of one key that signs, decrypts, makes and destroys keys, each of
// which takes its time whoever waits for it, as a call into C does.
type device struct {
	takes time.Duration
	do    func() // in the middle of a call; may be nil

	running atomic.Int64
	peak    atomic.Int64
	calls   atomic.Int64
}

// ownTime is a context's key of a time that one call takes instead.
type ownTime struct{}

func (d *device) call(ctx context.Context) {
	d.calls.Add(1)
	n := d.running.Add(1)
	defer d.running.Add(-1)
	for p := d.peak.Load(); n > p && !d.peak.CompareAndSwap(p, n); p = d.peak.Load() {
	}
	takes, own := ctx.Value(ownTime{}).(time.Duration)
	if !own {
		takes = d.takes
	}
	time.Sleep(takes)
	if d.do != nil {
		d.do()
	}
}

func (d *device) Key(context.Context, string) (keys.Key, error) { return d, nil }

func (d *device) Generate(ctx context.Context, _ string, _ keys.Algorithm) (keys.Key, error) {
	d.call(ctx)
	return d, nil
}

func (d *device) Destroy(ctx context.Context, _ string) error {
	d.call(ctx)
	return nil
}

func (d *device) Public() crypto.PublicKey { return nil }

func (d *device) Sign(ctx context.Context, _ []byte, _ crypto.SignerOpts) ([]byte, error) {
	d.call(ctx)
	return []byte("signature"), nil
}

func (d *device) Decrypt(ctx context.Context, _ []byte, _ crypto.DecrypterOpts) ([]byte, error) {
	d.call(ctx)
	return []byte("plain"), nil
}

func newGate(t *testing.T, cfg gate.Config) *gate.Gate {
	t.Helper()
	g, err := gate.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func keyOf(t *testing.T, s keys.Store) keys.Key {
	t.Helper()
	k, err := s.Key(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func sign(ctx context.Context, k keys.Key) error {
	_, err := k.Sign(ctx, nil, crypto.SHA256)
	return err
}

// free reports whether a seat of g is free within a time, and leaves it free.
func free(t *testing.T, g *gate.Gate, within time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	leave, err := g.Acquire(ctx, gate.Revocation, "")
	if err != nil {
		return false
	}
	leave()
	return true
}

// The whole promise of a key store holds through the guard.
func TestAGuardedStoreIsAStore(t *testing.T) {
	t.Parallel()
	guard := hsmguard.New(hsmguard.Config{Gate: newGate(t, gate.Config{Seats: 2, MaxQueue: 64, MaxWait: time.Minute})})
	var mu sync.Mutex
	places := make(map[string]*keystest.Store)
	keystest.TestStore(t, func(t *testing.T, place string) keystest.StoreGenerator {
		mu.Lock()
		defer mu.Unlock()
		if places[place] == nil {
			places[place] = keystest.New()
		}
		s, ok := guard.Keys(places[place]).(keystest.StoreGenerator)
		if !ok {
			t.Fatal("the guard took a skill away")
		}
		return s
	})
}

// plain has no skill but the first, and its keys neither.
type plain struct{ keys.Store }

func (p plain) Key(ctx context.Context, label string) (keys.Key, error) {
	k, err := p.Store.Key(ctx, label)
	return struct{ keys.Key }{k}, err
}

func TestAGuardedStoreHasTheSkillsOfTheStoreAndNoOthers(t *testing.T) {
	t.Parallel()
	guard := hsmguard.New(hsmguard.Config{Gate: newGate(t, gate.Config{Seats: 1})})
	type destroying struct {
		plain
		keys.Destroyer
	}
	for _, c := range []struct {
		name                      string
		store                     keys.Store
		makes, destroys, decrypts bool
	}{
		{"all skills", &device{}, true, true, true},
		{"none", plain{&device{}}, false, false, false},
		{"making", struct {
			keys.Store
			keys.Generator
		}{&device{}, &device{}}, true, false, true},
		{"destroying", destroying{plain{&device{}}, &device{}}, false, true, false},
	} {
		s := guard.Keys(c.store)
		if _, makes := s.(keys.Generator); makes != c.makes {
			t.Errorf("%s: makes keys: %v", c.name, makes)
		}
		if _, destroys := s.(keys.Destroyer); destroys != c.destroys {
			t.Errorf("%s: destroys keys: %v", c.name, destroys)
		}
		if _, decrypts := keyOf(t, s).(keys.Decrypter); decrypts != c.decrypts {
			t.Errorf("%s: decrypts: %v", c.name, decrypts)
		}
	}
}

func TestACallThatPanicsGivesItsSeatBack(t *testing.T) {
	t.Parallel()
	g := newGate(t, gate.Config{Seats: 1, MaxQueue: 8, MaxWait: time.Minute})
	d := &device{do: func() { panic("the driver") }}
	s := hsmguard.New(hsmguard.Config{Gate: g}).Keys(d)
	k := keyOf(t, s)
	for name, call := range map[string]func(){
		"signing":    func() { _ = sign(t.Context(), k) },
		"decrypting": func() { _, _ = k.(keys.Decrypter).Decrypt(t.Context(), nil, nil) },
		"making":     func() { _, _ = s.(keys.Generator).Generate(t.Context(), "new", keys.ECDSAP256) },
		"destroying": func() { _ = s.(keys.Destroyer).Destroy(t.Context(), "k") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: the panic was swallowed", name)
				}
			}()
			call()
		}()
		if !free(t, g, time.Minute) {
			t.Fatalf("%s: the seat is lost", name)
		}
	}
}

func TestCallsAreCountedByClassAndDuration(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		guard := hsmguard.New(hsmguard.Config{Gate: newGate(t, gate.Config{Seats: 1, MaxQueue: 8, MaxWait: time.Minute})})
		k := keyOf(t, guard.Keys(&device{}))
		for _, takes := range []time.Duration{5 * time.Millisecond, 6 * time.Millisecond, time.Minute} {
			ctx := context.WithValue(t.Context(), ownTime{}, takes)
			if err := sign(keys.WithPurpose(ctx, keys.ForStatus), k); err != nil {
				t.Fatal(err)
			}
		}
		s := guard.Stat()
		c := s.Calls[gate.Status]
		if c.Count != 3 || c.Sum != time.Minute+11*time.Millisecond || s.Calls[gate.Issuance].Count != 0 {
			t.Errorf("%+v", s.Calls)
		}
		for bound, want := range map[time.Duration]uint64{
			2500 * time.Microsecond: 0, 5 * time.Millisecond: 1, 10 * time.Millisecond: 2, 5 * time.Second: 2,
		} {
			i := slices.Index(gate.Bounds[:], bound)
			if i < 0 || c.Buckets[i] != want {
				t.Errorf("bucket %d up to %v, want %d calls in %v", i, bound, want, c.Buckets)
			}
		}
	})
}
