package acme

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"os"
	"strings"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/peer"
)

// A request is a JWS that held: its signature, its url and its nonce.
type request struct {
	account    Account // of the kid; zero if signed by a key in the header
	key        *jose.JSONWebKey
	thumbprint string
	payload    []byte
	held       error // the no of the account's limits, where terms hold it back
}

// decode reads the payload, which is one JSON object. Members that are not
// known are left aside (RFC 8555 §7.3); one that is there twice is refused.
func (q request) decode(v any) error {
	if err := unambiguous(q.payload); err != nil {
		return malformed("the payload: " + err.Error())
	}
	if err := json.Unmarshal(q.payload, v); err != nil {
		return &Problem{Type: Malformed, Detail: "the payload has a member of a wrong type", Err: err}
	}
	return nil
}

// A claim is a request whose signature held under the key that its account had
// when it was last read. Since then the account may have ended, or changed its key,
// on another replica, too: nothing may be done for a claim until the store has said,
// by what it gives away only to who signed so, that it is still right.
type claim struct {
	req        request
	terms      terms
	remembered bool // the account was not read for this request
}

func (c claim) signer() Signer { return Signer{c.req.account.ID, c.req.thumbprint} }

// step and finalizing are on what terms most requests are admitted. The client that
// finalizes has done all that it has to: its own order is never refused for the
// account's limits, so they are only heard of if the order is not its own.
func (s *Server) step() terms { return terms{class: s.classes.steps, budget: true} }

func (s *Server) finalizing() terms { return terms{class: s.classes.steps, budget: true, hold: true} }

// signedByAccount reads a request signed by a valid account.
func (s *Server) signedByAccount(r *http.Request, t terms) (request, error) {
	c, err := s.claimByAccount(r, t)
	if err != nil {
		return request{}, err
	}
	return s.confirm(r, c)
}

func (s *Server) claimByAccount(r *http.Request, t terms) (claim, error) {
	m, err := s.readMessage(r, t)
	if err != nil {
		return claim{}, err
	}
	if m.key != nil {
		return claim{}, malformed(`this request must be signed by an account: "kid", not "jwk" (RFC 8555 §6.2)`)
	}
	return s.verifyByAccount(r, m, t)
}

// confirm reads the account, unless it was read for this request.
func (s *Server) confirm(r *http.Request, c claim) (request, error) {
	if !c.remembered {
		return c.req, mustBeValid(c.req.account)
	}
	a, err := s.store.Account(r.Context(), c.req.account.ID)
	switch {
	case isNotFound(err):
		return request{}, noAccount()
	case err != nil:
		return request{}, err
	case a.Thumbprint != c.req.thumbprint:
		s.failedProof(r, c.terms)
		return request{}, wrongSignature("")
	}
	c.req.account = a
	return c.req, mustBeValid(a)
}

// readRequest reads a POST-as-GET (RFC 8555 §6.3).
func (s *Server) readRequest(r *http.Request) (request, error) {
	req, err := s.signedByAccount(r, s.step())
	if err != nil {
		return request{}, err
	}
	return req, mustBeEmpty(req)
}

func mustBeEmpty(req request) error {
	if len(req.payload) > 0 {
		return onlyRead()
	}
	return nil
}

func onlyRead() *Problem {
	return malformed("this resource is only read: the payload must be empty (RFC 8555 §6.3)")
}

// keyRequest reads a request signed by a key in its header.
func (s *Server) keyRequest(r *http.Request, t terms) (request, error) {
	m, err := s.readMessage(r, t)
	if err != nil {
		return request{}, err
	}
	if m.key == nil {
		return request{}, malformed(`this request must be signed by the key in its header: "jwk", not "kid" (RFC 8555 §6.2)`)
	}
	return s.verifyByKey(r, m, t)
}

// eitherRequest reads a request signed in either way (RFC 8555 §7.6).
func (s *Server) eitherRequest(r *http.Request, t terms) (request, error) {
	m, err := s.readMessage(r, t)
	if err != nil {
		return request{}, err
	}
	if m.key != nil {
		return s.verifyByKey(r, m, t)
	}
	c, err := s.verifyByAccount(r, m, t)
	if err != nil {
		return request{}, err
	}
	return s.confirm(r, c)
}

func (s *Server) readMessage(r *http.Request, t terms) (m *message, err error) {
	b, err := s.readBody(r)
	if err != nil {
		return nil, err
	}
	// Only now: who sends slowly holds up nobody.
	err = s.compute(r, t, func() (err error) { m, err = parseMessage(b); return err })
	return m, err
}

