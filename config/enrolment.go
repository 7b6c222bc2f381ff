package config

import (
	"fmt"
	"slices"
	"strings"
)

// maxEndpoints bounds where devices enrol.
const maxEndpoints = 64

// checkEnrolment finds endpoints that clash, or lead nowhere.
func (c *Config) checkEnrolment(r *report) {
	list := c.Enrolment.Endpoints
	if len(list) > maxEndpoints {
		r.add("enrolment.endpoints", "there are %d: want at most %d", len(list), maxEndpoints)
	}
	seen := map[Name]int{}
	for i, e := range list {
		key := func(name string) string { return fmt.Sprintf("enrolment.endpoints[%d].%s", i, name) }
		if len(e.Name) > 63 || strings.Trim(string(e.Name), "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || strings.HasPrefix(string(e.Name), "-") {
			r.add(key("name"), "%s: want at most 63 lower-case letters, digits and hyphens, the first no hyphen", quote(string(e.Name)))
		}
		if first, taken := seen[e.Name]; taken {
			r.add(key("name"), "%s is taken by enrolment.endpoints[%d]", quote(string(e.Name)), first)
		}
		seen[e.Name] = i
		if !slices.ContainsFunc(c.Profiles, func(p Profile) bool { return p.Name == e.Profile }) {
			r.add(key("profile"), "there is no profile %s", quote(string(e.Profile)))
		}
		c.checkEnrolmentIssuer(r, key("issuer"), e.Issuer)
		if e.SCEPLegacy && !e.SCEP {
			r.add(key("scep_legacy"), "the endpoint does not speak SCEP: set scep")
		}
		checkSecret(r, key("challenge"), e.Challenge)
		for j, rule := range e.Allow {
			if len(rule.Names) == 0 {
				r.add(fmt.Sprintf("%s[%d].names", key("allow"), j), "is empty: it allows nothing")
			}
		}
	}
	if len(list) > 0 && c.Policy == PolicyPublic {
		r.add("enrolment.endpoints", "under policy public names are proven by ACME: there is no enrolment")
	}
}

func (c *Config) checkEnrolmentIssuer(r *report, key string, name Name) {
	active := 0
	for _, i := range c.Issuers {
		if i.Name == name {
			return
		}
		if i.Active {
			active++
		}
	}
	switch {
	case name != "":
		r.add(key, "there is no issuer %s", quote(string(name)))
	case active > 1:
		r.add(key, "is empty, and %d issuers are active: name one of them", active)
	}
}
