package attestation

import (
	"encoding/asn1"
	"unicode/utf8"

	"golang.org/x/crypto/cryptobyte"
	cbasn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/secsy-pki/secsy-pki/ca"
)

var (
	oidSubjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

	// The TPM's own data in a directoryName (TCG EK Credential Profile §3.2.9).
	oidTPMManufacturer = asn1.ObjectIdentifier{2, 23, 133, 2, 1}
	oidTPMModel        = asn1.ObjectIdentifier{2, 23, 133, 2, 2}
	oidTPMVersion      = asn1.ObjectIdentifier{2, 23, 133, 2, 3}
)

// altNames are what the subjectAltName of an attestation key says.
type altNames struct {
	names                        []ca.Identifier
	manufacturer, model, version bool
}

func parseAltNames(der []byte) (altNames, error) {
	var (
		out   altNames
		input = cryptobyte.String(der)
		seq   cryptobyte.String
		bad   = no("the subjectAltName of the attestation key's certificate is malformed")
	)
	if !input.ReadASN1(&seq, cbasn1.SEQUENCE) || !input.Empty() {
		return out, bad
	}
	for !seq.Empty() {
		var (
			name cryptobyte.String
			tag  cbasn1.Tag
		)
		if !seq.ReadAnyASN1Element(&name, &tag) {
			return out, bad
		}
		switch tag {
		case cbasn1.Tag(0).ContextSpecific().Constructed(): // otherName
			id, known, err := ca.ParseDeviceName(name)
			if err != nil {
				return out, bad
			}
			if known {
				out.names = append(out.names, id)
			}
		case cbasn1.Tag(4).ContextSpecific().Constructed(): // directoryName
			if !out.readDirectoryName(name) {
				return out, bad
			}
		}
	}
	return out, nil
}

// readDirectoryName looks for the TPM's data.
func (a *altNames) readDirectoryName(element cryptobyte.String) bool {
	var outer, rdns cryptobyte.String
	if !element.ReadASN1(&outer, cbasn1.Tag(4).ContextSpecific().Constructed()) || !outer.ReadASN1(&rdns, cbasn1.SEQUENCE) || !outer.Empty() {
		return false
	}
	for !rdns.Empty() {
		var set cryptobyte.String
		if !rdns.ReadASN1(&set, cbasn1.SET) {
			return false
		}
		for !set.Empty() {
			var (
				atv, value cryptobyte.String
				oid        asn1.ObjectIdentifier
				tag        cbasn1.Tag
			)
			if !set.ReadASN1(&atv, cbasn1.SEQUENCE) || !atv.ReadASN1ObjectIdentifier(&oid) || !atv.ReadAnyASN1(&value, &tag) || !atv.Empty() {
				return false
			}
			said := len(value) > 0 && utf8.Valid(value)
			switch {
			case oid.Equal(oidTPMManufacturer):
				a.manufacturer = said
			case oid.Equal(oidTPMModel):
				a.model = said
			case oid.Equal(oidTPMVersion):
				a.version = said
			}
		}
	}
	return true
}
