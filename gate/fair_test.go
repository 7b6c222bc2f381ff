package gate_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
)

// maxMin shares n among those who want so much: nobody gets more than it wants,
// and nobody could get more but from one who has less.
func maxMin(n int, want []int) []int {
	got := make([]int, len(want))
	for n > 0 {
		least := -1
		for i := range want {
			if got[i] < want[i] && (least < 0 || got[i] < got[least]) {
				least = i
			}
		}
		if least < 0 {
			break
		}
		got[least]++
		n--
	}
	return got
}

// A queue is many who wait from the same moment on at a gate whose seats are all
// taken: nobody's place in it depends on who came first.
type queue struct {
	gate   *gate.Gate
	before []gate.Seat
	mu     sync.Mutex
	want   []int
	given  []int
	held   []int
}

func newQueue(t *testing.T, seats int, want []int, work func(who, i int) time.Duration) *queue {
	q := &queue{
		gate:  newGate(t, gate.Config{Seats: seats, MaxQueue: 1000, MaxWait: time.Hour}),
		want:  want,
		given: make([]int, len(want)),
		held:  make([]int, len(want)),
	}
	for range seats {
		q.before = append(q.before, seat(t, q.gate, gate.Issuance, "before"))
	}
	for who, n := range want {
		for i := range n {
			go q.run(t, who, work(who, i))
		}
	}
	synctest.Wait()
	return q
}

func (q *queue) run(t *testing.T, who int, work time.Duration) {
	s, err := q.gate.AcquireSeat(t.Context(), gate.Issuance, strconv.Itoa(who))
	if err != nil {
		t.Error(err)
		return
	}
	q.mu.Lock()
	q.given[who]++
	q.held[who]++
	q.mu.Unlock()
	time.Sleep(work)
	q.mu.Lock()
	q.held[who]--
	q.mu.Unlock()
	s.Release()
}

// serve lets the queue in, and has look look at it at every step until it is empty.
func (q *queue) serve(t *testing.T, step time.Duration, look func()) {
	for _, s := range q.before {
		s.Release()
	}
	steps := 0
	for ; q.gate.Stat().Queued > 0; steps++ {
		synctest.Wait()
		q.mu.Lock()
		look()
		q.mu.Unlock()
		time.Sleep(step)
	}
	if steps < 2 {
		t.Errorf("served in %d steps: nothing was seen", steps)
	}
	time.Sleep(time.Second)
	q.mu.Lock()
	defer q.mu.Unlock()
	if !slices.Equal(q.given, q.want) {
		t.Errorf("%v got seats, want %v", q.given, q.want)
	}
	empty(t, q.gate)
}

// At each moment the seats given so far are those of the max-min fair share, give
// or take one request.
func TestSeatsAreMaxMinFairWithinOneRequest(t *testing.T) {
	t.Parallel()
	const work = 50 * time.Microsecond // all are through before the queue stands
	for trial := range 60 {
		r := rand.New(rand.NewPCG(uint64(trial), 1))
		seats := []int{1, 3, 8}[trial%3]
		want := make([]int, 2+r.IntN(6))
		for i := range want {
			want[i] = 5 + r.IntN(30)
		}
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(t, seats, want, func(int, int) time.Duration { return work })
			q.serve(t, work, func() {
				n := 0
				for _, given := range q.given {
					n += given
				}
				for i, fair := range maxMin(n, want) {
					if q.given[i] < fair-1 || q.given[i] > fair+1 {
						t.Errorf("%d seats: of %d given %v are shared as %v, fair is %v", seats, n, want, q.given, maxMin(n, want))
					}
				}
			})
		})
	}
}

// With work that takes long for some and is short for others, it is the seats
// held that are shared: whoever waits has at most one fewer than any other.
func TestNobodyGetsASeatWhileAnotherWithFewerWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		want := []int{30, 30, 30}
		q := newQueue(t, 8, want, func(who, i int) time.Duration {
			return time.Duration(100+1000*who+i) * time.Microsecond
		})
		q.serve(t, 33*time.Microsecond, func() {
			for a := range want {
				for b := range want {
					if q.given[a] < want[a] && q.held[b] > q.held[a]+1 {
						t.Errorf("%d waits with %d seats, %d has %d", a, q.held[a], b, q.held[b])
					}
				}
			}
		})
	})
}

