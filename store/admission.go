package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// Budget keeps how many refusals proven identities have behind them. It is a
// ratelimit.BudgetStore.
type Budget struct{ db *DB }

// NewBudget returns the refusal budgets in db.
func NewBudget(db *DB) *Budget { return &Budget{db} }

var _ ratelimit.BudgetStore = (*Budget)(nil)

// Refusals returns the count of identity, 0 for none.
func (b *Budget) Refusals(ctx context.Context, identity string) (int, error) {
	var n int64
	err := b.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		return tx.QueryRow(ctx, `SELECT b.refusals FROM refusal_budgets b WHERE b.identity = $1`, identity).Scan(&n)
	})
	if errors.Is(err, ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading a refusal budget: %w", err)
	}
	return int(n), nil
}

// SaveRefusals replaces the count of identity; 0 forgets it.
func (b *Budget) SaveRefusals(ctx context.Context, identity string, n int) error {
	err := b.db.Write(ctx, func(ctx context.Context, tx Tx) (err error) {
		if n == 0 {
			_, err = tx.Exec(ctx, `DELETE FROM refusal_budgets WHERE identity = $1`, identity)
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO refusal_budgets (identity, refusals) VALUES ($1, $2)
			ON CONFLICT (identity) DO UPDATE SET refusals = excluded.refusals`, identity, n)
		return err
	})
	if err != nil {
		return fmt.Errorf("keeping a refusal budget: %w", err)
	}
	return nil
}
