package ca

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"time"
	"unicode"

	"golang.org/x/crypto/cryptobyte"
	cryptobyte_asn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// The extensions that order.template asks for (RFC 5280 §4.2).
var (
	oidKeyUsage            = asn1.ObjectIdentifier{2, 5, 29, 15}
	oidSubjectKeyID        = asn1.ObjectIdentifier{2, 5, 29, 14}
	oidCRLDistribution     = asn1.ObjectIdentifier{2, 5, 29, 31}
	oidCertificatePolicies = asn1.ObjectIdentifier{2, 5, 29, 32}
	oidAuthorityKeyID      = asn1.ObjectIdentifier{2, 5, 29, 35}
	oidExtKeyUsage         = asn1.ObjectIdentifier{2, 5, 29, 37}
	oidAuthorityInfo       = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 1}
	oidAccessOCSP          = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 48, 1}
	oidAccessIssuers       = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 48, 2}
)

// Context-specific tags of GeneralName (RFC 5280 §4.2.1.6).
const (
	tagDNSName = cryptobyte_asn1.Tag(2)
	tagURI     = cryptobyte_asn1.Tag(6)
	tagIP      = cryptobyte_asn1.Tag(7)
)

// encodeTBS writes the TBSCertificate of an end entity, octet by octet what
// x509.CreateCertificate makes of a template by order.template, which would also
// sign it and verify the signature. alg is the signature's AlgorithmIdentifier.
func encodeTBS(t *x509.Certificate, issuer *x509.Certificate, alg []byte, pub crypto.PublicKey) ([]byte, error) {
	subject, err := asn1.Marshal(t.Subject.ToRDNSequence())
	if err != nil {
		return nil, fmt.Errorf("encoding subject: %w", err)
	}
	spki, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return nil, fmt.Errorf("encoding public key: %w", err)
	}
	if t.IsCA || bytes.Equal(subject, issuer.RawSubject) {
		return nil, errors.New("this is not the certificate of an end entity")
	}
	var b cryptobyte.Builder
	sequence(&b, func(b *cryptobyte.Builder) {
		b.AddASN1(cryptobyte_asn1.Tag(0).ContextSpecific().Constructed(), func(b *cryptobyte.Builder) { b.AddASN1Int64(2) }) // v3
		b.AddASN1BigInt(t.SerialNumber)
		b.AddBytes(alg)
		b.AddBytes(issuer.RawSubject)
		sequence(b, func(b *cryptobyte.Builder) { addTime(b, t.NotBefore); addTime(b, t.NotAfter) })
		b.AddBytes(subject)
		b.AddBytes(spki)
		b.AddASN1(cryptobyte_asn1.Tag(3).ContextSpecific().Constructed(), func(b *cryptobyte.Builder) {
			sequence(b, func(b *cryptobyte.Builder) {
				addExtensions(b, t, issuer.SubjectKeyId, len(subject) == len(emptySequence))
			})
		})
	})
	return b.Bytes()
}

var emptySequence = []byte{0x30, 0}

func sequence(b *cryptobyte.Builder, f func(*cryptobyte.Builder)) {
	b.AddASN1(cryptobyte_asn1.SEQUENCE, f)
}

// addTime writes two digits of the year while they are enough (RFC 5280 §4.1.2.5).
func addTime(b *cryptobyte.Builder, t time.Time) {
	if t = t.UTC(); t.Year() < 2050 {
		b.AddASN1UTCTime(t)
	} else {
		b.AddASN1GeneralizedTime(t)
	}
}

// addExtensions keeps to the order of crypto/x509.
func addExtensions(b *cryptobyte.Builder, t *x509.Certificate, authority []byte, unnamed bool) {
	if t.KeyUsage != 0 {
		addExtension(b, oidKeyUsage, true, func(b *cryptobyte.Builder) { addKeyUsage(b, t.KeyUsage) })
	}
	if len(t.ExtKeyUsage) > 0 {
		addExtension(b, oidExtKeyUsage, false, func(b *cryptobyte.Builder) {
			sequence(b, func(b *cryptobyte.Builder) {
				for _, u := range t.ExtKeyUsage {
					addOID(b, u.OID())
				}
			})
		})
	}
	addExtension(b, oidBasicConstraints, true, func(b *cryptobyte.Builder) { b.AddBytes(emptySequence) })
	if len(t.SubjectKeyId) > 0 {
		addExtension(b, oidSubjectKeyID, false, func(b *cryptobyte.Builder) { b.AddASN1OctetString(t.SubjectKeyId) })
	}
	if len(authority) > 0 {
		addExtension(b, oidAuthorityKeyID, false, func(b *cryptobyte.Builder) {
			sequence(b, func(b *cryptobyte.Builder) { addTagged(b, 0, authority) })
		})
	}
	addStatusExtensions(b, t, unnamed)
	for _, e := range t.ExtraExtensions {
		addExtension(b, e.Id, e.Critical, func(b *cryptobyte.Builder) { b.AddBytes(e.Value) })
	}
}

