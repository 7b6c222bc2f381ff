package attestation

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/asn1"
	"unicode/utf8"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
)

// What Apple puts into the certificate of an attested key.
const (
	appleSerial = "1.2.840.113635.100.8.9.1"
	appleUDID   = "1.2.840.113635.100.8.9.2"
	appleNonce  = "1.2.840.113635.100.8.11.1"
)

// apple believes a certificate of Apple's for the key, made for this very
// token. Apple signs before the account is known to it, so the account is not
// in what it signs: the key is tied to the order by the CSR.
func (v *Verifier) apple(s statement, roots *x509.CertPool, q acme.Validation) (device, error) {
	leaf, err := v.chain(s.Chain, roots, nothingElse)
	if err != nil {
		return device{}, err
	}
	nonce, ok := once(leaf, appleNonce)
	want := sha256.Sum256([]byte(q.Token))
	if !ok || subtle.ConstantTimeCompare(octets(nonce), want[:]) != 1 {
		return device{}, no("the attestation was not made for this challenge: its nonce is not the SHA-256 of the token")
	}
	d := device{key: leaf.PublicKey}
	for _, oid := range []string{appleSerial, appleUDID} {
		if value, ok := once(leaf, oid); ok {
			d.names = append(d.names, ca.Identifier{Type: ca.PermanentIdentifier, Value: text(value)})
		}
	}
	return d, nil
}

// octets takes a value as it is, or out of an OCTET STRING around it: both are
// to be met.
func octets(b []byte) []byte {
	var inner []byte
	if rest, err := asn1.Unmarshal(b, &inner); err == nil && len(rest) == 0 && len(b) == sha256.Size+2 {
		return inner
	}
	return b
}

// text is a value that is plain text, or text in one of ASN.1's strings; "" for
// what is neither.
func text(b []byte) string {
	var raw asn1.RawValue
	if rest, err := asn1.Unmarshal(b, &raw); err == nil && len(rest) == 0 && raw.Class == asn1.ClassUniversal && !raw.IsCompound {
		switch raw.Tag {
		case asn1.TagUTF8String, asn1.TagPrintableString, asn1.TagIA5String, asn1.TagOctetString:
			b = raw.Bytes
		}
	}
	if !utf8.Valid(b) {
		return ""
	}
	return string(b)
}
