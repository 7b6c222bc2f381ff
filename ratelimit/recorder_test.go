package ratelimit

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A recording is a Recorder that runs in a bubble, with what it told.
type recording struct {
	*Recorder
	mu   sync.Mutex
	told []Record
	stop func()
}

// record starts a Recorder; stop ends its Run.
func record(t *testing.T) *recording {
	t.Helper()
	r := &recording{}
	r.Recorder = NewRecorder(func(ctx context.Context, one Record) {
		if ctx.Err() != nil {
			t.Errorf("a line with a context that is over: %v", ctx.Err())
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.told = append(r.told, one)
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// lines returns what was told so far.
func (r *recording) lines() []Record {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Record(nil), r.told...)
}

var burstSource = netip.MustParseAddr("192.0.2.7")

// The first refusal of a burst is one line, at once; the rest are a count; one
// line closes the burst, with how many it stands for and over how long.
func TestABurstOfRefusalsIsTwoLines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, began := record(t), time.Now()
		for range 42_392 {
			r.Refused("per_account", "new_order", "acct/1", burstSource)
		}
		want := Record{What: "per_account", Endpoint: "new_order", Identity: "acct/1", Source: burstSource, Began: began}
		if got := r.lines(); len(got) != 1 || got[0] != want {
			t.Fatalf("at first: %+v, want only %+v", got, want)
		}
		time.Sleep(3 * time.Second)
		r.Refused("per_account", "new_order", "acct/1", netip.Addr{})
		time.Sleep(time.Minute)
		want.Closed, want.Suppressed, want.Window = true, 42_392, 3*time.Second
		if got := r.lines(); len(got) != 2 || got[1] != want {
			t.Errorf("in the end: %+v, want a last line %+v", got, want)
		}
	})
}

// A burst closes on five seconds without a refusal, not on anything else: no
// admission is even told to the Recorder, and refusals less than that apart are
// one burst for as long as they last.
func TestABurstEndsFiveSecondsAfterItsLastRefusal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		for range 20 {
			r.Refused("quota", "new_order", "a", burstSource)
			time.Sleep(4900 * time.Millisecond)
		}
		if got := r.lines(); len(got) != 1 {
			t.Errorf("%d lines during one burst, want 1", len(got))
		}
		time.Sleep(1100 * time.Millisecond) // six seconds after the last
		if got := r.lines(); len(got) != 2 || got[1].Suppressed != 19 || got[1].Window != 19*4900*time.Millisecond {
			t.Errorf("after it: %+v", got)
		}
	})
}

// What is open at shutdown is told of with its count, also what began a moment
// ago; its first line comes before its last, whichever Run sees first.
func TestOpenBurstsAreToldOfAtShutdown(t *testing.T) {
	t.Parallel()
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			r := record(t)
			var seen atomic.Int64
			r.Watch("per_ip", "directory", seen.Load, nil)
			for range 10 {
				r.Refused("quota", "new_order", "a", burstSource)
			}
			r.lines()
			seen.Store(7) // no poll has seen it
			r.Refused("guard", "finalize", "b", burstSource)
			r.stop()
			last := map[string]Record{}
			for _, one := range r.lines() {
				if _, opened := last[one.What]; opened != one.Closed {
					t.Errorf("out of turn: %+v", one)
				}
				last[one.What] = one
			}
			for what, want := range map[string]int64{"quota": 9, "guard": 0, "per_ip": 6} {
				if got := last[what]; !got.Closed || got.Suppressed != want {
					t.Errorf("%s: %+v, want closed with %d", what, got, want)
				}
			}
		})
	}
}

