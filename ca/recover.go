package ca

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// recoverBatch is how many intents recovery reads at once.
const recoverBatch = 100

// farFuture is after every lease.
var farFuture = date(9999, time.December, 31)

// Recover abandons the issuances whose lease has ended: nobody knows whether
// they were signed, so they count as revoked and appear on the CRL. It returns
// how many there were.
func (a *Authority) Recover(ctx context.Context) (int, error) {
	return a.abandonBefore(ctx, a.now())
}

// RecoverAll abandons every unfinished issuance whatever its lease. It is for
// the start of a process that has its database to itself: the leases there are
// belong to the dead.
func (a *Authority) RecoverAll(ctx context.Context) (int, error) {
	return a.abandonBefore(ctx, farFuture)
}

func (a *Authority) abandonBefore(ctx context.Context, deadline time.Time) (int, error) {
	var n int
	for {
		found, err := a.store.Expired(ctx, deadline, recoverBatch)
		if err != nil {
			return n, fmt.Errorf("looking for unfinished issuances: %w", err)
		}
		for _, in := range found {
			abandoned, err := a.abandon(ctx, in, deadline)
			if err != nil {
				return n, err
			}
			if abandoned {
				n++
			}
		}
		if len(found) < recoverBatch {
			return n, nil
		}
	}
}

// errUnfinished is the cause of an abandonment by recovery.
var errUnfinished = errors.New("found unfinished after its lease")

func (a *Authority) abandon(ctx context.Context, in Intent, deadline time.Time) (bool, error) {
	by := Requester{Actor: "system"}
	e := by.entry(ActionAbandoned, in.Serial, abortDetail{ID: in.ID, Cause: causeText(errUnfinished)})
	err := a.store.Abandon(ctx, in.Serial, deadline, e)
	switch {
	case errors.Is(err, ErrLeaseLost):
		return false, nil // its owner, or another replica, was faster
	case err != nil:
		return false, fmt.Errorf("abandoning certificate %s: %w", in.Serial, err)
	}
	a.metrics.abandoned.Inc()
	a.log.WarnContext(ctx, "abandoned an unfinished issuance", slog.String("serial", string(in.Serial)), slog.String("profile", in.Profile))
	a.tellRevoked(Revoked{Issuer: in.Issuer, Serial: in.Serial, Reason: AbandonedReason, At: e.At})
	return true, nil
}

// Run recovers at once and then from time to time, until ctx ends.
func (a *Authority) Run(ctx context.Context) error {
	tick := time.NewTicker(a.lease / 2)
	defer tick.Stop()
	for {
		if _, err := a.Recover(ctx); err != nil && ctx.Err() == nil {
			a.log.ErrorContext(ctx, "recovering unfinished issuances", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
