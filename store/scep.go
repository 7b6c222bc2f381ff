package store

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/scep"
)

// SCEP keeps the certificates of SCEP registration authorities.
type SCEP struct{ db *DB }

// NewSCEP returns the SCEP tables in db.
func NewSCEP(db *DB) *SCEP { return &SCEP{db} }

var _ scep.Registrations = (*SCEP)(nil)

// Registration returns the certificate kept for an issuer and an authority's key.
func (s *SCEP) Registration(ctx context.Context, issuer ca.IssuerID, spki [32]byte) ([]byte, error) {
	var der []byte
	err := s.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		return tx.QueryRow(ctx, `SELECT r.der FROM scep_registrations r WHERE r.issuer = $1 AND r.spki_hash = $2`,
			string(issuer), hex.EncodeToString(spki[:])).Scan(&der)
	})
	if errors.Is(err, ErrNoRows) {
		return nil, ca.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("reading the certificate of a registration authority: %w", err)
	}
	return der, nil
}

// SaveRegistration keeps an authority's certificate unless one that ends later is there.
func (s *SCEP) SaveRegistration(ctx context.Context, issuer ca.IssuerID, spki [32]byte, der []byte, notAfter time.Time) error {
	err := s.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO scep_registrations (issuer, spki_hash, der, not_after) VALUES ($1, $2, $3, $4)
			ON CONFLICT (issuer, spki_hash) DO UPDATE SET der = excluded.der, not_after = excluded.not_after
			WHERE scep_registrations.not_after < excluded.not_after`,
			string(issuer), hex.EncodeToString(spki[:]), der, micros(notAfter))
		return err
	})
	if err != nil {
		return fmt.Errorf("keeping the certificate of a registration authority: %w", err)
	}
	return nil
}
