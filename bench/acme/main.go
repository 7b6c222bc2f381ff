// Acme measures complete issuances: newOrder, authorization, http-01 that is
// really fetched, finalize and download, by clients that keep their connection
// and each have an account. The server is the built program, never started
// before, as quickstart configures it but for the limits of its one client
// address, on SQLite and on PostgreSQL; every commit waits for the disk.
//
// What to trust is processor time for each certificate, of the server's process
// alone: rates and latencies are of the host as busy as it is. Beside it stand the
// floor, which is the arithmetic alone, and Pebble, if it is installed, which keeps
// everything in memory. The last line is RESULT, of SQLite.
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
	"sync/atomic"
	"syscall"
	"time"

	"github.com/secsy-pki/secsy-pki/bench/measure"
	"github.com/secsy-pki/secsy-pki/bench/postgres"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "acme:", err)
		os.Exit(1)
	}
}

// A row is what one number of clients saw of one server.
type row struct {
	clients            int
	issued, failed     int
	first              error
	cpu                time.Duration // for each certificate
	rate               float64       // certificates a second
	p50, p99           float64       // ms
	statements, fsyncs float64       // for each certificate
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("acme", flag.ContinueOnError)
	orders := flags.Int("orders", 400, "certificates for each number of clients; one client has a quarter of them")
	bin := flags.String("bin", "", "the program to measure (default: built for the run)")
	skip := flags.Bool("sqlite-only", false, "neither PostgreSQL nor Pebble")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *orders < 8 {
		return errors.New("-orders must be 8 or more")
	}
	dir, err := os.MkdirTemp(".", ".bench-acme-") // not in /tmp, which may be memory, where a sync costs nothing
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	b := &bench{out: out, orders: *orders, dir: dir, bin: *bin}
	if b.bin == "" {
		b.bin = filepath.Join(dir, "secsy-pki")
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", b.bin, "./cmd/secsy-pki")
		build.Dir = ".."
		if msg, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("building: %w: %s", err, msg)
		}
	}
	if b.responder, err = newResponder(); err != nil {
		return err
	}
	defer func() { _ = b.responder.close() }()
	return b.all(ctx, *skip)
}

type bench struct {
	out       io.Writer
	orders    int
	dir, bin  string
	responder *responder
	serial    atomic.Int64
}

func (b *bench) all(ctx context.Context, sqliteOnly bool) error {
	fmt.Fprintln(b.out, measure.Host())
	least, err := floor(ctx, 200)
	if err != nil {
		return fmt.Errorf("measuring the floor: %w", err)
	}
	fmt.Fprintf(b.out, "floor: %.2f ms of processor time: seven signatures verified, two made, all lints, two appends with fsync\n", ms(least))
	sqlite, err := b.server(ctx, "SQLite", least, []int{1, 8, 32}, func(dir string) (*server, error) { return ours(ctx, b.bin, dir, b.responder, nil) })
	if err != nil {
		return err
	}
	if !sqliteOnly {
		if err := b.others(ctx, least); err != nil {
			return err
		}
	}
	fmt.Fprintf(b.out, "load average now: %s\n", measure.Load())
	failed := 0
	for _, r := range sqlite {
		failed += r.failed
	}
	one, eight, many := sqlite[0], sqlite[1], sqlite[2]
	fmt.Fprintf(b.out, "RESULT acme cpu_ms=%.2f per_s_1=%.0f per_s_8=%.0f per_s_32=%.0f p99_8_ms=%.0f statements=%.1f fsyncs=%.2f\n",
		ms(eight.cpu), one.rate, eight.rate, many.rate, eight.p99, eight.statements, eight.fsyncs)
	if failed > 0 {
		return fmt.Errorf("%d orders failed", failed)
	}
	return nil
}

func (b *bench) others(ctx context.Context, least time.Duration) error {
	pg, err := postgres.Start(ctx)
	if err == nil {
		defer func() { _ = pg.Close() }()
	}
	if err != nil {
		fmt.Fprintf(b.out, "no PostgreSQL: %v\n", err)
	} else if _, err := b.server(ctx, "PostgreSQL", least, []int{1, 8, 32}, func(dir string) (*server, error) { return ours(ctx, b.bin, dir, b.responder, pg) }); err != nil {
		return err
	}
	if _, err := exec.LookPath("pebble"); err != nil {
		fmt.Fprintf(b.out, "no Pebble: %v\n", err)
		return nil
	}
	// With 32 clients it is not measured here.
	_, err = b.server(ctx, "Pebble, in memory", least, []int{1, 8}, func(dir string) (*server, error) { return peer(ctx, dir, b.responder) })
	return err
}

// server measures a server that start makes in a folder of its own.
func (b *bench) server(ctx context.Context, name string, least time.Duration, clients []int, start func(dir string) (*server, error)) ([]row, error) {
	dir, err := os.MkdirTemp(b.dir, "server-")
	if err != nil {
		return nil, err
	}
	s, err := start(dir)
	if s != nil {
		defer s.stop()
	}
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(b.out, "\n%s\n%8s %8s %8s %10s %8s %8s %8s %8s %12s %8s\n", name, "clients", "issued", "failed", "cpu ms", "/ floor", "per s", "p50 ms", "p99 ms", "statements", "fsyncs")
	var rows []row
	for _, n := range clients {
		r, err := b.measure(ctx, s, n)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintf(b.out, "%8d %8d %8d %10.2f %8.1f %8.1f %8.1f %8.1f %12.1f %8.2f\n",
			r.clients, r.issued, r.failed, ms(r.cpu), float64(r.cpu)/float64(least), r.rate, r.p50, r.p99, r.statements, r.fsyncs)
		if r.first != nil {
			fmt.Fprintf(b.out, "the first failure: %v\n", r.first)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

func (b *bench) measure(ctx context.Context, s *server, n int) (row, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	l := &loader{directory: s.directory, roots: s.roots, responder: b.responder, serial: &b.serial, run: fmt.Sprint("r", time.Now().UnixNano()%1e9)}
	var cs []*client
	for range n {
		c, err := l.client(ctx)
		if err != nil {
			return row{}, err
		}
		cs = append(cs, c)
	}
	if r := share(ctx, cs, 2*n+10); r.failed > 0 { // to warm up
		return row{}, r.first
	}
	orders := b.orders
	if n == 1 {
		orders /= 4
	}
	cpu, err := s.cpu()
	if err != nil {
		return row{}, err
	}
	statements, fsyncs, err := s.asked(ctx)
	if err != nil {
		return row{}, err
	}
	got := share(ctx, cs, orders)
	cpuAfter, err := s.cpu()
	if err != nil {
		return row{}, err
	}
	statementsAfter, fsyncsAfter, err := s.asked(ctx)
	if err != nil {
		return row{}, err
	}
	issued := len(got.latencies)
	if issued == 0 {
		return row{}, fmt.Errorf("nothing was issued: %w", got.first)
	}
	took := measure.Durations(got.latencies)
	return row{
		clients: n, issued: issued, failed: got.failed, first: got.first, cpu: (cpuAfter - cpu) / time.Duration(issued),
		rate: float64(issued) / got.took.Seconds(), p50: took.Median(), p99: took.Quantile(0.99),
		statements: (statementsAfter - statements) / float64(issued), fsyncs: (fsyncsAfter - fsyncs) / float64(issued),
	}, nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
