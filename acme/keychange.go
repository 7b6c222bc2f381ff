package acme

import (
	"errors"
	"net/http"

	jose "github.com/go-jose/go-jose/v4"
)

// keyChange gives an account a new key (RFC 8555 §7.3.5). The outer JWS is
// signed by the old key, its payload is a JWS signed by the new one. It is
// charged to the account, and never refused for that: the old key may be lost
// to somebody who makes as many requests with it as he can.
func (s *Server) keyChange(w http.ResponseWriter, r *http.Request) error {
	t := terms{class: s.classes.steps, hold: true}
	req, err := s.signedByAccount(r, t)
	if err != nil {
		return err
	}
	key, err := s.readKeyChange(r, req, t)
	if err != nil {
		return err
	}
	jwk, err := canonicalKey(key)
	if err != nil {
		return err
	}
	tp, err := thumbprint(key)
	if err != nil {
		return err
	}
	a := req.account
	if tp == a.Thumbprint {
		return s.keyTaken(r, tp)
	}
	e := s.entry(r.Context(), a, "account.key_changed", "account/"+a.ID, map[string]string{"old": a.Thumbprint, "new": tp})
	switch err := s.store.ChangeKey(r.Context(), a.ID, a.Thumbprint, jwk, tp, e); {
	case errors.Is(err, ErrKeyTaken):
		return s.keyTaken(r, tp)
	case err != nil:
		return gone(err)
	}
	a.Key, a.Thumbprint = jwk, tp
	return s.writeAccount(w, http.StatusOK, a)
}

// keyTaken says which account has the key: whoever signed with it may know.
func (s *Server) keyTaken(r *http.Request, tp string) error {
	other, err := s.store.AccountByKey(r.Context(), tp)
	if err != nil {
		return err
	}
	return &Problem{Type: Malformed, Status: http.StatusConflict, Detail: "the new key is the key of an account already", Location: s.accountURL(other.ID)}
}

// readKeyChange checks the inner JWS and returns the new key.
func (s *Server) readKeyChange(r *http.Request, req request, t terms) (*jose.JSONWebKey, error) {
	m, err := parseMessage(req.payload)
	if err != nil {
		return nil, err
	}
	switch {
	case m.key == nil:
		return nil, malformed(`the inner JWS must have the new key in "jwk"`)
	case m.hasNonce:
		return nil, malformed("the inner JWS must have no nonce")
	case m.url != s.origin+r.URL.RequestURI():
		return nil, malformed(`the inner JWS's "url" must be that of the outer one`)
	}
	payload, err := m.verify(m.key)
	if err != nil {
		s.failedProof(r, t)
		return nil, err
	}
	if err := s.checkKeyChange(req, payload); err != nil {
		return nil, err
	}
	return m.key, s.checkAccountKey(r.Context(), m.key)
}

func (s *Server) checkKeyChange(req request, payload []byte) error {
	m, err := members(payload)
	if err != nil {
		return malformed("the inner payload: " + err.Error())
	}
	var account string
	if err := stringMember(m, "account", &account); err != nil {
		return err
	}
	if account != s.accountURL(req.account.ID) {
		return malformed(`"account" of the inner payload is not the account that signed the outer JWS`)
	}
	old, err := parseKey(m["oldKey"])
	if err != nil {
		return malformed(`"oldKey" of the inner payload is not a public JWK`)
	}
	tp, err := thumbprint(old)
	if err != nil || tp != req.account.Thumbprint {
		return malformed(`"oldKey" of the inner payload is not the account's key`)
	}
	return nil
}
