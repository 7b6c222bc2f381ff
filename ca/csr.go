package ca

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/crypto/cryptobyte"
	cryptobyte_asn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// MaxCSR bounds a CSR: 1000 long names and a large key fit easily.
const MaxCSR = 64 << 10

// maxRSABits bounds the work of verifying a CSR's own signature.
const maxRSABits = 8192

var (
	oidCommonName       = asn1.ObjectIdentifier{2, 5, 4, 3}
	oidSubjectAltName   = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19}
)

// CheckCSR says whether der is a CSR that asks for exactly ids with a key that
// the profile allows, and returns that key. Names may be repeated, in any case
// and order, and one may stand in the common name alone (RFC 8555 §7.4); those
// of devices may be left out (draft-ietf-acme-device-attest). The
// profile decides what else the certificate holds; what other extensions the
// CSR asks for has no effect. The error is a *Refusal with BadCSR.
func (a *Authority) CheckCSR(ctx context.Context, profile string, der []byte, ids []Identifier) (crypto.PublicKey, error) {
	p, err := a.profile(profile)
	if err != nil {
		return nil, err
	}
	csr, err := parseCSR(der)
	if err != nil {
		return nil, err
	}
	if err := a.checkKey(ctx, p, csr.PublicKey); err != nil {
		return nil, asBadCSR(err)
	}
	if err := a.verified.once(der, csr.CheckSignature); err != nil {
		return nil, badCSR(err, "the CSR's signature does not verify under its own key")
	}
	return csr.PublicKey, checkCSRNames(csr, ids)
}

func badCSR(err error, format string, args ...any) *Refusal {
	return &Refusal{Code: BadCSR, Detail: fmt.Sprintf(format, args...), Err: err}
}

// asBadCSR turns the refusal of a key into that of the CSR that brought it.
func asBadCSR(err error) error {
	if r, ok := errors.AsType[*Refusal](err); ok && r.Code == BadPublicKey {
		return &Refusal{Code: BadCSR, Detail: r.Detail, Err: r.Err}
	}
	return err
}

// parseCSR does all that needs no key and no names.
func parseCSR(der []byte) (*x509.CertificateRequest, error) {
	if len(der) > MaxCSR {
		return nil, badCSR(nil, "the CSR is larger than %d octets", MaxCSR)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, badCSR(err, "the CSR is not a PKCS#10 request in DER")
	}
	switch csr.SignatureAlgorithm {
	case x509.UnknownSignatureAlgorithm:
		return nil, badCSR(nil, "the CSR's signature algorithm is not known here")
	case x509.MD2WithRSA, x509.MD5WithRSA, x509.SHA1WithRSA, x509.DSAWithSHA1, x509.DSAWithSHA256, x509.ECDSAWithSHA1:
		return nil, badCSR(nil, "the CSR is signed with %s; SHA-256 or better is needed", csr.SignatureAlgorithm)
	}
	if pub, ok := csr.PublicKey.(*rsa.PublicKey); ok && pub.N.BitLen() > maxRSABits {
		return nil, badCSR(nil, "RSA keys of more than %d bits are not supported", maxRSABits)
	}
	for _, ext := range csr.Extensions {
		switch {
		case ext.Id.Equal(oidBasicConstraints):
			if err := checkBasicConstraints(ext.Value); err != nil {
				return nil, err
			}
		case ext.Id.Equal(oidSubjectAltName):
			if err := checkAltNames(ext.Value); err != nil {
				return nil, err
			}
		}
	}
	return csr, nil
}

func checkBasicConstraints(der []byte) error {
	var (
		input = cryptobyte.String(der)
		seq   cryptobyte.String
		isCA  bool
	)
	if !input.ReadASN1(&seq, cryptobyte_asn1.SEQUENCE) || !input.Empty() ||
		!seq.ReadOptionalASN1Boolean(&isCA, cryptobyte_asn1.BOOLEAN, false) {
		return badCSR(nil, "the CSR's basicConstraints are malformed")
	}
	if isCA {
		return badCSR(nil, "the CSR asks for the certificate of an authority")
	}
	return nil
}

// checkAltNames refuses the kinds of names that crypto/x509 reads into other
// fields, or passes over.
func checkAltNames(der []byte) error {
	var (
		input = cryptobyte.String(der)
		seq   cryptobyte.String
	)
	if !input.ReadASN1(&seq, cryptobyte_asn1.SEQUENCE) || !input.Empty() {
		return badCSR(nil, "the CSR's subjectAltName is malformed")
	}
	for !seq.Empty() {
		var (
			name cryptobyte.String
			tag  cryptobyte_asn1.Tag
		)
		if !seq.ReadAnyASN1(&name, &tag) {
			return badCSR(nil, "the CSR's subjectAltName is malformed")
		}
		if tag == otherNameTag {
			continue // csrDevices looks at them
		}
		// RFC 5280 §4.2.1.6: dNSName is [2], iPAddress is [7].
		if tag != cryptobyte_asn1.Tag(2).ContextSpecific() && tag != cryptobyte_asn1.Tag(7).ContextSpecific() {
			return badCSR(nil, "the CSR has a subjectAltName that is neither a dns name, an address nor the name of a device")
		}
	}
	return nil
}

