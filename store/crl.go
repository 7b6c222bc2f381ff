package store

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/crl"
)

// CRL keeps CRLs and their numbers. It is a crl.Store.
type CRL struct{ db *DB }

// NewCRL returns the CRLs in db.
func NewCRL(db *DB) *CRL { return &CRL{db} }

var _ crl.Store = (*CRL)(nil)

// Head returns what is published, and whether it is complete, as of now. What
// has changed is read first, so that it never claims more than a list read later
// holds.
func (c *CRL) Head(ctx context.Context, s crl.Scope) (crl.Head, error) {
	var h crl.Head
	err := c.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		h = crl.Head{}
		var seq int64
		err := tx.QueryRow(ctx, `SELECT r.seq FROM revocation_heads r WHERE r.issuer = $1`, string(s.Issuer)).Scan(&seq)
		if err != nil && !errors.Is(err, ErrNoRows) {
			return fmt.Errorf("reading the number of the last change: %w", err)
		}
		h.Seq = crl.Seq(seq)
		covered, deltaCovered, err := readHead(ctx, tx, s, &h)
		if err != nil {
			return err
		}
		if h.Changed, err = changed(ctx, tx, s, covered, h.Seq); err != nil || h.Delta == 0 {
			return err
		}
		h.DeltaChanged, err = changed(ctx, tx, s, deltaCovered, h.Seq)
		return err
	})
	if err != nil {
		return crl.Head{}, fmt.Errorf("reading CRL head: %w", err)
	}
	return h, nil
}

// readHead reads what is published of s, and what the complete CRL and the delta cover.
func readHead(ctx context.Context, tx Tx, s crl.Scope, h *crl.Head) (covered, deltaCovered crl.Seq, err error) {
	var (
		published, this, scheduledAt, seq     int64
		base, baseThis, baseNext, baseSeq     int64
		delta, deltaThis, deltaBase, deltaSeq int64
	)
	err = tx.QueryRow(ctx, `SELECT h.published, l.this_update, h.scheduled_at, l.seq,
			COALESCE(b.number, 0), COALESCE(b.this_update, 0), COALESCE(b.next_update, 0), COALESCE(b.seq, 0),
			COALESCE(d.number, 0), COALESCE(d.this_update, 0), COALESCE(d.base, 0), COALESCE(d.seq, 0)
		FROM crl_heads h JOIN crls l ON l.issuer = h.issuer AND l.number = h.published
			LEFT JOIN crls b ON b.issuer = h.issuer AND b.number = h.scheduled
			LEFT JOIN crls d ON d.issuer = h.issuer AND d.number = h.delta
		WHERE h.issuer = $1`, s.String()).
		Scan(&published, &this, &scheduledAt, &seq, &base, &baseThis, &baseNext, &baseSeq, &delta, &deltaThis, &deltaBase, &deltaSeq)
	if errors.Is(err, ErrNoRows) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	h.UpdatedAt = fromMicros(max(this, deltaThis))
	h.Published, h.ScheduledAt = crl.Number(published), fromMicros(scheduledAt)
	h.Base = crl.Base{Number: crl.Number(base), ThisUpdate: fromMicros(baseThis), NextUpdate: fromMicros(baseNext), Seq: crl.Seq(baseSeq)}
	h.Delta, h.DeltaAt, h.DeltaBase = crl.Number(delta), fromMicros(deltaThis), crl.Number(deltaBase)
	return crl.Seq(seq), crl.Seq(deltaSeq), nil
}

