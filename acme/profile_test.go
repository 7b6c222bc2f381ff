package acme_test

import (
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
			short.Name, short.Validity, hidden.Name = "short", 7*day, "hidden"
			c.Profiles = append(c.Profiles, short, hidden)
		})
		c.CA, c.DefaultProfile = two.Authority, "hidden"
		c.Profiles = map[string]string{"server": "90 days", "short": "https://ca.example/short"}
	})
	c := w.client()
	meta, _ := c.do("GET", w.url("directory"), "", nil).want(200).json["meta"].(map[string]any)
	if got, _ := meta["profiles"].(map[string]any); len(got) != 2 || got["short"] != "https://ca.example/short" {
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
	if r := order("").want(201); r.json["profile"] != nil {
		t.Errorf("the default one, which may not be named, is shown: %s", r.body)
	}
	r := order("short").want(201)
	if got := c.get(r.location()).str("profile"); got != "short" || r.str("profile") != "short" {
		t.Errorf("profile is %q: %s", got, r.body)
	}
}