// maxShown bounds how many names a refusal spells out.
const maxShown = 5

func checkCSRNames(csr *x509.CertificateRequest, ids []Identifier) error {
	want := make(map[Identifier]bool, len(ids))
	for _, id := range ids {
		want[normalize(id)] = true
	}
	have := csrNames(csr)
	if err := csrDevices(csr, have); err != nil {
		return err
	}
	// A device's certificate has no other names, whatever its owner is called.
	onlyDevices := !slices.ContainsFunc(ids, func(id Identifier) bool { return !id.Type.IsDevice() })
	alone := len(have) == 0 && !onlyDevices
	csrSubjects(csr, have, func(id Identifier) bool { return want[id] })
	for _, cn := range commonNames(csr) {
		id, isName := nameInCN(cn, alone, want)
		if named := want[Identifier{Type: SubjectCommonName, Value: cn}]; isName && (!named || want[id]) {
			have[id] = true
		}
	}
	var extra, missing []string
	for id := range have {
		if !want[id] {
			extra = append(extra, shown(id.Value))
		}
	}
	for id := range want {
		if !have[id] && !id.Type.IsDevice() {
			missing = append(missing, shown(id.Value))
		}
	}
	switch {
	case len(extra) > 0:
		return badCSR(nil, "the CSR has names that were not asked for: %s", list(extra))
	case len(missing) > 0:
		return badCSR(nil, "the CSR lacks names that were asked for: %s", list(missing))
	}
	return nil
}

// csrDevices adds the devices among the CSR's names to have, and refuses
// otherNames of all other kinds.
func csrDevices(csr *x509.CertificateRequest, have map[Identifier]bool) error {
	for _, ext := range csr.Extensions {
		if !ext.Id.Equal(oidSubjectAltName) {
			continue
		}
		input, seq := cryptobyte.String(ext.Value), cryptobyte.String(nil)
		if !input.ReadASN1(&seq, cryptobyte_asn1.SEQUENCE) {
			return badCSR(nil, "the CSR's subjectAltName is malformed")
		}
		for !seq.Empty() {
			var (
				name cryptobyte.String
				tag  cryptobyte_asn1.Tag
			)
			if !seq.ReadAnyASN1Element(&name, &tag) {
				return badCSR(nil, "the CSR's subjectAltName is malformed")
			}
			if tag != otherNameTag {
				continue
			}
			id, known, err := ParseDeviceName(name)
			if err != nil || !known {
				return badCSR(err, "the CSR has a subjectAltName that is neither a dns name, an address nor the name of a device")
			}
			have[id] = true
		}
	}
	return nil
}

func csrNames(csr *x509.CertificateRequest) map[Identifier]bool {
	have := make(map[Identifier]bool, len(csr.DNSNames)+len(csr.IPAddresses))
	for _, n := range csr.DNSNames {
		have[Identifier{Type: DNS, Value: lower(n)}] = true
	}
	for _, ip := range csr.IPAddresses {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			have[Identifier{Type: IP, Value: addr.String()}] = true
		}
	}
	return have
}

func commonNames(csr *x509.CertificateRequest) []string {
	var out []string
	for _, atv := range csr.Subject.Names {
		if s, ok := atv.Value.(string); ok && atv.Type.Equal(oidCommonName) {
			out = append(out, s)
		}
	}
	return out
}

// nameInCN reads a common name as an identifier. One without a dot is a
// name only if it was asked for, or if there are no others: clients fill the
// field with all sorts of words.
func nameInCN(cn string, alone bool, want map[Identifier]bool) (Identifier, bool) {
	for _, t := range []IdentifierType{PermanentIdentifier, HardwareModule} {
		for id := range want {
			if name, _, _ := strings.Cut(id.Value, "/"); id.Type == t && name == cn {
				return id, true
			}
		}
	}
	if addr, err := netip.ParseAddr(cn); err == nil {
		return Identifier{Type: IP, Value: addr.String()}, true
	}
	id := Identifier{Type: DNS, Value: lower(cn)}
	if want[id] {
		return id, true
	}
	looks := checkSyntax(strings.TrimPrefix(id.Value, "*.")) == ""
	return id, looks && (alone || strings.Contains(cn, "."))
}

// shown quotes what a stranger sent, at a bounded length.
func shown(s string) string {
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return fmt.Sprintf("%q", s)
}

func list(names []string) string {
	slices.Sort(names)
	if len(names) > maxShown {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxShown], ", "), len(names)-maxShown)
	}
	return strings.Join(names, ", ")
}
