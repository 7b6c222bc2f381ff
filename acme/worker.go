package acme

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/gate"
)

const (
	pollEvery   = 2 * time.Second  // for what waits in the database
	sweepEvery  = 30 * time.Second // and at once again while there is a full batch
	pollBatch   = 256
	sweepBatch  = 500
	maxAttempts = 10 // of a validation whose process ended each time
)

// A queue hands validations that a client started to the crew. It is only a
// shortcut: what it has no room for is found in the database when its lease ends.
type queue struct {
	ch   chan claimed
	hold time.Duration
}

// claimed is a validation and the lease it is ours by.
type claimed struct {
	id      string
	account string
	lease   time.Time
	begun   *begun // nil: by an earlier request, or by another process
}

// begun is a validation that a request waits for, and what that request knows.
type begun struct {
	authz      Authorization
	thumbprint string             // of the account
	outcome    chan Authorization // has room for one; closed if none is known
}

func newQueue(n int, hold time.Duration) *queue {
	return &queue{ch: make(chan claimed, n), hold: hold}
}

// lease says how long a validation that starts now is ours: none if the queue
// is full, so that whoever has time first takes it.
func (q *queue) lease(now time.Time) time.Time {
	if len(q.ch) == cap(q.ch) {
		return now
	}
	return now.Add(q.hold)
}

func (q *queue) offer(c claimed) bool {
	select {
	case q.ch <- c:
		return true
	default:
		return false
	}
}

// validationLease is long enough for one validation and the wait for its turn.
func validationLease(timeout time.Duration) time.Duration { return 2*timeout + 10*time.Second }

// Run validates, issues what was put off or left behind by a process that
// ended, and sweeps, for this server, the first, and all beside it. It returns when ctx ends, after the work under way: a
// validation is given back, an issuance is finished. Requests that finalize an
// order later than that park it for the next start.
func (s *Server) Run(ctx context.Context) error {
	if s.cfg.Beside != nil {
		return errors.New("acme: the first server runs for all")
	}
	var wg sync.WaitGroup
	for _, d := range s.servers() {
		wg.Go(func() { d.dispatchValidations(ctx) })
		wg.Go(func() { d.every(ctx, pollEvery, d.dueValidations, d.pollValidations) })
		wg.Go(func() { d.every(ctx, pollEvery, d.dueOrders, d.pollOrders) })
		wg.Go(func() { d.every(ctx, incidentsEvery, nil, d.pollIncidents) })
		wg.Go(func() { d.every(ctx, starsEvery, nil, d.pollStars) })
	}
	wg.Go(func() { s.every(ctx, pollEvery, nil, s.countBacklog) })
	wg.Go(func() { s.every(ctx, sweepEvery, nil, s.sweepStars) })
	wg.Go(func() { s.every(ctx, sweepEvery, nil, s.sweep) })
	wg.Go(func() { s.every(ctx, orphansEvery, nil, s.tellOfOrphans) })
	wg.Wait()
	return s.drain(ctx)
}

// TakeOver makes all that is under way due at once, whatever its lease. It is
// for the start of a process that has its database to itself: the leases there
// are belong to the dead.
func (s *Server) TakeOver(ctx context.Context) error {
	if err := s.store.EndLeases(ctx, s.now()); err != nil {
		return fmt.Errorf("taking over from an earlier run: %w", err)
	}
	return nil
}

// drain waits for all that is under way, and lets nothing more begin.
func (s *Server) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.IssueTimeout+5*time.Second)
	defer cancel()
	s.underway.close()
	for _, t := range []*tally{&s.validators.tally, &s.recovery.tally, &s.underway} {
		if err := t.wait(ctx); err != nil {
			return fmt.Errorf("waiting for what is under way: %w", err)
		}
	}
	return nil
}

// every calls f at once, then at each tick and hint, and again while it reports more.
func (s *Server) every(ctx context.Context, d time.Duration, hint <-chan struct{}, f func(context.Context) (more bool, err error)) {
	t := time.NewTicker(d)
	defer t.Stop()
	for {
		more, err := f(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.ErrorContext(ctx, "ACME background work", slog.Any("error", err))
			more = false
		}
		if more && ctx.Err() == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-hint:
		}
	}
}

