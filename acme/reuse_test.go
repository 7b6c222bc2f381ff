package acme_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

const day = 24 * time.Hour

func reusing(c *acme.Config) { c.ReuseAuthorizations = true }

func reusingOrders(c *acme.Config) { c.ReuseOrders = true }

// born makes an order and wants it to have that status at once.
func (c *client) born(status string, names ...string) (string, *reply) {
	c.t.Helper()
	u, r := c.order(names...)
	if got := r.str("status"); got != status {
		c.t.Fatalf("the order is born %s; want %s: %s", got, status, r.body)
	}
	return u, r
}

func TestAnOrderReliesOnWhatWasProvenBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, reusing)
	c := w.client()
	_, first := c.ready("a.example.com", "*.a.example.com")
	w.clock.advance(time.Minute)
	u, r := c.born("ready", "*.a.example.com", "A.example.com")
	if got, want := r.strs("authorizations"), first.strs("authorizations"); !slices.Equal(got, []string{want[1], want[0]}) {
		t.Errorf("authorizations are %v; want those of %v, as they are needed", got, want)
	}
	if a := c.get(u).want(200); a.str("status") != "ready" || a.header.Get("Retry-After") != "" {
		t.Errorf("read again: %s %v", a.body, a.header)
	}
	// What is proven shows the challenge that proved it, and no other.
	for _, url := range r.strs("authorizations") {
		a := c.get(url).want(200)
		list, _ := a.json["challenges"].([]any)
		if len(list) != 1 || list[0].(map[string]any)["status"] != "valid" || a.str("status") != "valid" {
			t.Errorf("authorization: %s", a.body)
		}
	}
	r = c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com", "*.a.example.com"))).want(200)
	if r.str("status") != "valid" {
		t.Fatalf("order is %s", r.body)
	}
	if n := w.validator.seen("a.example.com"); n != 2 {
		t.Errorf("%d validations; want one for each of the two", n)
	}

	addr := c.post(w.url("new-order"), idsBody("198.51.100.7")).want(201)
	c.prove(addr.strs("authorizations")[0], "http-01")
	if r := c.post(w.url("new-order"), idsBody("198.51.100.7")).want(201); r.str("status") != "ready" {
		t.Errorf("an address is proven again: %s", r.body)
	}

	// Half of it is known.
	u, r = c.born("pending", "a.example.com", "b.example.com")
	if got := r.strs("authorizations"); got[0] != first.strs("authorizations")[0] || got[1] == got[0] {
		t.Errorf("authorizations are %v", got)
	}
	c.prove(r.strs("authorizations")[1], "http-01")
	if got := c.get(u).str("status"); got != "ready" {
		t.Errorf("order is %s after the only proof that it lacked", got)
	}
}

func TestNothingElseProvesAName(t *testing.T) {
	t.Parallel()
	// Another account, name, wildcard, profile, and a method that is not offered any more.
	w := newWorld(t, reusing, func(c *acme.Config) {
		c.Profiles, c.DefaultProfile = map[string]string{"server": "as ever", "other": "another"}, "server"
		c.CA = anyProfile{c.CA}
	})
	c := w.client()
	c.ready("a.example.com", "*.b.example.com")
	c.born("ready", "a.example.com")
	w.client().born("pending", "a.example.com")
	for _, n := range []string{"*.a.example.com", "b.example.com", "x.a.example.com", "x.b.example.com", "example.com"} {
		c.born("pending", n)
	}
	body := dns("a.example.com")
	body["profile"] = "other"
	if r := c.post(w.url("new-order"), body).want(201); r.str("status") != "pending" {
		t.Errorf("another profile: %s", r.body)
	}
	http := newWorld(t, reusing, func(c *acme.Config) {
		c.Store, c.Challenges = w.watched, []acme.ChallengeType{acme.HTTP01}
		c.DefaultProfile = "server"
	})
	moved := &client{t: t, w: http, key: c.key, kid: strings.Replace(c.kid, w.base, http.base, 1)}
	moved.born("pending", "a.example.com")
}

// anyProfile takes every profile for its only one.
type anyProfile struct{ acme.CA }

