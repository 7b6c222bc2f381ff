package ratelimit

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"
)

// TestASprayOfNewSourcesResetsNoExhaustedOne: two million sources that are seen
// once drive out one another, and none of those that have used up their bucket,
// or half of it, whom caches that go by recency would have forgotten.
func TestASprayOfNewSourcesResetsNoExhaustedOne(t *testing.T) {
	t.Parallel()
	spray, keys := uint32(2_000_000), 100_000
	if underRace {
		spray, keys = spray/20, keys/20
	}
	l, err := New(Config{PerIP: Bucket{Rate: 1.0 / 60, Burst: 40}, MaxKeys: keys})
	if err != nil {
		t.Fatal(err)
	}
	e := l.Endpoint("order", EndpointOptions{})
	exhausted, half := ip("10.0.0.1"), ip("10.1.0.1")
	for range 50 {
		exhausted, half = exhausted.Next(), half.Next()
		admits(e, exhausted, 40)
		admits(e, half, 20)
	}
	for i := range spray {
		if !e.Admit(v4(20<<24 + i)).OK {
			t.Fatalf("a new source is refused")
		}
	}
	exhausted, half = ip("10.0.0.1"), ip("10.1.0.1")
	reset, forgiven := 0, 0
	for range 50 {
		exhausted, half = exhausted.Next(), half.Next()
		if admits(e, exhausted, 40) > 1 { // one may have come back meanwhile
			reset++
		}
		if admits(e, half, 40) > 21 {
			forgiven++
		}
	}
	if reset != 0 || forgiven != 0 {
		t.Errorf("%d of 50 exhausted and %d of 50 half spent sources were reset", reset, forgiven)
	}
	if st := l.Stat().Tables[0]; st.Evicted < int64(spray)-int64(st.Slots) || st.Overflowed != 0 {
		t.Errorf("the pressure is not told of: %+v", st)
	}
}

// TestAFullSetForgetsWhoOwesLeast: and loses exactly that debt.
func TestAFullSetForgetsWhoOwesLeast(t *testing.T) {
	t.Parallel()
	l, c := newTest(t, Config{PerIP: Bucket{Rate: 1, Burst: 100}, MaxKeys: 1}) // one set
	e := l.Endpoint("order", EndpointOptions{})
	for i := range ways {
		admits(e, v4(uint32(i)), 10+(i+3)%ways)
	}
	if st := l.Stat().Tables[0]; st.Evicted != 0 {
		t.Fatalf("%d evicted from a set that is not full", st.Evicted)
	}
	least := uint32(4) // (4+3)%7 = 0
	before := debts(l, PerIP, c.now())
	e.Admit(ip(alice))
	if lost := before + int64(time.Second) - debts(l, PerIP, c.now()); lost != int64(10*time.Second) {
		t.Errorf("a debt of %v was lost, want the least, 10 tokens", time.Duration(lost))
	}
	if st := l.Stat().Tables[0]; st.Evicted != 1 {
		t.Errorf("%d evictions counted", st.Evicted)
	}
	for i := range uint32(ways) {
		if n, want := admits(e, v4(i), 100), 90-(int(i)+3)%ways; i != least && n != want {
			t.Errorf("source %d has %d tokens left, want %d", i, n, want)
		}
	}
	c.advance(time.Hour)
	evicted := l.Stat().Tables[0].Evicted
	e.Admit(ip(bob))
	if st := l.Stat().Tables[0]; st.Evicted != evicted {
		t.Error("to forget who owes nothing is no pressure")
	}
}

// TestAStrictTableForgivesNoMoreThanHalfABurst: with more accounts than fit, each
// driven to exhaustion, those that came first stay exhausted, and all others
// together have one bucket a set.
func TestAStrictTableForgivesNoMoreThanHalfABurst(t *testing.T) {
	t.Parallel()
	const burst = 10
	l, c := newTest(t, Config{PerAccount: Bucket{Rate: 1, Burst: burst}, MaxKeys: 7 * 20})
	e := l.Endpoint("order", EndpointOptions{})
	admitted := 0
	const accounts = 5000
	for i := range accounts {
		admitted += proves(e, fmt.Sprint(i), burst+1)
	}
	if most := (7*20 + 20) * burst; admitted != most {
		t.Errorf("%d admitted of %d accounts, want the %d that the table holds", admitted, accounts, most)
	}
	again := 0
	for i := range accounts {
		again += proves(e, fmt.Sprint(i), burst)
	}
	if again != 0 {
		t.Errorf("%d admitted again: an exhausted account was reset", again)
	}
	st := l.Stat().Tables
	if len(st) != 2 || st[0].Tier != PerSourceAccount || st[1].Tier != PerAccount {
		t.Fatalf("got tables %+v", st)
	}
	if st[1].Overflowed == 0 || st[1].Evicted != 0 {
		t.Errorf("the pressure is not told of: %+v", st[1])
	}
	d := e.Proven("newcomer")
	wantRefusal(t, d, PerAccount, 1)
	c.advance(d.RetryAfter)
	if !e.Proven("newcomer").OK {
		t.Error("a newcomer is refused after what was promised")
	}
}

