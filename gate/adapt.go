package gate

import (
	"math"
	"time"
)

const (
	sampleWindow = 100 // samples from which one decision is made
	tooSlow      = 2.0 // times the usual service time at which the gate gets narrower
	asUsual      = 1.3 // and up to which it may get wider
)

// An adaptation narrows a gate whose resource gets slower the more is at it, and
// widens it again: one seat more after a window of samples that took as long as
// usual, an eighth less after one that took far longer. What lies between
// changes nothing, so a gate that is a little overloaded does not creep wider.
//
// It never goes below its floor, nor down at all but for slowness: to learn
// what is usual it waits for a quiet hour rather than making one.
type adaptation struct {
	on      bool
	floor   int
	ceiling int
	epoch   uint64 // of the limit in force: work begun under another says nothing about this one
	wanted  bool   // somebody found no seat in this window
	samples int
	window  [Classes]struct {
		n    int
		took time.Duration
	}
	// How long work takes when it has the resource for itself, by class: an RSA
	// signature is not slow because it takes longer than one of ECDSA.
	usual [Classes]float64
}

// configure makes cfg the one to adapt within, and returns the limit to begin with.
func (a *adaptation) configure(cfg Config, limit int) int {
	was := *a
	*a = adaptation{on: cfg.Adaptive && cfg.Seats > 0, epoch: was.epoch, floor: max(1, cfg.MinSeats), ceiling: cfg.seats()}
	switch {
	case !a.on:
		return a.ceiling
	case was.on:
		a.usual = was.usual
		return min(max(limit, a.floor), a.ceiling)
	default:
		// In the middle: wide enough to work, narrow enough to see what is usual.
		return max(a.floor, (a.ceiling+1)/2)
	}
}

// nextEpoch begins anew: the limit is another.
func (a *adaptation) nextEpoch() {
	a.epoch++
	a.nextWindow()
}

func (a *adaptation) nextWindow() {
	a.samples, a.wanted = 0, false
	clear(a.window[:])
}

// learnLocked takes in how long a piece of work took that succeeded and was
// begun under the limit in force.
func (g *Gate) learnLocked(c Class, took time.Duration) {
	a := &g.adapt
	if !a.on {
		return
	}
	a.samples++
	a.window[c].n++
	a.window[c].took += took
	if a.samples < sampleWindow {
		return
	}
	if limit := a.decide(g.limit); limit != g.limit {
		g.setLimitLocked(limit)
	} else {
		a.nextWindow()
	}
}

// decide returns the limit that the window speaks for.
func (a *adaptation) decide(limit int) int {
	slowness := a.slowness()
	a.remember(limit)
	switch {
	case !a.wanted: // there were seats enough, whatever took long
		return limit
	case slowness > tooSlow:
		return max(a.floor, limit-max(1, limit/8))
	case slowness <= asUsual:
		return min(a.ceiling, limit+1)
	default:
		return limit
	}
}

// slowness is how many times as long as usual the window's work took.
func (a *adaptation) slowness() float64 {
	sum := 0.0
	for c, w := range a.window {
		switch {
		case w.n == 0:
		case a.usual[c] == 0:
			sum += float64(w.n)
		default:
			sum += float64(w.took) / a.usual[c]
		}
	}
	return sum / float64(a.samples)
}

// remember learns what is usual. Faster is always nearer to it. Slower is the
// resource's own doing only if the gate was not full, or can't be narrower.
func (a *adaptation) remember(limit int) {
	slowed := a.wanted && limit > a.floor
	for c, w := range a.window {
		if w.n == 0 {
			continue
		}
		mean := float64(w.took) / float64(w.n)
		if a.usual[c] == 0 {
			a.usual[c] = max(mean, math.SmallestNonzeroFloat64)
		}
		if mean < a.usual[c] || !slowed {
			a.usual[c] += (mean - a.usual[c]) / 4
		}
	}
}
