package gate_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
)

// background is for those who outlive what asks for them.
var background = context.Background()

const service = 5 * time.Millisecond

func newGate(t testing.TB, cfg gate.Config) *gate.Gate {
	t.Helper()
	g, err := gate.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// seat takes a seat that must be there.
func seat(t testing.TB, g *gate.Gate, c gate.Class, id string) gate.Seat {
	t.Helper()
	s, err := g.AcquireSeat(t.Context(), c, id)
	if err != nil {
		t.Fatalf("%s of %q: %v, want a seat", c, id, err)
	}
	return s
}

// An asker is somebody in the queue, in a bubble.
type asker struct {
	seat gate.Seat
	err  error
	done atomic.Bool
	at   time.Time // of the verdict
}

// ask asks for a seat and returns when all that follows at once has happened.
func ask(ctx context.Context, g *gate.Gate, c gate.Class, id string) *asker {
	a := &asker{}
	go func() {
		a.seat, a.err = g.AcquireSeat(ctx, c, id)
		a.at = time.Now()
		a.done.Store(true)
	}()
	synctest.Wait()
	return a
}

func (a *asker) seated() bool { return a.done.Load() && a.err == nil }

func (a *asker) refused(t testing.TB, why gate.Reason) {
	t.Helper()
	if !a.done.Load() {
		t.Fatalf("it waits, want a refusal: %s", why)
	}
	refused(t, a.err, why)
}

func refused(t testing.TB, err error, why gate.Reason) {
	t.Helper()
	if r := retryAfter(t, err); r < time.Second || r > time.Minute || r%time.Second != 0 {
		t.Fatalf("RetryAfter is %v, want whole seconds from 1 to 60", r)
	}
	if r, _ := errors.AsType[*gate.Refused](err); r.Reason != why {
		t.Fatalf("refused for %s, want %s", r.Reason, why)
	}
}

func retryAfter(t testing.TB, err error) time.Duration {
	t.Helper()
	r, ok := errors.AsType[*gate.Refused](err)
	if !ok {
		t.Fatalf("got %v, want a refusal", err)
	}
	return r.RetryAfter
}

func empty(t testing.TB, g *gate.Gate) {
	t.Helper()
	if s := g.Stat(); s.InFlight != 0 || s.Queued != 0 || s.Identities != 0 {
		t.Fatalf("in flight %d, queued %d, identities %d: want an empty gate", s.InFlight, s.Queued, s.Identities)
	}
}

// A gate of n seats never has more than n at work, ends at nothing in flight and
// nobody waiting, and loses nobody.
func TestSixtyFourWorkersNeverHoldMoreThanFourSeats(t *testing.T) {
	t.Parallel()
	g := newGate(t, gate.Config{Seats: 4, MaxQueue: 64, MaxWait: time.Minute})
	var now, most, served, turnedAway atomic.Int64
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for range 100 {
				release, err := g.Acquire(t.Context(), gate.Class(i)%gate.Classes, strconv.Itoa(i))
				if err != nil {
					turnedAway.Add(1)
					continue
				}
				n := now.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				served.Add(1)
				now.Add(-1)
				release()
			}
		})
	}
	wg.Wait()
	if most.Load() > 4 {
		t.Errorf("%d at work at a time, want at most 4", most.Load())
	}
	if served.Load() == 0 || served.Load()+turnedAway.Load() != 6400 {
		t.Errorf("%d served and %d turned away, want 6400 in all", served.Load(), turnedAway.Load())
	}
	if p := g.Stat().PeakInFlight; p > 4 || p == 0 {
		t.Errorf("the peak in flight is %d, want 1 to 4", p)
	}
	empty(t, g)
}

// However often and in whatever copy a seat is given back, it is so once, also
// when the seat is somebody else's by then.
func TestReleaseIsIdempotent(t *testing.T) {
	t.Parallel()
	g := newGate(t, gate.Config{Seats: 2})
	release, err := g.Acquire(t.Context(), gate.Issuance, "a")
	if err != nil {
		t.Fatal(err)
	}
	release()
	release()
	s := seat(t, g, gate.Issuance, "b")
	release() // of a seat that b has now
	again := s
	if n := g.Stat().InFlight; n != 1 {
		t.Fatalf("%d in flight, want 1", n)
	}
	s.Release()
	again.Fail()
	again.Release()
	gate.Seat{}.Release()
	empty(t, g)
	seat(t, g, gate.Issuance, "a")
	seat(t, g, gate.Issuance, "a")
	if _, err := g.Acquire(t.Context(), gate.Issuance, "a"); err == nil {
		t.Fatal("a third seat out of two")
	}
}

func TestAFullQueueRefusesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 1, MaxWait: time.Minute})
		seat(t, g, gate.Issuance, "a")
		waiting := ask(t.Context(), g, gate.Issuance, "a")
		start := time.Now()
		ask(t.Context(), g, gate.Issuance, "a").refused(t, gate.QueueFull)
		if time.Since(start) != 0 {
			t.Errorf("the refusal took %v, want none", time.Since(start))
		}
		if waiting.done.Load() {
			t.Error("who waited is gone")
		}
		if r := g.Stat().Class[gate.Issuance].Refused; r != [gate.Reasons]uint64{gate.QueueFull: 1} {
			t.Errorf("refused %v, want one for a full queue", r)
		}
		settle(g)
	})
}

// settle opens the gate to let everybody in a bubble go.
func settle(g *gate.Gate) {
	if err := g.Reconfigure(gate.Config{}); err != nil {
		panic(err)
	}
	synctest.Wait()
}

func TestWorkThatWaitsAsLongAsItMayIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 8, MaxWait: 50 * time.Millisecond})
		s := seat(t, g, gate.Issuance, "a")
		start := time.Now()
		waiting := ask(t.Context(), g, gate.Issuance, "b")
		time.Sleep(time.Second)
		waiting.refused(t, gate.Timeout)
		if d := waiting.at.Sub(start); d != 50*time.Millisecond {
			t.Errorf("it waited %v, want 50ms", d)
		}
		s.Release()
		empty(t, g)
	})
}

// With no place or no time to wait, nothing waits: 0 is no word for a default.
func TestZeroMeansThatNothingWaits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cfg  gate.Config
		want gate.Reason
	}{
		{gate.Config{Seats: 1, MaxQueue: 0, MaxWait: time.Minute}, gate.QueueFull},
		{gate.Config{Seats: 1, MaxQueue: 64, MaxWait: 0}, gate.Timeout},
	} {
		g := newGate(t, c.cfg)
		s := seat(t, g, gate.Revocation, "a")
		_, err := g.Acquire(t.Context(), gate.Revocation, "b")
		refused(t, err, c.want)
		s.Release()
		empty(t, g)
	}
}

// A client that hangs up gives up its place in the queue at once.
func TestACanceledWaiterFreesItsPlaceAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 1, MaxWait: time.Minute})
		s := seat(t, g, gate.Issuance, "a")
		ctx, cancel := context.WithCancel(t.Context())
		leaving := ask(ctx, g, gate.Issuance, "b")
		ask(t.Context(), g, gate.Issuance, "c").refused(t, gate.QueueFull)
		cancel()
		synctest.Wait()
		leaving.refused(t, gate.Canceled)
		if !errors.Is(leaving.err, context.Canceled) {
			t.Errorf("%v is no context.Canceled", leaving.err)
		}
		next := ask(t.Context(), g, gate.Issuance, "c")
		if next.done.Load() {
			t.Fatalf("got %v, want the place that came free", next.err)
		}
		s.Release()
		synctest.Wait()
		if !next.seated() {
			t.Error("the seat that came free went to nobody")
		}
		next.seat.Release()
		empty(t, g)
	})
}

// A context that has ended gets no seat, not even a free one.
func TestAContextThatIsDoneGetsNoFreeSeat(t *testing.T) {
	t.Parallel()
	g := newGate(t, gate.Config{Seats: 1, MaxQueue: 1, MaxWait: time.Minute})
	for range 100 { // a choice between two ready cases would go wrong some time
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := g.Acquire(canceled, gate.Revocation, "a")
		refused(t, err, gate.Canceled)
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("%v is no context.Canceled", err)
		}
		late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
		_, err = g.Acquire(late, gate.Revocation, "a")
		refused(t, err, gate.Timeout)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%v is no context.DeadlineExceeded", err)
		}
		cancel()
	}
	if p := g.Stat().PeakInFlight; p != 0 {
		t.Errorf("%d had a seat", p)
	}
	empty(t, g)
}

