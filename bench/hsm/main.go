// Hsm measures what stands between a caller and a PKCS#11 device: signatures a
// second through the guard and the pool beside bare calls of C_Sign in as many
// sessions, the processor time of both, what waiting for a session costs, and
// whether a device that is far away is kept busy. Libraries that others sign with
// run on the same keys.
//
// Rounds of all subjects are interleaved, so that a host that is slow for a while
// is slow for each; a ratio is of two measurements of one round. The device is
// SoftHSM in a folder that is gone afterwards. All share one copy of its module but
// who insists on one of its own, as two copies in one process differ by what of
// them lies where in memory. The last line is RESULT.
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
	"syscall"
	"time"

	"github.com/secsy-pki/secsy-pki/bench/measure"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "hsm:", err)
		os.Exit(1)
	}
}

// A bench is one run of everything.
type bench struct {
	rounds int
	length time.Duration // of one measurement
	quick  bool
	before string // the load of the host
	device string // what was signed with

	cells  []*cell
	borrow borrow
	others measure.Sample // percent of the processors that others had in each round
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("hsm", flag.ContinueOnError)
	rounds := flags.Int("rounds", 9, "rounds")
	length := flags.Duration("d", 200*time.Millisecond, "how long one measurement is; there are about 115 a round")
	quick := flags.Bool("quick", false, "one short round, to see that everything runs: its figures say nothing")
	if err := flags.Parse(args); err != nil {
		return err
	}
	b := &bench{rounds: *rounds, length: *length, before: measure.Load(), quick: *quick}
	if b.quick {
		b.rounds, b.length = 1, 5*time.Millisecond
	}
	if b.rounds < 1 || b.length <= 0 {
		return errors.New("-rounds and -d must be more than nothing")
	}
	if err := b.measure(ctx, out); err != nil {
		return err
	}
	return b.report(out)
}

func (b *bench) measure(ctx context.Context, out io.Writer) (err error) {
	say := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	say("measuring what it costs to borrow a session")
	if b.borrow, err = measureBorrow(ctx, b.quick); err != nil {
		return err
	}
	say("making tokens and keys, opening sessions")
	h, err := newHost()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	b.device = h.device
	if b.cells, err = plan(ctx, h); err != nil {
		return err
	}
	for round := range b.rounds {
		began, others := time.Now(), measure.AllCPU()-measure.CPU()
		if err := b.round(ctx, round); err != nil {
			return err
		}
		took, others := time.Since(began), measure.AllCPU()-measure.CPU()-others
		b.others = append(b.others, 100*max(0, others.Seconds())/took.Seconds()/float64(runtime.NumCPU()))
		say("round %d of %d took %.1f s, others had %.0f %% of the processors", round+1, b.rounds, took.Seconds(), b.others[round])
	}
	return nil
}

// round measures each cell once, and those that the result is about more often: a
// median of few ratios says little. In every other turn the subjects of a cell
// are turned round, as who comes second finds the caches of who came first.
func (b *bench) round(ctx context.Context, round int) error {
	for _, c := range b.cells {
		turns := 1
		if c.judged() && !b.quick {
			turns = 3
		}
		for turn := range turns {
			for i := range c.runs {
				if (round*turns+turn)%2 == 1 {
					i = len(c.runs) - 1 - i
				}
				if err := c.runs[i].measure(ctx, b.length); err != nil {
					return fmt.Errorf("%s, %s: %w", c.name, c.runs[i].by, err)
				}
			}
		}
	}
	return nil
}
