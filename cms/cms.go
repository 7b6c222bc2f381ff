// Package cms reads and writes the part of the Cryptographic Message Syntax
// (RFC 5652) that enrolment protocols use.
//
// What it reads comes from strangers who need prove nothing first, so it reads in
// time that grows with the length of the message, in memory of a few times that
// length, and no message longer than MaxSize. BER is taken, with indefinite lengths
// and strings in pieces, as some clients send it; what goes out is DER.
//
// It leaves out what nobody sends: signatures without signed attributes, RSA-PSS,
// key agreement, compressed and authenticated data, detached content.
package cms

import (
	"encoding/asn1"
	"errors"
	"fmt"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"
)

var (
	// ErrMalformed says that bytes are not what they should be, or exceed a bound.
	ErrMalformed = errors.New("cms: malformed")
	// ErrAlgorithm says that an algorithm is not known here, or not allowed.
	ErrAlgorithm = errors.New("cms: algorithm not supported")
	// ErrSignature says that a signature does not hold.
	ErrSignature = errors.New("cms: the signature does not verify")
	// ErrDecrypt says that something was wrong inside of what was encrypted. It
	// never says more: whoever learns what it was can decrypt.
	ErrDecrypt = errors.New("cms: decryption failed")
)

// The content types.
var (
	OIDData          = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 1}
	OIDSignedData    = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 2}
	OIDEnvelopedData = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 3}
)

// The attributes of RFC 5652 §11.
var (
	OIDContentType   = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 3}
	OIDMessageDigest = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 4}
	OIDSigningTime   = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 5}
)

// An Attribute is a type with its values, each one whole DER element.
type Attribute struct {
	Type   asn1.ObjectIdentifier
	Values [][]byte
}

func malformed(what string) error { return fmt.Errorf("%w: %s", ErrMalformed, what) }

func unsupported(what string, oid asn1.ObjectIdentifier) error {
	return fmt.Errorf("%w: %s %v", ErrAlgorithm, what, oid)
}

// explicit is the constructed context-specific tag n.
func explicit(n uint8) casn1.Tag { return casn1.Tag(n).ContextSpecific().Constructed() }

// implicit0 is the tag of a primitive that is implicitly tagged 0.
var implicit0 = casn1.Tag(0).ContextSpecific()

// readContentInfo returns the one element inside a ContentInfo of the type want.
func readContentInfo(der []byte, want asn1.ObjectIdentifier) (cryptobyte.String, error) {
	in := cryptobyte.String(der)
	var info, inner, content cryptobyte.String
	var oid asn1.ObjectIdentifier
	switch {
	case !in.ReadASN1(&info, casn1.SEQUENCE) || !in.Empty(),
		!readOID(&info, &oid) || !info.ReadASN1(&inner, explicit(0)) || !info.Empty():
		return nil, malformed("ContentInfo")
	case !oid.Equal(want):
		return nil, malformed("content of another type")
	case !inner.ReadASN1(&content, casn1.SEQUENCE) || !inner.Empty():
		return nil, malformed("ContentInfo")
	}
	return content, nil
}

// addContentInfo writes a ContentInfo with what add writes as a SEQUENCE.
func addContentInfo(b *cryptobyte.Builder, oid asn1.ObjectIdentifier, add func(b *cryptobyte.Builder)) {
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1ObjectIdentifier(oid)
		b.AddASN1(explicit(0), func(b *cryptobyte.Builder) { b.AddASN1(casn1.SEQUENCE, add) })
	})
}

// maxArcs bounds object identifiers, which find their way into errors.
const maxArcs = 32

func readOID(in *cryptobyte.String, oid *asn1.ObjectIdentifier) bool {
	return in.ReadASN1ObjectIdentifier(oid) && len(*oid) <= maxArcs
}

// readAlgorithm reads an AlgorithmIdentifier; params are what follows the OID.
func readAlgorithm(in *cryptobyte.String) (oid asn1.ObjectIdentifier, params cryptobyte.String, ok bool) {
	return readAlgorithmAs(in, casn1.SEQUENCE)
}

func readAlgorithmAs(in *cryptobyte.String, tag casn1.Tag) (oid asn1.ObjectIdentifier, params cryptobyte.String, ok bool) {
	var seq cryptobyte.String
	if !in.ReadASN1(&seq, tag) || !readOID(&seq, &oid) {
		return nil, nil, false
	}
	return oid, seq, true
}

// noParameters reports whether algorithm parameters are absent or NULL: both are
// in the field where only one is right.
func noParameters(params cryptobyte.String) bool {
	if params.Empty() {
		return true
	}
	var null cryptobyte.String
	return params.ReadASN1(&null, casn1.NULL) && null.Empty() && params.Empty()
}

func addAlgorithm(b *cryptobyte.Builder, oid asn1.ObjectIdentifier, params func(b *cryptobyte.Builder)) {
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1ObjectIdentifier(oid)
		if params != nil {
			params(b)
		}
	})
}

func addNull(b *cryptobyte.Builder) { b.AddASN1NULL() }
