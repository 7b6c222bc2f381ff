// Package openloop offers load as strangers do, who know nothing of each other
// and come whether or not the last one was served.
//
// A tester that waits for each answer before it asks again asks least while the
// service is slow, and so leaves out the very waits that it should report. Here
// every request has its time beforehand, and its latency counts from then on,
// however late the tester itself was.
package openloop

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// Schedule returns when requests come in a stretch of time: on average rate a
// second, independently of each other (a Poisson process). The same seed gives
// the same times.
func Schedule(rate float64, length time.Duration, seed uint64) []time.Duration {
	random := rand.New(rand.NewPCG(seed, 0x6f70656e6c6f6f70))
	var due []time.Duration
	for at := 0.0; ; {
		at += random.ExpFloat64() / rate
		d := time.Duration(at * float64(time.Second))
		if d >= length {
			return due
		}
		due = append(due, d)
	}
}

// A Result is what became of one request.
type Result struct {
	Due  time.Duration // since the start
	Took time.Duration // since it was due, not since it was sent
	Err  error
}

// Run makes request i at due[i] after start, and returns when all have ended. A
// request that is late is made at once; none is left out because others are slow.
func Run(ctx context.Context, start time.Time, due []time.Duration, request func(ctx context.Context, i int) error) []Result {
	results := make([]Result, len(due))
	var all sync.WaitGroup
	made := 0
	for i, d := range due {
		if !until(ctx, start.Add(d)) {
			break
		}
		made++
		all.Go(func() {
			err := request(ctx, i)
			results[i] = Result{Due: d, Took: time.Since(start.Add(d)), Err: err}
		})
	}
	all.Wait()
	return results[:made]
}

// until waits for a time, and reports false if ctx ended first.
func until(ctx context.Context, t time.Time) bool {
	wait := time.Until(t)
	if wait <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Served are the latencies of requests without an error.
func Served(rs []Result) []time.Duration {
	var took []time.Duration
	for _, r := range rs {
		if r.Err == nil {
			took = append(took, r.Took)
		}
	}
	return took
}

// Goodput is how many requests a second ended well between two times since the
// start, whenever they were due.
func Goodput(rs []Result, from, to time.Duration) float64 {
	n := 0
	for _, r := range rs {
		if end := r.Due + r.Took; r.Err == nil && end >= from && end < to {
			n++
		}
	}
	return float64(n) / (to - from).Seconds()
}
