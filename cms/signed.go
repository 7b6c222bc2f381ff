package cms

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"math/big"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"
)

const (
	// maxSigners bounds the SignerInfos of a message.
	maxSigners = 8
	// maxAttributes bounds the attributes of a SignerInfo.
	maxAttributes = 64
	// maxCandidates bounds how many certificates are looked at for a signer's.
	maxCandidates = 16
)

// A SignedData is a SignedData of which nothing is verified yet.
type SignedData struct {
	ContentType  asn1.ObjectIdentifier
	Content      []byte   // nil: there is none
	Certificates [][]byte // DER, in the order of the message, and not parsed
	CRLs         [][]byte // the same
	Signers      []*SignerInfo
}

// A SignerInfo is one signature of a SignedData.
type SignerInfo struct {
	Digest     crypto.Hash // 0: one that is not known here
	Attributes []Attribute // signed ones, no type twice

	of     *SignedData
	sid    identifier
	attrs  []byte // contents of the SET as received
	sigOID asn1.ObjectIdentifier
	sig    []byte
	// noParams says that the parameters of sigOID are as they should be.
	noParams bool
}

// An identifier names a certificate: by its issuer and serial number, or by its
// subject key identifier.
type identifier struct {
	issuer []byte // DER
	serial *big.Int
	keyID  []byte
}

// ParseSignedData reads a ContentInfo with SignedData. Its errors match
// ErrMalformed.
func ParseSignedData(ber []byte) (*SignedData, error) {
	der, err := DER(ber)
	if err != nil {
		return nil, err
	}
	in, err := readContentInfo(der, OIDSignedData)
	if err != nil {
		return nil, err
	}
	var version int
	var encap, content, signers cryptobyte.String
	var hasContent bool
	sd := new(SignedData)
	if !in.ReadASN1Integer(&version) || !in.SkipASN1(casn1.SET) || !in.ReadASN1(&encap, casn1.SEQUENCE) {
		return nil, malformed("SignedData")
	}
	if !readOID(&encap, &sd.ContentType) ||
		!encap.ReadOptionalASN1(&content, &hasContent, explicit(0)) || !encap.Empty() {
		return nil, malformed("EncapsulatedContentInfo")
	}
	if hasContent {
		var octets cryptobyte.String
		if !content.ReadASN1(&octets, casn1.OCTET_STRING) || !content.Empty() {
			return nil, malformed("eContent")
		}
		sd.Content = octets
	}
	if sd.Certificates, err = readElements(&in, 0); err != nil {
		return nil, err
	}
	if sd.CRLs, err = readElements(&in, 1); err != nil {
		return nil, err
	}
	if !in.ReadASN1(&signers, casn1.SET) || !in.Empty() {
		return nil, malformed("signerInfos")
	}
	for !signers.Empty() {
		if len(sd.Signers) == maxSigners {
			return nil, malformed("too many signers")
		}
		si, err := readSignerInfo(&signers)
		if err != nil {
			return nil, err
		}
		si.of = sd
		sd.Signers = append(sd.Signers, si)
	}
	return sd, nil
}

// readElements reads an optional implicitly tagged SET OF elements.
func readElements(in *cryptobyte.String, tag uint8) ([][]byte, error) {
	var set cryptobyte.String
	var present bool
	if !in.ReadOptionalASN1(&set, &present, explicit(tag)) {
		return nil, malformed("certificates or CRLs")
	}
	var out [][]byte
	for !set.Empty() {
		var raw cryptobyte.String
		var t casn1.Tag
		if !set.ReadAnyASN1Element(&raw, &t) {
			return nil, malformed("certificates or CRLs")
		}
		out = append(out, raw)
	}
	return out, nil
}

func readSignerInfo(in *cryptobyte.String) (*SignerInfo, error) {
	var seq, attrs, params, sig cryptobyte.String
	var version int
	var hasAttrs, ok bool
	var digest asn1.ObjectIdentifier
	si := new(SignerInfo)
	if !in.ReadASN1(&seq, casn1.SEQUENCE) || !seq.ReadASN1Integer(&version) || !si.sid.read(&seq) {
		return nil, malformed("SignerInfo")
	}
	if digest, params, ok = readAlgorithm(&seq); !ok {
		return nil, malformed("digestAlgorithm")
	}
	if noParameters(params) {
		si.Digest = hashOf(digest)
	}
	if !seq.ReadOptionalASN1(&attrs, &hasAttrs, explicit(0)) {
		return nil, malformed("signedAttrs")
	}
	if si.sigOID, params, ok = readAlgorithm(&seq); !ok {
		return nil, malformed("signatureAlgorithm")
	}
	si.noParams = noParameters(params)
	if !seq.ReadASN1(&sig, casn1.OCTET_STRING) || !seq.SkipOptionalASN1(explicit(1)) || !seq.Empty() {
		return nil, malformed("SignerInfo")
	}
	si.attrs, si.sig = attrs, sig
	var err error
	si.Attributes, err = readAttributes(attrs)
	return si, err
}