// When whoever is first in the queue leaves, whoever is next gets the seat that
// comes free: also if the first leaves at the moment in which the seat is its.
func TestCancelingTheFrontWakesTheNext(t *testing.T) {
	t.Parallel()
	for _, order := range []string{"cancel, then release", "release, then cancel"} {
		synctest.Test(t, func(t *testing.T) {
			g := newGate(t, gate.Config{Seats: 1, MaxQueue: 2, MaxWait: time.Minute})
			s := seat(t, g, gate.Issuance, "a")
			ctx, cancel := context.WithCancel(t.Context())
			front := ask(ctx, g, gate.Revocation, "front")
			next := ask(t.Context(), g, gate.Issuance, "next")
			if order == "cancel, then release" {
				cancel()
				s.Release()
			} else {
				s.Release()
				cancel()
			}
			synctest.Wait()
			if front.seated() { // it took the seat before it saw the end
				front.seat.Release()
				synctest.Wait()
			}
			if !next.seated() {
				t.Fatalf("%s: nobody is at work and somebody waits", order)
			}
			next.seat.Release()
			empty(t, g)
		})
	}
}

// The seat goes over when it is given back, not when some timer looks. And who
// waits holds none.
func TestAWaiterHoldsNoSeatAndIsWokenByTheRelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 8, MaxWait: time.Hour})
		s := seat(t, g, gate.Issuance, "a")
		waiting := ask(t.Context(), g, gate.Issuance, "b")
		if st := g.Stat(); st.InFlight != 1 || st.Queued != 1 || st.Class[gate.Issuance].Waiting != 1 {
			t.Errorf("in flight %d, queued %d: want one each", st.InFlight, st.Queued)
		}
		time.Sleep(7 * time.Millisecond)
		now := time.Now()
		s.Release()
		synctest.Wait()
		if !waiting.seated() || waiting.at != now {
			t.Fatal("the release woke nobody")
		}
		waiting.seat.Release()
		empty(t, g)
	})
}

// A gate without seats to count is open: nothing waits and nothing is refused.
func TestAGateWithoutSeatsIsOpenToAll(t *testing.T) {
	t.Parallel()
	done, cancel := context.WithCancel(t.Context())
	cancel()
	for _, seats := range []int{0, -1} {
		g := newGate(t, gate.Config{Seats: seats})
		for i := range 1000 {
			ctx := t.Context()
			if i%2 == 1 {
				ctx = done
			}
			release, err := g.Acquire(ctx, gate.Anonymous, "a")
			if err != nil {
				t.Fatalf("the %dth: %v", i, err)
			}
			defer release()
		}
		if s := g.Stat(); s.Seats != 0 || s.Limit != 0 {
			t.Errorf("seats %d, limit %d: want none", s.Seats, s.Limit)
		}
	}
}

// Whatever ends the work of an identity, or keeps it from beginning, leaves
// nothing of it behind.
func TestTenThousandIdentitiesLeaveNoTrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 2, MaxQueue: 20, MaxWait: 20 * time.Millisecond})
		for i := range 10_000 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i%40)*time.Millisecond)
			go func() {
				defer cancel()
				s, err := g.AcquireSeat(ctx, gate.Class(i)%gate.Classes, fmt.Sprint("id", i))
				if err != nil {
					return
				}
				time.Sleep(service)
				s.Release()
			}()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		s := g.Stat()
		var ends [gate.Reasons]uint64
		admitted := uint64(0)
		for _, c := range s.Class {
			admitted += c.Admitted
			for r, n := range c.Refused {
				ends[r] += n
			}
		}
		if admitted == 0 || ends[gate.QueueFull]+ends[gate.Timeout] == 0 {
			t.Errorf("admitted %d, refused %v: want some of each", admitted, ends)
		}
		if n := admitted + ends[gate.QueueFull] + ends[gate.Timeout] + ends[gate.Canceled]; n != 10_000 {
			t.Errorf("%d ends of 10000", n)
		}
		empty(t, g)
	})
}

// Work whose asker's time would be over before its end is not begun, and said so
// on arrival: nothing is gained by waiting for it.
func TestWorkThatCantEndInTimeIsRefusedOnArrival(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 64, MaxWait: 45 * time.Millisecond})
		for range 8 { // so that the gate knows how long work takes
			s := seat(t, g, gate.Issuance, "a")
			time.Sleep(10 * time.Millisecond)
			s.Release()
		}
		seat(t, g, gate.Issuance, "a")
		within := func(d time.Duration, id string) *asker {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			t.Cleanup(cancel)
			return ask(ctx, g, gate.Issuance, id)
		}
		within(19*time.Millisecond, "b").refused(t, gate.Timeout)
		// It takes one service time to wait and one to work.
		if within(21*time.Millisecond, "b").done.Load() {
			t.Error("refused although there is time")
		}
		// Behind three of the same identity the wait alone is 50 ms.
		for range 3 {
			ask(t.Context(), g, gate.Issuance, "c")
		}
		ask(t.Context(), g, gate.Issuance, "c").refused(t, gate.Timeout)
		// The reserve of time is counted for each class as it stands in the queue.
		if ask(t.Context(), g, gate.Revocation, "d").done.Load() {
			t.Error("a revocation, which goes first, is refused for those behind it")
		}
		settle(g)
	})
}

