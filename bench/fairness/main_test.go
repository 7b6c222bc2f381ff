package main

import (
	"bytes"
	"math"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/bench/openloop"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/peer"
)

func TestTheLastLineIsTheResult(t *testing.T) {
	if testing.Short() {
		return // it takes half a minute of waiting
	}
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-quick"}, &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	const n = `([\d.]+|NaN)` // so short a run may lack a figure
	want := regexp.MustCompile(`^RESULT fairness goodput_10x=` + n + ` victim_median_ratio=` + n + ` victim_p99_ratio=` + n +
		` sybil50_served=` + n + ` sybil1000_served=` + n + ` ocsp_p99_ratio=` + n + ` mute_ratio=` + n + `$`)
	if last := lines[len(lines)-1]; !want.MatchString(last) {
		t.Errorf("the last line is %q", last)
	}
}

func TestTheDeviceIsAsFastAsItSays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		if rate := bare(t.Context(), 30*time.Second, 1); math.Abs(rate/capacity-1) > 0.02 {
			t.Errorf("%v signatures a second, want about %v", rate, capacity)
		}
	})
}

// In one line for all, who asks rarely is served as seldom as who asks without
// end: at ten times the capacity, one request in ten. That is known from theory,
// and so a test of what measures it.
func TestOneLineForAllServesARareCallerAsSeldomAsAHog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := scenario{"hog", fifo, 1, []part{{victim, 20, keys.ForIssuance, 1}, {strangers, 10 * capacity, keys.ForIssuance, 1}}}
		const length = 20 * time.Second
		results, err := s.run(t.Context(), length, 1)
		if err != nil {
			t.Fatal(err)
		}
		var v, hog tally
		v.add(results[0], length)
		hog.add(results[1], length)
		if v.share() > 0.2 || math.Abs(hog.share()-0.1) > 0.01 {
			t.Errorf("the rare caller was served %.3f and the hog %.3f of the time, want about a tenth both", v.share(), hog.share())
		}
		if got := hog.goodput.Median(); math.Abs(got/capacity-1) > 0.02 {
			t.Errorf("the device made %v signatures a second, want about %v", got, capacity)
		}
		// Everybody has the whole line before him, and is then served.
		if mean := float64(queue)/capacity*1000 + 1; math.Abs(hog.quantile(0.5)-mean) > 8 {
			t.Errorf("the median is %v ms, want about %v", hog.quantile(0.5), mean)
		}
	})
}

func TestRequestsOfAllPartsComeInTheOrderInWhichTheyAreDue(t *testing.T) {
	t.Parallel()
	s := scenario{"mixed", ours, 1, []part{{victim, 20, keys.ForRenewal, 1}, {strangers, 1000, keys.ForIssuance, 50}}}
	all := s.arrivals(t.Context(), 10*time.Second, 1)
	count := make(map[int]int)
	names := make(map[string]bool)
	for i, a := range all {
		count[a.part]++
		names[peer.Identity(a.caller)] = true
		if i > 0 && a.due < all[i-1].due {
			t.Fatal("an earlier request comes later")
		}
		if got := keys.PurposeOf(a.caller); got != s.parts[a.part].purpose {
			t.Fatalf("a request of part %d is for purpose %d", a.part, got)
		}
	}
	if math.Abs(float64(count[0])-200) > 60 || math.Abs(float64(count[1])-10_000) > 400 || len(names) != 51 {
		t.Errorf("%v requests of %d identities, want about 200 and 10,000 of 51", count, len(names))
	}
}

func TestTheWarmUpIsNotCounted(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	var all tally
	all.add([]openloop.Result{
		{Due: warmUp - 20*ms, Took: 100 * ms}, // ends after it: goodput, but no latency
		{Due: warmUp, Took: 10 * ms},
		{Due: warmUp + 500*ms, Took: 30 * ms},
		{Due: warmUp + 600*ms, Took: 5 * ms, Err: errFull},
		{Due: warmUp + 990*ms, Took: 20 * ms}, // ends too late: latency, but no goodput
	}, time.Second)
	if all.offered != 4 || all.served != 3 || all.goodput[0] != 3 {
		t.Errorf("offered %d, served %d, goodput %v, want 4, 3 and 3", all.offered, all.served, all.goodput[0])
	}
	if all.quantile(0.5) != 20 || all.quantile(0.99) != 30 {
		t.Errorf("median %v and p99 %v, want 20 and 30", all.quantile(0.5), all.quantile(0.99))
	}
}

func TestATargetWithoutAFigureIsMissed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		t   target
		met bool
	}{
		{target{"", 1.2, 1.2, false}, true},
		{target{"", 1.21, 1.2, false}, false},
		{target{"", 0.95, 0.95, true}, true},
		{target{"", 0.94, 0.95, true}, false},
		{target{"", math.NaN(), 1.2, false}, false},
		{target{"", math.NaN(), 0.95, true}, false},
	} {
		if c.t.met() != c.met {
			t.Errorf("%v", c.t)
		}
	}
}
