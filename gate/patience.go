package gate

import "time"

const (
	// standsAfter is how long somebody has to be waiting before a queue counts as
	// one that stands: it is then no burst that passes, and its length only adds
	// to everybody's wait (CoDel's idea of a bad queue).
	standsAfter = 100 * time.Millisecond
	// serviceTimes is how long work may expect to wait in a queue that stands:
	// more than one turn of all seats, and too short for the queue to stay as it is.
	serviceTimes = 4
	// minPatience keeps fast work from being turned away by the scheduler's whims.
	minPatience = 5 * time.Millisecond

	minRetry = time.Second
	maxRetry = time.Minute
)

// average moves mean, 0 if it isn't known, towards d.
func average(mean *time.Duration, d time.Duration) {
	if *mean == 0 {
		*mean = d
		return
	}
	*mean += (d - *mean) / 8
}

// patienceLocked is how long work of class c may wait now.
//
// While the queue stands that is few service times, and twice as many for what
// has begun to wait or is the first of its identity: an estimate may be wrong,
// and what many identities have to wait for their first turn is no excess of any.
func (g *Gate) patienceLocked(c Class, another bool, now time.Duration) time.Duration {
	if !g.lanes[c].stands(now) {
		return g.cfg.MaxWait
	}
	few := serviceTimes * max(g.service, g.lanes[c].service)
	if !another {
		few *= 2
	}
	return min(g.cfg.MaxWait, max(few, minPatience))
}

// stands reports whether somebody has been waiting in l for long, if not the
// same.
func (l *lane) stands(now time.Duration) bool {
	return l.waiting > 0 && now-l.standing >= standsAfter
}

// mayWaitLocked says why w, whose identity has flow ahead of it, should not even
// begin to wait.
func (g *Gate) mayWaitLocked(w waiter, ahead *flow, now time.Duration) (Reason, bool) {
	if g.cfg.MaxQueue == 0 {
		return QueueFull, false
	}
	wait := g.expectedWaitLocked(w.class, ahead)
	if g.cfg.MaxWait == 0 || wait > g.patienceLocked(w.class, ahead.length() > 0, now) || !w.canEnd(now+wait+g.lanes[w.class].service) {
		return Timeout, false
	}
	return 0, true
}

// expectedWaitLocked is about how long a newcomer of class c would wait. All
// seats are taken, so one comes free every service time over seats.
func (g *Gate) expectedWaitLocked(c Class, ahead *flow) time.Duration {
	before := g.lanes[c].before(ahead)
	if l := &g.lanes[c]; l.inFlight+l.waiting >= g.reserve[c] {
		before += g.moreUrgentLocked(c, before)
	}
	return time.Duration(before+1) * g.service / time.Duration(g.limit)
}

// before is how many of l will be seated before a newcomer who has flow ahead of
// it: its own, and of every other flow as many as it gets in the same turns.
func (l *lane) before(ahead *flow) int {
	own := ahead.length()
	others := len(l.backlog)
	if own > 0 {
		others--
	}
	return own + min(l.waiting-own, others*(own+1))
}

// moreUrgentLocked is how many of the classes before c will be seated before one
// of c that has that many of its own before it.
func (g *Gate) moreUrgentLocked(c Class, before int) int {
	urgent := 0
	for d := range c {
		urgent += g.lanes[d].waiting
	}
	untilTurn := max(0, turnsPassed-g.lanes[c].passed)
	return min(urgent, untilTurn+turnsPassed*before)
}

// length is how many of f wait; f may be nil.
func (f *flow) length() int {
	if f == nil {
		return 0
	}
	return f.waiting
}

// retryAfterLocked is when all who wait now will have been served.
func (g *Gate) retryAfterLocked() time.Duration {
	drain := time.Duration(g.queued+g.total) * g.service / time.Duration(g.limit)
	seconds := (drain + time.Second - 1) / time.Second * time.Second
	return min(max(seconds, minRetry), maxRetry)
}
