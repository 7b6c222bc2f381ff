package challenge

import (
	"net/netip"
	"slices"
)

// A policy says which addresses may be connected to.
type policy struct {
	private     bool
	allow, deny []netip.Prefix
}

// The special-purpose registries of IANA (RFC 6890), as far as they are not
// covered by "outside 2000::/3".
var (
	privatePrefixes = prefixes(
		"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", // RFC 1918
		"100.64.0.0/10", // RFC 6598, carrier-grade NAT
		"fc00::/7",      // RFC 4193
	)
	specialPrefixes = prefixes(
		"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", // this network, loopback, link-local
		"192.0.0.0/24", "192.88.99.0/24", // IETF protocols, 6to4 relays
		"192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", // documentation
		"198.18.0.0/15",              // benchmarks
		"224.0.0.0/4", "240.0.0.0/4", // multicast, reserved and broadcast
		"2001::/23",     // IETF protocols: ORCHID, benchmarks, Teredo
		"2001:db8::/32", // documentation
		"3fff::/20",
	)
	globalUnicast = netip.MustParsePrefix("2000::/3")

	// IPv6 ranges that stand for IPv4 addresses.
	nat64  = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052
	sixTo4 = netip.MustParsePrefix("2002::/16")    // RFC 3056
	teredo = netip.MustParsePrefix("2001::/32")    // RFC 4380

	// metadata are the addresses at which clouds hand credentials to whoever
	// asks from inside. Not all of them are special-purpose.
	metadata = []netip.Addr{
		netip.MustParseAddr("169.254.169.254"), // most clouds
		netip.MustParseAddr("169.254.170.2"),   // containers on AWS
		netip.MustParseAddr("168.63.129.16"),   // Azure
		netip.MustParseAddr("100.100.100.200"), // Alibaba
		netip.MustParseAddr("192.0.0.192"),     // Oracle
		netip.MustParseAddr("fd00:ec2::254"),   // AWS
		netip.MustParseAddr("fd20:ce::254"),    // Google
	}
)

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range texts {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

// allowed reports whether addr may be connected to.
func (p policy) allowed(addr netip.Addr) bool {
	if !addr.IsValid() || addr.Zone() != "" {
		return false
	}
	addr = addr.Unmap()
	switch {
	case contains(p.deny, addr):
		return false
	case slices.Contains(metadata, addr):
		return slices.Contains(p.allow, netip.PrefixFrom(addr, addr.BitLen()))
	}
	if v4 := embedded(addr); len(v4) > 0 {
		return !slices.ContainsFunc(v4, func(a netip.Addr) bool { return !p.allowed(a) })
	}
	switch {
	case contains(p.allow, addr):
		return true
	case contains(privatePrefixes, addr):
		return p.private
	case contains(specialPrefixes, addr):
		return false
	}
	return addr.Is4() || globalUnicast.Contains(addr)
}

func contains(all []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// embedded lists the IPv4 addresses to which packets for an IPv6 one go on.
func embedded(addr netip.Addr) []netip.Addr {
	if !addr.Is6() {
		return nil
	}
	b := addr.As16()
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte(b[i : i+4])) }
	switch {
	case nat64.Contains(addr):
		return []netip.Addr{at(12)}
	case sixTo4.Contains(addr):
		return []netip.Addr{at(2)}
	case teredo.Contains(addr):
		server := at(4)
		for i := 12; i < 16; i++ {
			b[i] ^= 0xff // RFC 4380 §4: the client's address is obscured
		}
		return []netip.Addr{server, at(12)}
	}
	return nil
}
