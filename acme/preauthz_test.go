package acme_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"slices"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
)

func ahead(c *acme.Config) { c.ReuseAuthorizations, c.PreAuthorization = true, true }

func below(c *acme.Config) { c.Subdomains = true }

func authzBody(name string, more ...string) map[string]any {
	id := map[string]any{"type": "dns", "value": name}
	if strings.Contains(name, "/") {
		typ, value, _ := strings.Cut(name, "/")
		id = map[string]any{"type": typ, "value": value}
	}
	for _, m := range more {
		id[m] = true
	}
	return map[string]any{"identifier": id}
}

// ancestor makes the body of an order for name, to be proven by a domain above it.
func ancestor(pairs ...string) map[string]any {
	var ids []map[string]any
	for pair := range slices.Chunk(pairs, 2) {
		id := map[string]any{"type": "dns", "value": pair[0]}
		if pair[1] != "" {
			id["ancestorDomain"] = pair[1]
		}
		ids = append(ids, id)
	}
	return map[string]any{"identifiers": ids}
}

func TestANameIsProvenAheadOfItsOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ahead)
	c := w.client()
	dir := c.do("GET", w.url("directory"), "", nil).want(200)
	if got := dir.str("newAuthz"); got != w.url("new-authz") {
		t.Fatalf("newAuthz is %q", got)
	}
	r := c.post(w.url("new-authz"), authzBody("A.example.com")).want(201)
	u := r.location()
	id, _ := r.json["identifier"].(map[string]any)
	if r.str("status") != "pending" || id["value"] != "a.example.com" || r.json["wildcard"] != nil || r.str("expires") == "" || !strings.HasPrefix(u, w.url("authz/")) {
		t.Errorf("%s at %s", r.body, u)
	}
	// It is there, proven or not: 200, and the same one.
	if again := c.post(w.url("new-authz"), authzBody("a.example.com")).want(200); again.location() != u {
		t.Errorf("another one: %s", again.location())
	}
	if got := c.prove(u, "http-01").str("status"); got != "valid" {
		t.Fatalf("authorization is %s", got)
	}
	if again := c.post(w.url("new-authz"), authzBody("a.example.com")).want(200); again.location() != u || again.str("status") != "valid" {
		t.Errorf("another one: %s", again.body)
	}
	_, o := c.born("ready", "a.example.com")
	if got := o.strs("authorizations"); !slices.Equal(got, []string{u}) {
		t.Errorf("authorizations are %v", got)
	}
	o = c.post(o.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).want(200)
	if o.str("status") != "valid" {
		t.Errorf("order: %s", o.body)
	}
	// Its own account's alone.
	if other := w.client().post(w.url("new-authz"), authzBody("a.example.com")).want(201); other.location() == u {
		t.Error("another account has it")
	}
	addr := c.post(w.url("new-authz"), authzBody("ip/198.51.100.7")).want(201)
	if got := c.types(addr.location()); slices.Contains(got, "dns-01") {
		t.Errorf("an address is offered %v", got)
	}
}

func TestWhatCannotBeAuthorizedAhead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ahead)
	c := w.client()
	for _, bad := range []struct {
		body any
		typ  string
	}{
		{authzBody("*.example.com"), "rejectedIdentifier"}, // RFC 8555 §7.4.1
		{authzBody("a_b.example.com"), "rejectedIdentifier"},
		{authzBody("email/a@example.com"), "unsupportedIdentifier"},
		{map[string]any{}, "malformed"},
		{map[string]any{"identifier": "a.example.com"}, "malformed"},
		{map[string]any{"identifier": map[string]any{"type": "dns"}}, "malformed"},
		{map[string]any{"identifier": map[string]any{"type": "dns", "value": "a.example.com"}, "profile": "none"}, "invalidProfile"},
	} {
		c.post(w.url("new-authz"), bad.body).problem(400, bad.typ)
	}
	off := newWorld(t).client()
	if dir := off.do("GET", off.w.url("directory"), "", nil); dir.json["newAuthz"] != nil {
		t.Errorf("directory: %s", dir.body)
	}
	off.post(off.w.url("new-authz"), authzBody("a.example.com")).problem(404, "malformed")
}

func TestAuthorizationsAheadAreCapped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ahead, func(c *acme.Config) { c.MaxOpenOrders = 2 })
	c := w.client()
	first := c.post(w.url("new-authz"), authzBody("a.example.com")).want(201).location()
	c.post(w.url("new-authz"), authzBody("b.example.com")).want(201)
	r := c.post(w.url("new-authz"), authzBody("c.example.com")).problem(429, "rateLimited")
	if r.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	c.post(w.url("new-authz"), authzBody("a.example.com")).want(200) // costs nothing
	w.client().post(w.url("new-authz"), authzBody("c.example.com")).want(201)
	c.post(first, map[string]any{"status": "deactivated"}).want(200)
	c.post(w.url("new-authz"), authzBody("c.example.com")).want(201)
}

