package ca

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The identifier types that stand in the subject and nowhere else: what owners
// call their devices is seldom a domain name. Values are kept as they are written.
const (
	SubjectCommonName   IdentifierType = "common-name"
	SubjectSerialNumber IdentifierType = "serial-number" // X.520 §6.2.9, of the device and not the certificate
)

// IsSubject reports whether t stands in the subject of a certificate.
func (t IdentifierType) IsSubject() bool { return t == SubjectCommonName || t == SubjectSerialNumber }

var oidSerialNumber = asn1.ObjectIdentifier{2, 5, 4, 5}

// maxSubjectSerial is the upper bound of a serialNumber (RFC 5280, appendix A.1).
const maxSubjectSerial = 64

func (a *Authority) checkSubject(p *Profile, id Identifier) *Refusal {
	kind, most := KindCommonName, maxCN
	if id.Type == SubjectSerialNumber {
		kind, most = KindSerialNumber, maxSubjectSerial
	}
	wrong := ""
	switch {
	case !p.allows(kind):
		return &Refusal{Code: Unsupported, Detail: "the profile has no identifiers of type " + string(id.Type), Identifier: &id}
	case id.Value == "" || utf8.RuneCountInString(id.Value) > most:
		wrong = fmt.Sprintf("the value has to have 1 to %d characters", most)
	case !utf8.ValidString(id.Value):
		wrong = "the value is not UTF-8"
	case strings.ContainsFunc(id.Value, func(r rune) bool { return !unicode.IsPrint(r) }):
		wrong = "the value has characters that are not printed"
	case strings.TrimSpace(id.Value) != id.Value:
		wrong = "the value begins or ends with a space"
	case id.Type == SubjectSerialNumber && strings.ContainsFunc(id.Value, notPrintableString):
		wrong = "a serial number has letters, digits and ' ( ) + , - . / : = ? only"
	}
	if wrong != "" {
		return &Refusal{Code: Malformed, Detail: wrong, Identifier: &id}
	}
	return nil
}

// notPrintableString is true of what a PrintableString can't have (X.680 §41.4).
func notPrintableString(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return false
	}
	return !strings.ContainsRune(" '()+,-./:=?", r)
}

// checkSubjects refuses a second name of one kind: a subject has one.
func checkSubjects(ids []Identifier) *Refusal {
	seen := make(map[IdentifierType]bool, 2)
	for _, id := range ids {
		if id.Type.IsSubject() && seen[id.Type] {
			return &Refusal{Code: RejectedIdentifier, Detail: "a subject has one identifier of type " + string(id.Type), Identifier: &id}
		}
		seen[id.Type] = true
	}
	return nil
}

// subjectOf is the subject that ids ask for.
func subjectOf(ids []Identifier) (n pkix.Name) {
	for _, id := range ids {
		switch id.Type {
		case SubjectCommonName:
			n.CommonName = id.Value
		case SubjectSerialNumber:
			n.SerialNumber = id.Value
		}
	}
	return n
}

// csrSubjects adds what the subject of csr says to have, of the kinds that are wanted.
func csrSubjects(csr *x509.CertificateRequest, have map[Identifier]bool, wanted func(Identifier) bool) {
	for _, atv := range csr.Subject.Names {
		value, ok := atv.Value.(string)
		if !ok {
			continue
		}
		id := Identifier{Type: SubjectCommonName, Value: value}
		switch {
		case atv.Type.Equal(oidCommonName):
		case atv.Type.Equal(oidSerialNumber):
			id.Type = SubjectSerialNumber
		default:
			continue
		}
		if wanted(id) {
			have[id] = true
		}
	}
}

// RequestedNames are the names that a CSR asks for, as far as the profile has
// names of their kind: a common name that the profile has no kind for is taken for
// a domain name or an address if it looks like one. They are sorted, and nothing
// is said about whether they may be had. The error is a *Refusal.
func (a *Authority) RequestedNames(_ context.Context, profile string, der []byte) ([]Identifier, error) {
	p, err := a.profile(profile)
	if err != nil {
		return nil, err
	}
	csr, err := parseCSR(der)
	if err != nil {
		return nil, err
	}
	have := csrNames(csr)
	if err := csrDevices(csr, have); err != nil {
		return nil, err
	}
	alone := len(have) == 0
	csrSubjects(csr, have, func(id Identifier) bool {
		return id.Type == SubjectCommonName && p.allows(KindCommonName) || id.Type == SubjectSerialNumber && p.allows(KindSerialNumber)
	})
	if !p.allows(KindCommonName) {
		for _, cn := range commonNames(csr) {
			if id, isName := nameInCN(cn, alone, nil); isName {
				have[id] = true
			}
		}
	}
	names := make([]Identifier, 0, len(have))
	for id := range have {
		names = append(names, id)
	}
	slices.SortFunc(names, func(x, y Identifier) int {
		if c := strings.Compare(string(x.Type), string(y.Type)); c != 0 {
			return c
		}
		return strings.Compare(x.Value, y.Value)
	})
	return names, nil
}
