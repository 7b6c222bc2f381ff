package acme

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/secsy-pki/secsy-pki/ca"
)

// A Scope is what may be ordered, beyond what profiles and the authority's
// policy say. Without DNS and IP every identifier may, without Profiles every
// profile; with any of the first two only what they list.
type Scope struct {
	DNS      []string       `json:"dns,omitempty"` // domains, lower case: these and all below them
	IP       []netip.Prefix `json:"ip,omitempty"`
	Profiles []string       `json:"profiles,omitempty"`
}

// Empty reports whether everything may be ordered.
func (c Scope) Empty() bool { return len(c.DNS) == 0 && len(c.IP) == 0 && len(c.Profiles) == 0 }

// allows reports whether an identifier, normalized, may be ordered.
func (c Scope) allows(id ca.Identifier) bool {
	if len(c.DNS) == 0 && len(c.IP) == 0 {
		return true
	}
	switch id.Type {
	case ca.DNS:
		name := strings.TrimPrefix(id.Value, "*.")
		return slices.ContainsFunc(c.DNS, func(d string) bool { return name == d || strings.HasSuffix(name, "."+d) })
	case ca.IP:
		a, err := netip.ParseAddr(id.Value)
		return err == nil && slices.ContainsFunc(c.IP, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
	}
	return false
}

// checkIdentifiers refuses what is outside, each identifier in a subproblem.
// whose says whose bounds they are.
func (c Scope) checkIdentifiers(ids []ca.Identifier, whose string) error {
	var subs []Problem
	for _, id := range ids {
		if !c.allows(id) {
			subs = append(subs, Problem{Type: RejectedIdentifier, Detail: "it is outside of what " + whose + " may order", Identifier: shownIdentifier(id)})
		}
	}
	if len(subs) == 0 {
		return nil
	}
	return &Problem{Type: RejectedIdentifier, Detail: "the order has identifiers outside of what " + whose + " may order; see the subproblems", Subproblems: subs}
}

// Whose scope it is, in what a client hears of it.
const (
	ofDirectoryAccounts = "accounts of this directory"
	ofExternalAccount   = "the external account that this account is bound to"
)

// inScope holds identifiers against what the directory, and the key that the
// account is bound by, allow.
func (s *Server) inScope(a Account, ids []ca.Identifier) error {
	if err := s.cfg.Scope.checkIdentifiers(ids, ofDirectoryAccounts); err != nil {
		return err
	}
	return a.Scope.checkIdentifiers(ids, ofExternalAccount)
}

// mayStill holds an order against what the directory allows by now: that may be
// less than when it was made.
func (s *Server) mayStill(a Account, o Order) error {
	if err := s.inScope(a, o.Identifiers); err != nil {
		return err
	}
	return s.cfg.Scope.checkProfile(o.Profile, ofDirectoryAccounts)
}

// usualProfile is that of an order which names none: what is usual here, or the
// first that the scope has, so that clients which know of no profiles get on.
func (c Scope) usualProfile(here string) string {
	if len(c.Profiles) == 0 || slices.Contains(c.Profiles, here) {
		return here
	}
	return c.Profiles[0]
}

func (c Scope) checkProfile(asked, whose string) error {
	if len(c.Profiles) == 0 || slices.Contains(c.Profiles, asked) {
		return nil
	}
	return &Problem{
		Type:   InvalidProfile,
		Detail: whose + " may have these profiles only: " + strings.Join(c.Profiles, ", "),
	}
}
