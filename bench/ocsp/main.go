// Ocsp measures what an OCSP answer costs that is ready: through the whole
// program, beside a bare net/http handler that writes the same octets, a
// responder in the manner of cfssl and Boulder, and openssl's; in the handler
// alone; and what one costs that has to be signed, beside the signature alone.
//
// Each server is a process, and so is the client, which writes requests that are
// ready to connections that it keeps (or makes anew for each, where it is compared
// with openssl, which knows no other way). Rounds take all in turn. Ratios are the
// medians of those of one round. The last line is RESULT.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/secsy-pki/secsy-pki/bench/measure"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	switch {
	case len(os.Args) == 2 && os.Args[1] == asClient:
		err = client(os.Stdin, os.Stdout)
	case len(os.Args) == 3 && os.Args[1] == asBare:
		err = bare(os.Args[2], os.Stdin)
	case len(os.Args) == 3 && os.Args[1] == asPeer:
		err = peer(os.Args[2], os.Stdin)
	default:
		err = run(ctx, os.Args[1:], os.Stdout)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ocsp:", err)
		os.Exit(1)
	}
}

// A subject is what is asked in which way, and what it answered in each round.
type subject struct {
	name   string
	server *server
	errand errand
	rate   measure.Sample // answers a second
	cpu    measure.Sample // microseconds of the server for each
}

type bench struct {
	out    io.Writer
	dir    string
	world  *world   // of the servers
	inside *world   // of what is measured in this process
	asked  [][]byte // of openssl
	rounds int
	length time.Duration
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("ocsp", flag.ContinueOnError)
	rounds := flags.Int("rounds", 7, "rounds")
	length := flags.Duration("d", 2*time.Second, "length of one measurement")
	bin := flags.String("bin", "", "the program to measure (default: built for the run)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *rounds < 1 || *length < 100*time.Millisecond {
		return errors.New("-rounds must be 1 or more, and -d 100ms or more")
	}
	dir, err := os.MkdirTemp("", "bench-ocsp-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if *bin == "" {
		*bin = filepath.Join(dir, "secsy-pki")
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", *bin, "./cmd/secsy-pki")
		build.Dir = ".."
		if msg, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("building: %w: %s", err, msg)
		}
	}
	b := &bench{out: out, dir: dir, rounds: *rounds, length: *length}
	fmt.Fprintln(out, measure.Host())
	if b.world, err = newWorld(dir); err != nil {
		return err
	}
	if b.inside, err = newWorld(dir); err != nil {
		return err
	}
	hit, openssl, err := b.servers(ctx, *bin)
	if err != nil {
		return err
	}
	ns, allocs, err := b.handler()
	if err != nil {
		return err
	}
	sign, err := b.signing(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "load average now: %s\n", measure.Load())
	fmt.Fprintf(out, "RESULT ocsp hit_ratio=%.3f handler_ns=%.0f handler_allocs=%.0f openssl_ratio=%.2f sign_ratio=%.3f\n", hit, ns, allocs, openssl, sign)
	return nil
}

// servers measures whole processes, and returns the ratios of ours to the bare
// handler and to openssl.
func (b *bench) servers(ctx context.Context, bin string) (hit, openssl float64, err error) {
	ours, bare, peer, other, err := b.start(ctx, bin)
	defer func() {
		for _, s := range []*server{ours, bare, peer, other} {
			if s != nil {
				s.stop()
			}
		}
	}()
	if err != nil {
		return 0, 0, err
	}
	gets, posts := b.world.gets("/ocsp/"), b.world.posts("/ocsp")
	kept := func(s *server, requests [][]byte) errand {
		return errand{Address: s.address, Requests: requests, Length: b.length, Connections: 8}
	}
	anew := func(s *server, requests [][]byte) errand {
		return errand{Address: s.address, Requests: requests, Length: b.length, Connections: 4, Anew: true}
	}
	subjects := []*subject{
		{name: "secsy-pki, GET", server: ours, errand: kept(ours, gets)},
		{name: "bare net/http, GET", server: bare, errand: kept(bare, gets)},
		{name: "cfssl's manner, GET", server: peer, errand: kept(peer, gets)},
		{name: "secsy-pki, POST", server: ours, errand: kept(ours, posts)},
		{name: "cfssl's manner, POST", server: peer, errand: kept(peer, posts)},
		{name: "secsy-pki, POST, new connections", server: ours, errand: anew(ours, posts)},
		{name: "openssl ocsp, POST, new connections", server: other, errand: anew(other, b.asked)},
	}
	for _, s := range subjects { // signs what is not signed yet
		if _, err := send(ctx, s.errand); err != nil {
			return 0, 0, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	for round := range b.rounds {
		for i := range subjects {
			if round%2 == 1 {
				i = len(subjects) - 1 - i
			}
			if err := subjects[i].measure(ctx); err != nil {
				return 0, 0, err
			}
		}
	}
	fmt.Fprintf(b.out, "\n%-36s %24s %24s\n", "", "answers a second", "us of the server's CPU")
	for _, s := range subjects {
		fmt.Fprintf(b.out, "%-36s %24s %24s\n", s.name, s.rate, s.cpu)
	}
	fmt.Fprintln(b.out)
	for _, pair := range [][2]int{{0, 1}, {0, 2}, {3, 4}, {5, 6}} {
		x, y := subjects[pair[0]], subjects[pair[1]]
		fmt.Fprintf(b.out, "%s / %s: answers a second %s, CPU %s\n", x.name, y.name, ratios(x.rate, y.rate), ratios(x.cpu, y.cpu))
	}
	return ratios(subjects[0].rate, subjects[1].rate).Median(), ratios(subjects[5].rate, subjects[6].rate).Median(), nil
}

func (s *subject) measure(ctx context.Context) error {
	before, err := s.server.cpu()
	if err != nil {
		return err
	}
	r, err := send(ctx, s.errand)
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	after, err := s.server.cpu()
	if err != nil {
		return err
	}
	s.rate = append(s.rate, float64(r.Answers)/r.Took.Seconds())
	s.cpu = append(s.cpu, float64((after-before).Microseconds())/float64(r.Answers))
	return nil
}

// ratios are those of x to y, round by round.
func ratios(x, y measure.Sample) measure.Sample {
	out := make(measure.Sample, len(x))
	for i := range x {
		out[i] = x[i] / y[i]
	}
	return out
}