// RFC 9444: one proof for a domain, and orders for what is below it.
func TestADomainProvesWhatIsBelowIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ahead, below)
	c := w.client()
	dir := c.do("GET", w.url("directory"), "", nil).want(200)
	if meta, _ := dir.json["meta"].(map[string]any); meta["subdomainAuthAllowed"] != true {
		t.Errorf("meta is %v", meta)
	}
	r := c.post(w.url("new-authz"), authzBody("example.org", "subdomainAuthAllowed")).want(201)
	u := r.location()
	if r.json["subdomainAuthAllowed"] != true || !slices.Equal(c.types(u), []string{"dns-01"}) {
		t.Fatalf("what one server says proves no subtree: %s", r.body)
	}
	c.prove(u, "dns-01")
	for _, names := range [][]string{
		{"sub1.example.org"}, {"a.b.example.org", "example.org"}, {"*.example.org"}, {"*.x.example.org", "x.example.org"},
	} {
		_, o := c.born("ready", names...)
		if got := o.strs("authorizations"); !slices.Equal(got, []string{u}) {
			t.Errorf("%v: authorizations are %v", names, got)
		}
		o = c.post(o.str("finalize"), csrBody(catest.CSR(t, newKey(t), names...))).want(200)
		if o.str("status") != "valid" {
			t.Errorf("%v: %s", names, o.body)
		}
	}
	for _, not := range []string{"notexample.org", "org", "example.org.example.com"} {
		c.born("pending", not)
	}
	// Given up, it proves nothing any more.
	_, o := c.born("ready", "sub2.example.org")
	c.post(u, map[string]any{"status": "deactivated"}).want(200)
	c.post(o.str("finalize"), csrBody(catest.CSR(t, newKey(t), "sub2.example.org"))).problem(403, "orderNotReady")
	c.born("pending", "sub2.example.org")
}

func TestAnOrderMayNameTheDomainAbove(t *testing.T) {
	t.Parallel()
	w := newWorld(t, reusing, reusingOrders, below)
	c := w.client()
	r := c.post(w.url("new-order"), ancestor("a.b.example.org", "B.example.org", "*.b.example.org", "b.example.org", "x.example.com", "")).want(201)
	authzs := r.strs("authorizations")
	if len(authzs) != 2 {
		t.Fatalf("authorizations: %v; want one for the domain and one for x.example.com", authzs)
	}
	a := c.get(authzs[0]).want(200)
	if id, _ := a.json["identifier"].(map[string]any); id["value"] != "b.example.org" || a.json["subdomainAuthAllowed"] != true || a.json["wildcard"] != nil {
		t.Errorf("authorization: %s", a.body)
	}
	if got := c.types(authzs[0]); !slices.Equal(got, []string{"dns-01"}) {
		t.Errorf("challenges: %v", got)
	}
	// Proven in another way it is another order.
	if u, _ := c.order("a.b.example.org", "*.b.example.org", "x.example.com"); u == r.location() {
		t.Error("an order that is to be proven in another way is the same")
	}
	c.prove(authzs[0], "dns-01")
	c.prove(authzs[1], "http-01")
	o := c.get(r.location()).want(200)
	o = c.post(o.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.b.example.org", "*.b.example.org", "x.example.com"))).want(200)
	if o.str("status") != "valid" {
		t.Fatalf("order: %s", o.body)
	}
	for _, bad := range []string{"example.com", "a.b.example.org", "b.example.org.", "xample.org", ".", "c.b.example.org"} {
		c.post(w.url("new-order"), ancestor("a.b.example.org", bad)).problem(400, "malformed")
	}
}

// Where it is not allowed the name is proven itself.
func TestWhereNoDomainProvesWhatIsBelow(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]func(*acme.Config){
		"off":           {ahead},
		"not for this":  {ahead, below, func(c *acme.Config) { c.DefaultProfile, c.NoSubdomains = "server", []string{"server"} }},
		"no dns method": {ahead, below, func(c *acme.Config) { c.Challenges = []acme.ChallengeType{acme.HTTP01, acme.TLSALPN01} }},
	} {
		w := newWorld(t, options...)
		c := w.client()
		r := c.post(w.url("new-authz"), authzBody("example.org", "subdomainAuthAllowed")).want(201)
		if r.json["subdomainAuthAllowed"] != nil {
			t.Errorf("%s: %s", name, r.body)
		}
		c.prove(r.location(), "http-01")
		c.born("ready", "example.org")
		c.born("pending", "sub.example.org")
		o := c.post(w.url("new-order"), ancestor("x.example.org", "example.org")).want(201)
		if a := c.get(o.strs("authorizations")[0]); a.json["identifier"].(map[string]any)["value"] != "x.example.org" {
			t.Errorf("%s: %s", name, a.body)
		}
	}
}

