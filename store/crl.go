package store

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/crl"
)

// CRL keeps CRLs and their numbers. It is a crl.Store.
type CRL struct{ db *DB }

// NewCRL returns the CRLs in db.
func NewCRL(db *DB) *CRL { return &CRL{db} }

var _ crl.Store = (*CRL)(nil)

// Head returns what is published and what is revoked, as of now. The counts are
// read first, so that they never claim more than a list read later holds.
func (c *CRL) Head(ctx context.Context, issuer ca.IssuerID) (crl.Head, error) {
	var h crl.Head
	err := c.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		h = crl.Head{}
		err := tx.QueryRow(ctx, `SELECT COUNT(*), COUNT(CASE WHEN c.reason = $2 THEN 1 END)
			FROM certificates c WHERE c.issuer = $1 AND c.revoked_at <> 0`, string(issuer), int64(ca.KeyCompromise)).
			Scan(&h.Count.Revocations, &h.Count.Compromises)
		if err != nil {
			return fmt.Errorf("counting revocations: %w", err)
		}
		var published, scheduledAt int64
		err = tx.QueryRow(ctx, `SELECT h.published, h.scheduled_at, l.revocations, l.compromises
			FROM crl_heads h JOIN crls l ON l.issuer = h.issuer AND l.number = h.published
			WHERE h.issuer = $1`, string(issuer)).
			Scan(&published, &scheduledAt, &h.Covered.Revocations, &h.Covered.Compromises)
		if errors.Is(err, ErrNoRows) {
			return nil
		}
		h.Published, h.ScheduledAt = crl.Number(published), fromMicros(scheduledAt)
		return err
	})
	if err != nil {
		return crl.Head{}, fmt.Errorf("reading CRL head: %w", err)
	}
	return h, nil
}

// Latest returns the CRL last published.
func (c *CRL) Latest(ctx context.Context, issuer ca.IssuerID) (crl.CRL, error) {
	var (
		number, thisUpdate, nextUpdate, entries int64
		body                                    string
		l                                       = crl.CRL{Issuer: issuer}
	)
	err := c.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		return tx.QueryRow(ctx, `SELECT l.number, l.this_update, l.next_update, l.entries, l.revocations, l.compromises, l.octets, l.body
			FROM crl_heads h JOIN crls l ON l.issuer = h.issuer AND l.number = h.published
			WHERE h.issuer = $1`, string(issuer)).
			Scan(&number, &thisUpdate, &nextUpdate, &entries, &l.Count.Revocations, &l.Count.Compromises, &l.Octets, &body)
	})
	if errors.Is(err, ErrNoRows) {
		return crl.CRL{}, crl.ErrNone
	}
	if err != nil {
		return crl.CRL{}, fmt.Errorf("reading CRL: %w", err)
	}
	l.Number, l.Entries, l.Body = crl.Number(number), int(entries), crl.BodyID(body)
	l.ThisUpdate, l.NextUpdate = fromMicros(thisUpdate), fromMicros(nextUpdate)
	return l, nil
}

// Reserve takes the next number and the lease in one statement: of two that
// come together, one finds the lease taken.
func (c *CRL) Reserve(ctx context.Context, issuer ca.IssuerID, l crl.Lease) (crl.Number, error) {
	var n int64
	err := c.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		return tx.QueryRow(ctx, `INSERT INTO crl_heads (issuer, number, lease_until) VALUES ($1, $2, $3)
			ON CONFLICT (issuer) DO UPDATE SET
				number = CASE WHEN crl_heads.number < excluded.number THEN excluded.number ELSE crl_heads.number + 1 END,
				lease_until = excluded.lease_until
			WHERE crl_heads.lease_until <= $4
			RETURNING number`,
			string(issuer), int64(l.Floor), micros(l.Until), micros(l.Now)).Scan(&n)
	})
	if errors.Is(err, ErrNoRows) {
		return 0, crl.ErrHeld
	}
	if err != nil {
		return 0, fmt.Errorf("reserving CRL number: %w", err)
	}
	return crl.Number(n), nil
}

// Release ends the lease that came with n, if it still runs.
func (c *CRL) Release(ctx context.Context, issuer ca.IssuerID, n crl.Number) error {
	err := c.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		_, err := tx.Exec(ctx, `UPDATE crl_heads SET lease_until = 0 WHERE issuer = $1 AND number = $2`, string(issuer), int64(n))
		return err
	})
	if err != nil {
		return fmt.Errorf("releasing CRL number %d: %w", n, err)
	}
	return nil
}

