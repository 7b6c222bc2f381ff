package ocsp

import (
	"bytes"
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
)

const (
	// checkEvery is how often a delegate is looked at, give or take a quarter, so
	// that replicas do not all do so at once.
	checkEvery = 10 * time.Minute
	// firstRetry and lastRetry bound the pause after a failed renewal.
	firstRetry = 10 * time.Second
	lastRetry  = 10 * time.Minute
	// leastBusy and mostBusy bound the pause after the device was known to be
	// busy, which costs nothing: it is to be noticed soon that it is back.
	leastBusy = 5 * time.Second
	mostBusy  = 10 * time.Second
	// renewTimeout bounds one attempt.
	renewTimeout = time.Minute
	// colleagueWait is how often it is looked whether another replica, which is
	// renewing for both, has done so. It is only waited for by who has none.
	colleagueWait = 200 * time.Millisecond
	// maxKeys bounds the keys of one issuer's delegates, one after another, of
	// which all but the last were compromised.
	maxKeys = 16
	// maxBefore bounds the delegates of before that are remembered: more than that
	// many are not renewed in one life.
	maxBefore = 32
)

var oidNoCheck = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 48, 1, 5}

// A post is an issuer with the delegate that answers for it. While it has none
// its answer is tryLater; the CA's own key never stands in.
type post struct {
	index    int
	issuer   *ca.Issuer
	hashes   map[crypto.Hash]issuerHash // how CertIDs name the issuer
	delegate atomic.Pointer[delegate]
	signing  trouble
	renewing trouble

	// Whoever looks for changes, one at a time, has these.
	followed bool
	seen     int64 // the last change that the cache has heard of

	// before are the delegates of before whose certificates have not ended, and
	// whose word is still good: what they signed is sent on.
	mu     sync.Mutex // guards before
	before []*delegate
}

