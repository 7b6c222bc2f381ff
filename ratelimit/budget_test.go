package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeBudgets keeps counts in memory, and what was asked of it.
type fakeBudgets struct {
	mu     sync.Mutex
	counts map[string]int
	reads  int
	writes []int // every count that was saved
	down   error
}

func newFakeBudgets() *fakeBudgets { return &fakeBudgets{counts: map[string]int{}} }

func (f *fakeBudgets) Refusals(ctx context.Context, identity string) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	return f.counts[identity], errors.Join(f.down, ctx.Err())
}

func (f *fakeBudgets) SaveRefusals(ctx context.Context, identity string, n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := errors.Join(f.down, ctx.Err()); err != nil {
		return err
	}
	f.writes = append(f.writes, n)
	if f.counts[identity] = n; n == 0 {
		delete(f.counts, identity)
	}
	return nil
}

func (f *fakeBudgets) setDown(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = err
}

// stored returns a copy of the table.
func (f *fakeBudgets) stored() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.counts)
}

func (f *fakeBudgets) wrote() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.writes)
}

func newTestBudget(t *testing.T, c BudgetConfig) *Budget {
	t.Helper()
	b, err := NewBudget(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// probe is one attempt that is refused, if the budget lets it through.
func probe(t *testing.T, b *Budget, identity string) Decision {
	t.Helper()
	d := b.Check(t.Context(), identity)
	if d.OK {
		b.Refused(t.Context(), identity)
	}
	return d
}

// runBudget runs b until stop is called, or t ends.
func runBudget(t *testing.T, b *Budget) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// counted is the count of identity in memory, -1 if it is not there.
func (b *Budget) counted(identity string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.standings[budgetName(identity)]
	if s == nil {
		return -1
	}
	return s.count
}

// Four refusals are free. The fifth is still answered as what it is; then there
// are 1, 2, 4, 8, 16, 32, 60 and again 60 seconds between attempts.
func TestDelaysDoubleBeyondTheFreeRefusals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestBudget(t, BudgetConfig{})
		for i := range 5 {
			if d := probe(t, b, "a"); !d.OK {
				t.Fatalf("probe %d: %+v, want it let through", i+1, d)
			}
		}
		for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60} {
			want *= time.Second
			if d := b.Check(t.Context(), "a"); d.OK || d.Never || d.RetryAfter != want {
				t.Fatalf("after %d refusals: %+v, want a no for %s", 5+i, d, want)
			}
			time.Sleep(want)
			if d := probe(t, b, "a"); !d.OK {
				t.Fatalf("after %d refusals and %s: %+v", 5+i, want, d)
			}
		}
	})
}

// After the crossing a legitimate request has to wait like any other, a second;
// when that is over it is served.
func TestALegitimateRequestIsServedAfterTheInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestBudget(t, BudgetConfig{})
		for range 5 {
			probe(t, b, "a")
		}
		if d := b.Check(t.Context(), "a"); d.OK || d.Seconds() != 1 {
			t.Errorf("at once: %+v, want a no for 1 s", d)
		}
		time.Sleep(1300 * time.Millisecond)
		for i := range 3 { // it may go on in steps of the interval
			if d := b.Check(t.Context(), "a"); !d.OK {
				t.Errorf("attempt %d: %+v", i, d)
			}
			time.Sleep(time.Second)
		}
	})
}

// A retry loop of 100 ms gets through in a second: what the budget itself says no
// to does not put the next attempt off.
func TestANoOfTheBudgetMovesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFakeBudgets()
		b := newTestBudget(t, BudgetConfig{Store: store})
		for range 5 {
			probe(t, b, "a")
		}
		wrote, begin := store.wrote(), time.Now()
		for !b.Check(t.Context(), "a").OK {
			time.Sleep(100 * time.Millisecond)
			if time.Since(begin) > 4*time.Second {
				t.Fatal("not let through in 4 s")
			}
		}
		if took := time.Since(begin); took != time.Second {
			t.Errorf("let through after %s, want 1 s", took)
		}
		if b.counted("a") != 5 || store.wrote() != wrote {
			t.Errorf("the count is %d, and %d writes were made", b.counted("a"), store.wrote()-wrote)
		}
	})
}

