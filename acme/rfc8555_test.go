package acme_test

import (
	"bytes"
	"encoding/pem"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca/catest"
)

// These hold demands of RFC 8555 that no other test is about.

// RFC 8555 §7.3, §7.3.2: what an account may not say of itself, and what nobody
// knows, is ignored and not said back.
func TestWhatAnAccountMayNotSetIsIgnored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.stranger()
	more := map[string]any{
		"termsOfServiceAgreed": true, "onlyReturnExisting": false, "orders": "https://evil.example/", "status": "revoked", "x-unknown": "evil",
		"contact": []string{"mailto:a@example.com"},
	}
	r := c.post(w.url("new-account"), more).want(201)
	c.kid = r.location()
	for what, got := range map[string]*reply{
		"newAccount": r, "update": c.post(c.kid, merge(more, map[string]any{"termsOfServiceAgreed": false})).want(200), "read": c.get(c.kid).want(200),
	} {
		if got.str("status") != "valid" || got.str("orders") != c.kid+"/orders" || got.json["termsOfServiceAgreed"] != true {
			t.Errorf("%s: %s", what, got.body)
		}
		if bytes.Contains(got.body, []byte("evil")) || bytes.Contains(got.body, []byte("onlyReturnExisting")) {
			t.Errorf("%s says what it should not: %s", what, got.body)
		}
	}
	// §7.3.1: nothing of the request counts if the account is there already.
	again := &client{t: t, w: w, key: c.key}
	if got := again.post(w.url("new-account"), map[string]any{"contact": []string{"mailto:b@example.com"}}).want(200); !slices.Equal(got.strs("contact"), []string{"mailto:a@example.com"}) {
		t.Errorf("contacts are %q", got.strs("contact"))
	}
}

func merge(a, b map[string]any) map[string]any {
	out := map[string]any{}
	for _, m := range []map[string]any{a, b} {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}

// RFC 8555 §7.1.3, §7.1.4: what is required of an order and of an authorization
// is there in every state, and no array changes.
func TestObjectsHaveWhatIsRequiredInEveryState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	order := func(u, status string) *reply {
		t.Helper()
		r := c.get(u).want(200)
		if r.str("status") != status {
			t.Fatalf("the order is %s; want %s", r.str("status"), status)
		}
		if _, err := time.Parse(time.RFC3339, r.str("expires")); err != nil {
			t.Errorf("%s order: %v", status, err)
		}
		if len(r.strs("authorizations")) != 2 || r.str("finalize") == "" || !slices.Equal(identifiers(r.json["identifiers"]), []string{"*.a.example.com", "a.example.com"}) {
			t.Errorf("%s order: %s", status, r.body)
		}
		if (r.str("certificate") != "") != (status == "valid") {
			t.Errorf("%s order: %s", status, r.body)
		}
		return r
	}
	u, made := c.order("a.example.com", "*.a.example.com")
	order(u, "pending")
	for _, a := range made.strs("authorizations") {
		z := c.get(a).want(200)
		if _, err := time.Parse(time.RFC3339, z.str("expires")); err != nil {
			t.Error(err)
		}
		if _, wild := z.json["wildcard"]; wild && z.json["wildcard"] != true {
			t.Errorf("wildcard is there and not true: %s", z.body)
		}
		valid := c.prove(a, "dns-01")
		ch := valid.json["challenges"].([]any)[0].(map[string]any)
		at, _ := ch["validated"].(string)
		if _, err := time.Parse(time.RFC3339, at); err != nil || valid.str("expires") == "" {
			t.Errorf("valid authorization: %s", valid.body)
		}
	}
	ready := order(u, "ready")
	c.post(ready.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com", "*.a.example.com"))).want(200)
	valid := order(u, "valid")
	if !slices.Equal(valid.strs("authorizations"), made.strs("authorizations")) {
		t.Errorf("authorizations were %q, and are %q", made.strs("authorizations"), valid.strs("authorizations"))
	}
}

// RFC 8555 §8: a challenge that failed says why, and only one that failed does.
func TestAFailedChallengeSaysWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	w.validator.fail("bad.example.com", &acme.Problem{Type: acme.Connection, Detail: "refused"})
	for name, status := range map[string]string{"bad.example.com": "invalid", "good.example.com": "valid"} {
		_, r := c.order(name)
		z := c.prove(r.strs("authorizations")[0], "http-01")
		ch := z.json["challenges"].([]any)[0].(map[string]any)
		problem, _ := ch["error"].(map[string]any)
		if ch["status"] != status || (problem != nil) != (status == "invalid") {
			t.Errorf("%s: %v", name, ch)
		}
		if problem != nil && problem["type"] != "urn:ietf:params:acme:error:connection" {
			t.Errorf("error is %v", problem)
		}
	}
}

// RFC 8555 §7.5.1: what a client says in answer to a challenge that has no
// response fields is ignored.
func TestFieldsOfAChallengeResponseAreIgnored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	_, r := c.order("a.example.com")
	a := r.strs("authorizations")[0]
	got := c.post(c.challengeURL(a, "http-01"), map[string]any{"status": "valid", "keyAuthorization": "x", "type": "dns-01"}).want(200)
	if got.str("type") != "http-01" || got.json["keyAuthorization"] != nil {
		t.Errorf("challenge: %s", got.body)
	}
	if n := c.await(a, "valid"); w.validator.seen("a.example.com") != 1 {
		t.Errorf("%d validations, %s", w.validator.seen("a.example.com"), n.body)
	}
}

