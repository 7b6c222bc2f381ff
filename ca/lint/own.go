package lint

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"slices"

	"github.com/secsy-pki/secsy-pki/ca"
)

// Serials have at least this many octets: 64 random bits and what makes them
// positive (BR §7.1), and at most twenty (RFC 5280 §4.1.2.2).
const (
	minSerial = 9
	maxSerial = 20
)

var (
	oidFreshestCRL = asn1.ObjectIdentifier{2, 5, 29, 46}
	oidNoRevAvail  = asn1.ObjectIdentifier{2, 5, 29, 56}
)

// noRevAvail says what is wrong with a certificate that says that there is no
// status of it (RFC 9608 §2 and §3), "" for nothing.
func noRevAvail(c *x509.Certificate) string {
	find := func(id asn1.ObjectIdentifier) *pkix.Extension {
		i := slices.IndexFunc(c.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(id) })
		if i < 0 {
			return nil
		}
		return &c.Extensions[i]
	}
	ext := find(oidNoRevAvail)
	switch {
	case ext == nil:
		return ""
	case ext.Critical:
		return "is critical"
	case !bytes.Equal(ext.Value, asn1.NullBytes):
		return "is not NULL"
	case c.IsCA:
		return "is in the certificate of an authority"
	case len(c.CRLDistributionPoints) > 0:
		return "stands beside cRLDistributionPoints"
	case find(oidFreshestCRL) != nil:
		return "stands beside freshestCRL"
	case len(c.OCSPServer) > 0:
		return "stands beside the address of a responder"
	}
	return ""
}

// lookOurselves checks what zlint can't know or does not check.
func lookOurselves(d ca.Draft) ([]ca.Finding, error) {
	cert, err := x509.ParseCertificate(d.DER)
	if err != nil {
		return nil, fmt.Errorf("reading draft: %w", err)
	}
	var found []ca.Finding
	fault := func(name, format string, args ...any) {
		found = append(found, ca.Finding{Lint: name, Status: "error", Detail: fmt.Sprintf(format, args...)})
	}
	if n := len(cert.SerialNumber.Bytes()); cert.SerialNumber.Sign() <= 0 || n < minSerial || n > maxSerial {
		fault("e_secsy_serial_shape", "%d octets", n)
	}
	if sha256.Sum256(cert.RawSubjectPublicKeyInfo) != d.SPKIHash {
		fault("e_secsy_other_key", "the key is not the one that was asked for")
	}
	if authority := d.Kind == ca.LintRoot || d.Kind == ca.LintIssuing; cert.IsCA != authority {
		fault("e_secsy_authority", "basicConstraints say CA %t", cert.IsCA)
	}
	if wrong := noRevAvail(cert); wrong != "" {
		fault("e_secsy_no_rev_avail", "noRevAvail %s", wrong)
	}
	if d.Issuer == nil {
		if !bytes.Equal(cert.RawIssuer, cert.RawSubject) {
			fault("e_secsy_issuer_name", "issuer and subject of a root differ")
		}
		return found, nil
	}
	if !bytes.Equal(cert.RawIssuer, d.Issuer.RawSubject) {
		fault("e_secsy_issuer_name", "issuer is not the authority's subject, octet by octet")
	}
	if !bytes.Equal(cert.AuthorityKeyId, d.Issuer.SubjectKeyId) {
		fault("e_secsy_authority_key_id", "authorityKeyIdentifier is not the authority's subjectKeyIdentifier")
	}
	if cert.NotAfter.After(d.Issuer.NotAfter) || cert.NotBefore.Before(d.Issuer.NotBefore) {
		fault("e_secsy_outlives_issuer", "valid from %s to %s, the issuer from %s to %s", cert.NotBefore, cert.NotAfter, d.Issuer.NotBefore, d.Issuer.NotAfter)
	}
	if cert.IsCA && d.Issuer.MaxPathLenZero {
		fault("e_secsy_path_length", "the issuer may have no authorities below it")
	}
	return found, nil
}
