package gate_test

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
)

// A crowd asks at random moments, at a steady rate however it is answered.
type crowd struct {
	class      gate.Class
	name       string
	identities int
	perSecond  float64

	served  int
	refused int
	waits   []time.Duration // of those served
	took    []time.Duration // by them, the work included
	worked  time.Duration   // by them, until the flood ends
}

func (c *crowd) asked() int { return c.served + c.refused }

// quantile is the q-th of d, from 0 to 1.
func quantile(d []time.Duration, q float64) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[min(len(d)-1, int(q*float64(len(d))))]
}

// fixed is work that takes always the same time, random work as a device's does
// whose signatures differ.
func fixed(*rand.Rand) time.Duration    { return service }
func random(r *rand.Rand) time.Duration { return time.Duration(r.ExpFloat64() * float64(service)) }

// flood lets crowds at a gate for that long, in a bubble's time, and then waits
// for all to end. What each asks, and when, does not depend on the others.
func flood(t *testing.T, cfg gate.Config, length time.Duration, work func(*rand.Rand) time.Duration, crowds ...*crowd) *gate.Gate {
	t.Helper()
	var g *gate.Gate
	synctest.Test(t, func(t *testing.T) {
		g = newGate(t, cfg)
		var all sync.WaitGroup
		var mu sync.Mutex
		for i, c := range crowds {
			all.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i)+1, 7))
				end := time.Now().Add(length)
				for {
					time.Sleep(time.Duration(r.ExpFloat64() / c.perSecond * float64(time.Second)))
					if !time.Now().Before(end) {
						return
					}
					took := work(r)
					id := c.name + strconv.Itoa(r.IntN(c.identities))
					all.Go(func() {
						start := time.Now()
						release, err := g.Acquire(background, c.class, id)
						waited, left := time.Since(start), time.Until(end)
						if err == nil {
							time.Sleep(took)
							release()
						}
						mu.Lock()
						defer mu.Unlock()
						if err != nil {
							c.refused++
							return
						}
						c.served++
						c.worked += min(took, max(0, left))
						c.waits = append(c.waits, waited)
						c.took = append(c.took, waited+took)
					})
				}
			})
		}
		all.Wait()
		empty(t, g)
	})
	if s := g.Stat(); s.PeakInFlight > cfg.Seats || s.PeakQueued > cfg.MaxQueue {
		t.Errorf("peaks: %d in flight, %d queued: want at most %d and %d", s.PeakInFlight, s.PeakQueued, cfg.Seats, cfg.MaxQueue)
	}
	return g
}

// eight is a gate for a device of eight sessions, as wide as its defaults are.
var eight = gate.Config{Seats: 8, MaxQueue: 64, MaxWait: 5 * time.Second}

// tenfold is ten times what eight seats can do.
const tenfold = 10 * 8 * float64(time.Second) / float64(service)

func allServed(t *testing.T, c *crowd) {
	t.Helper()
	if c.served == 0 || c.refused > 0 {
		t.Errorf("%s of %s: %d served, %d refused: want all served", c.class, c.name, c.served, c.refused)
	}
}

func worstWait(t *testing.T, c *crowd, atMost time.Duration) {
	t.Helper()
	if w := slices.Max(c.waits); w > atMost {
		t.Errorf("%s of %s waited up to %v, want at most %v", c.class, c.name, w, atMost)
	}
}

// One identity with thousands of requests does not slow another: whoever has
// fewest seats goes first, so its wait is for the next seat to come free.
func TestOneHogDoesNotHurtAnotherOfItsClass(t *testing.T) {
	t.Parallel()
	alone := &crowd{class: gate.Issuance, name: "victim", identities: 1, perSecond: 100}
	flood(t, eight, 4*time.Second, random, alone)
	victim := &crowd{class: gate.Issuance, name: "victim", identities: 1, perSecond: 100}
	hog := &crowd{class: gate.Issuance, name: "hog", identities: 1, perSecond: tenfold}
	flood(t, eight, 4*time.Second, random, victim, hog)
	allServed(t, victim)
	if victim.served != alone.served {
		t.Errorf("%d served beside the hog, %d alone", victim.served, alone.served)
	}
	if hog.served == 0 || hog.refused == 0 {
		t.Errorf("of the hog %d served and %d refused, want some of each", hog.served, hog.refused)
	}
	for q, atMost := range map[float64]float64{0.5: 1.3, 0.99: 1.5} {
		beside, idle := quantile(victim.took, q), quantile(alone.took, q)
		if float64(beside) > atMost*float64(idle) {
			t.Errorf("quantile %v of the victim's latency is %v, want at most %v times the %v it has alone", q, beside, atMost, idle)
		}
	}
}

// Where all work takes the same time, seats come free together and the next one
// is a whole service time away at worst, but no more.
func TestAVictimWaitsForOneServiceTimeAtMost(t *testing.T) {
	t.Parallel()
	victim := &crowd{class: gate.Issuance, name: "victim", identities: 1, perSecond: 20}
	hog := &crowd{class: gate.Issuance, name: "hog", identities: 1, perSecond: tenfold}
	flood(t, eight, 2*time.Second, fixed, victim, hog)
	allServed(t, victim)
	worstWait(t, victim, service)
}

