package challenge

import (
	"net/netip"
	"strings"
)

// localhost says where a host is that is never asked of the DNS: "localhost"
// and all names below it are the machine itself (RFC 6761 §6.3). Policy still
// decides whether it may be connected to.
func localhost(host string) []netip.Addr {
	if host != "localhost" && !strings.HasSuffix(host, ".localhost") {
		return nil
	}
	return []netip.Addr{netip.IPv6Loopback(), netip.AddrFrom4([4]byte{127, 0, 0, 1})}
}