// Who waited and has too little time left when a seat comes free is passed over
// in favour of the next.
func TestAWaiterWhoseTimeIsOverIsNotSeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 64, MaxWait: time.Minute})
		s := seat(t, g, gate.Issuance, "a")
		time.Sleep(10 * time.Millisecond)
		s.Release()
		s = seat(t, g, gate.Issuance, "a")
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Millisecond)
		defer cancel()
		late := ask(ctx, g, gate.Issuance, "b")
		next := ask(t.Context(), g, gate.Issuance, "c")
		time.Sleep(20 * time.Millisecond) // longer than was to be expected
		s.Release()
		synctest.Wait()
		late.refused(t, gate.Timeout)
		if ctx.Err() != nil || !next.seated() {
			t.Error("the seat did not go to the next")
		}
		next.seat.Release()
		empty(t, g)
	})
}

// A wrong idea of how long work takes must not shut the gate: a free seat is
// given to whoever has any time left, and what it took corrects the idea.
func TestAFreeSeatIsNotDeniedForAWrongEstimate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 64, MaxWait: time.Minute})
		s := seat(t, g, gate.Issuance, "a")
		time.Sleep(time.Hour)
		s.Release()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s, err := g.AcquireSeat(ctx, gate.Issuance, "a")
		if err != nil {
			t.Fatal(err)
		}
		s.Release()
	})
}

func TestRetryAfterIsHowLongTheQueueTakesToDrain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ took, behindTwo, behindNone time.Duration }{
		{time.Millisecond, time.Second, time.Second},
		{2 * time.Second, 6 * time.Second, 2 * time.Second},
		{2100 * time.Millisecond, 7 * time.Second, 3 * time.Second},
		{time.Hour, time.Minute, time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			cfg := gate.Config{Seats: 1, MaxQueue: 2, MaxWait: 24 * time.Hour}
			g := newGate(t, cfg)
			s := seat(t, g, gate.Issuance, "a")
			time.Sleep(c.took)
			s.Release()
			seat(t, g, gate.Issuance, "a")
			ask(t.Context(), g, gate.Issuance, "a")
			ask(t.Context(), g, gate.Issuance, "a")
			_, err := g.AcquireSeat(t.Context(), gate.Issuance, "a")
			refused(t, err, gate.QueueFull)
			if got := retryAfter(t, err); got != c.behindTwo {
				t.Errorf("work of %v behind one at work and two: RetryAfter is %v, want %v", c.took, got, c.behindTwo)
			}
			cfg.MaxQueue = 0
			reconfigure(t, g, cfg)
			_, err = g.AcquireSeat(t.Context(), gate.Issuance, "a")
			refused(t, err, gate.QueueFull)
			if got := retryAfter(t, err); got != c.behindNone {
				t.Errorf("work of %v behind one at work: RetryAfter is %v, want %v", c.took, got, c.behindNone)
			}
		})
	}
}

// What goes first is not told to come again for those who wait behind it, nor
// is a class that has its turn among more urgent ones for all of those.
func TestOnlyThoseWhoGoFirstCountForTheExpectedWait(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		seats  int
		class  gate.Class
		enough time.Duration
	}{
		{8, gate.Status, 12 * time.Millisecond},    // of its reserve: the next seat, of eight
		{1, gate.Issuance, 120 * time.Millisecond}, // its turn comes after sixteen
		{1, gate.Revocation, 120 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := newGate(t, gate.Config{Seats: c.seats, MaxQueue: 64, MaxWait: time.Minute})
			s := seat(t, g, c.class, "x")
			time.Sleep(service)
			s.Release()
			for range c.seats {
				seat(t, g, gate.Revocation, "x")
			}
			for i := range 50 {
				ask(t.Context(), g, gate.Revocation, strconv.Itoa(i/25))
			}
			within := func(d time.Duration) bool {
				ctx, cancel := context.WithTimeout(t.Context(), d)
				t.Cleanup(cancel)
				return !ask(ctx, g, c.class, "new").done.Load()
			}
			if within(service) {
				t.Errorf("%s at %d seats waits although it can't end in time", c.class, c.seats)
			}
			if !within(c.enough) {
				t.Errorf("%s at %d seats is refused although it would have ended in time", c.class, c.seats)
			}
			settle(g)
		})
	}
}

