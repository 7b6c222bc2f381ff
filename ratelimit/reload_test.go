package ratelimit

import (
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// everywhere puts b into all tiers, with room between the shared ones.
func everywhere(b Bucket) Config {
	return Config{PerIP: b, PerAccount: b, PrefixFactor: 1000}
}

// only puts b into one tier.
func only(tier Tier, b Bucket) Config {
	switch tier {
	case PerIP:
		return Config{PerIP: b}
	case EndpointIP:
		return Config{Endpoints: map[string]EndpointLimit{"order": {PerIP: b}}}
	case EndpointAll:
		return Config{Endpoints: map[string]EndpointLimit{"order": {All: b}}}
	case Global:
		return Config{Global: b}
	}
	return Config{PerAccount: b}
}

// asks asks a bucket of a tier for a token.
func asks(e *Endpoint, tier Tier) Decision {
	switch tier {
	case PerAccount:
		return e.Proven("a")
	case PerSourceAccount:
		return e.Claimed(ip(alice), "a")
	}
	return e.Admit(ip(alice))
}

func gets(e *Endpoint, tier Tier, n int) int {
	ok := 0
	for range n {
		if asks(e, tier).OK {
			ok++
		}
	}
	return ok
}

var loadable = []Tier{PerIP, EndpointIP, PerSourceAccount, PerAccount, EndpointAll, Global}

// TestWhatWasSpentStaysSpentOverAReload: in tokens, whatever the limits become.
// A raised burst and a raised rate act at once; what a smaller bucket can't owe
// is forgiven, and nothing else.
func TestWhatWasSpentStaysSpentOverAReload(t *testing.T) {
	t.Parallel()
	b := func(rate float64, burst int) Bucket { return Bucket{Rate: rate, Burst: burst} }
	for _, c := range []struct {
		name     string
		from, to Bucket
		spent    int
		left     int // at once
		after    time.Duration
		then     int // more, after that
	}{
		{"the same", b(1, 10), b(1, 10), 7, 3, time.Second, 1},
		{"a higher burst", b(1, 10), b(1, 15), 10, 5, time.Second, 1},
		{"a lower burst", b(1, 10), b(1, 8), 5, 3, time.Second, 1},
		{"a lower burst than was spent", b(1, 10), b(1, 5), 9, 0, 5 * time.Second, 5},
		{"a higher rate", b(1, 10), b(100, 10), 10, 0, 50 * time.Millisecond, 5},
		{"a lower rate", b(100, 10), b(1, 10), 10, 0, time.Second, 1},
		{"a lower rate, not all spent", b(100, 10), b(0.5, 10), 4, 6, 4 * time.Second, 2},
		{"both", b(1, 10), b(2, 100), 10, 90, 5 * time.Second, 10},
	} {
		for _, tier := range loadable {
			l, clock := newTest(t, only(tier, c.from))
			e := l.Endpoint("order", EndpointOptions{})
			gets(e, tier, c.spent)
			reconfigure(t, l, only(tier, c.to))
			if n := gets(e, tier, 1000); n != c.left {
				t.Errorf("%s, %s: %d left, want %d", tier, c.name, n, c.left)
			}
			clock.advance(c.after)
			if n := gets(e, tier, 1000); n != c.then {
				t.Errorf("%s, %s: %d more after %v, want %d", tier, c.name, n, c.after, c.then)
			}
		}
	}
}

// TestReloadsAloneGiveNothing: neither many of them, nor a tier that is
// switched off and on, nor an override that comes and goes.
func TestReloadsAloneGiveNothing(t *testing.T) {
	t.Parallel()
	bucket := Bucket{Rate: 0.001, Burst: 10}
	source, account := Override{Source: prefix("192.0.2.0/24"), Bucket: bucket}, Override{Account: "a", Bucket: bucket}
	for _, tier := range loadable {
		on := only(tier, bucket)
		own := on
		own.Overrides = []Override{source, account}
		faster := only(tier, Bucket{Rate: 0.01, Burst: 10})
		l, _ := newTest(t, on)
		e := l.Endpoint("order", EndpointOptions{})
		gets(e, tier, 10)
		for range 20 {
			for _, cfg := range []Config{on, {}, own, faster, own, {}, on} {
				reconfigure(t, l, cfg)
				if len(cfg.Endpoints)+len(cfg.Overrides) == 0 && !cfg.Global.Active() && !cfg.PerIP.Active() && !cfg.PerAccount.Active() {
					continue // off: nothing is refused, and nothing spent
				}
				if n := gets(e, tier, 3); n != 0 {
					t.Fatalf("%s: %d admitted after a reload to %+v", tier, n, cfg)
				}
			}
		}
	}
}

// TestAnOverrideMovesWhatWasSpent: it comes, changes and goes while its sources
// and accounts owe something.
func TestAnOverrideMovesWhatWasSpent(t *testing.T) {
	t.Parallel()
	for _, tier := range []Tier{PerIP, PerSourceAccount, PerAccount} {
		cfg := func(own ...Bucket) Config {
			c := everywhere(Bucket{Rate: 1, Burst: 10})
			for _, b := range own {
				c.Overrides = append(c.Overrides, Override{Source: prefix("192.0.2.0/28"), Bucket: b}, Override{Account: "a", Bucket: b})
			}
			return c
		}
		l, clock := newTest(t, cfg())
		e := l.Endpoint("order", EndpointOptions{})
		step := func(what string, c Config, want int) {
			t.Helper()
			reconfigure(t, l, c)
			if n := gets(e, tier, 1000); n != want {
				t.Errorf("%s, %s: %d admitted, want %d", tier, what, n, want)
			}
		}
		step("at first", cfg(), 10)
		step("raised", cfg(Bucket{Rate: 1, Burst: 100}), 90)
		step("raised again, and faster", cfg(Bucket{Rate: 10, Burst: 150}), 50)
		clock.advance(time.Second)
		step("the same", cfg(Bucket{Rate: 10, Burst: 150}), 10)
		step("gone", cfg(), 0)
		clock.advance(time.Second)
		step("gone for a second", cfg(), 1)
		wide := cfg()
		wide.Overrides = []Override{
			{Source: prefix("192.0.0.0/16"), Bucket: Bucket{Rate: 1, Burst: 12}}, {Account: "b", Exempt: true}, {Account: "a", Bucket: Bucket{Rate: 1, Burst: 12}},
		}
		step("of a wider prefix, and another class", wide, 2)
		free := cfg()
		free.Overrides = []Override{{Source: prefix("192.0.2.1/32"), Exempt: true}, {Account: "a", Exempt: true}}
		step("exempt", free, 1000)
		step("no longer exempt", cfg(), 0)
	}
}

// TestAnOverrideIsItsOwnHeir: also where a longer prefix begins at the same
// address, whose bucket could not owe as much.
func TestAnOverrideIsItsOwnHeir(t *testing.T) {
	t.Parallel()
	cfg := Config{PerIP: Bucket{Rate: 1, Burst: 5}, Overrides: []Override{
		{Source: prefix("192.0.0.0/16"), Bucket: Bucket{Rate: 0.001, Burst: 10}},
		{Source: prefix("192.0.0.0/24"), Bucket: Bucket{Rate: 1000, Burst: 1}},
	}}
	l, clock := newTest(t, cfg)
	e := l.Endpoint("order", EndpointOptions{})
	admits(e, ip(alice), 10)
	for range 3 {
		reconfigure(t, l, cfg)
		clock.advance(time.Second)
	}
	if n := admits(e, ip(alice), 10); n != 0 {
		t.Errorf("%d admitted after reloads of the same", n)
	}
}

// TestALoweredLimitActsAtOnce: for whom it is meant, and nobody else.
func TestALoweredLimitActsAtOnce(t *testing.T) {
	t.Parallel()
	l, _ := newTest(t, everywhere(Bucket{Rate: 1, Burst: 100}))
	e := l.Endpoint("order", EndpointOptions{})
	low := everywhere(Bucket{Rate: 1, Burst: 100})
	low.Overrides = []Override{{Source: prefix("192.0.2.1/32"), Bucket: Bucket{Rate: 0.001, Burst: 2}}}
	reconfigure(t, l, low)
	if a, b := admits(e, ip(alice), 100), admits(e, ip(bob), 100); a != 2 || b != 100 {
		t.Errorf("%d and %d admitted, want 2 and 100", a, b)
	}
}

// TestASourceThatSleptThroughReloadsKeepsItsDebt: what nobody asked for meanwhile
// is brought up to each reload at its own time, not later.
func TestASourceThatSleptThroughReloadsKeepsItsDebt(t *testing.T) {
	t.Parallel()
	slow, fast := everywhere(Bucket{Rate: 0.1, Burst: 10}), everywhere(Bucket{Rate: 10, Burst: 10})
	l, clock := newTest(t, fast)
	e := l.Endpoint("order", EndpointOptions{})
	admits(e, ip(alice), 10)
	for _, cfg := range []Config{slow, fast, slow, fast, slow} {
		clock.advance(100 * time.Millisecond) // one token of the fast, nearly none of the slow
		reconfigure(t, l, cfg)
	}
	if n := admits(e, ip(alice), 10); n != 3 {
		t.Errorf("%d admitted, want those that came back in three fast tenths of a second", n)
	}
}

// TestAClassMadeAfterAReloadHasItsLimits: endpoints may come late.
func TestAClassMadeAfterAReloadHasItsLimits(t *testing.T) {
	t.Parallel()
	l, _ := newTest(t, Config{})
	first := l.Endpoint("first", EndpointOptions{})
	b := Bucket{Rate: 0.001, Burst: 3}
	cfg := Config{Endpoints: map[string]EndpointLimit{"first": {All: b}, "late": {PerIP: b}}}
	reconfigure(t, l, cfg)
	late := l.Endpoint("late", EndpointOptions{})
	if l.Endpoint("late", EndpointOptions{Exempt: true}) != late {
		t.Error("one name has two classes")
	}
	if a, b := admits(first, ip(alice), 9), admits(late, ip(alice), 9); a != 3 || b != 3 {
		t.Errorf("%d and %d admitted, want 3 and 3", a, b)
	}
	reconfigure(t, l, cfg)
	if a, b := admits(first, ip(bob), 9), admits(late, ip(alice), 9); a != 0 || b != 0 {
		t.Errorf("%d and %d admitted after a reload, want none", a, b)
	}
}

// TestWhoHoldsOldSettingsTriesAgain: a request that began before a reload and
// comes to its bucket after it goes by the new limits, and pays once.
func TestWhoHoldsOldSettingsTriesAgain(t *testing.T) {
	t.Parallel()
	l, c := newTest(t, Config{PerIP: Bucket{Rate: 1, Burst: 10}, Global: Bucket{Rate: 1, Burst: 10}})
	e := l.Endpoint("order", EndpointOptions{})
	old := l.settings.Load()
	reconfigure(t, l, Config{PerIP: Bucket{Rate: 1, Burst: 10}, Global: Bucket{Rate: 1, Burst: 20}})
	unchanged(t, l, "an attempt under old settings", func() {
		r := requestOf(l, old, ip(alice), e.index)
		if l.attempt(&r, old, old.all[e.index], globalOf(old)) {
			t.Error("old settings decided")
		}
		r = requestOf(l, old, ip(alice), -1)
		if l.fine(&r, old) {
			t.Error("old settings fined")
		}
		none := request{now: c.now(), cost: Token} // no source, no set
		if l.attempt(&none, old, nil, globalOf(old)) {
			t.Error("a sealed word decided")
		}
	})
	if n := admits(e, ip(alice), 20); n != 10 {
		t.Errorf("%d admitted", n)
	}
}

// TestReloadsUnderLoadAdmitNoMore: reloads of the same limits, one after
// the other, while all spend: not one token more than the burst.
func TestReloadsUnderLoadAdmitNoMore(t *testing.T) {
	t.Parallel()
	const burst = 5000
	b := Bucket{Rate: 1e-3, Burst: burst}
	cfg := Config{Global: b, PerIP: b, PerAccount: b, Endpoints: map[string]EndpointLimit{"order": {b, b}}}
	other := cfg
	other.Overrides = []Override{{Source: prefix("192.0.2.1/32"), Bucket: b}, {Account: "a", Bucket: b}}
	l, _ := newTest(t, cfg)
	e := l.Endpoint("order", EndpointOptions{})
	var admitted, proven atomic.Int64
	stop := make(chan struct{})
	var spenders, reloader sync.WaitGroup
	for range 4 {
		spenders.Go(func() {
			for range burst {
				if e.Admit(ip(alice)).OK {
					admitted.Add(1)
				}
				if e.Proven("a").OK {
					proven.Add(1)
				}
			}
		})
	}
	reloads := 0
	reloader.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, c := range []Config{other, cfg} {
				if err := l.Reconfigure(c); err != nil {
					t.Error(err)
				}
				reloads++
			}
		}
	})
	spenders.Wait()
	close(stop)
	reloader.Wait()
	if admitted.Load() != burst || proven.Load() != burst {
		t.Errorf("%d and %d admitted during %d reloads, want %d", admitted.Load(), proven.Load(), reloads, burst)
	}
}

