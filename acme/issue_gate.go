package acme

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
)

// makeGates makes the gates that accounts share, and the crews that go through
// them with what waits in the database.
func (s *Server) makeGates() (err error) {
	seats := s.cfg.FinalizeSlots
	issuances := gate.Config{Seats: seats, MaxQueue: s.cfg.IssuanceQueue, MaxWait: s.cfg.FinalizeWait, Reserve: &[gate.Classes]int{gate.Renewal: seats / 4}}
	if s.issuances, err = gate.New(issuances); err != nil {
		return fmt.Errorf("acme: gate of issuances: %w", err)
	}
	// One account may use all seats while nobody else is there.
	s.lull = newLull(seats)
	s.recovery = newCrew(seats, seats, max(1, seats/4), func() int { return s.lull.room(s.now()) })

	workers := s.cfg.ValidationWorkers
	validations := gate.Config{
		Seats: workers, MaxQueue: s.cfg.ValidationQueue, Reserve: &[gate.Classes]int{},
		MaxWait: s.cfg.ValidationTimeout, // so that nobody's lease ends in the queue
	}
	if s.validationGate, err = gate.New(validations); err != nil {
		return fmt.Errorf("acme: gate of validations: %w", err)
	}
	// A validation can take as long as a stranger's server likes. So that no
	// account, nor two of them, can take all workers away, none has half of them.
	s.validators = newCrew(workers+s.cfg.ValidationQueue, max(1, (workers-1)/2), workers, nil)
	return nil
}

// IssuanceGate is where finalized orders wait for their turn to be issued.
func (s *Server) IssuanceGate() *gate.Gate { return s.issuances }

// ValidationGate is where validations wait for their turn.
func (s *Server) ValidationGate() *gate.Gate { return s.validationGate }

// seat waits for a turn to issue o. The seat belongs to who issues, and is given
// back when that has ended.
func (s *Server) seat(ctx context.Context, o Order) (release func(), err error) {
	class := gate.Issuance
	if o.Renewal {
		class = gate.Renewal
	}
	return s.issuances.Acquire(ctx, class, o.AccountID)
}

// sitOut waits as long as a gate that turned the crew's work away wants, so that
// nobody asks it in a loop.
func sitOut(ctx context.Context, err error) {
	wait := time.Second
	if r, ok := errors.AsType[*gate.Refused](err); ok {
		wait = min(max(wait, r.RetryAfter), pollEvery)
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
