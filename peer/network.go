package peer

import "net/netip"

// networkBits is how much of an IPv6 address is one client: the smallest network
// that hosts are given (RFC 6177, RFC 7421).
const networkBits = 64

// Network is what one client commonly has of addresses: an IPv4 address, or the
// /64 around an IPv6 address, as whoever has one address of it has all. No
// address has no network.
func Network(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	return netip.PrefixFrom(a, min(networkBits, a.BitLen())).Masked()
}

// NetworkName names the network of a, "" for that of no address.
func NetworkName(a netip.Addr) string {
	if n := Network(a); n.IsValid() {
		return n.String()
	}
	return ""
}
