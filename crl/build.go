package crl

import (
	"context"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
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
	s.cfg.Logger.InfoContext(ctx, "issued a CRL", "issuer", string(sh.issuer.ID), "number", int64(c.Number),
		"entries", c.Entries, "octets", c.Octets, "took", time.Since(start))
	return nil
}

// make does the work between taking the number and putting the CRL on the
// shelf. The head is read again: what it counted is what the entries, read
// after it, surely hold.
func (s *Server) make(ctx context.Context, sh *shelf, number Number, scheduled bool) (CRL, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.BuildTimeout)
	defer cancel()
	head, err := s.look(ctx, sh)
	if err != nil && !errors.Is(err, errUnusable) {
		return CRL{}, err
	}
	c := CRL{Issuer: sh.issuer.ID, Number: number, Count: head.Count}
	// The same list under the same number may be signed twice.
	signing := keys.Repeatable(keys.WithPurpose(ctx, purposeOf(head)))
	// RFC 5280 §3.3: an entry stays until it was on one regularly scheduled CRL
	// issued after the certificate's expiry. What had expired by the last
	// scheduled one was on it.
	entries := s.cfg.Store.Revoked(ctx, sh.issuer.ID, head.ScheduledAt)
	body, info, err := Sign(signing, sh.issuer, entries, func(sum Summary) (Header, error) {
		this := thisUpdate(s.cfg.Now(), sh.thisUpdate(), sum.Latest)
		return Header{
			ThisUpdate: this, NextUpdate: this.Add(s.cfg.Validity),
			Extensions: []pkix.Extension{AuthorityKeyID(sh.issuer.Cert.SubjectKeyId), NumberOf(number)},
		}, nil
	})
	if err != nil {
		return CRL{}, fmt.Errorf("making CRL %d: %w", number, err)
	}
	c.ThisUpdate, c.NextUpdate, c.Entries, c.Octets = info.ThisUpdate, info.NextUpdate, info.Entries, body.Size()
	c.Body, err = s.publish(ctx, sh, Publication{CRL: c, Scheduled: scheduled, Keep: keep, Audit: issued(c, info)}, body, head.ScheduledAt)
	if err != nil {
		return CRL{}, fmt.Errorf("publishing CRL %d: %w", number, errors.Join(err, body.Release()))
	}
	s.put(ctx, sh, c, body, info)
	return c, nil
}

// publish holds body against the CRL before, has the store keep it and makes it
// the latest. Until the last step it is nowhere to be seen.
func (s *Server) publish(ctx context.Context, sh *shelf, p Publication, body *Body, cutoff time.Time) (BodyID, error) {
	err := s.checkFollows(ctx, sh, body, cutoff)
	if err != nil {
		return "", err
	}
	if p.Body, err = s.cfg.Store.Put(ctx, s.cfg.Now(), body.Open()); err != nil {
		return "", err
	}
	if err = s.cfg.Store.Publish(ctx, p); err != nil {
		s.drop(ctx, sh, p.Body)
	}
	return p.Body, err
}

// checkFollows holds body against what is on the shelf.
func (s *Server) checkFollows(ctx context.Context, sh *shelf, body *Body, cutoff time.Time) error {
	was, ok := sh.take()
	if !ok {
		return nil
	}
	defer s.giveBack(ctx, was.file.body)
	return follows(ctx, was.file.body, body, func(ctx context.Context, serials []ca.Serial) ([]ca.Serial, error) {
		return s.cfg.Store.StillRevoked(ctx, sh.issuer.ID, serials, cutoff)
	})
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

// drop forgets what was not published. If it cannot, the next Put does.
func (s *Server) drop(ctx context.Context, sh *shelf, id BodyID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := s.cfg.Store.Drop(ctx, id); err != nil {
		s.cfg.Logger.WarnContext(ctx, "dropping a CRL that was not published", "issuer", string(sh.issuer.ID), "error", err)
	}
}

// thisUpdate is a little before now, yet not before the last revocation that
// is listed, and after the CRL before: who compares Last-Modified must see a
// new one. Only when the clock had been far ahead does it go back; the number
// still grows.
func thisUpdate(now, previous, revocation time.Time) time.Time {
	now = now.UTC().Truncate(time.Second)
	this := now.Add(-backdate)
	if at := revocation.Truncate(time.Second); at.After(this) {
		this = at.UTC()
	}
	if this.After(now) {
		this = now
	}
	if after := previous.Add(time.Second); this.Before(after) && !after.After(now.Add(maxAhead)) {
		this = after.UTC()
	}
	return this
}

// issued is the audit entry of c.
func issued(c CRL, info Info) audit.Entry {
	return audit.New("system", "crl.issued", fmt.Sprintf("crl/%s/%d", c.Issuer, c.Number), struct {
		Issuer     ca.IssuerID `json:"issuer"`
		Number     Number      `json:"number"`
		ThisUpdate time.Time   `json:"this_update"`
		NextUpdate time.Time   `json:"next_update"`
		Entries    int         `json:"entries"`
		Octets     int64       `json:"octets"`
		SHA256     string      `json:"sha256"`
	}{c.Issuer, c.Number, c.ThisUpdate, c.NextUpdate, c.Entries, c.Octets, hex.EncodeToString(info.SHA256[:])})
}
