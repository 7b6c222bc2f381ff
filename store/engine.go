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
	// ErrRowsOpen says that a statement was begun before the rows of the last
	// query were closed.
	ErrRowsOpen = errors.New("store: rows of the last query are still open")
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
