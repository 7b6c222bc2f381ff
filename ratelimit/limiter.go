package ratelimit

import "net/netip"

// A Limiter holds the buckets of all tiers. It is safe for concurrent use, and
// its memory is fixed.
type Limiter struct{}

// New returns a Limiter, or says what is wrong with cfg.
func New(cfg Config) (*Limiter, error) { return &Limiter{}, nil }

// Reconfigure puts cfg into force for all requests from now on. What was spent
// stays spent, in tokens: a limit that is raised acts at once.
func (l *Limiter) Reconfigure(cfg Config) error { return nil }

// An Endpoint is one class of endpoints: what its requests cost and how many of
// them were admitted and refused. A nil Endpoint admits everything.
type Endpoint struct{}

// Endpoint makes the class of that name. It is for building the program, once
// for each name; a nil Limiter has nil Endpoints.
func (l *Limiter) Endpoint(name string, o EndpointOptions) *Endpoint {
	if l == nil {
		return nil
	}
	return &Endpoint{}
}

// Admit charges a request to its source and to all that it shares: all of them,
// or none. It needs no more than the address, and allocates nothing.
func (e *Endpoint) Admit(source netip.Addr) Decision { return Decision{OK: true} }

// Claimed charges a request to its source together with the account that it
// says to be from, before that is proven. It can't hurt the account.
func (e *Endpoint) Claimed(source netip.Addr, account string) Decision { return Decision{OK: true} }

// Proven charges a request to the account whose proof held.
func (e *Endpoint) Proven(account string) Decision { return Decision{OK: true} }

// Charge is Admit for work that turns out to cost more than was charged.
func (e *Endpoint) Charge(source netip.Addr, cost Cost) Decision { return Decision{OK: true} }

// FailedProof charges a request whose proof did not hold to its source, beyond
// what it has paid. It refuses nothing; the next ones are.
func (e *Endpoint) FailedProof(source netip.Addr) {}
