package ca

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Revoked tells of a certificate whose status changed: it counts as revoked now,
// for Reason since At, or was released from a hold, which is RemoveFromCRL. With
// a zero At another process has revoked it meanwhile, for a reason of its own.
type Revoked struct {
	Issuer IssuerID
	Serial Serial
	Reason Reason
	At     time.Time
}

// Revoke takes back an issued certificate: a *Refusal with BadReason,
// HoldForbidden or BadInvalidity, ErrNotFound, ErrAlreadyRevoked. r.At may be in
// the past for keyCompromise only, to say since when the key was known to be lost
// (BR §7.2.2); zero means now. It returns when no process on the store says
// otherwise any more.
func (a *Authority) Revoke(ctx context.Context, r Revocation) error {
	errs, err := a.RevokeAll(ctx, []Revocation{r})
	if err == nil {
		err = errs[0]
	}
	if err != nil {
		return fmt.Errorf("certificate %s: %w", r.Serial, err)
	}
	return nil
}

// RevokeAll is Revoke for up to MaxRevocations, in one transaction: errs says of
// each what kept it from being revoked, nil for nothing. After an error of its
// own nothing has happened. Like Revoke it returns when all processes know.
func (a *Authority) RevokeAll(ctx context.Context, rs []Revocation) (errs []error, err error) {
	rs, recs, errs, err := a.vet(ctx, rs)
	if err != nil {
		return nil, err
	}
	var able []Revocation
	var at []int
	for i, r := range rs {
		if errs[i] == nil {
			able, at = append(able, r), append(at, i)
		}
	}
	if len(able) == 0 {
		return errs, nil
	}
	done, err := a.store.RevokeAll(ctx, able)
	if err != nil {
		return nil, fmt.Errorf("revoking: %w", err)
	}
	for i, err := range done {
		r, rec := able[i], recs[at[i]]
		errs[at[i]] = err
		switch {
		case err == nil:
			a.metrics.revocations.WithLabelValues(r.Reason.String()).Inc()
			a.tellRevoked(Revoked{Issuer: rec.Issuer, Serial: r.Serial, Reason: r.Reason, At: r.At})
		case errors.Is(err, ErrAlreadyRevoked):
			// Another process may have done it, or one that ended before it could tell.
			a.tellRevoked(Revoked{Issuer: rec.Issuer, Serial: r.Serial, Reason: rec.Reason, At: rec.RevokedAt})
		}
	}
	// That one was revoked before is as good as the acknowledgement of that.
	if !slices.ContainsFunc(done, func(err error) bool { return err == nil || errors.Is(err, ErrAlreadyRevoked) }) {
		return errs, nil
	}
	if err := a.Settle(ctx); err != nil {
		for _, i := range at {
			errs[i] = errors.Join(errs[i], err)
		}
	}
	return errs, nil
}

// RehearseRevoke says what RevokeAll would do, and what is there now; a serial
// never assigned has a zero Record.
func (a *Authority) RehearseRevoke(ctx context.Context, rs []Revocation) (recs []Record, errs []error, err error) {
	rs, recs, errs, err = a.vet(ctx, rs)
	if err != nil {
		return nil, nil, err
	}
	for i, r := range rs {
		if errs[i] == nil {
			_, errs[i] = r.Apply(recs[i])
		}
	}
	return recs, errs, nil
}

// vet checks what no later change of status makes otherwise. The revocations
// that it returns have their times.
func (a *Authority) vet(ctx context.Context, rs []Revocation) ([]Revocation, []Record, []error, error) {
	if len(rs) > MaxRevocations {
		return nil, nil, nil, fmt.Errorf("%d revocations at once, more than %d", len(rs), MaxRevocations)
	}
	rs = slices.Clone(rs)
	serials := make([]Serial, len(rs))
	for i, r := range rs {
		serials[i] = r.Serial
	}
	found, err := a.store.RecordsOf(ctx, serials)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("looking for certificates: %w", err)
	}
	bySerial := make(map[Serial]Record, len(found))
	for _, rec := range found {
		bySerial[rec.Serial] = rec
	}
	recs, errs := make([]Record, len(rs)), make([]error, len(rs))
	now := a.now().UTC()
	for i := range rs {
		r := &rs[i]
		if r.At.IsZero() || r.At.After(now) || r.Reason != KeyCompromise {
			r.At = now
		}
		rec, known := bySerial[r.Serial]
		recs[i] = rec
		if err := r.Reason.check(); err != nil {
			errs[i] = err
		} else if !known {
			errs[i] = ErrNotFound
		} else {
			errs[i] = a.checkRevocation(*r, rec, now)
		}
	}
	return rs, recs, errs, nil
}

func (a *Authority) checkRevocation(r Revocation, rec Record, now time.Time) error {
	switch {
	case r.SHA256 != [32]byte{} && (rec.DER == nil || sha256.Sum256(rec.DER) != r.SHA256):
		return ErrNotFound
	case r.Reason == CertificateHold && !a.mayHold(rec.Issuer):
		return &Refusal{Code: HoldForbidden, Detail: "certificates of this issuer are not put on hold"}
	case r.InvalidityAt.After(now):
		return &Refusal{Code: BadInvalidity, Detail: "the invalidity date is not in the past"}
	}
	return nil
}

func (a *Authority) mayHold(id IssuerID) bool {
	i, ok := a.Issuer(id)
	return ok && i.Hold && a.policy != Public // BR §4.9.13
}

// Release ends the hold of a certificate: ErrNotHeld, ErrNotFound.
func (a *Authority) Release(ctx context.Context, s Serial, by Requester) error {
	rec, err := a.store.Record(ctx, s)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", s, err)
	}
	e := by.entry(ActionReleased, s, nil)
	if err := a.store.Release(ctx, s, e); err != nil {
		return fmt.Errorf("certificate %s: %w", s, err)
	}
	a.metrics.revocations.WithLabelValues(RemoveFromCRL.String()).Inc()
	a.tellRevoked(Revoked{Issuer: rec.Issuer, Serial: s, Reason: RemoveFromCRL, At: e.At})
	return a.Settle(ctx)
}

// OnRevoke has fn called after each change of status that this process records,
// or finds recorded when it is to record it, and before whoever asked for it
// hears of it. It is called on the revoker's path, several at once, and must return without
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