// Inside one identity, whoever asked first is first.
func TestAnIdentityIsServedInTheOrderItAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 64, MaxWait: time.Minute})
		running := seat(t, g, gate.Issuance, "a")
		var queue []*asker
		for range 5 {
			queue = append(queue, ask(t.Context(), g, gate.Issuance, "a"))
		}
		for i, a := range queue {
			running.Release()
			synctest.Wait()
			if !a.seated() {
				t.Fatalf("the %dth is not next", i)
			}
			running = a.seat
		}
		running.Release()
		empty(t, g)
	})
}

// Twelve threads of one identity, six requests of another: none of the six is
// refused, and the twelve get what is left. So it was with a cap of all seats
// but one for each of two that are present; by fair turns it is, too.
func TestTwelveThreadsOfOneDoNotRefuseSixOfAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 4, MaxQueue: 4, MaxWait: time.Second})
		var hogs sync.WaitGroup
		for range 12 {
			hogs.Go(func() {
				for end := time.Now().Add(time.Second); time.Now().Before(end); {
					if release, err := g.Acquire(t.Context(), gate.Issuance, "hog"); err == nil {
						time.Sleep(service)
						release()
					} else {
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
		for range 6 {
			time.Sleep(101 * time.Millisecond)
			start := time.Now()
			release, err := g.Acquire(t.Context(), gate.Issuance, "other")
			if err != nil {
				t.Errorf("the other is refused: %v", err)
				continue
			}
			if w := time.Since(start); w > service {
				t.Errorf("the other waited %v, want at most %v", w, service)
			}
			time.Sleep(service)
			release()
		}
		hogs.Wait()
		s := g.Stat().Class[gate.Issuance]
		if s.Admitted <= 6+100 || s.Refused[gate.QueueFull] == 0 {
			t.Errorf("of the hog %d were served and %d refused, want some of each", s.Admitted-6, s.Refused[gate.QueueFull])
		}
		empty(t, g)
	})
}

func TestAloneAnIdentityMayUseEverySeat(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"alone", ""} {
		g := newGate(t, eight)
		for range 8 {
			seat(t, g, gate.Anonymous, id)
		}
	}
}

// Fairness refuses nobody while there are seats: not who has them all but one,
// and not who was never seen.
func TestNobodyIsRefusedByFairnessWhileSeatsAreFree(t *testing.T) {
	t.Parallel()
	g := newGate(t, gate.Config{Seats: 8})
	for range 6 {
		seat(t, g, gate.Issuance, "hog")
	}
	seat(t, g, gate.Issuance, "new")
	seat(t, g, gate.Issuance, "hog")
}

// A refusal is no work in flight and earns nothing: who has been refused a
// hundred times stands where who never asked does, and takes from nobody.
func TestARefusalGivesNoStanding(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 4, MaxQueue: 1, MaxWait: time.Minute})
		var seats []gate.Seat
		for range 4 {
			seats = append(seats, seat(t, g, gate.Issuance, "client"))
		}
		waiting := ask(t.Context(), g, gate.Issuance, "client")
		for range 100 {
			ask(t.Context(), g, gate.Issuance, "probe").refused(t, gate.QueueFull)
		}
		if s := g.Stat(); s.InFlight != 4 || s.Queued != 1 || s.Identities != 1 {
			t.Errorf("in flight %d, queued %d, identities %d: the refused left something", s.InFlight, s.Queued, s.Identities)
		}
		seats[0].Release()
		synctest.Wait()
		if !waiting.seated() {
			t.Error("the client lost a seat to one that was refused")
		}
		for _, s := range append(seats[1:], waiting.seat) {
			s.Release()
		}
		for range 4 { // all are the client's again, at once
			seat(t, g, gate.Issuance, "client")
		}
	})
}

