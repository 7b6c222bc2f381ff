package ratelimit

import (
	"container/list"
	"context"
	"net/netip"
	"sync"
	"time"
)

// A Record is one line about refusals: the first of a burst, or the end of it.
type Record struct {
	What       string     // the tier, "quota", "refusal_budget", "turns" or "guard": a closed set
	Endpoint   string     // the class of endpoints
	Identity   string     // proven; "" for sources, which are told of together
	Source     netip.Addr // one of them
	Refusals   int        // of a refusal budget: how many it counts as the burst begins
	Delay      time.Duration
	Began      time.Time
	Closed     bool          // the burst is over
	Suppressed int64         // refusals that had no line, if Closed
	Window     time.Duration // from the first to the last, if Closed
}

// Others is the identity of records about those who came when there was no room
// left to tell of each by name.
const Others = "(others)"

const (
	// A burst is over once nothing was refused for burstQuiet. Whoever pulses a
	// little slower than that would get two lines for every pulse; so each burst
	// that begins within burstMemory of the last one's end needs twice the
	// quiet, up to maxBurstQuiet. One who pulses for ever gets 16 lines, and
	// from then on two for every pause of ten minutes.
	burstQuiet    = 5 * time.Second
	maxBurstQuiet = 10 * time.Minute
	burstMemory   = 10 * time.Minute
	// maxBursts is how many identities can have a burst open, and how many are
	// remembered besides for having had one.
	maxBursts    = 1024
	pollInterval = time.Second
)

type burstKey struct{ what, endpoint, identity string }

// A burst is a run of refusals without a pause. After it has closed it is kept
// for a while, as the memory of its kind.
type burst struct {
	key         burstKey
	first       Record // as it was opened
	began, last time.Time
	count       int64
	quiet       time.Duration
	open        bool
	closed      *list.Element // among those that are over
}

// begin opens the burst, with a longer patience if the last one is not long over.
func (b *burst) begin(now time.Time, first Record) {
	switch {
	case b.quiet == 0 || now.Sub(b.last) >= b.quiet+burstMemory:
		b.quiet = burstQuiet
	default:
		b.quiet = min(2*b.quiet, maxBurstQuiet)
	}
	first.What, first.Endpoint, first.Identity, first.Began = b.key.what, b.key.endpoint, b.key.identity, now
	b.first, b.began, b.last, b.count, b.open = first, now, now, 0, true
}

func (b *burst) isOver(now time.Time) bool { return b.open && now.Sub(b.last) >= b.quiet }

func (b *burst) end() Record {
	b.open = false
	r := b.first
	r.Closed, r.Suppressed, r.Window = true, b.count-1, b.last.Sub(b.began)
	return r
}

// A watch is a counter that Run looks at, with the burst that it is in. Only Run
// touches it.
type watch struct {
	count   func() int64
	example func() netip.Addr
	seen    int64
	burst   burst
}

// look returns what there is to tell: the beginning of a burst, its end, or nothing.
func (w *watch) look(now time.Time) (Record, bool) {
	n := w.count()
	more := n - w.seen
	w.seen = n
	if more <= 0 {
		if w.burst.isOver(now) {
			return w.burst.end(), true
		}
		return Record{}, false
	}
	opened := !w.burst.open
	if opened {
		var first Record
		if w.example != nil {
			first.Source = w.example()
		}
		w.burst.begin(now, first)
	}
	w.burst.count += more
	w.burst.last = now
	return w.burst.first, opened
}

// A RecorderStat counts what a Recorder has to tell.
type RecorderStat struct {
	Open       int   // bursts of proven identities
	Refused    int64 // refusals of proven identities
	Overflowed int64 // of these, told of together as those of Others
	Records    int64 // lines handed out
}

// A Recorder turns floods of refusals into few lines: one for the first, one
// when it has been quiet again. Refusals only count; Run writes. Its memory is
// bounded, and so is how much can wait for Run: one line for each open burst.
type Recorder struct {
	emit func(context.Context, Record)
	wake chan struct{}

	mu      sync.Mutex // guards what follows
	bursts  map[burstKey]*burst
	others  map[string]*burst // by what, a closed set
	closed  *list.List        // of *burst, that which ended first in front
	fresh   []Record          // first lines that Run has not seen
	watches []*watch
	stat    RecorderStat
}

// NewRecorder returns a Recorder whose lines go to emit, one at a time.
func NewRecorder(emit func(context.Context, Record)) *Recorder {
	return &Recorder{
		emit: emit, wake: make(chan struct{}, 1),
		bursts: make(map[burstKey]*burst), others: make(map[string]*burst), closed: list.New(),
	}
}

// Watch has Run look at a counter of refusals of sources nobody has proven, for
// which not even a call is worth its time; example, if not nil, names one of
// them. It is for building the program. All sources of a counter are one burst.
func (r *Recorder) Watch(what, endpoint string, count func() int64, example func() netip.Addr) {
	if r == nil {
		return
	}
	w := &watch{count: count, example: example, seen: count(), burst: burst{key: burstKey{what: what, endpoint: endpoint}}}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watches = append(r.watches, w)
}

