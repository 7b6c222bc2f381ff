package ca

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/secsy-pki/secsy-pki/keys"
)

// An Issuer is a CA certificate with its key and the addresses that go into
// what it signs. It does not change after start.
type Issuer struct {
	ID    IssuerID
	Name  string // the operator's name for it
	Cert  *x509.Certificate
	Chain []*x509.Certificate // the certificates above Cert that are sent along, root left out
	// Root is the root above Chain, for protocols that tell devices whom to trust; nil:
	// it is not known, or is Cert itself.
	Root *x509.Certificate
	// Alternates are further chains, each from a certificate of the issuer's name
	// and key on, root left out, for clients who trust another root.
	Alternates [][]*x509.Certificate
	Key        keys.Key
	Active     bool // new certificates are issued from it; otherwise only status is signed
	Hold       bool // its certificates may be put on hold; never under the public policy

	OCSPURL string // http://…/ocsp
	CRLURL  string // http://…/crl/ID.crl
	CertURL string // http://…/aia/ID.cer

	// CRLShards are the parts of the revocation list that new certificates are
	// spread over. Empty: they are on the complete list only.
	CRLShards []CRLShard
	// FreshestCRL has certificates say where the delta of their list is.
	FreshestCRL bool
}

// A CRLShard is one part of an issuer's revocation list. A certificate is put
// into one when it is issued, and never moves: its address is signed, and the
// list must say that very address of itself (RFC 5280 §6.3.3 (b)(2)(i)).
type CRLShard struct {
	ID  int // from 1 on; 0 is no shard
	URL string
}

// crl is where the certificate of that serial is listed: a shard by the random
// end of the serial, or else the complete list.
func (i *Issuer) crl(s Serial) (CRLShard, error) {
	if len(i.CRLShards) == 0 {
		return CRLShard{URL: i.CRLURL}, nil
	}
	n, err := strconv.ParseUint(string(s[max(0, len(s)-shardDigits):]), 16, 64)
	if err != nil {
		return CRLShard{}, fmt.Errorf("choosing a CRL shard by serial: %w", err)
	}
	return i.CRLShards[n%uint64(len(i.CRLShards))], nil
}

// shardDigits are those hex digits of a serial that choose its shard: so many
// more than there are shards that each gets the same share.
const shardDigits = 12

// DeltaURL is where the delta of the CRL at url is.
func DeltaURL(url string) string {
	if url == "" {
		return ""
	}
	return strings.TrimSuffix(url, ".crl") + "/delta.crl"
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
	// ProfileRegistration is for whoever speaks SCEP for an issuer (RFC 8894 §2.1.2)
	// with an RSA key of its own. There is none under the public policy.
	ProfileRegistration = "secsy-scep-ra"
	// ProfileAuthority is what certificates of authorities have that were adopted;
	// nothing is issued by it.
	ProfileAuthority = "secsy-authority"
)
