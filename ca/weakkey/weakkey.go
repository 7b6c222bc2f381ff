// Package weakkey tells public keys that may be certified from those that are
// too small, malformed or broken.
//
// It looks at the key alone: no network, no database, and the same answer for
// the same key and Policy.
package weakkey

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"slices"
)

// A Policy says which keys are strong enough.
type Policy struct {
	// RSASizes are the modulus sizes allowed, in bits, exactly. Only sizes that
	// are listed can be looked up in lists of broken keys, so certificates
	// have few.
	RSASizes []int
	// RSAMin and RSAMax allow a range of sizes instead, in whole bytes; used
	// when RSASizes is nil. Both zero: no RSA.
	RSAMin, RSAMax int
	Curves         []elliptic.Curve
	Ed25519        bool
	Debian         *List // nil: keys are not looked up
}

// Certificates is the policy for keys in certificates (Baseline Requirements
// §6.1.1.3, §6.1.5), short of the lists of the Debian keys.
func Certificates() Policy {
	return Policy{
		RSASizes: []int{2048, 3072, 4096},
		Curves:   []elliptic.Curve{elliptic.P256(), elliptic.P384()},
	}
}

// Accounts is the policy for the keys with which clients sign requests: nobody
// but us relies on them, so it takes what clients have.
func Accounts() Policy {
	return Policy{
		RSAMin:  2048,
		RSAMax:  4096,
		Curves:  []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()},
		Ed25519: true,
	}
}

// A Reason is why a key was refused.
type Reason string

// The reasons.
const (
	Unsupported Reason = "unsupported" // a kind of key, or a curve, that the policy does not have
	Size        Reason = "size"
	Malformed   Reason = "malformed" // no key at all: an even modulus, a point off the curve
	Exponent    Reason = "exponent"
	SmallFactor Reason = "small-factor"
	ClosePrimes Reason = "close-primes"
	ROCA        Reason = "roca"
	Debian      Reason = "debian"
	SmallOrder  Reason = "small-order"
)

// An Error refuses a key. All of it may be shown to strangers.
type Error struct {
	Reason Reason
	Detail string
}

func (e *Error) Error() string { return e.Detail }

func refuse(reason Reason, format string, args ...any) *Error {
	return &Error{reason, fmt.Sprintf(format, args...)}
}

// Check returns an *Error for a key that the policy does not allow.
func Check(pub crypto.PublicKey, p Policy) error {
	var e *Error
	switch pub := pub.(type) {
	case *rsa.PublicKey:
		e = checkRSA(pub, p)
	case *ecdsa.PublicKey:
		e = checkECDSA(pub, p)
	case ed25519.PublicKey:
		e = checkEd25519(pub, p)
	default:
		e = refuse(Unsupported, "keys of this kind are not supported")
	}
	if e != nil { // a nil *Error in an error would not be nil
		return e
	}
	return nil
}

// SPKIHash names a public key: the SHA-256 of its DER SubjectPublicKeyInfo.
func SPKIHash(pub crypto.PublicKey) ([32]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return [32]byte{}, fmt.Errorf("encoding public key: %w", err)
	}
	return sha256.Sum256(der), nil
}

func checkECDSA(pub *ecdsa.PublicKey, p Policy) *Error {
	//nolint:staticcheck // the coordinates are only looked for: the methods panic without them
	if pub == nil || pub.Curve == nil || pub.X == nil || pub.Y == nil {
		return refuse(Malformed, "the EC key is incomplete")
	}
	if !slices.Contains(p.Curves, pub.Curve) {
		return refuse(Unsupported, "EC keys on this curve are not allowed")
	}
	// All the curves have prime order: a point on the curve other than
	// infinity, which has no coordinates, is in the right group.
	if _, err := pub.ECDH(); err != nil {
		return refuse(Malformed, "the EC key is not a point on its curve")
	}
	return nil
}
