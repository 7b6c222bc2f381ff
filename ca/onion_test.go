package ca_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
)

// Addresses of services that are, or were, there.
const (
	onionBBC = "bbcweb3hytmzhn5d532owbu6oqadra5z3ar726vq5kgwwn6aucdccrad.onion"
	onionRFC = "5anebu2glyc235wbbop3m2ukzlaptpkq333vdtdvcjpigyb7x2i2m2qd.onion"
)

func TestOnlyOnionsOfVersion3AreNames(t *testing.T) {
	t.Parallel()
	for _, policy := range []ca.Policy{ca.Internal, ca.Public} {
		c := catest.New(t, func(cfg *ca.Config) { cfg.Policy = policy })
		for _, name := range []string{onionBBC, "www." + onionBBC, "*." + onionRFC, "a.b." + onionRFC} {
			if err := c.CheckIdentifiers(t.Context(), "", catest.IDs(name)); err != nil {
				t.Errorf("%s: %s: %v", policy, name, err)
			}
		}
		for _, name := range []string{
			"onion", "*.onion", "example.onion", "expyuzz4wqqyqhjn.onion", // the last is of version 2
			onionBBC[:55] + ".onion", "a" + onionBBC[1:], onionBBC[:54] + "ae.onion", "bbcweb3hytmzhn5d532owbu6oqadra5z3ar726vq5kgwwn6aucdccrad.onion.onion",
		} {
			err := c.CheckIdentifiers(t.Context(), "", catest.IDs(name))
			if r, ok := errors.AsType[*ca.Refusal](err); !ok || r.Code != ca.RejectedIdentifier {
				t.Errorf("%s: %s: %v, want rejected", policy, name, err)
			}
		}
	}
}

// The name of a service is its key, and back.
func TestOnionNameIsItsKey(t *testing.T) {
	t.Parallel()
	for range 20 {
		pub, _, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		name := ca.OnionName(pub)
		service, key, ok := ca.OnionService("www." + name)
		if !ok || service != name || !key.Equal(pub) {
			t.Errorf("%s: %s, %x, %t", name, service, key, ok)
		}
	}
	if _, _, ok := ca.OnionService(strings.ToUpper(onionBBC)); ok {
		t.Error("upper case is another spelling")
	}
}