func (s *Server) sweep(ctx context.Context) (bool, error) {
	now := s.now()
	n, err := s.store.Sweep(ctx, Sweep{Now: now, Closing: Closing{Error: OrderExpired(), PurgeAt: now.Add(s.cfg.Retention)}, Limit: sweepBatch})
	return n >= sweepBatch, err
}

// workOff starts all of list, some of them as soon as there is room. It gives up
// after a while, because who came meanwhile may be due a turn before the rest.
// More says that it makes sense to list again at once.
func workOff[T any](ctx context.Context, list []T, c *crew, start func(T) start) (more bool, err error) {
	patience := time.NewTimer(pollEvery)
	defer patience.Stop()
	full := len(list) == pollBatch
	for begun := 0; ; {
		var rest []T
		for _, x := range list {
			switch start(x) {
			case started:
				begun++
			case noRoom:
				rest = append(rest, x)
			}
		}
		if len(rest) == 0 {
			return full && begun > 0, nil
		}
		list = rest
		select {
		case <-c.freed:
		case <-patience.C:
			return begun > 0, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// pollOrders takes over orders that are processing and that nobody works on.
func (s *Server) pollOrders(ctx context.Context) (bool, error) {
	if s.lull.room(s.now()) == 0 {
		return false, nil
	}
	due, err := s.store.DueOrders(ctx, s.now(), s.recovery.lastTurn(), pollBatch)
	if err != nil {
		return false, err
	}
	return workOff(ctx, due, s.recovery, func(o Order) start {
		return s.recovery.start(o.AccountID, o.ID, func() { s.takeOver(ctx, o) })
	})
}

// takeOver waits for the order's turn, as its client would, and goes on with it.
// While the device is known to be away it is left as it is, however long that
// takes: not even a write is spent on it.
func (s *Server) takeOver(ctx context.Context, o Order) {
	if err := s.ca.Ready(o.Profile); busy(err) && s.now().Before(o.Expires) {
		s.noteIssuance(ctx, err)
		s.learn(err)
		return
	}
	// Before the seat is taken: that is for signatures, and never waits for a
	// stranger's name server. Orders that end anyhow need no answer.
	if s.now().Before(o.Expires) && o.Deaths < maxDeaths && !s.renewCAA(ctx, &o) {
		return
	}
	release, err := s.seat(ctx, o)
	if err != nil {
		sitOut(ctx, err) // it is still due
		return
	}
	defer release()
	if !s.underway.begin() {
		return
	}
	defer s.underway.end()
	until := s.now().Add(s.cfg.IssueTimeout + 10*time.Second)
	if err := s.store.ClaimDue(ctx, o.ID, o.DueAt, until); err != nil {
		if !isMoved(err) && ctx.Err() == nil {
			s.log.ErrorContext(ctx, "taking over an order", slog.String("order", o.ID), slog.Any("error", err))
			sitOut(ctx, err)
		}
		return
	}
	o.DueAt = until
	if o.IntentID != "" { // as ClaimDue has counted it
		o.Attempts, o.Deaths = max(o.Attempts-1, 0), o.Deaths+1
	}
	s.resume(context.WithoutCancel(ctx), o)
}

// pollValidations takes over validations whose lease ended.
func (s *Server) pollValidations(ctx context.Context) (bool, error) {
	due, err := s.store.DueValidations(ctx, s.now(), s.validators.lastTurn(), pollBatch)
	if err != nil {
		return false, err
	}
	return workOff(ctx, due, s.validators, func(a Authorization) start {
		return s.validators.start(a.AccountID, a.ID, func() { s.takeValidation(ctx, a) })
	})
}

func (s *Server) takeValidation(ctx context.Context, a Authorization) {
	lease := s.now().Add(s.validations.hold)
	if err := s.store.TakeLease(ctx, a.ID, a.Lease, lease); err != nil {
		if !isMoved(err) && ctx.Err() == nil {
			s.log.ErrorContext(ctx, "taking over a validation", slog.String("authorization", a.ID), slog.Any("error", err))
			sitOut(ctx, err)
		}
		return
	}
	s.validateInTurn(ctx, claimed{id: a.ID, account: a.AccountID, lease: lease})
}

// dispatchValidations starts what clients say is ready, as far as there is room. The rest
// takes its turn with what is in the database.
func (s *Server) dispatchValidations(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			s.giveBackQueued(ctx)
			return
		case c := <-s.validations.ch:
			if s.validators.start(c.account, c.id, func() { s.validateInTurn(ctx, c) }) == noRoom {
				s.giveBack(ctx, c)
			}
		}
	}
}

// validateInTurn waits for the validation's turn.
func (s *Server) validateInTurn(ctx context.Context, c claimed) {
	release, err := s.validationGate.Acquire(ctx, gate.Issuance, c.account)
	if err != nil {
		s.giveBack(ctx, c)
		sitOut(ctx, err)
		return
	}
	defer release()
	if err := s.validate(ctx, c); err != nil && !isMoved(err) {
		s.log.ErrorContext(ctx, "validating", slog.String("authorization", c.id), slog.Any("error", err))
	}
}

func (s *Server) giveBackQueued(ctx context.Context) {
	for {
		select {
		case c := <-s.validations.ch:
			s.giveBack(ctx, c)
		default:
			return
		}
	}
}

// giveBack lets somebody else, or our next start, validate at once.
func (s *Server) giveBack(ctx context.Context, c claimed) {
	if c.begun != nil {
		close(c.begun.outcome)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := s.store.GiveBackLease(ctx, c.id, c.lease, s.now()); err != nil && !isMoved(err) {
		s.log.WarnContext(ctx, "giving back a validation", slog.String("authorization", c.id), slog.Any("error", err))
	}
	hint(s.dueValidations)
}

// validate makes one validation and writes its outcome.
func (s *Server) validate(ctx context.Context, c claimed) error {
	a, thumbprint, err := s.readClaimed(ctx, c)
	if err != nil {
		return err
	}
	if a.Status != AuthzPending || a.Challenge == "" || !a.Lease.Equal(c.lease) {
		return nil // somebody else has it, or it was deactivated
	}
	if left := c.lease.Sub(s.now()); left < s.cfg.ValidationTimeout {
		if c.lease, err = s.renew(ctx, c); err != nil {
			return err
		}
	}
	from := s.now()
	rec, problem := s.look(ctx, a, thumbprint)
	if ctx.Err() != nil {
		s.giveBack(ctx, c)
		return nil
	}
	now, err := s.finishValidation(ctx, a, c.lease, from, rec, problem)
	if err == nil && c.begun != nil {
		c.begun.outcome <- now
	}
	return err
}

// readClaimed returns what is to be validated, and the thumbprint of its account's
// key. What the request knew that began it is read anew only once it has waited: if
// it is no longer ours, its outcome counts for nothing.
func (s *Server) readClaimed(ctx context.Context, c claimed) (a Authorization, thumbprint string, err error) {
	if b := c.begun; b != nil && s.now().Sub(b.authz.Lease.Add(-s.validations.hold)) < fresh {
		return b.authz, b.thumbprint, nil
	}
	if a, err = s.store.Authorization(ctx, c.id); err != nil {
		return a, "", err
	}
	acct, err := s.store.Account(ctx, a.AccountID)
	return a, acct.Thumbprint, err
}

// fresh is how long what a request read needs not be read again before somebody
// is asked.
const fresh = time.Second

func (s *Server) renew(ctx context.Context, c claimed) (time.Time, error) {
	until := s.now().Add(s.validations.hold)
	return until, s.store.ExtendLease(ctx, c.id, c.lease, until)
}

// look asks the validator, within bounds.
func (s *Server) look(ctx context.Context, a Authorization, thumbprint string) (rec ValidationRecord, problem *Problem) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ValidationTimeout)
	defer cancel()
	rec = ValidationRecord{Type: a.Challenge, Name: a.Identifier.Value, At: s.now()}
	defer func() {
		if v := recover(); v != nil {
			s.log.ErrorContext(ctx, "panic in validation", slog.Any("panic", v), slog.String("authorization", a.ID))
			problem = &Problem{Type: ServerInternal, Detail: "the validation failed inside the server"}
		}
	}()
	if a.Attempts > maxAttempts {
		return rec, &Problem{Type: ServerInternal, Detail: "the validation was begun several times and never ended"}
	}
	rec, problem = s.cfg.Validator.Validate(ctx, Validation{
		Type: a.Challenge, Identifier: a.Identifier, Wildcard: a.Wildcard || a.Subdomains, Token: a.Token,
		KeyAuthorization: a.Token + "." + thumbprint,
		AccountID:        a.AccountID, AccountURL: s.accountURL(a.AccountID), Answer: a.Answer, IssuedAt: a.CreatedAt,
	})
	if problem == nil {
		rec.CAA, problem = s.checkCAA(ctx, a)
	}
	return rec, problem
}

