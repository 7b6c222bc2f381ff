package scep

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/cms"
	"github.com/secsy-pki/secsy-pki/keys"
)

const (
	// checkEvery is how often a registration authority's certificate is looked at,
	// give or take a quarter.
	checkEvery = 10 * time.Minute
	// firstRetry and lastRetry bound the pause after it could not be had.
	firstRetry = 5 * time.Second
	lastRetry  = 5 * time.Minute
	// staffTimeout bounds one attempt, in which a device may have to make a key.
	staffTimeout = 2 * time.Minute
	// maxKeys bounds the keys of one issuer's registration authority, one after
	// another, of which all but the last were compromised.
	maxKeys = 16
)

// An office is an issuer with the registration authority that speaks for it. While
// it has none, devices are told to come back.
type office struct {
	issuer    *ca.Issuer
	registrar atomic.Pointer[registrar]
	failing   atomic.Bool
}

// A registrar is a registration authority: an RSA key that the CA certified, which
// signs what is said to devices and opens what they send. The CA's own key does
// neither, and may be of any kind.
type registrar struct {
	key    keys.Key
	opens  keys.Decrypter
	cert   *x509.Certificate
	spki   [32]byte
	caCert map[*endpoint]file // what GetCACert answers
	next   map[*endpoint]file // what GetNextCACert answers, where there is anything
}