func (s *Server) readBody(r *http.Request) ([]byte, error) {
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || t != "application/jose+json" {
		return nil, &Problem{Type: Malformed, Status: http.StatusUnsupportedMediaType, Detail: "the Content-Type must be application/jose+json"}
	}
	// A length that is only announced sets little aside.
	b := bytes.NewBuffer(make([]byte, 0, min(max(r.ContentLength, 0), readAhead)+bytes.MinRead))
	_, err = b.ReadFrom(r.Body)
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, &Problem{Type: Malformed, Status: http.StatusRequestEntityTooLarge, Detail: fmt.Sprintf("the request body is larger than %d octets", s.cfg.MaxBody)}
	}
	if timedOut(err) {
		return nil, &Problem{Type: Malformed, Status: http.StatusRequestTimeout, Detail: "the request body took too long to come", Err: err}
	}
	if err != nil {
		return nil, &Problem{Type: Malformed, Detail: "the request body ended early", Err: err}
	}
	return b.Bytes(), nil
}

// readAhead is more than most requests have.
const readAhead = 4 << 10

func timedOut(err error) bool {
	n, ok := errors.AsType[net.Error](err)
	return errors.Is(err, os.ErrDeadlineExceeded) || ok && n.Timeout()
}

func (s *Server) verifyByAccount(r *http.Request, m *message, t terms) (claim, error) {
	id, ok := strings.CutPrefix(m.kid, s.accountURL(""))
	if !ok || id == "" || strings.ContainsAny(id, "/?#") {
		return claim{}, malformed(`"kid" is not the URL of an account of this server, which begins with ` + s.accountURL(""))
	}
	if !isID(id) {
		s.failedProof(r, t)
		return claim{}, noAccount()
	}
	held := s.claimed(r, t, id)
	if held != nil && !t.hold {
		return claim{}, held
	}
	c, err := s.whoSigned(r, m, id, t)
	if isNotFound(err) {
		return claim{}, s.nobody(r, m, t)
	}
	if err != nil {
		return claim{}, err
	}
	a := c.req.account
	peer.Annotate(r.Context(), "account", a.ID)
	if err := s.proven(r, t, a); err != nil {
		if !t.hold {
			return claim{}, err
		}
		held = err
	}
	c.req.held = held
	if a.Status == AccountValid {
		s.accounts.put(a.ID, a)
	}
	return c, nil
}

// whoSigned verifies m under the key of its account, as it is remembered if it is:
// only if that does not hold, or nothing is remembered, is the account read.
func (s *Server) whoSigned(r *http.Request, m *message, id string, t terms) (claim, error) {
	a, remembered := s.accounts.get(id)
	if !remembered {
		var err error
		if a, err = s.store.Account(r.Context(), id); err != nil {
			return claim{}, err
		}
	}
	req, wrong, err := s.verifiedBy(r, m, a, t)
	if wrong != nil && remembered {
		old := a.Thumbprint
		if a, err = s.store.Account(r.Context(), id); err == nil && a.Thumbprint != old {
			req, wrong, err = s.verifiedBy(r, m, a, t)
		}
		remembered = false
	}
	if err == nil && wrong != nil {
		s.failedProof(r, t)
		err = wrong
	}
	if err != nil {
		return claim{}, err
	}
	req, err = s.bound(r, m, req, t)
	return claim{req: req, terms: t, remembered: remembered}, err
}

func (s *Server) verifiedBy(r *http.Request, m *message, a Account, t terms) (req request, wrong, err error) {
	key, err := s.keys.of(a)
	if err != nil {
		return request{}, nil, err
	}
	payload, wrong, err := s.verify(r, m, key, t)
	return request{account: a, key: key, thumbprint: a.Thumbprint, payload: payload}, wrong, err
}

// nobody is the answer to an account that does not exist, after as much work as
// the wrong signature of one that does would have taken.
func (s *Server) nobody(r *http.Request, m *message, t terms) error {
	key, err := s.keys.of(s.decoys[m.alg])
	if err != nil {
		return err
	}
	return s.compute(r, t, func() error {
		_, _ = m.verify(key) // whatever it says: it is nobody's
		s.failedProof(r, t)
		return noAccount()
	})
}

func noAccount() *Problem {
	return &Problem{Type: AccountDoesNotExist, Detail: `there is no account with the URL in "kid"`}
}

