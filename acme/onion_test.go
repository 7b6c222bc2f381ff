package acme_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
)

// An onion's word is its own, and asked for with each certificate.
func TestOnionServicesGetCertificates(t *testing.T) {
	t.Parallel()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	service := ca.OnionName(pub)
	w, caa := caaWorld(t, func(c *acme.Config) {
		c.Challenges, c.ReuseAuthorizations = []acme.ChallengeType{acme.HTTP01, acme.DNS01, acme.OnionCSR01}, true
	})
	c := w.client()
	if meta, _ := c.do("GET", w.url("directory"), "", nil).want(200).json["meta"].(map[string]any); meta["inBandOnionCAARequired"] != true {
		t.Errorf("meta is %v", meta)
	}
	names := []string{service, "*." + service}
	order, r := c.order(names...)
	for _, authz := range r.strs("authorizations") {
		list, _ := c.get(authz).want(200).json["challenges"].([]any)
		ch, _ := list[0].(map[string]any)
		nonce, _ := ch["nonce"].(string)
		raw, err := base64.StdEncoding.DecodeString(nonce)
		if _, token := ch["token"]; len(list) != 1 || token || err != nil || len(raw) < 8 {
			t.Fatalf("challenges %v", list)
		}
		c.post(c.challengeURL(authz, "onion-csr-01"), map[string]any{"csr": "AAAA"}).want(200)
		if got := c.await(authz, "valid", "invalid").str("status"); got != "valid" {
			t.Fatalf("authorization is %s", got)
		}
	}
	w.validator.mu.Lock()
	for _, q := range w.validator.calls {
		if string(q.Answer) != `{"csr":"AAAA"}` || time.Since(q.IssuedAt) > time.Minute {
			t.Errorf("validated with %q of %v", q.Answer, q.IssuedAt)
		}
	}
	w.validator.mu.Unlock()
	if asked := caa.taken(); len(asked) != 0 {
		t.Errorf("asked for %v before there was a word", asked)
	}

	finalize := c.get(order).want(200).str("finalize")
	csr := csrBody(catest.CSR(t, newKey(t), names...))
	caa.say(service, &acme.Problem{Type: acme.OnionCAARequired, Detail: "say it"})
	c.post(finalize, csr).problem(400, "onionCAARequired")
	caa.say(service, forbidden)
	csr["onionCAA"] = map[string]any{service: map[string]any{"caa": nil, "expiry": 1 << 40, "signature": "AA"}}
	c.post(finalize, csr).problem(403, "caa")
	if got := c.get(order).want(200).str("status"); got != "ready" {
		t.Fatalf("order is %s", got)
	}
	caa.taken()
	caa.say(service, nil)
	if got := c.post(finalize, csr).want(200).str("status"); got != "valid" {
		t.Fatalf("order is %s", got)
	}
	asked := caa.taken()
	if len(asked) != 2 {
		t.Fatalf("asked for %v", asked)
	}
	for _, q := range asked {
		if q.Onion == nil || q.Onion.CAA != nil || q.Onion.Expiry != 1<<40 || q.Onion.Signature != "AA" || q.Method != acme.OnionCSR01 {
			t.Errorf("asked with %+v", q)
		}
	}

	// The service's own key is no key of a certificate.
	_, r = c.order(service)
	c.post(r.str("finalize"), csrBody(catest.CSR(t, key, service))).problem(400, "badCSR")
}

// No other challenge proves an onion, and this one nothing else.
func TestOnionsHaveOneChallenge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	c.post(w.url("new-order"), dns("bbcweb3hytmzhn5d532owbu6oqadra5z3ar726vq5kgwwn6aucdccrad.onion")).problem(400, "rejectedIdentifier")
	w = newWorld(t, func(c *acme.Config) { c.Challenges = []acme.ChallengeType{acme.OnionCSR01} })
	c = w.client()
	c.post(w.url("new-order"), dns("www.example.com")).problem(400, "rejectedIdentifier")
}

// An order that is not finalized stays ready, and its account may try as often as it likes.
func TestTheWordOfAnOnionIsKeptOnce(t *testing.T) {
	t.Parallel()
	w, caa := caaWorld(t, func(c *acme.Config) { c.Challenges = []acme.ChallengeType{acme.OnionCSR01} })
	c := w.client()
	var names []string
	for range 2 {
		pub, _, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, ca.OnionName(pub))
	}
	order, r := c.order(names...)
	for _, authz := range r.strs("authorizations") {
		c.post(c.challengeURL(authz, "onion-csr-01"), map[string]any{"csr": "AAAA"}).want(200)
		c.await(authz, "valid")
	}
	caa.say(names[0], &acme.Problem{Type: acme.OnionCAARequired, Detail: "say it"})
	csr := csrBody(catest.CSR(t, newKey(t), names...))
	for range 3 {
		c.post(c.get(order).str("finalize"), csr).problem(400, "onionCAARequired")
	}
	if got := w.entries("caa.checked"); len(got) != 1 {
		t.Errorf("three attempts left %d entries of the other service", len(got))
	}
}
