package acme

import (
	"slices"

	"github.com/secsy-pki/secsy-pki/ca"
)

// DefaultChallenges are offered where nothing else is said. dns-account-01 and
// dns-persist-01 are drafts; and some clients give up at any challenge without
// a token, which the latter is.
var DefaultChallenges = []ChallengeType{HTTP01, DNS01, TLSALPN01}

// knownChallenges are those that a Server can offer.
var knownChallenges = []ChallengeType{HTTP01, DNS01, TLSALPN01, DeviceAttest01}

// proves reports whether a challenge of type t can prove an identifier.
func (t ChallengeType) proves(id ca.Identifier, wildcard bool) bool {
	dnsBased := t == DNS01 || t == DNSAccount01 || t == DNSPersist01
	switch {
	case id.Type.IsDevice() || t == DeviceAttest01:
		return id.Type.IsDevice() && t == DeviceAttest01
	case id.Type == ca.IP:
		// RFC 8738 §4 and §7: there is no name to put a TXT record at.
		return t == HTTP01 || t == TLSALPN01
	case wildcard:
		// RFC 8737 §3, Baseline Requirements §3.2.2.4.19: what one server says does
		// not prove a whole subtree.
		return dnsBased
	}
	return dnsBased || t == HTTP01 || t == TLSALPN01
}

// offer leaves those of offered that can prove the identifier.
func offer(offered []ChallengeType, id ca.Identifier, wildcard bool) []ChallengeType {
	return slices.DeleteFunc(slices.Clone(offered), func(t ChallengeType) bool { return !t.proves(id, wildcard) })
}
