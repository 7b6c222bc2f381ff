package acme

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

const urn = "urn:ietf:params:acme:error:"

// retrySoon is how long a client waits before it looks again at something that
// is not final. Without it some ask four times a second.
const retrySoon = time.Second

type wireProblem struct {
	Type        string         `json:"type"`
	Detail      string         `json:"detail,omitempty"`
	Status      int            `json:"status,omitempty"`
	Instance    string         `json:"instance,omitempty"`
	Identifier  *ca.Identifier `json:"identifier,omitempty"`
	Algorithms  []string       `json:"algorithms,omitempty"`
	Subproblems []wireProblem  `json:"subproblems,omitempty"`
}

func wireProblemOf(p *Problem, top bool) wireProblem {
	w := wireProblem{Type: urn + string(p.Type), Detail: p.Detail, Instance: p.Instance, Identifier: p.Identifier, Algorithms: p.Algorithms}
	if top {
		// RFC 8555 §6.7.1: "identifier" must not be at the top.
		w.Status, w.Identifier = p.status(), nil
		w.Detail += p.Private
	}
	for i := range p.Subproblems {
		w.Subproblems = append(w.Subproblems, wireProblemOf(&p.Subproblems[i], false))
	}
	return w
}

func storedProblem(p *Problem) *wireProblem {
	if p == nil {
		return nil
	}
	w := wireProblemOf(p, true)
	return &w
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // some clients read JSON with regular expressions
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encoding answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
	return nil
}

func (s *Server) accountURL(id string) string { return s.url("account", id) }

func (s *Server) writeAccount(w http.ResponseWriter, status int, a Account) error {
	w.Header().Set("Location", s.accountURL(a.ID))
	return writeJSON(w, status, struct {
		Status      AccountStatus `json:"status"`
		Contact     []string      `json:"contact,omitempty"`
		TermsAgreed bool          `json:"termsOfServiceAgreed,omitempty"`
		Orders      string        `json:"orders"`
	}{a.Status, a.Contacts, a.TermsAgreed, s.url("account", a.ID, "orders")})
}

type wireOrder struct {
	Status         OrderStatus     `json:"status"`
	Expires        string          `json:"expires"`
	Identifiers    []ca.Identifier `json:"identifiers"`
	Profile        string          `json:"profile,omitempty"`
	Replaces       CertID          `json:"replaces,omitempty"`
	NotBefore      string          `json:"notBefore,omitempty"`
	NotAfter       string          `json:"notAfter,omitempty"`
	Error          *wireProblem    `json:"error,omitempty"`
	Authorizations []string        `json:"authorizations"`
	Finalize       string          `json:"finalize"`
	Certificate    string          `json:"certificate,omitempty"`

	AutoRenewal     *wireAutoRenewal `json:"auto-renewal,omitempty"`
	StarCertificate string           `json:"star-certificate,omitempty"`
}

// writeOrder always says where the order is: clients poll that address, after
// finalizing, too.
func (s *Server) writeOrder(w http.ResponseWriter, status int, o Order) error {
	v := wireOrder{
		Status: o.Status, Expires: wireTime(o.Expires), Identifiers: o.Identifiers, Profile: s.shownProfile(o), Replaces: o.Replaces,
		NotBefore: wireTime(o.NotBefore), NotAfter: wireTime(o.NotAfter), Error: storedProblem(o.Error),
		Authorizations: make([]string, 0, len(o.AuthzIDs)), Finalize: s.url("order", o.ID, "finalize"),
	}
	for _, id := range o.AuthzIDs {
		v.Authorizations = append(v.Authorizations, s.url("authz", id))
	}
	v.AutoRenewal = wireAutoRenewalOf(o.AutoRenewal)
	switch {
	case o.Status == OrderValid && o.AutoRenewal == nil:
		v.Certificate = s.url("cert", o.CertificateID)
	case o.canceled():
		v.Status, v.Expires = OrderCanceled, wireTime(o.CanceledAt)
	case o.Status == OrderValid:
		// From then on it is autoRenewalExpired (RFC 8739 §3.3).
		v.StarCertificate, v.Expires = s.url("star", o.ID), wireTime(o.AutoRenewal.End)
	}
	h := w.Header()
	h.Set("Location", s.url("order", o.ID))
	if o.Status == OrderPending || o.Status == OrderProcessing {
		h.Set("Retry-After", seconds(retrySoon))
	}
	return writeJSON(w, status, v)
}

