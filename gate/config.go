package gate

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// A Config says how wide a gate is. It can be changed while work goes on.
type Config struct {
	// Seats is how much work goes on at a time; 0 or less: the gate is open to all.
	Seats int
	// MaxQueue is how much may wait, of all classes; 0: nothing waits. A tenth of
	// it is every class's own, as soon as it is at least as long as there are classes.
	MaxQueue int
	// MaxWait is the longest that work waits; 0: nothing waits. While a class's
	// queue stands, its work waits for a few service times only.
	MaxWait time.Duration
	// Reserve are seats for which a class goes before all others: while it has
	// fewer, the next one free is its own. Others use them meanwhile, so it comes
	// within one service time. The sum is less than Seats. Nil means a fitting
	// share of Seats, which is none if they are one or two.
	Reserve *[Classes]int
	// Adaptive lets the gate narrow itself, never below MinSeats, when the
	// resource gets slower the more is at it, as a device behind a network does.
	Adaptive bool
	MinSeats int // 0 means 1
}

func (cfg Config) validate() error {
	if cfg.MaxQueue < 0 {
		return fmt.Errorf("gate: MaxQueue is %d: must not be negative", cfg.MaxQueue)
	}
	if cfg.MaxWait < 0 {
		return fmt.Errorf("gate: MaxWait is %v: must not be negative", cfg.MaxWait)
	}
	if cfg.MinSeats < 0 {
		return fmt.Errorf("gate: MinSeats is %d: must not be negative", cfg.MinSeats)
	}
	if cfg.Seats <= 0 {
		return nil
	}
	if cfg.MinSeats > cfg.Seats {
		return fmt.Errorf("gate: MinSeats is %d: must not be more than the %d Seats", cfg.MinSeats, cfg.Seats)
	}
	return cfg.validateReserve()
}

func (cfg Config) validateReserve() error {
	if cfg.Reserve == nil {
		return nil
	}
	free := cfg.Seats
	for c, n := range cfg.Reserve {
		if n < 0 {
			return fmt.Errorf("gate: Reserve of %s is %d: must not be negative", Class(c), n)
		}
		if n >= free {
			return errors.New("gate: Reserve must leave a seat that is open to every class")
		}
		free -= n
	}
	return nil
}

// reserveOf is the reserve of a gate that has that many seats in force.
func (cfg Config) reserveOf(limit int) [Classes]int {
	var r [Classes]int
	switch {
	case cfg.Seats <= 0:
	case cfg.Reserve != nil:
		for c, n := range cfg.Reserve {
			r[c] = n * limit / cfg.Seats
		}
	case limit >= 3:
		// A revocation is rare and short; status and renewals are what there is
		// most of on a quiet day. The rest, and what idles, is for all.
		r[Revocation] = max(1, limit/8)
		r[Status] = max(1, limit/4)
		r[Renewal] = limit / 4
	}
	return r
}

// placesEach is how many places in the queue no other class can take from one.
func (cfg Config) placesEach() int {
	if cfg.MaxQueue < int(Classes) {
		return 0
	}
	return max(1, cfg.MaxQueue/(2*int(Classes)))
}

// seats is how wide the gate may ever be.
func (cfg Config) seats() int {
	if cfg.Seats <= 0 {
		return math.MaxInt
	}
	return cfg.Seats
}
