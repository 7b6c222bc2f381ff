package acme

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
)

type newOrderBody struct {
	Identifiers []orderIdentifier `json:"identifiers"`
	NotBefore   string            `json:"notBefore"`
	NotAfter    string            `json:"notAfter"`
	Profile     string            `json:"profile"`
	Replaces    string            `json:"replaces"`
	AutoRenewal *autoRenewalBody  `json:"auto-renewal"`
}

// newOrder takes an order and makes the authorizations that it needs (RFC 8555 §7.4).
func (s *Server) newOrder(w http.ResponseWriter, r *http.Request) error {
	c, err := s.claimByAccount(r, terms{class: s.classes.newOrder})
	if err != nil {
		return err
	}
	req := c.req // confirmed by CreateOrder, or before anything is said that is not about the request
	var body newOrderBody
	if err := req.decode(&body); err != nil {
		return err
	}
	if body.Replaces != "" { // much is read for that
		if req, err = s.confirm(r, c); err != nil {
			return err
		}
	}
	o, err := s.orderOf(req.account, body)
	if err != nil {
		return err
	}
	if err := s.inScope(req.account, o.Identifiers); err != nil {
		return err
	}
	if err := s.ca.CheckIdentifiers(r.Context(), o.Profile, o.Identifiers); err != nil {
		return notOfProfile(err, body.Profile)
	}
	if err := s.ca.CheckValidity(o.Profile, o.NotBefore, o.NotAfter); err != nil {
		return err
	}
	if err := s.readAutoRenewal(r.Context(), &o, body); err != nil {
		return err
	}
	if err := s.readReplaces(r.Context(), &o, body.Replaces); err != nil {
		return err
	}
	if err := s.checkQuota(o); err != nil {
		return err
	}
	by, err := s.ancestry(r.Context(), req.account, o, body.Identifiers)
	if err != nil {
		return err
	}
	if o.AutoRenewal == nil { // a row is the same as no other order
		o.SetHash = s.setHash(o, by)
	}
	o, found, err := s.placeOrFind(r.Context(), o, by, c.signer())
	if err == nil && !found {
		s.metrics.order("created")
		return s.writeOrder(w, http.StatusCreated, o)
	}
	if _, err := s.confirm(r, c); err != nil {
		return err
	}
	if found && err == nil {
		s.metrics.order("reused")
		return s.writeOrder(w, http.StatusCreated, o)
	}
	return s.notPlaced(w, r, o, err)
}

// notPlaced says why there is no such order, or which one there is instead.
func (s *Server) notPlaced(w http.ResponseWriter, r *http.Request, o Order, err error) error {
	if errors.Is(err, ErrReplaced) {
		old, err := s.resumeReplacing(r.Context(), o)
		if err != nil {
			return err
		}
		return s.writeOrder(w, http.StatusCreated, old)
	}
	if q, ok := errors.AsType[*QuotaError](err); ok {
		return s.overQuota(r, o, q)
	}
	if p, ok := errors.AsType[*PausedError](err); ok {
		return s.paused(r, o.AccountID, p)
	}
	return tooMany(err, s.cfg.MaxOpenOrders)
}

// orderOf checks the form of what the client sent.
func (s *Server) orderOf(a Account, body newOrderBody) (Order, error) {
	now := s.now()
	o := Order{
		ID: audit.NewID(), AccountID: a.ID, Directory: a.Directory, Status: OrderPending, CreatedAt: now, Expires: now.Add(s.cfg.OrderLifetime),
	}
	if len(body.Identifiers) == 0 {
		return o, malformed("an order needs at least one identifier")
	}
	if len(body.Identifiers) > s.cfg.MaxNames {
		return o, &Problem{Type: RejectedIdentifier, Detail: fmt.Sprintf("an order has at most %d identifiers", s.cfg.MaxNames)}
	}
	ids := make([]ca.Identifier, 0, len(body.Identifiers))
	for _, id := range body.Identifiers {
		ids = append(ids, id.Identifier)
	}
	o.Identifiers = ca.NormalizeIdentifiers(ids)
	if err := onlyProvable(o.Identifiers); err != nil {
		return o, err
	}
	var err error
	if o.Profile, err = s.profileFor(a, body.Profile); err != nil {
		return o, err
	}
	return o, o.readValidity(body, now)
}

// onlyProvable refuses what no challenge here can prove.
func onlyProvable(ids []ca.Identifier) error {
	var subs []Problem
	for _, id := range ids {
		if id.Type != ca.DNS && id.Type != ca.IP && !id.Type.IsDevice() {
			subs = append(subs, Problem{Type: UnsupportedIdentifier, Detail: "identifiers of this type cannot be proven here", Identifier: shownIdentifier(id)})
		}
	}
	if len(subs) == 0 {
		return nil
	}
	return &Problem{Type: UnsupportedIdentifier, Detail: "the order has identifiers of a type that is not supported", Subproblems: subs}
}

// shownIdentifier bounds what is said back of an identifier that nobody checked.
func shownIdentifier(id ca.Identifier) *ca.Identifier {
	const most = 256
	if len(id.Type) > most {
		id.Type = id.Type[:most]
	}
	if len(id.Value) > most {
		id.Value = id.Value[:most]
	}
	return &id
}

// readValidity reads the validity asked for; whether it is allowed is the authority's to say.
func (o *Order) readValidity(body newOrderBody, now time.Time) error {
	var err error
	if o.NotBefore, err = parseTime("notBefore", body.NotBefore); err != nil {
		return err
	}
	if o.NotAfter, err = parseTime("notAfter", body.NotAfter); err != nil {
		return err
	}
	if !o.NotAfter.IsZero() && (!o.NotAfter.After(now) || !o.NotAfter.After(o.NotBefore)) {
		return malformed("notAfter must be in the future, and after notBefore")
	}
	return nil
}

func parseTime(name, v string) (time.Time, error) {
	if v == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, v)
	if err != nil || t.Year() < 1970 || t.Year() > 9999 {
		return time.Time{}, malformed(name + " is not a time as in RFC 3339")
	}
	return t.UTC().Truncate(time.Second), nil
}

func tooMany(err error, most int) error {
	if !isTooMany(err) {
		return err
	}
	return &Problem{
		Type: RateLimited, RetryAfter: 10 * time.Minute, Err: err,
		Detail: fmt.Sprintf("the account has %d orders that are not finalized; finish or deactivate some of them", most),
	}
}

func wildcardBase(id ca.Identifier) (string, bool) {
	if id.Type != ca.DNS {
		return "", false
	}
	return strings.CutPrefix(id.Value, "*.")
}

func aboutNameErr(t ProblemType, detail string, id ca.Identifier) error {
	p := aboutName(Problem{Type: t, Detail: detail}, id)
	return &p
}