// However many identities one invents, they are of their class: those that have
// proven who they are, and so are of a more urgent one, don't notice.
func TestInventedIdentitiesDoNotHurtAProvenClass(t *testing.T) {
	t.Parallel()
	for _, hogs := range []int{50, 1000} {
		for _, class := range []gate.Class{gate.Revocation, gate.Status, gate.Renewal} {
			t.Run(strconv.Itoa(hogs)+" against "+class.String(), func(t *testing.T) {
				t.Parallel()
				proven := &crowd{class: class, name: "proven", identities: 20, perSecond: 200}
				hog := &crowd{class: gate.Issuance, name: "hog", identities: hogs, perSecond: tenfold}
				flood(t, eight, time.Second, fixed, proven, hog)
				allServed(t, proven)
				worstWait(t, proven, service)
				if hog.served == 0 {
					t.Error("the crowd got nothing, although there are seats enough")
				}
			})
		}
	}
}

// Ten times more than it can do does not make a gate do less: hardly a seat is
// ever empty, and hardly a seat is given to work that nobody waits for any more.
func TestGoodputHoldsUnderTenfoldLoad(t *testing.T) {
	t.Parallel()
	for _, hogs := range []int{1, 50, 1000} {
		for _, seats := range []int{1, 2, 8} {
			cfg := eight
			cfg.Seats = seats
			hog := &crowd{class: gate.Issuance, name: "hog", identities: hogs, perSecond: tenfold * float64(seats) / 8}
			flood(t, cfg, time.Second, random, hog)
			if did, can := hog.worked, time.Duration(seats)*time.Second; did < 95*can/100 {
				t.Errorf("%d hogs at %d seats: %v of work done, want 95%% of %v", hogs, seats, did, can)
			}
		}
	}
}

// Neither status nor a revocation waits behind issuance for longer than the work
// takes that goes on when they come, and one that is overdue; nor does issuance
// stop.
func TestStatusWaitsBehindIssuanceForOneServiceTimeAtMost(t *testing.T) {
	t.Parallel()
	for _, seats := range []int{1, 2, 3, 8} {
		cfg := eight
		cfg.Seats = seats
		can := float64(seats) * float64(time.Second) / float64(service)
		status := &crowd{class: gate.Status, name: "status", identities: 10, perSecond: can / 20}
		issuance := &crowd{class: gate.Issuance, name: "hog", identities: 50, perSecond: 10 * can}
		flood(t, cfg, time.Second, fixed, status, issuance)
		allServed(t, status)
		// Two that come at the same moment wait for each other.
		if w := quantile(status.waits, 0.9); w > service {
			t.Errorf("%d seats: status waited %v at p90, want at most %v", seats, w, service)
		}
		if got := issuance.served; float64(got) < can*0.85 {
			t.Errorf("%d seats: %d issued, want nearly all of the %v that status leaves", seats, got, can)
		}
	}
}

// Exactly: whatever has happened before, at most one issuance begins or is under
// way between a status that comes and its seat.
func TestAtMostOneIssuanceGoesBeforeAWaitingStatus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 64, MaxWait: time.Minute})
		for history := range 60 {
			running := seat(t, g, gate.Issuance, "hog")
			hog := ask(t.Context(), g, gate.Issuance, "hog")
			var status []*asker
			for range history % 20 {
				status = append(status, ask(t.Context(), g, gate.Status, "s"))
			}
			last := ask(t.Context(), g, gate.Status, "last")
			issued := 0
			for !last.seated() {
				running.Release()
				synctest.Wait()
				running = gate.Seat{}
				for _, s := range append(status, last) {
					if s.seated() && s.seat != (gate.Seat{}) {
						running, s.seat = s.seat, gate.Seat{}
					}
				}
				if hog.seated() && hog.seat != (gate.Seat{}) {
					issued++
					running, hog.seat = hog.seat, gate.Seat{}
				}
			}
			if issued > 1 {
				t.Fatalf("after %d: %d issued before a status", history, issued)
			}
			running.Release()
			settle(g)
			for _, a := range append(status, last, hog) {
				if a.seated() {
					a.seat.Release()
				}
			}
			empty(t, g)
			if err := g.Reconfigure(gate.Config{Seats: 1, MaxQueue: 64, MaxWait: time.Minute}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Nothing waits for ever: under a flood of the most urgent, every other class
// still gets its reserve or at least its turns, also at a single seat, also if
// it may wait for less long than the flood's queue is.
func TestNoClassStarvesUnderAFloodOfAnother(t *testing.T) {
	t.Parallel()
	for _, seats := range []int{1, 2, 8} {
		for _, wait := range []time.Duration{5 * time.Second, 30 * time.Millisecond} {
			cfg := gate.Config{Seats: seats, MaxQueue: 64, MaxWait: wait}
			can := float64(seats) * float64(time.Second) / float64(service)
			for flooding := range gate.Classes {
				crowds := []*crowd{{class: flooding, name: "flood", identities: 20, perSecond: 10 * can}}
				for c := range gate.Classes {
					if c != flooding {
						crowds = append(crowds, &crowd{class: c, name: "some", identities: 5, perSecond: can / 10})
					}
				}
				flood(t, cfg, time.Second/2, fixed, crowds...)
				for _, c := range crowds {
					if c.served == 0 {
						t.Errorf("%d seats, %v to wait, flood of %s: of %d of %s none was served", seats, wait, flooding, c.asked(), c.class)
					}
				}
			}
		}
	}
}

// Several classes that are overdue take turns with the most urgent one: it never
// waits for two of them in a row.
func TestOverdueClassesDoNotGoOneAfterAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 100, MaxWait: time.Minute})
		running := seat(t, g, gate.Revocation, "x")
		var mu sync.Mutex
		var order []gate.Class
		wait := func(c gate.Class, id string) {
			go func() {
				release, err := g.Acquire(background, c, id)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, c)
				mu.Unlock()
				time.Sleep(time.Millisecond)
				release()
			}()
			synctest.Wait()
		}
		for i := range 60 {
			wait(gate.Revocation, strconv.Itoa(i%2))
		}
		for c := gate.Status; c < gate.Classes; c++ {
			wait(c, "one")
		}
		running.Release()
		time.Sleep(time.Second)
		mu.Lock()
		defer mu.Unlock()
		turns := 0
		for i, c := range order[:40] {
			if c == gate.Revocation {
				continue
			}
			turns++
			if i < 16 || order[i-1] != gate.Revocation {
				t.Errorf("%s went at %d of %v", c, i, order[:40])
			}
		}
		if want := int(gate.Classes) - 1; turns != want {
			t.Errorf("%d of %d classes had their turn in %v", turns, want, order[:40])
		}
	})
}

