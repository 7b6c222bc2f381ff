package acme

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/peer"
)

// starsEvery is how late a certificate that is due may be begun: nothing to the
// half of a lifetime that is left.
const starsEvery = 10 * time.Second

// pollStars issues the certificates that are due.
func (s *Server) pollStars(ctx context.Context) (bool, error) {
	if s.lull.room(s.now()) == 0 {
		return false, nil
	}
	due, err := s.store.DueStars(ctx, s.now(), pollBatch)
	if err != nil {
		return false, err
	}
	return workOff(ctx, due, s.recovery, func(x Star) start {
		return s.recovery.start(x.AccountID, x.OrderID, func() { s.takeStar(ctx, x) })
	})
}

func (s *Server) sweepStars(ctx context.Context) (bool, error) {
	n, err := s.store.SweepStars(ctx, s.now(), sweepBatch)
	return n >= sweepBatch, err
}

// takeStar waits for the certificate's turn, and issues it.
func (s *Server) takeStar(ctx context.Context, x Star) {
	o, err := s.store.Order(ctx, x.OrderID)
	if err != nil || o.AutoRenewal == nil {
		s.log.ErrorContext(ctx, "reading the order of a certificate to renew", slog.String("order", x.OrderID), slog.Any("error", err))
		sitOut(ctx, err)
		return
	}
	if err := s.ca.Ready(o.Profile); busy(err) {
		s.noteIssuance(ctx, err)
		s.learn(err)
		return // it is still due
	}
	o.Renewal = true
	// As for orders that wait: a seat never waits for a stranger's name server, and
	// what may not be renewed needs none.
	not := s.mayRenew(ctx, &o)
	if ctx.Err() != nil {
		return
	}
	if not == nil {
		release, err := s.seat(ctx, o)
		if err != nil {
			sitOut(ctx, err)
			return
		}
		defer release()
	}
	if !s.underway.begin() {
		return
	}
	defer s.underway.end()
	lease := s.now().Add(s.cfg.IssueTimeout + 10*time.Second)
	if err := s.store.ClaimStar(ctx, x.OrderID, x.DueAt, lease); err != nil {
		if !isMoved(err) && ctx.Err() == nil {
			s.log.ErrorContext(ctx, "taking over a certificate to renew", slog.String("order", x.OrderID), slog.Any("error", err))
			sitOut(ctx, err)
		}
		return
	}
	x.DueAt = lease
	s.renewStar(context.WithoutCancel(ctx), o, x, not)
}

// renewStar makes one attempt, unless err says why not, and decides what it means
// if it came to nothing.
func (s *Server) renewStar(ctx context.Context, o Order, x Star, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.IssueTimeout)
	defer cancel()
	led := &starLedger{s: s, order: o, star: x, period: o.AutoRenewal.periodAt(x.Begin, s.now(), x.Period+1)}
	if err == nil {
		err = s.issueStar(peer.WithIdentity(ctx, actor(o.AccountID)), o, led)
	}
	s.learn(err)
	switch {
	case err == nil:
		s.metrics.order("renewed")
		return
	case isMoved(err), led.begun:
		// Somebody else has it, it was canceled, or the ledger has put it off.
		s.log.Log(ctx, levelOf(err), "renewing a certificate", slog.String("order", o.ID), slog.Any("error", err))
		return
	case isUnproven(err), errors.Is(err, errStarAccount), forbidden(err), !retryable(err) && !passing(err):
		s.endStar(ctx, o, x, err)
		return
	}
	s.log.Log(ctx, levelOf(err), "renewing a certificate is put off", slog.String("order", o.ID), slog.Any("error", err))
	if err := s.store.PutOffStar(ctx, x.OrderID, x.DueAt, s.now().Add(backoff(x.Failures, err))); err != nil && !isMoved(err) {
		s.log.ErrorContext(ctx, "putting off a certificate to renew", slog.String("order", o.ID), slog.Any("error", err))
	}
}

