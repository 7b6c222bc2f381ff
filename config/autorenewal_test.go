package config

import (
	"errors"
	"slices"
	"testing"
)

func TestAutoRenewalNeedsWhatItRestsOn(t *testing.T) {
	t.Parallel()
	const profile = "profiles: [{name: a, allow_requested_validity: true}]\n"
	for text, want := range map[string][]string{
		"acme: {auto_renewal: {max_duration: 300d}}\n":                                                                                                              nil, // off
		"acme: {auto_renewal: {enabled: true}}\n" + profile:                                                                                                         nil,
		"acme: {auto_renewal: {enabled: true}}\n":                                                                                                                   {"acme.auto_renewal.enabled"},
		"acme: {auto_renewal: {enabled: true, max_duration: 31d}}\n" + profile:                                                                                      {"acme.auto_renewal.max_duration"},
		"acme: {auto_renewal: {enabled: true, min_lifetime: 20d, max_duration: 10d}}\n" + profile:                                                                   {"acme.auto_renewal.min_lifetime"},
		"acme: {auto_renewal: {enabled: true}}\nprofiles: [{name: a, validity: 37h, allow_requested_validity: true}, {name: b}]\n":                                  {"acme.auto_renewal.min_lifetime"},
		"acme: {auto_renewal: {enabled: true}}\nprofiles: [{name: a, validity: 38h, allow_requested_validity: true}]\n":                                             nil,
		"policy: public\nacme: {caa_identities: [ca.example.org], validation: {dnssec: ad, resolver: \"127.0.0.1:53\"}, auto_renewal: {enabled: true}}\n" + profile: {"acme.auto_renewal.enabled"},
	} {
		_, err := Parse("c.yaml", []byte(text))
		list, _ := errors.AsType[Errors](err)
		var got []string
		for _, e := range list {
			got = append(got, e.Key)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q (%v)", text, got, want, err)
		}
	}
}
