package acme

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
)

const seedJWS = `{"protected":"eyJhbGciOiJFUzI1NiIsImp3ayI6eyJrdHkiOiJFQyIsImNydiI6IlAtMjU2IiwieCI6IkN1QmpURXZFZUFfS3JsRFJ3NVN2NVRXbDhiR3ROSnRGckRuSkVoYmx1bDgiLCJ5IjoiNUVDRkhRUXIySE1EVGtSWXFQWi1kcE5pSEFXTEpxT3E4dnVXRmdXS0ZLTSJ9LCJub25jZSI6IngiLCJ1cmwiOiJodHRwczovL2NhLmV4YW1wbGUvYWNtZS9uZXctYWNjb3VudCJ9","payload":"e30","signature":"AAAA"}`

// Whatever is sent: a problem or a message whose parts are as required, no panic.
func FuzzParseMessage(f *testing.F) {
	for _, s := range []string{
		"", "null", "{}", "[]", `{"protected":1}`, seedJWS,
		`{"protected":"eyJhbGciOiJub25lIn0","payload":"","signature":""}`,
		`{"protected":"eyJhbGciOiJSUzI1NiIsImtpZCI6IngiLCJ1cmwiOiJ5In0","payload":"","signature":""}`,
		`{"protected":"e30","protected":"e30"}`, strings.Repeat("[", 1000),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMessage(b)
		if err != nil {
			p, ok := errors.AsType[*Problem](err)
			if !ok || p.status() != http.StatusBadRequest || p.Detail == "" {
				t.Fatalf("not a problem of the client's: %v", err)
			}
			return
		}
		if !slices.Contains(algorithms, m.alg) || (m.key != nil && m.kid != "") {
			t.Fatalf("message %+v", m)
		}
		if m.key != nil {
			if !m.key.IsPublic() {
				t.Fatal("a private key came through")
			}
			if err := checkAlgorithm(m.alg, m.key.Key); err != nil {
				t.Fatal(err)
			}
			_, _ = m.verify(m.key)
		}
	})
}

// What members lets through, encoding/json reads to the same members.
func FuzzMembers(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":1,"a":2}`, `{"a":{"b":[1]}} `, `{"a"`, `{} {}`, `{"\u0061":1,"a":2}`, `{"a":1}]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := members(b)
		if err != nil {
			return
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		if len(m) != len(want) {
			t.Fatalf("%q: %d members; want %d", b, len(m), len(want))
		}
	})
}

// A signature holds for us if and only if it does for go-jose, whatever octets it
// or what it is over has.
func FuzzVerifyAsGoJose(f *testing.F) {
	keys := map[jose.SignatureAlgorithm]crypto.Signer{}
	for alg, c := range map[jose.SignatureAlgorithm]elliptic.Curve{jose.ES256: elliptic.P256(), jose.ES384: elliptic.P384(), jose.ES512: elliptic.P521()} {
		k, err := ecdsa.GenerateKey(c, rand.Reader)
		if err != nil {
			f.Fatal(err)
		}
		keys[alg] = k
	}
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		f.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(nil)
	if err != nil {
		f.Fatal(err)
	}
	keys[jose.RS256], keys[jose.EdDSA] = r, ed
	for i := range 2 * len(algorithms) {
		f.Add(uint8(i), []byte("{}"), uint16(0), byte(0), uint8(0))
		f.Add(uint8(i), []byte(""), uint16(i), byte(1), uint8(0))
		f.Add(uint8(i), []byte("x"), uint16(31), byte(0x80), uint8(1))
		f.Add(uint8(i), []byte("x"), uint16(33), byte(0), uint8(3))
	}
	f.Fuzz(func(t *testing.T, n uint8, payload []byte, at uint16, flip byte, cut uint8) {
		alg := algorithms[int(n)%len(algorithms)]
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: keys[alg]}, (&jose.SignerOptions{}).WithHeader("kid", "k").WithHeader("url", "u"))
		if err != nil {
			t.Fatal(err)
		}
		signed, err := signer.Sign(payload)
		if err != nil {
			t.Fatal(err)
		}
		var text map[string]string
		if err := json.Unmarshal([]byte(signed.FullSerialize()), &text); err != nil {
			t.Fatal(err)
		}
		sig := signed.Signatures[0].Signature
		sig[int(at)%len(sig)] ^= flip
		sig = sig[:len(sig)-int(cut)%len(sig)]
		text["signature"] = b64url(sig)
		raw, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		m, err := parseMessage(raw)
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.verify(&jose.JSONWebKey{Key: keys[alg].Public()})
		theirs, joseErr := jose.ParseSignedJSON(string(raw), algorithms)
		if joseErr == nil {
			_, joseErr = theirs.Verify(keys[alg].Public())
		}
		if (err == nil) != (joseErr == nil) {
			t.Fatalf("%s: %v; go-jose: %v", alg, err, joseErr)
		}
		if err == nil && !bytes.Equal(got, payload) {
			t.Fatalf("%s: payload %q", alg, got)
		}
	})
}

