package ratelimit

import (
	"encoding/binary"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"
)

// A model is the limiter as a textbook has it: each bucket a level of tokens, a
// fraction of whole numbers, that rises with time up to the burst.
//
// The limiter agrees exactly, but for a reload that turns a debt into a broken
// number of nanoseconds, which it rounds up.
type model struct {
	now     int64
	buckets map[modelKey]*modelBucket
	limits  map[Tier]Bucket // PerIP, EndpointIP, EndpointAll, Global
}

type modelKey struct {
	tier Tier
	key  string
}

type modelBucket struct {
	Bucket          // the last that was active
	level  *big.Rat // tokens
	last   int64    // when it was right
	slack  *big.Rat // nanoseconds that the limiter may have rounded up, by reloads since it was full
}

func tokens(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

// perNano is what comes back in a nanosecond.
func (b *modelBucket) perNano() *big.Rat {
	r := new(big.Rat).SetFloat64(b.Rate)
	return r.Quo(r, tokens(1e9))
}

func (b *modelBucket) refill(now int64) {
	if b.level == nil {
		return // never active
	}
	r := tokens(now - b.last)
	b.level.Add(b.level, r.Mul(r, b.perNano()))
	if full := tokens(int64(b.Burst)); b.level.Cmp(full) > 0 {
		b.level = full
		b.slack.SetInt64(0)
	}
	b.last = now
}

// set puts limit into force; what was spent stays spent, up to the new burst.
func (b *modelBucket) set(limit Bucket, now int64) {
	b.refill(now)
	if !limit.Active() {
		return
	}
	if b.level == nil {
		b.level, b.slack = tokens(int64(limit.Burst)), tokens(0)
	} else {
		debt := new(big.Rat).Sub(tokens(int64(b.Burst)), b.level)
		b.slack.Mul(b.slack, b.perNano()).Quo(b.slack, (&modelBucket{Bucket: limit}).perNano())
		if !debt.Quo(debt, (&modelBucket{Bucket: limit}).perNano()).IsInt() || !b.slack.IsInt() {
			b.slack.Add(b.slack, tokens(1))
		}
		b.level.Add(b.level, tokens(int64(limit.Burst-b.Burst)))
		if b.level.Sign() < 0 {
			b.level = tokens(0)
		}
	}
	b.Bucket, b.last = limit, now
}

func (m *model) bucket(tier Tier, key string) *modelBucket {
	b := m.buckets[modelKey{tier, key}]
	if b == nil {
		b = &modelBucket{}
		b.set(m.limits[tier], m.now)
		m.buckets[modelKey{tier, key}] = b
	}
	b.refill(m.now)
	return b
}

// missing is how many nanoseconds b is short of cost, nil for never.
func (b *modelBucket) missing(cost Cost, reserve int) *big.Rat {
	need := big.NewRat(int64(cost), int64(Token))
	if need.Cmp(tokens(int64(b.Burst))) > 0 {
		return nil
	}
	need.Add(need, tokens(int64(min(reserve, b.Burst/2))))
	if full := tokens(int64(b.Burst)); need.Cmp(full) > 0 {
		need = full // the reserve gives way
	}
	need.Sub(need, b.level)
	return need.Quo(need, b.perNano())
}

func (b *modelBucket) spend(cost Cost) {
	b.level.Sub(b.level, big.NewRat(int64(cost), int64(Token)))
	if b.level.Sign() < 0 {
		b.level = tokens(0)
	}
}

// A modelRequest is one to compare.
type modelRequest struct {
	source, endpoint string
	cost             Cost
	reserve          int
}

// ask is what the limiter should say to q: exact, unless a bucket is so near to
// its border that the rounding of reloads decides, and then unsure. The buckets
// that q pays are returned.
func (m *model) ask(q modelRequest) (d Decision, shadowed [tiers]int64, pays []*modelBucket, unsure bool) {
	wait, slack := new(big.Rat), new(big.Rat)
	for _, x := range []struct {
		tier    Tier
		key     string
		reserve int
	}{{PerIP, q.source, q.reserve}, {EndpointIP, q.endpoint + q.source, 0}, {EndpointAll, q.endpoint, 0}, {Global, "", 0}} {
		if !m.limits[x.tier].Active() || q.endpoint != "limited" && (x.tier == EndpointIP || x.tier == EndpointAll) {
			continue
		}
		b := m.bucket(x.tier, x.key)
		missing := b.missing(q.cost, x.reserve)
		if missing != nil {
			near := new(big.Rat).Add(missing, b.slack)
			unsure = unsure || missing.Sign() <= 0 && near.Sign() > 0
			if b.slack.Cmp(slack) > 0 {
				slack = b.slack
			}
		}
		switch refused := d.Tier != None; {
		case missing != nil && missing.Sign() <= 0:
			pays = append(pays, b)
		case b.Shadow:
			if !refused {
				shadowed[x.tier]++
			}
		case missing == nil && !d.Never:
			d.Never, d.Tier = true, x.tier
		case missing != nil:
			if !refused {
				d.Tier = x.tier
			}
			if missing.Cmp(wait) > 0 {
				wait = missing
			}
		}
	}
	d.OK = d.Tier == None
	if !d.OK && !d.Never {
		d.RetryAfter = inSeconds(wait)
		unsure = unsure || d.RetryAfter != inSeconds(new(big.Rat).Add(wait, slack))
	}
	return d, shadowed, pays, unsure
}

func inSeconds(nanos *big.Rat) time.Duration {
	s := new(big.Rat).Quo(nanos, tokens(1e9))
	q, r := new(big.Int).QuoRem(s.Num(), s.Denom(), new(big.Int))
	if r.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return time.Duration(max(q.Int64(), 1)) * time.Second
}

// Rates whose tokens take whole thousands of nanoseconds.
var modelRates = []float64{1.0 / 64, 0.125, 0.5, 1, 2, 5, 8, 20, 100, 1000, 1e6}

// An opReader makes operations of bytes.
type opReader []byte

func (r *opReader) next(n int) int {
	if len(*r) == 0 {
		return 0
	}
	b := (*r)[0]
	*r = (*r)[1:]
	return int(b) % n
}

func (r *opReader) bucket() Bucket {
	b := Bucket{Rate: modelRates[r.next(len(modelRates))], Burst: 1 + r.next(12), Shadow: r.next(8) == 7}
	if r.next(6) == 5 {
		return Bucket{}
	}
	return b
}

func (r *opReader) config() map[Tier]Bucket {
	return map[Tier]Bucket{PerIP: r.bucket(), EndpointIP: r.bucket(), EndpointAll: r.bucket(), Global: r.bucket()}
}

func limiterConfig(m map[Tier]Bucket) Config {
	return Config{
		PerIP: m[PerIP], Global: m[Global],
		Endpoints: map[string]EndpointLimit{"limited": {PerIP: m[EndpointIP], All: m[EndpointAll]}},
	}
}

// play compares the limiter with the model over the operations of data, and
// returns how many were compared.
func play(t *testing.T, data []byte) int {
	t.Helper()
	r := opReader(data)
	m := &model{now: int64(time.Hour), buckets: map[modelKey]*modelBucket{}, limits: r.config()}
	cfg := limiterConfig(m.limits)
	cfg.MaxKeys = 700
	l, clock := newTest(t, cfg)
	free := l.Endpoint("free", EndpointOptions{Reserve: 3})
	limited := l.Endpoint("limited", EndpointOptions{Cost: Token / 4})
	sources := []string{alice, bob, "198.51.100.1"}
	compared := 0
	for len(r) > 0 {
		source := sources[r.next(len(sources))]
		switch op := r.next(10); op {
		case 0:
			d := time.Duration(r.next(256)) << r.next(30)
			clock.advance(d)
			m.now += int64(d)
		case 1:
			m.limits = r.config()
			for k, b := range m.buckets {
				b.set(m.limits[k.tier], m.now)
			}
			reconfigure(t, l, limiterConfig(m.limits))
		case 2:
			free.FailedProof(ip(source))
			if m.limits[PerIP].Active() {
				m.bucket(PerIP, source).spend(4 * Token)
			}
		default:
			q := modelRequest{source: source, endpoint: "free", cost: Token, reserve: 3}
			e := free
			if op >= 6 {
				q = modelRequest{source: source, endpoint: "limited", cost: Token / 4}
				e = limited
			}
			before := e.stat().Shadowed
			var got Decision
			if op == 9 {
				q.cost = Cost(1 + r.next(256)*64)
				got = e.Charge(ip(source), q.cost)
			} else {
				got = e.Admit(ip(source))
			}
			shadowed := e.stat().Shadowed
			for i := range shadowed {
				shadowed[i] -= before[i]
			}
			want, wantShadowed, pays, unsure := m.ask(q)
			if unsure {
				return compared
			}
			if got != want || shadowed != wantShadowed {
				t.Fatalf("after %d: %+v at %d: got %+v, shadowed %v; want %+v, shadowed %v\nlimits %+v", compared, q, m.now, got, shadowed, want, wantShadowed, m.limits)
			}
			if got.OK {
				for _, b := range pays {
					b.spend(q.cost)
				}
			}
			compared++
		}
	}
	return compared
}

// TestTheLimiterAgreesWithATextbookBucket: on random operations, each decision,
// tier, wait and shadow is that of buckets in exact fractions.
func TestTheLimiterAgreesWithATextbookBucket(t *testing.T) {
	t.Parallel()
	rounds := 1500
	if underRace {
		rounds = 300
	}
	compared := 0
	for range rounds {
		data := make([]byte, 50+rand.IntN(600))
		for i := range data {
			data[i] = byte(rand.Uint32())
		}
		compared += play(t, data)
	}
	if compared < 40*rounds {
		t.Errorf("only %d decisions compared in %d rounds", compared, rounds)
	}
}

// FuzzLimiterAgainstTextbook has the fuzzer look for operations after which the
// limiter and exact fractions differ.
func FuzzLimiterAgainstTextbook(f *testing.F) {
	for n := range 8 {
		data := make([]byte, 0, 256)
		for i := range 32 {
			data = binary.BigEndian.AppendUint64(data, uint64(i*i+1)*0x9e3779b97f4a7c15*uint64(n+1))
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 2048 {
			data = data[:2048]
		}
		play(t, data)
	})
}

// FuzzRetryAfterIsTrue: whatever the rates, bursts, costs and reserves, who is
// alone and waits exactly as long as it was told is admitted, and would not have
// been a second before.
func FuzzRetryAfterIsTrue(f *testing.F) {
	f.Add(20.0, 40, 0.3, 7, 100.0, 3, int64(1000), 2, int64(5))
	f.Add(1.0/3600, 5, 1e6, 1, 3.3, 1000, int64(1), 1000, int64(1e12))
	f.Add(999999.7, 100000, 0.7, 3, 0.0001, 2, int64(1999), 1, int64(7e9))
	f.Fuzz(func(t *testing.T, ipRate float64, ipBurst int, allRate float64, allBurst int, globalRate float64, globalBurst int, cost int64, reserve int, pause int64) {
		cfg := Config{
			PerIP: Bucket{Rate: ipRate, Burst: ipBurst}, Global: Bucket{Rate: globalRate, Burst: globalBurst}, MaxKeys: 7,
			Endpoints: map[string]EndpointLimit{"order": {PerIP: Bucket{Rate: allRate, Burst: globalBurst}, All: Bucket{Rate: allRate, Burst: allBurst}}},
		}
		if _, err := New(cfg); err != nil || pause < 0 || pause > int64(time.Hour) || cost < 1 || reserve < 0 {
			return
		}
		l, c := newTest(t, cfg)
		e := l.Endpoint("order", EndpointOptions{Cost: Cost(cost), Reserve: reserve})
		for _, source := range []string{alice, "2001:db8::1", "2001:db8:0:1::1"} {
			for range 20 {
				d := e.Admit(ip(source))
				if d.OK {
					continue
				}
				if d.Never {
					return
				}
				if d.RetryAfter < time.Second || d.RetryAfter%time.Second != 0 {
					t.Fatalf("told to wait %v", d.RetryAfter)
				}
				if d.RetryAfter > 1e9*time.Second {
					return // beyond what the clock of a test counts
				}
				c.advance(d.RetryAfter - time.Second)
				if d.RetryAfter > time.Second && e.Admit(ip(source)).OK {
					t.Fatalf("admitted %v after %+v", d.RetryAfter-time.Second, d)
				}
				c.advance(time.Second)
				if again := e.Admit(ip(source)); !again.OK {
					t.Fatalf("refused, told %+v, waited that long, and refused again: %+v", d, again)
				}
				c.ns.Add(pause)
			}
		}
	})
}

// TestRetryAfterIsTrueForRandomLimits is the same property, on limits that an
// operator could write.
func TestRetryAfterIsTrueForRandomLimits(t *testing.T) {
	t.Parallel()
	waited := 0
	for range 300 {
		rate := func() float64 { return 1 / (0.0001 + rand.ExpFloat64()*rand.ExpFloat64()*20) }
		bucket := func() Bucket { return Bucket{Rate: rate(), Burst: 1 + rand.IntN(20)} }
		cfg := Config{PerIP: bucket(), Global: bucket(), PrefixFactor: 1 + rand.IntN(4), Endpoints: map[string]EndpointLimit{"order": {bucket(), bucket()}}}
		l, c := newTest(t, cfg)
		e := l.Endpoint("order", EndpointOptions{Cost: Cost(1 + rand.IntN(2000)), Reserve: rand.IntN(10)})
		for range 60 {
			source := ip([]string{alice, bob, "2001:db8::1", "2001:db8:0:1::1"}[rand.IntN(4)])
			d := e.Admit(source)
			if d.Never {
				break
			}
			if !d.OK {
				waited++
				if rand.IntN(2) == 0 {
					e.FailedProof(source) // not its own doing: asks anew
					d = e.Admit(source)
				}
				c.advance(d.RetryAfter)
				if again := e.Admit(source); !again.OK {
					t.Fatalf("%+v: refused, told %+v, waited that long, and refused again: %+v", cfg, d, again)
				}
			}
			c.advance(time.Duration(rand.Int64N(int64(time.Second))))
		}
	}
	if waited < 1000 {
		t.Errorf("only %d had to wait", waited)
	}
}