// forbidden says that CAA records or the directory don't allow what they did allow.
func forbidden(err error) bool {
	p, ok := errors.AsType[*Problem](err)
	return ok && slices.Contains([]ProblemType{CAA, OnionCAARequired, RejectedIdentifier, InvalidProfile}, p.Type)
}

// mayRenew says whether the account, the directory and the names' CAA records
// still allow a certificate, and notes in o since when the latter do.
func (s *Server) mayRenew(ctx context.Context, o *Order) error {
	a, err := s.store.Account(ctx, o.AccountID)
	if err != nil {
		return err
	}
	if a.Status != AccountValid {
		return errStarAccount
	}
	if err := s.mayStill(a, *o); err != nil {
		return err
	}
	problem, err := s.freshCAA(ctx, o)
	if err != nil {
		return err
	}
	if problem != nil {
		return problem
	}
	return nil
}

// issueStar makes the certificate of a period.
func (s *Server) issueStar(ctx context.Context, o Order, led *starLedger) (err error) {
	defer func() {
		if v := recover(); v != nil {
			s.log.ErrorContext(ctx, "panic in issuance", slog.String("order", o.ID), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
			err = errPanic
		}
	}()
	if err := s.caaHolds(o); err != nil {
		return err
	}
	_, err = s.ca.Issue(ctx, ca.Request{
		Profile: o.Profile, CSR: o.CSR, Identifiers: o.Identifiers, NotAfter: o.AutoRenewal.last(led.star.Begin, led.period),
		Requester: requester(ctx, actor(o.AccountID)), Renewal: true,
	}, led)
	s.noteIssuance(ctx, err)
	return err
}

// endStar ends a row whose certificates may not be had any more. Its client
// hears of it where it looks for the next one.
func (s *Server) endStar(ctx context.Context, o Order, x Star, cause error) {
	p := *translate(inCSR(cause))
	switch {
	case isUnproven(cause):
		p = s.unproven(s.now()).Error
	case errors.Is(cause, errStarAccount):
		p = *unauthorized("the account is not valid any more")
	}
	p = boundedProblem(p)
	e := audit.New("system", "order.canceled", "order/"+o.ID, map[string]string{"account": o.AccountID, "type": string(p.Type), "detail": p.Detail})
	s.log.WarnContext(ctx, "a certificate is renewed no more", slog.String("order", o.ID), slog.String("account", o.AccountID), slog.Any("error", cause))
	if err := s.store.EndStar(ctx, x.OrderID, x.DueAt, s.now(), p, e); err != nil && !isMoved(err) {
		s.log.ErrorContext(ctx, "ending the renewal of a certificate", slog.String("order", o.ID), slog.Any("error", err))
		return
	}
	s.metrics.order("canceled")
}

// A starLedger ties one issuance to a period. One goroutine uses it.
type starLedger struct {
	s      *Server
	order  Order
	star   Star
	period int
	begun  bool
}

func (l *starLedger) Begin(ctx context.Context, in ca.Intent) error {
	now := l.s.now()
	err := l.s.store.BeginStar(ctx, StarClaim{
		OrderID: l.star.OrderID, Prev: l.star.IntentID, Lease: l.star.DueAt, Period: l.period, Now: now,
		Authzs: l.order.AuthzIDs, Since: l.s.provenSince(now),
	}, in)
	l.begun = err == nil
	return err
}

func (l *starLedger) Commit(ctx context.Context, in ca.Intent, c ca.Certificate) error {
	return l.s.store.CommitStar(ctx, l.star.OrderID, l.period, in, c, l.order.AutoRenewal.Due(l.star.Begin, l.period+1))
}

func (l *starLedger) Abort(ctx context.Context, in ca.Intent, cause error) error {
	return l.s.store.AbortStar(ctx, l.star.OrderID, in, cause, l.s.now().Add(backoff(l.star.Failures, cause)))
}
