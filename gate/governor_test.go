package gate_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
)

// hashTime is how long a verification takes here.
const hashTime = 80 * time.Millisecond

// A login is one verification, with what became of it.
type login struct {
	err    error
	waited time.Duration
	done   chan struct{}
}

// logIn verifies for hashTime, in the background.
func logIn(ctx context.Context, g *gate.Governor, client string, takes time.Duration) *login {
	l, begin := &login{done: make(chan struct{})}, time.Now()
	go func() {
		defer close(l.done)
		release, err := g.Acquire(ctx, client)
		l.err, l.waited = err, time.Since(begin)
		if err == nil {
			time.Sleep(takes)
			release()
		}
	}()
	synctest.Wait() // it stands where it belongs before the next comes
	return l
}

// logInAll is n logins of one client at a time.
func logInAll(t *testing.T, g *gate.Governor, client string, n int) (all []*login) {
	for range n {
		all = append(all, logIn(t.Context(), g, client, hashTime))
	}
	return all
}

// verdictOf waits for l and names its end.
func verdictOf(l *login) string {
	<-l.done
	var r *gate.GovernorRefused
	switch {
	case l.err == nil:
		return "ok"
	case errors.As(l.err, &r):
		return r.Reason.String()
	}
	return l.err.Error()
}

func countVerdicts(all []*login) map[string]int {
	got := map[string]int{}
	for _, l := range all {
		got[verdictOf(l)]++
	}
	return got
}

// hold takes a place; the test ends with it given back.
func hold(t *testing.T, g *gate.Governor, client string) (release func()) {
	t.Helper()
	release, err := g.Acquire(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	return release
}

// governorAtRest fails unless everything was given back.
func governorAtRest(t *testing.T, g *gate.Governor) {
	t.Helper()
	if st := g.Stat(); st.InFlight != 0 || st.Queued != 0 || st.Clients != 0 {
		t.Errorf("%d in flight, %d queued, %d clients: want none", st.InFlight, st.Queued, st.Clients)
	}
}

// The ceiling is half of the processors, at least one.
func TestTheCeilingIsHalfOfTheProcessors(t *testing.T) {
	t.Parallel()
	g := gate.NewGovernor(gate.GovernorConfig{})
	want := max(1, runtime.GOMAXPROCS(0)/2)
	synctest.Test(t, func(t *testing.T) {
		var all []*login
		for i := range want * 4 {
			all = append(all, logIn(t.Context(), g, fmt.Sprint(i), hashTime))
		}
		if st := g.Stat(); st.InFlight != want || st.Queued != want*3 {
			t.Errorf("%+v, want %d in flight", st, want)
		}
		if got := countVerdicts(all); got["ok"] != want*4 {
			t.Errorf("%v", got)
		}
		if st := g.Stat(); st.PeakInFlight != want || st.PeakQueued != want*3 || st.Waited != int64(want*3) || st.Admitted != int64(want*4) {
			t.Errorf("%+v", st)
		}
	})
}

// Nothing that can be configured makes it unbounded.
func TestAGovernorIsNeverUnbounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []gate.GovernorConfig{
			{},
			{Ceiling: -5, PerClient: -5, MaxWaiters: -5, MaxWait: -5, Memory: -5},
		} {
			g := gate.NewGovernor(c)
			ceiling := max(1, runtime.GOMAXPROCS(0)/2)
			all := logInAll(t, g, "", 20*ceiling)
			if st := g.Stat(); st.InFlight != ceiling || st.Queued != 8*ceiling {
				t.Errorf("%+v: %+v", c, st)
			}
			got := countVerdicts(all)
			if got["queue_full"] != 11*ceiling || got["ok"] != 9*ceiling {
				t.Errorf("%+v: %v", c, got)
			}
			governorAtRest(t, g)
		}
	})
}

func TestPerClientIsClampedToTheCeiling(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate.NewGovernor(gate.GovernorConfig{Ceiling: 2, PerClient: 100})
		logInAll(t, g, "a", 5)
		if st := g.Stat(); st.InFlight != 2 || st.Queued != 3 {
			t.Errorf("%+v, want 2 in flight", st)
		}
		time.Sleep(time.Second)
		for range 2 {
			defer hold(t, g, "a")()
		}
		if got := verdictOf(logIn(t.Context(), g, "a", 0)); got != "per_client" {
			t.Errorf("a third at a time: %s; its own two are in the way", got)
		}
	})
}

