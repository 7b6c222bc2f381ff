package acme_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
)

// A client speaks ACME by hand, so that a test can send anything.
type client struct {
	t     *testing.T
	w     *world
	key   crypto.Signer
	kid   string
	nonce string
	more  http.Header // sent along with every request
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func jwkOf(pub crypto.PublicKey) map[string]any {
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		size := (k.Curve.Params().BitSize + 7) / 8
		point, _ := k.Bytes()
		return map[string]any{"kty": "EC", "crv": k.Curve.Params().Name, "x": b64(point[1 : 1+size]), "y": b64(point[1+size:])}
	case *rsa.PublicKey:
		return map[string]any{"kty": "RSA", "n": b64(k.N.Bytes()), "e": "AQAB"}
	case ed25519.PublicKey:
		return map[string]any{"kty": "OKP", "crv": "Ed25519", "x": b64(k)}
	}
	return nil
}

func algOf(key crypto.Signer) string {
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		return map[int]string{256: "ES256", 384: "ES384", 521: "ES512"}[k.Curve.Params().BitSize]
	case ed25519.PrivateKey:
		return "EdDSA"
	}
	return "RS256"
}

// sign makes a JWS signature the way RFC 7518 wants it.
func sign(t testing.TB, key crypto.Signer, input string) []byte {
	t.Helper()
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		var digest []byte
		switch k.Curve.Params().BitSize {
		case 256:
			d := sha256.Sum256([]byte(input))
			digest = d[:]
		case 384:
			d := sha512.Sum384([]byte(input))
			digest = d[:]
		default:
			d := sha512.Sum512([]byte(input))
			digest = d[:]
		}
		r, s, err := ecdsa.Sign(rand.Reader, k, digest)
		if err != nil {
			t.Fatal(err)
		}
		size := (k.Curve.Params().BitSize + 7) / 8
		out := make([]byte, 2*size)
		r.FillBytes(out[:size])
		s.FillBytes(out[size:])
		return out
	case ed25519.PrivateKey:
		return ed25519.Sign(k, []byte(input))
	case *rsa.PrivateKey:
		d := sha256.Sum256([]byte(input))
		out, err := rsa.SignPKCS1v15(nil, k, crypto.SHA256, d[:])
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	t.Fatal("unknown key")
	return nil
}

// jws makes a flattened JWS. payload is sent as it is if it is a string or
// bytes, and as JSON otherwise.
func jws(t testing.TB, key crypto.Signer, header map[string]any, payload any) map[string]any {
	t.Helper()
	h, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	var body []byte
	switch p := payload.(type) {
	case string:
		body = []byte(p)
	case []byte:
		body = p
	default:
		if body, err = json.Marshal(payload); err != nil {
			t.Fatal(err)
		}
	}
	protected, encoded := b64(h), b64(body)
	return map[string]any{"protected": protected, "payload": encoded, "signature": b64(sign(t, key, protected+"."+encoded))}
}

type reply struct {
	t      *testing.T
	status int
	header http.Header
	body   []byte
	json   map[string]any
}

func (c *client) do(method, url, contentType string, body []byte) *reply {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	maps.Copy(req.Header, c.more)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.w.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	r := &reply{t: c.t, status: resp.StatusCode, header: resp.Header, body: b}
	if method != http.MethodHead && strings.HasSuffix(resp.Header.Get("Content-Type"), "json") {
		if err := json.Unmarshal(b, &r.json); err != nil {
			c.t.Fatalf("%s: %v", b, err)
		}
	}
	if n := resp.Header.Get("Replay-Nonce"); n != "" {
		c.nonce = n
	}
	return r
}

func (c *client) takeNonce() string {
	c.t.Helper()
	if c.nonce == "" {
		c.do(http.MethodHead, c.w.url("new-nonce"), "", nil)
	}
	n := c.nonce
	c.nonce = ""
	return n
}

// header is a right protected header for url; more replaces members, nil removes.
func (c *client) header(url string, more map[string]any) map[string]any {
	c.t.Helper()
	h := map[string]any{"alg": algOf(c.key), "nonce": c.takeNonce(), "url": url}
	if c.kid != "" {
		h["kid"] = c.kid
	} else {
		h["jwk"] = jwkOf(c.key.Public())
	}
	maps.Copy(h, more)
	maps.DeleteFunc(h, func(_ string, v any) bool { return v == nil })
	return h
}

func (c *client) send(url string, message any) *reply {
	c.t.Helper()
	b, ok := message.([]byte)
	if !ok {
		var err error
		if b, err = json.Marshal(message); err != nil {
			c.t.Fatal(err)
		}
	}
	return c.do(http.MethodPost, url, "application/jose+json", b)
}

// post sends a right request.
func (c *client) post(url string, payload any) *reply {
	c.t.Helper()
	return c.send(url, jws(c.t, c.key, c.header(url, nil), payload))
}

// get is POST-as-GET.
func (c *client) get(url string) *reply {
	c.t.Helper()
	return c.post(url, "")
}

func (r *reply) want(status int) *reply {
	r.t.Helper()
	if r.status != status {
		r.t.Fatalf("status %d; want %d: %s", r.status, status, r.body)
	}
	return r
}

// problem wants an error, with all that every error has.
func (r *reply) problem(status int, typ string) *reply {
	r.t.Helper()
	r.want(status)
	if got := r.header["Content-Type"]; len(got) != 1 || got[0] != "application/problem+json" {
		r.t.Errorf("Content-Type is %q", got)
	}
	if got := r.str("type"); got != "urn:ietf:params:acme:error:"+typ {
		r.t.Fatalf("type %q; want %s: %s", got, typ, r.body)
	}
	if got, _ := r.json["status"].(float64); int(got) != status {
		r.t.Errorf("status in the problem is %v; want %d", r.json["status"], status)
	}
	if r.str("detail") == "" {
		r.t.Errorf("no detail: %s", r.body)
	}
	if r.header.Get("Replay-Nonce") == "" || !strings.Contains(r.header.Get("Link"), `rel="index"`) {
		r.t.Errorf("an error without nonce or link to the directory: %v", r.header)
	}
	return r
}

func (r *reply) str(name string) string {
	s, _ := r.json[name].(string)
	return s
}

func (r *reply) strs(name string) (out []string) {
	l, _ := r.json[name].([]any)
	for _, v := range l {
		s, _ := v.(string)
		out = append(out, s)
	}
	return out
}

func (r *reply) location() string { return r.header.Get("Location") }

func mustDecode(t testing.TB, s string) []byte {
	t.Helper()
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// thumbprintOf computes RFC 7638 by hand, for a P-256 key.
func thumbprintOf(t testing.TB, pub crypto.PublicKey) string {
	t.Helper()
	j := jwkOf(pub)
	d := sha256.Sum256([]byte(`{"crv":"P-256","kty":"EC","x":"` + j["x"].(string) + `","y":"` + j["y"].(string) + `"}`))
	return b64(d[:])
}