// changed says whether something of s changed after covered, now being the
// number of the issuer's last change.
func changed(ctx context.Context, tx Tx, s crl.Scope, covered, now crl.Seq) (bool, error) {
	if s.Shard == 0 || now <= covered {
		return now > covered, nil
	}
	var one int64
	err := tx.QueryRow(ctx, shardChanged, string(s.Issuer), int64(covered), int64(s.Shard)).Scan(&one)
	if errors.Is(err, ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// shardChanged reads no more than what changed since the shard's last CRL.
const shardChanged = `SELECT 1 FROM certificates c
	WHERE c.issuer = $1 AND c.revocation_seq > $2 AND c.revocation_seq > 0 AND c.crl_shard = $3 LIMIT 1`

// Latest returns the CRL last published.
func (c *CRL) Latest(ctx context.Context, s crl.Series) (crl.CRL, error) {
	var (
		number, base, thisUpdate, nextUpdate, entries, seq int64
		body                                               string
		l                                                  = crl.CRL{Scope: s.Scope}
	)
	last := `published`
	if s.Delta {
		last = `delta`
	}
	err := c.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		return tx.QueryRow(ctx, `SELECT l.number, l.base, l.this_update, l.next_update, l.entries, l.seq, l.octets, l.body
			FROM crl_heads h JOIN crls l ON l.issuer = h.issuer AND l.number = h.`+last+`
			WHERE h.issuer = $1`, s.String()).
			Scan(&number, &base, &thisUpdate, &nextUpdate, &entries, &seq, &l.Octets, &body)
	})
	if errors.Is(err, ErrNoRows) {
		return crl.CRL{}, crl.ErrNone
	}
	if err != nil {
		return crl.CRL{}, fmt.Errorf("reading CRL: %w", err)
	}
	l.Number, l.Base, l.Entries, l.Seq = crl.Number(number), crl.Number(base), int(entries), crl.Seq(seq)
	l.Body = crl.BodyID(body)
	l.ThisUpdate, l.NextUpdate = fromMicros(thisUpdate), fromMicros(nextUpdate)
	return l, nil
}

// Reserve takes the next number and the lease in one statement: of two that
// come together, one finds the lease taken.
func (c *CRL) Reserve(ctx context.Context, s crl.Scope, l crl.Lease) (crl.Number, error) {
	var n int64
	err := c.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		return tx.QueryRow(ctx, `INSERT INTO crl_heads (issuer, number, lease_until) VALUES ($1, $2, $3)
			ON CONFLICT (issuer) DO UPDATE SET
				number = CASE WHEN crl_heads.number < excluded.number THEN excluded.number ELSE crl_heads.number + 1 END,
				lease_until = excluded.lease_until
			WHERE crl_heads.lease_until <= $4
			RETURNING number`,
			s.String(), int64(l.Floor), micros(l.Until), micros(l.Now)).Scan(&n)
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
func (c *CRL) Release(ctx context.Context, s crl.Scope, n crl.Number) error {
	err := c.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		_, err := tx.Exec(ctx, `UPDATE crl_heads SET lease_until = 0 WHERE issuer = $1 AND number = $2`, s.String(), int64(n))
		return err
	})
	if err != nil {
		return fmt.Errorf("releasing CRL number %d: %w", n, err)
	}
	return nil
}

// matches writes a selection as a condition on certificates, with its values.
func matches(s crl.Selection) (cond string, args []any) {
	if s.Delta {
		cond, args = `c.issuer = $1 AND c.revocation_seq > 0 AND c.revocation_seq > $2`, []any{string(s.Issuer), int64(s.Since)}
	} else {
		cond = `c.issuer = $1 AND c.revoked_at <> 0 AND (c.not_after >= $2 OR c.revocation_seq > $3)`
		args = []any{string(s.Issuer), micros(s.ExpiredBy), int64(s.Seen)}
	}
	if s.Shard != 0 {
		args = append(args, int64(s.Shard))
		cond += ` AND c.crl_shard <> 0 AND c.crl_shard = $` + strconv.Itoa(len(args))
	}
	return cond, args
}

