package ratelimit

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A Limiter holds the buckets of all tiers. It is safe for concurrent use, and
// its memory is fixed. A nil Limiter limits nothing.
type Limiter struct {
	clock    func() int64
	start    time.Time // of the clock; zero if it is not ours
	hasher   hasher
	maxKeys  int
	recorder *Recorder

	settings atomic.Pointer[settings] // in force

	mu        sync.Mutex // held while the settings are changed
	policy    *policy    // that the settings were made of
	endpoints []*Endpoint
}

// New returns a Limiter, or says what is wrong with cfg.
func New(cfg Config) (*Limiter, error) {
	p, err := newPolicy(cfg)
	if err != nil {
		return nil, err
	}
	l := &Limiter{
		clock:    cfg.Now,
		hasher:   newHasher(),
		maxKeys:  cfg.MaxKeys,
		recorder: cfg.Recorder,
		policy:   p,
	}
	if l.clock == nil {
		l.start = time.Now()
		l.clock = func() int64 { return int64(time.Since(l.start)) } // monotonic: nobody can set it
	}
	if l.maxKeys == 0 {
		l.maxKeys = defaultMaxKeys
	}
	l.settings.Store(p.follow(nil, l.clock(), l.maxKeys, nil))
	return l, nil
}

// instant is what the clock showed at the time at, which must come from
// time.Now. If Config.Now is the clock, that is what it shows now.
func (l *Limiter) instant(at time.Time) int64 {
	if l.start.IsZero() {
		return l.clock()
	}
	return int64(at.Sub(l.start)) // of the monotonic readings
}

// Reconfigure puts cfg into force for all requests from now on, or says what is
// wrong with it and changes nothing. What was spent stays spent, in tokens: a
// limit that is raised acts at once, and what a smaller bucket can't owe is
// forgiven. Nobody waits meanwhile. Of cfg, MaxKeys, Recorder and Now are those
// of the beginning.
func (l *Limiter) Reconfigure(cfg Config) error {
	p, err := newPolicy(cfg)
	if err != nil || l == nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	names := make([]string, len(l.endpoints))
	for i, e := range l.endpoints {
		names[i] = e.name
	}
	prev := l.settings.Load()
	next := p.follow(prev, l.clock(), l.maxKeys, names)
	next.bequeath(prev)
	l.policy = p
	l.settings.Store(next)
	next.takeOver()
	return nil
}

// Endpoint makes the class of that name. It is for building the program, once
// for each name, and returns what is there if it is called again; a nil Limiter
// has nil Endpoints.
func (l *Limiter) Endpoint(name string, o EndpointOptions) *Endpoint {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.endpoints {
		if e.name == name {
			return e
		}
	}
	if len(l.endpoints) > math.MaxUint16 {
		panic("ratelimit: the classes of endpoints are to be few")
	}
	if o.Cost <= 0 {
		o.Cost = Token
	}
	e := &Endpoint{limiter: l, name: name, index: len(l.endpoints), options: o}
	l.endpoints = append(l.endpoints, e)
	// The same generation: nothing of what was there changes.
	next := *l.settings.Load()
	next.addEndpoint(l.policy.endpoints[name])
	next.makeTables(l.maxKeys)
	l.settings.Store(&next)
	e.watch()
	return e
}
