package crl

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
)

const (
	// backdate is for clients whose clocks are behind.
	backdate = time.Minute
	// maxAhead is how far thisUpdate may lie before our own clock, in order to
	// come after that of the CRL before.
	maxAhead = 5 * time.Minute
)

// A plan is what a CRL says before it is signed. Times are whole seconds.
type plan struct {
	number     Number
	thisUpdate time.Time
	nextUpdate time.Time
	entries    []Entry
}

// build makes, checks and publishes the next CRL of sh. Nobody else builds
// meanwhile: the number comes with a lease.
func (s *Server) build(ctx context.Context, sh *shelf, scheduled bool) error {
	// While the device is away, an attempt costs neither a number nor a write.
	if err := keys.Ready(sh.issuer.Key); err != nil {
		return fmt.Errorf("asking for the key: %w", err)
	}
	now := s.cfg.Now()
	number, err := s.cfg.Store.Reserve(ctx, sh.issuer.ID, Lease{
		// The clock as floor keeps numbers growing even over a lost database.
		Floor: Number(now.Unix()),
		Now:   now,
		Until: now.Add(s.cfg.BuildTimeout),
	})
	if err != nil {
		return err
	}
	start := time.Now()
	c, err := s.make(ctx, sh, number, scheduled)
	if err != nil {
		s.release(ctx, sh, number)
		return err
	}
	sh.put(c)
	s.cfg.Logger.InfoContext(ctx, "issued a CRL", "issuer", string(sh.issuer.ID), "number", int64(c.Number),
		"entries", c.Entries, "octets", len(c.DER), "took", time.Since(start))
	return nil
}

// make does the work between taking the number and putting the CRL on the
// shelf. The head is read again: what it counted is what the entries, read
// after it, surely hold.
func (s *Server) make(ctx context.Context, sh *shelf, number Number, scheduled bool) (CRL, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.BuildTimeout)
	defer cancel()
	head, err := s.cfg.Store.Head(ctx, sh.issuer.ID)
	if err != nil {
		return CRL{}, err
	}
	// RFC 5280 §3.3: an entry stays until it was on one regularly scheduled CRL
	// issued after the certificate's expiry. What had expired by the last
	// scheduled one was on it.
	entries, err := s.cfg.Store.Revoked(ctx, sh.issuer.ID, head.ScheduledAt)
	if err != nil {
		return CRL{}, err
	}
	previous, err := s.cfg.Store.Latest(ctx, sh.issuer.ID)
	if err != nil && !errors.Is(err, ErrNone) {
		return CRL{}, err
	}
	this := thisUpdate(s.cfg.Now(), previous.ThisUpdate, entries)
	c := CRL{
		Issuer: sh.issuer.ID, Number: number, Entries: len(entries), Count: head.Count,
		ThisUpdate: this, NextUpdate: this.Add(s.cfg.Validity),
	}
	// The same list under the same number may be signed twice.
	ctx = keys.Repeatable(keys.WithPurpose(ctx, purposeOf(head)))
	c.DER, err = sign(ctx, sh.issuer, plan{number: number, thisUpdate: this, nextUpdate: c.NextUpdate, entries: entries})
	if err != nil {
		return CRL{}, err
	}
	err = s.cfg.Store.Publish(ctx, Publication{CRL: c, Scheduled: scheduled, Keep: keep, Audit: issued(c)})
	if err != nil {
		return CRL{}, fmt.Errorf("publishing CRL %d: %w", number, err)
	}
	return c, nil
}

// purposeOf says how urgent a CRL is: that it is due can wait for a moment, what
// was revoked since the one before cannot.
func purposeOf(h Head) keys.Purpose {
	if h.Count != h.Covered {
		return keys.ForRevocation
	}
	return keys.ForStatus
}

// release lets others build at once. If it cannot, they wait for the lease's end.
func (s *Server) release(ctx context.Context, sh *shelf, n Number) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := s.cfg.Store.Release(ctx, sh.issuer.ID, n); err != nil {
		s.cfg.Logger.WarnContext(ctx, "releasing a CRL number", "issuer", string(sh.issuer.ID), "number", int64(n), "error", err)
	}
}

