package acme_test

import (
	"context"
	"crypto"
	"sync/atomic"
	"testing"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
)

// draft-ietf-acme-profiles: what the directory offers may be named, and nothing
// else, of whatever there is at the authority.
func TestProfilesAreChosenByName(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *acme.Config) {
		two := catest.New(t, func(c *ca.Config) {
			short, hidden := c.Profiles[0], c.Profiles[0]
			names := c.Profiles[0]
			short.Name, short.Validity, hidden.Name = "short", 7*day, "hidden"
			names.Name, names.Names = "names", []ca.NameKind{ca.KindDNS}
			c.Profiles = append(c.Profiles, short, hidden, names)
		})
		c.CA, c.DefaultProfile = two.Authority, "hidden"
		c.Profiles = map[string]string{"server": "90 days", "short": "https://ca.example/short", "names": "names alone"}
	})
	c := w.client()
	meta, _ := c.do("GET", w.url("directory"), "", nil).want(200).json["meta"].(map[string]any)
	if got, _ := meta["profiles"].(map[string]any); len(got) != 3 || got["short"] != "https://ca.example/short" {
		t.Errorf("meta is %v", meta)
	}
	order := func(profile any) *reply {
		body := dns("a.example.com")
		body["profile"] = profile
		return c.post(w.url("new-order"), body)
	}
	for _, bad := range []string{"hidden", "none", "SHORT", ca.ProfileSelf, ca.ProfileResponder} {
		order(bad).problem(400, "invalidProfile")
	}
	order(7).problem(400, "malformed")
	// What the named profile does not have at all is its fault, what it has and refuses is not.
	for _, bad := range []struct {
		profile string
		id      map[string]string
		want    string
	}{
		{"names", map[string]string{"type": "ip", "value": "192.0.2.1"}, "invalidProfile"},
		{"", map[string]string{"type": "permanent-identifier", "value": "a"}, "unsupportedIdentifier"},
		{"names", map[string]string{"type": "dns", "value": "-a.example.com"}, "rejectedIdentifier"},
		{"names", map[string]string{"type": "email", "value": "a@example.com"}, "unsupportedIdentifier"},
	} {
		r := c.post(w.url("new-order"), map[string]any{"identifiers": []any{bad.id}, "profile": bad.profile})
		r.problem(400, bad.want)
		if subs, _ := r.json["subproblems"].([]any); len(subs) != 1 {
			t.Errorf("%v: %s", bad, r.body)
		}
	}
	if r := order("").want(201); r.json["profile"] != nil {
		t.Errorf("the default one, which may not be named, is shown: %s", r.body)
	}
	r := order("short").want(201)
	if got := c.get(r.location()).str("profile"); got != "short" || r.str("profile") != "short" {
		t.Errorf("profile is %q: %s", got, r.body)
	}
}

// retiring is an authority that one day has the profiles of another.
type retiring struct {
	acme.CA
	next atomic.Pointer[ca.Authority]
}

func (r *retiring) CheckCSR(ctx context.Context, profile string, der []byte, names []ca.Identifier) (crypto.PublicKey, error) {
	if next := r.next.Load(); next != nil {
		return next.CheckCSR(ctx, profile, der, names)
	}
	return r.CA.CheckCSR(ctx, profile, der, names)
}

// An order outlives its profile for some days (draft-ietf-acme-profiles §4).
func TestOrdersForAProfileThatIsGoneAreToldSo(t *testing.T) {
	t.Parallel()
	r := &retiring{}
	w := newWorld(t, func(c *acme.Config) {
		two := catest.New(t, func(c *ca.Config) {
			short := c.Profiles[0]
			short.Name = "short"
			c.Profiles = append(c.Profiles, short)
		})
		r.CA, c.CA = two.Authority, r
		c.Profiles = map[string]string{"short": "7 days"}
	})
	c := w.client()
	body := dns("a.example.com")
	body["profile"] = "short"
	o := c.post(w.url("new-order"), body).want(201)
	c.prove(o.strs("authorizations")[0], "dns-01")
	r.next.Store(catest.New(t).Authority)
	csr := csrBody(catest.CSR(t, newKey(t), "a.example.com"))
	c.post(o.str("finalize"), csr).problem(400, "invalidProfile")
	if got := c.get(o.location()); got.str("status") != "ready" {
		t.Errorf("order: %s", got.body)
	}
	r.next.Store(nil)
	c.post(o.str("finalize"), csr).want(200)
}
