package gate

import "time"

// turnsPassed is after how many seats for more urgent classes one is due to a
// class that waits. So under a flood of the most urgent, every other class still
// has about a seventeenth of the gate, and the flood pays for each a sixteenth.
const turnsPassed = 16

// dispatchLocked hands out the free seats. It is called whenever there may be
// one, so that free seats and somebody who may have one never meet.
func (g *Gate) dispatchLocked(now time.Duration, told *tell) {
	for g.total < g.limit && g.queued > 0 {
		c, outOfTurn := g.nextLocked()
		w := g.lanes[c].first()
		if g.lateLocked(w, now, told) {
			continue
		}
		w.seat = g.seatLocked(g.dequeueLocked(w), now)
		w.waited = max(0, now-w.since)
		told.add(w)
		g.passLocked(c, outOfTurn)
	}
}

// lateLocked drops w if it must not be seated any more.
func (g *Gate) lateLocked(w *waiter, now time.Duration, told *tell) bool {
	select {
	case <-w.done:
		g.dropLocked(w, told)
		return true
	default:
	}
	if now-w.since <= g.patienceLocked(w.class, false, now) && w.canEnd(now+g.lanes[w.class].service) {
		return false
	}
	g.refuseLocked(w, Timeout, told)
	return true
}

// canEnd reports whether work that ends then is of use to somebody.
func (w *waiter) canEnd(then time.Duration) bool { return then <= w.deadline }

// nextLocked is the class that gets the next seat, and whether it goes before
// one that is more urgent because it has been passed over for long. That is
// never done twice in a row: several overdue classes don't make one urgent wait.
func (g *Gate) nextLocked() (c Class, outOfTurn bool) {
	c = g.urgentLocked()
	if g.aged {
		return c, false
	}
	overdue := c
	for d := c + 1; d < Classes; d++ {
		if l := &g.lanes[d]; l.waiting > 0 && l.passed >= turnsPassed && (overdue == c || l.passed > g.lanes[overdue].passed) {
			overdue = d
		}
	}
	return overdue, overdue != c
}

// urgentLocked is the first class below its reserve that waits, else the first
// that waits. Somebody must wait.
func (g *Gate) urgentLocked() Class {
	first := Classes
	for c := range Classes {
		if g.lanes[c].waiting == 0 {
			continue
		}
		if g.lanes[c].inFlight < g.reserve[c] {
			return c
		}
		first = min(first, c)
	}
	return first
}

// passLocked notes that c got a seat before all that are less urgent. Those who
// don't wait just now are passed over too: where the wait is shorter than the
// time until a turn comes, they could else never be there when it does.
func (g *Gate) passLocked(c Class, outOfTurn bool) {
	g.aged = outOfTurn
	for d := c + 1; d < Classes; d++ {
		g.lanes[d].passed++
	}
}

// victimLocked is who leaves the full queue for a newcomer of class c, who has
// flow ahead of it; nil, if the newcomer has to go.
//
// A class below its own places gets one from whoever has more than those; above
// them it takes only from less urgent ones. Inside a class the longest flow
// gives way, if it will still not be the shorter of the two.
func (g *Gate) victimLocked(c Class, ahead *flow) *waiter {
	places := g.cfg.placesEach()
	lowest := c + 1
	if g.lanes[c].waiting < places {
		lowest = 0
	}
	if w := g.lastAboveLocked(places, lowest, c); w != nil {
		return w
	}
	// A flood that gains nothing is turned away without looking at every flow.
	if l := &g.lanes[c]; l.most >= ahead.length()+2 {
		return l.longest().tail
	}
	return nil
}

// lastAboveLocked is the newest of the longest flow of the least urgent class,
// down to class least and other than c, of which more than that many wait.
func (g *Gate) lastAboveLocked(places int, least, except Class) *waiter {
	for d := Classes; d > least; d-- {
		if l := &g.lanes[d-1]; d-1 != except && l.waiting > places {
			return l.longest().tail
		}
	}
	return nil
}

// shortenQueueLocked turns away as many as are too many since the queue was made shorter.
func (g *Gate) shortenQueueLocked(told *tell) {
	for g.queued > g.cfg.MaxQueue {
		g.refuseLocked(g.lastAboveLocked(g.cfg.placesEach(), 0, Classes), QueueFull, told)
	}
}

// shortenWaitsLocked holds everybody who waits to the wait that is allowed now.
func (g *Gate) shortenWaitsLocked(now time.Duration, told *tell) {
	for c := range g.lanes {
		for _, f := range g.lanes[c].flows {
			for w := f.head; w != nil; {
				next := w.next
				g.judgeWaitLocked(w, now, told)
				w = next
			}
		}
	}
}
