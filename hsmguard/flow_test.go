package hsmguard

import (
	"context"
	"net/netip"
	"testing"

	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/peer"
)

// A name that is proven shares with nobody; without one, it is the network that
// one customer has, so that an IPv6 host does not have 2^64 shares of a device.
func TestAFlowIsTheProvenIdentityElseTheNetworkElseTheKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ addr, identity, want string }{
		{"192.0.2.7", "acme:account/7", "acme:account/7"},
		{"192.0.2.7", "", "192.0.2.7/32"},
		{"::ffff:192.0.2.7", "", "192.0.2.7/32"},
		{"2001:db8:1:2:3:4:5:6", "", "2001:db8:1:2::/64"},
		{"2001:db8:1:2:ffff:4:5:6", "", "2001:db8:1:2::/64"},
		{"2001:db8:1:3::6", "", "2001:db8:1:3::/64"},
		{"fe80::1%eth0", "", "fe80::/64"},
		{"", "", "key:ca"},
		{"", "est:user", "est:user"},
	} {
		var p peer.Peer
		if c.addr != "" {
			p.Addr = netip.MustParseAddr(c.addr)
		}
		ctx := peer.With(t.Context(), p)
		if c.identity != "" {
			ctx = peer.WithIdentity(ctx, c.identity)
		}
		if got := flowOf(ctx, "ca"); got != c.want {
			t.Errorf("%q as %q: flow %q, want %q", c.addr, c.identity, got, c.want)
		}
	}
	if got := flowOf(context.Background(), "ca"); got != "key:ca" {
		t.Errorf("nobody's flow is %q", got)
	}
}

func TestEveryPurposeHasItsClass(t *testing.T) {
	t.Parallel()
	for p, want := range map[keys.Purpose]gate.Class{
		keys.ForIssuance: gate.Issuance, keys.ForRenewal: gate.Renewal, keys.ForStatus: gate.Status,
		keys.ForRevocation: gate.Revocation, keys.ForOne: gate.Anonymous, keys.ForAhead: gate.Ahead, keys.ForAhead + 1: gate.Issuance,
	} {
		if got := classOf(keys.WithPurpose(t.Context(), p)); got != want {
			t.Errorf("purpose %d: class %s, want %s", p, got, want)
		}
	}
	if got := classOf(context.Background()); got != gate.Issuance {
		t.Errorf("no purpose: class %s", got)
	}
}
