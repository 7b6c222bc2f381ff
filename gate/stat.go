package gate

import (
	"sync/atomic"
	"time"
)

// WaitBounds are the upper bounds of the buckets of a Histogram.
var WaitBounds = [...]time.Duration{
	0,
	time.Millisecond,
	2500 * time.Microsecond,
	5 * time.Millisecond,
	10 * time.Millisecond,
	25 * time.Millisecond,
	50 * time.Millisecond,
	100 * time.Millisecond,
	250 * time.Millisecond,
	500 * time.Millisecond,
	time.Second,
	2500 * time.Millisecond,
	5 * time.Second,
	10 * time.Second,
}

// A Histogram says how many waited for how long.
type Histogram struct {
	Count   uint64
	Sum     time.Duration
	Buckets [len(WaitBounds)]uint64 // how many waited for at most each of WaitBounds
}

// A Stat is what a gate was doing at one moment, and what it has done so far.
type Stat struct {
	Seats      int // as configured; 0 if the gate is open to all
	Limit      int // of those, how many are in force; 0 if the gate is open to all
	InFlight   int
	Queued     int
	Identities int // that are seated or wait, counted in each of their classes
	Class      [Classes]ClassStat
	// The most that there were at a time.
	PeakInFlight int
	PeakQueued   int
}

// A ClassStat is the part of one class in a Stat.
type ClassStat struct {
	InFlight int
	Waiting  int
	Reserve  int           // seats for which it goes first
	Service  time.Duration // about how long its work takes; 0 if nothing is known
	Standing bool          // its queue stands, so its work waits for a few service times only
	Admitted uint64
	Refused  [Reasons]uint64
	Wait     Histogram // of those admitted
}

// Stat returns what the gate is doing.
func (g *Gate) Stat() Stat {
	var s Stat
	g.statOfMoment(&s)
	for c := range s.Class {
		cs := &s.Class[c]
		cs.Wait = g.admitted[c].snapshot()
		cs.Admitted = cs.Wait.Count
		for r := range cs.Refused {
			cs.Refused[r] = g.refused[c][r].Load()
		}
	}
	return s
}

func (g *Gate) statOfMoment(s *Stat) {
	now := g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cfg.Seats > 0 {
		s.Seats, s.Limit = g.cfg.Seats, g.limit
	}
	s.InFlight, s.Queued = g.total, g.queued
	s.PeakInFlight, s.PeakQueued = g.peaks.inFlight, g.peaks.queued
	for c := range s.Class {
		l := &g.lanes[c]
		s.Identities += len(l.flows)
		s.Class[c] = ClassStat{
			InFlight: l.inFlight,
			Waiting:  l.waiting,
			Reserve:  g.reserve[c],
			Service:  l.service,
			Standing: l.stands(now),
		}
	}
}

// A histogram counts without a lock.
type histogram struct {
	buckets [len(WaitBounds) + 1]atomic.Uint64 // the last: longer than all bounds
	sum     atomic.Int64
}

func (h *histogram) observe(d time.Duration) {
	i := 0
	for i < len(WaitBounds) && d > WaitBounds[i] {
		i++
	}
	h.buckets[i].Add(1)
	if d > 0 {
		h.sum.Add(int64(d))
	}
}

func (h *histogram) snapshot() Histogram {
	s := Histogram{Sum: time.Duration(h.sum.Load())}
	for i := range h.buckets {
		s.Count += h.buckets[i].Load()
		if i < len(s.Buckets) {
			s.Buckets[i] = s.Count
		}
	}
	return s
}
