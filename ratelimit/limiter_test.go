package ratelimit

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const (
	alice = "192.0.2.1"
	bob   = "192.0.2.2"
)

// TestABurstIsAdmittedAndThenTheRate: what a bucket holds at once, and then what
// comes back.
func TestABurstIsAdmittedAndThenTheRate(t *testing.T) {
	t.Parallel()
	l, c := newTest(t, Config{PerIP: Bucket{Rate: 20, Burst: 40}})
	e := l.Endpoint("order", EndpointOptions{})
	if n := admits(e, ip(alice), 100); n != 40 {
		t.Errorf("%d of 100 admitted at once, want 40", n)
	}
	for range 10 {
		c.advance(time.Second)
		if n := admits(e, ip(alice), 100); n != 20 {
			t.Errorf("%d admitted after a second, want 20", n)
		}
	}
	if n := admits(e, ip(bob), 100); n != 40 {
		t.Errorf("%d admitted of another source, want 40", n)
	}
}

// TestEveryApplicableTierMustAgree: a request needs a token from each tier that
// applies to it, and the one that refused is named.
func TestEveryApplicableTierMustAgree(t *testing.T) {
	t.Parallel()
	full := Bucket{Rate: 1, Burst: 100}
	one := Bucket{Rate: 0.5, Burst: 1}
	for tier, cfg := range map[Tier]Config{
		PerIP:       {PerIP: one, Global: full, PrefixFactor: 100},
		EndpointIP:  {PerIP: full, Global: full, Endpoints: map[string]EndpointLimit{"order": {PerIP: one, All: full}}},
		EndpointAll: {PerIP: full, Global: full, Endpoints: map[string]EndpointLimit{"order": {PerIP: full, All: one}}},
		Global:      {PerIP: full, Global: one, Endpoints: map[string]EndpointLimit{"order": {PerIP: full, All: full}}},
	} {
		for _, source := range []string{alice, "2001:db8::1"} {
			l, _ := newTest(t, cfg)
			e := l.Endpoint("order", EndpointOptions{})
			if d := e.Admit(ip(source)); !d.OK {
				t.Errorf("%s: the first request of %s is refused by %s", tier, source, d.Tier)
			}
			wantRefusal(t, e.Admit(ip(source)), tier, 2)
		}
	}
}

// TestATierWithoutARateOrABurstIsInert: a rate of 0 switches a tier off, whatever
// its burst, and never makes a bucket that admits a burst and no more by mistake.
func TestATierWithoutARateOrABurstIsInert(t *testing.T) {
	t.Parallel()
	for _, b := range []Bucket{{}, {Burst: 1}} {
		l, _ := newTest(t, Config{Global: b, PerIP: b, PerAccount: b, Endpoints: map[string]EndpointLimit{"order": {b, b}}})
		e := l.Endpoint("order", EndpointOptions{Reserve: 5})
		if n := admits(e, ip(alice), 1000); n != 1000 {
			t.Errorf("%+v: %d of 1000 admitted", b, n)
		}
		if n := proves(e, "a", 1000); n != 1000 {
			t.Errorf("%+v: %d of 1000 admitted of an account", b, n)
		}
		if !e.Claimed(ip(alice), "a").OK || !e.Charge(ip(alice), 1000*Token).OK {
			t.Errorf("%+v limits a claim or a charge", b)
		}
		e.FailedProof(ip(alice))
		if tables := l.Stat().Tables; len(tables) != 0 {
			t.Errorf("%+v has tables: %v", b, tables)
		}
	}
}

// TestNilLimitsNothing: a program without limits has nil Limiters and Endpoints.
func TestNilLimitsNothing(t *testing.T) {
	t.Parallel()
	var l *Limiter
	e := l.Endpoint("order", EndpointOptions{})
	if e != nil || !e.Admit(ip(alice)).OK || !e.Claimed(ip(alice), "a").OK || !e.Proven("a").OK || !e.Charge(ip(alice), Token).OK {
		t.Error("a nil Limiter limits")
	}
	e.FailedProof(ip(alice))
	if st := l.Stat(); st.Endpoints != nil || st.Tables != nil {
		t.Errorf("a nil Limiter has counted %v", st)
	}
	if err := l.Reconfigure(Config{}); err != nil {
		t.Error(err)
	}
}

// TestATableHasTheSizeThatIsAskedFor: 100,000 keys if nothing is
// said, in no more than 32 bytes each; the number that is given rounded up to
// whole sets.
func TestATableHasTheSizeThatIsAskedFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ keys, min, max int }{{0, 100_000, 100_006}, {1, 7, 7}, {8, 14, 14}, {1000, 1000, 1006}} {
		l, err := New(Config{PerIP: limits.PerIP, MaxKeys: c.keys})
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range l.Stat().Tables {
			if table.Slots < c.min || table.Slots > c.max {
				t.Errorf("%d keys: %s has %d slots", c.keys, table.Tier, table.Slots)
			}
			if perKey := float64(table.Bytes) / float64(table.Slots); perKey > 32 {
				t.Errorf("%.1f bytes a key", perKey)
			}
		}
	}
}

