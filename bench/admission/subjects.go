package main

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/httprate"
	"github.com/maypok86/otter/v2"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"

	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// maxKeys is the bound of those that have one.
const maxKeys = 100_000

// A decide says whether a request from an address is let in. It is one
// goroutine's. text is the address as text where the caller has it; who needs
// that and is given none makes it, as a server would have to.
type decide func(source netip.Addr, text string) bool

// A limit is a limiter that lets one request in every so often, and so many at once.
type limit struct {
	worker func() decide
	close  func()
}

// A subject is a limiter that is measured.
type subject struct {
	name  string
	build func(every time.Duration, burst int) (limit, error)
}

const (
	oursName = "ours"
	// givenName is ours as the listener asks it: the clock was read when the
	// request came, and that reading is handed in.
	givenName = "ours, clock handed in"
)

func subjects() []subject {
	return []subject{
		{oursName, newOurs},
		{givenName, newOursGiven},
		{"x/time/rate, mutex and map", newTimeRate},
		{"x/time/rate, sync.Map", newTimeRateSync},
		{"sethvargo/go-limiter", newGoLimiter},
		{"throttled memstore, LRU", func(every time.Duration, burst int) (limit, error) { return newThrottled(every, burst, maxKeys) }},
		{"throttled memstore, unbounded", func(every time.Duration, burst int) (limit, error) { return newThrottled(every, burst, 0) }},
		{"go-chi/httprate", newHTTPRate},
		{"ulule/limiter memory", newUlule},
		{"GCRA in otter", newOtter},
	}
}

// same is the limit whose goroutines all decide by one function.
func same(d decide) limit {
	return limit{worker: func() decide { return d }, close: func() {}}
}

func perSecond(every time.Duration) float64 { return float64(time.Second) / float64(every) }

// textOf is for those whose keys are text.
func textOf(source netip.Addr, text string) string {
	if text == "" {
		return source.String()
	}
	return text
}

// newOurs has one tier, as the others have.
func newOurs(every time.Duration, burst int) (limit, error) {
	l, err := ratelimit.New(ratelimit.Config{PerIP: ratelimit.Bucket{Rate: perSecond(every), Burst: burst}, MaxKeys: maxKeys})
	if err != nil {
		return limit{}, err
	}
	e := l.Endpoint("bench", ratelimit.EndpointOptions{})
	return same(func(source netip.Addr, _ string) bool { return e.Admit(source).OK }), nil
}

// newOursGiven reads the clock once in a while, which costs next to nothing.
func newOursGiven(every time.Duration, burst int) (limit, error) {
	l, err := ratelimit.New(ratelimit.Config{PerIP: ratelimit.Bucket{Rate: perSecond(every), Burst: burst}, MaxKeys: maxKeys})
	if err != nil {
		return limit{}, err
	}
	e := l.Endpoint("bench", ratelimit.EndpointOptions{})
	return limit{close: func() {}, worker: func() decide { return given(e) }}, nil
}

// given asks e as the listener does.
func given(e *ratelimit.Endpoint) decide {
	at, calls := time.Now(), 0
	return func(source netip.Addr, _ string) bool {
		if calls++; calls%64 == 0 {
			at = time.Now()
		}
		return e.AdmitAt(source, at).OK
	}
}

func newTimeRate(every time.Duration, burst int) (limit, error) {
	var mu sync.Mutex
	buckets := make(map[netip.Addr]*rate.Limiter)
	return same(func(source netip.Addr, _ string) bool {
		mu.Lock()
		b, ok := buckets[source]
		if !ok {
			b = rate.NewLimiter(rate.Every(every), burst)
			buckets[source] = b
		}
		mu.Unlock()
		return b.Allow()
	}), nil
}

func newTimeRateSync(every time.Duration, burst int) (limit, error) {
	var buckets sync.Map
	return same(func(source netip.Addr, _ string) bool {
		b, ok := buckets.Load(source)
		if !ok {
			b, _ = buckets.LoadOrStore(source, rate.NewLimiter(rate.Every(every), burst))
		}
		return b.(*rate.Limiter).Allow()
	}), nil
}

