package ca_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/keys"
)

const day = 24 * time.Hour

func on(y int, m time.Month, d int) time.Time { return time.Date(y, m, d, 12, 0, 0, 0, time.UTC) }

func at(now time.Time) func(*ca.Config) {
	return func(cfg *ca.Config) { cfg.Clock = func() time.Time { return now } }
}

func TestPublicLimitsFollowTheCalendar(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		at              time.Time
		validity, reuse int
	}{
		{on(2026, time.March, 14), 398, 398},
		{time.Date(2026, time.March, 15, 0, 0, 0, 0, time.UTC), 200, 200},
		{on(2027, time.March, 14), 200, 200},
		{on(2027, time.March, 15), 100, 100},
		{on(2029, time.March, 14), 100, 100},
		{on(2029, time.March, 15), 47, 10},
		{on(2040, time.January, 1), 47, 10},
	} {
		if got := ca.Public.MaxValidity(tt.at); got != time.Duration(tt.validity)*day {
			t.Errorf("%s: validity %s, want %d days", tt.at, got, tt.validity)
		}
		if got := ca.Public.MaxReuse(tt.at); got != time.Duration(tt.reuse)*day {
			t.Errorf("%s: reuse %s, want %d days", tt.at, got, tt.reuse)
		}
	}
	if now := on(2026, time.October, 1); ca.Public.MaxCRLValidity(now) != 10*day || ca.Public.MaxOCSPValidity(now) != 10*day || ca.Public.MinOCSPValidity(now) != 8*time.Hour {
		t.Error("status limits are not those of the Baseline Requirements")
	}
}

