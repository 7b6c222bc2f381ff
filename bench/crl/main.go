// Crl measures what a long CRL costs: the processor time of making one from
// entries in memory beside x509.CreateRevocationList, what memory grows by while
// the server makes one from its database, and how long that takes from the first
// row read to the publication, on SQLite and on PostgreSQL.
//
// The rounds of both encoders are interleaved, so that a host that is slow for a
// while is slow for both; the ratio is of processor time within a round, garbage
// collection and the checking of the signature included in both, and ours reads
// back all that it wrote besides. Databases are in folders that are gone
// afterwards, every commit waits for the disk. The last line is RESULT.
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
	"syscall"

	"github.com/secsy-pki/secsy-pki/bench/measure"
	"github.com/secsy-pki/secsy-pki/bench/postgres"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "crl:", err)
		os.Exit(1)
	}
}

type bench struct {
	out     io.Writer
	entries int
	rounds  int
	dir     string
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("crl", flag.ContinueOnError)
	entries := flags.Int("entries", 1_000_000, "revoked certificates")
	rounds := flags.Int("rounds", 3, "rounds of each measurement")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *entries < 1 || *rounds < 1 {
		return errors.New("-entries and -rounds must be 1 or more")
	}
	dir, err := os.MkdirTemp(".", ".bench-crl-") // not in /tmp, which may be memory
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	// The file that a long CRL is in is to be on the disk, too.
	if err := os.Setenv("TMPDIR", dir); err != nil {
		return err
	}
	b := &bench{out: out, entries: *entries, rounds: *rounds, dir: dir}
	return b.all(ctx)
}

func (b *bench) all(ctx context.Context) error {
	fmt.Fprintln(b.out, measure.Host())
	// Databases first, while there are no entries in memory.
	sqlite, err := b.fromSQLite(ctx)
	if err != nil {
		return fmt.Errorf("from SQLite: %w", err)
	}
	pg, err := postgres.Start(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = pg.Close() }()
	postgres, err := b.fromPostgres(ctx, pg)
	if err != nil {
		return fmt.Errorf("from PostgreSQL: %w", err)
	}
	ratio, err := b.encoders(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(b.out, "load average now: %s\n", measure.Load())
	fmt.Fprintf(b.out, "RESULT crl time_ratio=%.3f extra_mem_mib=%.1f from_sqlite_s=%.2f from_postgres_s=%.2f\n",
		ratio, max(sqlite.memory.Most(), postgres.memory.Most()), sqlite.wall.Median(), postgres.wall.Median())
	return nil
}
