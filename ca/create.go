package ca

import (
	"context"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"time"

	"github.com/secsy-pki/secsy-pki/ca/weakkey"
	"github.com/secsy-pki/secsy-pki/keys"
)

// Bounds of the validity of authorities (BR §6.3.2, and root programs).
const (
	maxRootAge    = 9131 * day // twenty-five years
	maxIssuingAge = 3650 * day
)

// authorityShard is the first octet of authorities' serials; they are random
// beyond it like all others.
const authorityShard = 1

// A RootRequest asks for a root: the certificate of a key by itself.
type RootRequest struct {
	Subject  pkix.Name
	Key      keys.Key
	Validity time.Duration // 0 means 20 years, at most 25
	Linter   Linter
	Clock    func() time.Time // nil means time.Now
}

// CreateRoot returns a linted, self-signed root in DER. Nothing is stored.
//
// What is linted before the signature certifies the throwaway key, because a
// draft that another key signed is no root; so the root itself is linted too.
func CreateRoot(ctx context.Context, r RootRequest) ([]byte, error) {
	if r.Key == nil || r.Linter == nil || r.Subject.CommonName == "" {
		return nil, errors.New("a root needs a key, a linter and a common name")
	}
	notBefore, notAfter, err := authorityValidity(r.Clock, r.Validity, 20*365*day, maxRootAge)
	if err != nil {
		return nil, fmt.Errorf("root: %w", err)
	}
	pub := r.Key.Public()
	t, err := authorityTemplate(r.Subject, pub, notBefore, notAfter)
	if err != nil {
		return nil, err
	}
	d, err := newDrafter(pub, nil)
	if err != nil {
		return nil, err
	}
	rehearsal := authorityRequest{template: t, pub: d.key.Public(), drafter: d, linter: r.Linter, kind: LintRoot}
	if _, err := rehearsal.draft(ctx); err != nil {
		return nil, err
	}
	final, err := d.draft(t, pub)
	if err != nil {
		return nil, err
	}
	der, err := signTBS(ctx, r.Key, final)
	if err != nil {
		return nil, fmt.Errorf("root: %w", err)
	}
	hash, err := weakkey.SPKIHash(pub)
	if err != nil {
		return nil, err
	}
	return der, lint(ctx, r.Linter, Draft{DER: der, Kind: LintRoot, SPKIHash: hash})
}

// An IssuingRequest asks for an authority below a root, that issues to end
// entities only.
type IssuingRequest struct {
	Root    *x509.Certificate
	RootKey keys.Key

	Subject   pkix.Name
	PublicKey crypto.PublicKey // of the new authority
	Validity  time.Duration    // 0 means 10 years, the most; never beyond the root's
	Policy    Policy           // "" means Internal

	// Where the root's own status and certificate are; "" leaves the address out.
	CRLURL, OCSPURL, CertURL string

	Linter Linter
	Clock  func() time.Time // nil means time.Now
}

// CreateIssuing returns the linted certificate of an issuing authority in DER.
// Nothing is stored.
func CreateIssuing(ctx context.Context, r IssuingRequest) ([]byte, error) {
	if r.Root == nil || r.RootKey == nil || r.Linter == nil || r.PublicKey == nil || r.Subject.CommonName == "" {
		return nil, errors.New("an issuing authority needs a root and its key, a public key, a linter and a common name")
	}
	if !samePublic(r.Root.PublicKey, r.RootKey.Public()) {
		return nil, errors.New("the root's key is not its certificate's")
	}
	if samePublic(r.Root.PublicKey, r.PublicKey) {
		return nil, errors.New("an issuing authority needs a key of its own")
	}
	notBefore, notAfter, err := authorityValidity(r.Clock, r.Validity, maxIssuingAge, maxIssuingAge)
	if err != nil {
		return nil, fmt.Errorf("issuing authority: %w", err)
	}
	if notAfter.After(r.Root.NotAfter) {
		notAfter = r.Root.NotAfter
	}
	if notBefore.Before(r.Root.NotBefore) {
		notBefore = r.Root.NotBefore
	}
	t, err := authorityTemplate(r.Subject, r.PublicKey, notBefore, notAfter)
	if err != nil {
		return nil, err
	}
	r.complete(t)
	d, err := newDrafter(r.RootKey.Public(), r.Root)
	if err != nil {
		return nil, err
	}
	req := authorityRequest{template: t, pub: r.PublicKey, drafter: d, linter: r.Linter, kind: LintIssuing, issuer: r.Root}
	linted, err := req.draft(ctx)
	if err != nil {
		return nil, err
	}
	der, err := signTBS(ctx, r.RootKey, linted)
	if err != nil {
		return nil, fmt.Errorf("authority %q: %w", r.Subject.CommonName, err)
	}
	return der, nil
}

// complete adds what an issuing authority has and a root has not. Publicly it
// is for servers only and follows one policy; internally it is left open what
// it certifies: devices come with uses that nobody lists beforehand.
func (r IssuingRequest) complete(t *x509.Certificate) {
	t.MaxPathLenZero = true
	add := func(list *[]string, url string) {
		if url != "" {
			*list = []string{url}
		}
	}
	add(&t.CRLDistributionPoints, r.CRLURL)
	add(&t.OCSPServer, r.OCSPURL)
	add(&t.IssuingCertificateURL, r.CertURL)
	if r.Policy == Public {
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		t.Policies = []x509.OID{oidDomainValidated}
	}
}

func authorityValidity(clock func() time.Time, want, def, most time.Duration) (notBefore, notAfter time.Time, err error) {
	if clock == nil {
		clock = time.Now
	}
	if want == 0 {
		want = def
	}
	if want < day || want > most {
		return notBefore, notAfter, fmt.Errorf("validity %s is not from %s to %s", want, day, most)
	}
	notBefore = clock().UTC().Truncate(time.Second)
	return notBefore, notBefore.Add(want - time.Second), nil
}

func authorityTemplate(subject pkix.Name, pub crypto.PublicKey, notBefore, notAfter time.Time) (*x509.Certificate, error) {
	n, err := newSerial(authorityShard).Int()
	if err != nil {
		return nil, err
	}
	id, err := keyID(pub)
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{
		SerialNumber: n, Subject: subject, NotBefore: notBefore, NotAfter: notAfter, SubjectKeyId: id,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, IsCA: true, BasicConstraintsValid: true,
	}, nil
}

type authorityRequest struct {
	template *x509.Certificate
	pub      crypto.PublicKey
	drafter  *drafter
	linter   Linter
	kind     LintKind
	issuer   *x509.Certificate // nil for a root
}

// draft encodes and lints.
func (r authorityRequest) draft(ctx context.Context) (draft, error) {
	hash, err := weakkey.SPKIHash(r.pub)
	if err != nil {
		return draft{}, err
	}
	d, err := r.drafter.draft(r.template, r.pub)
	if err != nil {
		return draft{}, err
	}
	if err := lint(ctx, r.linter, Draft{DER: d.der, Issuer: r.issuer, Kind: r.kind, SPKIHash: hash}); err != nil {
		return draft{}, fmt.Errorf("authority %q: %w", r.template.Subject.CommonName, err)
	}
	return d, nil
}
