package challenge

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/crypto/cryptobyte"
	cbasn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
)

// This server has no way into the Tor network. What an onion service signs needs none: the
// challenge onion-csr-01, and its word on CAA.

const (
	maxOnionCSR   = 8 << 10
	maxOnionNonce = 30 * 24 * time.Hour // Baseline Requirements, appendix B.2.b
	minOnionNonce = 8                   // octets, of what the applicant adds
	maxOnionCAA   = 16 << 10
	// maxOnionWord is how far in the future the service's word on CAA may end:
	// RFC 9799 §6.4 says not to have it last for more than eight hours.
	maxOnionWord = 8*time.Hour + 10*time.Minute
)

var (
	oidCASigningNonce        = asn1.ObjectIdentifier{2, 23, 140, 41}
	oidApplicantSigningNonce = asn1.ObjectIdentifier{2, 23, 140, 42}
)

// onionCSR01 judges a CSR that is signed with the key of the onion service (RFC 9799 §3.2).
func (a *attempt) onionCSR01(_ context.Context) *acme.Problem {
	_, key, ok := ca.OnionService(a.q.Identifier.Value)
	if !ok {
		return problem(acme.RejectedIdentifier, nil, "%s is no onion service of version 3", a.q.Identifier.Value)
	}
	if age := a.rec.At.Sub(a.q.IssuedAt); age > maxOnionNonce {
		return problem(acme.Unauthorized, nil, "the challenge's nonce is older than 30 days; order again")
	}
	var answer struct {
		CSR string `json:"csr"`
	}
	if err := json.Unmarshal(a.q.Answer, &answer); err != nil || answer.CSR == "" || len(answer.CSR) > base64.RawURLEncoding.EncodedLen(maxOnionCSR) {
		return problem(acme.Malformed, err, "the challenge is answered with an object whose csr is a CSR signed by the onion service, of at most %d octets", maxOnionCSR)
	}
	der, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(answer.CSR, "="))
	if err != nil {
		return problem(acme.Malformed, err, "csr is not base64url")
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return problem(acme.BadCSR, err, "csr is not a PKCS#10 request in DER")
	}
	if pub, ok := csr.PublicKey.(ed25519.PublicKey); !ok || !pub.Equal(key) {
		return problem(acme.Unauthorized, nil, "the CSR's key is not the one that %s is the address of", a.q.Identifier.Value)
	}
	if err := csr.CheckSignature(); err != nil {
		return problem(acme.Unauthorized, err, "the CSR is not signed with its own key")
	}
	ours, theirs, err := signingNonces(csr.RawTBSCertificateRequest)
	if err != nil {
		return problem(acme.BadCSR, err, "the CSR's attributes: %v", err)
	}
	want, err := base64.RawURLEncoding.DecodeString(a.q.Token)
	if err != nil {
		return problem(acme.ServerInternal, err, "the challenge is damaged")
	}
	switch {
	case !bytes.Equal(ours, want):
		return problem(acme.Unauthorized, nil, "the CSR's caSigningNonce is not the challenge's nonce")
	case len(theirs) < minOnionNonce:
		return problem(acme.Unauthorized, nil, "the CSR needs an applicantSigningNonce of at least %d octets", minOnionNonce)
	}
	return nil
}

var errAttributes = errors.New("they are malformed, or one of the nonces is not there exactly once")

// signingNonces reads the two nonces of the CA/Browser Forum out of the
// attributes of a CSR, which crypto/x509 does not show.
func signingNonces(tbs []byte) (ours, theirs []byte, err error) {
	var (
		input = cryptobyte.String(tbs)
		info  cryptobyte.String
		attrs cryptobyte.String
	)
	// CertificationRequestInfo: version, subject, key, attributes (RFC 2986 §4.1).
	if !input.ReadASN1(&info, cbasn1.SEQUENCE) || !info.SkipASN1(cbasn1.INTEGER) || !info.SkipASN1(cbasn1.SEQUENCE) ||
		!info.SkipASN1(cbasn1.SEQUENCE) || !info.ReadASN1(&attrs, cbasn1.Tag(0).ContextSpecific().Constructed()) {
		return nil, nil, errAttributes
	}
	for !attrs.Empty() {
		var (
			attr, values cryptobyte.String
			oid          asn1.ObjectIdentifier
		)
		if !attrs.ReadASN1(&attr, cbasn1.SEQUENCE) || !attr.ReadASN1ObjectIdentifier(&oid) || !attr.ReadASN1(&values, cbasn1.SET) || !attr.Empty() {
			return nil, nil, errAttributes
		}
		var into *[]byte
		switch {
		case oid.Equal(oidCASigningNonce):
			into = &ours
		case oid.Equal(oidApplicantSigningNonce):
			into = &theirs
		default:
			continue
		}
		var value cryptobyte.String
		if *into != nil || !values.ReadASN1(&value, cbasn1.OCTET_STRING) || !values.Empty() || len(value) == 0 {
			return nil, nil, errAttributes
		}
		*into = value
	}
	if ours == nil || theirs == nil {
		return nil, nil, errAttributes
	}
	return ours, theirs, nil
}

