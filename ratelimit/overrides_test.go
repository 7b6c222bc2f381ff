package ratelimit

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// TestTheLongestPrefixCounts: whatever the order in which they are written.
func TestTheLongestPrefixCounts(t *testing.T) {
	t.Parallel()
	bucket := func(burst int) Bucket { return Bucket{Rate: 0.001, Burst: burst} }
	cfg := Config{PerIP: bucket(1), PrefixFactor: 100, Overrides: []Override{
		{Source: prefix("10.1.2.0/24"), Bucket: bucket(4)},
		{Source: prefix("10.0.0.0/8"), Bucket: bucket(2)},
		{Source: prefix("10.1.0.0/16"), Bucket: bucket(3)},
		{Source: prefix("10.1.2.3/32"), Bucket: bucket(5)},
		{Source: prefix("10.1.2.128/25"), Exempt: true},
		{Source: prefix("2001:db8::/32"), Bucket: bucket(6)},
		{Source: prefix("2001:db8:1::/48"), Bucket: bucket(7)},
		{Source: prefix("255.255.255.255/32"), Bucket: bucket(8)},
		{Source: prefix("ffff:ffff:ffff:ffff::/64"), Bucket: bucket(9)},
		{Source: prefix("::ffff:172.16.9.9/116"), Bucket: bucket(10)}, // of 172.16.0.0/20
	}}
	l, _ := newTest(t, cfg)
	e := l.Endpoint("order", EndpointOptions{})
	for source, want := range map[string]int{
		"9.255.255.255": 1, "10.0.0.0": 2, "10.0.255.255": 2, "10.1.0.0": 3, "10.1.1.255": 3, "10.1.2.0": 4, "10.1.2.2": 4,
		"10.1.2.3": 5, "10.1.2.4": 4, "10.1.2.128": 50, "10.1.2.255": 50, "10.1.3.0": 3, "10.1.255.255": 3, "10.2.0.0": 2, "11.0.0.0": 1,
		"::ffff:10.1.2.5": 4, "2001:db7:ffff::": 1, "2001:db8:0:1::": 6, "2001:db8:1:1::": 7, "2001:db8:2::": 6, "2001:db9::": 1,
		"255.255.255.255": 8, "255.255.255.254": 1, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff": 9, "172.16.0.0": 10, "172.16.16.0": 1,
	} {
		if n := admits(e, ip(source), 50); n != want {
			t.Errorf("%s: %d admitted, want %d", source, n, want)
		}
	}
}

// TestFindAgreesWithTryingAllPrefixes: on random prefixes, nested and adjacent.
func TestFindAgreesWithTryingAllPrefixes(t *testing.T) {
	t.Parallel()
	for range 200 {
		rules, seen := []sourceRule{}, map[span]bool{}
		for i := range 1 + rand.IntN(40) {
			s, err := spanOf(randomPrefix(t))
			if err != nil {
				t.Fatal(err)
			}
			if !seen[s] {
				seen[s] = true
				rules = append(rules, sourceRule{s, rule{class: uint16(i + 1), bits: uint8(s.bits)}})
			}
		}
		sources := newSources(rules)
		if len(sources) > 2*len(rules)+3 {
			t.Fatalf("%d pieces of %d prefixes", len(sources), len(rules))
		}
		for _, a := range probes(rules) {
			if got, want := sources.find(a), longest(rules, a); got != want {
				t.Fatalf("%x: found %+v, want %+v of %+v", a, got, want, rules)
			}
		}
	}
}

