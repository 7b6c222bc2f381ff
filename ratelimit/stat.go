package ratelimit

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Stat is what a Limiter has counted so far.
type Stat struct {
	Endpoints []EndpointStat // by name
	Tables    []TableStat    // by tier; those of tiers that were ever in use
}

// An EndpointStat is what one class of endpoints has counted.
type EndpointStat struct {
	Name string
	// Admitted are the requests that Admit let in. What Claimed, Proven or
	// Charge refuse later is counted in Throttled besides.
	Admitted int64
	// Throttled are refusals by Tier: the first that refused.
	Throttled [tiers]int64
	// Shadowed are refusals that a bucket in shadow would have made.
	Shadowed     [tiers]int64
	FailedProofs int64
}

// A TableStat says how hard it is for the keys of one tier to find a place.
type TableStat struct {
	Tier  Tier
	Slots int // keys that fit
	Bytes int // of memory, whether used or not
	// Evicted are keys that were forgotten while they owed something.
	Evicted int64
	// Overflowed are requests of newcomers that had to share a bucket.
	Overflowed int64
}

// Stat returns the counters as they are. A nil Limiter has none.
func (l *Limiter) Stat() Stat {
	if l == nil {
		return Stat{}
	}
	l.mu.Lock()
	endpoints := slices.Clone(l.endpoints)
	l.mu.Unlock()
	var st Stat
	for _, e := range endpoints {
		st.Endpoints = append(st.Endpoints, e.stat())
	}
	slices.SortFunc(st.Endpoints, func(a, b EndpointStat) int { return cmp.Compare(a.Name, b.Name) })
	for tier, t := range l.settings.Load().tables {
		if t != nil {
			st.Tables = append(st.Tables, TableStat{Tier(tier), t.slots(), t.bytes(), t.evicted.sum(), t.overflowed.sum()})
		}
	}
	return st
}

func (e *Endpoint) stat() EndpointStat {
	st := EndpointStat{Name: e.name}
	for i := range e.counters {
		c := &e.counters[i]
		st.Admitted += c.admitted.Load()
		st.FailedProofs += c.failedProofs.Load()
		for t := range st.Throttled {
			st.Throttled[t] += c.throttled[t].Load()
			st.Shadowed[t] += c.shadowed[t].Load()
		}
	}
	return st
}

// counters are those of an Endpoint, in stripes.
type counters [stripes]stripe

type stripe struct {
	admitted     atomic.Int64
	failedProofs atomic.Int64
	throttled    [tiers]atomic.Int64
	shadowed     [tiers]atomic.Int64
	_            [64]byte
}

func (c *counters) own() *stripe { return &c[stripeOf()] }

func (c *counters) admitted()        { c.own().admitted.Add(1) }
func (c *counters) failedProof()     { c.own().failedProofs.Add(1) }
func (c *counters) throttled(t Tier) { c.own().throttled[t].Add(1) }

func (c *counters) shadowed(set uint16) {
	for t := range tiers {
		if set&(1<<t) != 0 {
			c.own().shadowed[t].Add(1)
		}
	}
}

// refusals is how often t has refused.
func (c *counters) refusals(t Tier) int64 {
	var n int64
	for i := range c {
		n += c[i].throttled[t].Load()
	}
	return n
}

// watch has the recorder look at the refusals of sources. Those of proven
// accounts are told to it.
func (e *Endpoint) watch() {
	if e.limiter.recorder == nil {
		return
	}
	for _, t := range []Tier{PerIP, PerPrefix, EndpointIP, PerSourceAccount, EndpointAll, Global} {
		e.limiter.recorder.Watch(t.String(), e.name,
			func() int64 { return e.counters.refusals(t) },
			e.examples[t].get)
	}
}

// An example is a source that was refused lately.
type example struct {
	due    atomic.Int64 // when another one is wanted
	mu     sync.Mutex   // guards source
	source netip.Addr
}

// offer takes source, once a second. It never waits.
func (x *example) offer(source netip.Addr, now int64) {
	due := x.due.Load()
	if now < due || !x.due.CompareAndSwap(due, now+int64(time.Second)) || !x.mu.TryLock() {
		return
	}
	x.source = source
	x.mu.Unlock()
}

func (x *example) get() netip.Addr {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.source
}