// TestAStrictTableForgetsWhoHasHalfLeft: newcomers get a place of their own
// among honest accounts.
func TestAStrictTableForgetsWhoHasHalfLeft(t *testing.T) {
	t.Parallel()
	l, _ := newTest(t, Config{PerAccount: Bucket{Rate: 1, Burst: 10}, MaxKeys: 1})
	e := l.Endpoint("order", EndpointOptions{})
	for i := range ways {
		proves(e, fmt.Sprint(i), 5+i)
	}
	if n := proves(e, "first", 20); n != 10 {
		t.Errorf("%d admitted of a newcomer, want a whole burst", n)
	}
	// Now everybody owes 6 or more.
	if n := proves(e, "second", 20) + proves(e, "third", 20); n != 10 {
		t.Errorf("%d admitted of two newcomers, want one burst for both", n)
	}
	if st := l.Stat().Tables[1]; st.Evicted != 1 || st.Overflowed != 10 {
		t.Errorf("counted %+v, want 1 eviction and 10 admitted by way of the overflow", st)
	}
}

// TestAnExhaustedSprayTurnsAwayNoNewSource: as anybody can make up sources and
// claims, their tables forgive rather than let newcomers suffer, and count it.
func TestAnExhaustedSprayTurnsAwayNoNewSource(t *testing.T) {
	t.Parallel()
	l, _ := newTest(t, Config{PerIP: Bucket{Rate: 1, Burst: 10}, PerAccount: Bucket{Rate: 1, Burst: 10}, MaxKeys: 7 * 20})
	e := l.Endpoint("order", EndpointOptions{})
	for i := range uint32(5000) {
		if n := admits(e, v4(i), 11); n != 10 {
			t.Fatalf("%d admitted of a new source", n)
		}
		ok := 0
		for range 11 {
			if e.Claimed(v4(i), "a").OK {
				ok++
			}
		}
		if ok != 10 {
			t.Fatalf("%d claims admitted of a new source", ok)
		}
	}
	for _, st := range l.Stat().Tables {
		if st.Tier != PerAccount && st.Tier != PerPrefix && st.Evicted < 4000 {
			t.Errorf("%s: %d evictions told of", st.Tier, st.Evicted)
		}
	}
}

// TestKeysOfTiersAndClassesAreApart: the same address has a bucket for each.
func TestKeysOfTiersAndClassesAreApart(t *testing.T) {
	t.Parallel()
	h := newHasher()
	a := addressOf(ip("2001:db8::"))
	seen := map[uint64]string{}
	for _, tier := range []Tier{PerIP, PerPrefix, EndpointIP, PerSourceAccount, PerAccount} {
		for _, bits := range []uint8{48, 64, 128} {
			for endpoint := range uint16(3) {
				for name := range uint64(3) {
					for _, addr := range []address{a, {}, {lo: 1}, {hi: a.hi + 1}} {
						k := key{address: addr, name: name, endpoint: endpoint, bits: bits}
						s := fmt.Sprint(tier, k)
						if other, ok := seen[h.sum(k, tier)]; ok {
							t.Errorf("%s has the hash of %s", s, other)
						}
						seen[h.sum(k, tier)] = s
					}
				}
			}
		}
	}
	if other := newHasher(); other.sum(key{}, PerIP) == h.sum(key{}, PerIP) || other.name("a") == h.name("a") {
		t.Error("two limiters have one seed")
	}
}

// TestKeysSpreadOverTheSets: neighbouring addresses, as an attacker has them, fall
// on all sets alike.
func TestKeysSpreadOverTheSets(t *testing.T) {
	t.Parallel()
	const sets, each = 1000, 100
	table, h := newTable(sets*ways, false), newHasher()
	for name, addr := range map[string]func(i uint64) address{
		"IPv4":     func(i uint64) address { return address{lo: mapped | i} },
		"IPv6 /64": func(i uint64) address { return address{hi: 0x20010db800000000 + i} },
		"IPv6 /48": func(i uint64) address { return address{hi: 0x20010db800000000 + i<<16} },
	} {
		count := make(map[*set]int)
		for i := range uint64(sets * each) {
			s, _ := table.at(h.sum(key{address: addr(i), bits: 64}, PerIP))
			count[s]++
		}
		low, high := 1<<30, 0
		for _, n := range count {
			low, high = min(low, n), max(high, n)
		}
		// Of a binomial distribution with mean 100, six deviations.
		if len(count) != sets || low < 40 || high > 160 {
			t.Errorf("%s: %d sets of %d, from %d to %d keys each, want about %d", name, len(count), sets, low, high, each)
		}
	}
}

