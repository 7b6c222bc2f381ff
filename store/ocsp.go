package store

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ocsp"
)

// OCSP reads the state of certificates and keeps those of OCSP responders. It is
// an ocsp.Source, and ocsp.Responders, Leases and Shelf.
type OCSP struct{ db *DB }

// NewOCSP returns the OCSP tables in db.
func NewOCSP(db *DB) *OCSP { return &OCSP{db} }

var (
	_ ocsp.Source     = (*OCSP)(nil)
	_ ocsp.Responders = (*OCSP)(nil)
	_ ocsp.Leases     = (*OCSP)(nil)
	_ ocsp.Shelf      = (*OCSP)(nil)
)

// Status returns the committed state of one serial of one issuer.
func (o *OCSP) Status(ctx context.Context, issuer ca.IssuerID, serial ca.Serial) (ocsp.Status, error) {
	var (
		state                     string
		revokedAt, reason, notAft int64
	)
	err := o.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		return tx.QueryRow(ctx, `SELECT c.state, c.revoked_at, c.reason, c.not_after
			FROM certificates c WHERE c.serial = $1 AND c.issuer = $2`, string(serial), string(issuer)).
			Scan(&state, &revokedAt, &reason, &notAft)
	})
	if errors.Is(err, ErrNoRows) {
		return ocsp.Status{}, ca.ErrNotFound
	}
	if err != nil {
		return ocsp.Status{}, fmt.Errorf("reading status of %s: %w", serial, err)
	}
	return ocsp.Status{
		State:     ca.State(state),
		RevokedAt: fromMicros(revokedAt),
		Reason:    ca.Reason(reason),
		NotAfter:  fromMicros(notAft),
	}, nil
}

// Heads returns the number of each issuer's last change of status.
func (o *OCSP) Heads(ctx context.Context) (map[ca.IssuerID]int64, error) {
	var out map[ca.IssuerID]int64
	err := o.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		out = make(map[ca.IssuerID]int64)
		rows, err := tx.Query(ctx, `SELECT h.issuer, h.seq FROM revocation_heads h`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var issuer string
			var seq int64
			if err := rows.Scan(&issuer, &seq); err != nil {
				return err
			}
			out[ca.IssuerID(issuer)] = seq
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("reading the last changes of status: %w", err)
	}
	return out, nil
}

// Changes lists certificates whose status has changed after change number since.
func (o *OCSP) Changes(ctx context.Context, issuer ca.IssuerID, since int64, limit int) ([]ocsp.Change, error) {
	var out []ocsp.Change
	err := o.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		out = nil
		// The second condition is the index's own.
		rows, err := tx.Query(ctx, `SELECT c.serial, c.revocation_seq FROM certificates c
			WHERE c.issuer = $1 AND c.revocation_seq > $2 AND c.revocation_seq > 0
			ORDER BY c.revocation_seq LIMIT $3`, string(issuer), since, int64(limit))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var serial string
			var c ocsp.Change
			if err := rows.Scan(&serial, &c.Number); err != nil {
				return err
			}
			c.Serial = ca.Serial(serial)
			out = append(out, c)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("listing changes of status: %w", err)
	}
	return out, nil
}

// Responder returns the certificate kept for an issuer and a responder's key.
func (o *OCSP) Responder(ctx context.Context, issuer ca.IssuerID, spki [32]byte) ([]byte, error) {
	var der []byte
	err := o.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		return tx.QueryRow(ctx, `SELECT r.der FROM ocsp_responders r WHERE r.issuer = $1 AND r.spki_hash = $2`,
			string(issuer), hex.EncodeToString(spki[:])).Scan(&der)
	})
	if errors.Is(err, ErrNoRows) {
		return nil, ca.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("reading responder certificate: %w", err)
	}
	return der, nil
}

// SaveResponder keeps a responder's certificate unless one that ends later is there.
func (o *OCSP) SaveResponder(ctx context.Context, issuer ca.IssuerID, spki [32]byte, der []byte, notAfter time.Time) error {
	err := o.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO ocsp_responders (issuer, spki_hash, der, not_after) VALUES ($1, $2, $3, $4)
			ON CONFLICT (issuer, spki_hash) DO UPDATE SET der = excluded.der, not_after = excluded.not_after
			WHERE ocsp_responders.not_after < excluded.not_after`,
			string(issuer), hex.EncodeToString(spki[:]), der, micros(notAfter))
		return err
	})
	if err != nil {
		return fmt.Errorf("keeping responder certificate: %w", err)
	}
	return nil
}
