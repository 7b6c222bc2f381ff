package ca_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
)

func public(cfg *ca.Config) {
	unlinted(cfg)
	cfg.Policy = ca.Public
}

var longLabel = strings.Repeat("a", 63)

// dnsNames are dns identifiers, and whether each policy allows them.
var dnsNames = []struct {
	name             string
	internal, public bool
}{
	{"www.example.com", true, true},
	{"*.example.com", true, true},
	{"xn--bcher-kva.example.com", true, true},
	{"a.b.c.d.e.f.example.co.uk", true, true},
	{"1.example.com", true, true},
	{"1-2--3.example.com", true, true},
	{"foo.github.io", true, true},
	{"*.github.io", true, true}, // a private suffix is its owner's to cover
	{longLabel + ".example.com", true, true},
	// Names of a private network.
	{"printer", true, false},
	{"printer.local", true, false},
	{"db.corp.internal", true, false},
	{"*.corp.internal", true, false},
	{"host.home.arpa", true, false},
	{"1.2.0.192.in-addr.arpa", true, false},
	{"ab--cd.example.com", true, false},
	{"com", true, false},
	{"co.uk", true, false},
	{"*.co.uk", true, false},
	{"*.com", false, false},
	// No names at all.
	{"", false, false},
	{".", false, false},
	{"*", false, false},
	{"*.", false, false},
	{"example.com.", false, false},
	{".example.com", false, false},
	{"www..example.com", false, false},
	{"WWW.example.com", false, false},
	{"www.exa_mple.com", false, false},
	{"_acme-challenge.example.com", false, false},
	{"-www.example.com", false, false},
	{"www-.example.com", false, false},
	{"w*.example.com", false, false},
	{"www.*.example.com", false, false},
	{"*.*.example.com", false, false},
	{"bücher.example.com", false, false},
	{"xn--.example.com", false, false},
	{"xn--a.example.com", false, false},
	{"xn--zzzzzzzzzzzzzzzzzzzzzzzz.example.com", false, false},
	{"www.example.com\x00.evil.example", false, false},
	{"www example.com", false, false},
	{"192.0.2.1", false, false},
	{"2001:db8::1", false, false},
	{"1.2.3", false, false},
	{"example.123", false, false},
	{"*.192.0.2.1", false, false},
	{longLabel + "a.example.com", false, false},
	{strings.Repeat("a.", 124) + "example.com", false, false},
}

func TestNamesAreRefusedByPolicy(t *testing.T) {
	t.Parallel()
	internal, pub := catest.New(t, unlinted), catest.New(t, public)
	for _, tt := range dnsNames {
		ids := []ca.Identifier{{Type: ca.DNS, Value: tt.name}}
		for policy, c := range map[string]*catest.CA{"internal": internal, "public": pub} {
			want := tt.internal
			if policy == "public" {
				want = tt.public
			}
			err := c.CheckIdentifiers(t.Context(), "", ids)
			if (err == nil) != want {
				t.Errorf("%s: %q: error %v", policy, tt.name, err)
			}
			if err != nil {
				if r := refusal(t, err, ca.RejectedIdentifier); r.Identifier == nil || r.Identifier.Value != tt.name || r.Detail == "" {
					t.Errorf("%q: refusal %+v", tt.name, r)
				}
			}
		}
	}
}

// No name that a policy allows fails at the linter, which speaks to operators only.
func TestAllowedNamesPassTheLinter(t *testing.T) {
	t.Parallel()
	internal, pub := catest.New(t), catest.New(t, func(cfg *ca.Config) { cfg.Policy = ca.Public })
	for _, tt := range dnsNames {
		if tt.internal {
			internal.Certificate(t, tt.name)
		}
		if tt.public {
			pub.Certificate(t, tt.name)
		}
	}
	internal.Certificate(t, "10.1.2.3", "127.0.0.1", "::1", "fd00::1", "2001:db8::1", "169.254.169.254")
	pub.Certificate(t, "8.8.8.8", "2606:4700::1111")
}