// TestShadowCountsAndRefusesNothing: one bucket, or all of them. What it would
// refuse is not taken from it, and other tiers go on.
func TestShadowCountsAndRefusesNothing(t *testing.T) {
	t.Parallel()
	b := Bucket{Rate: 0.001, Burst: 5}
	for _, tier := range loadable {
		one := b
		one.Shadow = true
		all := only(tier, b)
		all.Shadow = true
		for name, cfg := range map[string]Config{"one": only(tier, one), "all": all} {
			l, _ := newTest(t, cfg)
			e := l.Endpoint("order", EndpointOptions{})
			if n := gets(e, tier, 20); n != 20 {
				t.Errorf("%s, %s: %d of 20 admitted in shadow", tier, name, n)
			}
			if st := e.stat(); st.Shadowed[tier] != 15 || st.Throttled != [tiers]int64{} {
				t.Errorf("%s, %s: counted %+v, want 15 in shadow", tier, name, st)
			}
			reconfigure(t, l, only(tier, b))
			if n := gets(e, tier, 20); n != 0 {
				t.Errorf("%s, %s: %d admitted when the shadow was lifted", tier, name, n)
			}
		}
	}
}

// TestATierInShadowTakesNothingForARequestThatAnotherRefuses: and counts only what
// came as far as it.
func TestATierInShadowTakesNothingForARequestThatAnotherRefuses(t *testing.T) {
	t.Parallel()
	b := Bucket{Rate: 0.001, Burst: 5}
	shadow := b
	shadow.Shadow = true
	l, _ := newTest(t, Config{PerIP: shadow, Global: b})
	e := l.Endpoint("order", EndpointOptions{})
	admits(e, ip(alice), 4)
	e.Admit(ip(bob))
	unchanged(t, l, "a refusal by global", func() {
		for range 3 {
			wantRefusal(t, e.Admit(ip(bob)), Global, 1000)
		}
	})
	if st := e.stat(); st.Shadowed != [tiers]int64{} {
		t.Errorf("counted %+v", st)
	}
	l, _ = newTest(t, Config{PerIP: b, Global: shadow})
	e = l.Endpoint("order", EndpointOptions{})
	admits(e, ip(alice), 9)
	if st := e.stat(); st.Shadowed != [tiers]int64{} || st.Throttled[PerIP] != 4 {
		t.Errorf("counted %+v, want 4 by per_ip, and none in a shadow that they did not reach", st)
	}
	if n := admits(e, ip(bob), 4); n != 4 || e.stat().Shadowed[Global] != 4 {
		t.Errorf("%d admitted, counted %+v, want 4 in shadow of global", n, e.stat())
	}
}

