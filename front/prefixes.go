package front

import (
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
)

// Prefixes is a set of addresses that can be replaced while requests read it,
// so that a reload needs no restart. A nil or empty set contains nothing.
type Prefixes struct {
	list atomic.Pointer[[]netip.Prefix]
}

// NewPrefixes returns the set of the given prefixes.
func NewPrefixes(list ...netip.Prefix) (*Prefixes, error) {
	p := &Prefixes{}
	if err := p.Set(list); err != nil {
		return nil, err
	}
	return p, nil
}

// Set replaces the set. If it returns an error, the old set stays.
func (p *Prefixes) Set(list []netip.Prefix) error {
	list = slices.Clone(list)
	for i, x := range list {
		if !x.IsValid() {
			return fmt.Errorf("prefix %d is not an address range", i+1)
		}
		if x.Addr().Is4In6() {
			// Callers are compared after unmapping, so this would never match.
			if x.Bits() < 96 {
				return fmt.Errorf("prefix %s mixes IPv4 and IPv6: write them as two", x)
			}
			x = netip.PrefixFrom(x.Addr().Unmap(), x.Bits()-96)
		}
		list[i] = x.Masked()
	}
	p.list.Store(&list)
	return nil
}

// Contains reports whether a is in the set. An invalid address never is.
func (p *Prefixes) Contains(a netip.Addr) bool {
	if p == nil {
		return false
	}
	list := p.list.Load()
	if list == nil {
		return false
	}
	a = plain(a)
	return slices.ContainsFunc(*list, func(x netip.Prefix) bool { return x.Contains(a) })
}

// plain is the one spelling of an address: IPv4 written as IPv6 is IPv4, and the
// name of our network card says nothing about the caller.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
