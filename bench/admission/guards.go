package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go/bulkhead"
	"golang.org/x/sync/semaphore"

	"github.com/secsy-pki/secsy-pki/bench/measure"
	"github.com/secsy-pki/secsy-pki/gate"
)

const (
	seats   = 8
	waiters = 64
)

// A guard lets so many at something at a time, and has the others wait.
type guard struct {
	name string
	// once comes, goes, and reports whether it was let in.
	once func(ctx context.Context) bool

	alone, crowded measure.Sample // nanoseconds of processor time to come and go
	let            measure.Sample // of the crowd, the share that was let in
}

func guards() ([]*guard, error) {
	channel := make(chan struct{}, seats)
	weighted := semaphore.NewWeighted(seats)
	failsafe := bulkhead.New[any](seats)
	g, err := gate.New(gate.Config{Seats: seats, MaxQueue: waiters, MaxWait: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	return []*guard{
		{name: oursName, once: func(ctx context.Context) bool {
			release, err := g.Acquire(ctx, gate.Issuance, "bench")
			if err != nil {
				return false
			}
			release()
			return true
		}},
		{name: "buffered channel", once: func(ctx context.Context) bool {
			select {
			case channel <- struct{}{}:
				<-channel
				return true
			case <-ctx.Done():
				return false
			}
		}},
		{name: "x/sync/semaphore", once: func(ctx context.Context) bool {
			if weighted.Acquire(ctx, 1) != nil {
				return false
			}
			weighted.Release(1)
			return true
		}},
		{name: "failsafe-go bulkhead", once: func(ctx context.Context) bool {
			if failsafe.AcquirePermit(ctx) != nil {
				return false
			}
			failsafe.ReleasePermit()
			return true
		}},
	}, nil
}

// round measures a guard once: with nobody else there, and with more than it
// lets in, who come back at once.
func (g *guard) round(ctx context.Context, z sizes) {
	var let atomic.Int64
	worker := func(_, calls int) {
		in := int64(0)
		for range calls {
			if g.once(ctx) {
				in++
			}
		}
		let.Add(in)
	}
	g.alone = append(g.alone, cost(z.calls, 1, worker).cpu)
	let.Store(0)
	g.crowded = append(g.crowded, cost(z.calls/waiters*waiters, waiters, worker).cpu)
	g.let = append(g.let, float64(let.Load())/float64(z.calls/waiters*waiters))
}
