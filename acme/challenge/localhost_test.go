package challenge_test

import (
	"net/http"
	"net/netip"
	"testing"

	"github.com/secsy-pki/secsy-pki/acme"
)

// TestLocalhostIsNotAskedOfTheDNS holds RFC 6761 §6.3: no resolver can send a
// name below localhost elsewhere, and policy decides as for any other address.
func TestLocalhostIsNotAskedOfTheDNS(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t) // knows no names
	v := validation(acme.HTTP01)
	v.Identifier.Value = "demo.localhost"
	cfg := config(ns, serveHTTP(t, text(http.StatusOK, v.KeyAuthorization)))
	if _, p := mustNew(t, cfg).Validate(t.Context(), v); p != nil {
		t.Errorf("with loopback allowed: %v", p)
	}
	cfg.Allow, cfg.Deny = nil, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	_, p := mustNew(t, cfg).Validate(t.Context(), v)
	wantProblem(t, p, acme.DNSError, "no address that this server may connect to")
}