func FuzzContact(f *testing.F) {
	for _, s := range []string{"mailto:a@example.com", "mailto:", "MAILTO:x@y.zz", "mailto:a@b@c.de", "tel:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if checkContact(s) != nil {
			return
		}
		if !strings.EqualFold(s[:7], "mailto:") || strings.ContainsAny(s, " ,?%\r\n\x00") || strings.Count(s, "@") < 1 || len(s) > maxContactLength {
			t.Errorf("%q was accepted", s)
		}
	})
}

func TestRefusalsBecomeProblems(t *testing.T) {
	t.Parallel()
	name := &ca.Identifier{Type: ca.DNS, Value: "a.example"}
	for _, row := range []struct {
		err    error
		typ    ProblemType
		status int
	}{
		{&ca.Refusal{Code: ca.BadCSR}, BadCSR, 400},
		{&ca.Refusal{Code: ca.BadPublicKey}, BadPublicKey, 400},
		{&ca.Refusal{Code: ca.RejectedIdentifier, Identifier: name}, RejectedIdentifier, 400},
		{&ca.Refusal{Code: ca.Unsupported}, UnsupportedIdentifier, 400},
		{&ca.Refusal{Code: ca.BadValidity}, Malformed, 400},
		{&ca.Refusal{Code: ca.UnknownProfile}, InvalidProfile, 400},
		{&ca.Refusal{Code: ca.BadReason}, BadRevocationReason, 400},
		{&ca.Refusal{Code: ca.Busy, RetryAfter: time.Second}, RateLimited, 503},
		{&ca.Refusal{Code: ca.Forbidden}, Unauthorized, 403},
		{&ca.Refusal{Code: "new"}, ServerInternal, 500},
		{&ca.Refusal{Code: ca.RejectedIdentifier, Identifier: name, Others: []*ca.Refusal{{Code: ca.Unsupported, Identifier: name}}}, Compound, 400},
		{ErrNotFound, Malformed, 404},
		{ErrMoved, Malformed, 409},
		{ca.ErrAlreadyRevoked, AlreadyRevoked, 400},
		{errors.New("secret"), ServerInternal, 500},
	} {
		p := translate(row.err)
		if p.Type != row.typ || p.status() != row.status || strings.Contains(p.Detail, "secret") {
			t.Errorf("%v: %s %d %q; want %s %d", row.err, p.Type, p.status(), p.Detail, row.typ, row.status)
		}
		if p.Identifier != nil {
			t.Errorf("%v: an identifier at the top", row.err)
		}
	}
}

func TestOnlyRefusalsAreFinal(t *testing.T) {
	t.Parallel()
	s := &Server{cfg: Config{MaxIssueAttempts: 3, Clock: time.Now}}
	for _, row := range []struct {
		attempts int
		err      error
		final    bool
	}{
		{0, &ca.Refusal{Code: ca.BadCSR}, true},
		{100, &ca.Refusal{Code: ca.Busy}, false},
		{100, keys.ErrBusy, false},
		{0, errors.New("broken"), false},
		{2, errors.New("broken"), true},
	} {
		v := s.verdict(Order{Attempts: row.attempts}, row.err)
		if (v.Failed != nil) != row.final {
			t.Errorf("%v after %d attempts: %+v", row.err, row.attempts, v)
		}
	}
}

func TestRetryAfterIsWholeSecondsWithinBounds(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{0: "1", time.Millisecond: "1", 1500 * time.Millisecond: "2", time.Hour: "600"} {
		if got := seconds(d); got != want {
			t.Errorf("%s: %s; want %s", d, got, want)
		}
	}
}
