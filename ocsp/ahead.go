package ocsp

import (
	"bytes"
	"context"
	"crypto"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
)

// A Hash says by which algorithm CertIDs name the issuer that signatures are
// made ahead for.
type Hash int

// The hashes that are signed ahead for, by their numbers in the store.
const (
	SHA1   Hash = 1
	SHA256 Hash = 256
)

func (h Hash) String() string {
	if h == SHA1 {
		return "sha1"
	}
	return "sha256"
}

func (h Hash) algorithm() crypto.Hash {
	if h == SHA1 {
		return crypto.SHA1
	}
	return crypto.SHA256
}

// A Shelf keeps signatures of responses that nobody has asked for yet: not the
// responses, which are put together anew from what is known of the certificate
// when they are sent. It is safe for concurrent use.
type Shelf interface {
	// Ahead returns the signature about one certificate, and ca.ErrNotFound when
	// there is none.
	Ahead(ctx context.Context, serial ca.Serial, h Hash) (Ahead, error)
	// Due lists certificates whose signature was to be made anew before now, the
	// longest due first. Any change of status makes one due.
	Due(ctx context.Context, h Hash, now time.Time, limit int) ([]Assigned, error)
	// Assigned lists certificates of all issuers in all states that come after a
	// place in the order of their making.
	Assigned(ctx context.Context, h Hash, after Place, limit int) ([]Assigned, error)
	// Keep stores signatures in the place of those that are there.
	Keep(ctx context.Context, h Hash, list []Ahead) error
	// Drop forgets signatures.
	Drop(ctx context.Context, h Hash, list []ca.Serial) error
	// PutOff has signatures be due not before a time.
	PutOff(ctx context.Context, h Hash, list []ca.Serial, until time.Time) error
}

// A Place is one in the order in which certificates were made.
type Place struct {
	CreatedAt time.Time
	Serial    ca.Serial
}

// An Assigned is a certificate that may need a signature.
type Assigned struct {
	Place
	Issuer    ca.IssuerID
	Status    Status
	StatusSeq int64 // numbers the changes of status
	Signed    bool  // there is a signature,
	RefreshAt time.Time
}

// An Ahead is a signature made before anybody asked.
type Ahead struct {
	Serial       ca.Serial
	StatusSeq    int64     // the status that it is about
	Responder    ca.Serial // the certificate of who signed
	ResponderDER []byte    // read only
	ProducedAt   time.Time
	ThisUpdate   time.Time
	NextUpdate   time.Time
	RefreshAt    time.Time
	Signature    []byte
}

const (
	// aheadBatch is how many are signed between two writes, at the most.
	aheadBatch = 200
	// aheadBatchTime is how long one batch takes at the rate that is allowed.
	aheadBatchTime = 10 * time.Second
	// aheadWorkers is how many signatures made ahead are asked for at a time.
	aheadWorkers = 4
	// aheadIdle is the pause when nothing is due, or another replica is at it.
	aheadIdle = 10 * time.Second
	// aheadRetry is when what could not be signed is due again.
	aheadRetry = time.Minute
	// aheadOverlap is how far the walk through the new certificates goes back: they
	// are stored a little after the time that they say to be made.
	aheadOverlap = 2 * time.Minute
	// aheadReport is how often progress is logged.
	aheadReport = time.Minute
	// aheadSlack is how long signatures may be early, rather than be waited for one
	// by one.
	aheadSlack = 20 * time.Millisecond
)

// An ahead keeps the certificates of all issuers signed ahead, for one hash of
// CertIDs. Of several replicas one has the work at a time. What it has in memory
// is one batch.
type ahead struct {
	s     *Server
	hash  Hash
	work  string
	batch int
	next  time.Time // when the next signature is allowed

	// The walk through the certificates: where it goes on, whether it has been at
	// the end once, and where the next one begins, as this one left something there.
	at      Place
	through bool
	held    Place
	holds   bool

	began    time.Time
	reported time.Time
	signed   int
}

