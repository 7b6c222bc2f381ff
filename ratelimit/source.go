package ratelimit

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
	"net/netip"
)

// An address is a source as the tiers see it: without a zone, IPv4 in its
// IPv6-mapped form, which no IPv6 source has.
type address struct{ hi, lo uint64 }

const mapped = 0xffff << 32

func (a address) is4() bool { return a.hi == 0 && a.lo>>32 == mapped>>32 }

// masked keeps the first n bits of 128.
func (a address) masked(n int) address {
	switch {
	case n <= 0:
		return address{}
	case n <= 64:
		return address{hi: a.hi >> (64 - n) << (64 - n)}
	}
	return address{hi: a.hi, lo: a.lo >> (128 - n) << (128 - n)}
}

// compare orders addresses.
func (a address) less(b address) bool { return a.hi < b.hi || a.hi == b.hi && a.lo < b.lo }

func addressOf(a netip.Addr) address {
	if a.Is4() {
		b := a.As4()
		return address{lo: mapped | uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16() // leaves out the zone
	return address{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// A span is a prefix of addresses.
type span struct {
	address
	bits int // of 128
}

func (p span) contains(a address) bool { return a.masked(p.bits) == p.address }

// spanOf is p as the tiers see it. An IPv4 prefix may be written in its mapped
// form.
func spanOf(p netip.Prefix) (span, error) {
	if !p.IsValid() {
		return span{}, fmt.Errorf("%q is no prefix", p)
	}
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	if p.Addr().Is4In6() && bits < 96 {
		return span{}, fmt.Errorf("%s holds more than IPv4 addresses, and is written as one of them", p)
	}
	return span{addressOf(p.Addr()).masked(bits), bits}, nil
}

// translations are the prefixes of NAT64: an address within them stands for the
// IPv4 address in its last 32 bits (RFC 6052 §2.2).
type translations []span

func newTranslations(prefixes []netip.Prefix) (translations, error) {
	var t translations
	for i, p := range prefixes {
		if !p.IsValid() || !p.Addr().Is6() || p.Addr().Is4In6() || p.Bits() > 96 {
			return nil, fmt.Errorf("nat64[%d]: %s is no IPv6 prefix with room for an IPv4 address", i, p)
		}
		s, err := spanOf(p)
		if err != nil {
			return nil, fmt.Errorf("nat64[%d]: %w", i, err)
		}
		t = append(t, s)
	}
	return t, nil
}

func (t translations) apply(a address) address {
	for _, p := range t {
		if p.contains(a) {
			return address{lo: mapped | a.lo&0xffffffff}
		}
	}
	return a
}

// A key is what a bucket of a tier is found by.
type key struct {
	address  address
	name     uint64 // hash of an account's
	endpoint uint16
	bits     uint8 // of the address
	group    Group // of endpoints; 0 where a tier knows none
}

// A hasher is the secret of a limiter's tables: nobody outside can tell which
// keys share a set.
type hasher struct {
	names maphash.Seed
	keys  [4]uint64
}

func newHasher() hasher {
	h := hasher{names: maphash.MakeSeed()}
	for i := range h.keys {
		h.keys[i] = rand.Uint64()
	}
	return h
}

// sum is the hash of k in a tier.
func (h *hasher) sum(k key, tier Tier) uint64 {
	what := uint64(tier) | uint64(k.bits)<<8 | uint64(k.endpoint)<<16 | uint64(k.group)<<32
	x := fold(k.address.hi^h.keys[0], k.address.lo^h.keys[1])
	return fold(x^k.name^h.keys[2], what^h.keys[3])
}

// fold multiplies and lays both halves of the product upon each other, so that
// each bit of the result depends on all of a and b.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// name is the hash of an account's name.
func (h *hasher) name(account string) uint64 { return maphash.String(h.names, account) }

// clientBits is how much of an IPv6 address is one client: the smallest network
// that hosts are given (RFC 6177, RFC 7421).
const clientBits = 64

// siteBits is how much of an IPv6 address is one customer of an internet provider, at most.
const siteBits = 48