// A flood of revocations leaves the reserves of status and renewal alone.
func TestReservesHoldAgainstMoreUrgentClasses(t *testing.T) {
	t.Parallel()
	status := &crowd{class: gate.Status, name: "status", identities: 5, perSecond: 100}
	renewal := &crowd{class: gate.Renewal, name: "renewal", identities: 5, perSecond: 100}
	revocation := &crowd{class: gate.Revocation, name: "bulk", identities: 1, perSecond: tenfold}
	flood(t, eight, time.Second, fixed, status, renewal, revocation)
	allServed(t, status)
	allServed(t, renewal)
	if w := quantile(status.waits, 0.99); w > 2*service {
		t.Errorf("status waited %v at p99, want at most %v", w, 2*service) // more than two at a time wait for each other
	}
}

// What is reserved is lent: one class alone has every seat.
func TestIdleReservesAreLent(t *testing.T) {
	t.Parallel()
	for c := range gate.Classes {
		g := newGate(t, gate.Config{Seats: 8})
		for range 8 {
			seat(t, g, c, "alone")
		}
		if n := g.Stat().Class[c].InFlight; n != 8 {
			t.Errorf("%s alone has %d seats, want 8", c, n)
		}
	}
}

// While a queue stands, its work waits for a few service times, not as long as
// the configuration allows; and as long as that again once it has drained.
func TestAQueueCannotStand(t *testing.T) {
	t.Parallel()
	// A queue of 1000 at 1600/s would make everybody wait for 600 ms.
	cfg := gate.Config{Seats: 8, MaxQueue: 1000, MaxWait: 5 * time.Second}
	hog := &crowd{class: gate.Issuance, name: "hog", identities: 1, perSecond: tenfold}
	flood(t, cfg, 2*time.Second, fixed, hog)
	if w := quantile(hog.waits, 0.99); w > 100*time.Millisecond+4*service {
		t.Errorf("the p99 wait is %v", w)
	}
	if w := quantile(hog.waits[len(hog.waits)/2:], 0.99); w > 4*service {
		t.Errorf("the p99 wait of the second half is %v, want at most %v", w, 4*service)
	}
}

func TestPatienceReturnsWhenTheQueueDrains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 64, MaxWait: time.Minute})
		standing := func() bool { return g.Stat().Class[gate.Issuance].Standing }
		first := seat(t, g, gate.Issuance, "a")
		time.Sleep(service)
		first.Release()
		first = seat(t, g, gate.Issuance, "a")
		b := ask(t.Context(), g, gate.Issuance, "b")
		time.Sleep(99 * time.Millisecond)
		c := ask(t.Context(), g, gate.Issuance, "c")
		if standing() || c.done.Load() {
			t.Fatal("a queue of 99 ms stands")
		}
		time.Sleep(time.Millisecond)
		if !standing() {
			t.Fatal("a queue of 100 ms does not stand")
		}
		if ask(t.Context(), g, gate.Revocation, "d").done.Load() || g.Stat().Class[gate.Revocation].Standing {
			t.Fatal("a class is held to the queue of another")
		}
		first.Release() // to d, as it goes first
		synctest.Wait()
		if b.done.Load() {
			t.Fatal("b was next")
		}
		time.Sleep(time.Second)
		settle(g)
		b.refused(t, gate.Timeout) // long over the few service times
		if standing() {
			t.Fatal("an empty queue stands")
		}
	})
}
