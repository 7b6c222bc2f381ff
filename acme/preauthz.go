package acme

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

// Ahead keeps authorizations that were asked for ahead of any order.
type Ahead interface {
	// CreateAuthorization stores a pending authorization without an order,
	// unless its account has limit of them already: ErrTooManyOpen.
	CreateAuthorization(ctx context.Context, a Authorization, limit int) error
	// PendingAuthorizations returns the account's that expire after until, at most limit.
	PendingAuthorizations(ctx context.Context, accountID string, until time.Time, limit int) ([]Authorization, error)
}

type newAuthzBody struct {
	Identifier orderIdentifier `json:"identifier"`
	Profile    string          `json:"profile"` // an authorization is for one profile; RFC 8555 knows none
}

// newAuthz makes an authorization ahead of any order (RFC 8555 §7.4.1), or
// returns the one that there is.
func (s *Server) newAuthz(w http.ResponseWriter, r *http.Request) error {
	req, err := s.signedByAccount(r, terms{class: s.classes.newOrder})
	if err != nil {
		return err
	}
	var body newAuthzBody
	if err := req.decode(&body); err != nil {
		return err
	}
	want, err := s.authorizationAhead(r.Context(), req.account, body)
	if err != nil {
		return err
	}
	if a, ok, err := s.existing(r.Context(), want); err != nil || ok {
		if err != nil {
			return err
		}
		return s.writeAuthorization(w, http.StatusOK, a)
	}
	if err := s.notPaused(r, want); err != nil {
		return err
	}
	if err := s.store.CreateAuthorization(r.Context(), want, s.cfg.MaxOpenOrders); err != nil {
		return tooManyAhead(err, s.cfg.MaxOpenOrders)
	}
	return s.writeAuthorization(w, http.StatusCreated, want)
}

// authorizationAhead checks what the client asks for.
func (s *Server) authorizationAhead(ctx context.Context, account Account, body newAuthzBody) (Authorization, error) {
	if body.Identifier.Type == "" || body.Identifier.Value == "" {
		return Authorization{}, malformed("the payload needs an identifier with type and value")
	}
	ids := ca.NormalizeIdentifiers([]ca.Identifier{body.Identifier.Identifier})
	if err := onlyProvable(ids); err != nil {
		return Authorization{}, err
	}
	id := ids[0]
	if _, wildcard := wildcardBase(id); wildcard {
		return Authorization{}, aboutNameErr(RejectedIdentifier, "a wildcard is not authorized ahead of its order (RFC 8555 §7.4.1)", *shownIdentifier(id))
	}
	if err := s.inScope(account, ids); err != nil {
		return Authorization{}, err
	}
	profile, err := s.profileFor(account, body.Profile)
	if err != nil {
		return Authorization{}, err
	}
	if err := s.ca.CheckIdentifiers(ctx, profile, ids); err != nil {
		return Authorization{}, err
	}
	now := s.now()
	o := Order{AccountID: account.ID, Directory: account.Directory, Profile: profile, CreatedAt: now, Expires: now.Add(s.cfg.OrderLifetime)}
	above := ""
	if body.Identifier.Subdomains && id.Type == ca.DNS {
		// Where it may not hold for what is below, it is one for the name alone (RFC 9444 §4.2).
		ok, err := s.mayAuthorizeBelow(ctx, account, profile, id)
		if err != nil {
			return Authorization{}, err
		}
		if ok {
			above = id.Value
		}
	}
	a := s.newAuthorization(o, id, above)
	if len(a.Offered) == 0 {
		return a, aboutNameErr(RejectedIdentifier, "none of the challenges that are offered here can prove it", id)
	}
	return a, nil
}

// existing finds the account's authorization for the same, valid or pending.
func (s *Server) existing(ctx context.Context, want Authorization) (Authorization, bool, error) {
	o := Order{
		AccountID: want.AccountID, Directory: want.Directory, Profile: want.Profile, CreatedAt: want.CreatedAt,
		Identifiers: []ca.Identifier{want.Identifier},
	}
	h, err := s.held(ctx, o, nil)
	if err != nil {
		return Authorization{}, false, err
	}
	h = slices.DeleteFunc(h, func(a Authorization) bool { return a.Identifier != want.Identifier })
	if a, ok := h.of(want); ok {
		return a, true, nil
	}
	pending, err := s.store.PendingAuthorizations(ctx, want.AccountID, want.CreatedAt.Add(margin(s.cfg.OrderLifetime)), s.cfg.MaxOpenOrders)
	if err != nil {
		return Authorization{}, false, err
	}
	for _, a := range pending {
		if a.Identifier == want.Identifier && a.Subdomains == want.Subdomains && a.Profile == want.Profile && a.Directory == want.Directory {
			return a, true, nil
		}
	}
	return Authorization{}, false, nil
}

func tooManyAhead(err error, most int) error {
	if !errors.Is(err, ErrTooManyOpen) {
		return err
	}
	return &Problem{
		Type: RateLimited, RetryAfter: 10 * time.Minute, Err: err,
		Detail: fmt.Sprintf("the account has %d authorizations without an order that are not proven; prove or deactivate some of them", most),
	}
}