// A client has one place at a time, and its next request waits for the one
// before it. A program with six connections and a right password is denied none.
func TestAClientWaitsForItsOwnPredecessor(t *testing.T) {
	t.Parallel()
	for _, ceiling := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			g := gate.NewGovernor(gate.GovernorConfig{Ceiling: ceiling})
			all := logInAll(t, g, "192.0.2.1", 6)
			if st := g.Stat(); st.InFlight != 1 || st.Queued != 5 {
				t.Errorf("ceiling %d: %+v, want 1 in flight", ceiling, st)
			}
			for i, l := range all {
				if got := verdictOf(l); got != "ok" || l.waited != time.Duration(i)*hashTime {
					t.Errorf("ceiling %d: connection %d: %s after %s", ceiling, i, got, l.waited)
				}
			}
			if st := g.Stat(); st.PeakInFlight != 1 {
				t.Errorf("ceiling %d: %+v", ceiling, st)
			}
			governorAtRest(t, g)
		})
	}
}

// Twelve at a time from one client fit into the second that they may wait, and a
// few more do not; on a ceiling of one it is the queue that ends at nine.
func TestAboutTwelveOfOneClientFit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ceiling, sent int
		want          map[string]int
	}{
		{2, 12, map[string]int{"ok": 12}},
		{2, 17, map[string]int{"ok": 13, "per_client": 4}}, // four waited a second for their own
		{2, 20, map[string]int{"ok": 13, "per_client": 7}}, // three found the queue full of their own besides
		{1, 9, map[string]int{"ok": 9}},
		{1, 12, map[string]int{"ok": 9, "per_client": 3}},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := gate.NewGovernor(gate.GovernorConfig{Ceiling: c.ceiling})
			got := countVerdicts(logInAll(t, g, "a", c.sent))
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("ceiling %d, %d at a time: %v, want %v", c.ceiling, c.sent, got, c.want)
			}
			governorAtRest(t, g)
		})
	}
}

// Nobody waits longer than a second, whatever holds the places.
func TestTheWaitForAPlaceIsASecondAtMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate.NewGovernor(gate.GovernorConfig{Ceiling: 1})
		release := hold(t, g, "hog")
		own, other := logIn(t.Context(), g, "hog", hashTime), logIn(t.Context(), g, "other", hashTime)
		for l, want := range map[*login]string{own: "per_client", other: "timeout"} {
			if got := verdictOf(l); got != want || l.waited != time.Second {
				t.Errorf("%s after %s, want %s after 1s", got, l.waited, want)
			}
		}
		var refused *gate.GovernorRefused
		if !errors.As(own.err, &refused) || refused.RetryAfter < time.Second || refused.Error() == "" {
			t.Errorf("%v", own.err)
		}
		release()
		governorAtRest(t, g)
	})
}

// Eight may wait for each place. Who finds the queue full of others is refused at
// once.
func TestEightWaitForEachPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate.NewGovernor(gate.GovernorConfig{Ceiling: 3})
		for i := range 3 + 24 {
			logIn(t.Context(), g, fmt.Sprint(i), hashTime)
		}
		late := logIn(t.Context(), g, "late", hashTime)
		if got := verdictOf(late); got != "queue_full" || late.waited != 0 {
			t.Errorf("%s after %s", got, late.waited)
		}
		if st := g.Stat(); st.Queued != 24 || st.PeakQueued != 24 || st.Refused != [gate.GovernorReasons]int64{gate.GovernorQueueFull: 1} {
			t.Errorf("%+v", st)
		}
		time.Sleep(time.Second)
		governorAtRest(t, g)
	})
}

// One client can't have the queue for itself: its newest gives way to others, one
// for each that comes, down to what is fair.
func TestTheLongestRowGivesWayToAnotherClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate.NewGovernor(gate.GovernorConfig{Ceiling: 1})
		hog := logInAll(t, g, "hog", 9)
		var others []*login
		for i := range 5 {
			others = append(others, logIn(t.Context(), g, fmt.Sprint(i), hashTime))
		}
		twice := logIn(t.Context(), g, "0", hashTime) // has one there, and the hog three
		if got := countVerdicts(append(others, twice)); got["ok"] != 6 {
			t.Errorf("others: %v", got)
		}
		for i, l := range hog {
			want := "ok"
			if i >= 3 {
				want = "per_client"
			}
			if got := verdictOf(l); got != want {
				t.Errorf("the hog's number %d: %s, want %s", i, got, want)
			}
		}
		governorAtRest(t, g)
	})
}

