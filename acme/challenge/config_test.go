package challenge_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/acme/challenge"
)

func mustNew(t *testing.T, cfg challenge.Config) *challenge.Validator {
	t.Helper()
	v, err := challenge.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestBadConfigurationIsRefused(t *testing.T) {
	t.Parallel()
	for what, cfg := range map[string]challenge.Config{
		"port":    {Resolver: "127.0.0.1", HTTPPort: 65536},
		"https":   {Resolver: "127.0.0.1", HTTPSPort: -1},
		"timeout": {Resolver: "127.0.0.1", Timeout: -time.Second},
		"body":    {Resolver: "127.0.0.1", MaxBody: -1},
		"prefix":  {Resolver: "127.0.0.1", Allow: []netip.Prefix{{}}},
	} {
		if _, err := challenge.New(cfg); err == nil {
			t.Errorf("%s was accepted", what)
		}
	}
}

func TestResolverGetsItsPort(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"192.0.2.53": "192.0.2.53:53", "192.0.2.53:5353": "192.0.2.53:5353",
		"2001:db8::53": "[2001:db8::53]:53", "[2001:db8::53]": "[2001:db8::53]:53", "[2001:db8::53]:5353": "[2001:db8::53]:5353",
	} {
		q := validation(acme.DNS01)
		q.Identifier.Value = "" // ends before the network
		if rec, _ := mustNew(t, challenge.Config{Resolver: given}).Validate(t.Context(), q); rec.Resolver != want {
			t.Errorf("%s became %s, want %s", given, rec.Resolver, want)
		}
	}
}

func TestQueriesAndValidationsAreCounted(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	cfg := config(newNameServer(t, txt(dnsText())), 80)
	cfg.Registerer = reg
	_, p := validate(t, cfg, acme.DNS01)
	wantPass(t, p)
	families, err := reg.Gather()
	if err != nil || len(families) != 2 {
		t.Errorf("%d metrics, %v", len(families), err)
	}
	if _, err := challenge.New(cfg); err == nil {
		t.Error("the metrics were registered twice")
	}
}
