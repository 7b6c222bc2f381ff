package ca

import (
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/publicsuffix"
)

// A Policy is a preset of limits that no profile may exceed.
type Policy string

// The presets.
const (
	// Internal is for private trust: private names and addresses are allowed,
	// and RFC 5280 is the law.
	Internal Policy = "internal"
	// Public holds to the CA/Browser Forum's Baseline Requirements (BR).
	Public Policy = "public"
)

const day = 24 * time.Hour

// A limit is in force from a date on.
type limit struct {
	from time.Time
	max  time.Duration
}

func date(y int, m time.Month, d int) time.Time { return time.Date(y, m, d, 0, 0, 0, 0, time.UTC) }

// publicValidity is BR §6.3.2: how long a subscriber's certificate may be valid.
var publicValidity = []limit{
	{date(2020, time.September, 1), 398 * day},
	{date(2026, time.March, 15), 200 * day},
	{date(2027, time.March, 15), 100 * day},
	{date(2029, time.March, 15), 47 * day},
}

// publicReuse is BR §4.2.1: for how long proof of control of a name may be used.
var publicReuse = []limit{
	{date(2020, time.September, 1), 398 * day},
	{date(2026, time.March, 15), 200 * day},
	{date(2027, time.March, 15), 100 * day},
	{date(2029, time.March, 15), 10 * day},
}

// publicShortLived is up to which validity a certificate needs no revocation
// (BR §1.6.1, Short-lived Subscriber Certificate).
var publicShortLived = []limit{
	{date(2024, time.March, 15), 10 * day},
	{date(2026, time.March, 15), 7 * day},
}

// arpaBanned is since when no name in the reverse zones may be certified (BR §4.2.2).
var arpaBanned = date(2026, time.March, 15)

// Limits of the public preset that have no dates.
const (
	publicMaxCRL      = 10 * day       // BR §4.9.7: nextUpdate of a CRL of subscribers
	publicMaxCRLCA    = 365 * day      // BR §4.9.7: of a CRL of authorities, twelve months
	publicMaxOCSP     = 10 * day       // BR §4.9.10
	publicMinOCSP     = 8 * time.Hour  // BR §4.9.10
	publicMaxBackdate = 48 * time.Hour // BR §7.1.2.7: notBefore within 48 hours of signing
	internalMaxCRL    = 365 * day
	internalMaxOCSP   = 30 * day
	internalMaxAge    = 3650 * day
)

func inForce(table []limit, t time.Time) limit {
	l := table[0]
	for _, next := range table[1:] {
		if !t.Before(next.from) {
			l = next
		}
	}
	return l
}

// Valid reports whether p is one of the presets.
func (p Policy) Valid() bool { return p == Internal || p == Public }

// MaxValidity is the longest validity, both ends included, of a certificate
// issued at t.
func (p Policy) MaxValidity(t time.Time) time.Duration {
	if p == Public {
		return inForce(publicValidity, t).max
	}
	return internalMaxAge
}

// validitySince is the date of the rule that MaxValidity follows; zero for none.
func (p Policy) validitySince(t time.Time) time.Time {
	if p == Public {
		return inForce(publicValidity, t).from
	}
	return time.Time{}
}

// MaxReuse is for how long at t a proof of control of a name may be relied on.
func (p Policy) MaxReuse(t time.Time) time.Duration {
	if p == Public {
		return inForce(publicReuse, t).max
	}
	return internalMaxAge
}

// MaxCRLValidity is the longest time from thisUpdate to nextUpdate of a CRL
// that covers subscribers' certificates.
func (p Policy) MaxCRLValidity(time.Time) time.Duration {
	if p == Public {
		return publicMaxCRL
	}
	return internalMaxCRL
}

// MaxAuthorityCRLValidity is the same for a CRL that covers only authorities.
func (p Policy) MaxAuthorityCRLValidity(time.Time) time.Duration {
	if p == Public {
		return publicMaxCRLCA
	}
	return internalMaxCRL
}

// MaxOCSPValidity is the longest time from thisUpdate to nextUpdate of an OCSP response.
func (p Policy) MaxOCSPValidity(time.Time) time.Duration {
	if p == Public {
		return publicMaxOCSP
	}
	return internalMaxOCSP
}

// MinOCSPValidity is the shortest such time.
func (p Policy) MinOCSPValidity(time.Time) time.Duration {
	if p == Public {
		return publicMinOCSP
	}
	return time.Minute
}

// maxBackdate is how far before the signature notBefore may lie.
func (p Policy) maxBackdate() time.Duration {
	if p == Public {
		return publicMaxBackdate
	}
	return 30 * day
}

// checkName says what is wrong with a well-formed domain name at t, "" for nothing.
func (p Policy) checkName(name string, wildcard bool, t time.Time) string {
	if p != Public {
		return ""
	}
	if (name == "arpa" || strings.HasSuffix(name, ".arpa")) && !t.Before(arpaBanned) {
		return "names under .arpa are not certified"
	}
	for label := range strings.SplitSeq(name, ".") {
		// BR §7.1.4.2.1: only non-reserved LDH labels and P-labels.
		if len(label) >= 4 && label[2:4] == "--" && !strings.HasPrefix(label, "xn--") {
			return "labels with hyphens in the third and fourth place must be A-labels"
		}
	}
	suffix, icann := publicsuffix.PublicSuffix(name)
	switch {
	case !icann && !strings.Contains(suffix, "."):
		return "the name does not end in a public top-level domain"
	case icann && suffix == name && wildcard:
		return "a wildcard may not cover a whole public suffix"
	case icann && suffix == name:
		return "the name is a public suffix"
	}
	return ""
}

// specialPrefixes are the addresses that nobody can own on the Internet: the
// IANA special-purpose registries, multicast and the reserved rest.
var specialPrefixes = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix("192.31.196.0/24"),
	netip.MustParsePrefix("192.52.193.0/24"),
	netip.MustParsePrefix("192.88.99.0/24"),
	netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("192.175.48.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("224.0.0.0/3"),
	netip.MustParsePrefix("2001::/23"),
	netip.MustParsePrefix("2001:db8::/32"),
	netip.MustParsePrefix("2002::/16"),
	netip.MustParsePrefix("2620:4f:8000::/48"),
	netip.MustParsePrefix("3fff::/20"),
}

// globalUnicast is the only part of IPv6 that is allocated to owners (RFC 4291 §2.4).
var globalUnicast = netip.MustParsePrefix("2000::/3")

// checkAddr says what is wrong with an address, "" for nothing.
func (p Policy) checkAddr(a netip.Addr) string {
	if a.IsUnspecified() || a.IsMulticast() {
		return "the address is not that of one host"
	}
	if p != Public {
		return ""
	}
	if a.Is6() && !globalUnicast.Contains(a) {
		return "the address is reserved"
	}
	for _, r := range specialPrefixes {
		if r.Contains(a) {
			return "the address is reserved"
		}
	}
	return ""
}