// RFC 8555 §7.3.5: a change of key changes nothing else.
func TestAKeyChangeLeavesOrdersAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	pendingURL, pending := c.order("a.example.com")
	readyURL, ready := c.ready("b.example.com")
	next := newKey(t)
	url := w.url("key-change")
	c.post(url, jws(t, next, map[string]any{"alg": "ES256", "jwk": jwkOf(next.Public()), "url": url}, map[string]any{"account": c.kid, "oldKey": jwkOf(c.key.Public())})).want(200)
	c.key = next
	if got := c.get(pendingURL).str("status"); got != "pending" {
		t.Errorf("the pending order is %s", got)
	}
	if got := c.prove(pending.strs("authorizations")[0], "http-01").str("status"); got != "valid" {
		t.Errorf("its authorization is %s", got)
	}
	if got := c.get(readyURL).str("status"); got != "ready" {
		t.Errorf("the ready order is %s", got)
	}
	c.post(ready.str("finalize"), csrBody(catest.CSR(t, newKey(t), "b.example.com"))).want(200)
}

// RFC 8555 §7.3.6: deactivation ends orders, and no certificate.
func TestADeactivatedAccountKeepsItsCertificates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	cert, key := c.issue("a.example.com")
	c.post(c.kid, map[string]any{"status": "deactivated"}).want(200)
	if n := w.certificates("issued"); n != 1 {
		t.Fatalf("%d certificates", n)
	}
	// It is not revoked: whoever has its key can still do that, once.
	bare := &client{t: t, w: w, key: key}
	bare.post(w.url("revoke-cert"), map[string]any{"certificate": b64(cert.Raw)}).want(200)
	bare.post(w.url("revoke-cert"), map[string]any{"certificate": b64(cert.Raw)}).problem(400, "alreadyRevoked")
}

// RFC 8555 §9.1: strict PEM, end entity first, each certified by the next, nothing between.
func TestTheChainIsStrictPEM(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	_, r := c.ready("a.example.com")
	done := c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).want(200)
	chain := c.get(done.str("certificate")).want(200).body
	strict := regexp.MustCompile(`^(-----BEGIN CERTIFICATE-----\n([A-Za-z0-9+/]{64}\n)*[A-Za-z0-9+/]{1,64}={0,2}\n-----END CERTIFICATE-----\n)+$`)
	if !strict.Match(chain) {
		t.Errorf("the chain is not strict: %q", chain)
	}
	first, rest := pem.Decode(chain)
	second, _ := pem.Decode(rest)
	if first == nil || second == nil {
		t.Fatal("fewer than two certificates")
	}
	if err := leaf(t, chain).CheckSignatureFrom(leaf(t, rest)); err != nil {
		t.Error(err)
	}
	// The certificate is immutable: read again it is the same.
	if again := c.get(done.str("certificate")).want(200).body; !bytes.Equal(again, chain) {
		t.Error("another chain the second time")
	}
}

// RFC 8555 §6.7: the ACME namespace is for types of its registry alone.
func TestProblemTypesAreRegistered(t *testing.T) {
	registry := strings.Fields(`accountDoesNotExist alreadyRevoked badCSR badNonce badPublicKey badRevocationReason badSignatureAlgorithm caa compound
		connection dns externalAccountRequired incorrectResponse invalidContact malformed orderNotReady rateLimited rejectedIdentifier serverInternal tls
		unauthorized unsupportedContact unsupportedIdentifier userActionRequired
		alreadyReplaced invalidProfile badAttestationStatement`) // RFC 9773, and drafts that are to be registered
	onTheWire(t, func(t *testing.T, w *world, x *wire) {
		for _, r := range tour(t, w, x) {
			if r.status < 400 || r.method == "HEAD" {
				continue
			}
			m := regexp.MustCompile(`"type":"urn:ietf:params:acme:error:([A-Za-z]+)"`).FindSubmatch(r.body)
			if m == nil || !slices.Contains(registry, string(m[1])) {
				t.Errorf("%s: %s", r.what, r.body)
			}
		}
	})
}

// NeySlim/ultimate-ca-manager 191: whoever signs with a bare key has no account,
// and gets none by ordering.
func TestNoOrderWithoutAnAccount(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]func(*acme.Config){
		"open":  nil,
		"bound": {func(c *acme.Config) { c.Binding = acme.BindingRequired }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, options...)
			s := w.stranger()
			s.post(w.url("new-order"), dns("a.example.com")).problem(400, "malformed")
			s.post(w.url("new-account"), map[string]any{"onlyReturnExisting": true}).problem(400, "accountDoesNotExist")
		})
	}
}

// rmbolger/Posh-ACME 227.
func TestEveryChallengeHasAStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	w.validator.fail("bad.example.com", &acme.Problem{Type: acme.Connection, Detail: "refused"})
	for _, name := range []string{"good.example.com", "bad.example.com", "given-up.example.com"} {
		_, r := c.order(name)
		a := r.strs("authorizations")[0]
		states := challenges(c.get(a))
		u := c.challengeURL(a, "http-01")
		if name == "given-up.example.com" {
			c.post(a, map[string]any{"status": "deactivated"}).want(200)
		} else {
			c.prove(a, "http-01")
		}
		states = append(states, challenges(c.get(a))...)
		states = append(states, challengeState{"http-01", c.get(u).str("status")})
		for _, s := range states {
			if !slices.Contains([]string{"pending", "processing", "valid", "invalid"}, s.status) {
				t.Errorf("%s: %v", name, s)
			}
		}
	}
}
