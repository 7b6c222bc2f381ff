// Admission measures what it costs to say no: the decision, beside that of other
// limiters; the gate, beside other semaphores; and a refused newOrder through
// all of the program that it meets.
//
// Rounds of all subjects are interleaved, so that a host that is slow for a while
// is slow for each, and times are those of the processor, not of the clock on the
// wall. The last line is RESULT.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"time"

	"github.com/secsy-pki/secsy-pki/bench/measure"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var err error
	if len(os.Args) == 2 && os.Args[1] == asClient {
		err = client(ctx, os.Stdin, os.Stdout)
	} else {
		err = run(ctx, os.Args[1:], os.Stdout)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "admission:", err)
		os.Exit(1)
	}
}

// A bench is one run of everything.
type bench struct {
	rounds int
	sizes  sizes
	before string // the load of the host

	subjects []subject
	decided  map[string]*decided
	held     map[string]held
	guards   []*guard
	wires    []*wire

	clock         measure.Sample // nanoseconds of reading the clock, which every limiter does
	tiers         measure.Sample // nanoseconds of three tiers and their refund
	tiersAllocs   measure.Sample
	direct        map[int]measure.Sample // microseconds of a refused newOrder, by octets
	bytesPerKey   float64
	spentReset    int // after a spray of keys that are all spent
	spentAdmitted int
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("admission", flag.ContinueOnError)
	rounds := flags.Int("rounds", 10, "rounds")
	quick := flags.Bool("quick", false, "one small round, to see that everything runs: its figures say nothing")
	if err := flags.Parse(args); err != nil {
		return err
	}
	b := &bench{
		rounds: *rounds, sizes: full, before: measure.Load(), subjects: subjects(),
		decided: map[string]*decided{}, held: map[string]held{}, direct: map[int]measure.Sample{},
	}
	if *quick {
		b.rounds, b.sizes = 1, quickly
	}
	if err := b.measure(ctx); err != nil {
		return err
	}
	return b.report(out)
}

func (b *bench) measure(ctx context.Context) (err error) {
	for _, s := range b.subjects {
		b.decided[s.name] = &decided{}
	}
	if b.guards, err = guards(); err != nil {
		return err
	}
	spent, err := spentSite()
	if err != nil {
		return err
	}
	open, err := openSite()
	if err != nil {
		return err
	}
	wires, addresses, stop, err := newWires(ctx, spent, open)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return err
	}
	b.wires = wires
	for range b.rounds {
		if err := b.round(ctx, spent, addresses); err != nil {
			return err
		}
	}
	return b.once(ctx)
}

// round measures all that has a spread once.
func (b *bench) round(ctx context.Context, spent *site, addresses map[*site]string) error {
	for _, s := range b.subjects {
		if err := b.decided[s.name].round(s, b.sizes, runtime.GOMAXPROCS(0)); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	b.roundOfClock()
	if err := b.roundOfTiers(); err != nil {
		return err
	}
	for _, g := range b.guards {
		g.round(ctx, b.sizes)
	}
	for _, size := range []int{small, big} {
		us, err := spent.direct(size, b.sizes.direct)
		if err != nil {
			return err
		}
		b.direct[size] = append(b.direct[size], us)
	}
	for _, x := range b.wires {
		if err := x.round(ctx, addresses[x.site], b.sizes.wire); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) roundOfClock() {
	began := time.Now()
	latest := time.Duration(0)
	c := cost(b.sizes.calls, 1, func(_, calls int) {
		for range calls {
			latest = max(latest, time.Since(began))
		}
	})
	b.clock = append(b.clock, c.cpu)
}

func (b *bench) roundOfTiers() error {
	e, err := newTiers()
	if err != nil {
		return err
	}
	refused := 0
	c := cost(b.sizes.calls, 1, func(_, calls int) {
		decide := given(e)
		for range calls {
			if !decide(many[0], "") {
				refused++
			}
		}
	})
	if refused != b.sizes.calls {
		return fmt.Errorf("three tiers: %d of %d were refused", refused, b.sizes.calls)
	}
	b.tiers = append(b.tiers, c.cpu)
	b.tiersAllocs = append(b.tiersAllocs, c.allocs)
	return nil
}

// once measures what takes long or has no spread.
func (b *bench) once(ctx context.Context) (err error) {
	for _, s := range b.subjects {
		if b.held[s.name], err = hold(s, b.sizes); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if b.bytesPerKey, err = bytesPerKey(b.sizes.heap); err != nil {
		return err
	}
	b.spentReset, b.spentAdmitted, err = exhaustedSpray(b.subjects[0], b.sizes.spent)
	return err
}
