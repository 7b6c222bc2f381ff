// Package gate lets a bounded number of pieces of work at a scarce resource at a
// time, fairly, and turns away early what would wait too long.
//
// Who gets the next free seat is decided in three steps. The class: first those
// below their reserve, then the most urgent, except that a class that others
// have gone before for long gets a turn. Inside a class the identity with the
// fewest seats, then the one whose share came last in virtual time. Inside an
// identity, whoever asked first. A seat is never kept empty while somebody who
// may have it waits, so what one class does not use another does.
package gate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A Class is how urgent a piece of work is. A smaller one goes first.
type Class uint8

// The classes.
const (
	Revocation Class = iota // a revocation, and the status that says so
	Status                  // OCSP responses and CRLs that many will read
	Renewal                 // of a certificate that is there already
	Issuance                // of a new one
	Anonymous               // an answer for one stranger, such as an OCSP nonce
	Ahead                   // what nobody has asked for yet
	Classes
)

// String is the class's name in metrics and configuration.
func (c Class) String() string {
	return [...]string{"revocation", "status", "renewal", "issuance", "anonymous", "ahead"}[c]
}

// A Reason is why work was turned away: a closed set, as each is a label.
type Reason uint8

// The reasons.
const (
	QueueFull Reason = iota // too many wait, or a fairer share was due to somebody else
	Timeout                 // it waited as long as it may, or was bound to
	Canceled                // whoever asked has left
	Reasons
)

// String is the reason's name in metrics.
func (r Reason) String() string { return [...]string{"queue_full", "timeout", "canceled"}[r] }

// A Refused is the error of work that was turned away: it was not begun. It may
// be shared by many and is not to be changed.
type Refused struct {
	Reason     Reason
	Class      Class
	RetryAfter time.Duration // when it is worth trying again, in whole seconds, at least one
	Err        error         // of the context, if its end is why; else nil
}

func (r *Refused) Error() string {
	return fmt.Sprintf("gate: %s work turned away: %s", r.Class, r.Reason)
}

func (r *Refused) Unwrap() error { return r.Err }

// A Gate is safe for concurrent use.
type Gate struct {
	epoch   time.Time      // the gate's times count from here
	waited  [Classes]Times // those who were admitted
	refused [Classes][Reasons]atomic.Uint64

	mu sync.Mutex // guards what follows; nothing waits or calls out while holding it
	// What every seat changes stands together: each further line of memory is one
	// more that processors hand to and fro.
	total   int // seats taken
	limit   int // seats in force: of cfg, fewer if the gate has narrowed itself
	queued  int
	service time.Duration
	peaks   struct{ inFlight, queued int }
	lanes   [Classes]lane
	cfg     Config
	reserve [Classes]int // of limit
	tickets uint64       // numbers those who wait, in the order they came
	aged    bool         // the last seat went out of turn
	adapt   adaptation
	spare   spares
	// The last refusals, to be handed out again while their RetryAfter holds.
	answers [Classes][Reasons]*Refused
}

// New returns a Gate, or says what is wrong with cfg.
func New(cfg Config) (*Gate, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	g := &Gate{epoch: time.Now()}
	for c := range g.lanes {
		g.lanes[c].flows = make(map[string]*flow)
	}
	g.configureLocked(cfg)
	return g, nil
}

// Acquire waits for a seat for work of that class on behalf of identity, "" for
// nobody's in particular. All that is nobody's shares one identity's part of its
// class: it gets its turn among any number of others, and a crowd without names
// can't outnumber those with one. Background work that deserves more gets names
// of its own, such as the key's.
//
// The seat is the work's: release is to be called when the work has ended, not
// when who wanted it has left; calling it again does nothing. The error is a
// *Refused.
func (g *Gate) Acquire(ctx context.Context, c Class, identity string) (release func(), err error) {
	s, err := g.AcquireSeat(ctx, c, identity)
	if err != nil {
		return nil, err
	}
	return s.Release, nil
}

// AcquireSeat is Acquire for work that can tell whether it failed.
func (g *Gate) AcquireSeat(ctx context.Context, c Class, identity string) (Seat, error) {
	gone := ctx.Err()
	if s, ok := g.try(gone, c, identity); ok {
		return s, nil
	}
	if gone != nil {
		return Seat{}, g.left(c, gone)
	}
	return g.wait(ctx, c, identity)
}

// try takes a seat that is free. Who has left gets none, but a gate that is open
// to all does not ask.
func (g *Gate) try(gone error, c Class, identity string) (Seat, bool) {
	now := g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.total >= g.limit || gone != nil && g.cfg.Seats > 0 {
		return Seat{}, false
	}
	return g.seatAtOnceLocked(c, identity, now), true
}

// seatAtOnceLocked gives somebody a seat who has not waited. There must be one.
func (g *Gate) seatAtOnceLocked(c Class, identity string, now time.Duration) Seat {
	g.lanes[c].atOnce++
	return g.seatLocked(g.flowLocked(c, identity), now)
}

// left is the refusal of somebody whose context has ended.
func (g *Gate) left(c Class, err error) *Refused {
	reason := Canceled
	if errors.Is(err, context.DeadlineExceeded) {
		reason = Timeout
	}
	g.refused[c][reason].Add(1)
	return &Refused{Reason: reason, Class: c, RetryAfter: minRetry, Err: err}
}

// turnAwayLocked is the refusal of somebody whom the gate sends away itself.
func (g *Gate) turnAwayLocked(c Class, reason Reason) *Refused {
	g.refused[c][reason].Add(1)
	retry := g.retryAfterLocked()
	if a := g.answers[c][reason]; a != nil && a.RetryAfter == retry {
		return a // a flood is refused without allocating
	}
	a := &Refused{Reason: reason, Class: c, RetryAfter: retry}
	g.answers[c][reason] = a
	return a
}

// Reconfigure puts cfg into force: work under way goes on, and who waits is judged anew.
func (g *Gate) Reconfigure(cfg Config) error {
	if err := cfg.validate(); err != nil {
		return err
	}
	var told tell
	g.mu.Lock()
	g.configureLocked(cfg)
	now := g.now()
	g.dispatchLocked(now, &told) // who gets a new seat need not leave a shorter queue
	g.shortenQueueLocked(&told)
	g.shortenWaitsLocked(now, &told)
	g.mu.Unlock()
	told.wake()
	return nil
}

func (g *Gate) configureLocked(cfg Config) {
	g.cfg = cfg
	g.setLimitLocked(g.adapt.configure(cfg, g.limit))
}

func (g *Gate) setLimitLocked(limit int) {
	g.limit = limit
	g.reserve = g.cfg.reserveOf(limit)
	g.adapt.nextEpoch()
}

// now is the time since the gate was made, by the monotonic clock.
func (g *Gate) now() time.Duration { return time.Since(g.epoch) }