// TestWhatIsWrongInAConfigIsNamed: a positive rate with no burst, and anything
// that is negative, no number or out of reach, is an error at the start and at
// a reload, which changes nothing.
func TestWhatIsWrongInAConfigIsNamed(t *testing.T) {
	t.Parallel()
	ok := Bucket{Rate: 1, Burst: 1}
	src := netip.MustParsePrefix("192.0.2.0/24")
	for want, cfg := range map[string]Config{
		"global: burst is missing":                {Global: Bucket{Rate: 1}},
		"global: rate must not be negative":       {Global: Bucket{Rate: -1, Burst: 1}},
		"per_ip: burst must not be negative":      {PerIP: Bucket{Rate: 1, Burst: -1}},
		"per_ip: burst must not":                  {PerIP: Bucket{Burst: -1}},
		"per_account: rate must be a number":      {PerAccount: Bucket{Rate: math.NaN(), Burst: 1}},
		"per_account: rate must":                  {PerAccount: Bucket{Rate: math.Inf(1), Burst: 1}},
		"global: rate is more than one":           {Global: Bucket{Rate: 1.1e9, Burst: 1}},
		"global: a burst of 2 at":                 {Global: Bucket{Rate: 1e-300, Burst: 2}},
		"global: a burst of 5000000000 at":        {Global: Bucket{Rate: 1, Burst: 5e9}},
		"global: a burst of 9223372036854775807":  {Global: Bucket{Rate: 1, Burst: math.MaxInt64}},
		"per_ip: rate is more than one":           {PerIP: Bucket{Rate: 20000, Burst: 1}, PrefixFactor: 65536}, // of the prefix
		"prefix_factor":                           {PrefixFactor: -1},
		"prefix_factor: must be from 1":           {PrefixFactor: 65537},
		"max_keys":                                {MaxKeys: -1},
		"max_keys: must be from 1":                {MaxKeys: math.MaxInt},
		"endpoints.order.per_ip: burst":           {Endpoints: map[string]EndpointLimit{"order": {PerIP: Bucket{Rate: 1}}}},
		"endpoints.order.all: rate":               {Endpoints: map[string]EndpointLimit{"order": {All: Bucket{Rate: -1}}}},
		"nat64[0]":                                {NAT64: []netip.Prefix{src}},
		"nat64[1]":                                {NAT64: []netip.Prefix{netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("2001:db8::/97")}},
		"overrides[0]: needs either":              {Overrides: []Override{{Bucket: ok}}},
		"overrides[0]: needs either a":            {Overrides: []Override{{Source: src, Account: "a", Bucket: ok}}},
		"overrides[0]: is exempt, and":            {Overrides: []Override{{Source: src, Exempt: true, Bucket: ok}}},
		"overrides[0]: a rate of 0 and a burst":   {Overrides: []Override{{Source: src, Bucket: Bucket{Burst: 1}}}},
		"overrides[1]: burst is missing":          {Overrides: []Override{{Source: src, Exempt: true}, {Account: "a", Bucket: Bucket{Rate: 1}}}},
		"overrides[1]: account \"a\" has one":     {Overrides: []Override{{Account: "a", Bucket: ok}, {Account: "a", Exempt: true}}},
		"overrides[1]: source ::ffff:192.0.2.7/1": {Overrides: []Override{{Source: src, Bucket: ok}, {Source: netip.MustParsePrefix("::ffff:192.0.2.7/120"), Exempt: true}}},
		"overrides[0]: ::ffff:0.0.0.0/95 holds":   {Overrides: []Override{{Source: netip.MustParsePrefix("::ffff:0.0.0.0/95"), Exempt: true}}},
		"overrides: must be no more than 10000":   {Overrides: make([]Override, 10001)},
	} {
		if _, err := New(cfg); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got error %q, want one that begins with %q", err, want)
		}
		l, _ := newTest(t, Config{PerIP: ok})
		e := l.Endpoint("order", EndpointOptions{})
		e.Admit(ip(alice))
		unchanged(t, l, want, func() {
			if err := l.Reconfigure(cfg); err == nil {
				t.Errorf("%s: accepted by Reconfigure", want)
			}
		})
		if e.Admit(ip(alice)).OK {
			t.Errorf("%s: the limit went with the wrong config", want)
		}
	}
}

// TestARefusedRequestLeavesEveryBucketUnchanged: whichever tier refuses, and
// however often, what the others and it hold is the same to the bit, so that
// later delays don't grow. (A reservation that could not be used made a limiter
// of old slower for the next one.)
func TestARefusedRequestLeavesEveryBucketUnchanged(t *testing.T) {
	t.Parallel()
	full, one := Bucket{Rate: 1, Burst: 100}, Bucket{Rate: 0.1, Burst: 1}
	for name, cfg := range map[string]Config{
		"per_ip":      {PerIP: one, Global: full},
		"per_prefix":  {PerIP: full, PrefixFactor: 1, Global: full},
		"endpoint_ip": {PerIP: full, Global: full, Endpoints: map[string]EndpointLimit{"order": {PerIP: one, All: full}}},
		"endpoint":    {PerIP: full, Global: full, Endpoints: map[string]EndpointLimit{"order": {PerIP: full, All: one}}},
		"global":      {PerIP: full, Global: one, Endpoints: map[string]EndpointLimit{"order": {PerIP: full, All: full}}},
	} {
		l, _ := newTest(t, cfg)
		e := l.Endpoint("order", EndpointOptions{})
		source := ip("2001:db8:0:1::1")
		if name == "per_prefix" {
			admits(e, ip("2001:db8:0:2::1"), 100)
		} else {
			e.Admit(source)
		}
		var first Decision
		unchanged(t, l, name, func() {
			first = e.Admit(source)
			for range 100 {
				if d := e.Admit(source); d != first {
					t.Errorf("%s: at first %+v, then %+v", name, first, d)
				}
				e.Admit(ip("2001:db8:0:1::2"))
			}
			e.Charge(source, 1000*Token) // never
		})
		if first.OK || first.Tier.String() != name {
			t.Errorf("got %+v by %s, want a refusal by %s", first, first.Tier, name)
		}
	}
}