func addStatusExtensions(b *cryptobyte.Builder, t *x509.Certificate, unnamed bool) {
	if len(t.OCSPServer)+len(t.IssuingCertificateURL) > 0 {
		addExtension(b, oidAuthorityInfo, false, func(b *cryptobyte.Builder) {
			sequence(b, func(b *cryptobyte.Builder) {
				addAccess(b, oidAccessOCSP, t.OCSPServer)
				addAccess(b, oidAccessIssuers, t.IssuingCertificateURL)
			})
		})
	}
	if len(t.DNSNames)+len(t.IPAddresses) > 0 {
		// RFC 5280 §4.2.1.6: critical where it is all that names the subject.
		addExtension(b, oidSubjectAltName, unnamed, func(b *cryptobyte.Builder) { addAltNames(b, t) })
	}
	if len(t.Policies) > 0 {
		addExtension(b, oidCertificatePolicies, false, func(b *cryptobyte.Builder) {
			sequence(b, func(b *cryptobyte.Builder) {
				for _, p := range t.Policies {
					sequence(b, func(b *cryptobyte.Builder) { addOID(b, p) })
				}
			})
		})
	}
	if len(t.CRLDistributionPoints) > 0 {
		addExtension(b, oidCRLDistribution, false, func(b *cryptobyte.Builder) { addDistributionPoints(b, t.CRLDistributionPoints) })
	}
}

func addExtension(b *cryptobyte.Builder, id asn1.ObjectIdentifier, critical bool, value func(*cryptobyte.Builder)) {
	sequence(b, func(b *cryptobyte.Builder) {
		b.AddASN1ObjectIdentifier(id)
		if critical {
			b.AddASN1Boolean(true)
		}
		b.AddASN1(cryptobyte_asn1.OCTET_STRING, value)
	})
}

// addKeyUsage writes a named bit list, whose trailing zeros are left out (X.690 §11.2.2).
func addKeyUsage(b *cryptobyte.Builder, u x509.KeyUsage) {
	octets := []byte{bits.Reverse8(byte(u)), bits.Reverse8(byte(u >> 8))}
	octets = bytes.TrimRight(octets, "\x00")
	b.AddASN1(cryptobyte_asn1.BIT_STRING, func(b *cryptobyte.Builder) {
		b.AddUint8(uint8(bits.TrailingZeros8(octets[len(octets)-1])))
		b.AddBytes(octets)
	})
}

func addOID(b *cryptobyte.Builder, oid x509.OID) {
	content, err := oid.MarshalBinary()
	if err != nil {
		b.SetError(err)
		return
	}
	b.AddASN1(cryptobyte_asn1.OBJECT_IDENTIFIER, func(b *cryptobyte.Builder) { b.AddBytes(content) })
}

func addTagged(b *cryptobyte.Builder, tag cryptobyte_asn1.Tag, value []byte) {
	b.AddASN1(tag.ContextSpecific(), func(b *cryptobyte.Builder) { b.AddBytes(value) })
}

func addAccess(b *cryptobyte.Builder, method asn1.ObjectIdentifier, urls []string) {
	for _, u := range urls {
		sequence(b, func(b *cryptobyte.Builder) {
			b.AddASN1ObjectIdentifier(method)
			addText(b, tagURI, u)
		})
	}
}

// addText writes an IA5String, which is ASCII.
func addText(b *cryptobyte.Builder, tag cryptobyte_asn1.Tag, text string) {
	if strings.ContainsFunc(text, func(r rune) bool { return r > unicode.MaxASCII }) {
		b.SetError(fmt.Errorf("%q is not ASCII", text))
		return
	}
	addTagged(b, tag, []byte(text))
}

func addAltNames(b *cryptobyte.Builder, t *x509.Certificate) {
	sequence(b, func(b *cryptobyte.Builder) {
		for _, n := range t.DNSNames {
			addText(b, tagDNSName, n)
		}
		for _, ip := range t.IPAddresses {
			if four := ip.To4(); four != nil {
				ip = four
			}
			addTagged(b, tagIP, ip)
		}
	})
}

func addDistributionPoints(b *cryptobyte.Builder, urls []string) {
	name := cryptobyte_asn1.Tag(0).ContextSpecific().Constructed() // of the point, and fullName in it
	sequence(b, func(b *cryptobyte.Builder) {
		for _, u := range urls {
			sequence(b, func(b *cryptobyte.Builder) {
				b.AddASN1(name, func(b *cryptobyte.Builder) {
					b.AddASN1(name, func(b *cryptobyte.Builder) { addText(b, tagURI, u) })
				})
			})
		}
	})
}
