package acme

import "context"

// Recover runs one round of what Run does for orders, and waits for it.
func (s *Server) Recover(ctx context.Context) error {
	if _, err := s.pollOrders(ctx); err != nil {
		return err
	}
	if err := s.slots.Acquire(ctx, s.cfg.FinalizeSlots); err != nil {
		return err
	}
	s.slots.Release(s.cfg.FinalizeSlots)
	return nil
}

// Sweep runs one round of cleaning.
func (s *Server) Sweep(ctx context.Context) error {
	_, err := s.sweep(ctx)
	return err
}