func (a anyProfile) CheckIdentifiers(ctx context.Context, _ string, ids []ca.Identifier) error {
	return a.CA.CheckIdentifiers(ctx, "", ids)
}

func (a anyProfile) CheckValidity(_ string, notBefore, notAfter time.Time) error {
	return a.CA.CheckValidity("", notBefore, notAfter)
}

func TestReuseIsOffUnlessItIsOn(t *testing.T) {
	t.Parallel()
	c := newWorld(t).client()
	a, _ := c.ready("a.example.com")
	if b, _ := c.born("pending", "a.example.com"); a == b {
		t.Error("the order was used again")
	}
}

// The order ends with the first of its proofs, and what is about to end is not used.
func TestAReusedProofEndsWhenItWould(t *testing.T) {
	t.Parallel()
	w := newWorld(t, reusing, func(c *acme.Config) { c.AuthzLifetime, c.OrderLifetime = 10*day, 7*day })
	c := w.client()
	_, r := c.ready("a.example.com")
	end, _ := time.Parse(time.RFC3339, c.get(r.strs("authorizations")[0]).str("expires"))
	w.clock.advance(5 * day)
	_, second := c.born("ready", "a.example.com")
	if got := second.str("expires"); got != end.Format(time.RFC3339) {
		t.Errorf("the order expires %s; want with its authorization, %s", got, end)
	}
	_, mixed := c.born("pending", "a.example.com", "new.example.com")
	if got := mixed.str("expires"); got != end.Format(time.RFC3339) {
		t.Errorf("the order expires %s; want with its authorization, %s", got, end)
	}
	w.clock.advance(4*day + time.Minute) // less than a day is left
	c.born("pending", "a.example.com")
	w.clock.advance(day)
	c.post(second.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).problem(403, "orderNotReady")
	if n := w.certificates(ca.Issued); n != 0 {
		t.Errorf("%d certificates on an expired proof", n)
	}
}

// A rule that comes into force shortens what was proven before it.
func TestReuseKeepsToTheRulesOfTheDay(t *testing.T) {
	t.Parallel()
	var (
		mu   sync.Mutex
		most = 200 * day
	)
	w := newWorld(t, reusing, func(c *acme.Config) {
		c.AuthzLifetime, c.OrderLifetime = 30*day, 7*day
		c.MaxReuse = func(time.Time) time.Duration { mu.Lock(); defer mu.Unlock(); return most }
	})
	c := w.client()
	c.ready("a.example.com")
	w.clock.advance(5 * day)
	_, open := c.born("ready", "a.example.com")
	mu.Lock()
	most = 4 * day
	mu.Unlock()
	c.born("pending", "a.example.com")
	c.post(open.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).problem(403, "orderNotReady")
	if o := c.get(open.location()).want(200); o.str("status") != "invalid" || o.json["error"] == nil {
		t.Errorf("order: %s", o.body)
	}
	if n := w.certificates(ca.Issued); n != 0 {
		t.Errorf("%d certificates on a proof that is too old", n)
	}
	_, fresh := c.ready("b.example.com")
	a := c.get(fresh.strs("authorizations")[0])
	if end, _ := time.Parse(time.RFC3339, a.str("expires")); end.After(w.clock.now().Add(4 * day)) {
		t.Errorf("a new authorization is valid until %s", end)
	}
}

func TestADeactivatedProofEndsEveryOrderThatReliesOnIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, reusing)
	c := w.client()
	_, first := c.ready("a.example.com")
	authz := first.strs("authorizations")[0]
	ready, second := c.born("ready", "a.example.com")
	pending, _ := c.born("pending", "a.example.com", "b.example.com")
	c.post(authz, map[string]any{"status": "deactivated"}).want(200)
	for _, u := range []string{first.location(), ready, pending} {
		if o := c.get(u); u != "" && o.str("status") != "invalid" {
			t.Errorf("order is %s", o.body)
		}
	}
	c.post(second.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).problem(403, "orderNotReady")
	c.born("pending", "a.example.com")
	if n := w.certificates(ca.Issued); n != 0 {
		t.Errorf("%d certificates", n)
	}
}

