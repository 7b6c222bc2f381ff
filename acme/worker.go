package acme

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
)

const (
	pollEvery   = 2 * time.Second  // for what waits in the database
	sweepEvery  = 30 * time.Second // and at once again while there is a full batch
	pollBatch   = 64
	sweepBatch  = 500
	maxAttempts = 10 // of a validation whose process ended each time
)

// A queue hands started validations to workers. It is only a shortcut: what it
// has no room for is found in the database when its lease ends.
type queue struct {
	ch   chan claimed
	hold time.Duration
}

// claimed is a validation and the lease it is ours by.
type claimed struct {
	id    string
	lease time.Time
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

// validationLease is long enough for one validation and some waiting in the queue.
func validationLease(timeout time.Duration) time.Duration { return 2*timeout + 10*time.Second }

// Run validates, issues what was put off or left behind by a process that
// ended, and sweeps. It returns when ctx ends, after the work under way: a
// validation is given back, an issuance is finished. Requests that finalize an
// order later than that park it for the next start.
func (s *Server) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for range s.cfg.ValidationWorkers {
		wg.Go(func() { s.validateLoop(ctx) })
	}
	wg.Go(func() { s.every(ctx, pollEvery, nil, s.pollValidations) })
	wg.Go(func() { s.every(ctx, pollEvery, s.dueOrders, s.pollOrders) })
	wg.Go(func() { s.every(ctx, sweepEvery, nil, s.sweep) })
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

// drain takes every slot, and keeps them.
func (s *Server) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.IssueTimeout+5*time.Second)
	defer cancel()
	if err := s.slots.Acquire(ctx, s.cfg.FinalizeSlots); err != nil {
		return fmt.Errorf("waiting for issuances under way: %w", err)
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
	n, err := s.store.Sweep(ctx, Sweep{Now: now, Closing: Closing{Error: orderExpired(), PurgeAt: now.Add(s.cfg.Retention)}, Limit: sweepBatch})
	return n >= sweepBatch, err
}

// pollOrders takes over orders that are processing and that nobody works on.
func (s *Server) pollOrders(ctx context.Context) (bool, error) {
	due, err := s.store.DueOrders(ctx, s.now(), pollBatch)
	if err != nil {
		return false, err
	}
	for _, o := range due {
		if err := s.slots.Acquire(ctx, 1); err != nil {
			return false, err
		}
		until := s.now().Add(s.cfg.IssueTimeout + 10*time.Second)
		if err := s.store.ClaimDue(ctx, o.ID, o.DueAt, until); err != nil {
			s.slots.Release(1)
			if isMoved(err) {
				continue
			}
			return false, err
		}
		o.DueAt = until
		if o.IntentID != "" { // as ClaimDue has counted it
			o.Attempts, o.Deaths = max(o.Attempts-1, 0), o.Deaths+1
		}
		go func() {
			defer s.slots.Release(1)
			s.resume(context.WithoutCancel(ctx), o)
		}()
	}
	return len(due) == pollBatch, nil
}

// pollValidations takes over validations whose lease ended.
func (s *Server) pollValidations(ctx context.Context) (bool, error) {
	due, err := s.store.DueValidations(ctx, s.now(), pollBatch)
	if err != nil {
		return false, err
	}
	for _, a := range due {
		lease := s.now().Add(s.validations.hold) // the one before may have waited for room
		if err := s.store.TakeLease(ctx, a.ID, a.Lease, lease); err != nil {
			if isMoved(err) {
				continue
			}
			return false, err
		}
		select {
		case s.validations.ch <- claimed{a.ID, lease}:
		case <-ctx.Done():
			s.giveBack(ctx, a.ID, lease)
			return false, ctx.Err()
		}
	}
	return len(due) == pollBatch, nil
}

func (s *Server) validateLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			s.giveBackQueued(ctx)
			return
		case c := <-s.validations.ch:
			if err := s.validate(ctx, c); err != nil && !isMoved(err) {
				s.log.ErrorContext(ctx, "validating", slog.String("authorization", c.id), slog.Any("error", err))
			}
		}
	}
}

