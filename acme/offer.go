package acme

import (
	"fmt"
	"slices"

	"github.com/secsy-pki/secsy-pki/ca"
)

// DefaultChallenges are offered where nothing else is said. dns-account-01 and
// dns-persist-01 are drafts; and some clients give up at any challenge without
// a token, which the latter is.
var DefaultChallenges = []ChallengeType{HTTP01, DNS01, TLSALPN01}

// knownChallenges are those that a Server can offer.
var knownChallenges = []ChallengeType{HTTP01, DNS01, TLSALPN01, DNSAccount01, DNSPersist01, DeviceAttest01, OnionCSR01}

// maxIssuerDomains is how many domains a challenge of dns-persist-01 may name
// (draft-ietf-acme-dns-persist-01 §3.1).
const maxIssuerDomains = 10

// checkChallenges says what is wrong with the challenges that are to be offered.
func (c *Config) checkChallenges() error {
	for _, t := range c.Challenges {
		if !slices.Contains(knownChallenges, t) {
			return fmt.Errorf("acme: unknown challenge type %q", t)
		}
		if n := len(c.CAAIdentities); t == DNSPersist01 && (n == 0 || n > maxIssuerDomains) {
			return fmt.Errorf("acme: dns-persist-01 needs 1 to %d CAA identities, which name this CA in TXT records", maxIssuerDomains)
		}
	}
	return nil
}

// proves reports whether a challenge of type t can prove an identifier.
func (t ChallengeType) proves(id ca.Identifier, wildcard bool) bool {
	dnsBased := t == DNS01 || t == DNSAccount01 || t == DNSPersist01
	switch {
	case id.Type.IsDevice() || t == DeviceAttest01:
		return id.Type.IsDevice() && t == DeviceAttest01
	case t == OnionCSR01 || id.Type == ca.DNS && ca.IsOnion(id.Value):
		// RFC 9799 §3: not in the DNS, and there is no way into Tor from here.
		return t == OnionCSR01 && id.Type == ca.DNS && ca.IsOnion(id.Value)
	case id.Type == ca.IP:
		// RFC 8738 §4 and §7: there is no name to put a TXT record at.
		return t == HTTP01 || t == TLSALPN01
	case wildcard:
		// Baseline Requirements §3.2.2.4.19, §3.2.2.4.20: what one server says does
		// not prove a whole subtree.
		return dnsBased
	}
	return dnsBased || t == HTTP01 || t == TLSALPN01
}

// offer leaves those of offered that can prove the identifier.
func offer(offered []ChallengeType, id ca.Identifier, wildcard bool) []ChallengeType {
	return slices.DeleteFunc(slices.Clone(offered), func(t ChallengeType) bool { return !t.proves(id, wildcard) })
}
