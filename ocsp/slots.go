package ocsp

import (
	"context"
	"fmt"

	"github.com/secsy-pki/secsy-pki/keys"
)

// waitersPerSlot is how many may wait for each signature under way.
const waitersPerSlot = 8

// slots bound how many signatures are made at once and how many wait for their
// turn, so that no flood piles up work that nobody will wait for.
type slots struct {
	taken  chan struct{} // a token for each signature under way
	queued chan struct{} // and one for each that is under way or waits
}

func newSlots(n int) slots {
	return slots{taken: make(chan struct{}, n), queued: make(chan struct{}, n+n*waitersPerSlot)}
}

// take waits for a slot until ctx ends. When the queue is full it says
// keys.ErrBusy at once.
func (s slots) take(ctx context.Context) (give func(), err error) {
	select {
	case s.queued <- struct{}{}:
	default:
		return nil, fmt.Errorf("%w: %d signatures wait already", keys.ErrBusy, cap(s.queued))
	}
	select {
	case s.taken <- struct{}{}:
		return func() { <-s.taken; <-s.queued }, nil
	case <-ctx.Done():
		<-s.queued
		return nil, fmt.Errorf("waiting to sign: %w", ctx.Err())
	}
}

// sign has d sign r once there is a slot for it.
func (s slots) sign(ctx context.Context, d *delegate, r *response) ([]byte, error) {
	give, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	defer give()
	return d.sign(ctx, r)
}