// TestACappedSourceNeverTouchesWhatAllShare: who is over its own limit doesn't
// even write to the shared buckets, nor can it use them up.
func TestACappedSourceNeverTouchesWhatAllShare(t *testing.T) {
	t.Parallel()
	l, _ := newTest(t, Config{PerIP: Bucket{Rate: 1, Burst: 3}, Global: Bucket{Rate: 1, Burst: 10}})
	e := l.Endpoint("order", EndpointOptions{})
	if n := admits(e, ip(alice), 10000); n != 3 {
		t.Fatalf("%d admitted", n)
	}
	for i := range 7 {
		if !e.Admit(v4(uint32(i))).OK {
			t.Errorf("request %d of others is refused", i)
		}
	}
	wantRefusal(t, e.Admit(ip(bob)), Global, 1)
}

// TestARefusalGivesBackWhatEarlierTiersGave: of 1000 shared tokens, a request
// that a later tier refuses uses none.
func TestARefusalGivesBackWhatEarlierTiersGave(t *testing.T) {
	t.Parallel()
	l, _ := newTest(t, Config{
		Global:    Bucket{Rate: 0.001, Burst: 1},
		Endpoints: map[string]EndpointLimit{"order": {All: Bucket{Rate: 0.001, Burst: 1000}}},
	})
	e, other := l.Endpoint("order", EndpointOptions{}), l.Endpoint("other", EndpointOptions{})
	other.Admit(ip(bob))
	if d := e.Admit(ip(alice)); d.OK || d.Tier != Global {
		t.Fatalf("got %+v, want a refusal by global", d)
	}
	reconfigure(t, l, Config{Endpoints: map[string]EndpointLimit{"order": {All: Bucket{Rate: 0.001, Burst: 1000}}}})
	if n := admits(e, ip(alice), 1001); n != 1000 {
		t.Errorf("%d of 1000 tokens are left", n)
	}
}

// TestARefusedAccountLeavesTheGlobalTierToOthers: 1000 shared tokens, of which a
// request whose account is refused has used its own: 999 others are admitted.
func TestARefusedAccountLeavesTheGlobalTierToOthers(t *testing.T) {
	t.Parallel()
	l, _ := newTest(t, Config{Global: Bucket{Rate: 0.001, Burst: 1000}, PerAccount: Bucket{Rate: 0.001, Burst: 1}})
	e := l.Endpoint("order", EndpointOptions{})
	e.Proven("busy")
	if !e.Admit(ip(alice)).OK || e.Proven("busy").OK {
		t.Fatal("want a request that is admitted, of an account that is refused")
	}
	if n := admits(e, ip(alice), 1000); n != 999 {
		t.Errorf("%d others admitted, want 999", n)
	}
}

// TestRetryAfterIsRoundedUpToASecond: in whole seconds, at least one, never
// before the truth.
func TestRetryAfterIsRoundedUpToASecond(t *testing.T) {
	t.Parallel()
	for rate, seconds := range map[float64]int64{1e6: 1, 20: 1, 1: 1, 0.999: 2, 0.5: 2, 0.4: 3, 1.0 / 60: 60, 1.0 / 3600: 3600} {
		l, c := newTest(t, Config{PerIP: Bucket{Rate: rate, Burst: 1}})
		e := l.Endpoint("order", EndpointOptions{})
		e.Admit(ip(alice))
		d := e.Admit(ip(alice))
		if seconds == 60 || seconds == 3600 {
			seconds = max(seconds, d.Seconds()) // the rate is no exact number
			if d.Seconds() > seconds+1 {
				t.Errorf("%v a second: %v", rate, d.RetryAfter)
			}
		}
		wantRefusal(t, d, PerIP, seconds)
		c.advance(d.RetryAfter - time.Second)
		if seconds > 1 && e.Admit(ip(alice)).OK {
			t.Errorf("%v a second: admitted a whole second early", rate)
		}
		c.advance(time.Second)
		if !e.Admit(ip(alice)).OK {
			t.Errorf("%v a second: refused after what was promised", rate)
		}
	}
}

// TestRetryAfterIsTheLongestOfAllThatRefuse: the first tier that refuses is
// named, but the wait is that of the last that gives in.
func TestRetryAfterIsTheLongestOfAllThatRefuse(t *testing.T) {
	t.Parallel()
	l, c := newTest(t, Config{
		PerIP:     Bucket{Rate: 0.5, Burst: 1},
		Global:    Bucket{Rate: 0.1, Burst: 1},
		Endpoints: map[string]EndpointLimit{"order": {PerIP: Bucket{Rate: 0.05, Burst: 1}, All: Bucket{Rate: 0.2, Burst: 1}}},
	})
	e := l.Endpoint("order", EndpointOptions{})
	e.Admit(ip(alice))
	wantRefusal(t, e.Admit(ip(alice)), PerIP, 20)
	wantRefusal(t, e.Admit(ip(bob)), EndpointAll, 10)
	c.advance(10 * time.Second)
	wantRefusal(t, e.Admit(ip(alice)), EndpointIP, 10)
	c.advance(10 * time.Second)
	if d := e.Admit(ip(alice)); !d.OK {
		t.Errorf("refused by %s after what was promised", d.Tier)
	}
}

// TestAClientThatObeysRetryAfterFinishes: 20 requests at 5 a second and a burst
// of 2, by a client that waits as long as it is told.
func TestAClientThatObeysRetryAfterFinishes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := New(Config{PerIP: Bucket{Rate: 5, Burst: 2}, Global: limits.Global})
		if err != nil {
			t.Fatal(err)
		}
		e := l.Endpoint("order", EndpointOptions{})
		begin, done := time.Now(), 0
		for done < 20 {
			if d := e.Admit(ip(alice)); d.OK {
				done++
			} else {
				time.Sleep(d.RetryAfter) // of the bubble
				if d := e.Admit(ip(alice)); !d.OK {
					t.Fatalf("refused again after %v", d.RetryAfter)
				}
				done++
			}
		}
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// TestASteadyRetryLoopGetsThroughWhenPromised: refusals consume nothing, so that
// the next slot does not recede from a client that keeps asking.
func TestASteadyRetryLoopGetsThroughWhenPromised(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := New(Config{PerIP: Bucket{Rate: 0.25, Burst: 1}})
		if err != nil {
			t.Fatal(err)
		}
		e := l.Endpoint("order", EndpointOptions{})
		e.Admit(ip(alice))
		begin := time.Now()
		promised := e.Admit(ip(alice)).RetryAfter
		for !e.Admit(ip(alice)).OK {
			time.Sleep(100 * time.Millisecond) // of the bubble
		}
		if took := time.Since(begin); took != promised || promised != 4*time.Second {
			t.Errorf("got through after %v, promised %v", took, promised)
		}
	})
}