func newAhead(s *Server, h Hash) *ahead {
	now := s.cfg.Now()
	batch := min(aheadBatch, s.cfg.AheadRate*int(aheadBatchTime/time.Second))
	return &ahead{s: s, hash: h, work: "ahead/" + h.String(), batch: batch, began: now, reported: now}
}

// run signs what is due, batch by batch, until ctx ends.
func (a *ahead) run(ctx context.Context) {
	defer a.s.leave(ctx, a.work)
	for ctx.Err() == nil {
		more, err := a.round(ctx)
		wait := aheadIdle
		switch {
		case errors.Is(err, keys.ErrBusy):
			wait = min(max(retryAfter(err), time.Second), aheadRetry)
		case err != nil && ctx.Err() == nil:
			a.s.faults.report(ctx, "signing OCSP responses ahead", err)
		case more:
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// round signs one batch of what is due and one of what has none yet, and reports
// whether there is more.
func (a *ahead) round(ctx context.Context) (more bool, err error) {
	mine, err := a.s.claim(ctx, a.work)
	if err != nil || !mine {
		return false, err
	}
	now := a.s.cfg.Now()
	due, err := a.s.cfg.Shelf.Due(ctx, a.hash, now, a.batch)
	if err != nil {
		return false, err
	}
	a.s.metrics.overdue(a.hash, due, now)
	if len(due) > 0 {
		if err := a.renew(ctx, due); err != nil {
			return false, err
		}
	}
	more, err = a.walk(ctx)
	return more || len(due) == a.batch, err
}

// renew signs anew what is due, and forgets what is answered for no more.
func (a *ahead) renew(ctx context.Context, due []Assigned) error {
	var gone []ca.Serial
	var todo []Assigned
	for _, c := range due {
		if a.wanted(c) {
			todo = append(todo, c)
		} else {
			gone = append(gone, c.Serial)
		}
	}
	failed, err := a.sign(ctx, todo)
	var later []ca.Serial
	for _, c := range failed {
		later = append(later, c.Serial)
	}
	return errors.Join(err, a.drop(ctx, gone), a.putOff(ctx, later))
}

// walk looks through the certificates in the order of their making, and signs
// for those that have nothing yet. At the end it goes back to the first that it
// had to leave.
func (a *ahead) walk(ctx context.Context) (more bool, err error) {
	list, err := a.s.cfg.Shelf.Assigned(ctx, a.hash, a.at, a.batch)
	if err != nil {
		return false, err
	}
	var todo []Assigned
	for _, c := range list {
		switch {
		case c.Status.State == ca.Pending:
			a.hold(c)
		case !c.Signed && a.wanted(c):
			todo = append(todo, c)
		}
	}
	failed, err := a.sign(ctx, todo)
	if err != nil { // the same page again, without those that are done
		return false, err
	}
	for _, c := range failed {
		a.hold(c)
	}
	if len(list) < a.batch {
		a.turn(ctx)
		return false, nil
	}
	a.at = list[len(list)-1].Place
	a.report(ctx)
	return true, nil
}

// hold remembers the first certificate that the walk left for the next one.
func (a *ahead) hold(c Assigned) {
	if !a.holds || c.CreatedAt.Before(a.held.CreatedAt) {
		a.held, a.holds = Place{CreatedAt: c.CreatedAt.Add(-time.Microsecond)}, true
	}
}

// turn begins the next walk.
func (a *ahead) turn(ctx context.Context) {
	a.at = Place{CreatedAt: a.s.cfg.Now().Add(-aheadOverlap)}
	if a.holds && a.held.CreatedAt.Before(a.at.CreatedAt) {
		a.at = a.held
	}
	a.holds = false
	if !a.through {
		a.through = true
		a.s.cfg.Logger.InfoContext(ctx, "OCSP responses are signed ahead for all certificates in force",
			"hash", a.hash.String(), "signed", a.signed, "took", a.s.cfg.Now().Sub(a.began).Round(time.Second))
	}
}

// report logs how far the first walk came.
func (a *ahead) report(ctx context.Context) {
	if now := a.s.cfg.Now(); !a.through && now.Sub(a.reported) >= aheadReport {
		a.reported = now
		a.s.cfg.Logger.InfoContext(ctx, "signing OCSP responses ahead", "hash", a.hash.String(), "signed", a.signed, "at_certificates_of", a.at.CreatedAt)
	}
}

// wanted reports whether a certificate is answered for.
func (a *ahead) wanted(c Assigned) bool {
	_, err := a.s.ruled(c.Status, true)
	return err == nil && c.Status.State != ca.Pending && a.s.post(c.Issuer) != nil && !c.Status.NotAfter.Before(a.s.cfg.Now())
}

// sign makes and keeps the signatures of a batch, a few at a time. It returns
// those that it failed with; when the device has no time it keeps what it has,
// and returns that error.
func (a *ahead) sign(ctx context.Context, list []Assigned) (failed []Assigned, err error) {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex // guards what follows
		done []Ahead
	)
	signing, stop := context.WithTimeout(keys.WithPurpose(ctx, keys.ForAhead), renewTimeout/2)
	defer stop()
	work := make(chan Assigned)
	for range min(aheadWorkers, len(list)) {
		wg.Go(func() {
			for c := range work {
				made, e := a.one(signing, c)
				mu.Lock()
				switch {
				case e == nil:
					done = append(done, made)
				case passing(e) || signing.Err() != nil:
					err = e
					stop()
				default:
					failed = append(failed, c)
				}
				mu.Unlock()
			}
		})
	}
	for _, c := range list {
		if a.pace(signing); signing.Err() != nil {
			break
		}
		work <- c
	}
	close(work)
	wg.Wait()
	a.signed += len(done)
	return failed, errors.Join(err, signing.Err(), a.keep(ctx, done))
}

// pace waits until one more signature is allowed.
func (a *ahead) pace(ctx context.Context) {
	now := a.s.cfg.Now()
	if a.next.Before(now) {
		a.next = now
	}
	a.next = a.next.Add(time.Second / time.Duration(a.s.cfg.AheadRate))
	if early := a.next.Sub(now); early > aheadSlack {
		select {
		case <-ctx.Done():
		case <-time.After(early):
		}
	}
}

func (a *ahead) one(ctx context.Context, c Assigned) (Ahead, error) {
	p := a.s.post(c.Issuer)
	id, err := p.certID(a.hash, c.Serial)
	if err != nil {
		return Ahead{}, err
	}
	m, err := a.s.make(ctx, p, []certID{id}, []Status{c.Status}, nil, always)
	a.s.metrics.ahead.WithLabelValues(a.hash.String(), outcome(err)).Inc()
	if err != nil {
		return Ahead{}, err
	}
	of := m.response.singles[0]
	refresh := a.s.refreshAt(of)
	if c.Status.NotAfter.Before(refresh) { // due once more, to be dropped
		refresh = c.Status.NotAfter
	}
	return Ahead{
		Serial: c.Serial, StatusSeq: c.StatusSeq, Responder: ca.SerialOf(m.by.cert.SerialNumber), Signature: m.sig,
		ProducedAt: m.response.producedAt, ThisUpdate: of.thisUpdate, NextUpdate: of.nextUpdate, RefreshAt: refresh,
	}, nil
}

func (a *ahead) keep(ctx context.Context, list []Ahead) error {
	if len(list) == 0 {
		return nil
	}
	return a.s.cfg.Shelf.Keep(ctx, a.hash, list)
}

func (a *ahead) drop(ctx context.Context, list []ca.Serial) error {
	if len(list) == 0 {
		return nil
	}
	return a.s.cfg.Shelf.Drop(ctx, a.hash, list)
}

func (a *ahead) putOff(ctx context.Context, list []ca.Serial) error {
	if len(list) == 0 {
		return nil
	}
	return a.s.cfg.Shelf.PutOff(ctx, a.hash, list, a.s.cfg.Now().Add(aheadRetry))
}

// post finds the post of an issuer.
func (s *Server) post(id ca.IssuerID) *post {
	for _, p := range s.posts {
		if p.issuer.ID == id {
			return p
		}
	}
	return nil
}

// certID is how clients ask about a certificate: with NULL for parameters of the
// hash.
func (p *post) certID(h Hash, serial ca.Serial) (certID, error) {
	number, err := hex.DecodeString(string(serial))
	if err != nil || len(number) == 0 {
		return certID{}, fmt.Errorf("serial %q is not one", serial)
	}
	if number[0]&0x80 != 0 {
		number = append([]byte{0}, number...)
	}
	oid := oidSHA1
	if h == SHA256 {
		oid = oidSHA256
	}
	name := p.hashes[h.algorithm()]
	id := certID{hash: h.algorithm(), nameHash: []byte(name.name), keyHash: []byte(name.key), number: number}
	var b cryptobyte.Builder
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1ObjectIdentifier(oid)
			b.AddASN1NULL()
		})
		b.AddASN1OctetString(id.nameHash)
		b.AddASN1OctetString(id.keyHash)
		b.AddASN1(casn1.INTEGER, func(b *cryptobyte.Builder) { b.AddBytes(number) })
	})
	id.raw, err = b.Bytes()
	return id, err
}

