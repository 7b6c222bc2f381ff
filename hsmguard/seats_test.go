package hsmguard_test

import (
	"context"
	"crypto"
	"errors"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/hsmguard"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/peer"
)

// Whatever is asked of a device waits for a seat: signatures, decryptions and
// new keys, and those of the keys just made.
func TestNothingReachesTheDeviceOutsideTheGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 64, MaxWait: time.Minute})
		d := &device{}
		s := hsmguard.New(hsmguard.Config{Gate: g}).Keys(d)
		maker := s.(keys.Generator)
		made, err := maker.Generate(t.Context(), "new", keys.ECDSAP256)
		if err != nil {
			t.Fatal(err)
		}
		before := d.calls.Load()
		leave, err := g.Acquire(t.Context(), gate.Issuance, "somebody else")
		if err != nil {
			t.Fatal(err)
		}
		asked := []func() error{
			func() error { return sign(t.Context(), keyOf(t, s)) },
			func() error { return sign(t.Context(), made) },
			func() error { _, err := keyOf(t, s).(keys.Decrypter).Decrypt(t.Context(), nil, nil); return err },
			func() error { _, err := made.(keys.Decrypter).Decrypt(t.Context(), nil, nil); return err },
			func() error { _, err := maker.Generate(t.Context(), "newer", keys.ECDSAP256); return err },
			func() error { return s.(keys.Destroyer).Destroy(t.Context(), "new") },
			func() error {
				_, err := keys.Signer(t.Context(), keyOf(t, s)).Sign(nil, nil, crypto.SHA256)
				return err
			},
		}
		errs := make(chan error, len(asked))
		for _, ask := range asked {
			go func() { errs <- ask() }()
		}
		synctest.Wait()
		if n := d.calls.Load() - before; n != 0 {
			t.Errorf("%d calls of the device while its only seat is taken", n)
		}
		leave()
		for range asked {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if n := d.calls.Load() - before; n != int64(len(asked)) || d.peak.Load() != 1 {
			t.Errorf("%d calls, %d at a time", n, d.peak.Load())
		}
	})
}

func TestSeatsAreNeverExceededAndAllGivenBack(t *testing.T) {
	t.Parallel()
	const workers, rounds, seats = 64, 50, 8
	g := newGate(t, gate.Config{Seats: seats, MaxQueue: workers / 2, MaxWait: time.Minute})
	d := &device{takes: 10 * time.Microsecond}
	guard := hsmguard.New(hsmguard.Config{Gate: g})
	k := keyOf(t, guard.Keys(d))
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			ctx := keys.WithPurpose(as(t.Context(), string(rune('a'+i))), keys.Purpose(i%5))
			for n := 0; n < rounds; {
				switch err := sign(ctx, k); {
				case err == nil:
					n++
				case errors.Is(err, keys.ErrBusy):
					runtime.Gosched()
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if p := d.peak.Load(); p > seats {
		t.Errorf("%d at a time in %d seats", p, seats)
	}
	var counted uint64
	for _, c := range guard.Stat().Calls {
		counted += c.Count
	}
	if n := d.calls.Load(); n != workers*rounds || counted != workers*rounds {
		t.Errorf("%d calls of %d, %d counted", n, workers*rounds, counted)
	}
	if s := g.Stat(); s.InFlight != 0 || s.Queued != 0 || s.Identities != 0 {
		t.Errorf("left behind: %d seated, %d waiting, %d identities", s.InFlight, s.Queued, s.Identities)
	}
}

// The device goes on with what it has begun, so the seat is not free because
// the client left.
func TestASeatIsHeldUntilTheDeviceReturnsThoughTheClientLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 8, MaxWait: time.Minute})
		d := &device{takes: time.Second}
		k := keyOf(t, hsmguard.New(hsmguard.Config{Gate: g}).Keys(d))
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- sign(ctx, k) }()
		synctest.Wait()
		leave()
		time.Sleep(999 * time.Millisecond)
		if free(t, g, time.Microsecond) {
			t.Error("the seat was given away while the device was at work")
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if !free(t, g, time.Microsecond) {
			t.Error("the seat is lost")
		}
	})
}