// randomPrefix is dense, so that many overlap.
func randomPrefix(t *testing.T) netip.Prefix {
	t.Helper()
	a := netip.AddrFrom4([4]byte{10, byte(rand.IntN(2)), byte(rand.IntN(2)), byte(rand.IntN(4))})
	if rand.IntN(2) == 0 {
		b := [16]byte{15: byte(rand.IntN(4))}
		b[0], b[7] = byte(rand.IntN(2))*255, byte(rand.IntN(4))
		a = netip.AddrFrom16(b)
	}
	p, err := a.Prefix(rand.IntN(a.BitLen() + 1))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// probes are the borders of all rules, from either side.
func probes(rules []sourceRule) []address {
	var out []address
	for _, r := range rules {
		before, last := r.address, r.last()
		if before.lo--; before.lo == ^uint64(0) {
			before.hi--
		}
		after, _ := last.next()
		out = append(out, before, r.address, last, after)
	}
	return append(out, address{}, address{lo: mapped}, address{lo: mapped | 0xffffffff}, address{lo: mapped - 1}, address{lo: mapped + 1<<32})
}

// longest tries all. An IPv6 prefix has no say about IPv4 sources.
func longest(rules []sourceRule, a address) rule {
	best, bits := common, -1
	for _, r := range rules {
		if r.contains(a) && r.bits > bits && (!a.is4() || r.bits >= 96) {
			best, bits = r.rule, r.bits
		}
	}
	return best
}

// TestTenThousandOverridesAllHold: as many as there may be, each with its own bucket.
func TestTenThousandOverridesAllHold(t *testing.T) {
	t.Parallel()
	cfg := Config{PerIP: Bucket{Rate: 0.001, Burst: 1}, MaxKeys: 200_000}
	for i := range uint32(maxOverrides) {
		cfg.Overrides = append(cfg.Overrides, Override{Source: netip.PrefixFrom(v4(i<<8), 24), Bucket: Bucket{Rate: 0.001, Burst: 2 + int(i%3)}})
	}
	l, _ := newTest(t, cfg)
	e := l.Endpoint("order", EndpointOptions{})
	for i := range uint32(maxOverrides) {
		if n := admits(e, v4(i<<8+i%256), 6); n != 2+int(i%3) {
			t.Fatalf("override %d: %d admitted", i, n)
		}
	}
}

// TestAnOverrideGivesEachAddressItsOwnBucket: and an IPv6 site that has one is a
// multiple of that, apart from the rest if it is a part of the site.
func TestAnOverrideGivesEachAddressItsOwnBucket(t *testing.T) {
	t.Parallel()
	big := Bucket{Rate: 0.001, Burst: 20}
	l, _ := newTest(t, Config{PerIP: Bucket{Rate: 0.001, Burst: 5}, PrefixFactor: 2, Overrides: []Override{
		{Source: prefix("192.0.2.0/24"), Bucket: big},
		{Source: prefix("2001:db8:1::/48"), Bucket: big},
		{Source: prefix("2001:db8:2:100::/56"), Bucket: big},
		{Source: prefix("2001:db8:3:1:8000::/65"), Bucket: big},
	}})
	e := l.Endpoint("order", EndpointOptions{})
	for _, c := range []struct {
		source string
		want   int
		tier   Tier
	}{
		{alice, 20, PerIP},
		{bob, 20, PerIP},
		{"2001:db8:1:1::1", 20, PerIP},
		{"2001:db8:1:2::1", 20, PerIP},
		{"2001:db8:1:3::1", 0, PerPrefix}, // 40 for the site
		{"2001:db8:2:1::1", 5, PerIP},
		{"2001:db8:2:100::1", 20, PerIP}, // doesn't share with the rest of its site
		{"2001:db8:2:2::1", 5, PerIP},
		{"2001:db8:2:3::1", 0, PerPrefix},
		{"2001:db8:2:101::1", 20, PerIP},
		{"2001:db8:2:102::1", 0, PerPrefix},
		{"2001:db8:3:1::1", 5, PerIP}, // half a client
		{"2001:db8:3:1:8000::1", 20, PerIP},
		{"2001:db8:3:1:8000::2", 0, PerIP},
	} {
		if n := admits(e, ip(c.source), 100); n != c.want {
			t.Errorf("%s: %d admitted, want %d", c.source, n, c.want)
		}
		if d := e.Admit(ip(c.source)); d.Tier != c.tier {
			t.Errorf("%s is refused by %s, want %s", c.source, d.Tier, c.tier)
		}
	}
}

// TestAnExemptSourceIsHeldByWhatAllShare: by nothing of its own.
func TestAnExemptSourceIsHeldByWhatAllShare(t *testing.T) {
	t.Parallel()
	one := Bucket{Rate: 0.001, Burst: 1}
	l, _ := newTest(t, Config{
		PerIP: one, Global: Bucket{Rate: 1, Burst: 30}, Overrides: []Override{{Source: prefix("192.0.2.0/31"), Exempt: true}},
		Endpoints: map[string]EndpointLimit{"order": {PerIP: one, All: Bucket{Rate: 1, Burst: 25}}},
	})
	e, other := l.Endpoint("order", EndpointOptions{}), l.Endpoint("other", EndpointOptions{})
	if n := admits(e, ip(alice), 100); n != 25 {
		t.Errorf("%d admitted, want the 25 of the class", n)
	}
	e.FailedProof(ip(alice))
	if n := admits(other, ip(alice), 100); n != 5 {
		t.Errorf("%d admitted, want what is left of the global 30", n)
	}
	if d := other.Admit(ip(alice)); d.Tier != Global {
		t.Errorf("refused by %s", d.Tier)
	}
	wantRefusal(t, e.Admit(ip(bob)), EndpointAll, 1)
}

// TestAnAccountMayHaveABucketOfItsOwn: by proof and by claim, and no other account.
func TestAnAccountMayHaveABucketOfItsOwn(t *testing.T) {
	t.Parallel()
	for name, common := range map[string]Bucket{"common": {Rate: 0.001, Burst: 5}, "none": {}} {
		l, _ := newTest(t, Config{PerAccount: common, Overrides: []Override{
			{Account: "big", Bucket: Bucket{Rate: 0.001, Burst: 20}},
			{Account: "small", Bucket: Bucket{Rate: 0.001, Burst: 2}},
			{Account: "free", Exempt: true},
		}})
		e := l.Endpoint("order", EndpointOptions{})
		others := 5
		if name == "none" {
			others = 100
		}
		for account, want := range map[string]int{"big": 20, "small": 2, "free": 100, "other": others} {
			if n := proves(e, account, 100); n != want {
				t.Errorf("%s: %d of %q admitted, want %d", name, n, account, want)
			}
			n := 0
			for range 100 {
				if e.Claimed(ip(alice), account).OK {
					n++
				}
			}
			if n != want {
				t.Errorf("%s: %d claims of %q admitted, want %d", name, n, account, want)
			}
		}
	}
}

// BenchmarkOverrides is what ten thousand overrides cost a refusal.
func BenchmarkOverrides(b *testing.B) {
	cfg := Config{PerIP: Bucket{Rate: never, Burst: 1}}
	for i := range uint32(maxOverrides) {
		cfg.Overrides = append(cfg.Overrides, Override{Source: netip.PrefixFrom(v4(i<<16), 24), Bucket: Bucket{Rate: never, Burst: 1}})
	}
	e := benchEndpoint(b, cfg)
	for _, source := range []string{"0.7.0.1", "224.0.0.1"} {
		a := ip(source)
		exhaust(e, a)
		b.Run(fmt.Sprint(source), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				e.Admit(a)
			}
		})
	}
}
