package acme

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"hash"
	"net/http"
	"time"
)

// A BindingMode says whether new accounts are bound to accounts elsewhere, by
// keys that the operator hands out (RFC 8555 §7.3.4).
type BindingMode string

// The binding modes.
const (
	BindingOff      BindingMode = "" // a binding is left aside, like any member that is not known
	BindingOptional BindingMode = "optional"
	BindingRequired BindingMode = "required"
)

// A BindingKey binds new accounts to an account elsewhere.
type BindingKey struct {
	KID       string
	MAC       []byte // empty once it binds nobody any more
	Scope     Scope  // what the accounts may order
	Expires   time.Time
	MaxUses   int // 0: any number
	Uses      int
	RevokedAt time.Time
}

// usable says why the key binds nobody now, for our log.
func (k BindingKey) usable(now time.Time) error {
	switch {
	case !k.RevokedAt.IsZero():
		return errors.New("the key is revoked")
	case !k.Expires.IsZero() && !now.Before(k.Expires):
		return errors.New("the key has expired")
	case k.MaxUses > 0 && k.Uses >= k.MaxUses:
		return errors.New("the key is used up")
	}
	return nil
}

// ErrBindingSpent says that the key of an account's binding is revoked, has
// expired or is used up, maybe since it was read.
var ErrBindingSpent = errors.New("acme: the external account's key binds nobody any more")

// Bindings keeps the keys of external accounts.
type Bindings interface {
	// BindingKey returns ErrNotFound for a key that this directory does not have.
	BindingKey(ctx context.Context, kid string) (BindingKey, error)
}

// macs are the algorithms of a binding: RFC 8555 §7.3.4 wants a MAC.
var macs = map[string]func() hash.Hash{"HS256": sha256.New, "HS384": sha512.New384, "HS512": sha512.New}

const (
	minMACKey = 32 // octets: RFC 7518 §3.2 wants as many as the hash has
	// decoyMACSize is that of our own keys.
	decoyMACSize = 64
)

// A binding is the inner JWS of a newAccount request, whose form is right and
// whose MAC is yet to be verified.
type binding struct {
	kid   string
	alg   string
	input []byte // what the MAC is over
	mac   []byte
}

// parseBinding reads the inner JWS and holds it against the outer one: url and
// the thumbprint of its key. Nothing of this depends on a secret, so the client
// may hear what is wrong.
func parseBinding(b []byte, url, outer string) (*binding, error) {
	bad := func(what string) error { return malformed("externalAccountBinding: " + what) }
	m, err := members(b)
	if err != nil {
		return nil, bad("it is not a JWS in flattened JSON serialization: " + err.Error())
	}
	for _, name := range []string{"header", "signatures"} {
		if _, ok := m[name]; ok {
			return nil, bad("a JWS here has no member \"" + name + "\"")
		}
	}
	var part [3]string
	var raw [3][]byte
	for i, name := range []string{"protected", "payload", "signature"} {
		if err := stringMember(m, name, &part[i]); err != nil {
			return nil, bad("member \"" + name + "\" of the JWS is missing or not a string")
		}
		if raw[i], err = decodeBase64(part[i]); err != nil {
			return nil, bad("member \"" + name + "\" of the JWS is not base64url without padding")
		}
	}
	out := &binding{input: []byte(part[0] + "." + part[1]), mac: raw[2]}
	if err := out.readHeader(raw[0], url, bad); err != nil {
		return nil, err
	}
	key, err := parseKey(raw[1])
	if err != nil {
		return nil, bad("the payload must be the account's public key as a JWK")
	}
	if tp, err := thumbprint(key); err != nil || tp != outer {
		return nil, bad("the payload is not the key that the request is signed by")
	}
	return out, nil
}

// readHeader reads the protected header, which has exactly alg, kid and url to say.
func (b *binding) readHeader(raw []byte, url string, bad func(string) error) error {
	h, err := members(raw)
	if err != nil {
		return bad("the protected header is not a JSON object: " + err.Error())
	}
	for _, name := range []string{"nonce", "jwk", "crit", "b64"} {
		if _, ok := h[name]; ok {
			return bad("the protected header must not have \"" + name + "\"")
		}
	}
	var at string
	for name, to := range map[string]*string{"alg": &b.alg, "kid": &b.kid, "url": &at} {
		if err := stringMember(h, name, to); err != nil {
			return bad("\"" + name + "\" of the protected header is missing or not a string")
		}
	}
	size, ok := macs[b.alg]
	switch {
	case !ok:
		return bad(`"alg" must be HS256, HS384 or HS512`)
	case at != url:
		return bad(`"url" must be that of the request around it, ` + url)
	case len(b.mac) != size().Size():
		return bad("the MAC does not have the length of one by " + b.alg)
	}
	return nil
}

// holds verifies the MAC. A key that is too short for the algorithm makes none
// (RFC 7518 §3.2), but takes the same work.
func (b *binding) holds(key []byte) bool {
	h := hmac.New(macs[b.alg], key)
	_, _ = h.Write(b.input) // a hash takes all
	return hmac.Equal(h.Sum(nil), b.mac) && len(key) >= max(minMACKey, h.Size())
}

// bind checks the binding of a new account and writes it into a. The key is
// used when the account is created, in the same transaction.
func (s *Server) bind(r *http.Request, t terms, req request, body newAccountBody, a *Account) error {
	if s.cfg.Binding == BindingOff {
		return nil
	}
	if len(body.Binding) == 0 || string(body.Binding) == "null" {
		if s.cfg.Binding == BindingRequired {
			return &Problem{Type: ExternalAccountRequired, Detail: "new accounts here are bound to an account of yours elsewhere: give your client the key id and the HMAC key that the operator of this server has for you (RFC 8555 §7.3.4)"}
		}
		return nil
	}
	b, err := parseBinding(body.Binding, s.origin+r.URL.RequestURI(), req.thumbprint)
	if err != nil {
		return err
	}
	key, err := s.bindingKey(r.Context(), b)
	if err != nil {
		return err
	}
	// A key that is there and one that is not take the same work and get the
	// same answer, whatever is wrong with it: nobody learns which ones there are.
	mac := key.MAC
	if len(mac) == 0 {
		mac = s.decoyMAC[:]
	}
	held, why := b.holds(mac), key.usable(a.CreatedAt)
	switch {
	case len(key.MAC) == 0 && why == nil:
		why = errors.New("there is no such key")
	case !held && why == nil:
		why = errors.New("the MAC is wrong")
	}
	if why != nil {
		s.failedProof(r, t)
		return notBound(why)
	}
	a.EAB, a.Scope = key.KID, key.Scope
	return nil
}

func (s *Server) bindingKey(ctx context.Context, b *binding) (BindingKey, error) {
	if !isID(b.kid) {
		return BindingKey{}, nil
	}
	k, err := s.store.BindingKey(ctx, b.kid)
	if isNotFound(err) {
		return BindingKey{}, nil
	}
	return k, err
}

func notBound(why error) *Problem {
	return &Problem{
		Type: Unauthorized, Err: why,
		Detail: "externalAccountBinding: this key id with this MAC binds no account here: one of the two is wrong, or the key was used, has expired or was revoked",
	}
}

// newDecoyMAC is a key of nobody.
func newDecoyMAC() (k [decoyMACSize]byte) {
	_, _ = rand.Read(k[:]) // never fails
	return k
}