// Refusals of proven identities can't fill the log: 100,000 from 1,000
// identities are at most three lines each, though they come in pulses.
func TestAHundredThousandRefusalsAreThreeLinesAnIdentity(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		for range 10 {
			for range 10 {
				for id := range 1000 {
					r.Refused("per_account", "new_order", fmt.Sprint(id), burstSource)
				}
			}
			time.Sleep(500 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		lines, refusals := map[string]int{}, int64(0)
		for _, one := range r.lines() {
			lines[one.Identity]++
			if one.Closed {
				refusals += one.Suppressed
			} else {
				refusals++
			}
		}
		for id, n := range lines {
			if n > 3 {
				t.Errorf("identity %s has %d lines", id, n)
			}
		}
		if len(lines) != 1000 || refusals != 100_000 {
			t.Errorf("told of %d identities and %d refusals", len(lines), refusals)
		}
	})
}

// Whoever pauses just long enough for a burst to close needs longer pauses each
// time, so that hours of it are few lines; after a real rest it is forgotten.
func TestPulsesCannotFillTheLog(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pulse time.Duration
		most  int // lines in six hours
	}{
		{6 * time.Second, 4}, {11 * time.Second, 6}, {45 * time.Second, 10}, {9 * time.Minute, 16}, {11 * time.Minute, 68}, {21 * time.Minute, 38},
	} {
		t.Run(c.pulse.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := record(t)
				for begin := time.Now(); time.Since(begin) < 6*time.Hour; time.Sleep(c.pulse) {
					r.Refused("quota", "new_order", "a", burstSource)
				}
				if got := len(r.lines()); got > c.most || got < 2 {
					t.Errorf("%d lines in six hours, want at most %d", got, c.most)
				}
			})
		})
	}
}

func TestARestMakesTheRecorderPatientAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		refuse := func() int {
			r.Refused("quota", "new_order", "a", burstSource)
			time.Sleep(7 * time.Second)
			return len(r.lines())
		}
		if got := refuse(); got != 2 {
			t.Errorf("a first burst: %d lines, want 2", got)
		}
		if got := refuse(); got != 3 {
			t.Errorf("a second one soon after: %d lines in all, want it open still", got)
		}
		time.Sleep(11 * time.Minute)
		if got := refuse(); got != 6 {
			t.Errorf("after a rest: %d lines in all, want one more of the second burst and two of a third", got)
		}
	})
}

// Sources that nobody has proven are watched by their counter, and are one
// episode of two lines, however many they are.
func TestASourcesEpisodeIsTwoLines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		var refused, quiet atomic.Int64
		refused.Store(5) // before its time
		r.Watch("per_ip", "directory", refused.Load, func() netip.Addr { return burstSource })
		r.Watch("global", "directory", quiet.Load, nil)
		time.Sleep(10 * time.Second)
		if got := r.lines(); len(got) != 0 {
			t.Fatalf("told of nothing new: %+v", got)
		}
		for range 8 {
			refused.Add(1000)
			time.Sleep(1500 * time.Millisecond)
		}
		time.Sleep(20 * time.Second)
		got := r.lines()
		if len(got) != 2 || got[0].Closed || !got[1].Closed {
			t.Fatalf("got %+v, want one episode", got)
		}
		if got[0].Source != burstSource || got[0].What != "per_ip" || got[0].Endpoint != "directory" || got[0].Identity != "" {
			t.Errorf("the first line is %+v", got[0])
		}
		if got[1].Suppressed != 7999 || got[1].Window < 9*time.Second || got[1].Window > 13*time.Second {
			t.Errorf("the last line is %+v", got[1])
		}
	})
}

// Sources that pulse need longer pauses too, and after a rest are told of as at
// the first time.
func TestPulsesOfSourcesCannotFillTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		var refused atomic.Int64
		r.Watch("per_ip", "directory", refused.Load, nil)
		pulse := func(n int, pause time.Duration) int {
			for range n {
				refused.Add(1)
				time.Sleep(pause)
			}
			return len(r.lines())
		}
		if got := pulse(1000, 8*time.Second); got != 3 {
			t.Errorf("%d lines of a thousand pulses, want 3", got)
		}
		pulse(1, 20*time.Minute)
		if got := pulse(1, 8*time.Second); got != 6 {
			t.Errorf("%d lines after a rest, want the second burst closed and two of a third", got)
		}
	})
}

