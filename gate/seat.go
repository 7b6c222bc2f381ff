package gate

import "time"

// A Seat is the right to be at the resource until it is given back. The zero
// Seat is of no gate. It may be copied: however many copies are given back, the
// seat is so once.
type Seat struct {
	permit *permit
	turn   uint64
}

// Release gives the seat back, if that has not been done.
func (s Seat) Release() { s.giveBack(worked) }

// Fail gives back the seat of work that failed: how long that took says nothing
// about how long work takes, but how long the seat was taken.
func (s Seat) Fail() { s.giveBack(failed) }

// Hung gives back the seat of work that went on when nobody waited for it any
// more: there is nothing to learn from it but that it took so long.
func (s Seat) Hung() { s.giveBack(hung) }

// Void gives back a seat of which there is nothing to learn: the resource did
// nothing.
func (s Seat) Void() { s.giveBack(void) }

// An end is how it ended with a seat.
type end int

const (
	worked end = iota
	failed
	hung
	void
)

func (s Seat) giveBack(how end) {
	if s.permit == nil {
		return
	}
	g := s.permit.gate
	now := g.now()
	g.mu.Lock()
	if s.permit.turn != s.turn {
		g.mu.Unlock()
		return
	}
	g.endLocked(s.permit, now, how)
	var told tell
	g.dispatchLocked(now, &told)
	g.mu.Unlock()
	told.wake()
}

// A permit is what stands behind a seat. It is used again and again; turn says
// which use of it a Seat is for.
type permit struct {
	gate *Gate // never changed

	// Guarded by the gate's mutex.
	turn  uint64
	flow  *flow
	since time.Duration
	epoch uint64
}

// seatLocked gives f a seat. There must be one.
func (g *Gate) seatLocked(f *flow, now time.Duration) Seat {
	p := &f.first
	if p.flow != nil { // it is taken
		p = g.spare.permit(g)
	}
	p.flow, p.since, p.epoch = f, now, g.adapt.epoch
	g.lanes[f.class].seat(f)
	g.total++
	g.peaks.inFlight = max(g.peaks.inFlight, g.total)
	return Seat{p, p.turn}
}

// endLocked takes the seat back, and learns from it how long work takes.
func (g *Gate) endLocked(p *permit, now time.Duration, how end) {
	took := max(0, now-p.since)
	c := p.flow.class
	l := &g.lanes[c]
	if how != void {
		l.held.observe(took)
	}
	if how == worked || how == failed {
		average(&g.service, took)
		average(&l.service, took)
	}
	if how == worked && p.epoch == g.adapt.epoch {
		g.learnLocked(c, took)
	}
	g.unseatLocked(p)
}

// unseatLocked takes back a seat of which there is nothing to learn.
func (g *Gate) unseatLocked(p *permit) {
	f := p.flow
	p.turn++
	p.flow = nil
	if p != &f.first {
		g.spare.keepPermit(p)
	}
	g.total--
	g.lanes[f.class].unseat(f, &g.spare)
}

// maxSpare is how many of each are kept. More is left to the collector.
const maxSpare = 64

// spares are permits and flows to be used again, so that a free seat costs no
// allocation.
type spares struct {
	permits []*permit
	flows   []*flow
}

func (s *spares) permit(g *Gate) *permit {
	n := len(s.permits)
	if n == 0 {
		return &permit{gate: g}
	}
	p := s.permits[n-1]
	s.permits = s.permits[:n-1]
	return p
}

func (s *spares) keepPermit(p *permit) {
	if len(s.permits) < maxSpare {
		s.permits = append(s.permits, p)
	}
}

func (s *spares) flow(g *Gate) *flow {
	n := len(s.flows)
	if n == 0 {
		return &flow{first: permit{gate: g}}
	}
	f := s.flows[n-1]
	s.flows = s.flows[:n-1]
	return f
}

func (s *spares) keepFlow(f *flow) {
	if len(s.flows) < maxSpare {
		f.identity = "" // all else is as in a new one, but the turns, which a Seat of before must not meet again
		s.flows = append(s.flows, f)
	}
}
