package ratelimit

import (
	"context"
	"net/netip"
	"time"
)

// A Record is one line about refusals: the first of a burst, or the end of it.
type Record struct {
	What       string     // the tier, "quota", "refusal_budget" or "guard": a closed set
	Endpoint   string     // the class of endpoints
	Identity   string     // proven; "" for sources, which are told of together
	Source     netip.Addr // one of them
	Began      time.Time
	Closed     bool          // the burst is over
	Suppressed int64         // refusals that had no line, if Closed
	Window     time.Duration // from the first to the last, if Closed
}

// A Recorder turns floods of refusals into few lines: one for the first, one
// when it has been quiet again. Refusals only count; Run writes.
type Recorder struct{}

// NewRecorder returns a Recorder whose lines go to emit, one at a time.
func NewRecorder(emit func(context.Context, Record)) *Recorder { return &Recorder{} }

// Watch has Run look at a counter of refusals of sources nobody has proven, for
// which not even a call is worth its time. It is for building the program.
func (r *Recorder) Watch(what, endpoint string, count func() int64, example func() netip.Addr) {}

// Refused counts a refusal of a proven identity. A nil Recorder counts nothing.
func (r *Recorder) Refused(what, endpoint, identity string, source netip.Addr) {}

// Run writes lines until ctx ends, and then those of the bursts still open.
func (r *Recorder) Run(ctx context.Context) error { return nil }
