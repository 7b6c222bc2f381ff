package hsmguard_test

import (
	"context"
	"crypto"
	"crypto/sha256"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/hsmguard"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/keys/keystest"
)

// A hangable is a device in memory whose calls can hang, behind a guard.
type hangable struct {
	*keystest.Store
	gate  *gate.Gate
	guard *hsmguard.Guard
	key   keys.Key
	told  *atomic.Int64 // how often another number of calls hung
}

func newHangable(t *testing.T, cfg gate.Config) hangable {
	t.Helper()
	h := hangable{Store: keystest.New(), gate: newGate(t, cfg), told: new(atomic.Int64)}
	if _, err := h.Generate(t.Context(), "k", keys.ECDSAP256); err != nil {
		t.Fatal(err)
	}
	h.guard = hsmguard.New(hsmguard.Config{Gate: h.gate, Hung: func() { h.told.Add(1) }})
	h.key = keyOf(t, h.guard.Keys(h.Store))
	return h
}

func (h hangable) sign(ctx context.Context) error {
	digest := sha256.Sum256(nil)
	_, err := h.key.Sign(ctx, digest[:], crypto.SHA256)
	return err
}

// Whoever waited for a call that hangs is told so at once, and what the call has
// taken stays taken: its seat, and its part of its class and of its flow.
func TestAHungCallKeepsItsSeatUntilItReturns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const seats = 4
		h := newHangable(t, gate.Config{Seats: seats, MaxQueue: 8, MaxWait: time.Second})
		hang := h.Hang()
		for i := range seats {
			if err := h.sign(as(t.Context(), string(rune('a'+i)))); !isHung(err) {
				t.Fatalf("call %d: %v", i, err)
			}
			st := h.gate.Stat()
			if st.InFlight != i+1 || st.Identities != i+1 || st.Class[gate.Issuance].InFlight != i+1 || h.guard.Stat().Hung != i+1 {
				t.Errorf("after %d: %+v, %d hang", i+1, st, h.guard.Stat().Hung)
			}
		}
		// There is no seat left, though the device would answer.
		hang.Recover()
		if err := h.sign(t.Context()); !errors.Is(err, keys.ErrBusy) {
			t.Errorf("a call without a seat: %v", err)
		}
		hang.Return()
		synctest.Wait()
		if st := h.gate.Stat(); st.InFlight != 0 || st.Identities != 0 || h.guard.Stat().Hung != 0 {
			t.Errorf("after their return: %+v, %d hang", st, h.guard.Stat().Hung)
		}
		if n := h.told.Load(); n != 2*seats {
			t.Errorf("told %d times of %d calls that hung and returned", n, seats)
		}
		if err := h.sign(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func isHung(err error) bool {
	_, ok := errors.AsType[*keys.HungError](err)
	return ok
}

// Seats come back one by one, each once, in whatever order the calls return.
func TestSeatsOfHungCallsAreNeitherLostNorDoubled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const seats, rounds = 4, 50
		h := newHangable(t, gate.Config{Seats: seats, MaxQueue: 8, MaxWait: time.Second})
		for round := range rounds {
			var hangs []*keystest.Hang
			for range 1 + round%seats {
				hangs = append(hangs, h.Hang())
				if err := h.sign(t.Context()); !isHung(err) {
					t.Fatal(err)
				}
			}
			if st := h.gate.Stat(); st.InFlight != len(hangs) {
				t.Fatalf("%d hang, %d seats are taken", len(hangs), st.InFlight)
			}
			for i := range hangs {
				hangs[(i+round)%len(hangs)].Return()
				synctest.Wait()
				if st := h.gate.Stat(); st.InFlight != len(hangs)-i-1 {
					t.Fatalf("%d hang, %d seats are taken", len(hangs)-i-1, st.InFlight)
				}
			}
			if err := h.sign(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if st := h.gate.Stat(); st.InFlight != 0 || st.Limit != seats || st.PeakInFlight > seats {
			t.Errorf("%+v", st)
		}
	})
}

// A HungError that does not say when the call returns keeps no seat for ever.
func TestAHungCallThatCannotReturnKeepsNoSeat(t *testing.T) {
	t.Parallel()
	g := newGate(t, gate.Config{Seats: 1, MaxQueue: 8, MaxWait: time.Minute})
	k := keyOf(t, hsmguard.New(hsmguard.Config{Gate: g}).Keys(breaking{&broken{err: &keys.HungError{After: time.Second}}}))
	if err := sign(t.Context(), k); !isHung(err) || g.Stat().InFlight != 0 {
		t.Errorf("%v, %d seats are taken", err, g.Stat().InFlight)
	}
}

// What a device that is away or hangs does not do says nothing of how long it
// takes to do it: when it is back, whoever waits is judged as before.
func TestAnOutageTeachesTheGateNothing(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]func(hangable) (end func()){
		"away": func(h hangable) func() { h.Away(time.Second); return h.Back },
		"hung": func(h hangable) func() { return h.Hang().Return },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHangable(t, gate.Config{Seats: 2, MaxQueue: 8, MaxWait: time.Minute, Adaptive: true, MinSeats: 1})
				took := 10 * time.Millisecond
				for range 10 { // what is usual
					hold := h.Hold()
					time.AfterFunc(took, hold.Release)
					if err := h.sign(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				before := h.gate.Stat()
				for range 300 {
					end := outage(h)
					if err := h.sign(t.Context()); err == nil {
						t.Fatal("there is no outage")
					}
					if name == "hung" {
						time.Sleep(time.Hour)
					}
					end()
					synctest.Wait()
				}
				after := h.gate.Stat()
				if c := gate.Issuance; before.Class[c].Service != took || after.Class[c].Service != took || after.Limit != before.Limit || after.InFlight != 0 {
					t.Errorf("before %+v, after %+v", before, after)
				}
			})
		})
	}
}

func TestAGuardedKeyIsAsReadyAsItsDevice(t *testing.T) {
	t.Parallel()
	h := newHangable(t, gate.Config{Seats: 1, MaxQueue: 8, MaxWait: time.Minute})
	leave, err := h.gate.Acquire(t.Context(), gate.Issuance, "")
	if err != nil {
		t.Fatal(err)
	}
	defer leave() // asking takes no seat
	if err := keys.Ready(h.key); err != nil {
		t.Errorf("while it is there: %v", err)
	}
	h.Away(3 * time.Second)
	if busy, ok := errors.AsType[*keys.BusyError](keys.Ready(h.key)); !ok || busy.RetryAfter != 3*time.Second {
		t.Errorf("while it is away: %v", keys.Ready(h.key))
	}
	if err := keys.Ready(keyOf(t, h.guard.Keys(&device{}))); err != nil {
		t.Errorf("of a device that can't tell: %v", err)
	}
}
