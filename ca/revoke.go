package ca

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"time"
)

// Revoked tells of a certificate that counts as revoked now.
type Revoked struct {
	Issuer IssuerID
	Serial Serial
	Reason Reason
	At     time.Time
}

// Revoke takes back an issued certificate: a *Refusal with BadReason,
// ErrNotFound, ErrAlreadyRevoked. r.At may be in the past for keyCompromise
// only, to say since when the key was known (RFC 5280 §5.3.2); zero means now.
func (a *Authority) Revoke(ctx context.Context, r Revocation) error {
	if err := r.Reason.check(); err != nil {
		return err
	}
	now := a.now().UTC()
	if r.At.IsZero() || r.At.After(now) || r.Reason != KeyCompromise {
		r.At = now
	}
	rec, err := a.store.Record(ctx, r.Serial)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", r.Serial, err)
	}
	if err := a.store.Revoke(ctx, r, r.entry()); err != nil {
		return fmt.Errorf("certificate %s: %w", r.Serial, err)
	}
	a.metrics.revocations.WithLabelValues(r.Reason.String()).Inc()
	a.tellRevoked(Revoked{Issuer: rec.Issuer, Serial: r.Serial, Reason: r.Reason, At: r.At})
	return nil
}

// OnRevoke has fn called after each revocation that this process records. It is
// called on the revoker's path, several at once, and must return without
// waiting for anything.
func (a *Authority) OnRevoke(fn func(Revoked)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.onRevoke = append(a.onRevoke, fn)
}

func (a *Authority) tellRevoked(r Revoked) {
	a.mu.Lock()
	fns := a.onRevoke[:len(a.onRevoke):len(a.onRevoke)]
	a.mu.Unlock()
	for _, fn := range fns {
		fn(r)
	}
}

// Record returns all that is known of s, and ErrNotFound for a serial never assigned.
func (a *Authority) Record(ctx context.Context, s Serial) (Record, error) {
	return a.store.Record(ctx, s)
}

// RecordOf returns the record of exactly this certificate, and ErrNotFound if it is
// not one of ours, octet by octet.
func (a *Authority) RecordOf(ctx context.Context, certDER []byte) (Record, error) {
	cert, err := x509.ParseCertificate(certDER)
	if err != nil {
		return Record{}, &Refusal{Code: BadCertificate, Detail: "not a certificate in DER", Err: err}
	}
	r, err := a.store.Record(ctx, SerialOf(cert.SerialNumber))
	if err != nil {
		return Record{}, err
	}
	if r.State != Issued || !bytes.Equal(r.DER, certDER) {
		return Record{}, ErrNotFound
	}
	return r, nil
}