// Nobody proves a domain by which he could not order.
func TestADomainOutOfScopeProvesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ahead, below, func(c *acme.Config) { c.Scope.DNS = []string{"x.example.org"} })
	c := w.client()
	c.post(w.url("new-authz"), authzBody("example.org", "subdomainAuthAllowed")).problem(400, "rejectedIdentifier")
	o := c.post(w.url("new-order"), ancestor("a.x.example.org", "example.org", "b.x.example.org", "x.example.org")).want(201)
	for i, want := range []string{"a.x.example.org", "x.example.org"} {
		a := c.get(o.strs("authorizations")[i])
		if got := a.json["identifier"].(map[string]any)["value"]; got != want {
			t.Errorf("authorization %d is for %v; want %s", i, got, want)
		}
	}
}

// Onion services are not in the DNS: no record of theirs, or of "onion", proves one.
func TestNoRecordProvesOnionServices(t *testing.T) {
	t.Parallel()
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	service := ca.OnionName(pub)
	w := newWorld(t, ahead, below, func(c *acme.Config) {
		c.Challenges = []acme.ChallengeType{acme.DNS01, acme.OnionCSR01}
	})
	c := w.client()
	for _, above := range []string{"onion", service} {
		r := c.post(w.url("new-order"), ancestor("www."+service, above)).want(201)
		a := c.get(r.strs("authorizations")[0]).want(200)
		if got := c.types(a.location()); !slices.Equal(got, []string{"onion-csr-01"}) || a.json["subdomainAuthAllowed"] != nil {
			t.Errorf("%s: %s", above, a.body)
		}
	}
	r := c.post(w.url("new-authz"), authzBody(service, "subdomainAuthAllowed")).want(201)
	if r.json["subdomainAuthAllowed"] != nil {
		t.Errorf("%s", r.body)
	}
}

// A public suffix proves nothing below it (Baseline Requirements §1.6.1,
// Authorization Domain Name); the names themselves can be proven.
func TestAPublicSuffixProvesNothingBelowIt(t *testing.T) {
	t.Parallel()
	public := catest.New(t, func(c *ca.Config) {
		c.Policy, c.Profiles[0].Validity, c.Profiles[0].RequestedDates = ca.Public, 90*day, false
	})
	w := newWorld(t, reusing, below, func(c *acme.Config) { c.CA = public.Authority })
	c := w.client()
	o := c.post(w.url("new-order"), ancestor("a.example.co.uk", "co.uk", "b.example.co.uk", "example.co.uk")).want(201)
	for i, want := range []string{"a.example.co.uk", "example.co.uk"} {
		a := c.get(o.strs("authorizations")[i])
		if got := a.json["identifier"].(map[string]any)["value"]; got != want {
			t.Errorf("authorization %d is for %v; want %s", i, got, want)
		}
	}
}

// What was proven for all below is not used when that is switched off, nor for long enough names.
func TestAncestorsAreBounded(t *testing.T) {
	t.Parallel()
	if got := acme.Ancestors("a.b.c"); !slices.Equal(got, []string{"b.c", "c"}) {
		t.Errorf("ancestors are %q", got)
	}
	if got := acme.Ancestors(strings.Repeat("a.", 120) + "example"); len(got) != 16 {
		t.Errorf("%d ancestors", len(got))
	}
	w := newWorld(t, ahead, below)
	c := w.client()
	r := c.post(w.url("new-authz"), authzBody("example.org", "subdomainAuthAllowed")).want(201)
	c.prove(r.location(), "dns-01")
	deep := strings.Repeat("a.", 40) + "example.org"
	c.born("pending", deep)
	if o := c.post(w.url("new-order"), ancestor("b."+deep, "example.org")).want(201); o.str("status") != "ready" {
		t.Errorf("the domain that the client names is passed over: %s", o.body)
	}
	off := newWorld(t, reusing, func(c *acme.Config) { c.Store = w.watched })
	moved := &client{t: t, w: off, key: c.key, kid: strings.Replace(c.kid, w.base, off.base, 1)}
	moved.born("pending", "sub.example.org")
}

// FuzzAncestors holds what is above a name to be just that, in few.
func FuzzAncestors(f *testing.F) {
	for _, s := range []string{"", ".", "a", "a.b", "a..b", ".a", "a.", "a.b.c.example.org", strings.Repeat("a.", 300)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		last := name
		list := acme.Ancestors(name)
		for _, a := range list {
			if a == "" || !strings.HasSuffix(name, "."+a) || len(a) >= len(last) || strings.Contains(strings.TrimSuffix(last, "."+a), ".") {
				t.Fatalf("%q is not right above %q: %q", a, last, list)
			}
			last = a
		}
		if len(list) > 16 {
			t.Fatalf("%d", len(list))
		}
	})
}
