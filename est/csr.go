package est

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"
)

const (
	maxCSR  = 16 << 10
	maxBody = 2 * maxCSR // in base64, with lines and armour
	// maxChallenge is that of a code; a binding is of 255 characters at most.
	maxChallenge = 8 << 10
	columns      = 64
)

var (
	oidChallengePassword = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 7}
	// RFC 7030 §4.4.1: by which key the generated one is to be sealed.
	oidSymmetricKey  = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 16, 2, 37}
	oidAsymmetricKey = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 16, 2, 54}
)

// encode writes base64, in lines or in one: some clients (libest) can't read the
// one, others (strongSwan) not the other. A line ends with LF alone, as the shell's
// base64 takes no CR.
func encode(der []byte, lines bool) []byte {
	n := base64.StdEncoding.EncodedLen(len(der))
	text := base64.StdEncoding.AppendEncode(make([]byte, 0, n), der)
	if !lines {
		return text
	}
	out := make([]byte, 0, n+n/columns+1)
	for len(text) > 0 {
		k := min(columns, len(text))
		out = append(append(out, text[:k]...), '\n')
		text = text[k:]
	}
	return out
}

// inLines reports whether a body is written in lines, so that who sent it can
// read some.
func inLines(body []byte) bool { return bytes.Count(body, []byte{'\n'}) > 1 }

// decode reads what RFC 8951 §3.1 has be taken, and PEM.
func decode(body []byte) ([]byte, error) {
	if armour := bytes.TrimLeft(body, " \t\r\n"); bytes.HasPrefix(armour, []byte("-----BEGIN")) {
		block, rest := pem.Decode(armour)
		if block == nil || block.Type != "CERTIFICATE REQUEST" && block.Type != "NEW CERTIFICATE REQUEST" || len(bytes.TrimSpace(rest)) > 0 {
			return nil, fmt.Errorf("%w: not one PEM block", errMalformed)
		}
		return block.Bytes, nil
	}
	text := bytes.Map(func(r rune) rune {
		switch r {
		case ' ', '\t', '\r', '\n':
			return -1
		}
		return r
	}, body)
	der, err := base64.StdEncoding.Strict().AppendDecode(nil, text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return der, nil
}

// A wish is a request, read.
type wish struct {
	csr       *x509.CertificateRequest
	lines     bool   // how it was written
	challenge string // "" for none
	sealed    bool   // a generated key is to be
	sealFor   []byte // for the key of this identifier
}

// parse reads a request and proves that its sender has the key.
func parse(body []byte) (*wish, error) {
	der, err := decode(body)
	if err != nil {
		return nil, err
	}
	if len(der) > maxCSR {
		return nil, errTooLong
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	v := &wish{csr: csr, lines: inLines(body)}
	if err := v.readAttributes(); err != nil {
		return nil, err
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return v, nil
}

// readAttributes takes those that are for us and not for the CA.
func (v *wish) readAttributes() error {
	info, attributes := cryptobyte.String(v.csr.RawTBSCertificateRequest), cryptobyte.String(nil)
	var present bool
	if !info.ReadASN1(&info, casn1.SEQUENCE) || !info.SkipASN1(casn1.INTEGER) || !info.SkipASN1(casn1.SEQUENCE) ||
		!info.SkipASN1(casn1.SEQUENCE) || !info.ReadOptionalASN1(&attributes, &present, casn1.Tag(0).Constructed().ContextSpecific()) {
		return errMalformed
	}
	seen := map[string]bool{}
	for !attributes.Empty() {
		var attribute, values, value cryptobyte.String
		var oid asn1.ObjectIdentifier
		if !attributes.ReadASN1(&attribute, casn1.SEQUENCE) || !attribute.ReadASN1ObjectIdentifier(&oid) || !attribute.ReadASN1(&values, casn1.SET) || !attribute.Empty() {
			return errMalformed
		}
		if !oid.Equal(oidChallengePassword) && !oid.Equal(oidAsymmetricKey) && !oid.Equal(oidSymmetricKey) {
			continue
		}
		var tag casn1.Tag
		if seen[oid.String()] || !values.ReadAnyASN1(&value, &tag) || !values.Empty() || len(value) > maxChallenge {
			return fmt.Errorf("%w: not one value of %v", errMalformed, oid)
		}
		seen[oid.String()] = true
		switch {
		case oid.Equal(oidChallengePassword):
			text, ok := stringOf(tag, value)
			if !ok || text == "" {
				return fmt.Errorf("%w: a challengePassword that is no string", errMalformed)
			}
			v.challenge = text
		case oid.Equal(oidAsymmetricKey) && tag == casn1.OCTET_STRING:
			v.sealed, v.sealFor = true, value
		default:
			v.sealed = true // by a key that we don't know
		}
	}
	return nil
}

// stringOf reads the kinds of strings that clients are known to send.
func stringOf(tag casn1.Tag, b []byte) (string, bool) {
	switch tag {
	case casn1.PrintableString, casn1.UTF8String, casn1.IA5String, casn1.T61String:
		return string(b), utf8.Valid(b)
	case casn1.Tag(asn1.TagBMPString):
		if len(b)%2 != 0 {
			return "", false
		}
		units := make([]uint16, len(b)/2)
		for i := range units {
			units[i] = uint16(b[2*i])<<8 | uint16(b[2*i+1])
		}
		return string(utf16.Decode(units)), true
	}
	return "", false
}
