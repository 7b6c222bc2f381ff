package ratelimit

import (
	"fmt"
	"time"
)

// A Quota is how much one account may have done for it: Limit at once, and over
// each Window that passes as much again, refilled evenly. There are no windows
// with a beginning, at which a burst could be doubled. The zero Quota is off.
//
// What is debited is work that is valid, allowed, and no repetition of an
// answered request: a caller checks the request, then whether it is a replay,
// then debits, in the transaction that stores what was asked for.
type Quota struct {
	Limit  int // in units of the quota: identifiers, enrolments
	Window time.Duration
}

// The widest that a quota may be: all arithmetic stays far from overflowing.
const (
	maxQuotaLimit  = 1_000_000_000
	minQuotaWindow = time.Second
	maxQuotaWindow = 10 * 365 * 24 * time.Hour
)

// Active reports whether the quota limits anything.
func (q Quota) Active() bool { return q.Limit > 0 && q.Window > 0 }

// Validate says what is wrong with the quota. The zero Quota is well.
func (q Quota) Validate() error {
	switch {
	case q == Quota{}:
		return nil
	case q.Limit <= 0:
		return fmt.Errorf("ratelimit: a quota of %d units", q.Limit)
	case q.Limit > maxQuotaLimit:
		return fmt.Errorf("ratelimit: a quota of %d units is more than %d", q.Limit, maxQuotaLimit)
	case q.Window < minQuotaWindow || q.Window > maxQuotaWindow:
		return fmt.Errorf("ratelimit: a quota over %s: not from %s to %s", q.Window, minQuotaWindow, maxQuotaWindow)
	}
	return nil
}

// unit is how many microseconds it takes to refill one unit, rounded up: more
// than Limit is never given, and all of Limit is.
func (q Quota) unit() int64 {
	limit, window := int64(q.Limit), q.Window.Microseconds()
	return (window + limit - 1) / limit
}

// Debit is the arithmetic of a quota whose state is kept elsewhere, in a
// database say: free is when the account will owe nothing any more, zero for
// one that never spent. It returns the new state if the whole cost fits, or the
// old one and a no. States are whole microseconds. A cost of 0 changes nothing,
// a cost above Limit can never be paid. The quota must be one that Validate lets
// pass.
//
// A state that lies further ahead than Limit allows, as after a clock was set
// back, is waited out: nothing is given away.
func (q Quota) Debit(now, free time.Time, cost int) (time.Time, Decision) {
	if !q.Active() || cost <= 0 {
		return free, Decision{OK: true}
	}
	if cost > q.Limit {
		return free, Decision{Never: true}
	}
	unit, at := q.unit(), now.UnixMicro()
	next := max(free.UnixMicro(), at) + int64(cost)*unit
	if late := next - at - int64(q.Limit)*unit; late > 0 {
		return free, Decision{RetryAfter: wholeSeconds(time.Duration(late) * time.Microsecond)}
	}
	return time.UnixMicro(next).UTC(), Decision{OK: true}
}

// Refund gives back what Debit took for work that did not come about. It never
// gives more than is owed.
func (q Quota) Refund(now, free time.Time, cost int) time.Time {
	if !q.Active() || cost <= 0 || !free.After(now) {
		return free
	}
	back := free.UnixMicro() - int64(min(cost, q.Limit))*q.unit()
	return time.UnixMicro(max(back, now.UnixMicro())).UTC()
}

// wholeSeconds rounds up, to at least one: what a Retry-After may say.
func wholeSeconds(d time.Duration) time.Duration {
	return max(time.Second, (d + time.Second - 1).Truncate(time.Second))
}