// A client that sends few is served before the row of one that sends many, but
// those who keep coming do not hold up the next in a row for ever.
func TestTurnsFavourThoseWhoSendFew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate.NewGovernor(gate.GovernorConfig{Ceiling: 1, MaxWait: time.Hour})
		logInAll(t, g, "hog", 6)
		few := logIn(t.Context(), g, "few", hashTime)
		verdictOf(few)
		if few.waited > 2*hashTime {
			t.Errorf("one request waited for %s behind a row of another client", few.waited)
		}
		time.Sleep(time.Minute)
		release := hold(t, g, "a")
		second := logIn(t.Context(), g, "a", hashTime)
		release()
		begin := time.Now()
		for i := 0; ; i++ { // one new client for each that is served
			select {
			case <-second.done:
			default:
				if time.Since(begin) > 20*hashTime {
					t.Fatal("newcomers go before a second request for ever")
				}
				logIn(t.Context(), g, fmt.Sprint("new", i), hashTime)
				time.Sleep(hashTime)
				continue
			}
			break
		}
		time.Sleep(time.Minute)
		governorAtRest(t, g)
	})
}

// A client's requests are served in the order they came.
func TestOneClientIsServedInItsOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate.NewGovernor(gate.GovernorConfig{Ceiling: 1, MaxWait: time.Hour})
		early := logInAll(t, g, "a", 8)
		time.Sleep(6*hashTime + 1)
		late := logInAll(t, g, "a", 4)
		last := time.Duration(0)
		for i, l := range append(early, late...) {
			if verdictOf(l); l.waited < last && i < len(early) {
				t.Errorf("number %d was served after %s, the one before it after %s", i, l.waited, last)
			}
			last = l.waited
		}
		if late[0].waited < hashTime {
			t.Errorf("a late one went before those that wait: after %s", late[0].waited)
		}
	})
}

// A parked waiter is woken by the release that makes room for it, not by its
// timer, and holds no place while it waits.
func TestAWaitingVerificationHoldsNoPlaceAndIsWokenByRelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate.NewGovernor(gate.GovernorConfig{Ceiling: 2})
		release := hold(t, g, "a")
		waiting := logIn(t.Context(), g, "a", hashTime)
		if st := g.Stat(); st.InFlight != 1 || st.Queued != 1 {
			t.Errorf("%+v", st)
		}
		if other := logIn(t.Context(), g, "b", hashTime); verdictOf(other) != "ok" || other.waited != 0 {
			t.Errorf("another client waited for %s, though a place is free", other.waited)
		}
		begin := time.Now()
		release()
		synctest.Wait()
		if st := g.Stat(); st.InFlight != 1 || st.Queued != 0 || time.Since(begin) != 0 {
			t.Errorf("after the release: %+v", st)
		}
		verdictOf(waiting)
		governorAtRest(t, g)
	})
}

// Without a known peer there is no cap of its own, but the ceiling holds.
func TestAnUnknownPeerIsHeldToTheCeilingOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate.NewGovernor(gate.GovernorConfig{Ceiling: 3})
		all := logInAll(t, g, "", 5)
		if st := g.Stat(); st.InFlight != 3 || st.Queued != 2 || st.Clients != 0 {
			t.Errorf("%+v, want 3 in flight", st)
		}
		if got := countVerdicts(all); got["ok"] != 5 {
			t.Errorf("%v", got)
		}
		governorAtRest(t, g)
	})
}

// Whatever way a verification is refused or given up, its client owes nothing
// afterwards; ten thousand clients leave no trace.
func TestEveryWayOutGivesTheClientsPlaceBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate.NewGovernor(gate.GovernorConfig{Ceiling: 1})
		for i := range 10_000 {
			hold(t, g, fmt.Sprint(i))()
		}
		governorAtRest(t, g)
		release := hold(t, g, "a")
		var all []*login
		for i := range 3000 {
			all = append(all, logIn(t.Context(), g, fmt.Sprint(i%1500), hashTime))
		}
		ctx, cancel := context.WithCancel(t.Context())
		all = append(all, logIn(ctx, g, "leaves", hashTime))
		cancel()
		time.Sleep(2 * time.Second)
		release()
		got := countVerdicts(all)
		if got["ok"] != 0 || got["timeout"] != 8 || len(got) < 2 {
			t.Errorf("%v", got)
		}
		governorAtRest(t, g)
		if l := logIn(t.Context(), g, "a", 0); verdictOf(l) != "ok" || l.waited != 0 {
			t.Errorf("afterwards: %v after %s", l.err, l.waited)
		}
	})
}

// Releasing twice gives back one place, and blocks nobody.
func TestASecondReleaseDoesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate.NewGovernor(gate.GovernorConfig{Ceiling: 1})
		first := hold(t, g, "a")
		first()
		second := hold(t, g, "a")
		first()
		first()
		if st := g.Stat(); st.InFlight != 1 {
			t.Errorf("%+v", st)
		}
		second()
		governorAtRest(t, g)
	})
}

