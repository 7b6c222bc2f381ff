package acme

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/mail"
	"regexp"
	"slices"
	"strings"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/secsy-pki/secsy-pki/audit"
)

// An AccountStatus is where an account stands (RFC 8555 §7.1.6).
type AccountStatus string

// The states of an account.
const (
	AccountValid       AccountStatus = "valid"
	AccountDeactivated AccountStatus = "deactivated" // by itself
	AccountRevoked     AccountStatus = "revoked"     // by the operator
)

// An Account is a client with a key.
type Account struct {
	ID          string
	Directory   string // whose it is; "" is the one that every server has
	Key         []byte // the public JWK
	Thumbprint  string // RFC 7638, base64url
	Contacts    []string
	TermsAgreed bool
	Status      AccountStatus
	CreatedAt   time.Time
	EAB         string // the key of the external account it is bound to, "" for none (RFC 8555 §7.3.4)
	Scope       Scope  // what it may order, by that key
}

var mailDomain = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z]([A-Za-z0-9-]{0,61}[A-Za-z0-9])$`)

const (
	maxContacts      = 10
	maxContactLength = 320
)

// checkContacts accepts mailto URLs of one address each (RFC 8555 §7.3).
func checkContacts(cs []string) error {
	if len(cs) > maxContacts {
		return &Problem{Type: InvalidContact, Detail: "an account has at most ten contacts"}
	}
	for _, c := range cs {
		if err := checkContact(c); err != nil {
			return err
		}
	}
	return nil
}

func checkContact(c string) error {
	const scheme = "mailto:"
	if len(c) < len(scheme) || !strings.EqualFold(c[:len(scheme)], scheme) {
		return &Problem{Type: UnsupportedContact, Detail: "a contact is a mailto URL"}
	}
	addr := c[len(scheme):]
	if len(c) > maxContactLength || strings.ContainsFunc(c, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return &Problem{Type: InvalidContact, Detail: "a contact is at most 320 ASCII characters, none of them a space"}
	}
	// RFC 8555 §7.3: no hfields, one address.
	if strings.ContainsAny(addr, "?,%") {
		return &Problem{Type: InvalidContact, Detail: "a mailto contact is one address without header fields or escapes"}
	}
	a, err := mail.ParseAddress(addr)
	if err != nil || a.Address != addr {
		return &Problem{Type: InvalidContact, Detail: "a mailto contact is an e-mail address"}
	}
	_, domain, _ := strings.Cut(addr, "@")
	if !mailDomain.MatchString(domain) {
		return &Problem{Type: InvalidContact, Detail: "the contact's domain is not a host name with at least two labels"}
	}
	return nil
}

type newAccountBody struct {
	Contact              []string        `json:"contact"`
	TermsOfServiceAgreed bool            `json:"termsOfServiceAgreed"`
	OnlyReturnExisting   bool            `json:"onlyReturnExisting"`
	Binding              json.RawMessage `json:"externalAccountBinding"` // a JWS (RFC 8555 §7.3.4)
}

// newAccount makes an account, or finds the one of the key (RFC 8555 §7.3).
func (s *Server) newAccount(w http.ResponseWriter, r *http.Request) error {
	t := terms{class: s.classes.newAccount}
	req, err := s.keyRequest(r, t)
	if err != nil {
		return err
	}
	var body newAccountBody
	if err := req.decode(&body); err != nil {
		return err
	}
	a, err := s.store.AccountByKey(r.Context(), req.thumbprint)
	switch {
	case err == nil:
		return s.writeExisting(w, a)
	case !isNotFound(err):
		return err
	case body.OnlyReturnExisting:
		return &Problem{Type: AccountDoesNotExist, Detail: "no account has this key"}
	}
	if err := s.checkNewAccount(w, r, req, body); err != nil {
		return err
	}
	return s.createAccount(w, r, t, req, body)
}

func (s *Server) checkNewAccount(w http.ResponseWriter, r *http.Request, req request, body newAccountBody) error {
	if s.cfg.TermsOfService != "" && !body.TermsOfServiceAgreed {
		w.Header().Add("Link", link(s.cfg.TermsOfService, "terms-of-service"))
		return &Problem{Type: UserActionRequired, Detail: "the terms of service must be agreed to: " + s.cfg.TermsOfService, Instance: s.cfg.TermsOfService}
	}
	if err := checkContacts(body.Contact); err != nil {
		return err
	}
	return s.checkAccountKey(r.Context(), req.key)
}

func (s *Server) createAccount(w http.ResponseWriter, r *http.Request, t terms, req request, body newAccountBody) error {
	jwk, err := canonicalKey(req.key)
	if err != nil {
		return err
	}
	a := Account{
		ID: audit.NewID(), Key: jwk, Thumbprint: req.thumbprint, Contacts: body.Contact,
		TermsAgreed: body.TermsOfServiceAgreed, Status: AccountValid, CreatedAt: s.now(),
	}
	if err := s.bind(r, t, req, body, &a); err != nil {
		return err
	}
	a, created, err := s.store.CreateAccount(r.Context(), a, s.accountCreated(r.Context(), a))
	if errors.Is(err, ErrBindingSpent) {
		return notBound(err)
	}
	if err != nil {
		return err
	}
	if !created {
		return s.writeExisting(w, a)
	}
	return s.writeAccount(w, http.StatusCreated, a)
}

func (s *Server) accountCreated(ctx context.Context, a Account) audit.Entry {
	detail := map[string]any{"contact": a.Contacts, "key": a.Thumbprint, "terms": s.cfg.TermsOfService}
	if a.EAB != "" {
		detail["external_account_key"] = a.EAB
	}
	if s.cfg.Directory != "" {
		detail["directory"] = s.cfg.Directory
	}
	return s.entry(ctx, a, "account.created", "account/"+a.ID, detail)
}

// writeExisting answers newAccount for a key that has an account. That of a
// deactivated one can never be used again.
func (s *Server) writeExisting(w http.ResponseWriter, a Account) error {
	if err := mustBeValid(a); err != nil {
		return err
	}
	return s.writeAccount(w, http.StatusOK, a)
}

func mustBeValid(a Account) error {
	if a.Status != AccountValid {
		return unauthorized("the account is " + string(a.Status))
	}
	return nil
}

// account answers POST-as-GET, update and deactivation (RFC 8555 §7.3.2,
// §7.3.6). Whoever gives up an account, maybe since its key is lost, is not
// refused for what it did before.
func (s *Server) account(w http.ResponseWriter, r *http.Request) error {
	req, err := s.signedByAccount(r, terms{class: s.classes.steps, hold: true})
	if err != nil {
		return err
	}
	if pathValue(r, "id") != req.account.ID {
		return s.notTheirs(r.Context(), req)
	}
	if req.held != nil && !deactivates(req) {
		return req.held
	}
	a := req.account
	if len(req.payload) > 0 {
		if a, err = s.updateAccount(r, req); err != nil {
			return err
		}
	}
	return s.writeAccount(w, http.StatusOK, a)
}

// deactivates reports whether the request is to end its account.
func deactivates(req request) bool {
	var body struct {
		Status string `json:"status"`
	}
	return len(req.payload) > 0 && req.decode(&body) == nil && body.Status == string(AccountDeactivated)
}

func (s *Server) updateAccount(r *http.Request, req request) (Account, error) {
	a := req.account
	var body struct {
		Contact *[]string `json:"contact"`
		Status  string    `json:"status"`
	}
	if err := req.decode(&body); err != nil {
		return a, err
	}
	// RFC 8555 §7.3.2: any other wish for a status is ignored.
	if body.Status == string(AccountDeactivated) {
		return s.deactivateAccount(r, a)
	}
	if body.Contact == nil || slices.Equal(*body.Contact, a.Contacts) {
		return a, nil
	}
	if err := checkContacts(*body.Contact); err != nil {
		return a, err
	}
	e := s.entry(r.Context(), a, "account.updated", "account/"+a.ID, map[string]any{"contact": *body.Contact})
	if err := s.store.UpdateContacts(r.Context(), a.ID, *body.Contact, e); err != nil {
		return a, gone(err)
	}
	a.Contacts = *body.Contact
	return a, nil
}

func (s *Server) deactivateAccount(r *http.Request, a Account) (Account, error) {
	closed := Closing{
		Error:   Problem{Type: Unauthorized, Status: http.StatusForbidden, Detail: "the account was deactivated"},
		PurgeAt: s.now().Add(s.cfg.Retention),
	}
	e := s.entry(r.Context(), a, "account.deactivated", "account/"+a.ID, nil)
	if err := s.store.DeactivateAccount(r.Context(), a.ID, closed, e); err != nil {
		return a, gone(err)
	}
	a.Status = AccountDeactivated
	return a, nil
}

// ClosedByOperator is what the open orders of an account keep that the operator
// revoked.
func ClosedByOperator(now time.Time) Closing {
	return Closing{
		Error:   Problem{Type: Unauthorized, Status: http.StatusForbidden, Detail: "the account was revoked by the operator of this server"},
		PurgeAt: now.Add(retention),
	}
}

// gone is what an account hears that was deactivated while it was talking.
func gone(err error) error {
	if isMoved(err) {
		return unauthorized("the account is no longer valid, or its key was changed")
	}
	return err
}

func canonicalKey(k *jose.JSONWebKey) ([]byte, error) {
	return (&jose.JSONWebKey{Key: k.Key}).MarshalJSON()
}
