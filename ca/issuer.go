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
	ID     IssuerID
	Name   string // the operator's name for it
	Cert   *x509.Certificate
	Chain  []*x509.Certificate // the certificates above Cert that are sent along, root left out
	Key    keys.Key
	Active bool // new certificates are issued from it; otherwise only status is signed

	OCSPURL string // http://…/ocsp
	CRLURL  string // http://…/crl/ID.crl
	CertURL string // http://…/aia/ID.cer
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
