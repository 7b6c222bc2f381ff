package ratelimit

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A ledger is what a stress test has seen admitted, in thousandths.
type ledger struct {
	source   [8]atomic.Int64
	endpoint [2]atomic.Int64
	account  [8]atomic.Int64
	global   atomic.Int64
	admitted atomic.Int64
	refused  atomic.Int64
}

func (g *ledger) pay(d Decision, cost Cost, into ...*atomic.Int64) {
	if !d.OK {
		g.refused.Add(1)
		return
	}
	g.admitted.Add(1)
	for _, n := range into {
		n.Add(int64(cost))
	}
}

// stressConfig is the nth of a row: all buckets grow, so that no debt is ever
// forgiven, and a token takes now 1, now 2, now 4 microseconds, so that each
// debt stays a whole number of nanoseconds.
func stressConfig(n int) Config {
	rate := []float64{1e6, 5e5, 2.5e5}[n%3]
	b := func(first, more int) Bucket { return Bucket{Rate: rate, Burst: first + n*more} }
	cfg := Config{
		Global: b(13_000, 325), PerIP: b(3_000, 75), PerAccount: b(1_000, 20), PrefixFactor: 2,
		Endpoints: map[string]EndpointLimit{"a": {All: b(9_000, 225), PerIP: b(1_000, 25)}, "b": {All: b(8_000, 200)}},
	}
	if n%2 == 1 {
		cfg.Overrides = []Override{{Source: prefix("192.0.2.2/32"), Bucket: cfg.PerIP}, {Account: "3", Bucket: cfg.PerAccount}}
	}
	return cfg
}

// TestTokensAreConserved: a million operations that admit, refuse, refund and
// reload, from several goroutines, while time stands still. In the end each bucket
// owes exactly what was admitted: no token is lost or minted.
func TestTokensAreConserved(t *testing.T) {
	t.Parallel()
	const workers = 8
	each := 1_000_000 / workers
	if testing.Short() {
		each /= 10
	}
	l, clock := newTest(t, stressConfig(0))
	endpoints := []*Endpoint{l.Endpoint("a", EndpointOptions{Reserve: 5}), l.Endpoint("b", EndpointOptions{Cost: 2 * Token})}
	sources := []netip.Addr{v4(0xc0000200), v4(0xc0000201), v4(0xc0000202), ip("2001:db8::1"), ip("2001:db8:0:1::1"), ip("2001:db8:0:2::1"), ip("2001:db8:1::1"), {}}
	var g ledger
	var mu sync.Mutex // guards reloads, so that none overtakes another
	reloads := 0
	reload := func() {
		mu.Lock()
		defer mu.Unlock()
		reloads++
		if err := l.Reconfigure(stressConfig(reloads)); err != nil {
			t.Error(err)
		}
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range each {
				if i%2000 == 1999 {
					reload()
				}
				// The first source and account ask for half of everything.
				n, which := max(rand.IntN(2*len(sources))-len(sources), 0), rand.IntN(2)
				e, cost := endpoints[which], Cost(1+rand.IntN(5))*250
				switch op := rand.IntN(8); {
				case op < 4:
					g.pay(e.Admit(sources[n]), e.options.Cost, &g.source[n], &g.endpoint[which], &g.global)
				case op < 7:
					g.pay(e.Charge(sources[n], cost), cost, &g.source[n], &g.endpoint[which], &g.global)
				default:
					g.pay(e.Proven(fmt.Sprint(n)), e.options.Cost, &g.account[n])
				}
			}
		})
	}
	wg.Wait()
	if g.admitted.Load()+g.refused.Load() != int64(workers*each) || g.admitted.Load() < int64(workers*each)/20 || g.refused.Load() < int64(workers*each)/20 {
		t.Errorf("%d admitted, %d refused, %d reloads: that is no mixture", g.admitted.Load(), g.refused.Load(), reloads)
	}
	a, b := endpoints[0].stat().Throttled, endpoints[1].stat().Throttled
	for _, tier := range []Tier{PerIP, EndpointIP, PerAccount, EndpointAll, Global} {
		if a[tier]+b[tier] == 0 {
			t.Errorf("%s has refused nothing", tier)
		}
	}
	owes := func(what string, debt, token int64, paid ...*atomic.Int64) {
		t.Helper()
		var want int64
		for _, p := range paid {
			want += p.Load()
		}
		if debt*1000 != want*token {
			t.Errorf("%s owes %d ns at %d ns a token, and %d thousandths were admitted", what, debt, token, want)
		}
	}
	s := l.settings.Load()
	owed := func(w *word) int64 { return max(w.state.Load()-clock.now(), 0) }
	owes("global", owed(globalOf(s)), globalOf(s).limit.token, &g.global)
	owes("a", owed(s.all[0]), s.all[0].limit.token, &g.endpoint[0])
	owes("b", owed(s.all[1]), s.all[1].limit.token, &g.endpoint[1])
	for n := range sources {
		r := requestOf(l, s, sources[n], -1)
		if r.read(s); r.n > 0 {
			owes(sources[n].String(), max(r.claims[0].tat-clock.now(), 0), r.claims[0].lim.token, &g.source[n])
		}
		if r.n > 1 && n == 3 {
			owes("the site", max(r.claims[1].tat-clock.now(), 0), r.claims[1].lim.token, &g.source[3], &g.source[4], &g.source[5])
		}
		r = request{now: clock.now()}
		r.ofAccount(s, &l.hasher, key{}, PerAccount, fmt.Sprint(n))
		r.read(s)
		owes("account "+fmt.Sprint(n), max(r.claims[0].tat-clock.now(), 0), r.claims[0].lim.token, &g.account[n])
	}
}

