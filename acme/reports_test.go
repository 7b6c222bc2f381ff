package acme_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"sync"
	"testing"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/keys"
)

// smallstep/certificates#601: a client that orders, never proves anything and
// orders again leaves one order behind, not one for each time.
func TestALoopOfOrdersLeavesOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t, reusing, reusingOrders, func(c *acme.Config) { c.MaxOpenOrders = 2 })
	c := w.client()
	first, _ := c.order("never.example.com")
	for range 20 {
		if u, _ := c.order("never.example.com"); u != first {
			t.Fatalf("another order, %s", u)
		}
	}
	if got := c.get(c.kid + "/orders").want(200).strs("orders"); len(got) != 1 {
		t.Errorf("orders: %v", got)
	}
}

// golang/go#73504, golang/go#77704, icing/mod_md#216: where the order is stands in
// every answer about it, from the first to the last.
func TestEveryAnswerAboutAnOrderSaysWhereItIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, reusing, reusingOrders)
	c := w.client()
	u, r := c.order("a.example.com")
	here := func(when string, r *reply, status string) *reply {
		t.Helper()
		if r.location() != u || r.str("status") != status {
			t.Errorf("%s: Location %q, %s", when, r.location(), r.body)
		}
		return r
	}
	here("new", r, "pending")
	_, again := c.order("a.example.com")
	here("the same", again, "pending")
	c.prove(r.strs("authorizations")[0], "http-01")
	here("ready", c.get(u).want(200), "ready")
	if bad := c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "b.example.com"))); bad.status != 400 {
		t.Errorf("%s", bad.body)
	}
	w.ca.Keys.Fail(keys.ErrBusy)
	csr := csrBody(catest.CSR(t, newKey(t), "a.example.com"))
	here("finalized", c.post(r.str("finalize"), csr).want(200), "processing")
	here("polled", c.get(u).want(200), "processing")
	if other := c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).problem(403, "orderNotReady"); other.location() != u {
		t.Errorf("another CSR: Location %q", other.location())
	}
	w.ca.Keys.Fail(nil)
	w.clock.advance(60e9)
	if err := w.server.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.await(u, "valid")
	here("finalized again", c.post(r.str("finalize"), csr).want(200), "valid")
	here("polled", c.get(u).want(200), "valid")
}

// letsencrypt/boulder#4672, #4685: of finalizing and giving up an authorization
// at the same instant one comes first, for all orders that rely on it.
func TestOfFinalizingAndGivingUpOneComesFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, reusing)
	owner := w.client()
	issued := 0
	for range 8 {
		_, first := owner.ready("a.example.com")
		authz := first.strs("authorizations")[0]
		urls := []string{first.location()}
		finalize := []string{first.str("finalize")}
		for range 3 {
			u, r := owner.born("ready", "a.example.com")
			urls, finalize = append(urls, u), append(finalize, r.str("finalize"))
		}
		if urls[0] == "" {
			t.Fatal("no Location")
		}
		var wg sync.WaitGroup
		for _, f := range finalize {
			c := &client{t: t, w: w, key: owner.key, kid: owner.kid}
			c.takeNonce()
			csr := csrBody(catest.CSR(t, newKey(t), "a.example.com"))
			wg.Go(func() {
				if r := c.send(f, jws(t, c.key, c.header(f, nil), csr)); r.status != 200 && r.status != 403 {
					t.Errorf("%d %s", r.status, r.body)
				}
			})
		}
		give := &client{t: t, w: w, key: owner.key, kid: owner.kid}
		wg.Go(func() { give.post(authz, map[string]any{"status": "deactivated"}).want(200) })
		wg.Wait()
		for _, u := range urls {
			switch o := owner.await(u, "valid", "invalid"); {
			case o.str("status") == "valid":
				issued++
			case o.json["error"] == nil:
				t.Errorf("it does not say why: %s", o.body)
			}
		}
	}
	if n := w.certificates(ca.Issued); n != issued {
		t.Errorf("%d certificates for %d valid orders", n, issued)
	}
	if n := w.certificates(ca.Pending); n != 0 {
		t.Errorf("%d intents are left", n)
	}
}

// letsencrypt/boulder#3572, rmbolger/Posh-ACME#567: a name and its wildcard are
// proven apart, and later neither stands for the other.
func TestANameAndItsWildcardAreTwo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, reusing)
	c := w.client()
	_, r := c.ready("a.example.com", "*.a.example.com")
	c.post(r.strs("authorizations")[1], map[string]any{"status": "deactivated"}).want(200)
	c.born("ready", "a.example.com")
	_, o := c.born("pending", "*.a.example.com", "a.example.com")
	if a := c.get(o.strs("authorizations")[0]); a.str("status") != "pending" || a.json["wildcard"] != true {
		t.Errorf("authorization: %s", a.body)
	}
	if a := c.get(o.strs("authorizations")[1]); a.str("status") != "valid" || a.json["wildcard"] != nil {
		t.Errorf("authorization: %s", a.body)
	}
}

// What was reported as compromised, or is weak, becomes no account's key, and the
// inner message is signed in the way of the new key, whatever the old one is.
func TestKeyChangeJudgesTheNewKeyByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	url := w.url("key-change")
	change := func(c *client, signer *client, more map[string]any) *reply {
		t.Helper()
		h := map[string]any{"alg": algOf(signer.key), "jwk": jwkOf(signer.key.Public()), "url": url}
		for k, v := range more {
			h[k] = v
		}
		return c.post(url, jws(t, signer.key, h, map[string]any{"account": c.kid, "oldKey": jwkOf(c.key.Public())}))
	}
	cert, key := c.issue("a.example.com")
	reported := &client{t: t, w: w, key: key}
	reported.post(w.url("revoke-cert"), map[string]any{"certificate": b64(cert.Raw), "reason": 1}).want(200)
	change(c, reported, nil).problem(400, "badPublicKey")
	for name, next := range otherKeys(t) {
		signer := &client{t: t, w: w, key: next}
		if r := change(c, signer, map[string]any{"alg": algOf(c.key)}); r.status != 400 {
			t.Errorf("%s: signed as by the old key: %d %s", name, r.status, r.body)
		}
		change(c, signer, nil).want(200)
		c.key = next
		c.get(c.kid).want(200)
	}
}

// otherKeys are keys of other kinds than P-256.
func otherKeys(t *testing.T) map[string]crypto.Signer {
	t.Helper()
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]crypto.Signer{"P-384": p384, "Ed25519": ed}
}