// Refused counts a refusal of a proven identity. A nil Recorder counts nothing.
func (r *Recorder) Refused(what, endpoint, identity string, source netip.Addr) {
	if r != nil {
		r.refused(burstKey{what, endpoint, identity}, Record{Source: source})
	}
}

// limited counts that a refusal budget holds identity to an interval.
func (r *Recorder) limited(identity string, refusals int, delay time.Duration) {
	if r != nil {
		r.refused(burstKey{what: "refusal_budget", identity: identity}, Record{Refusals: refusals, Delay: delay})
	}
}

func (r *Recorder) refused(key burstKey, first Record) {
	if r.count(key, first, time.Now()) {
		select {
		case r.wake <- struct{}{}:
		default: // it is to wake already
		}
	}
}

// count reports whether a burst began.
func (r *Recorder) count(key burstKey, first Record, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stat.Refused++
	b := r.burstLocked(key)
	opened := !b.open
	if opened {
		r.openLocked(b, now, first)
	}
	b.count++
	if now.After(b.last) {
		b.last = now
	}
	return opened
}

// burstLocked finds the burst of key, or that of all for whom there is no room.
func (r *Recorder) burstLocked(key burstKey) *burst {
	b := r.bursts[key]
	if b != nil && (b.open || r.stat.Open < maxBursts) {
		return b
	}
	if r.stat.Open < maxBursts {
		b = &burst{key: key}
		r.bursts[key] = b
		return b
	}
	r.stat.Overflowed++
	b = r.others[key.what]
	if b == nil {
		b = &burst{key: burstKey{what: key.what, identity: Others}}
		r.others[key.what] = b
	}
	return b
}

func (r *Recorder) openLocked(b *burst, now time.Time, first Record) {
	if b.key.identity == Others {
		first = Record{}
	} else {
		r.stat.Open++
	}
	if b.closed != nil {
		r.closed.Remove(b.closed)
		b.closed = nil
	}
	b.begin(now, first)
	r.fresh = append(r.fresh, b.first)
}

// Run writes lines until ctx ends, and then those of the bursts still open: emit
// is given a context without an end, lest those be lost.
func (r *Recorder) Run(ctx context.Context) error {
	if r == nil {
		return nil
	}
	lines := context.WithoutCancel(ctx)
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			r.finish(lines)
			return nil
		case <-r.wake:
			r.tell(lines, r.begun())
		case <-tick.C:
			r.tell(lines, r.look(time.Now()))
			r.tell(lines, r.over(time.Now(), (*burst).isOver))
		}
	}
}

// finish tells of all that is open, with its count.
func (r *Recorder) finish(ctx context.Context) {
	now := time.Now()
	open := func(b *burst, _ time.Time) bool { return b.open }
	told := r.look(now)
	for _, w := range r.watching() {
		if w.burst.open {
			told = append(told, w.burst.end())
		}
	}
	r.tell(ctx, told)
	r.tell(ctx, r.over(now, open))
}

// tell hands out lines: without the lock, as emit may take its time.
func (r *Recorder) tell(ctx context.Context, told []Record) {
	for _, one := range told {
		r.emit(ctx, one)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stat.Records += int64(len(told))
}

// begun takes the first lines of bursts that began.
func (r *Recorder) begun() []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begunLocked()
}

func (r *Recorder) begunLocked() []Record {
	fresh := r.fresh
	r.fresh = nil
	return fresh
}

func (r *Recorder) watching() []*watch {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.watches[:len(r.watches):len(r.watches)]
}

// look asks the counters.
func (r *Recorder) look(now time.Time) []Record {
	var told []Record
	for _, w := range r.watching() {
		if one, ok := w.look(now); ok {
			told = append(told, one)
		}
	}
	return told
}

// over ends the bursts that isOver says are, and forgets those long past. Their
// first lines come before their last.
func (r *Recorder) over(now time.Time, isOver func(*burst, time.Time) bool) []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	told := r.begunLocked()
	for _, b := range r.bursts {
		if isOver(b, now) {
			told = append(told, b.end())
			r.stat.Open--
			b.closed = r.closed.PushBack(b)
		}
	}
	for _, b := range r.others {
		if isOver(b, now) {
			told = append(told, b.end())
		}
	}
	r.forgetLocked(now)
	return told
}

// forgetLocked drops what is long past, or more than can be remembered.
func (r *Recorder) forgetLocked(now time.Time) {
	for e := r.closed.Front(); e != nil; e = r.closed.Front() {
		b := e.Value.(*burst)
		if r.closed.Len() <= maxBursts && now.Sub(b.last) < b.quiet+burstMemory {
			return
		}
		r.closed.Remove(e)
		delete(r.bursts, b.key)
	}
}

// Stat returns the counts as they are now.
func (r *Recorder) Stat() RecorderStat {
	if r == nil {
		return RecorderStat{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stat
}