// TestJitterOnlyLengthensLongWaits: up to a tenth, for more than ten seconds, and
// the same for a source every time.
func TestJitterOnlyLengthensLongWaits(t *testing.T) {
	t.Parallel()
	wait := func(rate float64, source netip.Addr) (Decision, Decision) {
		l, _ := newTest(t, Config{PerIP: Bucket{Rate: rate, Burst: 1}, Jitter: true})
		e := l.Endpoint("order", EndpointOptions{})
		e.Admit(source)
		return e.Admit(source), e.Admit(source)
	}
	seen := map[int64]bool{}
	for i := range 200 {
		first, second := wait(0.01, v4(uint32(i)))
		if first != second || first.Seconds() < 100 || first.Seconds() > 110 {
			t.Fatalf("got %v and then %v, want the same between 100 s and 110 s", first.RetryAfter, second.RetryAfter)
		}
		seen[first.Seconds()] = true
		if short, _ := wait(0.1, v4(uint32(i))); short.Seconds() != 10 {
			t.Fatalf("10 s became %v", short.RetryAfter)
		}
	}
	if len(seen) != 11 {
		t.Errorf("200 sources wait only %d different times", len(seen))
	}
}

// TestACostAboveTheBurstIsNeverAdmitted: it is told apart from a wait, has no
// time to retry at, and spends nothing.
func TestACostAboveTheBurstIsNeverAdmitted(t *testing.T) {
	t.Parallel()
	for tier, cfg := range map[Tier]Config{
		PerIP:       {PerIP: Bucket{Rate: 1, Burst: 10}, Global: Bucket{Rate: 1, Burst: 1000}},
		EndpointAll: {PerIP: Bucket{Rate: 1, Burst: 1000}, Endpoints: map[string]EndpointLimit{"order": {All: Bucket{Rate: 1, Burst: 10}}}},
		Global:      {PerIP: Bucket{Rate: 1, Burst: 1000}, Global: Bucket{Rate: 1, Burst: 10}},
	} {
		l, _ := newTest(t, cfg)
		e := l.Endpoint("order", EndpointOptions{})
		unchanged(t, l, tier.String(), func() {
			for _, cost := range []Cost{10*Token + 1, 11 * Token, 1000 * Token} {
				if d := e.Charge(ip(alice), cost); d.OK || !d.Never || d.RetryAfter != 0 || d.Tier != tier {
					t.Errorf("a cost of %d: %+v by %s, want never by %s", cost, d, d.Tier, tier)
				}
			}
		})
		if d := e.Charge(ip(alice), math.MaxInt64); !d.Never {
			t.Errorf("%s: the highest cost is %+v, want never", tier, d)
		}
		if d := e.Charge(ip(alice), 10*Token); !d.OK {
			t.Errorf("%s: a cost of exactly the burst is refused: %+v", tier, d)
		}
		if d := e.Charge(ip(alice), 10*Token+1); !d.Never {
			t.Errorf("%s: a cost above the burst of an empty bucket is %+v, want never", tier, d)
		}
	}
}

// TestNothingCostsNothing: a cost of zero, or less, is admitted by an empty bucket.
func TestNothingCostsNothing(t *testing.T) {
	t.Parallel()
	l, _ := newTest(t, Config{PerIP: Bucket{Rate: 1, Burst: 1}})
	e := l.Endpoint("order", EndpointOptions{})
	e.Admit(ip(alice))
	unchanged(t, l, "nothing", func() {
		if !e.Charge(ip(alice), 0).OK || !e.Charge(ip(alice), -5).OK {
			t.Error("nothing is refused")
		}
	})
}

// TestCostsAreCountedInThousandths: an answer that costs a tenth is admitted ten
// times for a token, and no eleventh time.
func TestCostsAreCountedInThousandths(t *testing.T) {
	t.Parallel()
	for _, cost := range []Cost{1, 10, 100, 250, 1000, 2000} {
		l, _ := newTest(t, Config{PerIP: Bucket{Rate: 0.001, Burst: 4}})
		e := l.Endpoint("order", EndpointOptions{Cost: cost})
		if n := admits(e, ip(alice), 5000); n != int(4*Token/cost) {
			t.Errorf("a cost of %d is admitted %d times", cost, n)
		}
	}
}

// TestAReserveIsLeftForWhatFollows: a request that begins something is let in
// only while the source could go on, and the following ones use what was left.
func TestAReserveIsLeftForWhatFollows(t *testing.T) {
	t.Parallel()
	l, c := newTest(t, Config{PerIP: Bucket{Rate: 1, Burst: 10}})
	begin, follow := l.Endpoint("begin", EndpointOptions{Reserve: 4}), l.Endpoint("follow", EndpointOptions{})
	if n := admits(begin, ip(alice), 10); n != 6 {
		t.Errorf("%d begun of a burst of 10 with 4 reserved", n)
	}
	d := begin.Admit(ip(alice))
	wantRefusal(t, d, PerIP, 1)
	if n := admits(follow, ip(alice), 10); n != 4 {
		t.Errorf("%d could follow, want 4", n)
	}
	d = begin.Admit(ip(alice))
	wantRefusal(t, d, PerIP, 5) // 4 to be left, 1 to be paid
	c.advance(d.RetryAfter)
	if !begin.Admit(ip(alice)).OK {
		t.Error("refused after what was promised")
	}
}