// shelved puts together the answer about a certificate in state st from a
// signature made ahead; nil if there is none that says so. Whatever the store
// has, what does not verify is not sent.
func (s *Server) shelved(ctx context.Context, p *post, id certID, st Status) *answer {
	h := SHA256
	if id.hash == crypto.SHA1 {
		h = SHA1
	}
	if id.hash != h.algorithm() || !slices.Contains(s.cfg.Ahead, h) {
		return nil
	}
	serial, _ := id.serial()
	if usual, err := p.certID(h, serial); err != nil || !bytes.Equal(usual.raw, id.raw) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ReadTimeout)
	defer cancel()
	kept, err := s.cfg.Shelf.Ahead(ctx, serial, h)
	if err != nil {
		if !errors.Is(err, ca.ErrNotFound) {
			s.faults.report(ctx, "reading a signature made ahead", err)
		}
		return nil
	}
	if !s.cfg.Now().Before(kept.NextUpdate) {
		return nil
	}
	by := s.speaker(ctx, p, kept)
	if by == nil {
		return nil
	}
	m := signed{by: by, sig: kept.Signature, response: &response{producedAt: kept.ProducedAt, singles: []single{{
		certID: id.raw, status: st, thisUpdate: kept.ThisUpdate, nextUpdate: kept.NextUpdate,
	}}}}
	if s.cfg.Archive > 0 {
		m.response.archiveCutoff = kept.ProducedAt.Add(-s.cfg.Archive)
	}
	if m.tbs, err = by.responseData(m.response); err != nil {
		return nil
	}
	if by.cert.CheckSignature(by.scheme.algorithm, m.tbs, m.sig) != nil {
		return nil // about another status, or by another encoding
	}
	s.metrics.shelved.Inc()
	return s.answerOf(m, kept.RefreshAt)
}

// speaker returns the delegate that made a kept signature, if its word is still
// good: the one in office, one of before, or one of a run before, whose
// certificate the store has. That one need not have its key at hand: it stands
// behind what it signed, also when nobody can sign.
func (s *Server) speaker(ctx context.Context, p *post, kept Ahead) *delegate {
	p.mu.Lock()
	all := slices.Clone(p.before)
	p.mu.Unlock()
	if d := p.delegate.Load(); d != nil {
		all = append(all, d)
	}
	for _, d := range all {
		if ca.SerialOf(d.cert.SerialNumber) == kept.Responder {
			if d.revoked.Load() {
				return nil
			}
			return d
		}
	}
	d, err := s.certified(p.issuer, kept.ResponderDER)
	if err != nil || s.revoked(ctx, p.issuer, d.cert) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.before) == maxBefore {
		return nil
	}
	p.before = append(p.before, d)
	return d
}
