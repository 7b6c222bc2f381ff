package ca

import (
	"context"
	"fmt"
	"time"
)

// Settle waits until every process on this store knows of a change of status
// that was committed before, or answers from the store. Nobody is told that a
// certificate is revoked before that: another process may still say "good" from
// memory (docs/adr/0021). Many changes need to wait only once, after the last.
func (a *Authority) Settle(ctx context.Context) error {
	if a.settle == 0 {
		return nil
	}
	t := time.NewTimer(a.settle)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for all processes to know of a change of status, which is recorded: %w", ctx.Err())
	}
}
