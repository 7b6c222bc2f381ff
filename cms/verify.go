package cms

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/subtle"
	"encoding/asn1"
	"fmt"
	"slices"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// mostRSABits bounds what a stranger's key may have a verification cost.
const mostRSABits = 8192

// Verify checks that the signature is by the key pub, over the signed attributes,
// and that those are of the content. SHA-1 is taken only if sha1 says so.
//
// Clients are in the field that sign their attributes in an order of their own and
// not in that of DER (RFC 5652 §5.4), so both are tried: as received, and sorted.
func (si *SignerInfo) Verify(pub crypto.PublicKey, sha1 bool) error {
	if si.Digest == 0 || si.Digest == crypto.SHA1 && !sha1 {
		return fmt.Errorf("%w: digest", ErrAlgorithm)
	}
	if err := si.checkAlgorithm(pub); err != nil {
		return err
	}
	if err := si.checkContent(); err != nil {
		return err
	}
	sorted := sortedSet(si.attrs)
	if si.verifies(pub, si.attrs) || !bytes.Equal(sorted, si.attrs) && si.verifies(pub, sorted) {
		return nil
	}
	return ErrSignature
}

// checkAlgorithm checks that the signature's algorithm is one of the key's, and
// has no other hash than the digest (RFC 5754 §3).
func (si *SignerInfo) checkAlgorithm(pub crypto.PublicKey) error {
	h, known := oids(si.Digest)
	if !known || !si.noParams {
		return unsupported("signature", si.sigOID)
	}
	switch pub := pub.(type) {
	case *rsa.PublicKey:
		if pub.N.BitLen() > mostRSABits {
			return fmt.Errorf("%w: RSA of %d bits", ErrAlgorithm, pub.N.BitLen())
		}
		if !si.sigOID.Equal(oidRSA) && !si.sigOID.Equal(h.rsa) {
			return unsupported("signature", si.sigOID)
		}
	case *ecdsa.PublicKey:
		if !si.sigOID.Equal(h.ecdsa) {
			return unsupported("signature", si.sigOID)
		}
	default:
		return fmt.Errorf("%w: signatures by %T", ErrAlgorithm, pub)
	}
	return nil
}

// checkContent checks the attributes that bind the content (RFC 5652 §11.1, §11.2).
// Without them, attributes could be passed off as content.
func (si *SignerInfo) checkContent() error {
	value, err := si.Attribute(OIDContentType)
	if err != nil {
		return err
	}
	var oid asn1.ObjectIdentifier
	in := cryptobyte.String(value)
	if !readOID(&in, &oid) || !in.Empty() {
		return malformed("no contentType among the signed attributes")
	}
	if !oid.Equal(si.of.ContentType) {
		return fmt.Errorf("%w: it is of another content type", ErrSignature)
	}
	value, err = si.Attribute(OIDMessageDigest)
	if err != nil {
		return err
	}
	var digest cryptobyte.String
	in = value
	if !in.ReadASN1(&digest, casn1.OCTET_STRING) || !in.Empty() {
		return malformed("no messageDigest among the signed attributes")
	}
	if subtle.ConstantTimeCompare(digest, sum(si.Digest, si.of.Content)) != 1 {
		return fmt.Errorf("%w: it is of another content", ErrSignature)
	}
	return nil
}

func (si *SignerInfo) verifies(pub crypto.PublicKey, attrs []byte) bool {
	h := si.Digest.New()
	h.Write(appendHeader(nil, tagSet, len(attrs)))
	h.Write(attrs)
	digest := h.Sum(nil)
	switch pub := pub.(type) {
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(pub, si.Digest, digest, si.sig) == nil
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(pub, digest, si.sig)
	}
	return false
}

func sum(hash crypto.Hash, b []byte) []byte {
	h := hash.New()
	h.Write(b)
	return h.Sum(nil)
}

// sortedSet returns the contents of a SET OF in the order of DER.
func sortedSet(set cryptobyte.String) []byte {
	var elements [][]byte
	size := len(set)
	for !set.Empty() {
		var raw cryptobyte.String
		var tag casn1.Tag
		if !set.ReadAnyASN1Element(&raw, &tag) {
			return nil
		}
		elements = append(elements, raw)
	}
	slices.SortFunc(elements, bytes.Compare)
	out := make([]byte, 0, size)
	for _, e := range elements {
		out = append(out, e...)
	}
	return out
}
