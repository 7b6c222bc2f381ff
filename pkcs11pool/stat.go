package pkcs11pool

import (
	"slices"
	"strings"
	"time"
)

// A Stat is what a Pool was doing at one moment, and what it has done so far.
type Stat struct {
	Tokens   []TokenStat   // in the order of the configuration
	Queued   int           // those who wait for a session
	Waits    uint64        // of those who found none idle
	WaitTime time.Duration // of all of them together
	// Refused is how often the device did nothing, by the reason of the
	// *keys.BusyError.
	Refused map[string]uint64
}

// A TokenStat is the part of one token in a Stat.
type TokenStat struct {
	Name  string
	State State

	// Its sessions. All together are never more than MaxSessions.
	Idle    int
	Busy    int
	Opening int
	Closing int
	Hung    int // in a call that has taken longer than CallTimeout

	Limit     int               // how many there may be
	Borrows   uint64            // how often a session was lent
	Errors    map[string]uint64 // by class, of jobs and of bringing it back
	Reopened  uint64            // sessions opened in place of those that were discarded
	Recovered uint64            // how often the token came back
	Restarted uint64            // how often its module was initialized anew for it
	Latency   []Latency         // of the jobs that succeeded, by mechanism
}

// A State says whether a token can be used.
type State uint8

// The states of a token.
const (
	Down    State = iota // being brought back
	Up                   // in use
	Refused              // its PIN was not accepted, or must not be tried
)

func (s State) String() string {
	return [...]string{"down", "up", "refused"}[s]
}

// Stat returns what the pool is doing.
func (p *Pool) Stat() Stat {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stat{Queued: p.queue.n, Waits: p.waits, WaitTime: p.waited, Refused: make(map[string]uint64, reasons)}
	for why, n := range p.refusals {
		s.Refused[reason(why).String()] = n
	}
	for _, t := range p.tokens {
		s.Tokens = append(s.Tokens, t.statLocked())
	}
	return s
}

func (t *token) statLocked() TokenStat {
	s := TokenStat{
		Name:      t.name,
		State:     t.state,
		Idle:      t.count[idle],
		Busy:      t.count[lent],
		Opening:   t.count[opening],
		Closing:   t.count[closing],
		Hung:      t.count[hung],
		Limit:     t.limit,
		Borrows:   t.borrows,
		Errors:    make(map[string]uint64, classes),
		Reopened:  t.reopened,
		Recovered: t.recovered,
		Restarted: t.reinitialized,
		Latency:   t.latency.stat(),
	}
	for c := classData; c < classes; c++ {
		s.Errors[c.String()] = t.errors[c]
	}
	s.Errors["hung"] = t.hangs
	return s
}

// Bounds are the upper bounds of the buckets of a Latency.
var Bounds = [...]time.Duration{
	50 * time.Microsecond,
	100 * time.Microsecond,
	250 * time.Microsecond,
	500 * time.Microsecond,
	time.Millisecond,
	2500 * time.Microsecond,
	5 * time.Millisecond,
	10 * time.Millisecond,
	25 * time.Millisecond,
	50 * time.Millisecond,
	100 * time.Millisecond,
	250 * time.Millisecond,
	500 * time.Millisecond,
	time.Second,
	2500 * time.Millisecond,
	5 * time.Second,
	10 * time.Second,
}

// A Latency says how much took how long with one mechanism.
type Latency struct {
	Mechanism string
	Count     uint64
	Sum       time.Duration
	Buckets   [len(Bounds)]uint64 // how many took at most each of Bounds
}

// maxMechanisms bounds what is kept of labels, which are of a closed set.
const maxMechanisms = 64

// latencies are kept for each mechanism. There are few. The pool's mutex guards
// them.
type latencies []*latency

type latency struct {
	mechanism string
	sum       time.Duration
	buckets   [len(Bounds) + 1]uint64 // the last: longer than all bounds
}

// observe counts d.
func (l *latencies) observe(mechanism string, d time.Duration) {
	if mechanism == "" {
		return
	}
	of := l.of(mechanism)
	if of == nil {
		return
	}
	i := 0
	for i < len(Bounds) && d > Bounds[i] {
		i++
	}
	of.buckets[i]++
	of.sum += d
}

func (l *latencies) of(mechanism string) *latency {
	for _, one := range *l {
		if one.mechanism == mechanism {
			return one
		}
	}
	if len(*l) >= maxMechanisms {
		return nil
	}
	one := &latency{mechanism: mechanism}
	*l = append(*l, one)
	return one
}

func (l *latencies) stat() []Latency {
	var all []Latency
	for _, of := range *l {
		s := Latency{Mechanism: of.mechanism, Sum: of.sum}
		for i, n := range of.buckets {
			s.Count += n
			if i < len(s.Buckets) {
				s.Buckets[i] = s.Count
			}
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Latency) int { return strings.Compare(a.Mechanism, b.Mechanism) })
	return all
}