// TestAReserveIsOfTheSourceOnly: the bucket of its class, and those that all
// share, may be used up by what begins.
func TestAReserveIsOfTheSourceOnly(t *testing.T) {
	t.Parallel()
	full, ten := Bucket{Rate: 1, Burst: 100}, Bucket{Rate: 1, Burst: 10}
	for tier, cfg := range map[Tier]Config{
		EndpointIP:  {PerIP: full, Endpoints: map[string]EndpointLimit{"begin": {PerIP: ten}}},
		EndpointAll: {PerIP: full, Endpoints: map[string]EndpointLimit{"begin": {All: ten}}},
		Global:      {PerIP: full, Global: ten},
	} {
		l, _ := newTest(t, cfg)
		if n := admits(l.Endpoint("begin", EndpointOptions{Reserve: 4}), ip(alice), 20); n != 10 {
			t.Errorf("%s: %d begun, want 10", tier, n)
		}
	}
}

// TestAReserveIsNoMoreThanHalfOfTheBurst: nor does it make a cost that fits
// impossible.
func TestAReserveIsNoMoreThanHalfOfTheBurst(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		burst, reserve int
		cost           Cost
		want           int
	}{{10, 1000, Token, 5}, {1, 5, Token, 1}, {2, 5, Token, 1}, {3, 5, Token, 2}, {10, 5, 10 * Token, 1}, {10, 5, 7 * Token, 1}} {
		l, _ := newTest(t, Config{PerIP: Bucket{Rate: 1, Burst: c.burst}})
		e := l.Endpoint("begin", EndpointOptions{Reserve: c.reserve, Cost: c.cost})
		if n := admits(e, ip(alice), 20); n != c.want {
			t.Errorf("%+v: %d begun", c, n)
		}
	}
}

// TestAnExemptClassIsCountedAndChargedToNobody: what must never be refused, such
// as a revocation, takes nothing from anybody either.
func TestAnExemptClassIsCountedAndChargedToNobody(t *testing.T) {
	t.Parallel()
	one := Bucket{Rate: 0.001, Burst: 1}
	l, _ := newTest(t, Config{Global: one, PerIP: one, PerAccount: one, Endpoints: map[string]EndpointLimit{"revoke": {one, one}}})
	e, other := l.Endpoint("revoke", EndpointOptions{Exempt: true}), l.Endpoint("other", EndpointOptions{})
	unchanged(t, l, "an exempt class", func() {
		if n := admits(e, ip(alice), 50); n != 50 {
			t.Errorf("%d of 50 admitted", n)
		}
		if proves(e, "a", 50) != 50 || !e.Claimed(ip(alice), "a").OK || !e.Charge(ip(alice), 1000*Token).OK {
			t.Error("an exempt class is refused")
		}
		e.FailedProof(ip(alice))
	})
	if !other.Admit(ip(alice)).OK {
		t.Error("an exempt class was charged")
	}
	if st := e.stat(); st.Admitted != 50 || st.FailedProofs != 1 {
		t.Errorf("counted %+v", st)
	}
}

// TestGroupsShareNoBucket: a flood of one kind of request, be it of one source,
// of one network or of everybody, leaves the other kinds alone.
func TestGroupsShareNoBucket(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"global":     {Global: Bucket{Rate: 0.001, Burst: 5}},
		"per_ip":     {PerIP: Bucket{Rate: 0.001, Burst: 5}},
		"per_prefix": {PerIP: Bucket{Rate: 0.001, Burst: 5}, PrefixFactor: 1},
	} {
		l, _ := newTest(t, cfg)
		work := []*Endpoint{l.Endpoint("order", EndpointOptions{}), l.Endpoint("other_work", EndpointOptions{Group: Work})}
		others := []*Endpoint{l.Endpoint("ocsp", EndpointOptions{Group: Status}), l.Endpoint("nonce", EndpointOptions{Group: Entry})}
		source := ip("2001:db8::1")
		if n := admits(work[0], source, 10) + admits(work[1], source, 10); n != 5 {
			t.Errorf("%s: %d admitted in one group, want the 5 of its bucket", name, n)
		}
		work[0].FailedProof(source)
		for _, e := range others {
			if n := admits(e, source, 10); n != 5 {
				t.Errorf("%s: %s: %d admitted, want 5 of its own", name, e.name, n)
			}
		}
	}
}

// TestASourceWithoutAnAddressIsHeldByWhatAllShareOnly: a socket of this machine
// has no address to be limited by.
func TestASourceWithoutAnAddressIsHeldByWhatAllShareOnly(t *testing.T) {
	t.Parallel()
	one := Bucket{Rate: 1, Burst: 1}
	l, _ := newTest(t, Config{Global: Bucket{Rate: 1, Burst: 5}, PerIP: one, PerAccount: one, Endpoints: map[string]EndpointLimit{"order": {PerIP: one}}})
	e := l.Endpoint("order", EndpointOptions{Reserve: 1})
	if n := admits(e, netip.Addr{}, 10); n != 5 {
		t.Errorf("%d admitted, want the global 5", n)
	}
	wantRefusal(t, e.Admit(netip.Addr{}), Global, 1)
	e.FailedProof(netip.Addr{})
	for range 2 {
		if !e.Claimed(netip.Addr{}, "a").OK {
			t.Error("claims are held by a tier of sources")
		}
	}
}

