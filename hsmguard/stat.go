package hsmguard

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/secsy-pki/secsy-pki/gate"
)

// A Stat is what a Guard has counted since it was made.
type Stat struct {
	Rejected []Rejected                   // every endpoint with every reason, sorted
	Calls    [gate.Classes]gate.Histogram // how long the device took, by class
	Hung     int                          // seats of calls that hang, now
}

// Rejected is how often work of one endpoint was turned away for one reason.
type Rejected struct {
	Endpoint string
	Reason   gate.Reason
	Count    uint64
}

// Stat returns what was counted so far.
func (g *Guard) Stat() Stat {
	s := Stat{Hung: int(g.hung.Load())}
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
	for c, of := range g.gate.Stat().Class {
		s.Calls[c] = of.Held
	}
	return s
}

// rejections are counted by reason.
type rejections [gate.Reasons]atomic.Uint64