// Revoked gives out what s selects in the order of serials, from one transaction
// that lasts as long as they are taken. Complete lists are read in the order of an
// index; deltas, which are short, are sorted by the database.
func (c *CRL) Revoked(ctx context.Context, s crl.Selection) iter.Seq2[crl.Entry, error] {
	cond, args := matches(s)
	return func(yield func(crl.Entry, error) bool) {
		err := c.db.Read(ctx, func(ctx context.Context, tx Tx) error {
			rows, err := tx.Query(ctx, `SELECT c.serial, c.revoked_at, c.reason, c.invalidity_at
				FROM certificates c WHERE `+cond+` ORDER BY c.serial`, args...)
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
		if at == 0 {
			e = crl.Entry{Serial: e.Serial, Reason: ca.RemoveFromCRL}
		}
		if !yield(e, nil) {
			return errEnough
		}
	}
	return rows.Err()
}

// StillRevoked asks for each of serials whether Revoked would give it out.
func (c *CRL) StillRevoked(ctx context.Context, s crl.Selection, serials []ca.Serial) ([]ca.Serial, error) {
	cond, args := matches(s)
	args = append(args, "")
	var still []ca.Serial
	err := c.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		still = nil
		for _, s := range serials {
			args[len(args)-1] = string(s)
			var one int64
			err := tx.QueryRow(ctx, `SELECT 1 FROM certificates c WHERE `+cond+` AND c.serial = $`+strconv.Itoa(len(args)), args...).Scan(&one)
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
		if err := moveHead(ctx, tx, p); err != nil {
			return err
		}
		n, err := tx.Exec(ctx, `UPDATE crl_bodies SET published = 1 WHERE id = $1 AND octets = $2 AND published = 0`, string(p.Body), p.Octets)
		if err != nil {
			return fmt.Errorf("publishing the octets of CRL %d: %w", p.Number, err)
		}
		if n == 0 {
			return crl.ErrIncomplete
		}
		// Nobody looks at the counts any more.
		_, err = tx.Exec(ctx, `INSERT INTO crls (issuer, number, base, this_update, next_update, entries, seq, octets, body, revocations, compromises)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0, 0)`,
			p.String(), int64(p.Number), int64(p.Base), micros(p.ThisUpdate), micros(p.NextUpdate), int64(p.Entries), int64(p.Seq),
			p.Octets, string(p.Body))
		if err != nil {
			return fmt.Errorf("keeping CRL %d: %w", p.Number, err)
		}
		if err := dropOld(ctx, tx, p); err != nil {
			return err
		}
		return appendAudit(ctx, tx, p.Audit)
	})
}

// dropOld drops what is beyond the last p.Keep of p's series, octets first. The
// CRL that deltas are based on stays, however many came after it.
func dropOld(ctx context.Context, tx Tx, p crl.Publication) error {
	const old = `l.issuer = $1 AND (l.base = 0) = (CAST($2 AS BIGINT) = 0) AND l.number NOT IN (
			SELECT k.number FROM crls k WHERE k.issuer = $1 AND (k.base = 0) = (CAST($2 AS BIGINT) = 0) ORDER BY k.number DESC LIMIT $3)
		AND l.number NOT IN (SELECT h.scheduled FROM crl_heads h WHERE h.issuer = $1)`
	args := []any{p.String(), int64(p.Base), int64(p.Keep)}
	if _, err := tx.Exec(ctx, `DELETE FROM crl_bodies WHERE id IN (SELECT l.body FROM crls l WHERE `+old+`)`, args...); err != nil {
		return fmt.Errorf("dropping the octets of old CRLs: %w", err)
	}
	if _, err := tx.Exec(ctx, `DELETE FROM crls AS l WHERE `+old, args...); err != nil {
		return fmt.Errorf("dropping old CRLs: %w", err)
	}
	return nil
}

// moveHead makes p the latest, by a number that is above all of its scope. The
// lease ends only if it is still p's.
func moveHead(ctx context.Context, tx Tx, p crl.Publication) error {
	var complete, scheduled, delta int64
	switch {
	case p.Base != 0:
		delta = int64(p.Number)
	case p.Scheduled:
		complete, scheduled = int64(p.Number), micros(p.ThisUpdate)
	default:
		complete = int64(p.Number)
	}
	n, err := tx.Exec(ctx, `UPDATE crl_heads SET
			published = CASE WHEN CAST($2 AS BIGINT) > 0 THEN CAST($2 AS BIGINT) ELSE published END,
			delta = CASE WHEN CAST($3 AS BIGINT) > 0 THEN CAST($3 AS BIGINT) ELSE delta END,
			scheduled = CASE WHEN CAST($4 AS BIGINT) > 0 THEN CAST($2 AS BIGINT) ELSE scheduled END,
			scheduled_at = CASE WHEN CAST($4 AS BIGINT) > 0 THEN CAST($4 AS BIGINT) ELSE scheduled_at END,
			lease_until = CASE WHEN number = $1 THEN 0 ELSE lease_until END
		WHERE issuer = $5 AND published < $1 AND delta < $1 AND number >= $1`,
		int64(p.Number), complete, delta, scheduled, p.String())
	if err != nil {
		return fmt.Errorf("publishing CRL %d: %w", p.Number, err)
	}
	if n == 0 {
		return crl.ErrSuperseded
	}
	return nil
}
