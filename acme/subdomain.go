package acme

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/secsy-pki/secsy-pki/ca"
)

// An orderIdentifier is an identifier as newOrder and newAuthz have it (RFC 9444 §4).
type orderIdentifier struct {
	ca.Identifier
	Ancestor   string `json:"ancestorDomain"`       // newOrder: a domain above it, whose control the client can prove
	Subdomains bool   `json:"subdomainAuthAllowed"` // newAuthz: to hold for all names below
}

// maxAncestors is how many of the domains above a name are looked at, nearest first.
const maxAncestors = 16

// subdomains says whether names may be proven by a domain above them in
// certificates of a profile.
func (s *Server) subdomains(profile string) bool {
	return s.cfg.Subdomains && !slices.Contains(s.cfg.NoSubdomains, profile)
}

// provesBelow reports whether a challenge of type t proves all names below the
// one that it is for. CA/Browser Forum BR §3.2.2.4.7 allows that of the DNS;
// §3.2.2.4.19 and §3.2.2.4.20 forbid it of what one server says.
func (t ChallengeType) provesBelow() bool {
	return t == DNS01 || t == DNSAccount01 || t == DNSPersist01
}

// below reports whether name, without "*.", lies below domain.
func below(name, domain string) bool { return strings.HasSuffix(name, "."+domain) }

// Ancestors lists the domains above name, without "*.", nearest first, as far
// as they are looked at.
func Ancestors(name string) (out []string) {
	for len(out) < maxAncestors {
		_, parent, ok := strings.Cut(name, ".")
		if !ok || parent == "" {
			break
		}
		out = append(out, parent)
		name = parent
	}
	return out
}

// An ancestry says by which domain above it an identifier of an order is to be
// proven, if by one.
type ancestry map[ca.Identifier]string

// ancestry reads what the client says of the domains above its names. One that
// may not be authorized for what is below it is passed over: the name is proven
// itself (RFC 9444 §4.3).
func (s *Server) ancestry(ctx context.Context, a Account, o Order, ids []orderIdentifier) (ancestry, error) {
	if !s.subdomains(o.Profile) {
		return nil, nil
	}
	by := ancestry{}
	for _, asked := range ids {
		if asked.Ancestor == "" {
			continue
		}
		id := ca.NormalizeIdentifiers([]ca.Identifier{asked.Identifier})[0]
		above := ca.NormalizeIdentifiers([]ca.Identifier{{Type: ca.DNS, Value: asked.Ancestor}})[0]
		base, wildcard := wildcardBase(id)
		if !wildcard {
			base = id.Value
		}
		// A wildcard lies below its own base.
		if fits := below(base, above.Value) || wildcard && base == above.Value; !fits || id.Type != ca.DNS {
			return nil, aboutNameErr(Malformed, "its ancestorDomain is not a domain above it", id)
		}
		switch ok, err := s.mayAuthorizeBelow(ctx, a, o.Profile, above); {
		case err != nil:
			return nil, err
		case ok && s.inDNS(ca.Identifier{Type: ca.DNS, Value: base}):
			by[id] = above.Value
		}
	}
	return by, nil
}

// mayAuthorizeBelow says whether one proof for a domain may hold for all below
// it: it must be a name that the
// account might order itself, which no public suffix is.
func (s *Server) mayAuthorizeBelow(ctx context.Context, a Account, profile string, id ca.Identifier) (bool, error) {
	if !s.subdomains(profile) || !s.inDNS(id) {
		return false, nil
	}
	ids := []ca.Identifier{id}
	if s.inScope(a, ids) != nil {
		return false, nil
	}
	err := s.ca.CheckIdentifiers(ctx, profile, ids)
	if _, no := errors.AsType[*ca.Refusal](err); no {
		return false, nil
	}
	return err == nil, err
}

// inDNS reports whether a name can be proven in the DNS here. Onion services, for
// one, are not in it, whatever a resolver says of their top-level domain.
func (s *Server) inDNS(id ca.Identifier) bool {
	return slices.ContainsFunc(offer(s.cfg.Challenges, id, false), ChallengeType.provesBelow)
}

// covers reports whether a, which is valid, proves what want is to.
func (a Authorization) covers(want Authorization) bool {
	if a.Identifier.Type != want.Identifier.Type {
		return false
	}
	if a.Subdomains && a.Challenge.provesBelow() && !want.Subdomains {
		return a.Identifier == want.Identifier || below(want.Identifier.Value, a.Identifier.Value)
	}
	return a.Identifier == want.Identifier && a.Wildcard == want.Wildcard && a.Subdomains == want.Subdomains
}