// Probing twenty times as fast as it goes does not make twenty refusals, be it
// one after the other or all at once.
func TestTwentyFastProbesLeaveTheCountBelowTwenty(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestBudget(t, BudgetConfig{})
		for range 20 {
			probe(t, b, "in turn")
		}
		for range 20 {
			b.Check(t.Context(), "at once")
		}
		for range 20 {
			b.Refused(t.Context(), "at once")
		}
		if got := b.counted("in turn"); got != 5 {
			t.Errorf("in turn: %d, want 5", got)
		}
		if got := b.counted("at once"); got >= 20 {
			t.Errorf("at once: %d, want less than 20", got)
		}
	})
}

// Of many attempts in one interval one is let through.
func TestOneOfManyConcurrentAttemptsIsLetThrough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestBudget(t, BudgetConfig{Store: newFakeBudgets()})
		for range 6 {
			b.Refused(t.Context(), "a")
		}
		for range 5 {
			time.Sleep(2 * time.Second)
			var wg sync.WaitGroup
			var mu sync.Mutex
			passed := 0
			for range 50 {
				wg.Go(func() {
					if b.Check(t.Context(), "a").OK {
						mu.Lock()
						defer mu.Unlock()
						passed++
					}
				})
			}
			wg.Wait()
			if passed != 1 {
				t.Errorf("%d attempts were let through in one interval", passed)
			}
		}
	})
}

// One refusal is forgotten for each ten quiet minutes. A success does not count
// as more than quiet, and each refusal begins the ten minutes anew.
func TestOneRefusalIsForgottenEveryTenQuietMinutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestBudget(t, BudgetConfig{})
		for range 7 {
			b.Refused(t.Context(), "a")
		}
		for minute := 1; minute <= 75; minute++ {
			time.Sleep(time.Minute)
			b.Check(t.Context(), "a") // let through, and granted
			if want := max(0, 7-minute/10); b.counted("a") != want {
				t.Fatalf("after %d minutes the count is %d, want %d", minute, b.counted("a"), want)
			}
		}
		b.Refused(t.Context(), "b")
		b.Refused(t.Context(), "b")
		time.Sleep(9 * time.Minute)
		b.Refused(t.Context(), "b")
		time.Sleep(9 * time.Minute)
		b.Check(t.Context(), "b")
		if got := b.counted("b"); got != 3 {
			t.Errorf("never ten minutes of quiet: %d, want 3", got)
		}
	})
}

// Success resets nothing.
func TestSuccessResetsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestBudget(t, BudgetConfig{})
		for range 6 {
			b.Refused(t.Context(), "a")
		}
		for range 30 {
			time.Sleep(3 * time.Second)
			if d := b.Check(t.Context(), "a"); !d.OK {
				t.Fatalf("%+v", d)
			}
		}
		if d := b.Check(t.Context(), "a"); d.OK || d.Seconds() != 2 {
			t.Errorf("after 30 successes: %+v, want the interval of 2 s still", d)
		}
	})
}

// However long somebody went on, some hours of quiet are enough to be forgiven,
// and the store is not written to for ever.
func TestTheCountHasATop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFakeBudgets()
		b := newTestBudget(t, BudgetConfig{Store: store})
		for range 500 {
			b.Refused(t.Context(), "a")
		}
		if got := b.counted("a"); got != 18 {
			t.Errorf("the count is %d, want 18", got)
		}
		if got := store.wrote(); got != 14 {
			t.Errorf("%d writes, want one for each count from 5 to 18", got)
		}
		time.Sleep(140 * time.Minute)
		for range 2 {
			if d := b.Check(t.Context(), "a"); !d.OK {
				t.Errorf("after 140 minutes of quiet: %+v", d)
			}
		}
	})
}

