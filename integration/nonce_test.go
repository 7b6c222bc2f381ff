package integration

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	jose "github.com/go-jose/go-jose/v4"
)

// A rawClient signs what it is told, with the nonce it is told.
type rawClient struct {
	t    *testing.T
	s    *server
	http *http.Client
	key  crypto.Signer
}

func newRawClient(t *testing.T, s *server) *rawClient {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &rawClient{t, s, s.client(t), key}
}

func (c *rawClient) url(path string) string {
	return c.s.env["ACME_DIRECTORY"][:len(c.s.env["ACME_DIRECTORY"])-len("directory")] + path
}

func (c *rawClient) newNonce() string {
	c.t.Helper()
	res, err := c.http.Head(c.url("new-nonce"))
	if err != nil {
		c.t.Fatal(err)
	}
	_ = res.Body.Close()
	return res.Header.Get("Replay-Nonce")
}

// post sends a request signed by the key in its header, and returns the status,
// the problem's type if there is one, and the new nonce.
func (c *rawClient) post(path, nonce string, payload any) (status int, problem, next string) {
	c.t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: c.key}, (&jose.SignerOptions{EmbedJWK: true}).
		WithHeader("url", c.url(path)).WithHeader("nonce", nonce))
	if err != nil {
		c.t.Fatal(err)
	}
	b, err := json.Marshal(payload)
	if err != nil {
		c.t.Fatal(err)
	}
	signed, err := signer.Sign(b)
	if err != nil {
		c.t.Fatal(err)
	}
	res, err := c.http.Post(c.url(path), "application/jose+json", bytes.NewReader([]byte(signed.FullSerialize())))
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	var p struct{ Type string }
	_ = json.Unmarshal(body, &p) // an account has none
	return res.StatusCode, p.Type, res.Header.Get("Replay-Nonce")
}

// A graceful restart drops no nonce: one that was out is good once, before it or
// after it. A crash may drop them, and then the answer has a new one.
func TestNoncesOutliveAGracefulRestart(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]func(testing.TB) string{"sqlite": func(testing.TB) string { return "" }, "postgres": startPostgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startQuickstart(t, quickstart{dns: startDNS(t), postgres: url(t)})
			c := newRawClient(t, s)
			account := map[string]any{"termsOfServiceAgreed": true}
			want := func(what, nonce string, status int, problem string) string {
				t.Helper()
				got, typ, next := c.post("new-account", nonce, account)
				if got != status || typ != problem {
					t.Fatalf("%s: %d %s; want %d %s", what, got, typ, status, problem)
				}
				if next == "" {
					t.Fatalf("%s: no nonce in the answer", what)
				}
				return next
			}
			const bad = "urn:ietf:params:acme:error:badNonce"
			used, early, fromAnswer := c.newNonce(), c.newNonce(), ""
			fromAnswer = want("new account", used, 201, "")

			s.stop()
			s.start(t)
			want("used before the restart", used, 400, bad)
			want("given out before the restart", early, 200, "")
			want("given out with an answer before the restart", fromAnswer, 200, "")
			want("used after the restart", early, 400, bad)
			middle := c.newNonce()

			s.stop()
			s.start(t)
			want("used one restart before", early, 400, bad)
			want("used two restarts before", used, 400, bad)
			want("given out between two restarts", middle, 200, "")

			late := c.newNonce()
			s.kill()
			s.start(t)
			fresh := want("given out before a crash", late, 400, bad)
			want("used before a crash", middle, 400, bad)
			want("from the answer to a bad one", fresh, 200, "")
		})
	}
}