type wireChallenge struct {
	Type      ChallengeType `json:"type"`
	URL       string        `json:"url"`
	Status    string        `json:"status"`
	Token     string        `json:"token,omitempty"`
	Issuers   []string      `json:"issuer-domain-names,omitempty"` // of dns-persist-01, which has no token
	Account   string        `json:"accounturi,omitempty"`          // likewise: what its record has to say
	Nonce     string        `json:"nonce,omitempty"`               // of onion-csr-01, instead of a token
	Validated string        `json:"validated,omitempty"`
	Error     *wireProblem  `json:"error,omitempty"`
}

func (s *Server) wireChallengeOf(a Authorization, t ChallengeType) wireChallenge {
	c := wireChallenge{Type: t, URL: s.url("challenge", a.ID, string(t)), Status: a.challengeStatus(t), Token: a.Token}
	if t == DNSPersist01 {
		c.Token, c.Issuers, c.Account = "", s.issuerDomains, s.accountURL(a.AccountID)
	}
	if t == OnionCSR01 {
		c.Token, c.Nonce = "", onionNonce(a.Token)
	}
	if a.Challenge == t {
		c.Validated, c.Error = wireTime(a.Validated), storedProblem(a.Error)
	}
	return c
}

func (s *Server) writeAuthorization(w http.ResponseWriter, status int, a Authorization) error {
	v := struct {
		Identifier ca.Identifier   `json:"identifier"`
		Status     AuthzStatus     `json:"status"`
		Expires    string          `json:"expires"`
		Challenges []wireChallenge `json:"challenges"`
		Wildcard   bool            `json:"wildcard,omitempty"`
		Subdomains bool            `json:"subdomainAuthAllowed,omitempty"`
	}{a.Identifier, a.Status, wireTime(a.Expires), []wireChallenge{}, a.Wildcard, a.Subdomains}
	for _, t := range a.shown() {
		v.Challenges = append(v.Challenges, s.wireChallengeOf(a, t))
	}
	h := w.Header()
	h.Set("Location", s.url("authz", a.ID))
	if a.Status == AuthzPending {
		h.Set("Retry-After", seconds(retrySoon))
	}
	return writeJSON(w, status, v)
}

func (s *Server) writeChallenge(w http.ResponseWriter, a Authorization, t ChallengeType) error {
	h := w.Header()
	h.Set("Location", s.url("challenge", a.ID, string(t)))
	h.Add("Link", link(s.url("authz", a.ID), "up"))
	if a.Status == AuthzPending {
		h.Set("Retry-After", seconds(retrySoon))
	}
	return writeJSON(w, http.StatusOK, s.wireChallengeOf(a, t))
}

// wireTime is RFC 3339 in whole seconds: not every client reads fractions.
func wireTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Truncate(time.Second).Format(time.RFC3339)
}

// listOrders answers the list of an account's orders (RFC 8555 §7.1.2.1), which
// leaves out invalid ones. The cursor is the last id of the page before.
func (s *Server) listOrders(w http.ResponseWriter, r *http.Request) error {
	req, err := s.readRequest(r)
	if err != nil {
		return err
	}
	if pathValue(r, "id") != req.account.ID {
		return s.notTheirs(r.Context(), req)
	}
	cursor := r.URL.Query().Get("cursor")
	if cursor != "" && !isID(cursor) {
		return malformed("the cursor is not one that this list gave out")
	}
	// One more than the page has says whether there is a next one.
	refs, err := s.store.ListOrders(r.Context(), req.account.ID, cursor, s.cfg.PageSize+1)
	if err != nil {
		return err
	}
	if len(refs) > s.cfg.PageSize {
		refs = refs[:s.cfg.PageSize]
		next := s.url("account", req.account.ID, "orders") + "?cursor=" + url.QueryEscape(refs[len(refs)-1].ID)
		w.Header().Add("Link", link(next, "next"))
	}
	urls := make([]string, 0, len(refs))
	for _, o := range refs {
		urls = append(urls, s.url("order", o.ID))
	}
	return writeJSON(w, http.StatusOK, map[string][]string{"orders": urls})
}
