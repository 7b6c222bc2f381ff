package acme

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/secsy-pki/secsy-pki/ca"
)

// A CertID names a certificate by its issuer's key and its serial (RFC 9773
// §4.1): the base64url of both, a period between. There is one way to write it.
type CertID string

const (
	maxKeyID     = 64 // octets: no hash is longer
	maxDERSerial = 21 // of 20 octets and one for the sign (RFC 5280 §4.1.2.2)
)

var errCertID = errors.New("not a certificate's id (RFC 9773 §4.1)")

// parseCertID reads the one way to write an id.
func parseCertID(s string) (id CertID, keyID []byte, serial ca.Serial, err error) {
	a, b, ok := strings.Cut(s, ".")
	if !ok {
		return "", nil, "", errCertID
	}
	keyID, err = decodeStrict(a, maxKeyID)
	if err != nil {
		return "", nil, "", err
	}
	n, err := decodeStrict(b, maxDERSerial)
	if err != nil {
		return "", nil, "", err
	}
	if serial, err = serialOfDER(n); err != nil {
		return "", nil, "", err
	}
	return CertID(s), keyID, serial, nil
}

// decodeStrict decodes base64url of 1 to most octets that has neither padding,
// nor stray bits, nor the line breaks that the standard library overlooks.
func decodeStrict(s string, most int) ([]byte, error) {
	if s == "" || len(s) > base64.RawURLEncoding.EncodedLen(most) || strings.ContainsAny(s, "\r\n") {
		return nil, errCertID
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil {
		return nil, errCertID
	}
	return b, nil
}

// serialOfDER reads the content octets of a positive INTEGER, of which X.690
// §8.3.2 allows no more than are needed.
func serialOfDER(n []byte) (ca.Serial, error) {
	switch {
	case n[0]&0x80 != 0: // negative
		return "", errCertID
	case n[0] == 0 && (len(n) == 1 || n[1]&0x80 == 0): // zero, or a needless octet
		return "", errCertID
	case n[0] == 0:
		n = n[1:]
	}
	if len(n) > maxDERSerial-1 {
		return "", errCertID
	}
	return ca.Serial(hex.EncodeToString(n)), nil
}

// CertIDOf writes the id of a certificate.
func CertIDOf(keyID []byte, serial ca.Serial) (CertID, error) {
	n, err := hex.DecodeString(string(serial))
	if err != nil || len(n) == 0 {
		return "", errCertID
	}
	if n[0]&0x80 != 0 {
		n = append([]byte{0}, n...)
	}
	enc := base64.RawURLEncoding
	return CertID(enc.EncodeToString(keyID) + "." + enc.EncodeToString(n)), nil
}

// Serial is the serial in an id that was parsed once before, "" in none.
func (id CertID) Serial() ca.Serial {
	_, _, serial, err := parseCertID(string(id))
	if err != nil {
		return ""
	}
	return serial
}
