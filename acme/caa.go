package acme

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
)

// What CAA records said holds for eight hours (Baseline Requirements §3.2.2.8).
// It is asked for anew an hour before, so that there is time to wait for a turn
// and for the signature.
const (
	caaLimit = 8 * time.Hour
	caaFresh = 7 * time.Hour
	// caaAgain is how old a check must be for the next one to be kept beside it.
	caaAgain = time.Hour
)

const (
	caaAtOnce  = 8                // checks of one order under way
	caaTimeout = 20 * time.Second // for all names of an order; the rest is for the next try
	caaRetry   = 30 * time.Second // after the DNS failed
)

// CAAChecks keeps when CAA records last allowed certificates.
type CAAChecks interface {
	// AuthorizationsIn returns those of the ids that are there, in any order.
	AuthorizationsIn(ctx context.Context, ids []string) ([]Authorization, error)
	// NoteCAA writes that CAA records allowed a certificate at that time for the
	// names of the authorizations. es are the entries of all names.
	NoteCAA(ctx context.Context, ids []string, at time.Time, es []audit.Entry) error
}

// A caaDuty is one name of an order whose CAA records must allow a certificate.
type caaDuty struct {
	id    ca.Identifier
	query CAAQuery
	authz string    // that of this very name, "" if it was proven by another's
	at    time.Time // of the last check of this name, zero for none
}

func (d caaDuty) stale(now time.Time) bool { return now.Sub(d.at) >= caaFresh }

// caaDuties are the names of an order that CAA applies to: not its addresses.
func (s *Server) caaDuties(ctx context.Context, o Order) ([]caaDuty, error) {
	if s.cfg.CAA == nil || !slices.ContainsFunc(o.Identifiers, func(id ca.Identifier) bool { return id.Type == ca.DNS }) {
		return nil, nil
	}
	authzs, err := s.store.AuthorizationsIn(ctx, o.AuthzIDs)
	if err != nil {
		return nil, err
	}
	var duties []caaDuty
	for _, id := range o.Identifiers {
		if id.Type == ca.DNS {
			duties = append(duties, s.caaDuty(o, id, authzs))
		}
	}
	return duties, nil
}

func (s *Server) caaDuty(o Order, id ca.Identifier, authzs []Authorization) caaDuty {
	d := caaDuty{id: id, query: CAAQuery{Name: id.Value, AccountURL: s.accountURL(o.AccountID)}}
	if base, ok := wildcardBase(id); ok {
		d.query.Name, d.query.Wildcard = base, true
	}
	for _, a := range authzs {
		switch {
		case a.name() == id:
			d.authz, d.at, d.query.Method = a.ID, a.CAAChecked, a.Challenge
			return d
		case a.Subdomains && (d.query.Name == a.Identifier.Value || below(d.query.Name, a.Identifier.Value)):
			// RFC 9444: control was proven further up. What that name's records
			// said is not about this one.
			d.query.Method = a.Challenge
		}
	}
	return d
}

// caaKnown reports whether all that CAA records said of the order's names is
// fresh, and notes in o since when.
func (s *Server) caaKnown(ctx context.Context, o *Order) (bool, error) {
	duties, err := s.caaDuties(ctx, *o)
	if err != nil {
		return false, err
	}
	o.caaAt = oldestCAA(duties, s.now())
	return !slices.ContainsFunc(duties, func(d caaDuty) bool { return d.stale(s.now()) }), nil
}

// oldestCAA is the time of the oldest check, now for none.
func oldestCAA(duties []caaDuty, now time.Time) time.Time {
	for _, d := range duties {
		if d.at.Before(now) {
			now = d.at
		}
	}
	return now
}

var errStaleCAA = errors.New("what CAA records said is too old")

// caaHolds is the last gate before the signature.
func (s *Server) caaHolds(o Order) error {
	if s.cfg.CAA != nil && s.now().Sub(o.caaAt) >= caaLimit {
		return errStaleCAA
	}
	return nil
}

// checkCAA makes the check that belongs to a validation that succeeded. Which
// names are to be certified on one for all names below, nobody knows yet: each of
// them is asked for before its certificate.
func (s *Server) checkCAA(ctx context.Context, a Authorization) (*CAARecord, *Problem) {
	if s.cfg.CAA == nil || a.Identifier.Type != ca.DNS || a.Subdomains || ca.IsOnion(a.Identifier.Value) {
		return nil, nil
	}
	rec, p := s.cfg.CAA.CheckCAA(ctx, CAAQuery{
		Name: a.Identifier.Value, Wildcard: a.Wildcard, Method: a.Challenge, AccountURL: s.accountURL(a.AccountID),
	})
	rec = boundedCAA(rec)
	return &rec, p
}

// renewCAA asks for the CAA records of a processing order anew, where what they
// said is old. It reports whether the order can be issued now; if not, it has
// ended or put off the order, or the order is still due.
func (s *Server) renewCAA(ctx context.Context, o *Order) bool {
	problem, err := s.freshCAA(ctx, o)
	switch {
	case ctx.Err() != nil:
		return false // it is still due, for whoever comes after us
	case err != nil:
		s.log.ErrorContext(ctx, "checking CAA anew", slog.String("order", o.ID), slog.Any("error", err))
		sitOut(ctx, err)
		return false
	case problem != nil:
		s.refuseCAA(ctx, *o, problem)
		return false
	}
	return true
}

