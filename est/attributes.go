package est

import (
	"encoding/asn1"
	"fmt"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// Attributes are what devices are told that their requests should have. The zero
// value says nothing.
type Attributes struct {
	Subject    []SubjectAttribute // each an RDN, in order
	Key        KeyAlgorithm       // "": any
	Extensions []Extension
}

// A SubjectAttribute is a part of the name that a request should have.
type SubjectAttribute struct {
	Type  asn1.ObjectIdentifier
	Value string // "": the device knows it
}

// An Extension is one that a request should ask for.
type Extension struct {
	ID       asn1.ObjectIdentifier
	Critical bool
	Value    []byte // DER; nil: the device knows it
}

var (
	// RFC 9908.
	oidRequestTemplate   = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 16, 2, 61}
	oidExtensionTemplate = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 16, 2, 62}

	oidECKey  = asn1.ObjectIdentifier{1, 2, 840, 10045, 2, 1}
	oidRSAKey = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}
	oidP256   = asn1.ObjectIdentifier{1, 2, 840, 10045, 3, 1, 7}
	oidP384   = asn1.ObjectIdentifier{1, 3, 132, 0, 34}
)

var (
	explicit0 = casn1.Tag(0).Constructed().ContextSpecific()
	explicit1 = casn1.Tag(1).Constructed().ContextSpecific()
)

// encode returns the CsrAttrs, nil where there is nothing to say: the key in the
// words of RFC 7030 for clients of before RFC 9908, and a template for the others.
func (a Attributes) encode(challenge bool) ([]byte, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	templated := len(a.Subject) > 0 || len(a.Extensions) > 0 || a.Key != ""
	if !templated && !challenge {
		return nil, nil
	}
	var b cryptobyte.Builder
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		if challenge {
			b.AddASN1ObjectIdentifier(oidChallengePassword)
		}
		if a.Key != "" {
			b.AddASN1(casn1.SEQUENCE, a.addKeyAttribute)
		}
		if templated {
			b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
				b.AddASN1ObjectIdentifier(oidRequestTemplate)
				b.AddASN1(casn1.SET, func(b *cryptobyte.Builder) { b.AddASN1(casn1.SEQUENCE, a.addTemplate) })
			})
		}
	})
	return b.Bytes()
}

func (a Attributes) check() error {
	switch a.Key {
	case "", ECP256, ECP384, RSA2048, RSA3072:
	default:
		return fmt.Errorf("no key of algorithm %q can be asked for: ec-p256, ec-p384, rsa-2048 and rsa-3072 can", a.Key)
	}
	for _, x := range a.Extensions {
		var value asn1.RawValue
		if x.Value == nil {
			continue
		}
		if rest, err := asn1.Unmarshal(x.Value, &value); err != nil || len(rest) > 0 {
			return fmt.Errorf("the value of extension %v is not DER", x.ID)
		}
	}
	return nil
}

func (k KeyAlgorithm) curve() asn1.ObjectIdentifier {
	switch k {
	case ECP256:
		return oidP256
	case ECP384:
		return oidP384
	}
	return nil
}

// addKeyAttribute is RFC 7030 §4.5.2: the curve, or the length of an RSA key.
func (a Attributes) addKeyAttribute(b *cryptobyte.Builder) {
	if curve := a.Key.curve(); curve != nil {
		b.AddASN1ObjectIdentifier(oidECKey)
		b.AddASN1(casn1.SET, func(b *cryptobyte.Builder) { b.AddASN1ObjectIdentifier(curve) })
		return
	}
	bits := int64(2048)
	if a.Key == RSA3072 {
		bits = 3072
	}
	b.AddASN1ObjectIdentifier(oidRSAKey)
	b.AddASN1(casn1.SET, func(b *cryptobyte.Builder) { b.AddASN1Int64(bits) })
}

// addTemplate is the CertificationRequestInfoTemplate of RFC 9908 §3.4: a request
// of which some is left out. The length of an RSA key is left to the attribute.
func (a Attributes) addTemplate(b *cryptobyte.Builder) {
	b.AddASN1Int64(0)
	if len(a.Subject) > 0 {
		b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
			for _, s := range a.Subject {
				b.AddASN1(casn1.SET, func(b *cryptobyte.Builder) {
					b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
						b.AddASN1ObjectIdentifier(s.Type)
						if s.Value != "" {
							b.AddASN1(casn1.UTF8String, func(b *cryptobyte.Builder) { b.AddBytes([]byte(s.Value)) })
						}
					})
				})
			}
		})
	}
	if a.Key != "" {
		b.AddASN1(explicit0, a.addAlgorithm)
	}
	b.AddASN1(explicit1, func(b *cryptobyte.Builder) {
		if len(a.Extensions) == 0 {
			return
		}
		b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1ObjectIdentifier(oidExtensionTemplate)
			b.AddASN1(casn1.SET, func(b *cryptobyte.Builder) { b.AddASN1(casn1.SEQUENCE, a.addExtensions) })
		})
	})
}

func (a Attributes) addAlgorithm(b *cryptobyte.Builder) {
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		if curve := a.Key.curve(); curve != nil {
			b.AddASN1ObjectIdentifier(oidECKey)
			b.AddASN1ObjectIdentifier(curve)
			return
		}
		b.AddASN1ObjectIdentifier(oidRSAKey)
		b.AddASN1NULL()
	})
}

func (a Attributes) addExtensions(b *cryptobyte.Builder) {
	for _, x := range a.Extensions {
		b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1ObjectIdentifier(x.ID)
			if x.Critical {
				b.AddASN1Boolean(true)
			}
			if x.Value != nil {
				b.AddASN1OctetString(x.Value)
			}
		})
	}
}