// TestAFailedProofCostsTheSourceMore: four tokens beyond the request's own, as
// far as there are any, and only of the source.
func TestAFailedProofCostsTheSourceMore(t *testing.T) {
	t.Parallel()
	l, c := newTest(t, Config{PerIP: Bucket{Rate: 1, Burst: 10}, PrefixFactor: 2, Global: Bucket{Rate: 1, Burst: 100}})
	e := l.Endpoint("order", EndpointOptions{})
	source, neighbour := ip("2001:db8:0:1::1"), ip("2001:db8:0:2::1")
	e.Admit(source)
	e.FailedProof(source)
	if n := admits(e, source, 10); n != 5 {
		t.Errorf("%d admitted of 10-1-4", n)
	}
	for range 3 {
		e.FailedProof(source) // nothing of its own is left, and of the prefix 10, then 6, 2, 0
	}
	wantRefusal(t, e.Admit(source), PerIP, 1)
	c.advance(time.Second)
	// The burst bounds what it owes: one second is enough for one token.
	if d := e.Admit(source); !d.OK {
		t.Errorf("a failed proof was charged beyond the burst: %+v by %s", d, d.Tier)
	}
	if n := admits(e, neighbour, 20); n != 1 {
		t.Errorf("%d admitted of the rest of the prefix, want 1", n)
	}
	if n := admits(e, ip(bob), 20); n != 10 {
		t.Errorf("%d admitted of another source, want 10", n)
	}
	if got := e.stat().FailedProofs; got != 4 {
		t.Errorf("%d failed proofs counted", got)
	}
}

// TestAClaimCannotHurtTheAccount: whoever sends an account's name without a
// proof uses up a bucket of its own address and that name, and neither the
// account's nor that of another address.
func TestAClaimCannotHurtTheAccount(t *testing.T) {
	t.Parallel()
	l, _ := newTest(t, Config{PerAccount: Bucket{Rate: 0.001, Burst: 5}})
	e := l.Endpoint("order", EndpointOptions{})
	for i := range 100 {
		forger := v4(uint32(i))
		ok := 0
		for range 20 {
			if d := e.Claimed(forger, "victim"); d.OK {
				ok++
			} else if d.Tier != PerSourceAccount {
				t.Fatalf("refused by %s", d.Tier)
			}
		}
		if ok != 5 {
			t.Fatalf("%d claims admitted, want 5", ok)
		}
	}
	if !e.Claimed(ip(alice), "victim").OK {
		t.Error("the victim's own claim is refused")
	}
	if n := proves(e, "victim", 10); n != 5 {
		t.Errorf("%d of the victim's own requests admitted, want all 5", n)
	}
	if d := e.Proven("victim"); d.Tier != PerAccount {
		t.Errorf("refused by %s", d.Tier)
	}
}

// TestUnprovenNamesLimitOnlyTheirSourceAndName: logins for somebody else's name
// that fail cost who makes them, and the owner of the name nothing.
func TestUnprovenNamesLimitOnlyTheirSourceAndName(t *testing.T) {
	t.Parallel()
	l, _ := newTest(t, Config{PerIP: Bucket{Rate: 0.001, Burst: 20}, PerAccount: Bucket{Rate: 0.001, Burst: 5}})
	e := l.Endpoint("login", EndpointOptions{})
	for range 50 {
		if e.Admit(ip(alice)).OK && e.Claimed(ip(alice), "owner").OK {
			e.FailedProof(ip(alice))
		}
	}
	if e.Admit(ip(alice)).OK {
		t.Error("who guesses is not held")
	}
	if !e.Claimed(ip(alice), "other").OK {
		t.Error("another name of the same source is held with it")
	}
	if !e.Admit(ip(bob)).OK || !e.Claimed(ip(bob), "owner").OK || !e.Proven("owner").OK {
		t.Error("the owner is held for what others did")
	}
}

// TestClaimsAndProofsAreApartByNameAndSource: names that begin alike, or are
// empty, have buckets of their own.
func TestClaimsAndProofsAreApartByNameAndSource(t *testing.T) {
	t.Parallel()
	l, _ := newTest(t, Config{PerAccount: Bucket{Rate: 0.001, Burst: 1}})
	e := l.Endpoint("order", EndpointOptions{})
	for _, name := range []string{"", "a", "aa", "a\x00", "A", strings.Repeat("a", 10000)} {
		if !e.Proven(name).OK || e.Proven(name).OK {
			t.Errorf("%.10q has no bucket of its own", name)
		}
		for _, source := range []string{alice, bob, "2001:db8::1", "2001:db8:0:1::1"} {
			if !e.Claimed(ip(source), name).OK || e.Claimed(ip(source), name).OK {
				t.Errorf("%.10q from %s has no bucket of its own", name, source)
			}
		}
	}
}

// TestOneClientIsAnIPv4AddressOrAnIPv6Network: IPv4-mapped addresses, as a
// listener for both families sees them, are IPv4 addresses, not one IPv6
// network; a zone makes no difference.
func TestOneClientIsAnIPv4AddressOrAnIPv6Network(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1", "192.0.2.2", false},
		{"192.0.2.1", "::ffff:192.0.2.1", true},
		{"::ffff:192.0.2.1", "::ffff:192.0.2.2", false},
		{"2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", true},
		{"2001:db8::1", "2001:db8:0:1::1", false},
		{"fe80::1%eth0", "fe80::1%eth1", true},
		{"fe80::1%eth0", "fe80::2", true},
		{"64:ff9b::192.0.2.1", "192.0.2.1", true},           // NAT64
		{"64:ff9b::192.0.2.1", "64:ff9b::192.0.2.2", false}, // NAT64
		{"64:ff9b:1::192.0.2.1", "64:ff9b:1::192.0.2.2", true},
		{"::192.0.2.1", "192.0.2.1", false},
		{"2002:c000:201::1", "192.0.2.1", false},
	} {
		l, _ := newTest(t, Config{PerIP: Bucket{Rate: 0.001, Burst: 1}, NAT64: []netip.Prefix{netip.MustParsePrefix("64:ff9b::/96")}})
		e := l.Endpoint("order", EndpointOptions{})
		e.Admit(ip(c.a))
		if e.Admit(ip(c.a)).OK {
			t.Errorf("%s is not limited", c.a)
		}
		if same := !e.Admit(ip(c.b)).OK; same != c.same {
			t.Errorf("%s and %s are one client: %v, want %v", c.a, c.b, same, c.same)
		}
	}
}