func TestProfileThatPromisesTooMuchIsRefusedWithTheDate(t *testing.T) {
	t.Parallel()
	cfg := ca.Config{Policy: ca.Public, Clock: func() time.Time { return on(2026, time.October, 1) }}
	unlinted(&cfg)
	c := catest.New(t, public)
	cfg.Issuers, cfg.Store = c.Issuers(), c.Store
	cfg.Profiles = []ca.Profile{{
		Name: "greedy", Validity: 300 * day, Backdate: 60 * time.Hour, ExtKeyUsages: []string{"serverAuth", "clientAuth"},
		KeyUsages: []string{"keyAgreement"}, KeyAlgorithms: []keys.Algorithm{keys.Ed25519}, Issuers: []string{"nobody"},
		OmitCRL: true, OmitCAIssuers: true,
	}}
	_, err := ca.New(cfg)
	for _, want := range []string{
		`profile "greedy": validity: 7200h0m0s is more than the 200 days that the public policy allows since 2026-03-15`,
		`profile "greedy": backdate`, `profile "greedy": ext_key_usages`, `profile "greedy": key_usages`, `profile "greedy": key_algorithms`,
		`profile "greedy": omit_crl`, `profile "greedy": omit_ca_issuers`,
		`profile "greedy": issuers: there is no issuer "nobody"`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

func TestValidityIsCutWhenARuleComesIntoForce(t *testing.T) {
	t.Parallel()
	now := on(2027, time.March, 14)
	var logged bytes.Buffer
	c := catest.New(t, public, func(cfg *ca.Config) {
		cfg.Clock = func() time.Time { return now }
		cfg.Logger = slog.New(slog.NewTextHandler(&logged, nil))
		cfg.Profiles[0].Validity = 200 * day
	})
	age := func() time.Duration {
		got := c.Certificate(t, "www.example.com")
		return got.NotAfter.Sub(got.NotBefore) + time.Second
	}
	if got := age(); got != 200*day {
		t.Errorf("the day before: %s", got)
	}
	now = on(2027, time.March, 15)
	for range 3 {
		if got := age(); got != 100*day {
			t.Errorf("on the day: %s", got)
		}
	}
	if n := strings.Count(logged.String(), "\n"); n != 1 {
		t.Errorf("%d log lines, want 1: %s", n, &logged)
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	t.Parallel()
	p := ca.Profile{
		Name: "Web Server", Validity: time.Second, Backdate: time.Hour, KeyUsages: []string{"keyCertSign"}, ExtKeyUsages: []string{"OCSPSigning"},
		Names: []ca.NameKind{"email"}, PermittedDNS: []string{"*.example.com"}, ExcludedDNS: []string{"Example.com"},
		PermittedIP: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")}, ExcludedIP: []netip.Prefix{{}}, MaxNames: -1,
		KeyAlgorithms: []keys.Algorithm{"rsa-1024"}, CommonName: "second",
	}
	err := p.Validate()
	for _, field := range []string{
		"name", "validity", "backdate", "key_usages", "ext_key_usages", "names", "permitted_dns", "excluded_dns", "permitted_ip", "excluded_ip",
		"max_names", "key_algorithms", "common_name",
	} {
		if err == nil || !strings.Contains(err.Error(), `profile "Web Server": `+field+": ") {
			t.Errorf("no fault of %s in %v", field, err)
		}
	}
	if fe, ok := errors.AsType[*ca.FieldError](err); !ok || fe.Profile != "Web Server" || fe.Problem == "" {
		t.Errorf("error %v is not of fields", err)
	}
	if err := (ca.Profile{Name: "web", Validity: day}).Validate(); err != nil {
		t.Errorf("a plain profile: %v", err)
	}
}

func TestConfigurationIsCheckedAsAWhole(t *testing.T) {
	t.Parallel()
	good := catest.New(t, unlinted)
	for name, change := range map[string]func(*ca.Config){
		"policy":           func(cfg *ca.Config) { cfg.Policy = "lax" },
		"shard":            func(cfg *ca.Config) { cfg.Shard = 0x80 },
		"lease":            func(cfg *ca.Config) { cfg.Lease = 21 * time.Second },
		"store":            func(cfg *ca.Config) { cfg.Store = nil },
		"linter":           func(cfg *ca.Config) { cfg.Linter = nil },
		"issuers":          func(cfg *ca.Config) { cfg.Issuers = nil },
		"issuer twice":     func(cfg *ca.Config) { cfg.Issuers = append(cfg.Issuers, cfg.Issuers[0]) },
		"profile twice":    func(cfg *ca.Config) { cfg.Profiles = append(cfg.Profiles, cfg.Profiles[0]) },
		"built-in profile": func(cfg *ca.Config) { cfg.Profiles[0].Name = ca.ProfileSelf },
		"default profile":  func(cfg *ca.Config) { cfg.DefaultProfile = "other" },
		"built-in default": func(cfg *ca.Config) { cfg.DefaultProfile = ca.ProfileResponder },
		"other id":         func(cfg *ca.Config) { i := *cfg.Issuers[0]; i.ID = "00"; cfg.Issuers = []*ca.Issuer{&i} },
		"no authority": func(cfg *ca.Config) {
			i := *cfg.Issuers[0]
			cert := *i.Cert
			cert.IsCA = false
			i.Cert = &cert
			cfg.Issuers = []*ca.Issuer{&i}
		},
		"somebody's key": func(cfg *ca.Config) {
			i := *cfg.Issuers[0]
			i.Key = keys.FromSigner(catest.NewKey(t))
			cfg.Issuers = []*ca.Issuer{&i}
		},
		"profile in itself": func(cfg *ca.Config) { cfg.Profiles[0].Validity = 0 },
	} {
		cfg := ca.Config{
			Issuers: good.Issuers(), Profiles: []ca.Profile{{Name: "web", Validity: day}}, Store: good.Store, Linter: linterFunc(pass),
		}
		if _, err := ca.New(cfg); err != nil {
			t.Fatal(err)
		}
		change(&cfg)
		if _, err := ca.New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestValidityHasNoSecondTooMany(t *testing.T) {
	t.Parallel()
	now := on(2026, time.October, 1)
	c := catest.New(t, unlinted, at(now))
	got := c.Certificate(t, "www.example.com")
	if want := now.Add(-time.Hour); !got.NotBefore.Equal(want) {
		t.Errorf("notBefore %s, want %s", got.NotBefore, want)
	}
	if want := now.Add(-time.Hour + 90*day - time.Second); !got.NotAfter.Equal(want) {
		t.Errorf("notAfter %s, want %s", got.NotAfter, want)
	}
	cert := parse(t, got.DER)
	if !cert.NotBefore.Equal(got.NotBefore) || !cert.NotAfter.Equal(got.NotAfter) {
		t.Error("the certificate says otherwise")
	}
}

func TestNothingOutlivesItsIssuer(t *testing.T) {
	t.Parallel()
	now := on(2026, time.October, 1)
	c := catest.New(t, unlinted, func(cfg *ca.Config) { cfg.Clock = func() time.Time { return now } })
	end := c.Issuer.Cert.NotAfter
	now = end.Add(-day)
	if got := c.Certificate(t, "www.example.com"); !got.NotAfter.Equal(end) {
		t.Errorf("notAfter %s, issuer's %s", got.NotAfter, end)
	}
	if err := c.CheckValidity("", time.Time{}, end.Add(time.Second)); err == nil {
		t.Error("more than the issuer's life may be asked for")
	}
	for _, wrong := range []time.Time{end, end.Add(day), c.Issuer.Cert.NotBefore.Add(-day)} {
		now = wrong
		if _, err := c.Issue(t.Context(), catest.Request(t, "www.example.com"), c.Store.PlainLedger()); err == nil {
			t.Errorf("issued at %s", wrong)
		}
	}
}

func TestRequestedDatesAreWithinTheProfile(t *testing.T) {
	t.Parallel()
	now := on(2026, time.October, 1)
	c := catest.New(t, unlinted, at(now), func(cfg *ca.Config) {
		cfg.Profiles = append(cfg.Profiles, ca.Profile{Name: "fixed", Validity: day})
	})
	zero := time.Time{}
	for _, tt := range []struct {
		profile       string
		before, after time.Time
		ok            bool
	}{
		{"server", zero, zero, true},
		{"server", now, now.Add(day), true},
		{"server", zero, now.Add(day), true},
		{"server", now.Add(-time.Hour), zero, true},
		{"server", now.Add(29 * day), zero, true},
		{"server", now.Add(-2 * time.Hour), zero, false},
		{"server", now.Add(31 * day), zero, false},
		{"server", zero, now.Add(91 * day), false},
		{"server", zero, now, false},
		{"server", now.Add(day), now.Add(day), false},
		{"server", now, now.Add(-day), false},
		{"fixed", zero, zero, true},
		{"fixed", now, zero, false},
		{"fixed", zero, now.Add(time.Hour), false},
	} {
		err := c.CheckValidity(tt.profile, tt.before, tt.after)
		if (err == nil) != tt.ok {
			t.Errorf("%s: %s to %s: %v", tt.profile, tt.before, tt.after, err)
		}
		if err != nil {
			wantRefusal(t, err, ca.BadValidity)
		}
	}
	req := catest.Request(t, "www.example.com")
	req.NotBefore, req.NotAfter = now.Add(time.Minute+time.Millisecond), now.Add(day)
	got, err := c.Issue(t.Context(), req, c.Store.PlainLedger())
	if err != nil || !got.NotBefore.Equal(now.Add(time.Minute)) || !got.NotAfter.Equal(now.Add(day)) {
		t.Errorf("%s to %s, error %v", got.NotBefore, got.NotAfter, err)
	}
}
