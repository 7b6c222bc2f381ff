package ca

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/keys"
)

// A NameKind is a kind of name that a profile may allow.
type NameKind string

// The kinds of names.
const (
	KindDNS      NameKind = "dns"
	KindWildcard NameKind = "wildcard"
	KindIP       NameKind = "ip"

	KindPermanentIdentifier NameKind = "permanent-identifier" // of devices; never public
	KindHardwareModule      NameKind = "hardware-module"      // likewise

	KindCommonName   NameKind = "common-name"   // in the subject, any words; never public
	KindSerialNumber NameKind = "serial-number" // likewise
)

var nameKinds = []NameKind{KindDNS, KindWildcard, KindIP, KindPermanentIdentifier, KindHardwareModule, KindCommonName, KindSerialNumber}

// A CNPolicy says what becomes the subject's common name.
type CNPolicy string

// The common name policies.
const (
	CNNone  CNPolicy = "none"  // the subject is empty
	CNFirst CNPolicy = "first" // the first dns name of at most 64 characters, if there is one
)

// ECDSAP521 is a kind of key that is certified but not made here.
const ECDSAP521 keys.Algorithm = "ecdsa-p521"

// A Profile says what the certificates of one kind look like.
type Profile struct {
	Name     string
	Issuers  []string      // names of issuers; empty means every active one
	Validity time.Duration // from notBefore to notAfter, both included
	Backdate time.Duration // how far notBefore lies before the signature, for clocks that are slow

	KeyUsages    []string // RFC 5280 names; empty means digitalSignature. keyEncipherment is put into RSA certificates only
	ExtKeyUsages []string // empty means serverAuth

	Names        []NameKind     // empty means all but those of devices
	PermittedDNS []string       // domain suffixes; empty means all dns names
	ExcludedDNS  []string       // wins over permitted
	PermittedIP  []netip.Prefix // empty means all addresses
	ExcludedIP   []netip.Prefix
	MaxNames     int // 0 means 100

	KeyAlgorithms []keys.Algorithm // empty means all that the policy allows
	CommonName    CNPolicy         // "" means none

	OmitOCSP      bool // leave out the OCSP address even if the issuer has one
	OmitCRL       bool
	OmitCAIssuers bool
	// NoRevAvail has certificates say that nothing is to be had of their status
	// (RFC 9608). It needs OmitOCSP and OmitCRL.
	NoRevAvail     bool
	RequestedDates bool // notBefore and notAfter may be asked for, within Validity

	kind profileKind
}

// A profileKind decides what beyond names goes into a certificate.
type profileKind int

const (
	kindServer       profileKind = iota
	kindResponder                // RFC 6960 §4.2.2.2
	kindRegistration             // RFC 8894 §2.1.2
)

const (
	maxNamesDefault = 100
	maxNamesLimit   = 1000
	responderAge    = 7 * day
	registrationAge = 365 * day
)

// SelfAge is how long a certificate of ProfileSelf is valid.
const SelfAge = 30 * day

var keyUsages = map[string]x509.KeyUsage{
	"digitalSignature":  x509.KeyUsageDigitalSignature,
	"contentCommitment": x509.KeyUsageContentCommitment,
	"keyEncipherment":   x509.KeyUsageKeyEncipherment,
	"dataEncipherment":  x509.KeyUsageDataEncipherment,
	"keyAgreement":      x509.KeyUsageKeyAgreement,
}

var extKeyUsages = map[string]x509.ExtKeyUsage{
	"serverAuth":      x509.ExtKeyUsageServerAuth,
	"clientAuth":      x509.ExtKeyUsageClientAuth,
	"codeSigning":     x509.ExtKeyUsageCodeSigning,
	"emailProtection": x509.ExtKeyUsageEmailProtection,
	"timeStamping":    x509.ExtKeyUsageTimeStamping,
}

var (
	publicKeys   = []keys.Algorithm{keys.ECDSAP256, keys.ECDSAP384, keys.RSA2048, keys.RSA3072, keys.RSA4096}
	internalKeys = append(slices.Clone(publicKeys), ECDSAP521, keys.Ed25519)
	rsaKeys      = []keys.Algorithm{keys.RSA2048, keys.RSA3072, keys.RSA4096}
)

