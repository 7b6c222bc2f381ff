package acme

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
)

// TakeAllTurns takes all turns at computing for revocations, each for another source.
func (s *Server) TakeAllTurns(ctx context.Context) (release func()) {
	var all []func()
	for i := range runtime.GOMAXPROCS(0) {
		r, err := s.RevocationGate().Acquire(ctx, gate.Revocation, fmt.Sprint("source ", i))
		if err != nil {
			panic(err)
		}
		all = append(all, r)
	}
	return func() {
		for _, r := range all {
			r()
		}
	}
}

// Recover runs one round of what Run does for orders, and waits for it.
func (s *Server) Recover(ctx context.Context) error {
	if _, err := s.pollOrders(ctx); err != nil {
		return err
	}
	return s.recovery.tally.wait(ctx)
}

// CountBacklog counts what is processing, as Run does.
func (s *Server) CountBacklog(ctx context.Context) error {
	_, err := s.countBacklog(ctx)
	return err
}

// Sweep runs one round of cleaning.
func (s *Server) Sweep(ctx context.Context) error {
	_, err := s.sweep(ctx)
	return err
}

// PollIncidents reads the open incidents, as Run does.
func (s *Server) PollIncidents(ctx context.Context) error {
	_, err := s.pollIncidents(ctx)
	return err
}

// CAAHolds is the last gate before a signature for an order whose oldest check
// of CAA records was at that time.
func (s *Server) CAAHolds(at time.Time) error { return s.caaHolds(Order{caaAt: at}) }

// TellOfOrphans looks once for what belongs to directories that are gone.
func (s *Server) TellOfOrphans(ctx context.Context) error {
	_, err := s.tellOfOrphans(ctx)
	return err
}

// RenewStars runs one round of what Run does for certificates that we renew, and
// waits for it.
func (s *Server) RenewStars(ctx context.Context) error {
	if _, err := s.pollStars(ctx); err != nil {
		return err
	}
	return s.recovery.tally.wait(ctx)
}

// Narrow makes the directory allow no more than c, as a restart may.
func (s *Server) Narrow(c Scope) { s.cfg.Scope = c }
