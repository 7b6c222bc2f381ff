package peer_test

import (
	"net/netip"
	"testing"

	"github.com/secsy-pki/secsy-pki/peer"
)

// Whoever has one address of an IPv6 /64 has all; a mapped IPv4 address is one
// client, and not everybody's.
func TestAClientIsItsIPv4AddressOrItsIPv6Network(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"192.0.2.7":           "192.0.2.7/32",
		"::ffff:192.0.2.7":    "192.0.2.7/32",
		"2001:db8:1:2:3::4":   "2001:db8:1:2::/64",
		"2001:db8:1:2:ffff::": "2001:db8:1:2::/64",
		"2001:db8:1:3::":      "2001:db8:1:3::/64",
		"fe80::1%eth0":        "fe80::/64",
	} {
		a := netip.MustParseAddr(addr)
		if got := peer.NetworkName(a); got != want || peer.Network(a).String() != want {
			t.Errorf("%s is in %q, want %q", addr, got, want)
		}
	}
	if got := peer.NetworkName(netip.Addr{}); got != "" || peer.Network(netip.Addr{}).IsValid() {
		t.Errorf("no address is in %q", got)
	}
}