// Prepare gives every issuer its responder certificate: the stored one, or a
// new one. Its error names the issuers that have none; Run keeps trying.
func (s *Server) Prepare(ctx context.Context) error {
	var errs []error
	for _, p := range s.posts {
		if err := s.staff(ctx, p); err != nil && p.delegate.Load() == nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Run renews the responder certificates at half of their lives, answers that are
// asked for before they come due, and signs ahead what is to be signed ahead,
// until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { s.refresh(ctx) })
	for _, h := range s.cfg.Ahead {
		wg.Go(func() { newAhead(s, h).run(ctx) })
	}
	for _, p := range s.posts {
		wg.Go(func() { s.keepStaffed(ctx, p) })
	}
	wg.Wait()
	return nil
}

func (s *Server) keepStaffed(ctx context.Context, p *post) {
	retry := firstRetry
	for {
		wait := checkEvery*3/4 + rand.N(checkEvery/2)
		switch err := s.staff(ctx, p); {
		case errors.Is(err, keys.ErrBusy):
			wait = min(max(retryAfter(err), leastBusy), mostBusy)
		case err != nil:
			wait, retry = retry, min(2*retry, lastRetry)
		default:
			retry = firstRetry
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// staff sees to it that p has a delegate in the first half of its life. When
// that fails, the one it has stays.
func (s *Server) staff(ctx context.Context, p *post) error {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	s.dismiss(ctx, p)
	if d := p.delegate.Load(); usable(d) && s.fresh(d.cert) {
		return nil
	}
	d, err := s.recruit(ctx, p)
	if d != nil {
		s.appoint(p, d)
		s.metrics.notAfter.WithLabelValues(string(p.issuer.ID)).Set(float64(d.cert.NotAfter.Unix()))
	}
	if err != nil {
		s.metrics.renewals.WithLabelValues(string(p.issuer.ID), "error").Inc()
		if p.renewing.fails(s.cfg.Now()) {
			s.cfg.Logger.ErrorContext(ctx, "renewing an OCSP responder certificate, which is tried until it succeeds",
				"issuer", string(p.issuer.ID), "usable_one_left", usable(p.delegate.Load()), "error", err)
		}
		return fmt.Errorf("renewing the OCSP responder of issuer %s: %w", p.issuer.ID, err)
	}
	if over, took, failures := p.renewing.works(s.cfg.Now()); over {
		s.cfg.Logger.InfoContext(ctx, "renewed an OCSP responder certificate after all", "issuer", string(p.issuer.ID), "after", took, "failures", failures)
	}
	return nil
}

// dismiss takes the word back from delegates whose certificates were revoked, and
// forgets those whose certificates have ended.
func (s *Server) dismiss(ctx context.Context, p *post) {
	now := s.cfg.Now()
	p.mu.Lock()
	p.before = slices.DeleteFunc(p.before, func(d *delegate) bool { return !now.Before(d.cert.NotAfter) })
	all := slices.Clone(p.before)
	p.mu.Unlock()
	if d := p.delegate.Load(); d != nil {
		all = append(all, d)
	}
	for _, d := range all {
		if !d.revoked.Load() && s.revoked(ctx, p.issuer, d.cert) {
			d.revoked.Store(true)
		}
	}
}

// appoint has d answer from now on. Its certificate is dated back by an hour, so
// that it is good for clients whose clocks are behind.
func (s *Server) appoint(p *post, d *delegate) {
	old := p.delegate.Load()
	if old != nil && old.cert.Equal(d.cert) && !old.revoked.Load() {
		return // the stored one, once more
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if old != nil && len(p.before) < maxBefore {
		p.before = append(p.before, old)
	}
	p.delegate.Store(d)
}

func usable(d *delegate) bool { return d != nil && !d.revoked.Load() }

// fresh reports whether cert is in the first half of its life.
func (s *Server) fresh(cert *x509.Certificate) bool {
	return s.cfg.Now().Before(cert.NotBefore.Add(cert.NotAfter.Sub(cert.NotBefore) / 2))
}

// revoked reports whether it is known that a delegate's certificate was
// revoked. Clients don't ask, as it says nocheck, so it is for us to stop using it.
func (s *Server) revoked(ctx context.Context, is *ca.Issuer, cert *x509.Certificate) bool {
	st, err := s.cfg.Source.Status(ctx, is.ID, ca.SerialOf(cert.SerialNumber))
	return err == nil && !st.RevokedAt.IsZero()
}

// recruit returns a delegate for the first key of the post that the CA
// certifies: one that was given up as compromised has a successor.
func (s *Server) recruit(ctx context.Context, p *post) (*delegate, error) {
	for n := 1; ; n++ {
		label := "ocsp-" + string(p.issuer.ID)
		if n > 1 {
			label = fmt.Sprintf("%s-%d", label, n)
		}
		d, err := s.recruitFor(ctx, p, label)
		r, refused := errors.AsType[*ca.Refusal](err)
		if !refused || r.Code != ca.BadPublicKey || n == maxKeys {
			return d, err
		}
	}
}

// recruitFor returns the stored delegate of a key if it is fresh, else a new
// one. A stored one that is only still valid comes back together with the error
// that kept a new one from being made.
func (s *Server) recruitFor(ctx context.Context, p *post, label string) (*delegate, error) {
	key, err := s.key(ctx, label)
	if err != nil {
		return nil, err
	}
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("encoding responder key: %w", err)
	}
	hash := sha256.Sum256(spki)
	work := "responder/" + string(p.issuer.ID) + "/" + hex.EncodeToString(hash[:8])
	for {
		stored, err := s.stored(ctx, p.issuer, key, hash)
		if err != nil || stored != nil && s.fresh(stored.cert) {
			return stored, err
		}
		mine, err := s.claim(ctx, work)
		switch {
		case err != nil:
			return stored, err
		case mine:
			return s.succeed(ctx, p, key, hash, work)
		case stored != nil:
			return stored, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for another replica to renew it: %w", ctx.Err())
		case <-time.After(colleagueWait):
		}
	}
}

// claim gives work to this replica for as long as an attempt takes.
func (s *Server) claim(ctx context.Context, work string) (bool, error) {
	if s.cfg.Leases == nil {
		return true, nil
	}
	now := s.cfg.Now()
	mine, err := s.cfg.Leases.Claim(ctx, work, s.holder, now, now.Add(renewTimeout))
	return mine, wrap(err, "claiming %s", work)
}

// leave has somebody else try at once what was not done.
func (s *Server) leave(ctx context.Context, work string) {
	if s.cfg.Leases == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.ReadTimeout)
	defer cancel()
	if err := s.cfg.Leases.Leave(ctx, work, s.holder); err != nil {
		s.cfg.Logger.WarnContext(ctx, "leaving a lease, which ends by itself", "work", work, "error", err)
	}
}

// succeed has a new delegate made, for which work is claimed, unless somebody
// who had the claim before has done so.
func (s *Server) succeed(ctx context.Context, p *post, key keys.Key, spki [32]byte, work string) (*delegate, error) {
	defer s.leave(ctx, work)
	stored, err := s.stored(ctx, p.issuer, key, spki)
	if err != nil || stored != nil && s.fresh(stored.cert) {
		return stored, err
	}
	made, err := s.issue(ctx, p.issuer, key, spki)
	if err != nil {
		return stored, err
	}
	s.metrics.renewals.WithLabelValues(string(p.issuer.ID), "ok").Inc()
	return made, nil
}

// key finds the responder's key, or makes it.
func (s *Server) key(ctx context.Context, label string) (keys.Key, error) {
	k, err := s.cfg.Keys.Key(ctx, label)
	if !errors.Is(err, keys.ErrNotFound) {
		return k, wrap(err, "finding key %q", label)
	}
	k, err = s.cfg.Keys.Generate(ctx, label, s.cfg.KeyAlgorithm)
	if errors.Is(err, keys.ErrExists) { // another replica was quicker
		k, err = s.cfg.Keys.Key(ctx, label)
	}
	return k, wrap(err, "making key %q", label)
}

func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// stored returns the delegate that the store has for key, nil for none that
// may be used.
func (s *Server) stored(ctx context.Context, is *ca.Issuer, key keys.Key, spki [32]byte) (*delegate, error) {
	der, err := s.cfg.Responders.Responder(ctx, is.ID, spki)
	if errors.Is(err, ca.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading responder certificate: %w", err)
	}
	d, err := s.admit(is, key, spki, der)
	if err != nil {
		s.cfg.Logger.WarnContext(ctx, "passing over a stored OCSP responder certificate", "issuer", string(is.ID), "error", err)
		return nil, nil
	}
	if s.revoked(ctx, is, d.cert) {
		return nil, nil
	}
	return d, nil
}

// issue has the CA certify key. That the certificate could not be kept does
// not make it worse: the next start asks for another.
func (s *Server) issue(ctx context.Context, is *ca.Issuer, key keys.Key, spki [32]byte) (*delegate, error) {
	c, err := s.cfg.CA.Issue(ctx, ca.Request{
		Profile:   ca.ProfileResponder,
		Issuer:    is.ID,
		PublicKey: key.Public(),
		Requester: ca.Requester{Actor: "system"},
	}, s.cfg.Ledger)
	if err != nil {
		return nil, fmt.Errorf("issuing responder certificate: %w", err)
	}
	d, err := s.admit(is, key, spki, c.DER)
	if err != nil {
		return nil, fmt.Errorf("checking responder certificate %s: %w", c.Serial, err)
	}
	if err := s.cfg.Responders.SaveResponder(ctx, is.ID, spki, c.DER, d.cert.NotAfter); err != nil {
		s.cfg.Logger.ErrorContext(ctx, "keeping an OCSP responder certificate", "issuer", string(is.ID), "error", err)
	}
	return d, nil
}

// admit has key sign with a certificate that is for it and fit.
func (s *Server) admit(is *ca.Issuer, key keys.Key, spki [32]byte, der []byte) (*delegate, error) {
	d, err := s.certified(is, der)
	if err != nil {
		return nil, err
	}
	if d.spki != spki {
		return nil, errors.New("it is for another key")
	}
	d.key = key
	return d, nil
}

// certified checks what clients will check of a delegate (RFC 6960 §4.2.2.2):
// that the issuer itself certified it, for signing OCSP responses, now, and that
// nobody need ask for the status of the certificate.
func (s *Server) certified(is *ca.Issuer, der []byte) (*delegate, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parsing: %w", err)
	}
	now := s.cfg.Now()
	noCheck := func(e pkix.Extension) bool { return e.Id.Equal(oidNoCheck) }
	switch {
	case !bytes.Equal(cert.RawIssuer, is.Cert.RawSubject):
		return nil, errors.New("it is another issuer's")
	case !slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageOCSPSigning):
		return nil, errors.New("it lacks id-kp-OCSPSigning")
	case !slices.ContainsFunc(cert.Extensions, noCheck):
		return nil, errors.New("it lacks id-pkix-ocsp-nocheck")
	case now.Before(cert.NotBefore) || !now.Before(cert.NotAfter):
		return nil, fmt.Errorf("it is valid from %v to %v", cert.NotBefore, cert.NotAfter)
	}
	if err := cert.CheckSignatureFrom(is.Cert); err != nil {
		return nil, fmt.Errorf("checking its signature: %w", err)
	}
	return newDelegate(cert)
}
