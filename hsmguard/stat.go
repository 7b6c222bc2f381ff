package hsmguard

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
)

// bounds are the upper ends of a histogram's buckets: from a key in memory to a
// device behind a slow network.
var bounds = [...]time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second,
}

// A Stat is what a Guard has counted since it was made.
type Stat struct {
	Rejected []Rejected              // every endpoint with every reason, sorted
	Calls    [gate.Classes]CallsStat // of the device, by class
}

// Rejected is how often work of one endpoint was turned away for one reason.
type Rejected struct {
	Endpoint string
	Reason   gate.Reason
	Count    uint64
}

// CallsStat is how long the calls of one class took at the device, in the form
// that a histogram of metrics has.
type CallsStat struct {
	Count   uint64
	Sum     time.Duration
	Buckets map[float64]uint64 // by upper bound in seconds, those below included
}

// Stat returns what was counted so far.
func (g *Guard) Stat() Stat {
	var s Stat
	for endpoint, counts := range g.rejected {
		for why := range counts {
			s.Rejected = append(s.Rejected, Rejected{Endpoint: endpoint, Reason: gate.Reason(why), Count: counts[why].Load()})
		}
	}
	slices.SortFunc(s.Rejected, func(a, b Rejected) int {
		if c := strings.Compare(a.Endpoint, b.Endpoint); c != 0 {
			return c
		}
		return int(a.Reason) - int(b.Reason)
	})
	for c := range s.Calls {
		s.Calls[c] = g.calls[c].stat()
	}
	return s
}

// rejections are counted by reason.
type rejections [gate.Reasons]atomic.Uint64

// A histogram is safe for concurrent use.
type histogram struct {
	buckets [len(bounds) + 1]atomic.Uint64 // the last one has no upper end
	sum     atomic.Int64
}

func (h *histogram) observe(d time.Duration) {
	i := 0
	for i < len(bounds) && d > bounds[i] {
		i++
	}
	h.buckets[i].Add(1)
	h.sum.Add(int64(d))
}

func (h *histogram) stat() CallsStat {
	s := CallsStat{Sum: time.Duration(h.sum.Load()), Buckets: make(map[float64]uint64, len(bounds))}
	for i := range h.buckets {
		s.Count += h.buckets[i].Load()
		if i < len(bounds) {
			s.Buckets[bounds[i].Seconds()] = s.Count
		}
	}
	return s
}
