package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
)

// SaveNonces replaces the state of an instance's nonces.
func (s *ACME) SaveNonces(ctx context.Context, st acme.NonceState) error {
	return s.write(ctx, "saving nonces", func(ctx context.Context, tx Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO acme_nonces (directory, instance, saved_at, state) VALUES ($1, $2, $3, $4)
			ON CONFLICT (directory, instance) DO UPDATE SET saved_at = excluded.saved_at, state = excluded.state`,
			st.Directory, st.Instance, micros(st.SavedAt), st.State)
		return err
	})
}

// TakeNonces removes the state of an instance's nonces and returns it.
func (s *ACME) TakeNonces(ctx context.Context, directory, instance string, since time.Time) (acme.NonceState, error) {
	var st acme.NonceState
	err := s.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		// Those of instances that never came back, and ours if it is too old.
		if _, err := tx.Exec(ctx, `DELETE FROM acme_nonces WHERE saved_at < $1`, micros(since)); err != nil {
			return err
		}
		st = acme.NonceState{Directory: directory, Instance: instance}
		var at int64
		// Of two at once, one deletes the row, and the other finds none.
		err := tx.QueryRow(ctx, `DELETE FROM acme_nonces WHERE directory = $1 AND instance = $2 RETURNING saved_at, state`, directory, instance).Scan(&at, &st.State)
		if errors.Is(err, ErrNoRows) {
			st.State = nil // the old ones are to go, whether or not there is one
			return nil
		}
		st.SavedAt = fromMicros(at)
		return err
	})
	if err != nil {
		return acme.NonceState{}, fmt.Errorf("taking nonces: %w", err)
	}
	if st.State == nil {
		return acme.NonceState{}, acme.ErrNotFound
	}
	return st, nil
}
