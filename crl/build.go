package crl

import (
	"context"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
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

// build makes, checks and publishes the next CRL of a series, and returns the
// head that it has then. Nobody else builds one of the scope meanwhile: the
// number comes with a lease.
func (s *Server) build(ctx context.Context, sh *shelf, head Head, of Series, scheduled bool) (Head, error) {
	start := time.Now()
	c, err := s.tryBuild(ctx, sh, of, scheduled)
	s.metrics.count(sh, kindOf(of.Delta), err)
	if err != nil {
		return head, err
	}
	took := time.Since(start)
	s.metrics.seconds.WithLabelValues(string(sh.issuer.ID), kindOf(of.Delta)).Observe(took.Seconds())
	s.cfg.Logger.InfoContext(ctx, "issued a CRL", "scope", c.Scope.String(), "number", int64(c.Number), "base", int64(c.Base),
		"entries", c.Entries, "octets", c.Octets, "took", took)
	return s.cfg.Store.Head(ctx, sh.scope)
}

func (s *Server) tryBuild(ctx context.Context, sh *shelf, of Series, scheduled bool) (CRL, error) {
	// While the device is away, an attempt costs neither a number nor a write.
	if err := keys.Ready(sh.issuer.Key); err != nil {
		return CRL{}, fmt.Errorf("asking for the key: %w", err)
	}
	now := s.cfg.Now()
	number, err := s.cfg.Store.Reserve(ctx, sh.scope, Lease{
		// The clock as floor keeps numbers growing even over a lost database.
		Floor: Number(now.Unix()),
		Now:   now,
		Until: now.Add(s.cfg.BuildTimeout),
	})
	if err != nil {
		return CRL{}, err
	}
	c, err := s.make(ctx, sh, of, number, scheduled)
	if err != nil {
		s.release(ctx, sh, number)
	}
	return c, err
}

// make does the work between taking the number and putting the CRL on the
// shelf. The head is read again: what it has seen is what the entries, read
// after it, surely hold.
func (s *Server) make(ctx context.Context, sh *shelf, of Series, number Number, scheduled bool) (CRL, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.BuildTimeout)
	defer cancel()
	head, err := s.look(ctx, sh)
	if err != nil && !errors.Is(err, errUnusable) {
		return CRL{}, err
	}
	c := CRL{Scope: sh.scope, Number: number, Seq: head.Seq}
	if of.Delta {
		c.Base = head.Base.Number
	}
	// The same list under the same number may be signed twice.
	signing := keys.Repeatable(keys.WithPurpose(ctx, purposeOf(head, of)))
	selected, expired := s.selection(sh, of, head)
	w := &work{delta: of.Delta}
	sh.work.Store(w)
	defer sh.work.Store(nil)
	entries := w.counted(dated(s.cfg.Store.Revoked(ctx, selected), s.cfg.Now()))
	body, info, err := Sign(signing, sh.issuer, entries, func(sum Summary) (Header, error) {
		this := thisUpdate(s.cfg.Now(), head.UpdatedAt, sum.Latest)
		h := Header{ThisUpdate: this, NextUpdate: s.nextUpdate(sh, of, head, this)}
		var err error
		h.Extensions, err = s.extensions(sh, c, expired)
		return h, err
	})
	if err != nil {
		return CRL{}, fmt.Errorf("making CRL %d: %w", number, err)
	}
	c.ThisUpdate, c.NextUpdate, c.Entries, c.Octets = info.ThisUpdate, info.NextUpdate, info.Entries, body.Size()
	c.Body, err = s.publish(ctx, sh, Publication{CRL: c, Scheduled: scheduled, Keep: keep, Audit: issued(c, info)}, body, selected)
	if err != nil {
		return CRL{}, fmt.Errorf("publishing CRL %d: %w", number, errors.Join(err, body.Release()))
	}
	s.put(ctx, sh.slot(of.Delta), c, body, info)
	return c, nil
}

// selection is what is to be listed. RFC 5280 §3.3: an entry stays until it was
// on one regularly scheduled CRL issued after the certificate's expiry. What had
// expired by the last scheduled one, and was seen by it, was on it. Since when
// all are kept that expired is what a list says that keeps them for longer; zero
// for one that does not.
func (s *Server) selection(sh *shelf, of Series, h Head) (sel Selection, keptSince time.Time) {
	sel = Selection{Series: of, ExpiredBy: h.Base.ThisUpdate, Seen: h.Base.Seq, Since: h.Base.Seq}
	if sh.plan.KeepExpired == 0 {
		return sel, time.Time{}
	}
	keptSince = s.cfg.Now().Add(-sh.plan.KeepExpired).Truncate(time.Second)
	if keptSince.Before(sel.ExpiredBy) {
		sel.ExpiredBy = keptSince
	}
	return sel, keptSince
}

