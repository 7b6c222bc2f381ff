package gate

import (
	"sync/atomic"
	"time"
)

// Bounds are the upper bounds of the buckets of a Histogram: from a key in memory
// to a device behind a slow network.
var Bounds = [...]time.Duration{
	0,
	100 * time.Microsecond,
	250 * time.Microsecond,
	500 * time.Microsecond,
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

// A Histogram says how much took how long.
type Histogram struct {
	Count   uint64
	Sum     time.Duration
	Buckets [len(Bounds)]uint64 // how many took at most each of Bounds
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
	Held     Histogram // how long seats were taken, but for those that were void
}

// Stat returns what the gate is doing.
func (g *Gate) Stat() Stat {
	var s Stat
	g.statOfMoment(&s)
	for c := range s.Class {
		cs := &s.Class[c]
		cs.Wait = g.waited[c].Histogram()
		cs.Wait.add(cs.Admitted) // so far those who did not wait
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
		s.Identities += l.identities
		s.Class[c] = ClassStat{
			InFlight: l.inFlight,
			Waiting:  l.waiting,
			Reserve:  g.reserve[c],
			Service:  l.service,
			Standing: l.stands(now),
			Held:     l.held.histogram(),
			Admitted: l.atOnce,
		}
	}
}

// Times collects a Histogram, without a lock. It is safe for concurrent use.
type Times struct {
	buckets [len(Bounds) + 1]atomic.Uint64 // the last: longer than all bounds
	sum     atomic.Int64
}

// Observe counts d.
func (t *Times) Observe(d time.Duration) {
	t.buckets[bucketOf(d)].Add(1)
	if d > 0 {
		t.sum.Add(int64(d))
	}
}

// Histogram returns what was counted so far.
func (t *Times) Histogram() Histogram {
	h := Histogram{Sum: time.Duration(t.sum.Load())}
	for i := range t.buckets {
		h.count(i, t.buckets[i].Load())
	}
	return h
}

// count adds n that belong into bucket i, after all that belong into one before.
func (h *Histogram) count(i int, n uint64) {
	h.Count += n
	if i < len(h.Buckets) {
		h.Buckets[i] = h.Count
	}
}

// add counts n more that took no time at all.
func (h *Histogram) add(n uint64) {
	h.Count += n
	for i := range h.Buckets {
		h.Buckets[i] += n
	}
}

// times are Times under a lock that is held anyway.
type times struct {
	sum     time.Duration
	buckets [len(Bounds) + 1]uint64
}

func (t *times) observe(d time.Duration) {
	t.buckets[bucketOf(d)]++
	t.sum += d
}

func (t *times) histogram() Histogram {
	h := Histogram{Sum: t.sum}
	for i, n := range t.buckets {
		h.count(i, n)
	}
	return h
}

// bucketOf is the index of the bucket of d: that after the last bound for what
// took longer than all.
func bucketOf(d time.Duration) int {
	i := 0
	for i < len(Bounds) && d > Bounds[i] {
		i++
	}
	return i
}
