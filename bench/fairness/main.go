// Fairness measures what callers notice of one another before a device that
// all of them want: whether the device is kept busy, whether an honest caller is
// served beside those who ask without end, and how much longer he waits.
//
// Load is open-loop, and latency counts from when a request was due. Rounds of
// all scenarios are interleaved, so that a host that is slow for a while is slow
// for each. The last line is RESULT.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/secsy-pki/secsy-pki/bench/measure"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fairness:", err)
		os.Exit(1)
	}
}

// A bench is one run of everything.
type bench struct {
	rounds int
	scale  float64 // of every length
	before string  // the load of the host

	bare    measure.Sample
	order   []figure
	tallies map[figure]*tally
}

// A figure names a tally: what a protection did for a part of a scenario.
type figure struct{ scenario, by, part string }

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("fairness", flag.ContinueOnError)
	rounds := flags.Int("rounds", 3, "rounds")
	quick := flags.Bool("quick", false, "one short round, to see that everything runs: its figures say nothing")
	scale := flags.Float64("scale", 1, "how long each measurement is, of about 100 seconds a round")
	if err := flags.Parse(args); err != nil {
		return err
	}
	b := &bench{rounds: *rounds, scale: *scale, before: measure.Load(), tallies: map[figure]*tally{}}
	if *quick {
		b.rounds, b.scale = 1, 0.02
	}
	for round := range b.rounds {
		if err := b.round(ctx, uint64(round)); err != nil {
			return err
		}
	}
	return b.report(out)
}

// round measures everything once. Its arrivals and service times are another
// round's only if the seeds are the same.
func (b *bench) round(ctx context.Context, seed uint64) error {
	b.bare = append(b.bare, bare(ctx, b.length(3), seed))
	for i, s := range plan() {
		length := b.length(s.weight)
		results, err := s.run(ctx, length, seed<<16+uint64(i))
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		for j, p := range s.parts {
			b.tally(figure{s.name, s.by.name, p.name}).add(results[j], length)
		}
	}
	for i, s := range slowPlan() {
		length := b.length(s.weight)
		rs, err := s.run(ctx, length, seed<<16+uint64(i))
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		b.tally(figure{s.name, s.by(), victim}).add(rs, length)
	}
	return nil
}

func (b *bench) length(weight float64) time.Duration {
	return time.Duration(weight * b.scale * float64(time.Second))
}

func (b *bench) tally(f figure) *tally {
	t, ok := b.tallies[f]
	if !ok {
		t = &tally{}
		b.tallies[f] = t
		b.order = append(b.order, f)
	}
	return t
}