// dated gives entries that were released from a hold a date, which a list has to
// have and nobody reads.
func dated(entries iter.Seq2[Entry, error], now time.Time) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for e, err := range entries {
			if e.Reason == ca.RemoveFromCRL {
				e.RevokedAt = now.Add(-backdate)
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// nextUpdate of a delta is two deltas ahead, so that one that fails does no harm,
// and never after that of what it is based on.
func (s *Server) nextUpdate(sh *shelf, of Series, h Head, this time.Time) time.Time {
	if !of.Delta {
		return this.Add(s.cfg.Validity)
	}
	next := this.Add(2*sh.plan.Delta + backdate)
	if next.After(h.Base.NextUpdate) {
		next = h.Base.NextUpdate
	}
	return next
}

// extensions are those of RFC 5280 §5.2. The list of a shard names its address
// octet for octet as its certificates do, and says that no authorities are among
// them, since none is ever put into a shard. The list of all says nothing of its
// scope, so that it may be had anywhere.
func (s *Server) extensions(sh *shelf, c CRL, keptSince time.Time) ([]pkix.Extension, error) {
	list := []pkix.Extension{AuthorityKeyID(sh.issuer.Cert.SubjectKeyId), NumberOf(c.Number)}
	if c.Base != 0 {
		list = append(list, DeltaOf(c.Base))
	}
	if sh.scope.Shard != 0 {
		list = append(list, DistributionPoint{URL: sh.url, OnlyUserCerts: true}.Extension())
	}
	if c.Base == 0 && sh.plan.Delta > 0 {
		list = append(list, FreshestAt(ca.DeltaURL(sh.url)))
	}
	if c.Base != 0 || keptSince.IsZero() {
		return list, nil
	}
	expired, err := ExpiredSince(keptSince)
	return append(list, expired), err
}

// publish holds body against the CRL before, has the store keep it and makes it
// the latest. Until the last step it is nowhere to be seen.
func (s *Server) publish(ctx context.Context, sh *shelf, p Publication, body *Body, selected Selection) (BodyID, error) {
	err := s.checkFollows(ctx, sh, body, selected)
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

// checkFollows holds body against what is on the shelf. What has gone from one
// delta to the next is on the complete CRL that came between.
func (s *Server) checkFollows(ctx context.Context, sh *shelf, body *Body, selected Selection) error {
	was, ok := sh.slot(selected.Delta).take()
	if !ok {
		return nil
	}
	defer s.giveBack(ctx, was.file.body)
	return follows(ctx, was.file.body, body, func(ctx context.Context, serials []ca.Serial) ([]ca.Serial, error) {
		return s.cfg.Store.StillRevoked(ctx, selected, serials)
	})
}

// purposeOf says how urgent a CRL is: that it is due can wait for a moment, what
// was revoked since the one before cannot.
func purposeOf(h Head, of Series) keys.Purpose {
	if h.Changed || of.Delta && h.DeltaChanged {
		return keys.ForRevocation
	}
	return keys.ForStatus
}

// release lets others build at once. If it cannot, they wait for the lease's end.
func (s *Server) release(ctx context.Context, sh *shelf, n Number) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := s.cfg.Store.Release(ctx, sh.scope, n); err != nil {
		s.cfg.Logger.WarnContext(ctx, "releasing a CRL number", "scope", sh.scope.String(), "number", int64(n), "error", err)
	}
}

// drop forgets what was not published. If it cannot, the next Put does.
func (s *Server) drop(ctx context.Context, sh *shelf, id BodyID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := s.cfg.Store.Drop(ctx, id); err != nil {
		s.cfg.Logger.WarnContext(ctx, "dropping a CRL that was not published", "scope", sh.scope.String(), "error", err)
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
	return audit.New("system", "crl.issued", fmt.Sprintf("crl/%s/%d", c.Scope, c.Number), struct {
		Issuer     ca.IssuerID `json:"issuer"`
		Shard      int         `json:"shard,omitempty"`
		Number     Number      `json:"number"`
		Base       Number      `json:"base,omitempty"`
		ThisUpdate time.Time   `json:"this_update"`
		NextUpdate time.Time   `json:"next_update"`
		Entries    int         `json:"entries"`
		Octets     int64       `json:"octets"`
		SHA256     string      `json:"sha256"`
	}{c.Issuer, c.Shard, c.Number, c.Base, c.ThisUpdate, c.NextUpdate, c.Entries, c.Octets, hex.EncodeToString(info.SHA256[:])})
}
