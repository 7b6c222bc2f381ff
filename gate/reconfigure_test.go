package gate_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
)

func reconfigure(t testing.TB, g *gate.Gate, cfg gate.Config) {
	t.Helper()
	if err := g.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
}

func TestMoreSeatsActAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := gate.Config{Seats: 1, MaxQueue: 3, MaxWait: time.Minute}
		g := newGate(t, cfg)
		seat(t, g, gate.Issuance, "a")
		var queue []*asker
		for range 3 {
			queue = append(queue, ask(t.Context(), g, gate.Issuance, "a"))
		}
		// The queue gets shorter in the same stroke: who gets a seat is not in it.
		reconfigure(t, g, gate.Config{Seats: 3, MaxQueue: 1, MaxWait: time.Minute})
		synctest.Wait()
		if !queue[0].seated() || !queue[1].seated() || queue[2].done.Load() {
			t.Errorf("seated: %v, %v; third done: %v", queue[0].seated(), queue[1].seated(), queue[2].done.Load())
		}
		settle(g)
	})
}

func TestFewerSeatsWaitForTheWorkThatGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 4})
		var seats []gate.Seat
		for range 4 {
			seats = append(seats, seat(t, g, gate.Issuance, "a"))
		}
		reconfigure(t, g, gate.Config{Seats: 2, MaxQueue: 8, MaxWait: time.Minute})
		if n := g.Stat().InFlight; n != 4 {
			t.Errorf("%d in flight, want the 4 that were", n)
		}
		waiting := ask(t.Context(), g, gate.Issuance, "b")
		for i, s := range seats[:3] {
			if waiting.done.Load() {
				t.Fatalf("seated while %d have a seat of 2", 4-i)
			}
			s.Release()
			synctest.Wait()
		}
		if !waiting.seated() {
			t.Error("not seated although one of two seats is free")
		}
		waiting.seat.Release()
		seats[3].Release()
		empty(t, g)
	})
}

// A queue that gets shorter sends away the newest of the longest flow first, of
// the least urgent class.
func TestAShorterQueueSendsAwayTheNewestOfTheLongest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 8, MaxWait: time.Minute})
		seat(t, g, gate.Issuance, "x")
		queue := map[string]*asker{}
		for _, id := range []string{"short", "long1", "long2", "long3"} {
			queue[id] = ask(t.Context(), g, gate.Issuance, id[:4])
		}
		queue["urgent"] = ask(t.Context(), g, gate.Renewal, "x")
		for _, gone := range []string{"long3", "long2"} {
			reconfigure(t, g, gate.Config{Seats: 1, MaxQueue: g.Stat().Queued - 1, MaxWait: time.Minute})
			synctest.Wait()
			queue[gone].refused(t, gate.QueueFull)
			delete(queue, gone)
			for id, a := range queue {
				if a.done.Load() {
					t.Errorf("%s had to go: %v", id, a.err)
				}
			}
		}
		reconfigure(t, g, gate.Config{Seats: 1, MaxQueue: 1, MaxWait: time.Minute})
		synctest.Wait()
		if queue["urgent"].done.Load() {
			t.Error("the more urgent had to go")
		}
		reconfigure(t, g, gate.Config{Seats: 1})
		synctest.Wait()
		queue["urgent"].refused(t, gate.QueueFull)
		settle(g)
	})
}

// Who waits is held to the new wait, counted from when it came: also if nothing
// ever happens at the gate again.
func TestAnotherWaitHoldsForThoseWhoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 8, MaxWait: time.Minute})
		seat(t, g, gate.Issuance, "a")
		start := time.Now()
		first := ask(t.Context(), g, gate.Issuance, "b")
		time.Sleep(10 * time.Second)
		second := ask(t.Context(), g, gate.Issuance, "c")
		reconfigure(t, g, gate.Config{Seats: 1, MaxQueue: 8, MaxWait: 5 * time.Second})
		synctest.Wait()
		first.refused(t, gate.Timeout)
		reconfigure(t, g, gate.Config{Seats: 1, MaxQueue: 8, MaxWait: 15 * time.Second})
		time.Sleep(time.Minute)
		second.refused(t, gate.Timeout)
		if d := second.at.Sub(start); d != 25*time.Second {
			t.Errorf("the second left after %v, want 25s", d)
		}
		settle(g)
	})
}

// A gate that is opened and closed again still knows what was begun meanwhile.
func TestOpeningAGateMintsNoSeats(t *testing.T) {
	t.Parallel()
	g := newGate(t, gate.Config{})
	s := seat(t, g, gate.Issuance, "a")
	reconfigure(t, g, gate.Config{Seats: 1})
	if _, err := g.Acquire(t.Context(), gate.Issuance, "b"); err == nil {
		t.Error("two at one seat")
	}
	s.Release()
	seat(t, g, gate.Issuance, "b")
}

