package pkcs11pool

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/miekg/pkcs11"
)

// What stands in CKA_EC_PARAMS, in DER, for each curve that is used. Tokens name
// Ed25519 by the OID of RFC 8410, by an older one, or as PKCS#11 3.0 §2.3.1 has it.
var (
	paramsP256 = []byte{0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07}
	paramsP384 = []byte{0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22}
	paramsP521 = []byte{0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23}

	paramsEd25519 = [][]byte{
		{0x06, 0x03, 0x2b, 0x65, 0x70},
		append([]byte{0x13, 0x0c}, "edwards25519"...),
		{0x06, 0x09, 0x2b, 0x06, 0x01, 0x04, 0x01, 0xda, 0x47, 0x0f, 0x01},
	}
)

// curveOf returns the curve that CKA_EC_PARAMS names; nil and true for Ed25519.
func curveOf(params []byte) (curve elliptic.Curve, edwards bool, err error) {
	switch {
	case bytes.Equal(params, paramsP256):
		return elliptic.P256(), false, nil
	case bytes.Equal(params, paramsP384):
		return elliptic.P384(), false, nil
	case bytes.Equal(params, paramsP521):
		return elliptic.P521(), false, nil
	}
	for _, p := range paramsEd25519 {
		if bytes.Equal(params, p) {
			return nil, true, nil
		}
	}
	return nil, false, fmt.Errorf("a curve that is not used, of parameters %x", params[:min(len(params), 32)])
}

// ecPublic reads CKA_EC_PARAMS and CKA_EC_POINT. The point should be in an OCTET
// STRING, and is bare with some tokens; its length tells which.
func ecPublic(params, point []byte) (crypto.PublicKey, error) {
	curve, edwards, err := curveOf(params)
	if err != nil {
		return nil, err
	}
	size := ed25519.PublicKeySize
	if !edwards {
		size = 1 + 2*((curve.Params().BitSize+7)/8)
	}
	bare, err := barePoint(point, size)
	if err != nil {
		return nil, err
	}
	if edwards {
		return ed25519.PublicKey(bytes.Clone(bare)), nil
	}
	pub, err := ecdsa.ParseUncompressedPublicKey(curve, bare) // looks whether it is on the curve
	if err != nil {
		return nil, fmt.Errorf("a point that is not on its curve: %w", err)
	}
	return pub, nil
}

func barePoint(point []byte, size int) ([]byte, error) {
	if len(point) == size {
		return point, nil
	}
	header := []byte{0x04, byte(size)}
	if size >= 0x80 {
		header = []byte{0x04, 0x81, byte(size)}
	}
	if bare, ok := bytes.CutPrefix(point, header); ok && len(bare) == size {
		return bare, nil
	}
	return nil, fmt.Errorf("a point of %d bytes, which is none of its curve", len(point))
}

// checkPublic lets pass what the program can use.
func checkPublic(pub crypto.PublicKey) error {
	switch pub := pub.(type) {
	case *rsa.PublicKey:
		return checkRSA(pub)
	case *ecdsa.PublicKey:
		switch pub.Curve {
		case elliptic.P256(), elliptic.P384(), elliptic.P521():
			return nil
		}
		return fmt.Errorf("the curve %s, which is not used", pub.Curve.Params().Name)
	case ed25519.PublicKey:
		return nil
	}
	return fmt.Errorf("a %T, which is not used", pub)
}

func samePublic(a, b crypto.PublicKey) bool {
	is, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && is.Equal(b)
}

// kindOf is the CKA_KEY_TYPE of a public key.
func kindOf(pub crypto.PublicKey) uint {
	switch pub.(type) {
	case *rsa.PublicKey:
		return pkcs11.CKK_RSA
	case ed25519.PublicKey:
		return ckkECEdwards
	}
	return pkcs11.CKK_EC
}

// A reader reads the public key of kind out of an object. Neither key nor fault
// means that the object has none; a fault, that it is of no use; an error, that
// the device did not answer.
type reader func(c *conn, o pkcs11.ObjectHandle, kind uint) (pub crypto.PublicKey, fault, err error)

