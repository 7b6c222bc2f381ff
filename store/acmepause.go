package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
)

// countFailure counts a validation that failed, and pauses what has failed too
// often. A proof since the failure before, or too long a time, begins a new row
// of them.
func countFailure(ctx context.Context, tx Tx, f acme.Failure) error {
	const anew = `(acme_failures.last_at < $6 OR EXISTS (SELECT 1 FROM acme_authzs z WHERE z.account_id = acme_failures.account_id
		AND z.name = acme_failures.name AND z.type = acme_failures.type AND z.status = 'valid' AND z.validated_at > acme_failures.last_at))`
	var n, paused int64
	err := tx.QueryRow(ctx, `INSERT INTO acme_failures (account_id, type, name, failures, last_at, sweep_at) VALUES ($1, $2, $3, 1, $4, $5)
		ON CONFLICT (account_id, type, name) DO UPDATE SET last_at = excluded.last_at,
			failures = CASE WHEN `+anew+` THEN 1 ELSE acme_failures.failures + 1 END,
			paused_at = CASE WHEN `+anew+` THEN 0 ELSE acme_failures.paused_at END,
			sweep_at = CASE WHEN acme_failures.paused_at = 0 OR `+anew+` THEN excluded.sweep_at ELSE acme_failures.sweep_at END
		RETURNING failures, paused_at`,
		f.AccountID, string(f.Identifier.Type), f.Identifier.Value, micros(f.At), micros(f.At.Add(f.Period)), micros(f.At.Add(-f.Period))).Scan(&n, &paused)
	if err != nil || paused != 0 || n < int64(f.Limit) {
		return err
	}
	return move(ctx, tx, &f.Paused, `UPDATE acme_failures SET paused_at = $1, sweep_at = $2 WHERE account_id = $3 AND type = $4 AND name = $5`,
		micros(f.At), micros(f.At.Add(f.Lasts)), f.AccountID, string(f.Identifier.Type), f.Identifier.Value)
}

// stillPaused is of f: nothing has been proven since.
const stillPaused = `f.paused_at <> 0 AND NOT EXISTS (SELECT 1 FROM acme_authzs z WHERE z.account_id = f.account_id
	AND z.name = f.name AND z.type = f.type AND z.status = 'valid' AND z.validated_at > f.paused_at)`

const pauseColumns = `f.type, f.name, f.failures, f.paused_at`

func scanPause(row Row) (acme.Pause, error) {
	var (
		p   acme.Pause
		typ string
		n   int64
		at  int64
	)
	err := row.Scan(&typ, &p.Identifier.Value, &n, &at)
	p.Identifier.Type, p.Failures, p.At = ca.IdentifierType(typ), int(n), fromMicros(at)
	return p, err
}

// pausedOf returns those of ids that are paused for an account.
func pausedOf(ctx context.Context, tx Tx, accountID string, ids []ca.Identifier) ([]acme.Pause, error) {
	var out []acme.Pause
	for chunk := range slices.Chunk(ids, nameRows) {
		args := []any{accountID}
		var in strings.Builder
		for i, id := range chunk {
			if i > 0 {
				in.WriteString(", ")
			}
			args = append(args, id.Value)
			fmt.Fprintf(&in, "$%d", len(args))
		}
		rows, err := tx.Query(ctx, `SELECT `+pauseColumns+` FROM acme_failures f WHERE f.account_id = $1 AND f.name IN (`+in.String()+`) AND `+stillPaused+` ORDER BY f.name`, args...)
		if err != nil {
			return nil, err
		}
		for rows.Next() {
			p, err := scanPause(rows)
			if err != nil {
				rows.Close()
				return nil, err
			}
			if slices.Contains(chunk, p.Identifier) {
				out = append(out, p)
			}
		}
		if rows.Close(); rows.Err() != nil {
			return nil, rows.Err()
		}
	}
	return out, nil
}

// Paused returns those of ids that are paused for an account.
func (s *ACME) Paused(ctx context.Context, accountID string, ids []ca.Identifier) (out []acme.Pause, err error) {
	err = s.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		out, err = pausedOf(ctx, tx, accountID, ids)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("looking for pauses: %w", err)
	}
	return out, nil
}

// ListPaused returns what is paused for an account, by name.
func (s *ACME) ListPaused(ctx context.Context, accountID string, limit int) ([]acme.Pause, error) {
	return many(ctx, s.db, "listing pauses", scanPause,
		`SELECT `+pauseColumns+` FROM acme_failures f WHERE f.account_id = $1 AND `+stillPaused+` ORDER BY f.name, f.type LIMIT $2`, accountID, int64(limit))
}

// Unpause ends pauses of an account.
func (s *ACME) Unpause(ctx context.Context, u acme.Unpausing) (int, error) {
	var n int64
	err := s.write(ctx, "ending pauses", func(ctx context.Context, tx Tx) (err error) {
		n, err = tx.Exec(ctx, `DELETE FROM acme_failures WHERE paused_at <> 0 AND (account_id, type, name) IN
			(SELECT f.account_id, f.type, f.name FROM acme_failures f WHERE f.account_id = $1 AND f.paused_at <> 0 LIMIT $2)`,
			u.AccountID, int64(u.Limit))
		if err != nil || n == 0 {
			return err
		}
		return appendAudit(ctx, tx, u.Entry(int(n)))
	})
	return int(n), err
}

// Secret returns the secret of that name, which is fresh unless there is one.
func (s *ACME) Secret(ctx context.Context, name string, fresh []byte) (secret []byte, err error) {
	err = s.write(ctx, "keeping a secret", func(ctx context.Context, tx Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO acme_secrets (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING`, name, fresh); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT s.value FROM acme_secrets s WHERE s.name = $1`, name).Scan(&secret)
	})
	return secret, err
}

// whyNotOrdered says why the insert of an order with these authorizations did nothing.
// Nil: the account has pauses, of which the order needs none.
func whyNotOrdered(ctx context.Context, tx Tx, o acme.Order, as []acme.Authorization, pausing bool) error {
	if !pausing {
		return acme.ErrTooManyOpen
	}
	var any int64
	err := tx.QueryRow(ctx, `SELECT COUNT(*) FROM (SELECT 1 FROM acme_failures f WHERE f.account_id = $1 AND f.paused_at <> 0 LIMIT 1) one`, o.AccountID).Scan(&any)
	if err != nil {
		return err
	}
	if any == 0 {
		return acme.ErrTooManyOpen
	}
	var ids []ca.Identifier
	for _, a := range as {
		if !slices.Contains(ids, a.Identifier) {
			ids = append(ids, a.Identifier)
		}
	}
	paused, err := pausedOf(ctx, tx, o.AccountID, ids)
	if err == nil && len(paused) > 0 {
		err = &acme.PausedError{Pauses: paused}
	}
	return err
}

// sweepFailures is a step of Sweep.
const sweepFailures = `DELETE FROM acme_failures WHERE sweep_at <= $1 AND (account_id, type, name) IN
	(SELECT f.account_id, f.type, f.name FROM acme_failures f WHERE f.sweep_at <= $1 ORDER BY f.sweep_at LIMIT $2)`