// TestACostThatNeverFitsIsAdmittedInShadow: there it is only counted.
func TestACostThatNeverFitsIsAdmittedInShadow(t *testing.T) {
	t.Parallel()
	l, _ := newTest(t, Config{PerIP: Bucket{Rate: 1, Burst: 1, Shadow: true}, Global: Bucket{Rate: 1, Burst: 10, Shadow: true}})
	e := l.Endpoint("order", EndpointOptions{})
	if d := e.Charge(ip(alice), math.MaxInt64); !d.OK {
		t.Errorf("got %+v", d)
	}
	if st := e.stat(); st.Shadowed[PerIP] != 1 || st.Shadowed[Global] != 1 || st.Admitted != 0 {
		t.Errorf("counted %+v", st)
	}
}

// TestEverythingIsCountedOnce: by class and tier, whoever reads meanwhile.
func TestEverythingIsCountedOnce(t *testing.T) {
	t.Parallel()
	l, _ := newTest(t, Config{PerIP: Bucket{Rate: 0.001, Burst: 10}, PerAccount: Bucket{Rate: 0.001, Burst: 10}, Global: Bucket{Rate: 0.001, Burst: 25}})
	b, a := l.Endpoint("b", EndpointOptions{}), l.Endpoint("a", EndpointOptions{Exempt: true})
	stop := make(chan struct{})
	var readers sync.WaitGroup
	readers.Go(func() {
		for last := int64(0); ; {
			select {
			case <-stop:
				return
			default:
			}
			n := l.Stat().Endpoints[1].Throttled[PerIP]
			if n < last {
				t.Errorf("a counter went from %d to %d", last, n)
			}
			last = n
		}
	})
	admitted := 0
	for i := range uint32(4) {
		admitted += together(30, func() bool { return b.Admit(v4(i)).OK })
	}
	proven := together(15, func() bool { return b.Proven("x").OK })
	claimed := together(15, func() bool { return b.Claimed(ip(alice), "x").OK })
	together(8, func() bool { return a.Admit(ip(alice)).OK })
	b.FailedProof(ip(alice))
	close(stop)
	readers.Wait()
	if admitted != 25 || proven != 10 || claimed != 10 {
		t.Fatalf("%d, %d and %d admitted", admitted, proven, claimed)
	}
	st := l.Stat().Endpoints
	if len(st) != 2 || st[0].Name != "a" || st[0].Admitted != 8 || st[1].Name != "b" {
		t.Fatalf("got %+v", st)
	}
	want := EndpointStat{Name: "b", Admitted: 25, FailedProofs: 1}
	// The third source has 5 left of its bucket when the global one is empty, the fourth all 10.
	want.Throttled[PerIP], want.Throttled[Global] = 20+20, 25+30
	want.Throttled[PerAccount], want.Throttled[PerSourceAccount] = 5, 5
	if st[1] != want {
		t.Errorf("got  %+v\nwant %+v", st[1], want)
	}
}

// TestAnExampleIsASourceRefusedLately: one a second, of the tier that refused it.
func TestAnExampleIsASourceRefusedLately(t *testing.T) {
	t.Parallel()
	l, c := newTest(t, Config{PerIP: Bucket{Rate: 0.001, Burst: 1}})
	e := l.Endpoint("order", EndpointOptions{})
	refuse := func(a string) netip.Addr {
		admits(e, ip(a), 2)
		return e.examples[PerIP].get()
	}
	if got := refuse(alice); got != ip(alice) {
		t.Errorf("got %v", got)
	}
	if got := refuse(bob); got != ip(alice) {
		t.Errorf("got %v within a second", got)
	}
	c.advance(time.Second)
	if got := refuse("2001:db8::1"); got != ip("2001:db8::1") {
		t.Errorf("got %v a second later", got)
	}
	if got := e.examples[Global].get(); got.IsValid() {
		t.Errorf("global has refused %v", got)
	}
}