func newGoLimiter(every time.Duration, burst int) (limit, error) {
	s, err := memorystore.New(&memorystore.Config{Tokens: uint64(burst), Interval: every * time.Duration(burst)})
	if err != nil {
		return limit{}, err
	}
	ctx := context.Background()
	l := same(func(source netip.Addr, text string) bool {
		_, _, _, ok, err := s.Take(ctx, textOf(source, text))
		return ok && err == nil
	})
	l.close = func() { _ = s.Close(ctx) } // it never fails
	return l, nil
}

func newThrottled(every time.Duration, burst, most int) (limit, error) {
	s, err := memstore.NewCtx(most)
	if err != nil {
		return limit{}, err
	}
	g, err := throttled.NewGCRARateLimiterCtx(s, throttled.RateQuota{MaxRate: throttled.PerDuration(1, every), MaxBurst: burst - 1})
	if err != nil {
		return limit{}, err
	}
	ctx := context.Background()
	return same(func(source netip.Addr, text string) bool {
		refused, _, err := g.RateLimitCtx(ctx, textOf(source, text), 1)
		return !refused && err == nil
	}), nil
}

// newHTTPRate decides only together with the headers of the answer.
func newHTTPRate(every time.Duration, burst int) (limit, error) {
	l := httprate.NewRateLimiter(burst, every*time.Duration(burst))
	return limit{close: func() {}, worker: func() decide {
		w := headers{}
		r := &http.Request{}
		return func(source netip.Addr, text string) bool { return !l.OnLimit(w, r, textOf(source, text)) }
	}}, nil
}

// headers are all of an answer that anybody looks at.
type headers http.Header

func (h headers) Header() http.Header         { return http.Header(h) }
func (h headers) Write(p []byte) (int, error) { return len(p), nil }
func (h headers) WriteHeader(int)             {}

func newUlule(every time.Duration, burst int) (limit, error) {
	l := ulule.New(memory.NewStore(), ulule.Rate{Period: every * time.Duration(burst), Limit: int64(burst)})
	ctx := context.Background()
	return same(func(source netip.Addr, text string) bool {
		c, err := l.Get(ctx, textOf(source, text))
		return !c.Reached && err == nil
	}), nil
}

// newOtter is our own arithmetic in somebody else's cache: what a bucket of one
// word would cost if its keys were evicted by how often they are used.
func newOtter(every time.Duration, burst int) (limit, error) {
	buckets, err := otter.New(&otter.Options[netip.Addr, *atomic.Int64]{MaximumSize: maxKeys})
	if err != nil {
		return limit{}, err
	}
	began := time.Now()
	depth := int64(every) * int64(burst)
	l := same(func(source netip.Addr, _ string) bool {
		b, ok := buckets.GetIfPresent(source)
		if !ok {
			b, _ = buckets.SetIfAbsent(source, new(atomic.Int64))
		}
		return spend(b, int64(time.Since(began)), int64(every), depth)
	})
	l.close = func() { buckets.StopAllGoroutines() }
	return l, nil
}

// spend moves the time at which a bucket is full again, unless that is too far off.
func spend(full *atomic.Int64, now, every, depth int64) bool {
	for {
		was := full.Load()
		next := max(was, now) + every
		if next-now > depth {
			return false
		}
		if full.CompareAndSwap(was, next) {
			return true
		}
	}
}

// newTiers is our limiter with three tiers, of which the last, which all share,
// is spent: a request is charged to two buckets and then refunded.
func newTiers() (*ratelimit.Endpoint, error) {
	const much = 1_000_000
	l, err := ratelimit.New(ratelimit.Config{
		PerIP:     ratelimit.Bucket{Rate: much, Burst: much},
		Global:    ratelimit.Bucket{Rate: 1.0 / 3600, Burst: 1},
		Endpoints: map[string]ratelimit.EndpointLimit{"bench": {PerIP: ratelimit.Bucket{Rate: much, Burst: much}}},
		MaxKeys:   maxKeys,
	})
	if err != nil {
		return nil, err
	}
	e := l.Endpoint("bench", ratelimit.EndpointOptions{})
	e.Admit(address(0))
	if d := e.Admit(address(1)); d.OK || d.Tier != ratelimit.Global {
		return nil, errors.New("three tiers: the last one does not refuse")
	}
	return e, nil
}
