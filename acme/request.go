package acme

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/secsy-pki/secsy-pki/peer"
)

// A request is a JWS that held: its signature, its url and its nonce.
type request struct {
	account    Account // of the kid; zero if signed by a key in the header
	key        *jose.JSONWebKey
	thumbprint string
	payload    []byte
}

// decode reads the payload, which is one JSON object. Members that are not
// known are left aside (RFC 8555 §7.3); one that is there twice is refused.
func (q request) decode(v any) error {
	if _, err := members(q.payload); err != nil {
		return malformed("the payload: " + err.Error())
	}
	if err := unambiguous(q.payload); err != nil {
		return malformed("the payload: " + err.Error())
	}
	if err := json.Unmarshal(q.payload, v); err != nil {
		return &Problem{Type: Malformed, Detail: "the payload has a member of a wrong type", Err: err}
	}
	return nil
}

// accountRequest reads a request signed by a valid account.
func (s *Server) accountRequest(r *http.Request) (request, error) {
	m, err := s.readMessage(r)
	if err != nil {
		return request{}, err
	}
	if m.key != nil {
		return request{}, malformed(`this request must be signed by an account: "kid", not "jwk" (RFC 8555 §6.2)`)
	}
	return s.verifyByAccount(r, m)
}

// readRequest reads a POST-as-GET (RFC 8555 §6.3).
func (s *Server) readRequest(r *http.Request) (request, error) {
	req, err := s.accountRequest(r)
	if err != nil {
		return request{}, err
	}
	if len(req.payload) > 0 {
		return request{}, malformed("this resource is only read: the payload must be empty (RFC 8555 §6.3)")
	}
	return req, nil
}

// keyRequest reads a request signed by a key in its header.
func (s *Server) keyRequest(r *http.Request) (request, error) {
	m, err := s.readMessage(r)
	if err != nil {
		return request{}, err
	}
	if m.key == nil {
		return request{}, malformed(`this request must be signed by the key in its header: "jwk", not "kid" (RFC 8555 §6.2)`)
	}
	return s.verifyByKey(r, m)
}

// eitherRequest reads a request signed in either way (RFC 8555 §7.6).
func (s *Server) eitherRequest(r *http.Request) (request, error) {
	m, err := s.readMessage(r)
	if err != nil {
		return request{}, err
	}
	if m.key != nil {
		return s.verifyByKey(r, m)
	}
	return s.verifyByAccount(r, m)
}

func (s *Server) readMessage(r *http.Request) (*message, error) {
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || t != "application/jose+json" {
		return nil, &Problem{Type: Malformed, Status: http.StatusUnsupportedMediaType, Detail: "the Content-Type must be application/jose+json"}
	}
	b, err := io.ReadAll(r.Body)
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, &Problem{Type: Malformed, Status: http.StatusRequestEntityTooLarge, Detail: fmt.Sprintf("the request body is larger than %d octets", s.cfg.MaxBody)}
	}
	if err != nil {
		return nil, &Problem{Type: Malformed, Detail: "the request body ended early", Err: err}
	}
	return parseMessage(b)
}

func (s *Server) verifyByAccount(r *http.Request, m *message) (request, error) {
	id, ok := strings.CutPrefix(m.kid, s.accountURL(""))
	if !ok || id == "" || strings.ContainsAny(id, "/?#") {
		return request{}, malformed(`"kid" is not the URL of an account of this server, which begins with ` + s.accountURL(""))
	}
	none := &Problem{Type: AccountDoesNotExist, Detail: `there is no account with the URL in "kid"`}
	if !isID(id) {
		return request{}, none
	}
	a, err := s.store.Account(r.Context(), id)
	if isNotFound(err) {
		return request{}, none
	}
	if err != nil {
		return request{}, err
	}
	key, err := accountKey(a)
	if err != nil {
		return request{}, err
	}
	req, err := s.verified(r, m, key)
	if err != nil {
		return request{}, err
	}
	peer.Annotate(r.Context(), "account", a.ID)
	req.account, req.thumbprint = a, a.Thumbprint
	return req, mustBeValid(a)
}

func (s *Server) verifyByKey(r *http.Request, m *message) (request, error) {
	req, err := s.verified(r, m, m.key)
	if err != nil {
		return request{}, err
	}
	if req.thumbprint, err = thumbprint(m.key); err != nil {
		return request{}, fmt.Errorf("computing thumbprint: %w", err)
	}
	return req, nil
}

// verified checks what binds the message to this very request. The nonce comes
// last: a stranger must not be able to spend one that he only saw.
func (s *Server) verified(r *http.Request, m *message, key *jose.JSONWebKey) (request, error) {
	payload, err := m.verify(key)
	if err != nil {
		return request{}, err
	}
	// RFC 8555 §6.4. The origin is configured: what the client, or a proxy,
	// says in Host or Forwarded has no part in it.
	if m.url != s.origin+r.URL.RequestURI() {
		return request{}, unauthorized(`the JWS's "url" is not the URL of this request, ` + s.origin + r.URL.RequestURI())
	}
	if err := s.nonces.redeem(m.nonce); err != nil {
		// acme.sh knows this error by these words.
		return request{}, &Problem{Type: BadNonce, Detail: "JWS has an invalid anti-replay nonce; try again with the one in this answer", Err: err}
	}
	return request{key: key, payload: payload}, nil
}

func accountKey(a Account) (*jose.JSONWebKey, error) {
	k, err := parseKey(a.Key)
	if err != nil {
		// Not wrapped: the problem inside is not the client's.
		return nil, errors.New("reading key of account " + a.ID + ": " + err.Error())
	}
	return k, nil
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

// pathID is the id in the path.
func pathID(r *http.Request) (string, error) {
	id := pathValue(r, "id")
	if !isID(id) {
		return "", notHere()
	}
	return id, nil
}

// ownOrder finds the order in the path, if it is the account's.
func (s *Server) ownOrder(r *http.Request, req request) (Order, error) {
	id, err := pathID(r)
	if err != nil {
		return Order{}, err
	}
	o, err := s.readOrder(r.Context(), id)
	if err != nil {
		return Order{}, err
	}
	if o.AccountID != req.account.ID {
		return Order{}, notHere()
	}
	return o, nil
}

func (s *Server) readOrder(ctx context.Context, id string) (Order, error) {
	o, err := s.store.Order(ctx, id)
	if err != nil {
		return Order{}, err
	}
	return o.At(s.now()), nil
}

func (s *Server) ownAuthorization(r *http.Request, req request) (Authorization, error) {
	id, err := pathID(r)
	if err != nil {
		return Authorization{}, err
	}
	a, err := s.readAuthorization(r.Context(), id)
	if err != nil {
		return Authorization{}, err
	}
	if a.AccountID != req.account.ID {
		return Authorization{}, notHere()
	}
	return a, nil
}

func (s *Server) readAuthorization(ctx context.Context, id string) (Authorization, error) {
	a, err := s.store.Authorization(ctx, id)
	if err != nil {
		return Authorization{}, err
	}
	return a.At(s.now()), nil
}
