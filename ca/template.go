package ca

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/cryptobyte"
	cryptobyte_asn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/secsy-pki/secsy-pki/keys"
)

// maxCN is the upper bound of a common name (RFC 5280, appendix A.1).
const maxCN = 64

// maxAhead is how far in the future a requested notBefore may lie.
const maxAhead = 30 * day

// oidDomainValidated is the policy that the CA/Browser Forum gives to
// certificates whose names were proven and nothing else (BR §7.1.6.1).
var oidDomainValidated = mustOID(2, 23, 140, 1, 2, 1)

func mustOID(arcs ...uint64) x509.OID {
	oid, err := x509.OIDFromInts(arcs)
	if err != nil {
		panic(err)
	}
	return oid
}

// An order is a request that was found good: what is to be certified, by whom, as what.
type order struct {
	profile   *Profile
	issuer    *issuer
	pub       crypto.PublicKey
	spki      [32]byte
	names     []Identifier
	notBefore time.Time
	notAfter  time.Time
	requester Requester
	purpose   keys.Purpose
}

// template writes o as a certificate of that serial.
func (o *order) template(s Serial, list CRLShard, policy Policy) (*x509.Certificate, error) {
	n, err := s.Int()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: n, NotBefore: o.notBefore, NotAfter: o.notAfter,
		KeyUsage: o.profile.usage(o.pub), BasicConstraintsValid: true,
	}
	if err := o.addStatus(t, list.URL); err != nil {
		return nil, err
	}
	switch o.profile.kind {
	case kindResponder:
		o.responder(t)
		return t, o.addKeyID(t)
	case kindRegistration:
		t.Subject = o.nameOfOurs(" SCEP RA")
		return t, o.addKeyID(t)
	}
	for _, u := range o.profile.ExtKeyUsages {
		t.ExtKeyUsage = append(t.ExtKeyUsage, extKeyUsages[u])
	}
	if err := o.addNames(t); err != nil {
		return nil, err
	}
	if policy == Public {
		// BR §7.1.2.7.6: a key id is not recommended for subscribers.
		t.Policies = []x509.OID{oidDomainValidated}
		return t, nil
	}
	return t, o.addKeyID(t)
}

// usage leaves keyEncipherment to RSA, the only kind of key that enciphers.
func (p *Profile) usage(pub crypto.PublicKey) x509.KeyUsage {
	var u x509.KeyUsage
	for _, name := range p.KeyUsages {
		u |= keyUsages[name]
	}
	if publicKeyAlgorithm(pub) != x509.RSA {
		u &^= x509.KeyUsageKeyEncipherment | x509.KeyUsageDataEncipherment
	}
	return u
}

// addStatus says where status is to be had, or that there is none.
func (o *order) addStatus(t *x509.Certificate, crl string) error {
	add := func(list *[]string, url string, omit bool) {
		if url != "" && !omit {
			*list = []string{url}
		}
	}
	add(&t.OCSPServer, o.issuer.OCSPURL, o.profile.OmitOCSP)
	add(&t.CRLDistributionPoints, crl, o.profile.OmitCRL)
	add(&t.IssuingCertificateURL, o.issuer.CertURL, o.profile.OmitCAIssuers)
	if o.profile.NoRevAvail {
		t.ExtraExtensions = append(t.ExtraExtensions, pkix.Extension{Id: oidNoRevAvail, Value: derNull})
	}
	if o.issuer.FreshestCRL && len(t.CRLDistributionPoints) > 0 {
		// RFC 5280 §4.2.1.15: not critical, and written as the distribution points are.
		points, err := distributionPoint(DeltaURL(crl))
		if err != nil {
			return err
		}
		t.ExtraExtensions = append(t.ExtraExtensions, pkix.Extension{Id: oidFreshestCRL, Value: points})
	}
	return nil
}

// distributionPoint is a CRLDistributionPoints of one address (RFC 5280 §4.2.1.13).
func distributionPoint(url string) ([]byte, error) {
	var b cryptobyte.Builder
	b.AddASN1(cryptobyte_asn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1(cryptobyte_asn1.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1(cryptobyte_asn1.Tag(0).ContextSpecific().Constructed(), func(b *cryptobyte.Builder) {
				b.AddASN1(cryptobyte_asn1.Tag(0).ContextSpecific().Constructed(), func(b *cryptobyte.Builder) {
					b.AddASN1(cryptobyte_asn1.Tag(6).ContextSpecific(), func(b *cryptobyte.Builder) { b.AddBytes([]byte(url)) })
				})
			})
		})
	})
	der, err := b.Bytes()
	if err != nil {
		return nil, fmt.Errorf("encoding distribution point: %w", err)
	}
	return der, nil
}

func (o *order) addNames(t *x509.Certificate) error {
	t.Subject = subjectOf(o.names)
	if slices.ContainsFunc(o.names, func(id Identifier) bool { return id.Type.IsDevice() }) {
		return o.addAllNames(t)
	}
	for _, id := range o.names {
		switch id.Type {
		case DNS:
			t.DNSNames = append(t.DNSNames, id.Value)
			if o.profile.CommonName == CNFirst && t.Subject.CommonName == "" && len(id.Value) <= maxCN {
				t.Subject.CommonName = id.Value
			}
		case IP:
			a, err := netip.ParseAddr(id.Value)
			if err != nil {
				return fmt.Errorf("address of a checked request: %w", err)
			}
			t.IPAddresses = append(t.IPAddresses, net.IP(a.AsSlice()))
		}
	}
	return nil
}

// addAllNames is addNames where there are devices among the names.
func (o *order) addAllNames(t *x509.Certificate) error {
	for _, id := range o.names {
		if name, _, _ := strings.Cut(id.Value, "/"); id.Type != IP && !id.Type.IsSubject() && o.profile.CommonName == CNFirst && t.Subject.CommonName == "" && len(name) <= maxCN {
			t.Subject.CommonName = name
		}
	}
	ext, err := altNamesOf(o.names, t.Subject.CommonName == "" && t.Subject.SerialNumber == "")
	t.ExtraExtensions = append(t.ExtraExtensions, ext)
	return err
}

// responder makes t the certificate of a delegated responder (RFC 6960
// §4.2.2.2): clients don't ask for its own status (§4.2.2.2.1), so it is short-lived.
func (o *order) responder(t *x509.Certificate) {
	t.Subject = o.nameOfOurs(" OCSP responder")
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageOCSPSigning}
	t.ExtraExtensions = append(t.ExtraExtensions, pkix.Extension{Id: oidOCSPNoCheck, Value: derNull})
}

// nameOfOurs is the issuer's name, and what the subject is to it.
func (o *order) nameOfOurs(suffix string) pkix.Name {
	name := o.issuer.Cert.Subject
	cn := name.CommonName
	if cn == "" {
		cn = o.issuer.Name
	}
	r := []rune(cn)
	if most := maxCN - len(suffix); len(r) > most {
		cn = string(r[:most])
	}
	return pkix.Name{Country: name.Country, Organization: name.Organization, CommonName: cn + suffix}
}

func (o *order) addKeyID(t *x509.Certificate) error {
	id, err := keyID(o.pub)
	t.SubjectKeyId = id
	return err
}

// keyID is the first method of RFC 7093 §2: 160 bits of the SHA-256 of the key.
func keyID(pub crypto.PublicKey) ([]byte, error) {
	bits, err := publicKeyBits(pub)
	if err != nil {
		return nil, err
	}
	h := sha256.Sum256(bits)
	return h[:20], nil
}
