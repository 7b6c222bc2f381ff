package measure

import (
	"math"
	"runtime"
	"testing"
	"time"
)

func TestAQuantileIsAFigureThatWasMeasured(t *testing.T) {
	t.Parallel()
	hundred := make(Sample, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i) // 100 … 1: the order must not matter
	}
	for _, c := range []struct {
		sample Sample
		q      float64
		want   float64
	}{
		{hundred, 0, 1},
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 0.991, 100},
		{hundred, 1, 100},
		{Sample{7}, 0.99, 7},
		{Sample{3, 1}, 0.5, 1},
		{Sample{3, 1, 2}, 0.5, 2},
	} {
		if got := c.sample.Quantile(c.q); got != c.want {
			t.Errorf("quantile %v of %d figures is %v, want %v", c.q, len(c.sample), got, c.want)
		}
	}
	if got := (Sample{}).Median(); !math.IsNaN(got) {
		t.Errorf("the median of nothing is %v", got)
	}
	if hundred[0] != 100 {
		t.Error("the sample was reordered")
	}
}

func TestASampleShowsItsSpread(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sample Sample
		want   string
	}{
		{nil, "-"},
		{Sample{2, 2, 2}, "2"},
		{Sample{3.14159, 1.5, 250.4}, "3.14 (1.50-250)"},
		{Durations([]time.Duration{20 * time.Millisecond, 12500 * time.Microsecond, 30 * time.Millisecond}), "20 (12.5-30)"},
	} {
		if got := c.sample.String(); got != c.want {
			t.Errorf("%v reads %q, want %q", []float64(c.sample), got, c.want)
		}
	}
}

func TestOnlyWorkTakesProcessorTime(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	all, own := CPU(), ThreadCPU()
	x := 1.0
	for ThreadCPU()-own < 20*time.Millisecond {
		for range 1000 {
			x = math.Sqrt(x + 1)
		}
	}
	if took := CPU() - all; took < 15*time.Millisecond {
		t.Errorf("20 ms of work of one thread were %v of the process (%v)", took, x)
	}
	own = ThreadCPU()
	<-time.After(20 * time.Millisecond)
	if took := ThreadCPU() - own; took > 10*time.Millisecond {
		t.Errorf("waiting took %v of processor time", took)
	}
}

func TestTheTimeOfAllIsWhatIsNotIdle(t *testing.T) {
	t.Parallel()
	const stat = "cpu  100 10 200 5000 700 30 40 20 7 7\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
	if got, want := allCPU(stat), 4*time.Second; got != want {
		t.Errorf("%v, want %v", got, want)
	}
	for _, none := range []string{"", "cpu 1 2 3\n", "cpux 1 1 1 1 1 1 1 1\n", "cpu 1 1 x 1 1 1 1 1\n"} {
		if got := allCPU(none); got != 0 {
			t.Errorf("%q is %v", none, got)
		}
	}
	if own := CPU(); AllCPU() < own {
		t.Errorf("all together took less than this process alone: %v", own)
	}
}
