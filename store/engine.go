package store

import (
	"context"
	"errors"
)

var (
	// ErrClosed says that the engine was closed.
	ErrClosed = errors.New("store: closed")
	// ErrNested says that Write or Read was called inside of another one, which
	// could wait for itself.
	ErrNested = errors.New("store: transaction inside of a transaction")
	// ErrUnknownOutcome says that the connection was lost while a commit was
	// under way: it may have happened.
	ErrUnknownOutcome = errors.New("store: it is not known whether the transaction was committed")
)

type enteredKey struct{ e Engine }

// Enter is for engines: it returns the context for a function that e runs in a
// transaction, or ErrNested when ctx is such a context already.
func Enter(ctx context.Context, e Engine) (context.Context, error) {
	key := enteredKey{e}
	if ctx.Value(key) != nil {
		return nil, ErrNested
	}
	return context.WithValue(ctx, key, true), nil
}
