package store

import (
	"context"
	"fmt"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
)

const starColumns = `t.order_id, t.account_id, t.begin_at, t.period, t.certificate_id, t.intent_id, t.due_at, t.failures`

func scanStar(row Row) (acme.Star, error) {
	var (
		x                            acme.Star
		begin, period, due, failures int64
	)
	err := row.Scan(&x.OrderID, &x.AccountID, &begin, &period, &x.CertificateID, &x.IntentID, &due, &failures)
	x.Begin, x.Period, x.DueAt, x.Failures = fromMicros(begin), int(period), fromMicros(due), int(failures)
	return x, err
}

// beginStar is for an order whose first certificate is just being recorded.
func (s *ACME) beginStar(ctx context.Context, tx Tx, a *acme.AutoRenewal, orderID string, done completed, c ca.Certificate) error {
	begin := a.BeginOf(c.NotAfter)
	_, err := tx.Exec(ctx, `INSERT INTO acme_stars (order_id, account_id, directory, begin_at, period, certificate_id, due_at, purge_at)
		VALUES ($1, $2, $3, $4, 0, $5, $6, $7)`, orderID, done.account, s.directory, micros(begin), c.ID, micros(a.Due(begin, 1)), done.keep)
	if err != nil {
		return err
	}
	return markStar(ctx, tx, c.Serial)
}

func markStar(ctx context.Context, tx Tx, serial ca.Serial) error {
	_, err := tx.Exec(ctx, `UPDATE certificates SET auto_renewed = 1 WHERE serial = $1`, string(serial))
	return err
}

// Star returns the row of an order.
func (s *ACME) Star(ctx context.Context, orderID string) (x acme.Star, err error) {
	err = s.one(ctx, "reading renewal", func(r Row) (err error) { x, err = scanStar(r); return err },
		`SELECT `+starColumns+` FROM acme_stars t WHERE t.order_id = $1 AND t.directory = $2`, orderID, s.directory)
	return x, err
}

// OpenStars counts the rows of an account that go on or may yet begin.
func (s *ACME) OpenStars(ctx context.Context, accountID string, now time.Time) (n int, err error) {
	err = s.one(ctx, "counting renewals", func(r Row) error {
		var x int64
		err := r.Scan(&x)
		n = int(x)
		return err
	}, `SELECT (SELECT COUNT(*) FROM acme_stars t WHERE t.account_id = $1 AND t.due_at <> 0)
		+ (SELECT COUNT(*) FROM acme_orders o WHERE o.account_id = $1 AND o.status IN ('pending', 'ready') AND o.auto_renewal <> '' AND o.expires > $2)
		+ (SELECT COUNT(*) FROM acme_orders o WHERE o.account_id = $1 AND o.status = 'processing' AND o.auto_renewal <> '' AND o.directory = $3)`,
		accountID, micros(now), s.directory)
	return n, err
}

// DueStars lists rows in which there is something to do.
func (s *ACME) DueStars(ctx context.Context, now time.Time, limit int) ([]acme.Star, error) {
	return many(ctx, s.db, "listing due renewals", scanStar,
		`SELECT `+starColumns+` FROM acme_stars t WHERE t.directory = $1 AND t.due_at <> 0 AND t.due_at <= $2 ORDER BY t.due_at, t.order_id LIMIT $3`,
		s.directory, micros(now), int64(limit))
}

// ClaimStar takes a row that is due.
func (s *ACME) ClaimStar(ctx context.Context, orderID string, old, until time.Time) error {
	return s.write(ctx, "claiming renewal", func(ctx context.Context, tx Tx) error {
		return move(ctx, tx, nil, `UPDATE acme_stars SET due_at = $1 WHERE order_id = $2 AND due_at = $3 AND due_at <> 0`,
			micros(until), orderID, micros(old))
	})
}

// BeginStar records what is to be signed for a period.
func (s *ACME) BeginStar(ctx context.Context, c acme.StarClaim, in ca.Intent) error {
	return s.write(ctx, "claiming period", func(ctx context.Context, tx Tx) error {
		const mine = ` WHERE order_id = $1 AND due_at = $2 AND due_at <> 0 AND intent_id = $3 AND period < $4`
		err := move(ctx, tx, nil, `UPDATE acme_stars SET intent_id = $5`+mine,
			c.OrderID, micros(c.Lease), c.Prev, int64(c.Period), in.ID)
		if err != nil {
			return err
		}
		holds, args := proven(acme.Claim{Now: c.Now, Since: c.Since, Authzs: c.Authzs}, 1)
		var n int64
		if err := tx.QueryRow(ctx, `SELECT CASE WHEN `+holds+` THEN 1 ELSE 0 END`, args...).Scan(&n); err != nil {
			return err
		}
		if n == 0 {
			return acme.ErrUnproven
		}
		return beginIntent(ctx, tx, in)
	})
}