// Only counts beyond the allowance are stored, each as it comes about.
func TestEachRefusalBeyondTheAllowanceIsStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFakeBudgets()
		b := newTestBudget(t, BudgetConfig{Store: store})
		for i := 1; i <= 9; i++ {
			b.Refused(t.Context(), "a")
			if want := max(0, i-4); store.wrote() != want {
				t.Errorf("after %d refusals %d writes were made, want %d", i, store.wrote(), want)
			}
			if want := i; i > 4 && store.stored()["a"] != want {
				t.Errorf("after %d refusals the store has %d", i, store.stored()["a"])
			}
		}
		for range 1000 {
			b.Check(t.Context(), "a")
			b.Check(t.Context(), "b")
		}
		if store.wrote() != 5 || store.reads != 2 {
			t.Errorf("checking led to %d writes and %d reads, want none and one for each identity", store.wrote()-5, store.reads)
		}
	})
}

// Run stores what has decayed, down to nothing, at a bounded rate.
func TestDecayIsStoredInTheBackground(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFakeBudgets()
		b := newTestBudget(t, BudgetConfig{Store: store})
		runBudget(t, b)
		const many = 500
		for id := range many {
			for range 5 {
				b.Refused(t.Context(), fmt.Sprint(id))
			}
		}
		wrote := store.wrote()
		time.Sleep(10*time.Minute + 11*time.Second)
		if got := store.wrote() - wrote; got < 1 || got > 2*sweepBatch {
			t.Errorf("%d writes in the first two sweeps, want at most %d", got, 2*sweepBatch)
		}
		time.Sleep(50 * time.Minute)
		if got := store.stored(); len(got) != 0 {
			t.Errorf("%d identities are left in the store after an hour", len(got))
		}
		if got := store.wrote() - wrote; got != 5*many {
			t.Errorf("%d writes for %d steps of decay", got, 5*many)
		}
	})
}

// A restart neither resets nor rewinds: the table is the same before and after,
// the time without the program is no quiet time, and no interval is remembered
// that a clock could have made wrong.
func TestARestartPausesDecayAndRewindsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFakeBudgets()
		b := newTestBudget(t, BudgetConfig{Store: store})
		stop := runBudget(t, b)
		for range 8 {
			b.Refused(t.Context(), "a")
		}
		time.Sleep(20*time.Minute + time.Second) // two forgotten, the last one a second ago
		stop()
		for range 3 {
			time.Sleep(5 * time.Hour)
			if got := store.stored(); len(got) != 1 || got["a"] != 6 {
				t.Fatalf("the store has %v, want a: 6", got)
			}
			b = newTestBudget(t, BudgetConfig{Store: store})
			stop = runBudget(t, b)
			if d := b.Check(t.Context(), "a"); !d.OK {
				t.Errorf("the first attempt after a restart: %+v", d)
			}
			if d := b.Check(t.Context(), "a"); d.OK || d.Seconds() != 2 {
				t.Errorf("the second: %+v, want a no for 2 s", d)
			}
			time.Sleep(9 * time.Minute)
			stop()
		}
		b = newTestBudget(t, BudgetConfig{Store: store})
		runBudget(t, b)
		b.Check(t.Context(), "a")
		time.Sleep(11 * time.Minute)
		if got := store.stored()["a"]; got != 5 {
			t.Errorf("after ten quiet minutes of one life the store has %d, want 5", got)
		}
	})
}

// While the store is down counts go on in memory, nobody waits for it, and what
// it missed is brought to it; what it had all the time is added.
func TestAFailingStoreLosesNoCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFakeBudgets()
		store.counts["a"] = 6
		store.setDown(errors.New("disk on fire"))
		b := newTestBudget(t, BudgetConfig{Store: store})
		runBudget(t, b)
		for range 100 {
			b.Check(t.Context(), "a")
		}
		for range 5 {
			b.Refused(t.Context(), "a")
			b.Refused(t.Context(), "new")
		}
		if d := b.Check(t.Context(), "new"); d.OK {
			t.Error("without the store nobody is limited")
		}
		if st := b.Stat(); st.StoreFailures != 1 || store.reads != 1 {
			t.Errorf("%+v after %d reads: a store that fails is to be left alone for a while", st, store.reads)
		}
		store.setDown(nil)
		time.Sleep(budgetRest)
		b.Check(t.Context(), "a")
		b.Check(t.Context(), "new")
		time.Sleep(sweepInterval)
		if got := store.stored(); got["a"] != 11 || got["new"] != 5 {
			t.Errorf("the store has %v, want a: 11 and new: 5", got)
		}
	})
}

