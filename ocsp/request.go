package ocsp

import (
	"bytes"
	"crypto"
	"encoding/asn1"
	"encoding/hex"
	"fmt"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/secsy-pki/secsy-pki/ca"
)

const (
	// maxRequest bounds a request's DER. The largest that a client has reason
	// to send, signed and with its chain, stays below it.
	maxRequest = 10_000
	// maxCertIDs bounds how many certificates one request may ask about.
	maxCertIDs = 10
	// maxNonce is the longest nonce, RFC 9654 §2.1.
	maxNonce = 128
)

var (
	oidBasic               = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 48, 1, 1}
	oidNonce               = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 48, 1, 2}
	oidAcceptableResponses = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 48, 1, 4}
	oidArchiveCutoff       = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 48, 1, 6}
	oidPreferredSignatures = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 48, 1, 8}
	oidExtendedRevoke      = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 48, 1, 9}

	oidSHA1   = asn1.ObjectIdentifier{1, 3, 14, 3, 2, 26}
	oidSHA256 = asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 2, 1}
	oidSHA384 = asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 2, 2}
	oidSHA512 = asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 2, 3}
)

// A request is what matters of an OCSPRequest. requestorName and the optional
// signature are skipped: RFC 9919 §3.1.2 has both answered as if absent.
type request struct {
	certIDs []certID // 1 to maxCertIDs
	nonce   []byte   // nil: none

	room [1]certID // for most
}

// A certID names one certificate by the hashes of its issuer.
type certID struct {
	raw      []byte      // the DER, echoed octet for octet in the response
	hash     crypto.Hash // 0: one that we do not compute
	nameHash []byte
	keyHash  []byte
	number   []byte // contents of the INTEGER
}

// serial returns the serial number, and false for one that no certificate of
// ours can have (RFC 5280 §4.1.2.2: positive, at most 20 octets).
func (c certID) serial() (ca.Serial, bool) {
	n := c.number
	if len(n) > 20 || n[0]&0x80 != 0 {
		return "", false
	}
	n = bytes.TrimLeft(n, "\x00")
	if len(n) == 0 {
		return "", false
	}
	return ca.Serial(hex.EncodeToString(n)), true
}

func malformed(what string) error { return fmt.Errorf("%w: %s", malformedRequest, what) }

// parseRequest reads a DER OCSPRequest (RFC 6960 §4.1.1). Its errors match
// malformedRequest.
func parseRequest(der []byte) (*request, error) {
	if len(der) > maxRequest {
		return nil, malformed("too long")
	}
	in := cryptobyte.String(der)
	var outer, tbs cryptobyte.String
	if !in.ReadASN1(&outer, casn1.SEQUENCE) || !in.Empty() {
		return nil, malformed("not one SEQUENCE")
	}
	if !outer.ReadASN1(&tbs, casn1.SEQUENCE) ||
		!outer.SkipOptionalASN1(explicit(0)) || !outer.Empty() {
		return nil, malformed("OCSPRequest")
	}
	var version int64
	if !tbs.ReadOptionalASN1Integer(&version, explicit(0), int64(0)) || version != 0 {
		return nil, malformed("version")
	}
	if !tbs.SkipOptionalASN1(explicit(1)) {
		return nil, malformed("requestorName")
	}
	var list cryptobyte.String
	if !tbs.ReadASN1(&list, casn1.SEQUENCE) {
		return nil, malformed("requestList")
	}
	req := new(request)
	req.certIDs = req.room[:0]
	for !list.Empty() {
		if len(req.certIDs) == maxCertIDs {
			return nil, malformed("too many CertIDs")
		}
		id, err := readRequest(&list)
		if err != nil {
			return nil, err
		}
		req.certIDs = append(req.certIDs, id)
	}
	if len(req.certIDs) == 0 {
		return nil, malformed("no CertID")
	}
	err := readExtensions(&tbs, 2, func(oid asn1.ObjectIdentifier, critical bool, value cryptobyte.String) error {
		if !oid.Equal(oidNonce) {
			return ignoreExtension(oid, critical)
		}
		if req.nonce != nil {
			return malformed("two nonces")
		}
		var err error
		req.nonce, err = readNonce(value)
		return err
	})
	if err != nil {
		return nil, err
	}
	if !tbs.Empty() {
		return nil, malformed("TBSRequest")
	}
	return req, nil
}

// readRequest takes one Request off the requestList.
func readRequest(list *cryptobyte.String) (certID, error) {
	var item, raw cryptobyte.String
	if !list.ReadASN1(&item, casn1.SEQUENCE) || !item.ReadASN1Element(&raw, casn1.SEQUENCE) {
		return certID{}, malformed("Request")
	}
	id, err := readCertID(raw)
	if err != nil {
		return certID{}, err
	}
	err = readExtensions(&item, 0, func(oid asn1.ObjectIdentifier, critical bool, _ cryptobyte.String) error {
		return ignoreExtension(oid, critical)
	})
	if err == nil && !item.Empty() {
		err = malformed("Request")
	}
	return id, err
}

