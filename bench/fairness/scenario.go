package main

import (
	"cmp"
	"context"
	"crypto"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/secsy-pki/secsy-pki/bench/measure"
	"github.com/secsy-pki/secsy-pki/bench/openloop"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/peer"
)

// A part is some of the load of a scenario: callers of one kind.
type part struct {
	name       string
	rate       float64 // a second, of all of them
	purpose    keys.Purpose
	identities int
}

// A scenario is load on a device behind a protection, for a share of the time.
type scenario struct {
	name   string
	by     protection
	weight float64 // seconds of each round of full length
	parts  []part
}

// The names that figures are taken from.
const (
	load1, load2, load10 = "load of 1x", "load of 2x", "load of 10x"
	victimAlone          = "one caller alone"
	victimHog            = "beside one hog at 10x"
	renewal50            = "renewal beside 50 hogs at 10x"
	renewal1000          = "renewal beside 1000 hogs at 10x"
	statusAlone          = "status alone"
	statusLoaded         = "status beside issuance at 10x"
	issuanceAlone        = "issuance at 0.9x"
	issuanceFlooded      = "issuance at 0.9x beside nonces at 10x"

	victim, strangers, status, revocation, flood = "victim", "strangers", "status", "revocation", "flood"
)

// plan is all that goes through a device without a network between. Its weights
// give the rare caller, whose figures are ratios of tails, the most time.
func plan() []scenario {
	one := func(purpose keys.Purpose) part { return part{victim, 20, purpose, 1} }
	crowd := func(times float64, n int) part { return part{strangers, times * capacity, keys.ForIssuance, n} }
	statuses := []part{{status, 100, keys.ForStatus, 1}, {revocation, 20, keys.ForRevocation, 1}}
	issuing := part{victim, 0.9 * capacity, keys.ForIssuance, 50}
	nonces := part{flood, 10 * capacity, keys.ForOne, 1000}
	scenarios := []scenario{
		{load1, ours, 4, []part{crowd(1, 50)}},
		{load2, ours, 4, []part{crowd(2, 50)}},
		{load10, ours, 4, []part{crowd(10, 50)}},
		{victimAlone, ours, 20, []part{one(keys.ForIssuance)}},
		{victimHog, ours, 20, []part{one(keys.ForIssuance), crowd(10, 1)}},
		{renewal50, ours, 6, []part{one(keys.ForRenewal), crowd(10, 50)}},
		{renewal1000, ours, 6, []part{one(keys.ForRenewal), crowd(10, 1000)}},
		{statusAlone, ours, 5, statuses},
		{statusLoaded, ours, 5, append(statuses[:2:2], crowd(10, 50))},
		{issuanceAlone, ours, 3, []part{issuing}},
		{issuanceFlooded, ours, 3, []part{issuing, nonces}},
	}
	for _, s := range scenarios[2:] { // an idle line is the same for both
		if s.name != victimAlone && s.name != statusAlone && s.name != issuanceAlone {
			scenarios = append(scenarios, scenario{s.name, fifo, min(s.weight, 3), s.parts})
		}
	}
	return scenarios
}

// warmUp is what of each run is not counted: queues fill, and a gate learns how
// long its device takes.
const warmUp = 500 * time.Millisecond

// run plays a scenario for a length of time, and returns what became of each part.
func (s scenario) run(ctx context.Context, length time.Duration, seed uint64) ([][]openloop.Result, error) {
	store, err := s.by.protect(newDevice(seed))
	if err != nil {
		return nil, err
	}
	key, err := store.Key(ctx, "ca")
	if err != nil {
		return nil, err
	}
	arrivals := s.arrivals(ctx, warmUp+length, seed)
	due := make([]time.Duration, len(arrivals))
	for i, a := range arrivals {
		due[i] = a.due
	}
	rs := openloop.Run(ctx, time.Now(), due, func(_ context.Context, i int) error { return sign(arrivals[i].caller, key) })
	results := make([][]openloop.Result, len(s.parts))
	for i, r := range rs {
		of := arrivals[i].part
		results[of] = append(results[of], r)
	}
	return results, ctx.Err()
}

// An arrival is one request of a scenario.
type arrival struct {
	due    time.Duration
	part   int
	caller context.Context //nolint:containedctx // made once for each caller, not for each request
}

// arrivals are all requests of all parts in the order in which they are due. One
// tester sends them all: with one for each part, a part of many would come in
// clumps, as timers are not fine enough, and the others between them.
func (s scenario) arrivals(ctx context.Context, length time.Duration, seed uint64) []arrival {
	var all []arrival
	for i, p := range s.parts {
		callers := p.callers(ctx)
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		for _, d := range openloop.Schedule(p.rate, length, seed+uint64(i)<<32) {
			all = append(all, arrival{d, i, callers[random.IntN(len(callers))]})
		}
	}
	slices.SortStableFunc(all, func(a, b arrival) int { return cmp.Compare(a.due, b.due) })
	return all
}

// callers are the contexts of requests of each identity.
func (p part) callers(ctx context.Context) []context.Context {
	ctx = keys.WithPurpose(ctx, p.purpose)
	var all []context.Context
	for i := range p.identities {
		all = append(all, peer.WithIdentity(ctx, fmt.Sprintf("bench:%s/%d", p.name, i)))
	}
	return all
}

var digest = make([]byte, 32)

func sign(ctx context.Context, k keys.Key) error {
	_, err := k.Sign(ctx, digest, crypto.SHA256)
	return err
}

// after leaves out what was due before a time.
func after(rs []openloop.Result, t time.Duration) []openloop.Result {
	for i, r := range rs {
		if r.Due >= t {
			return rs[i:]
		}
	}
	return nil
}

// A tally is what became of one part of a scenario in all rounds.
type tally struct {
	offered, served int
	took            []time.Duration
	goodput         measure.Sample // of each round, a second
	medians, p99s   measure.Sample // of each round, in milliseconds
}

func (t *tally) add(rs []openloop.Result, length time.Duration) {
	// What was begun in the warm-up and ends after it is goodput all the same.
	t.goodput = append(t.goodput, openloop.Goodput(rs, warmUp, warmUp+length))
	rs = after(rs, warmUp)
	took := openloop.Served(rs)
	t.offered += len(rs)
	t.served += len(took)
	t.took = append(t.took, took...)
	if len(took) > 0 {
		of := measure.Durations(took)
		t.medians = append(t.medians, of.Median())
		t.p99s = append(t.p99s, of.Quantile(0.99))
	}
}

// share is the part of the requests that was served.
func (t *tally) share() float64 { return float64(t.served) / float64(t.offered) }

// quantile is one of all rounds together, in milliseconds.
func (t *tally) quantile(q float64) float64 { return measure.Durations(t.took).Quantile(q) }

// bare is how many signatures a second the device makes with nobody before it:
// what goodput is compared with, as no sleep is as short as it was meant to be.
func bare(ctx context.Context, length time.Duration, seed uint64) float64 {
	d := newDevice(seed)
	var signed atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	for range seats {
		all.Go(func() {
			for time.Since(start) < length && ctx.Err() == nil {
				if sign(ctx, d) == nil {
					signed.Add(1)
				}
			}
		})
	}
	all.Wait()
	return float64(signed.Load()) / time.Since(start).Seconds()
}
