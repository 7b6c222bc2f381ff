package openloop

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestArrivalsArePoisson(t *testing.T) {
	t.Parallel()
	const rate, seconds = 500, 400
	due := Schedule(rate, seconds*time.Second, 1)
	if !slices.IsSorted(due) || due[len(due)-1] >= seconds*time.Second {
		t.Fatal("the times do not rise within the stretch")
	}
	// The mean of 200,000 gaps is within 1 % (4 standard errors); of exponential
	// gaps the deviation equals the mean.
	var sum, squares float64
	last := time.Duration(0)
	for _, d := range due {
		gap := (d - last).Seconds()
		sum, squares, last = sum+gap, squares+gap*gap, d
	}
	n := float64(len(due))
	mean := sum / n
	deviation := math.Sqrt(squares/n - mean*mean)
	if math.Abs(mean*rate-1) > 0.01 || math.Abs(deviation/mean-1) > 0.02 {
		t.Errorf("gaps have mean %v and deviation %v, want both %v", mean, deviation, 1.0/rate)
	}
	if !slices.Equal(due, Schedule(rate, seconds*time.Second, 1)) || slices.Equal(due, Schedule(rate, seconds*time.Second, 2)) {
		t.Error("the seed does not decide")
	}
}

// A service that stands still for a second is asked all the same, and each
// request that was due meanwhile reports the rest of that second.
func TestARequestThatWaitsForTheTesterCountsFromWhenItWasDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := make(chan struct{}, 1) // one at a time
		due := []time.Duration{0, 100 * time.Millisecond, 200 * time.Millisecond, 900 * time.Millisecond, 2 * time.Second}
		first := true
		rs := Run(t.Context(), time.Now(), due, func(context.Context, int) error {
			service <- struct{}{}
			defer func() { <-service }()
			if first {
				first = false
				time.Sleep(time.Second)
			}
			return nil
		})
		want := []time.Duration{time.Second, 900 * time.Millisecond, 800 * time.Millisecond, 100 * time.Millisecond, 0}
		if got := Served(rs); !slices.Equal(got, want) {
			t.Errorf("latencies are %v, want %v", got, want)
		}
	})
}

func TestALateTesterDoesNotShortenTheWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		time.Sleep(300 * time.Millisecond) // the tester itself stood still
		rs := Run(t.Context(), start, []time.Duration{100 * time.Millisecond, 400 * time.Millisecond}, func(context.Context, int) error { return nil })
		if got, want := Served(rs), []time.Duration{200 * time.Millisecond, 0}; !slices.Equal(got, want) {
			t.Errorf("latencies are %v, want %v", got, want)
		}
	})
}

func TestOnlyWhatEndedWellInTheStretchIsGoodput(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	rs := []Result{
		{Due: 0, Took: 90 * ms},
		{Due: 50 * ms, Took: 50 * ms},                         // ends as the stretch begins
		{Due: 100 * ms, Took: 999 * ms},                       // ends within
		{Due: 200 * ms, Took: 10 * ms, Err: errors.New("no")}, // was refused
		{Due: 1000 * ms, Took: 100 * ms},                      // ends as it is over
	}
	if got := Goodput(rs, 100*ms, 1100*ms); got != 2 {
		t.Errorf("goodput is %v a second, want 2", got)
	}
	if got := len(Served(rs)); got != 4 {
		t.Errorf("%d were served, want 4", got)
	}
}

func TestTheTesterStopsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		defer cancel()
		rs := Run(ctx, time.Now(), []time.Duration{0, 100 * time.Millisecond, time.Hour}, func(context.Context, int) error { return nil })
		if len(rs) != 2 {
			t.Errorf("%d requests were made, want 2", len(rs))
		}
	})
}
