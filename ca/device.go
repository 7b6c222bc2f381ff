package ca

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/crypto/cryptobyte"
	cryptobyte_asn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// The identifier types of devices (draft-ietf-acme-device-attest). A value is
// "IDENTITY" or "IDENTITY/ASSIGNER" of the first, "SERIAL/TYPE" of the second,
// where ASSIGNER and TYPE are object identifiers. Nothing in it is normalised.
const (
	PermanentIdentifier IdentifierType = "permanent-identifier" // RFC 4043
	HardwareModule      IdentifierType = "hardware-module"      // RFC 4108
)

// IsDevice reports whether t names a device.
func (t IdentifierType) IsDevice() bool { return t == PermanentIdentifier || t == HardwareModule }

var (
	oidPermanentIdentifier = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 8, 3}
	oidHardwareModuleName  = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 8, 4}

	otherNameTag = cryptobyte_asn1.Tag(0).ContextSpecific().Constructed()
	explicit0    = cryptobyte_asn1.Tag(0).ContextSpecific().Constructed()
)

// maxDeviceName bounds the value of a device's identifier.
const maxDeviceName = 256

// splitDevice takes the value of a device's identifier apart, and says what is
// wrong with it, "" for nothing.
func splitDevice(id Identifier) (name string, oid x509.OID, hasOID bool, wrong string) {
	name, dotted, hasOID := strings.Cut(id.Value, "/")
	switch {
	case name == "":
		wrong = "the identity before the slash is empty"
	case len(id.Value) > maxDeviceName:
		wrong = fmt.Sprintf("the value is longer than %d octets", maxDeviceName)
	case !utf8.ValidString(name):
		wrong = "the identity is not UTF-8"
	case strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		wrong = "the identity has characters that are not printed" // or turn around what is
	case !hasOID && id.Type == HardwareModule:
		wrong = "the type of the hardware has to follow the serial number, as SERIAL/1.2.3"
	case hasOID:
		var err error
		if oid, err = x509.ParseOID(dotted); err != nil || oid.String() != dotted {
			wrong = "what follows the slash is not an object identifier such as 1.2.3"
		}
	}
	return name, oid, hasOID, wrong
}

func (a *Authority) checkDevice(p *Profile, id Identifier) *Refusal {
	kind := KindPermanentIdentifier
	if id.Type == HardwareModule {
		kind = KindHardwareModule
	}
	if !p.allows(kind) {
		return &Refusal{Code: Unsupported, Detail: "the profile has no identifiers of type " + string(id.Type), Identifier: &id}
	}
	if _, _, _, wrong := splitDevice(id); wrong != "" {
		return &Refusal{Code: Malformed, Detail: wrong, Identifier: &id}
	}
	return nil
}

// addOtherName writes a device's identifier as a GeneralName.
func addOtherName(b *cryptobyte.Builder, id Identifier) {
	name, oid, hasOID, wrong := splitDevice(id)
	if wrong != "" {
		b.SetError(errors.New("device of a checked request: " + wrong))
		return
	}
	var value []byte
	if hasOID {
		text, err := oid.MarshalBinary()
		if err != nil {
			b.SetError(err)
			return
		}
		value = text
	}
	addOID := func(b *cryptobyte.Builder) {
		b.AddASN1(cryptobyte_asn1.OBJECT_IDENTIFIER, func(b *cryptobyte.Builder) { b.AddBytes(value) })
	}
	b.AddASN1(otherNameTag, func(b *cryptobyte.Builder) {
		typeID := oidPermanentIdentifier
		if id.Type == HardwareModule {
			typeID = oidHardwareModuleName
		}
		b.AddASN1ObjectIdentifier(typeID)
		b.AddASN1(explicit0, func(b *cryptobyte.Builder) {
			b.AddASN1(cryptobyte_asn1.SEQUENCE, func(b *cryptobyte.Builder) {
				if id.Type == HardwareModule {
					addOID(b)
					b.AddASN1OctetString([]byte(name))
					return
				}
				b.AddASN1(cryptobyte_asn1.UTF8String, func(b *cryptobyte.Builder) { b.AddBytes([]byte(name)) })
				if hasOID {
					addOID(b)
				}
			})
		})
	})
}