// The store says between the look and the order that one is gone.
func TestAProofGivenUpMeanwhileIsProvenAnew(t *testing.T) {
	t.Parallel()
	var w *world
	late := &lateStore{}
	w = newWorld(t, reusing, func(c *acme.Config) { late.Store = c.Store; c.Store = late })
	c := w.client()
	_, r := c.ready("a.example.com")
	late.after = func() {
		c2 := *c
		c2.nonce = ""
		c2.post(r.strs("authorizations")[0], map[string]any{"status": "deactivated"}).want(200)
	}
	_, fresh := c.born("pending", "a.example.com")
	if slices.Equal(fresh.strs("authorizations"), r.strs("authorizations")) {
		t.Error("the order relies on what was given up")
	}
}

type lateStore struct {
	acme.Store
	after func()
}

func (l *lateStore) ReusableAuthorizations(ctx context.Context, q acme.ReuseQuery) ([]acme.Authorization, error) {
	as, err := l.Store.ReusableAuthorizations(ctx, q)
	if f := l.after; f != nil {
		l.after = nil
		f()
	}
	return as, err
}

// An order that was put off ends if its proof is given up before its turn.
func TestAnOrderPutOffIsNotIssuedOnAProofGivenUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	_, r := c.ready("a.example.com")
	w.ca.Keys.Fail(keys.ErrBusy)
	r = c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).want(200)
	if r.str("status") != "processing" {
		t.Fatalf("order: %s", r.body)
	}
	c.post(r.strs("authorizations")[0], map[string]any{"status": "deactivated"}).want(200)
	w.ca.Keys.Fail(nil)
	w.clock.advance(time.Hour)
	if err := w.server.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if o := c.await(r.location(), "valid", "invalid"); o.str("status") != "invalid" || o.json["error"] == nil {
		t.Errorf("order: %s", o.body)
	}
	if n := w.certificates(ca.Issued) + w.certificates(ca.Pending); n != 0 {
		t.Errorf("%d certificates", n)
	}
}

func TestTheSameWishIsTheSameOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, reusingOrders, func(c *acme.Config) {
		c.OrderLifetime, c.OrderQuota, c.MaxOpenOrders = 7*day, ratelimit.Quota{Limit: 6, Window: 100 * day}, 2
		c.Profiles = map[string]string{"server": "as ever"}
	})
	c := w.client()
	first, r := c.order("b.example.com", "a.example.com")
	for _, names := range [][]string{{"b.example.com", "a.example.com"}, {"A.EXAMPLE.com", "b.example.com", "a.example.com"}} {
		u, again := c.order(names...) // neither the quota nor the cap is charged
		if u != first || !slices.Equal(again.strs("authorizations"), r.strs("authorizations")) {
			t.Errorf("%v: %s is not the same order", names, again.body)
		}
	}
	c.prove(r.strs("authorizations")[0], "http-01")
	c.prove(r.strs("authorizations")[1], "http-01")
	if u, again := c.order("a.example.com", "b.example.com"); u != first || again.str("status") != "ready" {
		t.Errorf("not the same order: %s", again.body)
	}
	other, _ := c.order("a.example.com")
	if other == first {
		t.Error("another wish is the same order")
	}
	c.post(w.url("new-order"), dns("c.example.com")).problem(429, "rateLimited") // the cap still is one
	if u, _ := w.client().order("a.example.com", "b.example.com"); u == first {
		t.Error("another account has the order")
	}

	// Finalized is over; so is what has little time left.
	c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com", "b.example.com"))).want(200)
	if u, _ := c.order("a.example.com", "b.example.com"); u == first {
		t.Error("a finalized order came back")
	}
	w.clock.advance(6*day + time.Minute)
	if err := w.server.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.post(w.url("new-order"), dns("a.example.com")).problem(429, "rateLimited") // not the order that has hours left
}

func TestTheSameOrdersAtOnceAllAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, reusingOrders, reusing)
	c := w.client()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		seen = map[string]bool{}
	)
	for range 8 {
		wg.Go(func() {
			one := &client{t: t, w: w, key: c.key, kid: c.kid}
			u, _ := one.order("a.example.com")
			mu.Lock()
			defer mu.Unlock()
			seen[u] = true
		})
	}
	wg.Wait()
	if len(seen) == 0 || len(seen) > 8 || seen[""] {
		t.Errorf("orders: %v", seen)
	}
}
