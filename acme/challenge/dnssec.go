package challenge

import (
	"context"
	"fmt"
	"time"

	"github.com/miekg/dns"
)

const (
	trustFor   = time.Minute     // a proof that the resolver validates
	distrust   = 5 * time.Second // after one that failed: no flood of probes
	signedZone = "."             // signed since 2010, and every validator's anchor
)

// dnssec keeps what is known of the resolver. The resolver does the work: it
// answers SERVFAIL for what is bogus, with AD for what is signed, and without AD
// for what is proven to be in an unsigned zone. All three look alike where
// nothing is validated; so it has to show again and again that it does.
type dnssec struct {
	turn  chan struct{} // holds one: whoever took it may touch what follows
	until time.Time
	err   error
}

func newDNSSEC() *dnssec {
	d := &dnssec{turn: make(chan struct{}, 1)}
	d.turn <- struct{}{}
	return d
}

// check probes the resolver, if the last probe is too old. A nil d finds nothing wrong.
func (d *dnssec) check(ctx context.Context, r *resolver) error {
	if d == nil {
		return nil
	}
	select {
	case <-d.turn:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errTimeout, ctx.Err())
	}
	defer func() { d.turn <- struct{}{} }()
	now := time.Now()
	if now.Before(d.until) {
		return d.err
	}
	err := probe(ctx, r)
	if err != nil && ctx.Err() != nil {
		return err // which says nothing of the resolver
	}
	d.err, d.until = err, now.Add(trustFor)
	if err != nil {
		d.until = now.Add(distrust)
	}
	return err
}

// probe asks for what every validating resolver can prove.
func probe(ctx context.Context, r *resolver) error {
	answer, err := r.ask(ctx, signedZone, dns.TypeSOA)
	switch {
	case err != nil:
		return fmt.Errorf("%w: asking it for the root's SOA: %w", errNoAD, err)
	case !answer.AuthenticatedData || len(recordsAt(answer.Answer, signedZone, dns.TypeSOA)) == 0:
		return fmt.Errorf("%w: its answer for the root's SOA has no AD bit", errNoAD)
	}
	return nil
}

// note counts what an answer was.
func (q *inquiry) note(answer *dns.Msg) {
	if answer.AuthenticatedData {
		q.secure.Add(1)
	} else {
		q.insecure.Add(1)
	}
}

// state is what evidence says of the lookups so far.
func (q *inquiry) state() string {
	switch {
	case q.dnssec == nil || q.secure.Load()+q.insecure.Load() == 0:
		return ""
	case q.insecure.Load() > 0:
		return "insecure"
	}
	return "secure"
}

// CheckResolver says whether the resolver does what is required of it. Without
// RequireDNSSEC nothing is.
func (v *Validator) CheckResolver(ctx context.Context) error {
	return v.resolver.dnssec.check(ctx, v.resolver)
}