// DeviceName writes the identifier of a device as an otherName, tag and all.
func DeviceName(id Identifier) ([]byte, error) {
	var b cryptobyte.Builder
	addOtherName(&b, id)
	return b.Bytes()
}

var errDeviceName = errors.New("the name of a device is malformed")

// ParseDeviceName reads an otherName, tag and all, as the identifier of a
// device. Known is false for names of other kinds.
func ParseDeviceName(element []byte) (id Identifier, known bool, err error) {
	var (
		input        = cryptobyte.String(element)
		other, value cryptobyte.String
		typeID       asn1.ObjectIdentifier
	)
	if !input.ReadASN1(&other, otherNameTag) || !input.Empty() || !other.ReadASN1ObjectIdentifier(&typeID) ||
		!other.ReadASN1(&value, explicit0) || !other.Empty() {
		return id, false, errDeviceName
	}
	switch {
	case typeID.Equal(oidPermanentIdentifier):
		id.Type = PermanentIdentifier
	case typeID.Equal(oidHardwareModuleName):
		id.Type = HardwareModule
	default:
		return id, false, nil
	}
	var seq cryptobyte.String
	if !value.ReadASN1(&seq, cryptobyte_asn1.SEQUENCE) || !value.Empty() || !readDevice(seq, &id) {
		return id, false, errDeviceName
	}
	// What is read is written the same again, or two names could look alike.
	if again, err := DeviceName(id); err != nil || !bytes.Equal(again, element) {
		return id, false, errDeviceName
	}
	return id, true, nil
}

func readDevice(seq cryptobyte.String, id *Identifier) bool {
	var name, oid cryptobyte.String
	if id.Type == HardwareModule {
		if !seq.ReadASN1(&oid, cryptobyte_asn1.OBJECT_IDENTIFIER) || !seq.ReadASN1(&name, cryptobyte_asn1.OCTET_STRING) {
			return false
		}
	} else {
		var has bool
		if !seq.ReadASN1(&name, cryptobyte_asn1.UTF8String) || !seq.ReadOptionalASN1(&oid, &has, cryptobyte_asn1.OBJECT_IDENTIFIER) {
			return false
		}
	}
	if !seq.Empty() || strings.Contains(string(name), "/") {
		return false
	}
	id.Value = string(name)
	if len(oid) > 0 {
		var o x509.OID
		if o.UnmarshalBinary(oid) != nil {
			return false
		}
		id.Value += "/" + o.String()
	}
	return true
}

// altNamesOf writes a subjectAltName of all kinds of names: crypto/x509 writes
// none of devices.
func altNamesOf(names []Identifier, critical bool) (pkix.Extension, error) {
	var b cryptobyte.Builder
	b.AddASN1(cryptobyte_asn1.SEQUENCE, func(b *cryptobyte.Builder) {
		for _, id := range names {
			switch id.Type {
			case DNS:
				b.AddASN1(cryptobyte_asn1.Tag(2).ContextSpecific(), func(b *cryptobyte.Builder) { b.AddBytes([]byte(id.Value)) })
			case IP:
				addr, err := netip.ParseAddr(id.Value)
				if err != nil {
					b.SetError(err)
					return
				}
				b.AddASN1(cryptobyte_asn1.Tag(7).ContextSpecific(), func(b *cryptobyte.Builder) { b.AddBytes(addr.AsSlice()) })
			case SubjectCommonName, SubjectSerialNumber:
			default:
				addOtherName(b, id)
			}
		}
	})
	der, err := b.Bytes()
	if err != nil {
		return pkix.Extension{}, fmt.Errorf("writing subjectAltName: %w", err)
	}
	return pkix.Extension{Id: oidSubjectAltName, Critical: critical, Value: der}, nil
}