func readCertID(raw cryptobyte.String) (certID, error) {
	id := certID{raw: raw}
	var seq, alg, name, key, number cryptobyte.String
	var oid asn1.ObjectIdentifier
	if !raw.ReadASN1(&seq, casn1.SEQUENCE) ||
		!seq.ReadASN1(&alg, casn1.SEQUENCE) || !readOID(&alg, &oid) ||
		!seq.ReadASN1(&name, casn1.OCTET_STRING) ||
		!seq.ReadASN1(&key, casn1.OCTET_STRING) ||
		!seq.ReadASN1(&number, casn1.INTEGER) || !minimal(number) || !seq.Empty() {
		return certID{}, malformed("CertID")
	}
	id.hash = hashOf(oid)
	// Parameters are absent or NULL (RFC 4055 §2.1); both are in the field.
	if id.hash != 0 && !alg.Empty() {
		var null cryptobyte.String
		if !alg.ReadASN1(&null, casn1.NULL) || !null.Empty() || !alg.Empty() {
			return certID{}, malformed("hashAlgorithm")
		}
	}
	id.nameHash, id.keyHash, id.number = name, key, number
	return id, nil
}

// A spelled is an OBJECT IDENTIFIER with its contents in DER.
type spelled struct {
	oid asn1.ObjectIdentifier
	der string
}

// spelledOIDs are those that requests are full of.
var spelledOIDs = func() (all []spelled) {
	for _, oid := range []asn1.ObjectIdentifier{oidSHA1, oidNonce, oidSHA256, oidAcceptableResponses, oidPreferredSignatures, oidSHA384, oidSHA512} {
		all = append(all, spelled{oid, string(objectIdentifier(oid)[2:])})
	}
	return all
}()

// readOID takes an OBJECT IDENTIFIER off in, which is not to be changed.
func readOID(in *cryptobyte.String, oid *asn1.ObjectIdentifier) bool {
	var der cryptobyte.String
	rest := *in
	if !rest.ReadASN1(&der, casn1.OBJECT_IDENTIFIER) {
		return false
	}
	for _, s := range spelledOIDs {
		if string(der) == s.der {
			*in, *oid = rest, s.oid
			return true
		}
	}
	return in.ReadASN1ObjectIdentifier(oid)
}

// minimal reports whether n is the contents of a DER INTEGER.
func minimal(n []byte) bool {
	if len(n) < 2 {
		return len(n) == 1
	}
	padded := n[0] == 0 && n[1]&0x80 == 0 || n[0] == 0xff && n[1]&0x80 != 0
	return !padded
}

func hashOf(oid asn1.ObjectIdentifier) crypto.Hash {
	switch {
	case oid.Equal(oidSHA1):
		return crypto.SHA1
	case oid.Equal(oidSHA256):
		return crypto.SHA256
	case oid.Equal(oidSHA384):
		return crypto.SHA384
	case oid.Equal(oidSHA512):
		return crypto.SHA512
	}
	return 0
}

// readExtensions calls each for every extension of an optional, explicitly
// tagged Extensions.
func readExtensions(in *cryptobyte.String, tag uint8, each func(oid asn1.ObjectIdentifier, critical bool, value cryptobyte.String) error) error {
	var wrapped, list cryptobyte.String
	var present bool
	if !in.ReadOptionalASN1(&wrapped, &present, explicit(tag)) {
		return malformed("Extensions")
	}
	if !present {
		return nil
	}
	if !wrapped.ReadASN1(&list, casn1.SEQUENCE) || !wrapped.Empty() {
		return malformed("Extensions")
	}
	for !list.Empty() {
		var ext, value cryptobyte.String
		var oid asn1.ObjectIdentifier
		var critical bool
		if !list.ReadASN1(&ext, casn1.SEQUENCE) || !readOID(&ext, &oid) ||
			ext.PeekASN1Tag(casn1.BOOLEAN) && !ext.ReadASN1Boolean(&critical) ||
			!ext.ReadASN1(&value, casn1.OCTET_STRING) || !ext.Empty() {
			return malformed("Extension")
		}
		if err := each(oid, critical, value); err != nil {
			return err
		}
	}
	return nil
}

// ignoreExtension passes over what changes nothing for us: every response is a
// basic one, and the responder's key decides the algorithm.
func ignoreExtension(oid asn1.ObjectIdentifier, critical bool) error {
	if critical && !oid.Equal(oidAcceptableResponses) && !oid.Equal(oidPreferredSignatures) {
		return malformed("unknown critical extension")
	}
	return nil
}

// readNonce reads Nonce ::= OCTET STRING (SIZE (1..128)), RFC 9654 §2.1.
func readNonce(value cryptobyte.String) ([]byte, error) {
	var nonce cryptobyte.String
	if !value.ReadASN1(&nonce, casn1.OCTET_STRING) || !value.Empty() ||
		len(nonce) == 0 || len(nonce) > maxNonce {
		return nil, malformed("nonce")
	}
	return nonce, nil
}

// explicit is the tag [n] of a constructed value.
func explicit(n uint8) casn1.Tag { return casn1.Tag(n).ContextSpecific().Constructed() }