// thisUpdate is a little before now, yet not before the last revocation that
// is listed, and after the CRL before: who compares Last-Modified must see a
// new one. Only when the clock had been far ahead does it go back; the number
// still grows.
func thisUpdate(now, previous time.Time, entries []Entry) time.Time {
	now = now.UTC().Truncate(time.Second)
	this := now.Add(-backdate)
	for _, e := range entries {
		if at := e.RevokedAt.Truncate(time.Second); at.After(this) {
			this = at.UTC()
		}
	}
	if this.After(now) {
		this = now
	}
	if after := previous.Add(time.Second); this.Before(after) && !after.After(now.Add(maxAhead)) {
		this = after.UTC()
	}
	return this
}

// sign encodes d (RFC 5280 §5), has it signed and reads it back before anybody
// else sees it.
func sign(ctx context.Context, is *ca.Issuer, d plan) ([]byte, error) {
	t := &x509.RevocationList{
		Number:     big.NewInt(int64(d.number)),
		ThisUpdate: d.thisUpdate,
		NextUpdate: d.nextUpdate,
	}
	for _, e := range d.entries {
		serial, err := e.Serial.Int()
		if err != nil {
			return nil, fmt.Errorf("listing: %w", err)
		}
		t.RevokedCertificateEntries = append(t.RevokedCertificateEntries, x509.RevocationListEntry{
			SerialNumber:   serial,
			RevocationTime: e.RevokedAt.UTC().Truncate(time.Second),
			ReasonCode:     int(e.Reason), // 0 is said by silence
		})
	}
	der, err := x509.CreateRevocationList(nil, t, is.Cert, keys.Signer(ctx, is.Key))
	if err != nil {
		return nil, fmt.Errorf("signing CRL %d: %w", d.number, err)
	}
	if err := check(der, is, d); err != nil {
		return nil, fmt.Errorf("checking CRL %d: %w", d.number, err)
	}
	return der, nil
}

// check holds a finished CRL against what it was to say.
func check(der []byte, is *ca.Issuer, d plan) error {
	l, err := x509.ParseRevocationList(der)
	if err != nil {
		return fmt.Errorf("parsing: %w", err)
	}
	switch {
	case !bytes.Equal(l.RawIssuer, is.Cert.RawSubject):
		return errors.New("issuer is not the CA's subject octet for octet")
	case !bytes.Equal(l.AuthorityKeyId, is.Cert.SubjectKeyId) || len(l.AuthorityKeyId) == 0:
		return errors.New("authority key identifier is not the CA's")
	case l.Number == nil || l.Number.Cmp(big.NewInt(int64(d.number))) != 0:
		return errors.New("number is another one")
	case !l.ThisUpdate.Equal(d.thisUpdate) || !l.NextUpdate.Equal(d.nextUpdate):
		return errors.New("times are others")
	case len(l.RevokedCertificateEntries) != len(d.entries):
		return fmt.Errorf("%d entries became %d", len(d.entries), len(l.RevokedCertificateEntries))
	}
	for i, e := range l.RevokedCertificateEntries {
		want := d.entries[i]
		if ca.SerialOf(e.SerialNumber) != want.Serial || e.ReasonCode != int(want.Reason) ||
			!e.RevocationTime.Equal(want.RevokedAt.Truncate(time.Second)) {
			return fmt.Errorf("the entry of %s became another", want.Serial)
		}
	}
	if err := l.CheckSignatureFrom(is.Cert); err != nil {
		return fmt.Errorf("signature: %w", err)
	}
	return nil
}

// issued is the audit entry of c.
func issued(c CRL) audit.Entry {
	sum := sha256.Sum256(c.DER)
	return audit.New("system", "crl.issued", fmt.Sprintf("crl/%s/%d", c.Issuer, c.Number), struct {
		Issuer     ca.IssuerID `json:"issuer"`
		Number     Number      `json:"number"`
		ThisUpdate time.Time   `json:"this_update"`
		NextUpdate time.Time   `json:"next_update"`
		Entries    int         `json:"entries"`
		Octets     int         `json:"octets"`
		SHA256     string      `json:"sha256"`
	}{c.Issuer, c.Number, c.ThisUpdate, c.NextUpdate, c.Entries, len(c.DER), hex.EncodeToString(sum[:])})
}
