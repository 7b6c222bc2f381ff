// Package measure says what figures are worth: the processor time behind them,
// how far repetitions lie apart, and the host that they come from.
package measure

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPU is the processor time that this process has taken so far, in user and
// kernel mode, on all processors. On a busy host it is the figure to trust:
// who waits for a processor spends none.
func CPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(fmt.Sprintf("asking for the processor time: %v", err)) // it can't, with a constant and a pointer
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// ThreadCPU is the processor time of the calling thread. It is for goroutines
// that are locked to theirs.
func ThreadCPU() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(fmt.Sprintf("asking for the thread's time: %v", err)) // as above
	}
	return time.Duration(t.Nano())
}

// A Sample is one figure, as often as it was measured.
type Sample []float64

// Durations makes a sample in milliseconds.
func Durations(ds []time.Duration) Sample {
	s := make(Sample, len(ds))
	for i, d := range ds {
		s[i] = float64(d) / float64(time.Millisecond)
	}
	return s
}

// Quantile is the smallest figure that at least the fraction q of all does not
// exceed: one that was measured, never one in between. It is NaN for none.
func (s Sample) Quantile(q float64) float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	sorted := slices.SortedFunc(slices.Values(s), cmp.Compare)
	// The product may lie a rounding above the whole number that is meant.
	rank := int(math.Ceil(q*float64(len(s)) - 1e-9))
	return sorted[min(max(rank, 1), len(s))-1]
}

// Median is the middle figure, the lower one of two.
func (s Sample) Median() float64 { return s.Quantile(0.5) }

// Least is the smallest figure.
func (s Sample) Least() float64 { return s.Quantile(0) }

// Most is the largest figure.
func (s Sample) Most() float64 { return s.Quantile(1) }

// String is the median with the least and the most.
func (s Sample) String() string {
	if len(s) == 0 {
		return "-"
	}
	if s.Least() == s.Most() {
		return Short(s.Median())
	}
	return fmt.Sprintf("%s (%s-%s)", Short(s.Median()), Short(s.Least()), Short(s.Most()))
}

// Short writes a figure with as many digits as say something.
func Short(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100 || v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// Host says where figures come from: processor, Go, and how busy it is now.
func Host() string {
	return fmt.Sprintf("%s, %d processors, GOMAXPROCS=%d, %s %s/%s, load average %s",
		processor(), runtime.NumCPU(), runtime.GOMAXPROCS(0), runtime.Version(), runtime.GOOS, runtime.GOARCH, Load())
}

func processor() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}

// Load is the load average of the last minute.
func Load() string {
	b, err := os.ReadFile("/proc/loadavg")
	first, _, ok := strings.Cut(string(b), " ")
	if err != nil || !ok {
		return "unknown"
	}
	return first
}

// AllCPU is the processor time that all that runs on the host has taken so far,
// and what a hypervisor gave to others meanwhile. It is zero where that is not
// known.
func AllCPU() time.Duration {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	return allCPU(string(b))
}

func allCPU(stat string) time.Duration {
	const tick = time.Second / 100 // on every architecture that Go runs on
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0
	}
	var sum time.Duration
	for i, f := range fields[1:9] {
		if i == 3 || i == 4 { // idle, and waiting for a disk
			continue
		}
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0
		}
		sum += time.Duration(n) * tick
	}
	return sum
}
