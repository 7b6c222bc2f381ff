// Storebench measures how many durable writes a second the store takes, and how
// many more of them SQLite takes when waiting writers share a commit.
//
// Rounds of all kinds are interleaved, so that a disk that is slow for a while
// is slow for each. Its last line is RESULT with the ratios of the medians.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/postgres"
	"github.com/secsy-pki/secsy-pki/store/sqlite"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "storebench:", err)
		os.Exit(1)
	}
}

// writers are how many write at the same time.
var writers = []int{1, 8, 32}

// line is what one write inserts, as long as an audit entry.
var line = strings.Repeat("0123456789abcdef", 19)[:302]

// A subject is one thing that is measured.
type subject struct {
	name  string
	write func(ctx context.Context) error
	rates map[int][]float64 // writes a second, by how many writers
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("storebench", flag.ContinueOnError)
	where := flags.String("dir", ".", "folder for the databases, on the disk to measure")
	rounds := flags.Int("rounds", 5, "rounds")
	each := flags.Duration("each", 400*time.Millisecond, "time for each measurement")
	if err := flags.Parse(args); err != nil {
		return err
	}
	fs, err := fileSystem(*where)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(*where, "storebench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	subjects, closeAll, err := prepare(ctx, dir)
	defer func() { err = errors.Join(err, closeAll()) }()
	if err != nil {
		return err
	}
	for range *rounds {
		for _, n := range writers {
			for _, s := range subjects {
				rate, err := measure(ctx, n, *each, s.write)
				if err != nil {
					return fmt.Errorf("%s, %d writers: %w", s.name, n, err)
				}
				s.rates[n] = append(s.rates[n], rate)
			}
		}
	}
	return report(out, fs, *rounds, subjects)
}

// prepare opens everything that is to be measured. What it returns closes it.
func prepare(ctx context.Context, dir string) (subjects []subject, closeAll func() error, err error) {
	var closers []func() error
	closeAll = func() error {
		var err error
		for _, c := range slices.Backward(closers) {
			err = errors.Join(err, c())
		}
		return err
	}
	add := func(name string, write func(context.Context) error, closer func() error) {
		subjects = append(subjects, subject{name, write, make(map[int][]float64)})
		closers = append(closers, closer)
	}
	bare, err := os.OpenFile(filepath.Join(dir, "bare"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, closeAll, err
	}
	var mu sync.Mutex
	add("append and fdatasync", func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		if _, err := bare.WriteString(line); err != nil {
			return err
		}
		return unix.Fdatasync(int(bare.Fd()))
	}, bare.Close)
	for batch, name := range []string{shared, alone} { // 0 is the default size, 1 is none to share with
		e, err := sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".db"), MaxBatch: batch})
		if err != nil {
			return nil, closeAll, err
		}
		closers = append(closers, e.Close)
		write, drop, err := table(ctx, e)
		if err != nil {
			return nil, closeAll, err
		}
		add(name, write, drop)
	}
	server := os.Getenv("SECSY_TEST_POSTGRES")
	if server == "" {
		return subjects, closeAll, nil
	}
	e, err := postgres.Open(ctx, postgres.Config{URL: server})
	if err != nil {
		return nil, closeAll, err
	}
	closers = append(closers, e.Close)
	write, drop, err := table(ctx, e)
	if err != nil {
		return nil, closeAll, err
	}
	add("postgres", write, drop)
	return subjects, closeAll, nil
}

const (
	shared = "sqlite shared commits"
	alone  = "sqlite one commit each"
)

// table makes a table and returns what writes one row into it.
func table(ctx context.Context, e store.Engine) (write func(context.Context) error, drop func() error, err error) {
	statement := func(ctx context.Context, q string, args ...any) error {
		return e.Write(ctx, func(ctx context.Context, tx store.Tx) error {
			_, err := tx.Exec(ctx, q, args...)
			return err
		})
	}
	var id atomic.Int64
	write = func(ctx context.Context) error {
		return statement(ctx, `INSERT INTO storebench (id, line) VALUES ($1, $2)`, id.Add(1), line)
	}
	drop = func() error { return statement(context.WithoutCancel(ctx), `DROP TABLE storebench`) }
	return write, drop, statement(ctx, `CREATE TABLE storebench (id BIGINT PRIMARY KEY, line TEXT NOT NULL)`)
}

// measure lets n writers write for a while and returns the writes a second.
func measure(ctx context.Context, n int, each time.Duration, write func(context.Context) error) (float64, error) {
	var all sync.WaitGroup
	var done atomic.Int64
	failed := make(chan error, n)
	begun := time.Now()
	for range n {
		all.Go(func() {
			for time.Since(begun) < each {
				if err := write(ctx); err != nil {
					failed <- err
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	took := time.Since(begun)
	select {
	case err := <-failed:
		return 0, err
	default:
		return float64(done.Load()) / took.Seconds(), nil
	}
}

func report(out io.Writer, fs string, rounds int, subjects []subject) error {
	var text strings.Builder
	fmt.Fprintf(&text, "durable writes a second of one row of %d bytes, %d rounds, on %s: median (least-most)\n", len(line), rounds, fs)
	fmt.Fprintf(&text, "%-24s", "writers")
	for _, n := range writers {
		fmt.Fprintf(&text, "%24d", n)
	}
	ratio := map[int]float64{1: 1, 8: 1, 32: 1}
	for _, s := range subjects {
		fmt.Fprintf(&text, "\n%-24s", s.name)
		for _, n := range writers {
			rates := slices.Sorted(slices.Values(s.rates[n]))
			median := rates[len(rates)/2]
			fmt.Fprintf(&text, "%24s", fmt.Sprintf("%.0f (%.0f-%.0f)", median, rates[0], rates[len(rates)-1]))
			switch s.name {
			case shared:
				ratio[n] *= median
			case alone:
				ratio[n] /= median
			}
		}
	}
	fmt.Fprintf(&text, "\nRESULT store sqlite_ratio_8=%.2f sqlite_ratio_32=%.2f\n", ratio[8], ratio[32])
	_, err := io.WriteString(out, text.String())
	return err
}

// fileSystem names the file system of dir, and refuses memory: a sync costs
// nothing there.
func fileSystem(dir string) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", fmt.Errorf("looking at the file system of %s: %w", dir, err)
	}
	switch uint32(st.Type) {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return "", fmt.Errorf("%s is in memory (tmpfs): name a folder on a disk with -dir", dir)
	case unix.EXT4_SUPER_MAGIC:
		return "ext4", nil
	case unix.XFS_SUPER_MAGIC:
		return "xfs", nil
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs", nil
	case unix.F2FS_SUPER_MAGIC:
		return "f2fs", nil
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs", nil
	}
	return fmt.Sprintf("a file system of type %#x", uint32(st.Type)), nil
}
