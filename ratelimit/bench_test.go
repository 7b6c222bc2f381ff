package ratelimit

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// The benchmarks run with the clock of the process and the default bounds, as
// the program does. What they print in ns/op is wall time: `make bench-admission`
// compares processor time with other limiters.

func benchEndpoint(b *testing.B, cfg Config) *Endpoint {
	b.Helper()
	l, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	e := l.Endpoint("bench", EndpointOptions{})
	b.ReportAllocs()
	return e
}

// limits are the defaults of the configuration.
var limits = Config{
	Global:     Bucket{Rate: 200, Burst: 400},
	PerIP:      Bucket{Rate: 20, Burst: 40},
	PerAccount: Bucket{Rate: 50, Burst: 100},
}

// never gives back a token while a benchmark runs.
const never = 1e-5

// exhaust spends what a has.
func exhaust(e *Endpoint, a netip.Addr) {
	for e.Admit(a).OK {
	}
}

func BenchmarkRefused(b *testing.B) {
	cfg := limits
	cfg.PerIP.Rate = never
	e := benchEndpoint(b, cfg)
	a := netip.MustParseAddr("192.0.2.1")
	exhaust(e, a)
	b.Run("OneCaller", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			e.Admit(a)
		}
	})
	b.Run("ClockHandedIn", func(b *testing.B) {
		b.ReportAllocs()
		at := time.Now()
		for b.Loop() {
			e.AdmitAt(a, at)
		}
	})
	b.Run("Parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				e.Admit(a)
			}
		})
	})
	b.Run("IPv6", func(b *testing.B) {
		b.ReportAllocs()
		a := netip.MustParseAddr("2001:db8::1")
		exhaust(e, a)
		for b.Loop() {
			e.Admit(a)
		}
	})
}

func BenchmarkAdmitted(b *testing.B) {
	plenty := Bucket{Rate: 1e8, Burst: 1e9}
	e := benchEndpoint(b, Config{Global: plenty, PerIP: plenty})
	a := netip.MustParseAddr("192.0.2.1")
	b.Run("OneCaller", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			e.Admit(a)
		}
	})
	b.Run("Parallel", func(b *testing.B) {
		b.ReportAllocs()
		var n atomic.Uint32
		b.RunParallel(func(pb *testing.PB) {
			a := v4(n.Add(1))
			for pb.Next() {
				e.Admit(a)
			}
		})
	})
	b.Run("IPv6", func(b *testing.B) {
		b.ReportAllocs()
		a := netip.MustParseAddr("2001:db8::1")
		for b.Loop() {
			e.Admit(a)
		}
	})
}

// BenchmarkThreeTiersWithRefund has the source and the class of endpoints agree
// and the last bucket refuse, so that what was taken is given back.
func BenchmarkThreeTiersWithRefund(b *testing.B) {
	plenty := Bucket{Rate: 1e8, Burst: 1e9}
	e := benchEndpoint(b, Config{
		Global:    Bucket{Rate: never, Burst: 1},
		PerIP:     plenty,
		Endpoints: map[string]EndpointLimit{"bench": {PerIP: plenty, All: plenty}},
	})
	a := netip.MustParseAddr("192.0.2.1")
	exhaust(e, a)
	b.Run("OneCaller", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			e.Admit(a)
		}
	})
	b.Run("Parallel", func(b *testing.B) {
		b.ReportAllocs()
		var n atomic.Uint32
		b.RunParallel(func(pb *testing.PB) {
			a := v4(n.Add(1))
			for pb.Next() {
				e.Admit(a)
			}
		})
	})
}

// BenchmarkSpray has every request come from a source that was never seen.
func BenchmarkSpray(b *testing.B) {
	cfg := limits
	cfg.Global = Bucket{}
	e := benchEndpoint(b, cfg)
	var next atomic.Uint32
	b.Run("OneCaller", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			e.Admit(v4(next.Add(1)))
		}
		for _, t := range e.limiter.Stat().Tables {
			b.ReportMetric(float64(t.Bytes)/float64(t.Slots), "B/key")
		}
	})
	b.Run("Parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			n := next.Add(1) << 26
			for pb.Next() {
				n++
				e.Admit(v4(n))
			}
		})
	})
}

func v4(n uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}