// When the queue is full, the newest of the longest flow gives way to one whose
// flow is shorter by two; who is not, has to go itself. So two never push each
// other out by turns.
func TestTheLongestFlowGivesWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 4, MaxWait: time.Minute})
		seat(t, g, gate.Issuance, "x")
		var hog []*asker
		for range 4 {
			hog = append(hog, ask(t.Context(), g, gate.Issuance, "hog"))
		}
		ask(t.Context(), g, gate.Issuance, "hog").refused(t, gate.QueueFull)
		one := ask(t.Context(), g, gate.Issuance, "other")
		hog[3].refused(t, gate.QueueFull)
		// 3 and 1: two apart.
		two := ask(t.Context(), g, gate.Issuance, "other")
		hog[2].refused(t, gate.QueueFull)
		// 2 and 2.
		ask(t.Context(), g, gate.Issuance, "other").refused(t, gate.QueueFull)
		ask(t.Context(), g, gate.Issuance, "hog").refused(t, gate.QueueFull)
		// 2, 2 and none: two apart. The newest of them goes.
		ask(t.Context(), g, gate.Issuance, "third")
		two.refused(t, gate.QueueFull)
		// 2, 1 and 1.
		ask(t.Context(), g, gate.Issuance, "third").refused(t, gate.QueueFull)
		for i, a := range []*asker{hog[0], hog[1], one} {
			if a.done.Load() {
				t.Errorf("%d was pushed out, too: %v", i, a.err)
			}
		}
		settle(g)
	})
}

// A full queue makes room for what is more urgent, from the least urgent first,
// but leaves each class the places that are its own.
func TestALessUrgentClassGivesWayDownToItsOwnPlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 24, MaxWait: time.Minute}) // 2 places each
		seat(t, g, gate.Issuance, "x")
		fill := func(c gate.Class, n int) {
			for i := range n {
				ask(t.Context(), g, c, fmt.Sprint(c, i))
			}
		}
		waiting := func() (w [gate.Classes]int) {
			for c, s := range g.Stat().Class {
				w[c] = s.Waiting
			}
			return w
		}
		step := func(c gate.Class, n int, want [gate.Classes]int) {
			t.Helper()
			fill(c, n)
			if got := waiting(); got != want {
				t.Fatalf("after %d of %s the queue is %v, want %v", n, c, got, want)
			}
		}
		step(gate.Issuance, 10, [gate.Classes]int{0, 0, 0, 10, 0})
		step(gate.Anonymous, 14, [gate.Classes]int{0, 0, 0, 10, 14})
		step(gate.Revocation, 12, [gate.Classes]int{12, 0, 0, 10, 2})
		step(gate.Renewal, 8, [gate.Classes]int{12, 0, 8, 2, 2})
		step(gate.Issuance, 5, [gate.Classes]int{12, 0, 8, 2, 2})
		step(gate.Status, 5, [gate.Classes]int{12, 5, 3, 2, 2})
		// A flood of the most urgent can't fill the queue against the others.
		step(gate.Revocation, 30, [gate.Classes]int{16, 2, 2, 2, 2})
		step(gate.Ahead, 5, [gate.Classes]int{14, 2, 2, 2, 2, 2})
		settle(g)
	})
}

// A class gets its own places back from a more urgent one.
func TestAClassTakesItsOwnPlacesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 10, MaxWait: time.Minute}) // 1 place each
		seat(t, g, gate.Revocation, "x")
		for i := range 10 {
			ask(t.Context(), g, gate.Revocation, strconv.Itoa(i))
		}
		if ask(t.Context(), g, gate.Anonymous, "a").done.Load() {
			t.Error("no place for the first of a class")
		}
		ask(t.Context(), g, gate.Anonymous, "b").refused(t, gate.QueueFull)
		settle(g)
	})
}

// What is nobody's in particular has one identity's share: a crowd without names
// does not outnumber those with one, nor do they push it out.
func TestNobodysWorkGetsItsTurn(t *testing.T) {
	t.Parallel()
	background := &crowd{class: gate.Status, name: "", identities: 1, perSecond: 20}
	named := &crowd{class: gate.Status, name: "hog", identities: 50, perSecond: tenfold}
	flood(t, eight, time.Second, fixed, background, named)
	if background.served < background.asked()/2 {
		t.Errorf("of nobody's work %d of %d was served", background.served, background.asked())
	}
}
