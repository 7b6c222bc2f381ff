package scep

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/cms"
)

// maxChallenge bounds a challengePassword, which elsewhere than here may be signed
// data of some kilobytes.
const maxChallenge = 8 << 10

var oidChallengePassword = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 7}

// parseCSR reads a certification request whose signature holds. Where it does not,
// and where the bytes are none at all, the error is the same: both are what comes
// of a message that was not sealed as it should be.
func parseCSR(der []byte) (*x509.CertificateRequest, error) {
	der, err := cms.DER(der)
	if err != nil {
		return nil, badMessageCheck
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil || csr.CheckSignature() != nil {
		return nil, badMessageCheck
	}
	return csr, nil
}

// challengeOf returns the challengePassword of a CSR, "" for none.
//
// Clients write it in every kind of string (RFC 2985 §5.4.1 has two); what counts
// is what it says.
func challengeOf(csr *x509.CertificateRequest) (string, error) {
	tbs := cryptobyte.String(csr.RawTBSCertificateRequest)
	var info, attrs cryptobyte.String
	attributes := casn1.Tag(0).ContextSpecific().Constructed()
	if !tbs.ReadASN1(&info, casn1.SEQUENCE) || !info.SkipASN1(casn1.INTEGER) || !info.SkipASN1(casn1.SEQUENCE) ||
		!info.SkipASN1(casn1.SEQUENCE) || !info.ReadOptionalASN1(&attrs, nil, attributes) {
		return "", fmt.Errorf("%w: attributes of the CSR", badRequest)
	}
	challenge, found := "", false
	for !attrs.Empty() {
		var attr, values cryptobyte.String
		var oid asn1.ObjectIdentifier
		if !attrs.ReadASN1(&attr, casn1.SEQUENCE) || !attr.ReadASN1ObjectIdentifier(&oid) || !attr.ReadASN1(&values, casn1.SET) {
			return "", fmt.Errorf("%w: attributes of the CSR", badRequest)
		}
		if !oid.Equal(oidChallengePassword) {
			continue
		}
		var value cryptobyte.String
		var tag casn1.Tag
		if found || !values.ReadAnyASN1(&value, &tag) || !values.Empty() || len(value) > maxChallenge {
			return "", fmt.Errorf("%w: not one challengePassword", badRequest)
		}
		text, ok := decodeString(tag, value)
		if !ok {
			return "", fmt.Errorf("%w: a challengePassword that is no string", badRequest)
		}
		challenge, found = text, true
	}
	return challenge, nil
}

const (
	tagT61 = casn1.Tag(20)
	tagBMP = casn1.Tag(30)
)

// decodeString reads the strings of ASN.1 that clients use.
func decodeString(tag casn1.Tag, b []byte) (string, bool) {
	switch tag {
	case casn1.UTF8String, casn1.PrintableString, casn1.IA5String:
		return string(b), utf8.Valid(b)
	case tagT61: // in practice Latin-1
		r := make([]rune, 0, len(b))
		for _, c := range b {
			r = append(r, rune(c))
		}
		return string(r), true
	case tagBMP:
		if len(b)%2 != 0 {
			return "", false
		}
		u := make([]uint16, 0, len(b)/2)
		for i := 0; i < len(b); i += 2 {
			u = append(u, uint16(b[i])<<8|uint16(b[i+1]))
		}
		return string(utf16.Decode(u)), true
	}
	return "", false
}

// parseIssuerAndSubject checks what a CertPoll has inside (RFC 8894 §3.3.3). What
// it names is known by the transaction.
func parseIssuerAndSubject(ber []byte) error {
	der, err := cms.DER(ber)
	if err != nil {
		return badMessageCheck
	}
	in := cryptobyte.String(der)
	var seq cryptobyte.String
	if !in.ReadASN1(&seq, casn1.SEQUENCE) || !in.Empty() || !seq.SkipASN1(casn1.SEQUENCE) || !seq.SkipASN1(casn1.SEQUENCE) || !seq.Empty() {
		return badMessageCheck
	}
	return nil
}

// An issued names a certificate, or a CRL by a certificate that it is for.
type issued struct {
	issuer []byte // DER
	serial ca.Serial
}

// parseIssuerAndSerial reads what GetCert and GetCRL have inside.
func parseIssuerAndSerial(ber []byte) (issued, error) {
	der, err := cms.DER(ber)
	if err != nil {
		return issued{}, badMessageCheck
	}
	in := cryptobyte.String(der)
	var seq, issuer cryptobyte.String
	serial := new(big.Int)
	if !in.ReadASN1(&seq, casn1.SEQUENCE) || !in.Empty() || !seq.ReadASN1Element(&issuer, casn1.SEQUENCE) ||
		!seq.ReadASN1Integer(serial) || !seq.Empty() {
		return issued{}, badMessageCheck
	}
	if serial.Sign() <= 0 || serial.BitLen() > 160 {
		return issued{}, badCertID
	}
	return issued{issuer, ca.SerialOf(serial)}, nil
}

// sameIssuer reports whether name is the subject of the issuer's certificate.
func sameIssuer(name []byte, is *ca.Issuer) bool { return bytes.Equal(name, is.Cert.RawSubject) }

var errNotOurs = errors.New("scep: sealed for nobody here")

func hexOf(b []byte) string { return hex.EncodeToString(b) }