// Revoked gives out the revoked certificates of one issuer in the order of
// serials, from one transaction that lasts as long as they are taken.
func (c *CRL) Revoked(ctx context.Context, issuer ca.IssuerID, cutoff time.Time) iter.Seq2[crl.Entry, error] {
	return func(yield func(crl.Entry, error) bool) {
		err := c.db.Read(ctx, func(ctx context.Context, tx Tx) error {
			rows, err := tx.Query(ctx, `SELECT c.serial, c.revoked_at, c.reason, c.invalidity_at FROM certificates c
				WHERE c.issuer = $1 AND c.revoked_at <> 0 AND (c.not_after >= $2 OR c.revoked_at >= $2)
				ORDER BY c.serial`, string(issuer), micros(cutoff))
			if err != nil {
				return err
			}
			defer rows.Close()
			return yieldEntries(rows, yield)
		})
		if err != nil && !errors.Is(err, errEnough) {
			yield(crl.Entry{}, fmt.Errorf("listing revoked certificates: %w", err))
		}
	}
}

// errEnough says that whoever took entries wants no more.
var errEnough = errors.New("store: no more entries are wanted")

func yieldEntries(rows Rows, yield func(crl.Entry, error) bool) error {
	var (
		serial              string
		at, reason, invalid int64
	)
	for rows.Next() {
		if err := rows.Scan(&serial, &at, &reason, &invalid); err != nil {
			return err
		}
		e := crl.Entry{Serial: ca.Serial(serial), RevokedAt: fromMicros(at), Reason: ca.Reason(reason), InvalidAt: fromMicros(invalid)}
		if !yield(e, nil) {
			return errEnough
		}
	}
	return rows.Err()
}

// StillRevoked asks for each of serials whether Revoked would give it out.
func (c *CRL) StillRevoked(ctx context.Context, issuer ca.IssuerID, serials []ca.Serial, cutoff time.Time) ([]ca.Serial, error) {
	var still []ca.Serial
	err := c.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		still = nil
		for _, s := range serials {
			var one int64
			err := tx.QueryRow(ctx, `SELECT 1 FROM certificates c
				WHERE c.serial = $3 AND c.issuer = $1 AND c.revoked_at <> 0 AND (c.not_after >= $2 OR c.revoked_at >= $2)`,
				string(issuer), micros(cutoff), string(s)).Scan(&one)
			switch {
			case err == nil:
				still = append(still, s)
			case !errors.Is(err, ErrNoRows):
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("asking what is still revoked: %w", err)
	}
	return still, nil
}

// Publish makes p the latest CRL and drops those beyond the last p.Keep. That
// the octets are published locks them against Drop, and says whether they are all
// there.
func (c *CRL) Publish(ctx context.Context, p crl.Publication) error {
	return c.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		var scheduledAt int64
		if p.Scheduled {
			scheduledAt = micros(p.ThisUpdate)
		}
		// The lease ends only if it is still this CRL's.
		n, err := tx.Exec(ctx, `UPDATE crl_heads SET published = $1,
				lease_until = CASE WHEN number = $1 THEN 0 ELSE lease_until END,
				scheduled_at = CASE WHEN CAST($2 AS BIGINT) > 0 THEN CAST($2 AS BIGINT) ELSE scheduled_at END
			WHERE issuer = $3 AND published < $1 AND number >= $1`,
			int64(p.Number), scheduledAt, string(p.Issuer))
		if err != nil {
			return fmt.Errorf("publishing CRL %d: %w", p.Number, err)
		}
		if n == 0 {
			return crl.ErrSuperseded
		}
		n, err = tx.Exec(ctx, `UPDATE crl_bodies SET published = 1 WHERE id = $1 AND octets = $2 AND published = 0`, string(p.Body), p.Octets)
		if err != nil {
			return fmt.Errorf("publishing the octets of CRL %d: %w", p.Number, err)
		}
		if n == 0 {
			return crl.ErrIncomplete
		}
		_, err = tx.Exec(ctx, `INSERT INTO crls (issuer, number, this_update, next_update, entries, revocations, compromises, octets, body)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
			string(p.Issuer), int64(p.Number), micros(p.ThisUpdate), micros(p.NextUpdate), int64(p.Entries),
			p.Count.Revocations, p.Count.Compromises, p.Octets, string(p.Body))
		if err != nil {
			return fmt.Errorf("keeping CRL %d: %w", p.Number, err)
		}
		_, err = tx.Exec(ctx, `DELETE FROM crl_bodies WHERE id IN (
				SELECT l.body FROM crls l WHERE l.issuer = $1 AND l.number NOT IN (
					SELECT k.number FROM crls k WHERE k.issuer = $1 ORDER BY k.number DESC LIMIT $2))`,
			string(p.Issuer), int64(p.Keep))
		if err != nil {
			return fmt.Errorf("dropping the octets of old CRLs: %w", err)
		}
		_, err = tx.Exec(ctx, `DELETE FROM crls WHERE issuer = $1 AND number NOT IN (
				SELECT k.number FROM crls k WHERE k.issuer = $1 ORDER BY k.number DESC LIMIT $2)`,
			string(p.Issuer), int64(p.Keep))
		if err != nil {
			return fmt.Errorf("dropping old CRLs: %w", err)
		}
		return appendAudit(ctx, tx, p.Audit)
	})
}
