package acme

import (
	"errors"

	"github.com/secsy-pki/secsy-pki/ca"
)

// profileFor decides which profile an account may order by: asked is what the
// client named, "" for nothing. It is the one place for such rules.
func (s *Server) profileFor(a Account, asked string) (string, error) {
	if asked == "" {
		usual := a.Scope.usualProfile(s.cfg.DefaultProfile)
		return usual, s.cfg.Scope.checkProfile(usual, ofDirectoryAccounts)
	}
	if err := a.Scope.checkProfile(asked, ofExternalAccount); err != nil {
		return "", err
	}
	if _, ok := s.cfg.Profiles[asked]; !ok {
		return "", &Problem{Type: InvalidProfile, Detail: "there is no such profile; the directory's meta lists them"}
	}
	return asked, nil
}

// shownProfile is the order's profile for its client, who hears of no others
// than those that it may name.
func (s *Server) shownProfile(o Order) string {
	if _, ok := s.cfg.Profiles[o.Profile]; !ok {
		return ""
	}
	return o.Profile
}

// notOfProfile is the authority's no to an order for a profile that the client
// named. If the profile has no identifiers of those types at all, it is the
// profile that is at fault (draft-ietf-acme-profiles §4).
func notOfProfile(err error, named string) error {
	r, ok := errors.AsType[*ca.Refusal](err)
	if named == "" || !ok || r.Code != ca.Unsupported {
		return err
	}
	p := *refused(r)
	if p.Type == UnsupportedIdentifier { // all of them
		p.Type = InvalidProfile
	}
	return &p
}