// A client that hangs up is counted all the same.
func TestHangingUpIsNoWayNotToBeCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFakeBudgets()
		store.counts["a"] = 7
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		b := newTestBudget(t, BudgetConfig{Store: store})
		b.Check(gone, "a")
		b.Refused(gone, "a")
		if got := store.stored()["a"]; got != 8 {
			t.Errorf("the store has %d, want 8", got)
		}
	})
}

// A flood of identities can't wash out one that has debt: those without go
// first, then the smallest debts.
func TestAFloodOfIdentitiesDoesNotForgetADebt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, store := range []*fakeBudgets{nil, newFakeBudgets()} {
			c := BudgetConfig{MaxIdentities: 100}
			if store != nil {
				c.Store = store
			}
			b := newTestBudget(t, c)
			for range 6 {
				b.Refused(t.Context(), "debtor")
			}
			b.Refused(t.Context(), "one refusal")
			for id := range 10_000 {
				b.Check(t.Context(), fmt.Sprint("flood ", id))
			}
			if b.counted("debtor") != 6 || b.counted("one refusal") != 1 {
				t.Errorf("after those without: %d and %d, want 6 and 1", b.counted("debtor"), b.counted("one refusal"))
			}
			for id := range 1000 {
				b.Refused(t.Context(), fmt.Sprint("flood ", id))
				b.Refused(t.Context(), fmt.Sprint("flood ", id))
			}
			if b.counted("debtor") != 6 || b.counted("one refusal") != -1 {
				t.Errorf("after those with two: %d and %d, want 6 and gone", b.counted("debtor"), b.counted("one refusal"))
			}
			if st := b.Stat(); st.Identities != 100 || st.Evicted == 0 {
				t.Errorf("%+v, want 100 identities", st)
			}
		}
	})
}

// When everybody in memory has debt a newcomer is counted nevertheless, and who
// gave way is known from the store when it comes back.
func TestANewcomerAmongDebtorsIsCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFakeBudgets()
		b := newTestBudget(t, BudgetConfig{MaxIdentities: 10, Store: store})
		for id := range 10 {
			for range 7 {
				b.Refused(t.Context(), fmt.Sprint(id))
			}
		}
		for range 5 {
			probe(t, b, "newcomer")
		}
		if d := b.Check(t.Context(), "newcomer"); d.OK {
			t.Errorf("the newcomer got past its allowance: %+v", b.Stat())
		}
		if b.counted("0") != -1 {
			t.Fatal("nobody gave way")
		}
		b.Check(t.Context(), "0")
		if d := b.Check(t.Context(), "0"); d.OK || d.Seconds() != 4 {
			t.Errorf("who gave way and came back: %+v, want a no for 4 s", d)
		}
	})
}

// The crossing is one line, with the count and the delay; what follows is
// counted in its burst.
func TestTheCrossingIsAnnouncedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		b := newTestBudget(t, BudgetConfig{Recorder: r.Recorder})
		for range 4 {
			probe(t, b, "a")
		}
		if got := r.lines(); len(got) != 0 {
			t.Fatalf("within the allowance: %+v", got)
		}
		began := time.Now()
		for range 300 {
			probe(t, b, "a")
		}
		want := Record{What: "refusal_budget", Identity: "a", Refusals: 5, Delay: time.Second, Began: began}
		if got := r.lines(); len(got) != 1 || got[0] != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		time.Sleep(time.Second)
		probe(t, b, "a") // let through and refused, which is no doing of the budget's
		time.Sleep(10 * time.Second)
		if got := r.lines(); len(got) != 2 || !got[1].Closed || got[1].Suppressed != 299 {
			t.Errorf("got %+v, want the end with 299 suppressed", got)
		}
	})
}

func TestIdentitiesAreLimitedApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestBudget(t, BudgetConfig{Store: newFakeBudgets()})
		long := strings.Repeat("x", 5000)
		for range 9 {
			probe(t, b, "a")
			probe(t, b, long+"1")
		}
		for _, other := range []string{"A", "b", long + "2", ""} {
			for range 3 {
				if d := b.Check(t.Context(), other); !d.OK {
					t.Errorf("%.10q: %+v", other, d)
				}
			}
		}
		if d := b.Check(t.Context(), long+"1"); d.OK {
			t.Error("a long name is not limited")
		}
		st := b.Stat()
		if st.Identities != 5 || st.Limited != 2 || st.Refused != 9 {
			t.Errorf("%+v", st)
		}
		time.Sleep(time.Second)
		if st := b.Stat(); st.Limited != 0 {
			t.Errorf("%+v: nobody is held up any more", st)
		}
	})
}

// No name can be made to look like another's digest.
func TestNamesInTheStoreAreShortAndApart(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxIdentity+1)
	digest := budgetName(long)
	seen := map[string]string{}
	for _, name := range []string{"a", long, long + "x", digest, budgetName(digest), strings.Repeat("x", maxIdentity)} {
		kept := budgetName(name)
		if other, ok := seen[kept]; ok || len(kept) > maxIdentity {
			t.Errorf("%.20q is kept as %q, as is %.20q", name, kept, other)
		}
		seen[kept] = name
	}
}

func TestANilBudgetLetsEverybodyThrough(t *testing.T) {
	t.Parallel()
	var b *Budget
	b.Refused(t.Context(), "a")
	if d := b.Check(t.Context(), "a"); !d.OK || b.Stat() != (BudgetStat{}) || b.Run(t.Context()) != nil {
		t.Errorf("%+v", d)
	}
}

func TestABudgetThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []BudgetConfig{
		{Free: -1},
		{MaxDelay: -1},
		{Decay: -1},
		{MaxIdentities: -1},
		{Free: maxFree + 1},
		{MaxDelay: maxDelay + 1},
	} {
		if _, err := NewBudget(c); err == nil {
			t.Errorf("%+v passes", c)
		}
	}
}

// Concurrent use by many, with a store whose answers come in any order: the last
// count is the one that stays stored.
func TestTheStoreEndsWithTheLastCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &slowBudgets{fakeBudgets: newFakeBudgets(), t: t, busy: map[string]bool{}}
		b := newTestBudget(t, BudgetConfig{Store: store, MaxIdentities: 4})
		runBudget(t, b)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for range 50 {
					b.Check(t.Context(), fmt.Sprint(i%3))
					b.Refused(t.Context(), fmt.Sprint(i%3))
				}
			})
		}
		wg.Wait()
		for id := range 3 {
			if got := store.stored()[fmt.Sprint(id)]; got != 18 {
				t.Errorf("identity %d: the store has %d, want 18", id, got)
			}
		}
	})
}

// slowBudgets answers the first to ask last, and says if two are at it for one
// identity.
type slowBudgets struct {
	*fakeBudgets
	t     *testing.T
	asked int
	busy  map[string]bool
}

func (s *slowBudgets) SaveRefusals(ctx context.Context, identity string, n int) error {
	s.mu.Lock()
	s.asked++
	if s.busy[identity] {
		s.t.Errorf("two counts of %s are on their way to the store", identity)
	}
	s.busy[identity] = true
	wait := time.Duration(100-min(100, s.asked)) * time.Millisecond
	s.mu.Unlock()
	time.Sleep(wait)
	s.mu.Lock()
	s.busy[identity] = false
	s.mu.Unlock()
	return s.fakeBudgets.SaveRefusals(ctx, identity, n)
}

// A known identity costs no memory for each attempt.
func TestCheckingAKnownIdentityAllocatesNothing(t *testing.T) {
	b := newTestBudget(t, BudgetConfig{Store: newFakeBudgets()})
	ctx := context.Background()
	for range 12 {
		b.Refused(ctx, "limited")
	}
	for _, identity := range []string{"limited", "free"} {
		b.Check(ctx, identity)
		if n := testing.AllocsPerRun(1000, func() { b.Check(ctx, identity) }); n != 0 {
			t.Errorf("%s: %v allocations", identity, n)
		}
	}
}