// finishValidation writes the outcome and returns the authorization with it.
func (s *Server) finishValidation(ctx context.Context, a Authorization, lease, from time.Time, rec ValidationRecord, problem *Problem) (Authorization, error) {
	now := s.now()
	v := Validated{
		AuthzID: a.ID, OrderID: a.OrderID, Lease: lease, At: now,
		AttestedKey: rec.AttestedKey,
		Expires:     now.Add(s.authzLife(now)), PurgeAt: now.Add(s.authzLife(now) + s.cfg.Retention + purgeSlack),
	}
	if !rec.Until.IsZero() && rec.Until.Before(v.Expires) {
		v.Expires = rec.Until
	}
	if rec.CAA != nil && problem == nil {
		v.CAAAt = from
	}
	outcome, action := "valid", "authorization.validated"
	if problem != nil {
		outcome = string(problem.Type)
		p := boundedProblem(*problem)
		v.Failed, v.Expires, v.PurgeAt = &p, a.Expires, a.PurgeAt
		v.Closing = Closing{Error: aboutName(p, a.name()), PurgeAt: now.Add(s.cfg.Retention)}
		if v.Contested = errors.Is(problem, ErrContested); v.Contested {
			action = "authorization.contested"
		}
		v.Failure = s.failure(a, p, now)
	}
	rec = boundedRecord(rec)
	e := audit.New(actor(a.AccountID), action, "authorization/"+a.ID, map[string]any{
		"order": a.OrderID, "name": a.name().Value, "record": rec,
	})
	// The outcome is known: shutting down must not lose it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err := s.store.FinishValidation(ctx, v, e); err != nil {
		return a, err
	}
	s.metrics.validations.WithLabelValues(string(a.Challenge), outcome).Inc()
	if problem != nil {
		s.log.InfoContext(ctx, "validation failed", slog.String("authorization", a.ID), slog.String("name", a.name().Value),
			slog.String("challenge", string(a.Challenge)), slog.String("account", a.AccountID), slog.Any("record", rec), slog.Any("error", problem))
	}
	return v.of(a), nil
}

const (
	maxEvidence = 16   // addresses and URLs of one record
	maxText     = 1024 // of one text in it
)

func boundedRecord(rec ValidationRecord) ValidationRecord {
	rec.URLs = slices.Clone(rec.URLs[:min(len(rec.URLs), maxEvidence)])
	rec.Addrs = rec.Addrs[:min(len(rec.Addrs), maxEvidence)]
	rec.Records = slices.Clone(rec.Records[:min(len(rec.Records), maxEvidence)])
	for i, r := range rec.Records {
		rec.Records[i] = clip(r)
	}
	for i, u := range rec.URLs {
		rec.URLs[i] = clip(u)
	}
	return rec
}

func boundedProblem(p Problem) Problem {
	p.Detail, p.Status = clip(p.Detail), p.status()
	return p
}

func clip(s string) string { return s[:min(len(s), maxText)] }