// In a million mixed operations, with many at a time that ask, leave, give back
// twice, and make the gate wider and narrower, no seat is lost and none is minted,
// and everybody gets exactly one answer.
func TestSeatsAreConserved(t *testing.T) {
	t.Parallel()
	operations := 1_000_000
	if testing.Short() {
		operations = 100_000
	}
	const seats, askers = 8, 32
	g := newGate(t, gate.Config{Seats: seats, MaxQueue: 16, MaxWait: time.Minute})
	var now, over, asked atomic.Int64
	var all sync.WaitGroup
	for i := range askers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 3))
			ctx, cancel := context.WithCancel(t.Context())
			// Each goes round with four operations: ask, leave or stay, give back twice.
			for range operations / askers / 4 {
				asked.Add(1)
				if r.IntN(8) == 0 {
					go cancel()
				}
				s, err := g.AcquireSeat(ctx, gate.Class(r.IntN(int(gate.Classes))), strconv.Itoa(r.IntN(20)))
				if err == nil {
					if now.Add(1) > seats {
						over.Add(1)
					}
					runtime.Gosched() // so that others find the seat taken
					now.Add(-1)
					s.Release()
					s.Fail()
				}
				if ctx.Err() != nil {
					cancel()
					ctx, cancel = context.WithCancel(t.Context())
				}
				if r.IntN(100) == 0 {
					reconfigure(t, g, gate.Config{
						Seats: 1 + r.IntN(seats), MaxQueue: r.IntN(17), MaxWait: time.Duration(r.IntN(2)) * time.Minute, Adaptive: r.IntN(4) == 0,
					})
				}
			}
			cancel()
		})
	}
	all.Wait()
	empty(t, g)
	if over.Load() > 0 {
		t.Errorf("%d times more than %d at work", over.Load(), seats)
	}
	answers, kinds := uint64(0), [gate.Reasons]uint64{}
	for _, c := range g.Stat().Class {
		answers += c.Admitted
		for why, n := range c.Refused {
			answers += n
			kinds[why] += n
		}
		if c.InFlight != 0 || c.Waiting != 0 {
			t.Errorf("%d in flight and %d waiting in an empty gate", c.InFlight, c.Waiting)
		}
	}
	if answers != uint64(asked.Load()) {
		t.Errorf("%d answers to %d who asked", answers, asked.Load())
	}
	if kinds[gate.QueueFull] == 0 || kinds[gate.Canceled] == 0 {
		t.Errorf("refused %v: not all was tried", kinds)
	}
	reconfigure(t, g, gate.Config{Seats: seats})
	for range seats {
		seat(t, g, gate.Anonymous, "last")
	}
	if _, err := g.Acquire(t.Context(), gate.Revocation, "last"); err == nil {
		t.Error("a seat too many")
	}
}

// At no moment at which everybody has come to rest is a seat free while somebody
// waits, whatever was done before.
func TestFreeSeatsNeverMeetAWaiter(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 5))
			g := newGate(t, gate.Config{Seats: 3, MaxQueue: 12, MaxWait: time.Minute})
			var seats []*asker
			cancels := map[*asker]context.CancelFunc{}
			for range 300 {
				switch r.IntN(6) {
				case 0, 1, 2:
					ctx, cancel := context.WithCancel(t.Context())
					a := ask(ctx, g, gate.Class(r.IntN(int(gate.Classes))), strconv.Itoa(r.IntN(4)))
					cancels[a] = cancel
					seats = append(seats, a)
				case 3:
					if len(seats) > 0 {
						a := seats[r.IntN(len(seats))]
						cancels[a]()
					}
				case 4:
					if len(seats) > 0 {
						if a := seats[r.IntN(len(seats))]; a.seated() {
							a.seat.Release()
						}
					}
				case 5:
					if r.IntN(4) == 0 {
						reconfigure(t, g, gate.Config{Seats: 1 + r.IntN(4), MaxQueue: 1 + r.IntN(12), MaxWait: time.Minute})
					}
					time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
				}
				synctest.Wait()
				if s := g.Stat(); s.Queued > 0 && s.InFlight < s.Limit {
					t.Fatalf("seed %d: %d wait, %d of %d seats are taken", seed, s.Queued, s.InFlight, s.Limit)
				}
			}
			settle(g)
			for _, a := range seats {
				cancels[a]()
				if a.seated() {
					a.seat.Release()
				}
			}
			empty(t, g)
		})
	}
}