// TestAnIPv6SiteHasAMultipleOfOneClient: whoever has a /48 has 65536 networks,
// which share a bucket of several clients' size. IPv4 has no such bucket.
func TestAnIPv6SiteHasAMultipleOfOneClient(t *testing.T) {
	t.Parallel()
	for factor, want := range map[int]int{0: 40, 1: 10, 8: 80} {
		l, _ := newTest(t, Config{PerIP: Bucket{Rate: 0.001, Burst: 10}, PrefixFactor: factor})
		e := l.Endpoint("order", EndpointOptions{})
		n := 0
		var last Decision
		for i := range 1000 {
			b := ip("2001:db8:7::1").As16()
			b[6], b[7] = byte(i>>8), byte(i)
			if last = e.Admit(netip.AddrFrom16(b)); last.OK {
				n++
			}
		}
		if n != want || last.Tier != PerPrefix {
			t.Errorf("factor %d: %d admitted of a site, then refused by %s; want %d", factor, n, last.Tier, want)
		}
		if d := e.Admit(ip("2001:db8:8::1")); !d.OK {
			t.Errorf("factor %d: another site is refused by %s", factor, d.Tier)
		}
		for i := range 1000 {
			if !e.Admit(v4(uint32(i))).OK {
				t.Fatalf("factor %d: IPv4 neighbours share a bucket", factor)
			}
		}
	}
}

// TestExactlyTheBurstIsAdmittedAtOneInstant: 25 of 50 requests that come at the
// same time, whatever the interleaving. (A limiter that checks first and counts
// later lets all of them pass.)
func TestExactlyTheBurstIsAdmittedAtOneInstant(t *testing.T) {
	t.Parallel()
	b := Bucket{Rate: 0.001, Burst: 25}
	for name, cfg := range map[string]Config{
		"per_ip":   {PerIP: b},
		"global":   {Global: b},
		"endpoint": {Endpoints: map[string]EndpointLimit{"order": {PerIP: b, All: b}}},
	} {
		for range 50 {
			l, _ := newTest(t, cfg)
			e := l.Endpoint("order", EndpointOptions{})
			if n := together(50, func() bool { return e.Admit(ip(alice)).OK }); n != 25 {
				t.Fatalf("%s: %d of 50 admitted, want 25", name, n)
			}
		}
	}
}

// together runs f n times at once and counts the yeses.
func together(n int, f func() bool) int {
	var wg sync.WaitGroup
	var mu sync.Mutex
	start, ok := make(chan struct{}), 0
	for range n {
		wg.Go(func() {
			<-start
			if f() {
				mu.Lock()
				ok++
				mu.Unlock()
			}
		})
	}
	close(start)
	wg.Wait()
	return ok
}

// TestSpendsAtOnceAddUp: N spends of one cost move the bucket by exactly N times
// its price; none is lost.
func TestSpendsAtOnceAddUp(t *testing.T) {
	t.Parallel()
	const n = 200
	for _, cost := range []Cost{1, 333, Token, 7 * Token} {
		l, c := newTest(t, Config{PerIP: Bucket{Rate: 3, Burst: 10000}, Global: Bucket{Rate: 7, Burst: 10000}})
		e := l.Endpoint("order", EndpointOptions{Cost: cost})
		together(n, func() bool { return e.Admit(ip(alice)).OK })
		s := l.settings.Load()
		if got, want := globalOf(s).state.Load()-c.now(), n*globalOf(s).limit.price(cost); got != want {
			t.Errorf("cost %d: the global bucket moved by %d, want %d", cost, got, want)
		}
		if got, want := debts(l, PerIP, c.now()), n*s.schedules[PerIP].limits[0].price(cost); got != want {
			t.Errorf("cost %d: the source's bucket moved by %d, want %d", cost, got, want)
		}
	}
}

// debts adds up what all keys of a tier owe, in nanoseconds.
func debts(l *Limiter, tier Tier, now int64) int64 {
	var sum int64
	table := l.settings.Load().tables[tier]
	for i := range table.sets {
		for j := range table.sets[i].tats {
			sum += max(table.sets[i].tats[j].Load()-now, 0)
		}
	}
	return sum
}

// TestAClockThatGoesBackMintsNothing: nor does it lock anybody out for longer
// than until the clock is where it was.
func TestAClockThatGoesBackMintsNothing(t *testing.T) {
	t.Parallel()
	l, c := newTest(t, Config{PerIP: Bucket{Rate: 1, Burst: 5}, Global: Bucket{Rate: 1, Burst: 5}})
	e := l.Endpoint("order", EndpointOptions{})
	admits(e, ip(alice), 5)
	for range 100 {
		c.advance(-time.Second)
		unchanged(t, l, "the past", func() {
			if e.Admit(ip(alice)).OK || e.Admit(ip(bob)).OK {
				t.Error("a token was minted")
			}
		})
		e.FailedProof(ip(alice)) // must not make it owe less, nor more than all
	}
	c.advance(100 * time.Second)
	wantRefusal(t, e.Admit(ip(alice)), PerIP, 1)
	c.advance(time.Second)
	if n := admits(e, ip(alice), 5); n != 1 {
		t.Errorf("%d admitted a second after the clock was back, want 1", n)
	}
}

