package ca

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/net/idna"
)

const (
	maxNameLen  = 253 // RFC 1035 §2.3.4, in text without the trailing dot
	maxLabelLen = 63
)

// labelProfile checks one A-label (RFC 5891 §5.4) without mapping anything.
var labelProfile = idna.New(idna.ValidateLabels(true), idna.CheckHyphens(false), idna.CheckJoiners(true), idna.BidiRule(), idna.StrictDomainName(true))

// NormalizeIdentifiers puts values in their one spelling and leaves out
// repetitions; the order stays. What is not a name stays as it is, for
// CheckIdentifiers to refuse.
func NormalizeIdentifiers(ids []Identifier) []Identifier {
	out := make([]Identifier, 0, len(ids))
	seen := make(map[Identifier]bool, len(ids))
	for _, id := range ids {
		id = normalize(id)
		if !seen[id] {
			seen[id] = true
			out = append(out, id)
		}
	}
	return out
}

func normalize(id Identifier) Identifier {
	switch id.Type {
	case DNS:
		id.Value = lower(id.Value)
	case IP:
		if a, err := netip.ParseAddr(id.Value); err == nil {
			id.Value = a.String()
		}
	}
	return id
}

// lower touches only ASCII: the Kelvin sign is not a k (RFC 4343).
func lower(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}

// CheckIdentifiers says whether certificates of the profile may hold ids, which
// are normalised. The error is a *Refusal that names each name at fault.
func (a *Authority) CheckIdentifiers(_ context.Context, profile string, ids []Identifier) error {
	p, err := a.profile(profile)
	if err != nil {
		return err
	}
	return a.checkNames(p, ids)
}

func (a *Authority) checkNames(p *Profile, ids []Identifier) error {
	if p.isOurs() {
		if len(ids) > 0 {
			return &Refusal{Code: RejectedIdentifier, Detail: "certificates of this profile have no names"}
		}
		return nil
	}
	if len(ids) == 0 {
		return &Refusal{Code: RejectedIdentifier, Detail: "at least one name is needed"}
	}
	if len(ids) > p.MaxNames {
		return &Refusal{Code: RejectedIdentifier, Detail: fmt.Sprintf("%d names are more than the %d that the profile allows", len(ids), p.MaxNames)}
	}
	first := checkSubjects(ids)
	for _, id := range ids {
		r := a.checkName(p, id)
		switch {
		case r == nil:
		case first == nil:
			first = r
		default:
			first.Others = append(first.Others, r)
		}
	}
	if first != nil {
		return first
	}
	return nil
}

func (a *Authority) checkName(p *Profile, id Identifier) *Refusal {
	refuse := func(code Code, detail string) *Refusal { return &Refusal{Code: code, Detail: detail, Identifier: &id} }
	var wrong string
	switch id.Type {
	case DNS:
		name, wildcard := strings.CutPrefix(id.Value, "*.")
		switch {
		case wildcard && !p.allows(KindWildcard):
			return refuse(RejectedIdentifier, "the profile has no wildcard names")
		case !wildcard && !p.allows(KindDNS):
			return refuse(Unsupported, "the profile has no dns names")
		}
		wrong = firstOf(
			func() string { return checkSyntax(name) },
			func() string { return checkOnion(name) },
			func() string { return checkLabelCount(name, wildcard, a.policy) },
			func() string { return a.policy.checkName(name, wildcard, a.now()) },
			func() string { return p.checkDNS(name, wildcard) },
		)
	case IP:
		if !p.allows(KindIP) {
			return refuse(Unsupported, "the profile has no addresses")
		}
		wrong = a.checkIP(p, id.Value)
	case PermanentIdentifier, HardwareModule:
		return a.checkDevice(p, id)
	case SubjectCommonName, SubjectSerialNumber:
		return a.checkSubject(p, id)
	default:
		return refuse(Unsupported, "identifiers of this type are not known here")
	}
	if wrong != "" {
		return refuse(RejectedIdentifier, wrong)
	}
	return nil
}

func firstOf(checks ...func() string) string {
	for _, c := range checks {
		if s := c(); s != "" {
			return s
		}
	}
	return ""
}

func checkLabelCount(name string, wildcard bool, p Policy) string {
	if !strings.Contains(name, ".") && (p == Public || wildcard) {
		return "a name of one label is not allowed"
	}
	return ""
}

// checkSyntax says what keeps name from being a host name in lower-case
// A-labels (RFC 1123 §2.1, RFC 5890 §2.3.1), "" for nothing.
func checkSyntax(name string) string {
	switch {
	case name == "":
		return "the name is empty"
	case len(name) > maxNameLen:
		return "the name is longer than 253 characters"
	case strings.HasSuffix(name, "."):
		return "the name ends in a dot"
	case strings.Contains(name, "*"):
		return `"*" is allowed only as the whole leftmost label`
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return "an address is not a dns name; use an ip identifier"
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		if s := checkLabel(label); s != "" {
			return s
		}
		last = label
	}
	// Resolvers take such names for addresses (RFC 1123 §2.1).
	if strings.Trim(last, "0123456789") == "" {
		return "the last label consists of digits"
	}
	return ""
}

func checkLabel(label string) string {
	switch {
	case label == "":
		return "a label is empty"
	case len(label) > maxLabelLen:
		return "a label is longer than 63 characters"
	case label[0] == '-' || label[len(label)-1] == '-':
		return "a label begins or ends with a hyphen"
	}
	for i := range len(label) {
		switch c := label[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-':
		case 'A' <= c && c <= 'Z':
			return "the name is not in lower case"
		case c == '_':
			return "underscores are not allowed"
		default:
			return "only letters, digits and hyphens are allowed; write international names as A-labels"
		}
	}
	if !strings.HasPrefix(label, "xn--") {
		return ""
	}
	u, err := labelProfile.ToUnicode(label)
	if err != nil || u == label {
		return "a label is not a valid A-label"
	}
	if back, err := labelProfile.ToASCII(u); err != nil || back != label {
		return "a label is not a valid A-label"
	}
	return ""
}

func (a *Authority) checkIP(p *Profile, value string) string {
	addr, err := netip.ParseAddr(value)
	switch {
	case err != nil:
		return "not an address"
	case addr.Zone() != "":
		return "an address with a zone is not allowed"
	case addr.Is4In6():
		return "write IPv4 addresses with dots"
	case addr.String() != value:
		return "write the address as in RFC 5952"
	}
	return firstOf(func() string { return a.policy.checkAddr(addr) }, func() string { return p.checkAddr(addr) })
}
