package ocsp

import (
	"context"
	"sync"
	"time"
)

// A term is a context that ends at a time of its own, if not before. As most of
// what is done with it is over before anybody would wait for its end, the timer is
// not set before somebody does. It is to be closed.
type term struct {
	context.Context // of the caller

	end time.Time

	mu     sync.Mutex         // guards what follows
	timed  context.Context    //nolint:containedctx // nil: nobody has asked for Done
	cancel context.CancelFunc // of timed
	closed bool
}

func newTerm(ctx context.Context, length time.Duration) *term {
	return &term{Context: ctx, end: time.Now().Add(length)}
}

// Deadline implements context.Context.
func (t *term) Deadline() (time.Time, bool) {
	if end, ok := t.Context.Deadline(); ok && end.Before(t.end) {
		return end, true
	}
	return t.end, true
}

// Done implements context.Context.
func (t *term) Done() <-chan struct{} { return t.watched().Done() }

func (t *term) watched() context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timed == nil {
		t.timed, t.cancel = context.WithDeadline(t.Context, t.end)
		if t.closed {
			t.cancel()
		}
	}
	return t.timed
}

// Err implements context.Context.
func (t *term) Err() error {
	t.mu.Lock()
	timed, closed := t.timed, t.closed
	t.mu.Unlock()
	switch err := t.Context.Err(); {
	case timed != nil:
		return timed.Err()
	case err != nil:
		return err
	case !time.Now().Before(t.end):
		return t.watched().Err() // which has ended, for Done to agree
	case closed:
		return context.Canceled
	}
	return nil
}

// close ends it, and its timer.
func (t *term) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if t.cancel != nil {
		t.cancel()
	}
}