func readAttributes(set cryptobyte.String) ([]Attribute, error) {
	var out []Attribute
	for !set.Empty() {
		var seq, values cryptobyte.String
		var a Attribute
		if !set.ReadASN1(&seq, casn1.SEQUENCE) || !readOID(&seq, &a.Type) ||
			!seq.ReadASN1(&values, casn1.SET) || !seq.Empty() {
			return nil, malformed("Attribute")
		}
		for !values.Empty() {
			var raw cryptobyte.String
			var t casn1.Tag
			if !values.ReadAnyASN1Element(&raw, &t) {
				return nil, malformed("Attribute")
			}
			a.Values = append(a.Values, raw)
		}
		for _, other := range out {
			if other.Type.Equal(a.Type) {
				return nil, malformed("an attribute twice")
			}
		}
		if len(out) == maxAttributes {
			return nil, malformed("too many attributes")
		}
		out = append(out, a)
	}
	return out, nil
}

// read reads a SignerIdentifier or RecipientIdentifier, which are alike.
func (id *identifier) read(in *cryptobyte.String) bool {
	if in.PeekASN1Tag(implicit0) {
		var keyID cryptobyte.String
		ok := in.ReadASN1(&keyID, implicit0) && len(keyID) > 0
		id.keyID = keyID
		return ok
	}
	var seq, issuer cryptobyte.String
	id.serial = new(big.Int)
	ok := in.ReadASN1(&seq, casn1.SEQUENCE) && seq.ReadASN1Element(&issuer, casn1.SEQUENCE) &&
		seq.ReadASN1Integer(id.serial) && seq.Empty()
	id.issuer = issuer
	return ok
}

// names reports whether cert is the one meant.
func (id *identifier) names(cert *x509.Certificate) bool {
	if id.keyID != nil {
		return bytes.Equal(id.keyID, cert.SubjectKeyId)
	}
	return id.serial != nil && id.serial.Cmp(cert.SerialNumber) == 0 && bytes.Equal(id.issuer, cert.RawIssuer)
}

func (id *identifier) add(b *cryptobyte.Builder) {
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddBytes(id.issuer)
		b.AddASN1BigInt(id.serial)
	})
}

func identify(cert *x509.Certificate) identifier {
	return identifier{issuer: cert.RawIssuer, serial: cert.SerialNumber}
}

// Certificate returns the certificate of the message that the signature says it
// is by, if that is no longer than maxSize. Nothing says yet that it is.
func (si *SignerInfo) Certificate(maxSize int) (*x509.Certificate, error) {
	for i, der := range si.of.Certificates {
		if i == maxCandidates {
			break
		}
		if len(der) > maxSize || si.sid.keyID == nil && !si.sid.mayName(der) {
			continue
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			if si.sid.keyID != nil {
				continue // perhaps another's
			}
			return nil, fmt.Errorf("%w: the signer's certificate: %w", ErrMalformed, err)
		}
		if si.sid.names(cert) {
			return cert, nil
		}
	}
	return nil, malformed("the signer's certificate is not there")
}

// mayName reads no more of a certificate than it takes to pass over another's.
func (id *identifier) mayName(der cryptobyte.String) bool {
	var cert, tbs, issuer cryptobyte.String
	serial := new(big.Int)
	return der.ReadASN1(&cert, casn1.SEQUENCE) && cert.ReadASN1(&tbs, casn1.SEQUENCE) &&
		tbs.SkipOptionalASN1(explicit(0)) && tbs.ReadASN1Integer(serial) &&
		tbs.SkipASN1(casn1.SEQUENCE) && tbs.ReadASN1Element(&issuer, casn1.SEQUENCE) &&
		serial.Cmp(id.serial) == 0 && bytes.Equal(issuer, id.issuer)
}

// Attribute returns the one value of a signed attribute, nil if it is not there.
// Not exactly one value is an error.
func (si *SignerInfo) Attribute(oid asn1.ObjectIdentifier) ([]byte, error) {
	for _, a := range si.Attributes {
		if !a.Type.Equal(oid) {
			continue
		}
		if len(a.Values) != 1 {
			return nil, fmt.Errorf("%w: attribute %v has not one value", ErrMalformed, oid)
		}
		return a.Values[0], nil
	}
	return nil, nil
}
