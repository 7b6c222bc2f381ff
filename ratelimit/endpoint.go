package ratelimit

import (
	"net/netip"
	"time"
)

// An Endpoint is one class of endpoints: what its requests cost and how many of
// them were admitted and refused. A nil Endpoint admits everything.
type Endpoint struct {
	limiter *Limiter
	name    string
	index   int // its class in EndpointIP
	options EndpointOptions

	counters counters
	examples [tiers]example
}

// failedProofCost is what a proof that does not hold costs besides the request.
// Checking a signature takes about a thousand times as long as asking a bucket.
const failedProofCost = 4 * Token

// Admit charges a request to its source and to all that it shares: all of them,
// or none. It needs no more than the address, and allocates nothing.
func (e *Endpoint) Admit(source netip.Addr) Decision {
	if e == nil {
		return Decision{OK: true}
	}
	return e.admit(source, e.limiter.clock())
}

// AdmitAt is Admit for a caller that has read the clock already: the same
// reading does for all that is asked about one request.
func (e *Endpoint) AdmitAt(source netip.Addr, at time.Time) Decision {
	if e == nil {
		return Decision{OK: true}
	}
	return e.admit(source, e.limiter.instant(at))
}

func (e *Endpoint) admit(source netip.Addr, now int64) Decision {
	if e.options.Exempt {
		e.counters.admitted()
		return Decision{OK: true}
	}
	d := e.ask(source, e.options.Cost, now)
	if d.OK {
		e.counters.admitted()
	}
	return d
}

// Charge is Admit for work that turns out to cost more than was charged: what it
// admits was counted before.
func (e *Endpoint) Charge(source netip.Addr, cost Cost) Decision {
	if e == nil || e.options.Exempt || cost <= 0 {
		return Decision{OK: true}
	}
	return e.ask(source, cost, e.limiter.clock())
}

// ask charges cost to a source and to what it shares.
func (e *Endpoint) ask(source netip.Addr, cost Cost, now int64) Decision {
	l := e.limiter
	r := request{now: now, cost: cost, reserve: e.options.Reserve}
	for {
		s := l.settings.Load()
		r.n = 0
		r.ofSource(s, &l.hasher, source, e.options.Group, e.index)
		global := s.globals[e.options.Group]
		if e.options.SkipGlobal {
			global = nil
		}
		if l.attempt(&r, s, s.all[e.index], global) {
			return e.answer(&r, s, source)
		}
	}
}

// answer counts the decision.
func (e *Endpoint) answer(r *request, s *settings, source netip.Addr) Decision {
	d := r.decision(s.jitter)
	if r.shadowed != 0 {
		e.counters.shadowed(r.shadowed)
	}
	if !d.OK {
		e.counters.throttled(d.Tier)
		e.examples[d.Tier].offer(source, r.now)
	}
	return d
}

// Claimed charges a request to its source together with the account that it
// says to be from, before that is proven: at the account's rate, but from a
// bucket of that source alone, so that it can't hurt the account. It is asked
// besides Admit.
func (e *Endpoint) Claimed(source netip.Addr, account string) Decision {
	if e == nil || e.options.Exempt || !source.IsValid() {
		return Decision{OK: true}
	}
	l := e.limiter
	r := request{now: l.clock(), cost: e.options.Cost}
	for {
		s := l.settings.Load()
		r.n = 0
		k := clientKey(s.translations.apply(addressOf(source)), common)
		r.ofAccount(s, &l.hasher, k, PerSourceAccount, account)
		if l.attempt(&r, s, nil, nil) {
			return e.answer(&r, s, source)
		}
	}
}

// Proven charges a request to the account whose proof held, wherever it comes
// from. It is asked besides Admit.
func (e *Endpoint) Proven(account string) Decision {
	if e == nil || e.options.Exempt {
		return Decision{OK: true}
	}
	l := e.limiter
	r := request{now: l.clock(), cost: e.options.Cost}
	for {
		s := l.settings.Load()
		r.n = 0
		r.ofAccount(s, &l.hasher, key{}, PerAccount, account)
		if !l.attempt(&r, s, nil, nil) {
			continue
		}
		d := e.answer(&r, s, netip.Addr{})
		if !d.OK {
			l.recorder.Refused(PerAccount.String(), e.name, account, netip.Addr{})
		}
		return d
	}
}

// ofAccount adds the bucket of an account, at k but for its name.
func (r *request) ofAccount(s *settings, h *hasher, k key, tier Tier, account string) {
	ru := common
	if len(s.accounts) > 0 {
		ru = s.accounts[account]
	}
	if ru.exempt || !s.schedules[tier].limits[ru.class].active {
		return
	}
	k.name = h.name(account)
	r.want(s, h, k, tier, ru.class)
}

// FailedProof charges a request whose proof did not hold to its source, beyond
// what it has paid, as far as there is something to take. It refuses nothing; the
// next ones are.
func (e *Endpoint) FailedProof(source netip.Addr) {
	if e == nil {
		return
	}
	l := e.limiter
	r := request{now: l.clock()}
	for !e.options.Exempt {
		s := l.settings.Load()
		r.n = 0
		r.ofSource(s, &l.hasher, source, e.options.Group, -1)
		if l.fine(&r, s) {
			break
		}
	}
	e.counters.failedProof()
}

// fine takes from the buckets of r without asking them. A no is that of attempt.
func (l *Limiter) fine(r *request, s *settings) bool {
	r.lock()
	if l.settings.Load() != s {
		r.restore()
		return false
	}
	r.bring(s)
	for i := range r.claims[:r.n] {
		c := &r.claims[i]
		c.tat, c.pays = c.lim.fine(c.tat, r.now, failedProofCost), true
		c.commit(r.now)
	}
	r.unlock(s.gen)
	return true
}