// freshCAA asks anew where what CAA records said is old, and notes in o since
// when all of it holds.
func (s *Server) freshCAA(ctx context.Context, o *Order) (*Problem, error) {
	duties, err := s.caaDuties(ctx, *o)
	if err != nil {
		return nil, fmt.Errorf("reading authorizations for CAA: %w", err)
	}
	now := s.now()
	stale := slices.DeleteFunc(slices.Clone(duties), func(d caaDuty) bool { return !d.stale(now) })
	if len(stale) > 0 {
		checks := s.checkAll(ctx, stale)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		problem, err := s.judgeCAA(ctx, *o, checks, now)
		if err != nil {
			return nil, fmt.Errorf("noting CAA checks: %w", err)
		}
		if problem != nil {
			return problem, nil
		}
	}
	o.caaAt = oldestCAA(slices.DeleteFunc(duties, func(d caaDuty) bool { return d.stale(now) }), now)
	return nil, nil
}

// A caaCheck is a duty done.
type caaCheck struct {
	caaDuty
	record  CAARecord
	problem *Problem
}

// checkAll asks for all of them, some at a time, and stops when the time is up:
// what was not asked for then is a failure of the DNS.
func (s *Server) checkAll(ctx context.Context, duties []caaDuty) []caaCheck {
	ctx, cancel := context.WithTimeout(ctx, caaTimeout)
	defer cancel()
	checks := make([]caaCheck, len(duties))
	seats := make(chan struct{}, caaAtOnce)
	var wg sync.WaitGroup
	for i, d := range duties {
		seats <- struct{}{}
		wg.Go(func() {
			defer func() { <-seats }()
			checks[i] = s.checkOne(ctx, d)
		})
	}
	wg.Wait()
	return checks
}

func (s *Server) checkOne(ctx context.Context, d caaDuty) (c caaCheck) {
	c.caaDuty = d
	if ctx.Err() != nil {
		c.problem = &Problem{Type: DNSError, Detail: "there was no time left to look up CAA records"}
		return c
	}
	defer func() {
		if v := recover(); v != nil {
			s.log.ErrorContext(ctx, "panic in a CAA check", slog.Any("panic", v), slog.String("name", d.id.Value), slog.String("stack", string(debug.Stack())))
			c.problem = &Problem{Type: DNSError, Detail: "the CAA check failed inside the server"}
		}
	}()
	rec, p := s.cfg.CAA.CheckCAA(ctx, d.query)
	c.record, c.problem = boundedCAA(rec), p
	return c
}

// judgeCAA keeps what was allowed, with its evidence, and makes one problem of
// what was not. The same is not kept again and again: an order of which some names
// are allowed and others are not may come as often as it likes.
func (s *Server) judgeCAA(ctx context.Context, o Order, checks []caaCheck, at time.Time) (*Problem, error) {
	var (
		ids     []string
		entries []audit.Entry
		subs    []Problem
	)
	for _, c := range checks {
		if c.problem != nil {
			p := boundedProblem(*c.problem)
			p.Identifier = &c.id
			subs = append(subs, p)
		}
	}
	for _, c := range checks {
		// Without an authorization nothing remembers that it was checked.
		if c.problem != nil || at.Sub(c.at) < caaAgain || c.authz == "" && len(subs) > 0 {
			continue
		}
		entries = append(entries, audit.New(actor(o.AccountID), "caa.checked", "order/"+o.ID, map[string]any{"name": c.id.Value, "record": c.record}))
		if c.authz != "" {
			ids = append(ids, c.authz)
		}
	}
	if len(entries) > 0 {
		if err := s.store.NoteCAA(ctx, ids, at, entries); err != nil {
			return nil, err
		}
	}
	if len(subs) == 0 {
		return nil, nil
	}
	p := &Problem{Type: DNSError, Detail: "the CAA records of some names can't be looked up; see the subproblems", Subproblems: subs}
	for _, sub := range subs {
		switch {
		case sub.Type == CAA:
			// One name that is forbidden ends the order, whatever becomes of the others.
			p.Type, p.Detail = CAA, "CAA records do not allow this CA to issue for all names; see the subproblems"
		case sub.Type == OnionCAARequired && p.Type != CAA:
			p.Type, p.Detail = OnionCAARequired, "onionCAA has to say what the CAA records of all onion services are; see the subproblems"
		}
	}
	p.Status = p.status()
	return p, nil
}

// refuseCAA ends an order that CAA records forbid, and puts off one of whose
// records nothing is known: that is no yes, and no no.
func (s *Server) refuseCAA(ctx context.Context, o Order, p *Problem) {
	now := s.now()
	v := Verdict{DueAt: now.Add(caaRetry), PurgeAt: now.Add(s.cfg.Retention)}
	if p.Type == CAA || p.Type == OnionCAARequired { // nobody brings a word for an order that is processing
		v.Failed = p
	}
	s.log.InfoContext(ctx, "issuance stopped by CAA", slog.String("order", o.ID), slog.Bool("final", v.Failed != nil), slog.Any("error", p), slog.Any("names", subproblemNames(p)))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := s.settle(ctx, o, v); err != nil && !isMoved(err) {
		s.log.ErrorContext(ctx, "settling order", slog.String("order", o.ID), slog.Any("error", err))
	}
}

func subproblemNames(p *Problem) (names []string) {
	for _, sub := range p.Subproblems[:min(len(p.Subproblems), maxEvidence)] {
		names = append(names, fmt.Sprintf("%s: %s", sub.Identifier.Value, sub.Detail))
	}
	return names
}

func boundedCAA(rec CAARecord) CAARecord {
	rec.Records = slices.Clone(rec.Records[:min(len(rec.Records), maxEvidence)])
	for i, r := range rec.Records {
		rec.Records[i] = clip(r)
	}
	return rec
}