// A flood is turned away without an allocation for each.
func TestARefusalAllocatesNothing(t *testing.T) {
	g := newGate(t, gate.Config{Seats: 1})
	seat(t, g, gate.Issuance, "a")
	if n := testing.AllocsPerRun(100, func() {
		if _, err := g.AcquireSeat(t.Context(), gate.Issuance, "b"); err == nil {
			t.Error("a seat that is taken")
		}
	}); n != 0 {
		t.Errorf("%v allocations a refusal, want none", n)
	}
}

func TestStatCountsWaitsByClass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 8, MaxWait: time.Minute})
		s := seat(t, g, gate.Issuance, "a")
		waiting := ask(t.Context(), g, gate.Renewal, "b")
		time.Sleep(40 * time.Millisecond)
		s.Release()
		synctest.Wait()
		waiting.seat.Release()
		st := g.Stat()
		if c := st.Class[gate.Issuance]; c.Admitted != 1 || c.Wait.Buckets[0] != 1 || c.Wait.Sum != 0 {
			t.Errorf("issuance: %+v, want one that did not wait", c)
		}
		c := st.Class[gate.Renewal]
		if c.Admitted != 1 || c.Wait.Count != 1 || c.Wait.Sum != 40*time.Millisecond {
			t.Errorf("renewal: %+v, want one that waited 40ms", c)
		}
		for i, bound := range gate.Bounds {
			want := uint64(0)
			if bound >= 40*time.Millisecond {
				want = 1
			}
			if c.Wait.Buckets[i] != want {
				t.Errorf("bucket %v holds %d, want %d", bound, c.Wait.Buckets[i], want)
			}
		}
		if st.PeakQueued != 1 || st.PeakInFlight != 1 || st.Seats != 1 || st.Limit != 1 {
			t.Errorf("%+v: want peaks, seats and limit of 1", st)
		}
	})
}

func TestAMeaninglessConfigIsRefused(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]gate.Config{
		"negative queue":              {Seats: 4, MaxQueue: -1},
		"negative wait":               {Seats: 4, MaxWait: -1},
		"negative floor":              {Seats: 4, MinSeats: -1},
		"floor above the ceiling":     {Seats: 4, MinSeats: 5},
		"negative reserve":            {Seats: 4, Reserve: &[gate.Classes]int{gate.Status: -1}},
		"nothing is left of reserves": {Seats: 4, Reserve: &[gate.Classes]int{2, 1, 1}},
		"reserves beyond counting":    {Seats: 4, Reserve: &[gate.Classes]int{1<<62 + 1, 1<<62 + 1, 1<<62 + 1, 1<<62 + 1}},
	} {
		if _, err := gate.New(cfg); err == nil {
			t.Errorf("%s: New took it", name)
		}
		g := newGate(t, gate.Config{Seats: 1})
		if err := g.Reconfigure(cfg); err == nil || g.Stat().Seats != 1 {
			t.Errorf("%s: Reconfigure took it", name)
		}
	}
}

// The default reserve leaves seats to all, and with one or two there is none.
func TestTheDefaultReserveLeavesSeatsToAll(t *testing.T) {
	t.Parallel()
	for seats := 1; seats <= 64; seats++ {
		sum := 0
		s := newGate(t, gate.Config{Seats: seats}).Stat()
		for _, c := range s.Class {
			sum += c.Reserve
		}
		if sum >= seats || seats < 3 && sum > 0 {
			t.Errorf("%d seats: %d reserved", seats, sum)
		}
		if seats == 8 && (s.Class[gate.Revocation].Reserve != 1 || s.Class[gate.Status].Reserve != 2 || s.Class[gate.Renewal].Reserve != 2) {
			t.Errorf("8 seats: reserved %+v", s.Class)
		}
	}
}

// A seat that is given back void is free like any other, and teaches nothing of
// how long work takes.
func TestAVoidSeatIsFreeAndTeachesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 8, MaxWait: time.Minute})
		for i, took := range []time.Duration{10 * time.Millisecond, 0, time.Hour, 10 * time.Millisecond} {
			s, err := g.AcquireSeat(t.Context(), gate.Issuance, "")
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(took)
			if i%3 == 0 {
				s.Release()
			} else {
				s.Void()
				s.Void()
			}
		}
		if st := g.Stat(); st.InFlight != 0 || st.Class[gate.Issuance].Service != 10*time.Millisecond {
			t.Errorf("%+v", st)
		}
	})
}