// Prepare gives every issuer its registration authority: the stored one, or a new
// one. Its error names the issuers that have none; Run keeps trying.
func (s *Server) Prepare(ctx context.Context) error {
	var errs []error
	for _, o := range s.offices {
		if err := s.staff(ctx, o); err != nil && o.registrar.Load() == nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Run sees to it that the registration authorities have certificates that last,
// until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	done := make(chan struct{})
	for _, o := range s.offices {
		go func() {
			defer func() { done <- struct{}{} }()
			s.keepStaffed(ctx, o)
		}()
	}
	for range s.offices {
		<-done
	}
	return nil
}

func (s *Server) keepStaffed(ctx context.Context, o *office) {
	retry := firstRetry
	for {
		wait := checkEvery*3/4 + rand.N(checkEvery/2)
		if err := s.staff(ctx, o); err != nil {
			wait, retry = retry, min(2*retry, lastRetry)
		} else {
			retry = firstRetry
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// staff sees to it that o has a registrar with the certificate that all replicas
// use. When that fails, the one it has stays.
func (s *Server) staff(ctx context.Context, o *office) error {
	ctx, cancel := context.WithTimeout(ctx, staffTimeout)
	defer cancel()
	r, err := s.recruit(ctx, o.issuer)
	if r != nil && !r.same(o.registrar.Load()) {
		if err := s.equip(ctx, o, r); err != nil {
			return err
		}
		o.registrar.Store(r)
		s.metrics.notAfter.WithLabelValues(string(o.issuer.ID)).Set(float64(r.cert.NotAfter.Unix()))
	}
	if err != nil {
		if ctx.Err() == nil && !o.failing.Swap(true) {
			s.cfg.Logger.ErrorContext(ctx, "having no new certificate of a SCEP registration authority, which is tried until it succeeds",
				"issuer", string(o.issuer.ID), "one_left", o.registrar.Load() != nil, "error", err)
		}
		return fmt.Errorf("SCEP registration authority of issuer %s: %w", o.issuer.ID, err)
	}
	if o.failing.Swap(false) {
		s.cfg.Logger.InfoContext(ctx, "a SCEP registration authority has its certificate after all", "issuer", string(o.issuer.ID))
	}
	return nil
}

func (r *registrar) same(old *registrar) bool {
	return old != nil && bytes.Equal(r.cert.Raw, old.cert.Raw)
}

// recruit returns a registrar with the first key that the CA certifies: one that
// was given up as compromised has a successor. One whose certificate is only still
// valid comes back together with the error that kept a new one from being made.
func (s *Server) recruit(ctx context.Context, is *ca.Issuer) (*registrar, error) {
	for n := 1; ; n++ {
		label := "scep-" + string(is.ID)
		if n > 1 {
			label = fmt.Sprintf("%s-%d", label, n)
		}
		r, err := s.recruitFor(ctx, is, label)
		refused, ok := errors.AsType[*ca.Refusal](err)
		if !ok || refused.Code != ca.BadPublicKey || n == maxKeys {
			return r, err
		}
	}
}

func (s *Server) recruitFor(ctx context.Context, is *ca.Issuer, label string) (*registrar, error) {
	key, err := s.key(ctx, label)
	if err != nil {
		return nil, err
	}
	opens, ok := key.(keys.Decrypter)
	if !ok {
		return nil, fmt.Errorf("key %q can't decrypt: destroy it, and another one will be made, or make one that can", label)
	}
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("encoding key %q: %w", label, err)
	}
	r := &registrar{key: key, opens: opens, spki: sha256.Sum256(spki)}
	stored, err := s.stored(ctx, is, r)
	if err != nil {
		return nil, err
	}
	if stored != nil {
		r.cert = stored
		if s.fresh(stored) {
			return r, nil
		}
	}
	made, err := s.issue(ctx, is, r)
	if made == nil {
		if stored == nil {
			r = nil
		}
		return r, err
	}
	r.cert = made
	// Another replica may have done the same a moment ago.
	if theirs, err := s.stored(ctx, is, r); err == nil && theirs != nil && theirs.NotAfter.After(made.NotAfter) {
		r.cert = theirs
	}
	return r, err
}

// key finds the authority's key, or makes it.
func (s *Server) key(ctx context.Context, label string) (keys.Key, error) {
	k, err := s.cfg.Keys.Key(ctx, label)
	if errors.Is(err, keys.ErrNotFound) {
		k, err = s.cfg.Keys.Generate(keys.ToDecrypt(ctx), label, s.cfg.KeyAlgorithm)
		if errors.Is(err, keys.ErrExists) { // another replica was quicker
			k, err = s.cfg.Keys.Key(ctx, label)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("finding or making key %q: %w", label, err)
	}
	return k, nil
}

// fresh reports whether cert is in the first three quarters of its life.
func (s *Server) fresh(cert *x509.Certificate) bool {
	return s.cfg.Now().Before(cert.NotBefore.Add(cert.NotAfter.Sub(cert.NotBefore) / 4 * 3))
}

// stored returns the certificate that the store has for the key of r, nil for none
// that may be used.
func (s *Server) stored(ctx context.Context, is *ca.Issuer, r *registrar) (*x509.Certificate, error) {
	der, err := s.cfg.Registrations.Registration(ctx, is.ID, r.spki)
	if errors.Is(err, ca.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading its certificate: %w", err)
	}
	cert, err := s.check(is, r, der)
	if err != nil {
		s.cfg.Logger.WarnContext(ctx, "passing over a stored certificate of a SCEP registration authority", "issuer", string(is.ID), "error", err)
		return nil, nil
	}
	rec, err := s.cfg.Certificates.Record(ctx, ca.SerialOf(cert.SerialNumber))
	switch {
	case errors.Is(err, ca.ErrNotFound) || err == nil && rec.Revoked():
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading the status of its certificate: %w", err)
	}
	return cert, nil
}

// issue has the CA certify the key of r. A certificate comes with an error if it
// could not be kept, which the next start makes good.
func (s *Server) issue(ctx context.Context, is *ca.Issuer, r *registrar) (*x509.Certificate, error) {
	c, err := s.cfg.CA.Issue(ctx, ca.Request{
		Profile: ca.ProfileRegistration, Issuer: is.ID, PublicKey: r.key.Public(), Requester: ca.Requester{Actor: "system"},
	}, s.cfg.Ledger)
	if err != nil {
		return nil, fmt.Errorf("issuing its certificate: %w", err)
	}
	cert, err := s.check(is, r, c.DER)
	if err != nil {
		return nil, fmt.Errorf("checking its certificate %s: %w", c.Serial, err)
	}
	if err := s.cfg.Registrations.SaveRegistration(ctx, is.ID, r.spki, c.DER, cert.NotAfter); err != nil {
		s.cfg.Logger.ErrorContext(ctx, "keeping the certificate of a SCEP registration authority", "issuer", string(is.ID), "error", err)
	}
	return cert, nil
}

func (s *Server) check(is *ca.Issuer, r *registrar, der []byte) (*x509.Certificate, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parsing: %w", err)
	}
	const uses = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
	now := s.cfg.Now()
	switch {
	case spkiHash(cert) != r.spki:
		return nil, errors.New("it is for another key")
	case !sameIssuer(cert.RawIssuer, is):
		return nil, errors.New("it is another issuer's")
	case cert.KeyUsage&uses != uses:
		return nil, errors.New("it is not for signatures and key encipherment")
	case now.Before(cert.NotBefore) || !now.Before(cert.NotAfter):
		return nil, fmt.Errorf("it is valid from %v to %v", cert.NotBefore, cert.NotAfter)
	}
	if err := cert.CheckSignatureFrom(is.Cert); err != nil {
		return nil, fmt.Errorf("checking its signature: %w", err)
	}
	return cert, nil
}

// equip makes ready what r answers to whoever asks.
func (s *Server) equip(ctx context.Context, o *office, r *registrar) error {
	r.caCert, r.next = map[*endpoint]file{}, map[*endpoint]file{}
	for _, e := range s.endpoints {
		if e.office != o {
			continue
		}
		der, err := cms.CertsOnly(e.chain(r), nil)
		if err != nil {
			return err
		}
		r.caCert[e] = newFile(typeCACerts, der)
		if len(e.Next) == 0 {
			continue
		}
		if der, err = s.nextCA(ctx, r, e); err != nil {
			return err
		}
		r.next[e] = newFile(typeNextCA, der)
	}
	return nil
}

// chain is in the order that clients go by: the first is the one to encrypt for.
func (e *endpoint) chain(r *registrar) [][]byte {
	list := [][]byte{r.cert.Raw, e.Issuer.Cert.Raw}
	for _, c := range e.Issuer.Chain {
		list = append(list, c.Raw)
	}
	// There are clients (strongSwan) that look for the root here, to ask whether it is
	// to be trusted.
	if root := e.Issuer.Root; root != nil {
		list = append(list, root.Raw)
	}
	return list
}

// nextCA is the answer to GetNextCACert (RFC 8894 §4.7.1), signed by who is
// trusted now.
func (s *Server) nextCA(ctx context.Context, r *registrar, e *endpoint) ([]byte, error) {
	list := make([][]byte, 0, len(e.Next))
	for _, c := range e.Next {
		list = append(list, c.Raw)
	}
	inner, err := cms.CertsOnly(list, nil)
	if err != nil {
		return nil, err
	}
	signer := cms.Signer{Certificate: r.cert, Key: keys.Signer(ctx, r.key)}
	der, err := signer.Sign(cms.OIDData, inner, []cms.Attribute{{Type: cms.OIDSigningTime, Values: timeValue(s.cfg.Now().UTC())}}, [][]byte{r.cert.Raw})
	if err != nil {
		return nil, fmt.Errorf("signing the next CA's certificate: %w", err)
	}
	return der, nil
}