// TestOneSetServesManyAtOnce: eight keys that share one set, each from its own
// goroutine, evict each other and lose no lock.
func TestOneSetServesManyAtOnce(t *testing.T) {
	t.Parallel()
	l, _ := newTest(t, Config{PerIP: Bucket{Rate: 1, Burst: 1000}, PrefixFactor: 1, MaxKeys: 1})
	e := l.Endpoint("order", EndpointOptions{})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			b := netip.MustParseAddr("2001:db8::1").As16()
			b[7] = byte(i)
			for range 2000 {
				e.Admit(netip.AddrFrom16(b))
			}
		})
	}
	wg.Wait()
	// All are of one site, whose bucket shares nothing.
	if st := e.stat(); st.Admitted != 1000 || st.Admitted+st.Throttled[PerIP]+st.Throttled[PerPrefix] != 16000 {
		t.Errorf("counted %+v, want exactly 1000 admitted of the 16000 of a site", st)
	}
}

// TestASetThatChangedSinceItWasReadIsNotWritten: whoever has judged a bucket and
// finds that another request has paid meanwhile, from it or from another of the
// same set, judges anew.
func TestASetThatChangedSinceItWasReadIsNotWritten(t *testing.T) {
	t.Parallel()
	for _, other := range []string{alice, bob} {
		l, _ := newTest(t, Config{PerIP: Bucket{Rate: 1, Burst: 10}, MaxKeys: 1})
		e := l.Endpoint("order", EndpointOptions{})
		admits(e, ip(alice), 3)
		s := l.settings.Load()
		r := requestOf(l, s, ip(alice), e.index)
		if !r.read(s) || !r.lockAsRead() {
			t.Fatal("a set at rest can't be read and locked")
		}
		if late := requestOf(l, s, ip(other), e.index); late.read(s) {
			t.Error("a locked set was read")
		}
		r.restore()
		e.Admit(ip(other))
		if r.lockAsRead() {
			t.Errorf("a set was locked as it was before %s paid", other)
		}
		if !r.read(s) || !r.lockAsRead() {
			t.Error("it can't be read anew")
		}
		r.restore()
	}
}

// TestNobodyIsRefusedForTheDebtOfWhoTookItsPlace: a key that is driven out while
// it is read doesn't answer with the newcomer's debt.
func TestNobodyIsRefusedForTheDebtOfWhoTookItsPlace(t *testing.T) {
	t.Parallel()
	l, c := newTest(t, Config{PerIP: Bucket{Rate: 1, Burst: 1000}, MaxKeys: 1})
	e := l.Endpoint("order", EndpointOptions{})
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		for n := uint32(0); ; n++ {
			select {
			case <-done:
				return
			default:
				e.Charge(ip(alice), 1)
				e.Charge(v4(n), 1000*Token) // evicts whoever owes least: alice
			}
		}
	})
	reads := 2_000_000
	if underRace {
		reads /= 20
	}
	r := requestOf(l, l.settings.Load(), ip(alice), e.index)
	for range reads {
		if r.read(l.settings.Load()) && r.claims[0].tat > c.now()+int64(time.Second) {
			t.Errorf("a debt of %v was read", time.Duration(r.claims[0].tat-c.now()))
			break
		}
	}
	close(done)
	wg.Wait()
}

// TestNewcomersOweWhatTheySpentOverAReload: also those who share a bucket.
func TestNewcomersOweWhatTheySpentOverAReload(t *testing.T) {
	t.Parallel()
	for _, rates := range [][2]float64{{1, 100}, {100, 1}} {
		l, c := newTest(t, Config{PerAccount: Bucket{Rate: rates[0], Burst: 10}, MaxKeys: 1})
		e := l.Endpoint("order", EndpointOptions{})
		for i := range ways + 1 {
			proves(e, fmt.Sprint(i), 10)
		}
		reconfigure(t, l, Config{PerAccount: Bucket{Rate: rates[1], Burst: 10}})
		if n := proves(e, "newcomer", 10); n != 0 {
			t.Errorf("from %v to %v a second: %d admitted", rates[0], rates[1], n)
		}
		c.advance(time.Duration(3 / rates[1] * float64(time.Second)))
		if n := proves(e, "newcomer", 10); n != 3 {
			t.Errorf("from %v to %v a second: %d admitted after the time of 3", rates[0], rates[1], n)
		}
	}
}
