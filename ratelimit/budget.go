package ratelimit

import (
	"context"
	"time"
)

// A BudgetStore keeps how many authorization refusals identities have behind
// them, and nothing else: no time, which a restart would make wrong. It is safe
// for concurrent use; what SaveRefusals wrote is durable on return.
type BudgetStore interface {
	// Refusals returns 0 for an identity that has none.
	Refusals(ctx context.Context, identity string) (int, error)
	// SaveRefusals replaces the count; 0 forgets the identity.
	SaveRefusals(ctx context.Context, identity string, n int) error
}

// BudgetConfig says how patient a Budget is. Zeros mean the defaults.
type BudgetConfig struct {
	Free          int           // refusals without a delay; 4
	MaxDelay      time.Duration // between attempts; 1 minute
	Decay         time.Duration // of quiet, for one refusal to be forgotten; 10 minutes
	MaxIdentities int           // in memory; 10,000
	Store         BudgetStore   // nil: counts end with the process
	Recorder      *Recorder     // told of what is refused; may be nil
}

// A Budget slows down a proven identity that keeps asking for what it may not
// have, and never locks it out. It is safe for concurrent use. A nil Budget
// lets everybody through.
type Budget struct{}

// NewBudget returns a Budget, or says what is wrong with c.
func NewBudget(c BudgetConfig) (*Budget, error) { return &Budget{}, nil }

// Check says whether identity may make another attempt now. It is asked before
// anything is decided or written. A no moves nothing.
func (b *Budget) Check(ctx context.Context, identity string) Decision { return Decision{OK: true} }

// Refused counts that identity was refused what is not its own, or not there.
func (b *Budget) Refused(ctx context.Context, identity string) {}
