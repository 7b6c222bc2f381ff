package ratelimit

import (
	"fmt"
	"maps"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// A testClock is a clock that stands still unless it is moved, either way.
type testClock struct{ ns atomic.Int64 }

func (c *testClock) now() int64              { return c.ns.Load() }
func (c *testClock) advance(d time.Duration) { c.ns.Add(int64(d)) }

// newTest returns a limiter whose clock is a testClock.
func newTest(t testing.TB, cfg Config) (*Limiter, *testClock) {
	t.Helper()
	c := &testClock{}
	c.ns.Store(int64(time.Hour))
	cfg.Now = c.now
	if cfg.MaxKeys == 0 {
		cfg.MaxKeys = 7000
	}
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l, c
}

func reconfigure(t testing.TB, l *Limiter, cfg Config) {
	t.Helper()
	if err := l.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
}

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// admits counts how many of n requests are admitted.
func admits(e *Endpoint, a netip.Addr, n int) int {
	ok := 0
	for range n {
		if e.Admit(a).OK {
			ok++
		}
	}
	return ok
}

func proves(e *Endpoint, account string, n int) int {
	ok := 0
	for range n {
		if e.Proven(account).OK {
			ok++
		}
	}
	return ok
}

// buckets are the bits of all buckets.
func buckets(l *Limiter) map[string]int64 {
	m := map[string]int64{}
	s := l.settings.Load()
	for tier, t := range s.tables {
		if t == nil {
			continue
		}
		for i := range t.sets {
			if t.sets[i].word.Load() == 0 {
				continue // never used
			}
			for j := range t.sets[i].tats {
				place := fmt.Sprintf("%s %d.%d", Tier(tier), i, j)
				if j < ways {
					if n := t.sets[i].names[j].Load(); n != 0 {
						m[place+" name"] = int64(n)
					}
				}
				if tat := t.sets[i].tats[j].Load(); tat != 0 {
					m[place+" tat"] = tat
				}
			}
		}
	}
	for i, w := range s.all {
		m[fmt.Sprintf("endpoint %d", i)] = w.state.Load()
	}
	for g, w := range s.globals {
		m[fmt.Sprintf("global %d", g)] = w.state.Load()
	}
	return m
}

// globalOf is the bucket that all requests of the first group share.
func globalOf(s *settings) *word { return s.globals[Work] }

// requestOf is a request of a source under s, to a class of endpoints or, if that
// is -1, to none.
func requestOf(l *Limiter, s *settings, source netip.Addr, endpoint int) request {
	r := request{now: l.clock(), cost: Token}
	r.ofSource(s, &l.hasher, source, Work, endpoint)
	return r
}

// unchanged fails if f changes a bit of a bucket.
func unchanged(t *testing.T, l *Limiter, what string, f func()) {
	t.Helper()
	before := buckets(l)
	f()
	if after := buckets(l); !maps.Equal(before, after) {
		t.Errorf("%s changed a bucket:\nbefore %v\nafter  %v", what, before, after)
	}
}

// want fails unless d is a refusal by tier that ends after so many seconds.
func wantRefusal(t *testing.T, d Decision, tier Tier, seconds int64) {
	t.Helper()
	if d.OK || d.Never || d.Tier != tier || d.Seconds() != seconds {
		t.Errorf("got %+v (tier %s), want a refusal by %s for %d s", d, d.Tier, tier, seconds)
	}
}