// TestNoInterleavingAdmitsMoreThanBurstAndRate: while the clock runs, limits are
// reloaded and shared buckets refuse and refund, no tier lets more through than its
// burst and what came back over the whole time.
func TestNoInterleavingAdmitsMoreThanBurstAndRate(t *testing.T) {
	t.Parallel()
	b := func(rate float64, burst int) Bucket { return Bucket{Rate: rate, Burst: burst} }
	cfg := Config{Global: b(5e4, 100), PerIP: b(2e4, 50), Endpoints: map[string]EndpointLimit{"order": {PerIP: b(2e4, 60), All: b(6e4, 80)}}}
	l, clock := newTest(t, cfg)
	e := l.Endpoint("order", EndpointOptions{})
	begin := clock.now()
	var bySource [4]atomic.Int64
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for i := range 5000 {
				n := rand.IntN(4)
				if e.Admit(v4(uint32(n))).OK {
					bySource[n].Add(1)
				}
				clock.advance(time.Duration(rand.IntN(3000)))
				if i%500 == 0 {
					if err := l.Reconfigure(cfg); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	elapsed := time.Duration(clock.now() - begin).Seconds()
	var all int64
	for n := range bySource {
		all += bySource[n].Load()
		if most := 50 + 2e4*elapsed; float64(bySource[n].Load()) > most {
			t.Errorf("%d admitted of source %d, want no more than %.0f", bySource[n].Load(), n, most)
		}
	}
	if most := 80 + 5e4*elapsed; float64(all) > 100+5e4*elapsed || float64(all) < most/3 {
		t.Errorf("%d admitted in %.3f s, want about %.0f and no more", all, elapsed, most)
	}
}

// TestRefusalsAreToldToTheRecorder: those of sources by their counter, with an
// example; those of proven accounts by name.
func TestRefusalsAreToldToTheRecorder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rec := record(t)
		one := Bucket{Rate: 0.001, Burst: 1}
		l, err := New(Config{PerIP: one, PerAccount: one, MaxKeys: 7, Recorder: rec.Recorder})
		if err != nil {
			t.Fatal(err)
		}
		e := l.Endpoint("order", EndpointOptions{})
		admits(e, ip(alice), 10)
		proves(e, "acme:1", 10)
		time.Sleep(time.Minute) // of the bubble
		rec.stop()
		got := map[string]Record{}
		for _, r := range rec.lines() {
			if r.Closed {
				got[r.What] = r
			}
		}
		if r := got["per_ip"]; r.Endpoint != "order" || r.Identity != "" || r.Source != ip(alice) || r.Suppressed != 8 {
			t.Errorf("per_ip: told %+v", r)
		}
		if r := got["per_account"]; r.Endpoint != "order" || r.Identity != "acme:1" || r.Suppressed != 8 {
			t.Errorf("per_account: told %+v", r)
		}
		if len(got) != 2 {
			t.Errorf("told of %d kinds of refusal, want 2", len(got))
		}
	})
}