// TestReadingsOfTheClockThatComeLateMintNothing: many callers read the clock and
// ask in another order, as they do at high rates. No more is admitted than the
// burst and what the whole time gives back. (Twice the rate passed elsewhere.)
func TestReadingsOfTheClockThatComeLateMintNothing(t *testing.T) {
	t.Parallel()
	const perMilli, burst, millis = 5, 10, 200
	for _, tier := range []Tier{PerIP, Global} {
		cfg := Config{PerIP: Bucket{Rate: perMilli * 1000, Burst: burst}}
		if tier == Global {
			cfg = Config{Global: cfg.PerIP}
		}
		l, c := newTest(t, cfg)
		e := l.Endpoint("order", EndpointOptions{})
		begin := c.now()
		n := 0
		for i := range millis {
			for _, late := range []int{0, 7, 1, 3, 0, 10, 2} {
				c.ns.Store(begin + int64(max(i-late, 0))*int64(time.Millisecond))
				n += admits(e, ip(alice), 10)
			}
		}
		if most := burst + perMilli*(millis-1); n > most || n < most-perMilli {
			t.Errorf("%s: %d admitted, want no more than %d, and about that", tier, n, most)
		}
	}
}

// TestTheLimiterReadsAClockThatNobodyCanSet: the time since its start, which a
// step of the wall clock does not change.
func TestTheLimiterReadsAClockThatNobodyCanSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		if now := l.clock(); now != 0 {
			t.Errorf("the clock begins at %d", now)
		}
		time.Sleep(time.Hour) // of the bubble
		if now := l.clock(); now != int64(time.Hour) {
			t.Errorf("the clock says %d after an hour", now)
		}
	})
}

// TestNothingIsAllocated: neither for who is refused nor for who is admitted,
// nor for sources never seen before.
func TestNothingIsAllocated(t *testing.T) {
	one := Bucket{Rate: 1e-5, Burst: 1}
	cfg := limits
	cfg.Shadow = false
	cfg.Endpoints = map[string]EndpointLimit{
		"all": {PerIP: cfg.PerIP, All: one}, "three": {PerIP: Bucket{Rate: 1e6, Burst: 1e9}, All: Bucket{Rate: 1e6, Burst: 1e9}},
	}
	cfg.PerIP.Burst, cfg.Global.Burst = 10000, 1000000
	for i := range 1000 {
		cfg.Overrides = append(cfg.Overrides, Override{Source: netip.PrefixFrom(v4(uint32(i)<<16), 20), Bucket: one}, Override{Account: fmt.Sprint(i), Bucket: one})
	}
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e, all, three := l.Endpoint("order", EndpointOptions{}), l.Endpoint("all", EndpointOptions{}), l.Endpoint("three", EndpointOptions{})
	source, v6, account, n := ip(alice), ip("2001:db8::1"), "account", uint32(1)<<30
	refused := v4(1 << 16)
	for name, f := range map[string]func(){
		"admitted":             func() { e.Admit(source) },
		"admitted IPv6":        func() { e.Admit(v6) },
		"refused":              func() { e.Admit(refused) },
		"refused and refunded": func() { all.Admit(source) },
		"three tiers":          func() { three.Admit(v6) },
		"spray":                func() { n++; e.Admit(v4(n)) },
		"claimed":              func() { e.Claimed(source, account) },
		"proven":               func() { e.Proven(account) },
		"proven, override":     func() { e.Proven("7") },
		"charged":              func() { e.Charge(source, 250) },
		"never":                func() { e.Charge(source, 1e9*Token) },
		"failed proof":         func() { e.FailedProof(source) },
	} {
		if n := testing.AllocsPerRun(1000, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestAReadingOfTheClockDoesForAllOfARequest: one that is handed in decides as
// one that is read does, and an old one gives nothing away.
func TestAReadingOfTheClockDoesForAllOfARequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := New(Config{PerIP: Bucket{Rate: 1, Burst: 2}})
		if err != nil {
			t.Fatal(err)
		}
		e := l.Endpoint("order", EndpointOptions{})
		old := time.Now()
		for i, want := range []bool{true, true, false} {
			if d := e.AdmitAt(ip(alice), time.Now()); d.OK != want {
				t.Errorf("request %d: %+v", i, d)
			}
		}
		time.Sleep(time.Second)
		if e.AdmitAt(ip(alice), old).OK {
			t.Error("an old reading was taken for a new one")
		}
		if !e.AdmitAt(ip(alice), time.Now()).OK {
			t.Error("refused after the second that it takes")
		}
		if e.Admit(ip(alice)).OK {
			t.Error("the two have buckets of their own")
		}
		var none *Endpoint
		if !none.AdmitAt(ip(alice), old).OK {
			t.Error("no endpoint refuses")
		}
	})
}

// TestWhatIsReadyIsNotRefusedForWhatOthersAsk: its own tiers hold all the same.
func TestWhatIsReadyIsNotRefusedForWhatOthersAsk(t *testing.T) {
	t.Parallel()
	l, _ := newTest(t, Config{Global: Bucket{Rate: 0.001, Burst: 1}, PerIP: Bucket{Rate: 0.001, Burst: 5}})
	ready, signed := l.Endpoint("ocsp", EndpointOptions{Group: Status, SkipGlobal: true}), l.Endpoint("ocsp_sign", EndpointOptions{Group: Status})
	if n := admits(ready, ip(alice), 10); n != 5 {
		t.Errorf("%d admitted, want the 5 of the source", n)
	}
	if n := admits(signed, ip(bob), 3); n != 1 {
		t.Errorf("%d admitted, want the 1 that all share, which ready answers have left alone", n)
	}
	if !ready.Admit(ip(bob)).OK {
		t.Error("a ready answer is refused for what others had signed")
	}
}
