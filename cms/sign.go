package cms

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"fmt"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// A Signer says who signs a SignedData, and how.
type Signer struct {
	Certificate *x509.Certificate
	Key         crypto.Signer // RSA or ECDSA
	Hash        crypto.Hash   // 0: SHA-256
}

// Sign returns a ContentInfo with SignedData over content, which may be nil: there
// is none. The attributes are signed with those that bind the content, which Sign
// adds; certificates go with it as they are, in their order.
//
// The signature's algorithm is called rsaEncryption where the key is RSA (RFC 3370
// §3.2): there are clients that know it by no other name.
func (s Signer) Sign(contentType asn1.ObjectIdentifier, content []byte, attributes []Attribute, certificates [][]byte) ([]byte, error) {
	hash := s.Hash
	if hash == 0 {
		hash = crypto.SHA256
	}
	digestOID, sigOID, err := s.algorithm(hash)
	if err != nil {
		return nil, err
	}
	var b cryptobyte.Builder
	addAttributes(&b, bound(contentType, sum(hash, content), attributes))
	attrs, err := b.Bytes()
	if err != nil {
		return nil, fmt.Errorf("cms: encoding attributes: %w", err)
	}
	attrs = sortedSet(attrs)
	if attrs == nil {
		return nil, malformed("an attribute to be signed")
	}
	sig, err := s.Key.Sign(rand.Reader, sum(hash, append(appendHeader(nil, tagSet, len(attrs)), attrs...)), hash)
	if err != nil {
		return nil, fmt.Errorf("cms: signing: %w", err)
	}
	id := identify(s.Certificate)
	return build(OIDSignedData, func(b *cryptobyte.Builder) {
		addSignedDataHead(b, digestOID, contentType, content, certificates, nil)
		b.AddASN1(casn1.SET, func(b *cryptobyte.Builder) {
			b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
				b.AddASN1Int64(1)
				id.add(b)
				addAlgorithm(b, digestOID, addNull)
				b.AddASN1(explicit(0), func(b *cryptobyte.Builder) { b.AddBytes(attrs) })
				if sigOID.Equal(oidRSA) {
					addAlgorithm(b, sigOID, addNull)
				} else {
					addAlgorithm(b, sigOID, nil)
				}
				b.AddASN1OctetString(sig)
			})
		})
	})
}

func (s Signer) algorithm(hash crypto.Hash) (digest, sig asn1.ObjectIdentifier, err error) {
	if h, known := oids(hash); known {
		switch s.Key.Public().(type) {
		case *rsa.PublicKey:
			return h.digest, oidRSA, nil
		case *ecdsa.PublicKey:
			return h.digest, h.ecdsa, nil
		}
	}
	return nil, nil, fmt.Errorf("%w: signing by %T with %v", ErrAlgorithm, s.Key.Public(), hash)
}

// bound is attributes with contentType and messageDigest.
func bound(contentType asn1.ObjectIdentifier, digest []byte, attributes []Attribute) []Attribute {
	return append([]Attribute{
		{OIDContentType, [][]byte{encode(func(b *cryptobyte.Builder) { b.AddASN1ObjectIdentifier(contentType) })}},
		{OIDMessageDigest, [][]byte{encode(func(b *cryptobyte.Builder) { b.AddASN1OctetString(digest) })}},
	}, attributes...)
}

// encode returns what add writes, which cannot fail.
func encode(add func(b *cryptobyte.Builder)) []byte {
	var b cryptobyte.Builder
	add(&b)
	return b.BytesOrPanic()
}

func addAttributes(b *cryptobyte.Builder, attributes []Attribute) {
	for _, a := range attributes {
		b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1ObjectIdentifier(a.Type)
			b.AddASN1(casn1.SET, func(b *cryptobyte.Builder) {
				for _, v := range a.Values {
					b.AddBytes(v)
				}
			})
		})
	}
}

// CertsOnly returns a ContentInfo with the SignedData that is only a way to carry
// certificates and CRLs (RFC 5652 §5.1, RFC 8551 §3.8). They keep their order,
// which clients go by, though DER has another for a SET.
func CertsOnly(certificates, crls [][]byte) ([]byte, error) {
	return build(OIDSignedData, func(b *cryptobyte.Builder) {
		addSignedDataHead(b, nil, OIDData, nil, certificates, crls)
		b.AddASN1(casn1.SET, func(*cryptobyte.Builder) {})
	})
}

// build returns a ContentInfo with what add writes as a SEQUENCE.
func build(oid asn1.ObjectIdentifier, add func(b *cryptobyte.Builder)) ([]byte, error) {
	var b cryptobyte.Builder
	addContentInfo(&b, oid, add)
	der, err := b.Bytes()
	if err != nil {
		return nil, fmt.Errorf("cms: encoding: %w", err)
	}
	return der, nil
}

// addSignedDataHead writes what comes before the signerInfos. The digest is nil
// if there are none.
func addSignedDataHead(b *cryptobyte.Builder, digest, contentType asn1.ObjectIdentifier, content []byte, certificates, crls [][]byte) {
	version := int64(1)
	if digest != nil && !contentType.Equal(OIDData) {
		version = 3 // RFC 5652 §5.1
	}
	b.AddASN1Int64(version)
	b.AddASN1(casn1.SET, func(b *cryptobyte.Builder) {
		if digest != nil {
			addAlgorithm(b, digest, addNull)
		}
	})
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1ObjectIdentifier(contentType)
		if content != nil {
			b.AddASN1(explicit(0), func(b *cryptobyte.Builder) { b.AddASN1OctetString(content) })
		}
	})
	addElements(b, 0, certificates)
	addElements(b, 1, crls)
}

func addElements(b *cryptobyte.Builder, tag uint8, elements [][]byte) {
	if len(elements) == 0 {
		return
	}
	b.AddASN1(explicit(tag), func(b *cryptobyte.Builder) {
		for _, e := range elements {
			b.AddBytes(e)
		}
	})
}
