package acme_test

import (
	"crypto"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// An account is remembered, and may change on another replica all the same: what
// counts is how it stands when something is done for it.
func TestARememberedAccountCountsAsItIsNow(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(w *world, a acme.Account) error{
		"its key changed": func(w *world, a acme.Account) error {
			return w.store.ChangeKey(t.Context(), a.ID, a.Thumbprint, canonical(t, newKey(t)), "another", audit.New("t", "t", "t", nil))
		},
		"it ended": func(w *world, a acme.Account) error {
			return w.store.DeactivateAccount(t.Context(), a.ID, acme.Closing{}, audit.New("t", "t", "t", nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c := w.client()
			_, done := c.ready("a.example.com")
			csr := csrBody(catest.CSR(t, newKey(t), "a.example.com"))
			cert := c.post(done.str("finalize"), csr).want(200).str("certificate")
			u, ready := c.ready("b.example.com")
			csr = csrBody(catest.CSR(t, newKey(t), "b.example.com"))
			_, open := c.order("c.example.com")
			authz := open.strs("authorizations")[0]
			ch := c.challengeURL(authz, "http-01")
			a, err := w.store.Account(t.Context(), c.kid[len(w.url("account/")):])
			if err != nil {
				t.Fatal(err)
			}
			if err := change(w, a); err != nil {
				t.Fatal(err)
			}
			for url, payload := range map[string]any{
				c.kid: "", c.kid + "/orders": "", u: "", authz: "", cert: "", ch: map[string]any{}, ready.str("finalize"): csr,
				w.url("new-order"): dns("d.example.com"), w.url("order/" + audit.NewID()): "", w.url("cert/" + audit.NewID()): "",
			} {
				// Wrong signature, or an account that is no more: the one or the other for all.
				switch r := c.post(url, payload); name {
				case "it ended":
					r.problem(403, "unauthorized")
				default:
					r.problem(400, "malformed")
				}
			}
			if n := w.validator.seen("c.example.com"); n != 0 {
				t.Errorf("%d validations for it", n)
			}
			if n := w.certificates("issued"); n != 1 {
				t.Errorf("%d certificates; want the one from before", n)
			}
		})
	}
}

// A key that was changed on another replica is good here at once.
func TestANewKeySignsForARememberedAccount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	u, _ := c.order("a.example.com")
	c.get(u).want(200)
	a, err := w.store.Account(t.Context(), c.kid[len(w.url("account/")):])
	if err != nil {
		t.Fatal(err)
	}
	d := *c
	d.key = newKey(t)
	if err := w.store.ChangeKey(t.Context(), a.ID, a.Thumbprint, canonical(t, d.key), thumbprintOf(t, d.key.Public()), audit.New("t", "t", "t", nil)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d.get(u).want(200)
	}
	c.nonce = ""
	c.get(u).problem(400, "malformed")
}

// Whoever starts a validation hears how it ended, and need not ask again.
func TestAChallengeIsAnsweredWithItsOutcome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.validator.fail("bad.example.com", &acme.Problem{Type: acme.Connection, Detail: "nobody is there"})
	c := w.client()
	for name, want := range map[string]string{"good.example.com": "valid", "bad.example.com": "invalid"} {
		_, r := c.order(name)
		authz := r.strs("authorizations")[0]
		ch := c.challengeURL(authz, "http-01")
		got := c.post(ch, map[string]any{}).want(200)
		if got.str("status") != want || got.header.Get("Retry-After") != "" {
			t.Errorf("%s: %v %s", name, got.header, got.body)
		}
		if later := c.get(ch).want(200); string(later.body) != string(got.body) {
			t.Errorf("%s was answered, later\n%s", got.body, later.body)
		}
	}
}

// It waits no longer than it would be told to.
func TestAChallengeThatTakesLongIsProcessing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := limitedWorld(t, ratelimit.Config{})
		c := w.client()
		held := w.validator.holdBack("a.example.com")
		_, r := c.order("a.example.com")
		authz := r.strs("authorizations")[0]
		ch := c.challengeURL(authz, "http-01")
		began := time.Now()
		first := c.post(ch, map[string]any{}).want(200)
		if first.str("status") != "processing" || first.header.Get("Retry-After") != "1" || time.Since(began) != time.Second {
			t.Errorf("after %s: %v %s", time.Since(began), first.header, first.body)
		}
		began = time.Now()
		if again := c.post(ch, map[string]any{}).want(200).str("status"); again != "processing" || time.Since(began) != 0 {
			t.Errorf("challenge is %s after %s", again, time.Since(began))
		}
		close(held.released)
		c.await(authz, "valid")
		w.stop()
	})
}

// canonical is the JWK of a key as accounts have it.
func canonical(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	b, err := json.Marshal(jwkOf(key.Public()))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