func (s *Server) verifyByKey(r *http.Request, m *message, t terms) (request, error) {
	req, err := s.verified(r, m, m.key, t)
	if err != nil {
		return request{}, err
	}
	if req.thumbprint, err = thumbprint(m.key); err != nil {
		return request{}, fmt.Errorf("computing thumbprint: %w", err)
	}
	return req, nil
}

// verified checks a message that is signed by key.
func (s *Server) verified(r *http.Request, m *message, key *jose.JSONWebKey, t terms) (request, error) {
	payload, wrong, err := s.verify(r, m, key, t)
	if err != nil {
		return request{}, err
	}
	if wrong != nil {
		s.failedProof(r, t)
		return request{}, wrong
	}
	return s.bound(r, m, request{key: key, payload: payload}, t)
}

// verify checks the signature in its turn; wrong says what is wrong with it.
func (s *Server) verify(r *http.Request, m *message, key *jose.JSONWebKey, t terms) (payload []byte, wrong, err error) {
	err = s.compute(r, t, func() error { payload, wrong = m.verify(key); return nil })
	return payload, wrong, err
}

// bound checks what binds the message to this very request. The nonce comes
// last: a stranger must not be able to spend one that he only saw.
func (s *Server) bound(r *http.Request, m *message, req request, t terms) (request, error) {
	// RFC 8555 §6.4. The origin is configured: what the client, or a proxy,
	// says in Host or Forwarded has no part in it.
	if m.url != s.origin+r.URL.RequestURI() {
		s.failedProof(r, t)
		return request{}, unauthorized(`the JWS's "url" is not the URL of this request, ` + s.origin + r.URL.RequestURI())
	}
	// A nonce that is not good is no failed proof: it may be ours, from before
	// the last restart.
	if err := s.nonces.redeem(m.nonce); err != nil {
		// acme.sh knows this error by these words.
		return request{}, &Problem{Type: BadNonce, Detail: "JWS has an invalid anti-replay nonce; try again with the one in this answer", Err: err}
	}
	return req, nil
}

// checkAccountKey applies the rules for certified keys to account keys.
// Ed25519 keys, which the authority may not certify, have no weak ones.
func (s *Server) checkAccountKey(ctx context.Context, k *jose.JSONWebKey) error {
	if _, ok := k.Key.(ed25519.PublicKey); ok {
		return nil
	}
	return s.ca.CheckKey(ctx, k.Key)
}

func isNotFound(err error) bool { return errors.Is(err, ErrNotFound) }

// isID reports whether id has the form of those that we make. Others name
// nothing, and no database is asked about text that it may not even take.
func isID(id string) bool {
	const length = 32 // of audit.NewID
	return len(id) == length && strings.Trim(id, "0123456789abcdef") == ""
}

// ownOrder finds the order in the path, if it is the account's.
func (s *Server) ownOrder(r *http.Request, c claim) (request, Order, error) {
	req, o, err := own(s, r, c, s.store.OrderOf)
	return req, o.At(s.now()), err
}

func (s *Server) ownAuthorization(r *http.Request, c claim) (request, Authorization, error) {
	req, a, err := own(s, r, c, s.store.AuthorizationOf)
	return req, a.At(s.now()), err
}

// own reads what the path names, with which the store confirms who signed. If it
// does not, because of the one or the other, the account comes first.
func own[T any](s *Server, r *http.Request, c claim, read func(context.Context, Signer, string) (T, error)) (request, T, error) {
	var none T
	if id := pathValue(r, "id"); isID(id) {
		v, err := read(r.Context(), c.signer(), id)
		if err == nil {
			return c.req, v, nil
		}
		if !isNotFound(err) && !errors.Is(err, ca.ErrNotFound) {
			return request{}, none, err
		}
	}
	req, err := s.confirm(r, c)
	if err != nil {
		return request{}, none, err
	}
	return request{}, none, s.notTheirs(r.Context(), req)
}

func (s *Server) readOrder(ctx context.Context, id string) (Order, error) {
	o, err := s.store.Order(ctx, id)
	if err != nil {
		return Order{}, err
	}
	return o.At(s.now()), nil
}

func (s *Server) readAuthorization(ctx context.Context, id string) (Authorization, error) {
	a, err := s.store.Authorization(ctx, id)
	if err != nil {
		return Authorization{}, err
	}
	return a.At(s.now()), nil
}