// checkOnionCAA asks the onion service's own word, which came with the request
// to finalize (RFC 9799 §6).
func (v *Validator) checkOnionCAA(q acme.CAAQuery, rec *acme.CAARecord) *acme.Problem {
	rec.Resolver = "" // nobody was asked
	service, key, ok := ca.OnionService(q.Name)
	if !ok {
		return problem(acme.Malformed, nil, "%s is no onion service of version 3", excerpt([]byte(q.Name)))
	}
	if q.Onion == nil {
		return problem(acme.OnionCAARequired, nil, "onionCAA has to say what the CAA records of %s are, or that there are none (RFC 9799 §6.4)", service)
	}
	set, err := onionCAA(key, *q.Onion, rec.At)
	if err != nil {
		return problem(acme.CAA, err, "onionCAA of %s: %v", service, err)
	}
	rec.Found = service
	rec.Records = shownRecords(set)
	if err := v.permits(set, q); err != nil {
		return problem(acme.CAA, nil, "the CAA records of %s do not allow this CA to issue for %s: %v", service, shownName(q), err)
	}
	return nil
}

// onionCAA reads a service's word. The error may be shown.
func onionCAA(key ed25519.PublicKey, o acme.OnionCAA, now time.Time) ([]*dns.CAA, error) {
	text := ""
	if o.CAA != nil {
		text = *o.CAA
	}
	expires := time.Unix(o.Expiry, 0)
	sig, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(o.Signature, "="))
	switch {
	case len(text) > maxOnionCAA:
		return nil, fmt.Errorf("caa is longer than %d octets", maxOnionCAA)
	case o.Expiry <= 0 || !now.Before(expires):
		return nil, errors.New("it has expired")
	case expires.After(now.Add(maxOnionWord)):
		return nil, errors.New("it expires more than eight hours from now")
	case err != nil || !ed25519.Verify(key, []byte("onion-caa|"+strconv.FormatInt(o.Expiry, 10)+"|"+text), sig):
		return nil, errors.New("its signature is not that of the onion service")
	}
	return parseOnionCAA(text)
}

// parseOnionCAA reads lines such as
//
//	caa 128 issue "ca.example; validationmethods=onion-csr-01"
//
// whose value is written as in a zone file (RFC 8659 §4.1.1).
func parseOnionCAA(text string) ([]*dns.CAA, error) {
	var set []*dns.CAA
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		if line == "" && text == "" {
			break
		}
		rdata, ok := strings.CutPrefix(strings.TrimRight(line, "\r"), "caa ")
		if !ok || strings.ContainsAny(rdata, "();\r\x00") && !quoted(rdata) {
			return nil, errors.New("a line does not begin with caa, flags, tag and value")
		}
		rr, err := dns.NewRR(". 0 IN CAA " + rdata)
		if err != nil {
			return nil, errors.New("a line is not flags, tag and value as in a zone file")
		}
		record, ok := rr.(*dns.CAA)
		if !ok || len(set) == maxCAA {
			return nil, fmt.Errorf("there are more than %d lines, or one is no CAA record", maxCAA)
		}
		set = append(set, record)
	}
	return set, nil
}

// quoted reports whether the value, the third field, is in quotation marks up
// to the end of the line, so that nothing in it means anything to a zone file.
func quoted(rdata string) bool {
	fields := strings.SplitN(rdata, " ", 3)
	return len(fields) == 3 && len(fields[2]) >= 2 && fields[2][0] == '"' && fields[2][len(fields[2])-1] == '"'
}