func (s *Server) giveBackQueued(ctx context.Context) {
	for {
		select {
		case c := <-s.validations.ch:
			s.giveBack(ctx, c.id, c.lease)
		default:
			return
		}
	}
}

// giveBack lets somebody else, or our next start, validate at once.
func (s *Server) giveBack(ctx context.Context, id string, lease time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := s.store.GiveBackLease(ctx, id, lease, s.now()); err != nil && !isMoved(err) {
		s.log.WarnContext(ctx, "giving back a validation", slog.String("authorization", id), slog.Any("error", err))
	}
}

// validate makes one validation and writes its outcome.
func (s *Server) validate(ctx context.Context, c claimed) error {
	a, err := s.store.Authorization(ctx, c.id)
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
	rec, problem := s.look(ctx, a)
	if ctx.Err() != nil {
		s.giveBack(ctx, c.id, c.lease)
		return nil
	}
	return s.finishValidation(ctx, a, c.lease, rec, problem)
}

func (s *Server) renew(ctx context.Context, c claimed) (time.Time, error) {
	until := s.now().Add(s.validations.hold)
	return until, s.store.ExtendLease(ctx, c.id, c.lease, until)
}

// look asks the validator, within bounds.
func (s *Server) look(ctx context.Context, a Authorization) (rec ValidationRecord, problem *Problem) {
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
	acct, err := s.store.Account(ctx, a.AccountID)
	if err != nil {
		s.log.ErrorContext(ctx, "reading account for validation", slog.String("account", a.AccountID), slog.Any("error", err))
		return rec, &Problem{Type: ServerInternal, Detail: "the validation failed inside the server"}
	}
	return s.cfg.Validator.Validate(ctx, Validation{
		Type: a.Challenge, Identifier: a.Identifier, Token: a.Token, AccountID: a.AccountID,
		KeyAuthorization: a.Token + "." + acct.Thumbprint,
	})
}

func (s *Server) finishValidation(ctx context.Context, a Authorization, lease time.Time, rec ValidationRecord, problem *Problem) error {
	now := s.now()
	v := Validated{
		AuthzID: a.ID, OrderID: a.OrderID, Lease: lease, At: now,
		Expires: now.Add(s.cfg.AuthzLifetime), PurgeAt: now.Add(s.cfg.AuthzLifetime + s.cfg.Retention),
	}
	outcome := "valid"
	if problem != nil {
		outcome = string(problem.Type)
		p := boundedProblem(*problem)
		v.Failed, v.Expires, v.PurgeAt = &p, a.Expires, a.PurgeAt
		v.Closing = Closing{Error: aboutName(p, a.name()), PurgeAt: now.Add(s.cfg.Retention)}
	}
	rec = boundedRecord(rec)
	e := audit.New(actor(a.AccountID), "authorization.validated", "authorization/"+a.ID, map[string]any{
		"order": a.OrderID, "name": a.name().Value, "record": rec,
	})
	// The outcome is known: shutting down must not lose it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err := s.store.FinishValidation(ctx, v, e); err != nil {
		return err
	}
	s.metrics.validations.WithLabelValues(string(a.Challenge), outcome).Inc()
	if problem != nil {
		s.log.InfoContext(ctx, "validation failed", slog.String("authorization", a.ID), slog.String("name", a.name().Value),
			slog.String("challenge", string(a.Challenge)), slog.String("account", a.AccountID), slog.Any("record", rec), slog.Any("error", problem))
	}
	return nil
}

const (
	maxEvidence = 16   // addresses and URLs of one record
	maxText     = 1024 // of one text in it
)

func boundedRecord(rec ValidationRecord) ValidationRecord {
	rec.URLs = slices.Clone(rec.URLs[:min(len(rec.URLs), maxEvidence)])
	rec.Addrs = rec.Addrs[:min(len(rec.Addrs), maxEvidence)]
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