// Who has left is not begun, even if a place is free, nor kept in the queue, and
// is no refusal.
func TestWhoHasLeftIsNotVerified(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate.NewGovernor(gate.GovernorConfig{Ceiling: 1})
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := g.Acquire(gone, "a"); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		release := hold(t, g, "a")
		ctx, leave := context.WithCancel(t.Context())
		l := logIn(ctx, g, "b", hashTime)
		leave()
		<-l.done
		if !errors.Is(l.err, context.Canceled) {
			t.Errorf("got %v", l.err)
		}
		ctx, leave = context.WithCancel(t.Context())
		l = logIn(ctx, g, "c", hashTime)
		leave() // at the very moment that its turn comes
		release()
		<-l.done
		st := g.Stat()
		if st.Canceled+st.Admitted != 4 || st.Refused != [gate.GovernorReasons]int64{} || st.Episode.Active {
			t.Errorf("%+v", st)
		}
		time.Sleep(time.Second)
		governorAtRest(t, g)
	})
}

// Verifications that need memory share what there is. One that needs all waits
// until it has it, and light ones do not go before it meanwhile.
func TestHeavyHashesShareTheMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate.NewGovernor(gate.GovernorConfig{Ceiling: 8, Memory: 100})
		weigh := func(client string, weight int64) *login {
			l, begin := &login{done: make(chan struct{})}, time.Now()
			go func() {
				defer close(l.done)
				release, err := g.AcquireWeight(t.Context(), client, weight)
				l.err, l.waited = err, time.Since(begin)
				if err == nil {
					time.Sleep(hashTime)
					release()
				}
			}()
			synctest.Wait()
			return l
		}
		for i, c := range []struct {
			weight int64
			waits  time.Duration
		}{{60, 0}, {40, 0}, {1, hashTime}, {1000, 2 * hashTime}, {1, 3 * hashTime}, {99, 3 * hashTime}, {-7, 3 * hashTime}} {
			l := weigh(fmt.Sprint(i), c.weight)
			defer func() {
				if got := verdictOf(l); got != "ok" || l.waited != c.waits {
					t.Errorf("weight %d: %s after %s, want after %s", c.weight, got, l.waited, c.waits)
				}
				if st := g.Stat(); st.InFlight > 3 {
					t.Errorf("%+v", st)
				}
			}()
		}
	})
}

// When the one that all wait for leaves, the others go on at once.
func TestWhoLeavesTheHeadOfTheQueueHoldsUpNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate.NewGovernor(gate.GovernorConfig{Ceiling: 8, Memory: 100})
		release, err := g.AcquireWeight(t.Context(), "a", 60)
		if err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() {
			_, err := g.AcquireWeight(ctx, "heavy", 100)
			gone <- err
		}()
		synctest.Wait()
		light := logIn(t.Context(), g, "light", 0)
		if st := g.Stat(); st.Queued != 2 {
			t.Errorf("%+v, want the light one behind the heavy one", st)
		}
		leave()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("the heavy one: %v", err)
		}
		if got := verdictOf(light); got != "ok" || light.waited != 0 {
			t.Errorf("the light one: %s after %s", got, light.waited)
		}
		release()
		governorAtRest(t, g)
	})
}

// Places are conserved under a storm of clients that wait, leave and fail.
func TestPlacesAreConserved(t *testing.T) {
	t.Parallel()
	g := gate.NewGovernor(gate.GovernorConfig{Ceiling: 3, PerClient: 2, MaxWait: 2 * time.Millisecond, Memory: 10})
	var wg sync.WaitGroup
	var mu sync.Mutex
	inFlight, per := 0, map[string]int{}
	change := func(client string, by int) {
		mu.Lock()
		defer mu.Unlock()
		inFlight += by
		per[client] += by
		if inFlight > 3 || per[client] > 2 {
			t.Errorf("%d in flight, %d of client %s", inFlight, per[client], client)
		}
	}
	for w := range 32 {
		wg.Go(func() {
			for i := range 300 {
				ctx, cancel := context.WithCancel(t.Context())
				if i%5 == 0 {
					go cancel()
				}
				client := fmt.Sprint((w + i) % 7)
				if release, err := g.AcquireWeight(ctx, client, int64(i%12)); err == nil {
					change(client, 1)
					runtime.Gosched()
					change(client, -1)
					release()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	governorAtRest(t, g)
	st := g.Stat()
	total := st.Admitted + st.Canceled
	for _, n := range st.Refused {
		total += n
	}
	if total != 32*300 || st.PeakInFlight > 3 || st.PeakQueued > 24 {
		t.Errorf("%+v: %d ends of %d beginnings", st, total, 32*300)
	}
}
