package ca

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"

	"github.com/secsy-pki/secsy-pki/keys"
)

// An Issuer is a CA certificate with its key and the addresses that go into
// what it signs. It does not change after start.
type Issuer struct {
	ID    IssuerID
	Name  string // the operator's name for it
	Cert  *x509.Certificate
	Chain []*x509.Certificate // the certificates above Cert that are sent along, root left out
	// Alternates are further chains, each from a certificate of the issuer's name
	// and key on, root left out, for clients who trust another root.
	Alternates [][]*x509.Certificate
	Key        keys.Key
	Active     bool // new certificates are issued from it; otherwise only status is signed

	OCSPURL string // http://…/ocsp
	CRLURL  string // http://…/crl/ID.crl
	CertURL string // http://…/aia/ID.cer
}

// Chains lists all chains, the issuer's certificate first in each: its own one
// before the alternates.
func (i *Issuer) Chains() [][]*x509.Certificate {
	own := append([]*x509.Certificate{i.Cert}, i.Chain...)
	return append([][]*x509.Certificate{own}, i.Alternates...)
}

// IDOf computes the IssuerID of a CA certificate.
func IDOf(cert *x509.Certificate) IssuerID {
	h := sha256.New()
	h.Write(cert.RawSubject)
	h.Write(cert.RawSubjectPublicKeyInfo)
	return IssuerID(hex.EncodeToString(h.Sum(nil))[:32])
}

// Profiles that every CA has, whatever its configuration says.
const (
	// ProfileSelf is for the server's own https certificate.
	ProfileSelf = "secsy-self"
	// ProfileResponder is for delegated OCSP responders (RFC 6960 §4.2.2.2).
	ProfileResponder = "secsy-ocsp-responder"
)