// publicOf finds the public key of a private key: at the private key itself,
// which can't have another's; else in a public key object; else in a
// certificate. Without a key or an error comes the fault, why there is none.
func publicOf(c *conn, private pkcs11.ObjectHandle, kind uint, id, label []byte) (pub crypto.PublicKey, fault, err error) {
	var faults []error
	for _, where := range []struct {
		class uint
		read  reader
	}{{pkcs11.CKO_PRIVATE_KEY, readPublic}, {pkcs11.CKO_PUBLIC_KEY, readPublic}, {pkcs11.CKO_CERTIFICATE, readCertified}} {
		objects := []pkcs11.ObjectHandle{private}
		if where.class != pkcs11.CKO_PRIVATE_KEY {
			if objects, err = find(c, beside(where.class, id, label), maxMatches); err != nil {
				return nil, nil, err
			}
		}
		pub, fault, err := onlyPublic(c, objects, kind, where.read)
		if err != nil || pub != nil {
			return pub, nil, err
		}
		if fault != nil {
			faults = append(faults, fault)
		}
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("its public key can't be used: %w", errors.Join(faults...)), nil
	}
	return nil, errors.New("its public key is nowhere on the token: neither with it, nor as an object or in a certificate of its CKA_ID"), nil
}

// onlyPublic reads the one public key that all of the objects have.
func onlyPublic(c *conn, objects []pkcs11.ObjectHandle, kind uint, read reader) (pub crypto.PublicKey, fault, err error) {
	for _, o := range objects {
		found, why, err := read(c, o, kind)
		switch {
		case err != nil:
			return nil, nil, err
		case why != nil:
			fault = why
		case found == nil:
		case pub != nil && !samePublic(pub, found):
			return nil, errors.New("two public keys claim to be its other half"), nil
		default:
			pub = found
		}
	}
	return pub, fault, nil
}

// readPublic reads a public key off a private or public key object.
func readPublic(c *conn, o pkcs11.ObjectHandle, kind uint) (pub crypto.PublicKey, fault, err error) {
	a, err := attributes(c, o, pkcs11.CKA_KEY_TYPE)
	if err != nil || number(a[pkcs11.CKA_KEY_TYPE]) != kind {
		return nil, nil, err
	}
	if kind == pkcs11.CKK_RSA {
		a, err = attributes(c, o, pkcs11.CKA_MODULUS, pkcs11.CKA_PUBLIC_EXPONENT)
		if err == nil && len(a[pkcs11.CKA_MODULUS]) > 0 && len(a[pkcs11.CKA_PUBLIC_EXPONENT]) > 0 {
			pub, fault = rsaPublic(a[pkcs11.CKA_MODULUS], a[pkcs11.CKA_PUBLIC_EXPONENT])
		}
	} else {
		a, err = attributes(c, o, pkcs11.CKA_EC_PARAMS, pkcs11.CKA_EC_POINT)
		if err == nil && len(a[pkcs11.CKA_EC_PARAMS]) > 0 && len(a[pkcs11.CKA_EC_POINT]) > 0 {
			pub, fault = ecPublic(a[pkcs11.CKA_EC_PARAMS], a[pkcs11.CKA_EC_POINT])
		}
	}
	if err != nil || fault != nil || pub != nil {
		return pub, fault, err
	}
	a, err = attributes(c, o, pkcs11.CKA_PUBLIC_KEY_INFO)
	if err != nil || len(a[pkcs11.CKA_PUBLIC_KEY_INFO]) == 0 {
		return nil, nil, err
	}
	if pub, fault = x509.ParsePKIXPublicKey(a[pkcs11.CKA_PUBLIC_KEY_INFO]); fault == nil {
		fault = checkPublic(pub)
	}
	return onlyOf(pub, fault)
}

// readCertified reads a public key off a certificate object.
func readCertified(c *conn, o pkcs11.ObjectHandle, kind uint) (pub crypto.PublicKey, fault, err error) {
	cert, fault, err := readCertificate(c, o)
	if err != nil || fault != nil {
		return nil, fault, err
	}
	if kindOf(cert.PublicKey) != kind {
		return nil, nil, nil
	}
	return onlyOf(cert.PublicKey, checkPublic(cert.PublicKey))
}

// readCertificate reads a certificate object.
func readCertificate(c *conn, o pkcs11.ObjectHandle) (cert *x509.Certificate, fault, err error) {
	a, err := attributes(c, o, pkcs11.CKA_VALUE)
	if err != nil {
		return nil, nil, err
	}
	if cert, fault = x509.ParseCertificate(a[pkcs11.CKA_VALUE]); fault != nil {
		return nil, fmt.Errorf("a certificate that can't be read: %w", fault), nil
	}
	return cert, nil, nil
}

func onlyOf(pub crypto.PublicKey, fault error) (crypto.PublicKey, error, error) {
	if fault != nil {
		return nil, fault, nil
	}
	return pub, nil, nil
}