// CommitStar makes a certificate the newest of its row.
func (s *ACME) CommitStar(ctx context.Context, orderID string, period int, in ca.Intent, c ca.Certificate, due time.Time) error {
	return s.write(ctx, "completing period", func(ctx context.Context, tx Tx) error {
		// A row that was canceled meanwhile stays so: the certificate is recorded,
		// and nobody is given it.
		n, err := tx.Exec(ctx, `UPDATE acme_stars SET period = $1, certificate_id = $2, intent_id = '', failures = 0,
				due_at = CASE WHEN canceled_at <> 0 THEN due_at ELSE $3 END
			WHERE order_id = $4 AND intent_id = $5 AND period < $1`,
			int64(period), c.ID, micros(due), orderID, in.ID)
		if err != nil {
			return err
		}
		if n == 0 {
			return ca.ErrLeaseLost
		}
		if err := markStar(ctx, tx, in.Serial); err != nil {
			return err
		}
		return commitIntent(ctx, tx, in, c)
	})
}

// AbortStar ends an intent, and puts its row off.
func (s *ACME) AbortStar(ctx context.Context, orderID string, in ca.Intent, cause error, due time.Time) error {
	return s.write(ctx, "aborting period", func(ctx context.Context, tx Tx) error {
		_, err := tx.Exec(ctx, `UPDATE acme_stars SET intent_id = '', failures = failures + 1, due_at = CASE WHEN canceled_at <> 0 THEN due_at ELSE $1 END
			WHERE order_id = $2 AND intent_id = $3`, micros(due), orderID, in.ID)
		if err != nil {
			return err
		}
		return abortIntent(ctx, tx, in, cause)
	})
}

// PutOffStar gives a row back.
func (s *ACME) PutOffStar(ctx context.Context, orderID string, lease, due time.Time) error {
	return s.write(ctx, "putting off renewal", func(ctx context.Context, tx Tx) error {
		return move(ctx, tx, nil, `UPDATE acme_stars SET due_at = $1, failures = failures + 1 WHERE order_id = $2 AND due_at = $3 AND due_at <> 0`,
			micros(due), orderID, micros(lease))
	})
}

// CancelStar ends a row for its client.
func (s *ACME) CancelStar(ctx context.Context, orderID string, now time.Time, e audit.Entry) error {
	return s.write(ctx, "canceling renewal", func(ctx context.Context, tx Tx) error {
		// One whose last certificate is there already can still be canceled.
		return move(ctx, tx, &e, `UPDATE acme_stars SET due_at = 0, canceled_at = $1 WHERE order_id = $2 AND canceled_at = 0`,
			micros(now), orderID)
	})
}

// EndStar ends a row that may not go on.
func (s *ACME) EndStar(ctx context.Context, orderID string, lease, now time.Time, p acme.Problem, e audit.Entry) error {
	return s.write(ctx, "ending renewal", func(ctx context.Context, tx Tx) error {
		err := move(ctx, tx, &e, `UPDATE acme_stars SET due_at = 0, canceled_at = $1 WHERE order_id = $2 AND due_at = $3 AND due_at <> 0`,
			micros(now), orderID, micros(lease))
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE acme_orders SET error = $1 WHERE id = $2`, problemJSON(&p), orderID)
		return err
	})
}

// SweepStars deletes rows that ended long ago.
func (s *ACME) SweepStars(ctx context.Context, now time.Time, limit int) (n int, err error) {
	err = s.write(ctx, "sweeping renewals", func(ctx context.Context, tx Tx) error {
		x, err := tx.Exec(ctx, `DELETE FROM acme_stars WHERE order_id IN
			(SELECT t.order_id FROM acme_stars t WHERE t.purge_at <= $1 ORDER BY t.purge_at LIMIT $2)`, micros(now), int64(limit))
		n = int(x)
		return err
	})
	return n, err
}

// completed is what CommitIssue finds of the order.
type completed struct {
	replaces, renewal, account string
	keep                       int64
}

// follow does what else a certificate means that is just being recorded.
func (s *ACME) follow(ctx context.Context, tx Tx, orderID string, c completed, cert ca.Certificate) error {
	if c.replaces != "" {
		if err := replaced(ctx, tx, acme.CertID(c.replaces), cert.Serial); err != nil {
			return err
		}
	}
	a, err := acme.ReadAutoRenewal(c.renewal)
	if err != nil || a == nil {
		return err
	}
	if err := s.beginStar(ctx, tx, a, orderID, c, cert); err != nil {
		return fmt.Errorf("beginning renewal: %w", err)
	}
	return nil
}