func TestAddressesAreRefusedByPolicy(t *testing.T) {
	t.Parallel()
	internal, pub := catest.New(t, unlinted), catest.New(t, public)
	for _, tt := range []struct {
		addr             string
		internal, public bool
	}{
		{"8.8.8.8", true, true},
		{"2606:4700::1111", true, true},
		{"10.1.2.3", true, false},
		{"127.0.0.1", true, false},
		{"::1", true, false},
		{"fd00::1", true, false},
		{"fe80::1", true, false},
		{"100.64.0.1", true, false},
		{"192.0.2.1", true, false},
		{"2001:db8::1", true, false},
		{"169.254.169.254", true, false},
		{"255.255.255.255", true, false},
		{"0.0.0.0", false, false},
		{"::", false, false},
		{"224.0.0.1", false, false},
		{"ff02::1", false, false},
		{"fe80::1%eth0", false, false},
		{"::ffff:8.8.8.8", false, false},
		{"2606:4700:0::1111", false, false},
		{"2606:4700::ABCD", false, false},
		{"08.8.8.8", false, false},
		{"8.8.8", false, false},
		{"www.example.com", false, false},
		{"", false, false},
	} {
		ids := []ca.Identifier{{Type: ca.IP, Value: tt.addr}}
		if err := internal.CheckIdentifiers(t.Context(), "", ids); (err == nil) != tt.internal {
			t.Errorf("internal: %q: error %v", tt.addr, err)
		}
		if err := pub.CheckIdentifiers(t.Context(), "", ids); (err == nil) != tt.public {
			t.Errorf("public: %q: error %v", tt.addr, err)
		}
	}
}

func TestEachNameAtFaultIsNamed(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	err := c.CheckIdentifiers(t.Context(), "", []ca.Identifier{
		{Type: ca.DNS, Value: "good.example.com"}, {Type: ca.DNS, Value: "bad_.example.com"}, {Type: "email", Value: "a@example.com"}, {Type: ca.IP, Value: "x"},
	})
	r := refusal(t, err, ca.RejectedIdentifier)
	if r.Identifier.Value != "bad_.example.com" || len(r.Others) != 2 {
		t.Fatalf("refusal %+v", r)
	}
	if r.Others[0].Code != ca.Unsupported || r.Others[0].Identifier.Value != "a@example.com" || r.Others[1].Identifier.Value != "x" {
		t.Errorf("others %v", r.Others)
	}
}

func TestProfileLimitsNames(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted, func(cfg *ca.Config) {
		cfg.Profiles = append(cfg.Profiles, ca.Profile{
			Name: "narrow", Validity: time.Hour, Names: []ca.NameKind{ca.KindDNS, ca.KindIP}, MaxNames: 2,
			PermittedDNS: []string{"example.com"}, ExcludedDNS: []string{"secret.example.com"},
			PermittedIP: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, ExcludedIP: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")},
		}, ca.Profile{Name: "wild", Validity: time.Hour, Names: []ca.NameKind{ca.KindWildcard}, ExcludedDNS: []string{"secret.example.com"}})
	})
	for _, tt := range []struct {
		profile string
		names   []string
		code    ca.Code // "" means allowed
	}{
		{"narrow", []string{"example.com", "10.1.1.1"}, ""},
		{"narrow", []string{"www.example.com"}, ""},
		{"narrow", []string{"notexample.com"}, ca.RejectedIdentifier},
		{"narrow", []string{"secret.example.com"}, ca.RejectedIdentifier},
		{"narrow", []string{"a.secret.example.com"}, ca.RejectedIdentifier},
		{"narrow", []string{"*.example.com"}, ca.RejectedIdentifier},
		{"narrow", []string{"192.168.0.1"}, ca.RejectedIdentifier},
		{"narrow", []string{"10.9.1.1"}, ca.RejectedIdentifier},
		{"narrow", []string{"a.example.com", "b.example.com", "c.example.com"}, ca.RejectedIdentifier},
		{"narrow", nil, ca.RejectedIdentifier},
		{"wild", []string{"*.example.org"}, ""},
		{"wild", []string{"*.example.com"}, ca.RejectedIdentifier}, // would cover secret.example.com
		{"wild", []string{"www.example.org"}, ca.Unsupported},
		{"wild", []string{"10.1.1.1"}, ca.Unsupported},
		{"none", []string{"www.example.com"}, ca.UnknownProfile},
		{ca.ProfileResponder, []string{"www.example.com"}, ca.RejectedIdentifier},
	} {
		err := c.CheckIdentifiers(t.Context(), tt.profile, catest.IDs(tt.names...))
		if tt.code == "" && err != nil {
			t.Errorf("%s: %v: %v", tt.profile, tt.names, err)
		}
		if tt.code != "" {
			wantRefusal(t, err, tt.code)
		}
	}
}