func TestAClientThatLeftWhileWaitingHasNotUsedTheDevice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 8, MaxWait: time.Minute})
		d := &device{takes: time.Second}
		guard := hsmguard.New(hsmguard.Config{Gate: g})
		k := keyOf(t, guard.Keys(d))
		done := make(chan error, 1)
		go func() { done <- sign(t.Context(), k) }()
		synctest.Wait()
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() { left <- sign(ctx, k) }()
		synctest.Wait()
		leave()
		// Both hold: the device was not called, and the reason is the client's.
		if err := <-left; !errors.Is(err, keys.ErrBusy) || !errors.Is(err, context.Canceled) {
			t.Errorf("who left got %v", err)
		}
		if err := <-done; err != nil || d.calls.Load() != 1 {
			t.Errorf("%v, %d calls", err, d.calls.Load())
		}
		if n := rejected(guard, hsmguard.Background, gate.Canceled); n != 1 {
			t.Errorf("%d counted", n)
		}
	})
}

func rejected(g *hsmguard.Guard, endpoint string, why gate.Reason) (n uint64) {
	for _, r := range g.Stat().Rejected {
		if r.Endpoint == endpoint && r.Reason == why {
			n += r.Count
		}
	}
	return n
}

func TestWorkTurnedAwayIsABusyErrorThatSaysWhenToComeBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			reason gate.Reason
			queue  int
		}{{gate.QueueFull, 0}, {gate.Timeout, 8}} {
			g := newGate(t, gate.Config{Seats: 1, MaxQueue: c.queue, MaxWait: time.Second})
			d := &device{}
			guard := hsmguard.New(hsmguard.Config{Gate: g})
			k := keyOf(t, guard.Keys(d))
			leave, err := g.Acquire(t.Context(), gate.Issuance, "")
			if err != nil {
				t.Fatal(err)
			}
			err = sign(t.Context(), k)
			busy, ok := errors.AsType[*keys.BusyError](err)
			if !ok || !errors.Is(err, keys.ErrBusy) || busy.Reason != c.reason.String() || busy.RetryAfter < time.Second || busy.Err != nil {
				t.Errorf("%s: %+v", c.reason, err)
			}
			if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", c.reason, err)
			}
			if n := rejected(guard, hsmguard.Background, c.reason); n != 1 || d.calls.Load() != 0 {
				t.Errorf("%s: counted %d, %d calls", c.reason, n, d.calls.Load())
			}
			leave()
		}
	})
}

// Endpoints are labels, so only those that are listed become one.
func TestRejectionsAreCountedByListedEndpointsAndTold(t *testing.T) {
	t.Parallel()
	g := newGate(t, gate.Config{Seats: 1})
	type told struct {
		endpoint, identity string
		source             netip.Addr
	}
	var all []told
	guard := hsmguard.New(hsmguard.Config{
		Gate: g, Endpoints: []string{"acme", "ocsp"},
		Rejected: func(endpoint, identity string, source netip.Addr) {
			all = append(all, told{endpoint, identity, source})
		},
	})
	k := keyOf(t, guard.Keys(&device{}))
	leave, err := g.Acquire(t.Context(), gate.Issuance, "")
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	addr := netip.MustParseAddr("192.0.2.7")
	for _, endpoint := range []string{"acme", "ocsp", "made-up", ""} {
		ctx := peer.With(t.Context(), peer.Peer{Addr: addr, Endpoint: endpoint})
		if endpoint == "acme" {
			ctx = as(ctx, "acme:account/7")
		}
		if err := sign(ctx, k); !errors.Is(err, keys.ErrBusy) {
			t.Fatalf("%s: %v", endpoint, err)
		}
	}
	want := []told{{"acme", "acme:account/7", addr}, {"ocsp", "", addr}, {hsmguard.Background, "", addr}, {hsmguard.Background, "", addr}}
	for i := range want {
		if i >= len(all) || all[i] != want[i] {
			t.Errorf("told %v, want %v", all, want)
			break
		}
	}
	for endpoint, n := range map[string]uint64{"acme": 1, "ocsp": 1, hsmguard.Background: 2, "made-up": 0} {
		if got := rejected(guard, endpoint, gate.QueueFull); got != n {
			t.Errorf("%s: %d rejections, want %d", endpoint, got, n)
		}
	}
	if n := len(guard.Stat().Rejected); n != 3*int(gate.Reasons) {
		t.Errorf("%d series", n)
	}
}

func as(ctx context.Context, identity string) context.Context {
	return peer.WithIdentity(ctx, identity)
}
