package perspective

import (
	"fmt"
	"slices"
	"time"
)

// A Region is the service region of one of the regional Internet registries.
type Region string

// The regions.
const (
	AFRINIC Region = "afrinic"
	APNIC   Region = "apnic"
	ARIN    Region = "arin"
	LACNIC  Region = "lacnic"
	RIPENCC Region = "ripencc"
)

var regions = []Region{AFRINIC, APNIC, ARIN, LACNIC, RIPENCC}

func (r Region) known() bool { return slices.Contains(regions, r) }

// A phase is what Baseline Requirements §3.2.2.9 want from a date on.
type phase struct {
	from    time.Time
	remotes int // perspectives besides the primary one, at least
	regions int // of those that agree with it, at least
}

// phases is the "Phased Implementation Timeline" of §3.2.2.9, the dates counted
// from midnight UTC. A clock that stands before the first date is wrong, and gets
// the first phase.
var phases = []phase{
	{time.Date(2026, time.March, 15, 0, 0, 0, 0, time.UTC), 3, 2},
	{time.Date(2026, time.June, 15, 0, 0, 0, 0, time.UTC), 4, 2},
	{time.Date(2026, time.December, 15, 0, 0, 0, 0, time.UTC), 5, 2},
}

// dissents is the "Quorum Requirements" table of §3.2.2.9: how many of the
// remote perspectives used may see something else. A single one may not.
func dissents(used int) int {
	switch {
	case used >= 6:
		return 2
	case used >= 2:
		return 1
	}
	return 0
}

// phaseAt is the phase in force.
func phaseAt(now time.Time) phase {
	for _, p := range slices.Backward(phases) {
		if !now.Before(p.from) {
			return p
		}
	}
	return phases[0]
}

// A Rule says how many remote perspectives have to agree. The zero Rule is that
// of an internal CA: all but as many as the public rule would forgive.
type Rule struct {
	// Public is the rule of Baseline Requirements §3.2.2.9, which changes by date.
	Public bool
	// Quorum is how many have to agree, if that is more than Public asks for, or
	// if Public is not set. 0: all but those forgiven.
	Quorum int
}

// A demand is what a rule wants of one corroboration.
type demand struct {
	agree   int // perspectives, at least
	regions int // of those, at least
}

func (r Rule) demand(now time.Time, used int) demand {
	d := demand{agree: used - dissents(used)}
	switch {
	case r.Public:
		d.agree, d.regions = max(d.agree, r.Quorum), phaseAt(now).regions
	case r.Quorum > 0:
		d.agree = r.Quorum
	}
	return d
}

// Check says whether perspectives in these regions are enough at a moment. The
// error is for the operator.
func (r Rule) Check(now time.Time, in []Region) error {
	if r.Quorum > len(in) {
		return fmt.Errorf("a quorum of %d can't be had from %d remote perspectives", r.Quorum, len(in))
	}
	if !r.Public {
		return nil
	}
	p := phaseAt(now)
	const rule = "policy public (Baseline Requirements §3.2.2.9)"
	if len(in) < p.remotes {
		return fmt.Errorf("%s needs at least %d remote perspectives since %s, and there are %d", rule, p.remotes, p.from.Format(time.DateOnly), len(in))
	}
	if n := distinct(in); n < p.regions {
		return fmt.Errorf("%s needs remote perspectives in at least %d regions since %s, and there is %d", rule, p.regions, phases[0].from.Format(time.DateOnly), n)
	}
	return nil
}

// Shortfall is the date from which on perspectives that are enough now no longer
// are, as far as that is known, and why.
func (r Rule) Shortfall(now time.Time, in []Region) (time.Time, error) {
	if err := r.Check(now, in); err != nil {
		return now, err
	}
	for _, p := range phases {
		if !p.from.After(now) {
			continue
		}
		if err := r.Check(p.from, in); err != nil {
			return p.from, err
		}
	}
	return time.Time{}, nil
}

// A standing is how far one corroboration has come.
type standing struct {
	agreed []Region // of those that see the same
	open   []Region // of those that have not answered yet
}

// An outcome is what a standing comes to.
type outcome int

const (
	undecided outcome = iota
	corroborated
	refused
)

// judge decides as soon as the answers that are still to come can't change it.
func (d demand) judge(s standing) outcome {
	switch {
	case len(s.agreed) >= d.agree && distinct(s.agreed) >= d.regions:
		return corroborated
	case len(s.agreed)+len(s.open) < d.agree, distinct(slices.Concat(s.agreed, s.open)) < d.regions:
		return refused
	}
	return undecided
}

func distinct(in []Region) int {
	seen := map[Region]bool{}
	for _, r := range in {
		seen[r] = true
	}
	return len(seen)
}