func TestNormalizingLowersAndLeavesOutRepetitions(t *testing.T) {
	t.Parallel()
	got := ca.NormalizeIdentifiers([]ca.Identifier{
		{Type: ca.DNS, Value: "B.Example"},
		{Type: ca.DNS, Value: "a.example"},
		{Type: ca.DNS, Value: "b.example"},
		{Type: ca.IP, Value: "2001:DB8:0::1"},
		{Type: ca.IP, Value: "2001:db8::1"},
		{Type: ca.DNS, Value: "\u212a.example"},
		{Type: ca.IP, Value: "x"},
	})
	want := []ca.Identifier{
		{Type: ca.DNS, Value: "b.example"},
		{Type: ca.DNS, Value: "a.example"},
		{Type: ca.IP, Value: "2001:db8::1"},
		{Type: ca.DNS, Value: "\u212a.example"},
		{Type: ca.IP, Value: "x"},
	}
	if len(got) != len(want) {
		t.Fatalf("%v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%v, want %v", got[i], want[i])
		}
	}
}

func TestReverseZonesAreRefusedSinceTheirDate(t *testing.T) {
	t.Parallel()
	for at, allowed := range map[time.Time]bool{
		time.Date(2026, time.March, 14, 23, 59, 59, 0, time.UTC): true,
		time.Date(2026, time.March, 15, 0, 0, 0, 0, time.UTC):    false,
	} {
		c := catest.New(t, public, func(cfg *ca.Config) { cfg.Clock = func() time.Time { return at } })
		if err := c.CheckIdentifiers(t.Context(), "", catest.IDs("host.e164.arpa")); (err == nil) != allowed {
			t.Errorf("%s: %v", at, err)
		}
	}
}

// What is accepted is a name in its one spelling, in either policy, and what
// the public policy accepts the internal one accepts too.
func FuzzCheckIdentifiers(f *testing.F) {
	for _, s := range []string{"www.example.com", "*.example.com", "xn--bcher-kva.example", "192.0.2.1", "2001:db8::1", "a..b", "*", "\xff", "xn--a", "host"} {
		f.Add(s, true)
		f.Add(s, false)
	}
	internal, pub := catest.New(f, unlinted), catest.New(f, public)
	f.Fuzz(func(t *testing.T, value string, isIP bool) {
		id := ca.Identifier{Type: ca.DNS, Value: value}
		if isIP {
			id.Type = ca.IP
		}
		ids := []ca.Identifier{id}
		err := internal.CheckIdentifiers(t.Context(), "", ids)
		if pubErr := pub.CheckIdentifiers(t.Context(), "", ids); pubErr == nil && err != nil {
			t.Errorf("%q is allowed in public only: %v", value, err)
		}
		norm := ca.NormalizeIdentifiers(ids)
		if again := ca.NormalizeIdentifiers(norm); again[0] != norm[0] {
			t.Errorf("%q changes twice: %q, %q", value, norm[0].Value, again[0].Value)
		}
		if err != nil {
			return
		}
		if norm[0] != id {
			t.Errorf("%q is accepted, but normalised to %q", value, norm[0].Value)
		}
		if _, perr := netip.ParseAddr(value); (perr == nil) != isIP {
			t.Errorf("%q as %s", value, id.Type)
		}
		if strings.Trim(value, "abcdefghijklmnopqrstuvwxyz0123456789-.:*") != "" || len(value) > 255 {
			t.Errorf("%q has other characters than names", value)
		}
	})
}
