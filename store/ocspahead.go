package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ocsp"
)

// Claim takes a lease by compare-and-swap, in one statement.
func (o *OCSP) Claim(ctx context.Context, work, holder string, now, until time.Time) (bool, error) {
	var n int64
	err := o.db.Write(ctx, func(ctx context.Context, tx Tx) (err error) {
		n, err = tx.Exec(ctx, `INSERT INTO ocsp_leases (work, holder, lease_until) VALUES ($1, $2, $3)
			ON CONFLICT (work) DO UPDATE SET holder = excluded.holder, lease_until = excluded.lease_until
			WHERE ocsp_leases.holder = excluded.holder OR ocsp_leases.lease_until <= $4`,
			work, holder, micros(until), micros(now))
		return err
	})
	if err != nil {
		return false, fmt.Errorf("claiming %s: %w", work, err)
	}
	return n == 1, nil
}

// Leave ends a lease that is still holder's.
func (o *OCSP) Leave(ctx context.Context, work, holder string) error {
	err := o.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM ocsp_leases WHERE work = $1 AND holder = $2`, work, holder)
		return err
	})
	if err != nil {
		return fmt.Errorf("leaving %s: %w", work, err)
	}
	return nil
}

// Ahead reads one signature, with the certificate of the responder that made it.
func (o *OCSP) Ahead(ctx context.Context, serial ca.Serial, h ocsp.Hash) (ocsp.Ahead, error) {
	a := ocsp.Ahead{Serial: serial}
	var responder string
	var produced, this, next, refresh int64
	err := o.db.ReadRow(ctx, func(r Row) error {
		return r.Scan(&responder, &produced, &this, &next, &refresh, &a.Signature, &a.ResponderDER)
	}, `SELECT a.responder, a.produced_at, a.this_update, a.next_update, a.refresh_at, a.signature, r.der
		FROM ocsp_ahead a JOIN certificates r ON r.serial = a.responder
		WHERE a.serial = $1 AND a.hash = $2`, string(serial), int64(h))
	if errors.Is(err, ErrNoRows) {
		return a, ca.ErrNotFound
	}
	if err != nil {
		return a, fmt.Errorf("reading a signature made ahead: %w", err)
	}
	a.Responder = ca.Serial(responder)
	a.ProducedAt, a.ThisUpdate, a.NextUpdate, a.RefreshAt = fromMicros(produced), fromMicros(this), fromMicros(next), fromMicros(refresh)
	return a, nil
}

// aheadDue finds what is due, the longest first.
const aheadDue = `SELECT c.serial, c.issuer, c.state, c.revoked_at, c.reason, c.not_after, c.revocation_seq, c.created_at, a.refresh_at
	FROM ocsp_ahead a JOIN certificates c ON c.serial = a.serial
	WHERE a.hash = $1 AND a.refresh_at <= $2 ORDER BY a.refresh_at LIMIT $3`

// Due lists certificates whose signature is to be made anew.
func (o *OCSP) Due(ctx context.Context, h ocsp.Hash, now time.Time, limit int) ([]ocsp.Assigned, error) {
	return o.assigned(ctx, aheadDue, int64(h), micros(now), int64(limit))
}

// aheadAssigned walks through all certificates in the order of their making.
const aheadAssigned = `SELECT c.serial, c.issuer, c.state, c.revoked_at, c.reason, c.not_after, c.revocation_seq, c.created_at, COALESCE(a.refresh_at, -1)
	FROM certificates c LEFT JOIN ocsp_ahead a ON a.serial = c.serial AND a.hash = $1
	WHERE (c.created_at, c.serial) > ($2, $3) ORDER BY c.created_at, c.serial LIMIT $4`

// Assigned lists certificates of all issuers that come after a place.
func (o *OCSP) Assigned(ctx context.Context, h ocsp.Hash, after ocsp.Place, limit int) ([]ocsp.Assigned, error) {
	return o.assigned(ctx, aheadAssigned, int64(h), micros(after.CreatedAt), string(after.Serial), int64(limit))
}

func (o *OCSP) assigned(ctx context.Context, q string, args ...any) ([]ocsp.Assigned, error) {
	var out []ocsp.Assigned
	err := o.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		out = nil
		rows, err := tx.Query(ctx, q, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var serial, issuer, state string
			var revoked, reason, notAfter, created, refresh int64
			var a ocsp.Assigned
			if err := rows.Scan(&serial, &issuer, &state, &revoked, &reason, &notAfter, &a.StatusSeq, &created, &refresh); err != nil {
				return err
			}
			a.Issuer, a.Place = ca.IssuerID(issuer), ocsp.Place{CreatedAt: fromMicros(created), Serial: ca.Serial(serial)}
			a.Status = ocsp.Status{State: ca.State(state), RevokedAt: fromMicros(revoked), Reason: ca.Reason(reason), NotAfter: fromMicros(notAfter)}
			if a.Signed = refresh >= 0; a.Signed {
				a.RefreshAt = fromMicros(refresh)
			}
			out = append(out, a)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("listing certificates to sign ahead for: %w", err)
	}
	return out, nil
}

// aheadRows is how many signatures one statement keeps.
const aheadRows = 100

// Keep puts signatures in the place of those of before. One whose status has
// changed since it was read is due again at once.
func (o *OCSP) Keep(ctx context.Context, h ocsp.Hash, list []ocsp.Ahead) error {
	err := o.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		for chunk := range slices.Chunk(list, aheadRows) {
			if err := keepAhead(ctx, tx, h, chunk); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("keeping signatures made ahead: %w", err)
	}
	return nil
}

func keepAhead(ctx context.Context, tx Tx, h ocsp.Hash, list []ocsp.Ahead) error {
	var values strings.Builder
	args := []any{int64(h)}
	add := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	}
	var serials []string
	for i, a := range list {
		if i > 0 {
			values.WriteString(", ")
		}
		serial := add(string(a.Serial))
		serials = append(serials, serial)
		fmt.Fprintf(&values, "(%s, $1, %s, %s, %s, %s, %s, %s, %s)", serial, add(string(a.Responder)), add(a.StatusSeq),
			add(micros(a.ProducedAt)), add(micros(a.ThisUpdate)), add(micros(a.NextUpdate)), add(micros(a.RefreshAt)), add(a.Signature))
	}
	_, err := tx.Exec(ctx, `INSERT INTO ocsp_ahead (serial, hash, responder, status_seq, produced_at, this_update, next_update, refresh_at, signature)
		VALUES `+values.String()+`
		ON CONFLICT (serial, hash) DO UPDATE SET responder = excluded.responder, status_seq = excluded.status_seq,
			produced_at = excluded.produced_at, this_update = excluded.this_update, next_update = excluded.next_update,
			refresh_at = excluded.refresh_at, signature = excluded.signature`, args...)
	if err != nil {
		return err
	}
	args = args[:1]
	serials = serials[:0]
	for _, a := range list {
		serials = append(serials, add(string(a.Serial)))
	}
	_, err = tx.Exec(ctx, `UPDATE ocsp_ahead SET refresh_at = 0 WHERE hash = $1 AND serial IN (`+strings.Join(serials, ", ")+`)
		AND status_seq <> (SELECT c.revocation_seq FROM certificates c WHERE c.serial = ocsp_ahead.serial)`, args...)
	return err
}

// Drop forgets the signatures about certificates that are answered for no more.
func (o *OCSP) Drop(ctx context.Context, h ocsp.Hash, list []ca.Serial) error {
	err := o.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		for _, s := range list {
			if _, err := tx.Exec(ctx, `DELETE FROM ocsp_ahead WHERE serial = $1 AND hash = $2`, string(s), int64(h)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("dropping signatures made ahead: %w", err)
	}
	return nil
}

// PutOff has signatures be due not before a time.
func (o *OCSP) PutOff(ctx context.Context, h ocsp.Hash, list []ca.Serial, until time.Time) error {
	err := o.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		for _, s := range list {
			if _, err := tx.Exec(ctx, `UPDATE ocsp_ahead SET refresh_at = $1 WHERE serial = $2 AND hash = $3`, micros(until), string(s), int64(h)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("putting off signatures to make ahead: %w", err)
	}
	return nil
}