// A FieldError is what is wrong with one field of a profile.
type FieldError struct {
	Profile string
	Field   string // in snake case, as configuration writes it
	Problem string // what is wrong and what is allowed
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("profile %q: %s: %s", e.Profile, e.Field, e.Problem)
}

// Validate returns every fault of p in itself, as joined *FieldErrors.
func (p Profile) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, &FieldError{Profile: p.Name, Field: field, Problem: fmt.Sprintf(format, args...)})
	}
	if !validProfileName(p.Name) {
		bad("name", "must be 1 to 64 lower-case letters, digits and hyphens")
	}
	if p.Validity < time.Minute || p.Validity > internalMaxAge {
		bad("validity", "%s must be from 1m to %s", p.Validity, internalMaxAge)
	}
	if p.Backdate < 0 || p.Backdate >= p.Validity {
		bad("backdate", "%s must be less than the validity, %s, and not negative", p.Backdate, p.Validity)
	}
	for _, u := range p.KeyUsages {
		if _, ok := keyUsages[u]; !ok {
			bad("key_usages", "%q is not one of %s", u, known(keyUsages))
		}
	}
	for _, u := range p.ExtKeyUsages {
		if _, ok := extKeyUsages[u]; !ok && p.kind == kindServer {
			bad("ext_key_usages", "%q is not one of %s", u, known(extKeyUsages))
		}
	}
	for _, k := range p.Names {
		if !slices.Contains(nameKinds, k) {
			bad("names", "%q is not one of dns, wildcard, ip, permanent-identifier, hardware-module, common-name, serial-number", k)
		}
	}
	suffixes := func(field string, list []string) {
		for _, s := range list {
			if wrong := checkSyntax(s); wrong != "" {
				bad(field, "%q: %s", s, wrong)
			}
		}
	}
	suffixes("permitted_dns", p.PermittedDNS)
	suffixes("excluded_dns", p.ExcludedDNS)
	prefixes := func(field string, list []netip.Prefix) {
		for _, x := range list {
			if !x.IsValid() || x != x.Masked() {
				bad(field, "%s is not a prefix in its canonical form, like 10.0.0.0/8", x)
			}
		}
	}
	prefixes("permitted_ip", p.PermittedIP)
	prefixes("excluded_ip", p.ExcludedIP)
	if p.MaxNames < 0 || p.MaxNames > maxNamesLimit {
		bad("max_names", "%d must be from 1 to %d", p.MaxNames, maxNamesLimit)
	}
	for _, alg := range p.KeyAlgorithms {
		if !slices.Contains(internalKeys, alg) {
			bad("key_algorithms", "%q is not one of %s", alg, join(internalKeys))
		}
	}
	if p.CommonName != "" && p.CommonName != CNNone && p.CommonName != CNFirst {
		bad("common_name", "%q is not one of none, first", p.CommonName)
	}
	// RFC 9608 §3: none of what says where status is may stand beside it.
	if p.NoRevAvail && !p.OmitOCSP {
		bad("ocsp", "no_rev_avail says that there is no status: set ocsp to false")
	}
	if p.NoRevAvail && !p.OmitCRL {
		bad("crl", "no_rev_avail says that there is no status: set crl to false")
	}
	return errors.Join(errs...)
}

// validateFor returns every point in which p promises more than the policy
// allows at t.
func (p *Profile) validateFor(policy Policy, t time.Time) error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, &FieldError{Profile: p.Name, Field: field, Problem: fmt.Sprintf(format, args...)})
	}
	if most := policy.MaxValidity(t); p.Validity > most {
		if since := policy.validitySince(t); !since.IsZero() {
			bad("validity", "%s is more than the %d days that the %s policy allows since %s", p.Validity, int(most/day), policy, since.Format(time.DateOnly))
		} else {
			bad("validity", "%s is more than the %d days that the %s policy allows", p.Validity, int(most/day), policy)
		}
	}
	if most := policy.maxBackdate(); p.Backdate > most {
		bad("backdate", "%s is more than the %s that the %s policy allows", p.Backdate, most, policy)
	}
	if policy != Public || p.kind != kindServer {
		return errors.Join(errs...)
	}
	if len(p.ExtKeyUsages) != 1 || p.ExtKeyUsages[0] != "serverAuth" {
		bad("ext_key_usages", "the public policy allows serverAuth only")
	}
	if p.allows(KindPermanentIdentifier) || p.allows(KindHardwareModule) || p.allows(KindCommonName) || p.allows(KindSerialNumber) {
		bad("names", "the public policy certifies no devices")
	}
	if p.OmitCAIssuers {
		bad("omit_ca_issuers", "the public policy wants the issuer's address in every certificate")
	}
	if most := inForce(publicShortLived, t).max; p.OmitCRL && p.Validity > most {
		bad("omit_crl", "the public policy allows it only for a validity of at most %d days", int(most/day))
	}
	for _, u := range p.KeyUsages {
		if u != "digitalSignature" && u != "keyEncipherment" {
			bad("key_usages", "%q: the public policy allows digitalSignature and keyEncipherment only", u)
		}
	}
	for _, alg := range p.KeyAlgorithms {
		if !slices.Contains(publicKeys, alg) {
			bad("key_algorithms", "%q: the public policy allows %s only", alg, join(publicKeys))
		}
	}
	return errors.Join(errs...)
}

