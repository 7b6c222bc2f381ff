package config

import (
	"strings"
	"testing"
)

// Nobody is refused for asking often unless the one switch is on, and then by
// the figures that the guide gives.
func TestAdmissionIsOffByDefaultAndSizedAsTheGuideSays(t *testing.T) {
	t.Parallel()
	c := mustParse(t, "").RateLimit
	if c.Enabled || c.Shadow || c.Quotas.ACMEIdentifiers.Limit != 0 {
		t.Errorf("an empty file has limits: %+v", c)
	}
	for name, tier := range map[string]struct {
		got, want Bucket
	}{
		"global":      {c.Global, Bucket{Rate: 200, Burst: 400}},
		"per_ip":      {c.PerIP, Bucket{Rate: 20, Burst: 40}},
		"per_account": {c.PerAccount, Bucket{Rate: 50, Burst: 100}},
	} {
		if tier.got != tier.want {
			t.Errorf("%s is %+v, want %+v", name, tier.got, tier.want)
		}
	}
	if c.MaxKeys != 100_000 || c.IdleTTLSeconds != 600 {
		t.Errorf("%d keys, %d s", c.MaxKeys, c.IdleTTLSeconds)
	}
	if want := (Concurrency{Enabled: true, MaxQueue: 64, AcquireTimeoutMS: 5000}); c.Concurrency != want {
		t.Errorf("concurrency is %+v, want %+v", c.Concurrency, want)
	}
}

// No figure of the section may be negative, in whatever part of it, and the
// error names the key.
func TestNoFigureOfAdmissionIsNegative(t *testing.T) {
	t.Parallel()
	for key, text := range map[string]string{
		"rate_limit.global.rate":                    "global: {rate: -1}",
		"rate_limit.global.burst":                   "global: {burst: -1}",
		"rate_limit.per_ip.rate":                    "per_ip: {rate: -0.5}",
		"rate_limit.per_ip.burst":                   "per_ip: {burst: -1}",
		"rate_limit.per_account.rate":               "per_account: {rate: -1/h}",
		"rate_limit.per_account.burst":              "per_account: {burst: -40}",
		"rate_limit.ipv6_prefix_factor":             "ipv6_prefix_factor: -4",
		"rate_limit.max_keys":                       "max_keys: -1",
		"rate_limit.idle_ttl_seconds":               "idle_ttl_seconds: -1",
		"rate_limit.endpoints[0].per_ip.burst":      "endpoints: [{name: crl, per_ip: {burst: -1}}]",
		"rate_limit.endpoints[0].total.rate":        "endpoints: [{name: crl, total: {rate: -1}}]",
		"rate_limit.overrides[0].rate":              "overrides: [{account: a, rate: -1, burst: 1}]",
		"rate_limit.overrides[0].burst":             "overrides: [{account: a, rate: 1, burst: -1}]",
		"rate_limit.concurrency.max_in_flight":      "concurrency: {max_in_flight: -1}",
		"rate_limit.concurrency.max_queue":          "concurrency: {max_queue: -1}",
		"rate_limit.concurrency.acquire_timeout_ms": "concurrency: {acquire_timeout_ms: -1}",
		"rate_limit.quotas.acme_identifiers.limit":  "quotas: {acme_identifiers: {limit: -1}}",
		"rate_limit.quotas.acme_identifiers.window": "quotas: {acme_identifiers: {window: -1h}}",
		"rate_limit.refusal_budget.free":            "refusal_budget: {free: -1}",
		"rate_limit.refusal_budget.max_delay":       "refusal_budget: {max_delay: -1s}",
		"rate_limit.refusal_budget.decay":           "refusal_budget: {decay: -1m}",
	} {
		// Also while it is off: SIGHUP may switch it on.
		for _, enabled := range []string{"true", "false"} {
			_, err := Parse("c.yaml", []byte("rate_limit: {enabled: "+enabled+", "+text+"}"))
			if err == nil || !strings.Contains(err.Error(), key+": ") {
				t.Errorf("%s: got %v, want an error that names %s", text, err, key)
			}
		}
	}
}