// More identities than there is room for are told of together, and lose nothing
// of the count; those already open keep theirs.
func TestWhoFindsNoRoomIsCountedTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		for range 3 {
			for id := range maxBursts + 500 {
				r.Refused("quota", "new_order", fmt.Sprint(id), burstSource)
			}
		}
		if st := r.Stat(); st.Open != maxBursts || st.Overflowed != 1500 {
			t.Errorf("%+v", st)
		}
		time.Sleep(time.Minute)
		var others []Record
		got := r.lines()
		for _, one := range got {
			if one.Identity == Others {
				others = append(others, one)
			}
		}
		if len(got) != 2*maxBursts+2 || len(others) != 2 || others[1].Suppressed != 1499 || others[0].Source.IsValid() {
			t.Errorf("%d lines, of the others: %+v", len(got), others)
		}
	})
}

// A spray of identities leaves no more memory behind than the table holds.
func TestTheRecorderForgetsWhatIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		for wave := range 5 {
			for id := range 1000 {
				r.Refused("quota", "new_order", fmt.Sprint(wave, id), burstSource)
			}
			time.Sleep(8 * time.Second)
		}
		size := func() int {
			r.Recorder.mu.Lock()
			defer r.Recorder.mu.Unlock()
			return len(r.bursts)
		}
		if got := size(); got != maxBursts {
			t.Errorf("%d identities are remembered, want %d", got, maxBursts)
		}
		time.Sleep(11 * time.Minute)
		if got := size(); got != 0 {
			t.Errorf("%d identities are remembered after a rest", got)
		}
	})
}

// The refusal path allocates for the first of a burst only, with or without room.
func TestARefusalInAnOpenBurstAllocatesNothing(t *testing.T) {
	r := NewRecorder(nil)
	for id := range maxBursts {
		r.Refused("quota", "new_order", fmt.Sprint(id), burstSource)
	}
	for _, id := range []string{"7", "no room"} {
		r.Refused("quota", "new_order", id, burstSource)
		if n := testing.AllocsPerRun(1000, func() { r.Refused("quota", "new_order", id, burstSource) }); n != 0 {
			t.Errorf("identity %q: %v allocations for each refusal", id, n)
		}
	}
}

// Refusing never waits for the log, however slow that is.
func TestRefusingDoesNotWaitForTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var told atomic.Int64
		r := NewRecorder(func(context.Context, Record) { <-release; told.Add(1) })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		begin := time.Now()
		for range 3 {
			for id := range 3000 {
				r.Refused("quota", "new_order", fmt.Sprint(id), burstSource)
			}
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("refusing waited for %s", took)
		}
		close(release)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := told.Load(); got != 2*(maxBursts+1) {
			t.Errorf("%d lines, want two for each open burst", got)
		}
	})
}

func TestConcurrentRefusalsAreAllCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for i := range 5000 {
					r.Refused("quota", "new_order", fmt.Sprint(i%17), burstSource)
				}
			})
		}
		wg.Wait()
		r.stop()
		total := int64(0)
		for _, one := range r.lines() {
			if one.Closed {
				total += 1 + one.Suppressed
			}
		}
		if total != 40_000 {
			t.Errorf("%d refusals were told of, want 40,000", total)
		}
	})
}

func TestANilRecorderCountsNothing(t *testing.T) {
	t.Parallel()
	var r *Recorder
	r.Watch("per_ip", "directory", func() int64 { return 0 }, nil)
	r.Refused("quota", "new_order", "a", burstSource)
	r.limited("a", 5, time.Second)
	if err := r.Run(t.Context()); err != nil || r.Stat() != (RecorderStat{}) {
		t.Errorf("%v, %+v", err, r.Stat())
	}
}