// withDefaults returns a copy of p with every empty field filled.
func (p Profile) withDefaults(policy Policy) *Profile {
	if len(p.KeyUsages) == 0 {
		p.KeyUsages = []string{"digitalSignature"}
	}
	if len(p.ExtKeyUsages) == 0 {
		p.ExtKeyUsages = []string{"serverAuth"}
	}
	if len(p.Names) == 0 {
		p.Names = []NameKind{KindDNS, KindWildcard, KindIP}
	}
	if p.MaxNames == 0 {
		p.MaxNames = maxNamesDefault
	}
	if p.CommonName == "" {
		p.CommonName = CNNone
	}
	if len(p.KeyAlgorithms) == 0 {
		p.KeyAlgorithms = internalKeys
		if policy == Public {
			p.KeyAlgorithms = publicKeys
		}
	}
	return &p
}

// builtin returns the profiles that every CA of that policy has.
func builtin(policy Policy) []Profile {
	all := []Profile{
		{Name: ProfileSelf, Validity: SelfAge, Backdate: time.Hour, CommonName: CNNone},
		{
			Name: ProfileResponder, Validity: responderAge, Backdate: time.Hour, kind: kindResponder, ExtKeyUsages: []string{"OCSPSigning"},
			OmitOCSP: true, OmitCRL: true, OmitCAIssuers: true,
		},
	}
	if policy == Public {
		return all
	}
	return append(all, Profile{
		Name: ProfileRegistration, Validity: registrationAge, Backdate: time.Hour, kind: kindRegistration, KeyAlgorithms: rsaKeys,
		KeyUsages: []string{"digitalSignature", "keyEncipherment"},
	})
}

// isOurs reports whether certificates of the profile are for parts of the CA,
// which have a name by what they are, and no other.
func (p *Profile) isOurs() bool { return p.kind != kindServer }

func (p *Profile) allows(k NameKind) bool { return slices.Contains(p.Names, k) }

func (p *Profile) checkDNS(name string, wildcard bool) string {
	excluded := func(s string) bool {
		_, parent, _ := strings.Cut(s, ".")
		return within(name, s) || wildcard && parent == name // the wildcard would cover it
	}
	if slices.ContainsFunc(p.ExcludedDNS, excluded) {
		return "the profile excludes this domain"
	}
	if len(p.PermittedDNS) > 0 && !slices.ContainsFunc(p.PermittedDNS, func(s string) bool { return within(name, s) }) {
		return "the domain is not one of the profile's"
	}
	return ""
}

func within(name, suffix string) bool { return name == suffix || strings.HasSuffix(name, "."+suffix) }

func (p *Profile) checkAddr(a netip.Addr) string {
	has := func(x netip.Prefix) bool { return x.Contains(a) }
	if slices.ContainsFunc(p.ExcludedIP, has) {
		return "the profile excludes this address"
	}
	if len(p.PermittedIP) > 0 && !slices.ContainsFunc(p.PermittedIP, has) {
		return "the address is not one of the profile's"
	}
	return ""
}

func validProfileName(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

func known[V any](m map[string]V) string {
	names := make([]string, 0, len(m))
	for k := range m {
		names = append(names, k)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func join(algs []keys.Algorithm) string {
	names := make([]string, 0, len(algs))
	for _, a := range algs {
		names = append(names, string(a))
	}
	return strings.Join(names, ", ")
}
