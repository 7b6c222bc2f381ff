package sqlite_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/sqlite"
)

// childEnv names the database in which a child of the tests writes until it is killed.
const childEnv = "SECSY_SQLITE_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		fmt.Fprintln(os.Stderr, writeForever(path))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// writeForever prints each number after its write returned.
func writeForever(path string) error {
	ctx := context.Background()
	e, err := sqlite.Open(ctx, sqlite.Config{Path: path})
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		if err := add(ctx, e, n); err != nil {
			return err
		}
		fmt.Println(n)
	}
}

func add(ctx context.Context, e *sqlite.Engine, n int) error {
	return e.Write(ctx, insert(n))
}

func insert(n int) func(context.Context, store.Tx) error {
	return func(ctx context.Context, tx store.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO numbers (n) VALUES ($1)`, n)
		return err
	}
}

func open(t *testing.T, cfg sqlite.Config) *sqlite.Engine {
	t.Helper()
	if cfg.Path == "" {
		cfg.Path = filepath.Join(t.TempDir(), "test.db")
	}
	e, err := sqlite.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	run(t, e, `CREATE TABLE IF NOT EXISTS numbers (n BIGINT PRIMARY KEY, raw BYTEA)`)
	return e
}

func run(t *testing.T, e *sqlite.Engine, q string, args ...any) {
	t.Helper()
	err := e.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
		_, err := tx.Exec(ctx, q, args...)
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", q, err)
	}
}

func count(t *testing.T, e *sqlite.Engine) (n int) {
	t.Helper()
	err := e.Read(t.Context(), func(ctx context.Context, tx store.Tx) error {
		return tx.QueryRow(ctx, `SELECT count(*) FROM numbers`).Scan(&n)
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// together runs the functions as writers that wait at the same time, and
// returns what each got, in their order.
func together(t *testing.T, e *sqlite.Engine, fns ...func(context.Context, store.Tx) error) []error {
	t.Helper()
	got := make([]error, len(fns))
	running, goOn := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		_ = e.Write(t.Context(), func(context.Context, store.Tx) error {
			close(running)
			<-goOn
			return errors.New("only to keep the writer busy")
		})
	})
	<-running
	for i, fn := range fns {
		all.Go(func() {
			defer func() {
				if v := recover(); v != nil {
					got[i] = fmt.Errorf("panic: %v", v)
				}
			}()
			got[i] = e.Write(t.Context(), fn)
		})
		for e.Stat().Waiting <= i {
			runtime.Gosched()
		}
	}
	close(goOn)
	all.Wait()
	return got
}

func TestWaitingWritersShareOneCommit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		batch, writers int
		commits        uint64
	}{{0, 20, 1}, {1, 5, 5}, {4, 10, 3}} {
		e := open(t, sqlite.Config{MaxBatch: c.batch})
		var fns []func(context.Context, store.Tx) error
		for n := range c.writers {
			fns = append(fns, insert(n))
		}
		before := e.Stat()
		if err := errors.Join(together(t, e, fns...)...); err != nil {
			t.Fatal(err)
		}
		after := e.Stat()
		if got := after.Commits - before.Commits; got != c.commits {
			t.Errorf("%d writers with batches of %d took %d commits, want %d", c.writers, c.batch, got, c.commits)
		}
		if got := after.Writes - before.Writes; got != uint64(c.writers) {
			t.Errorf("%d writes were counted, want %d", got, c.writers)
		}
		if got := count(t, e); got != c.writers {
			t.Errorf("%d rows, want %d", got, c.writers)
		}
	}
}

// Not parallel, as it takes all processors but one away: a goroutine that can run
// then runs only if the writer lets it.
func TestWhoIsAboutToWriteSharesTheCommit(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const pairs = 40
	e := open(t, sqlite.Config{})
	before := e.Stat().Commits
	for n := range pairs {
		second := make(chan error, 1)
		if err := e.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
			go func() { second <- e.Write(t.Context(), insert(2*n)) }()
			return insert(2*n+1)(ctx, tx)
		}); err != nil {
			t.Fatal(err)
		}
		if err := <-second; err != nil {
			t.Fatal(err)
		}
	}
	// Now and then the runtime has the writer go on first.
	if got := e.Stat().Commits - before; got > pairs*3/2 {
		t.Errorf("%d pairs of writers took %d commits", pairs, got)
	}
	if got := count(t, e); got != 2*pairs {
		t.Errorf("%d rows, want %d", got, 2*pairs)
	}
}

func TestFailingMemberIsUndoneAlone(t *testing.T) {
	t.Parallel()
	e := open(t, sqlite.Config{})
	before := e.Stat().Commits
	mine := errors.New("mine")
	fail := func(n int, end func() error) func(context.Context, store.Tx) error {
		return func(ctx context.Context, tx store.Tx) error {
			if err := insert(n)(ctx, tx); err != nil {
				return err
			}
			return end()
		}
	}
	got := together(t, e,
		fail(0, func() error { return mine }), // the first one has no savepoint
		insert(1),
		fail(2, func() error { return mine }),
		insert(3),
		fail(4, func() error { panic("boom") }),
		insert(1), // is there
		insert(5),
	)
	for i, want := range []func(error) bool{
		0: func(err error) bool { return errors.Is(err, mine) },
		2: func(err error) bool { return errors.Is(err, mine) },
		4: func(err error) bool { return err != nil && err.Error() == "panic: boom" },
		5: func(err error) bool { return errors.Is(err, store.ErrUnique) },
		6: nil,
	} {
		if want == nil && got[i] != nil || want != nil && !want(got[i]) {
			t.Errorf("member %d got %v", i, got[i])
		}
	}
	if got := count(t, e); got != 3 {
		t.Errorf("%d rows, want those of members 1, 3 and 6", got)
	}
	if got := e.Stat().Commits - before; got != 1 {
		t.Errorf("they took %d commits, want 1", got)
	}
}

func TestEndedGoroutineLeavesTheBatchWhole(t *testing.T) {
	t.Parallel()
	e := open(t, sqlite.Config{})
	got := together(t, e,
		insert(0),
		func(ctx context.Context, tx store.Tx) error {
			if err := insert(1)(ctx, tx); err != nil {
				return err
			}
			runtime.Goexit()
			return nil
		},
		insert(2),
	)
	if err := errors.Join(got...); err != nil {
		t.Error(err)
	}
	if got := count(t, e); got != 2 {
		t.Errorf("%d rows, want 2", got)
	}
}

// SQLite rolls the whole transaction back by itself on some errors, and would
// then take each statement for a transaction of its own.
func TestNobodySucceedsInATransactionThatRolledBackByItself(t *testing.T) {
	t.Parallel()
	e := open(t, sqlite.Config{})
	got := together(t, e,
		insert(1),
		insert(2),
		func(ctx context.Context, tx store.Tx) error {
			if err := insert(3)(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `INSERT OR ROLLBACK INTO numbers (n) VALUES (1)`)
			return err
		},
		insert(4),
	)
	for i, err := range got[:3] {
		if !errors.Is(err, store.ErrUnique) {
			t.Errorf("member %d got %v, want the error that rolled it back", i, err)
		}
	}
	if got[3] != nil {
		t.Errorf("the writer after it got %v", got[3])
	}
	if got := count(t, e); got != 1 {
		t.Errorf("%d rows, want that of the last writer only", got)
	}
}

func TestCommitErrorReachesEveryMember(t *testing.T) {
	t.Parallel()
	e := open(t, sqlite.Config{})
	run(t, e, `CREATE TABLE child (n BIGINT REFERENCES numbers (n) DEFERRABLE INITIALLY DEFERRED)`)
	got := together(t, e,
		insert(1),
		func(ctx context.Context, tx store.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO child (n) VALUES (7)`) // fails at the commit
			return err
		},
		insert(2),
	)
	for i, err := range got {
		if err == nil || !strings.Contains(err.Error(), "committing") {
			t.Errorf("member %d got %v, want the commit's error", i, err)
		}
	}
	if err := add(t.Context(), e, 3); err != nil {
		t.Errorf("the next write: %v", err)
	}
	if got := count(t, e); got != 1 {
		t.Errorf("%d rows, want 1", got)
	}
}

func TestFullDiskFailsTheWriteAndNotTheEngine(t *testing.T) {
	t.Parallel()
	e := open(t, sqlite.Config{})
	run(t, e, `PRAGMA max_page_count = 20`)
	err := e.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO numbers (n, raw) VALUES (1, $1)`, make([]byte, 1<<20))
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("got %v, want that the disk is full", err)
	}
	if err := add(t.Context(), e, 2); err != nil {
		t.Errorf("a small write after it: %v", err)
	}
	if got := count(t, e); got != 1 {
		t.Errorf("%d rows, want 1", got)
	}
}

func TestWriterWhoseTimeEndsInLineDoesNotRun(t *testing.T) {
	t.Parallel()
	e := open(t, sqlite.Config{})
	running, goOn := make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	go func() {
		first <- e.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
			close(running)
			<-goOn
			return insert(1)(ctx, tx)
		})
	}()
	<-running
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	go func() { second <- add(ctx, e, 2) }()
	for e.Stat().Waiting == 0 {
		runtime.Gosched()
	}
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) { // while the writer is still busy
		t.Errorf("got %v, want context.Canceled", err)
	}
	close(goOn)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if got := count(t, e); got != 1 {
		t.Errorf("%d rows, want only that of the writer that waited", got)
	}
}

func TestFullLineIsWaitedForAsLongAsTheCallerAllows(t *testing.T) {
	t.Parallel()
	e := open(t, sqlite.Config{MaxQueue: 1})
	running, goOn := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		_ = e.Write(t.Context(), func(context.Context, store.Tx) error {
			close(running)
			<-goOn
			return nil
		})
	})
	<-running
	all.Go(func() {
		if err := add(t.Context(), e, 1); err != nil {
			t.Error(err)
		}
	})
	for e.Stat().Waiting == 0 {
		runtime.Gosched()
	}
	ctx, cancel := context.WithCancel(t.Context())
	third := make(chan error, 1)
	go func() { third <- add(ctx, e, 2) }()
	cancel()
	if err := <-third; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	close(goOn)
	all.Wait()
}

// TestCommitsAreSynced asks the writing connection itself: a kill can't tell
// whether what was committed would have outlived a loss of power.
func TestCommitsAreSynced(t *testing.T) {
	t.Parallel()
	e := open(t, sqlite.Config{})
	err := e.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
		var (
			mode        string
			synchronous int64
		)
		if err := tx.QueryRow(ctx, `PRAGMA journal_mode`).Scan(&mode); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `PRAGMA synchronous`).Scan(&synchronous); err != nil {
			return err
		}
		const full = 2
		if mode != "wal" || synchronous != full {
			t.Errorf("journal mode is %s and synchronous %d, want wal and %d", mode, synchronous, full)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestWhatWasWrittenOutlivesAKill(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "test.db")
	e := open(t, sqlite.Config{Path: path})
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childEnv+"="+path)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var complaint bytes.Buffer
	child.Stderr = &complaint
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	told := 0
	for lines := bufio.NewScanner(out); told < 100 && lines.Scan(); {
		told++
	}
	_, err = sqlite.Open(t.Context(), sqlite.Config{Path: path})
	want := fmt.Sprintf("database %s is in use by another secsy-pki (pid %d)", path, child.Process.Pid)
	if err == nil || err.Error() != want {
		t.Errorf("while the child runs: got %v, want %q", err, want)
	}
	if err := child.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = child.Wait() // was killed
	if told < 100 {
		t.Fatalf("the child stopped after %d writes: %s", told, &complaint)
	}
	if got := count(t, open(t, sqlite.Config{Path: path})); got < told {
		t.Errorf("%d rows are there, %d were told to be written", got, told)
	}
}

func TestClosingGivesTheDatabaseBack(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "with ?%20# in it.db")
	for n := range 3 {
		e := open(t, sqlite.Config{Path: path})
		if _, err := sqlite.Open(t.Context(), sqlite.Config{Path: path}); err == nil || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
			t.Errorf("opening it twice: got %v, want an error with our pid", err)
		}
		if err := add(t.Context(), e, n); err != nil {
			t.Error(err)
		}
		if got := count(t, e); got != n+1 {
			t.Errorf("%d rows, want %d", got, n+1)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v; want mode 0600", info.Mode(), err)
	}
}

// TestACleanEndLeavesOneFile is for whoever copies the database of a program
// that is not running.
func TestACleanEndLeavesOneFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a.db")
	e := open(t, sqlite.Config{Path: path})
	for n := range 20 {
		if err := add(t.Context(), e, n); err != nil {
			t.Fatal(err)
		}
		count(t, e) // readers keep the log open
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	alone := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(alone, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := count(t, open(t, sqlite.Config{Path: alone})); got != 20 {
		t.Errorf("the file alone has %d of 20 rows", got)
	}
}

func TestOpenSaysInOneLineWhatIsWrong(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, bytes.Repeat([]byte("not a database\n"), 500), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"":                               "no path",
		text:                             "not an SQLite database",
		dir:                              "is a folder",
		filepath.Join(text, "x.db"):      "is not a folder",
		filepath.Join(dir, "gone/x.db"):  "does not exist",
		"/sys/kernel/secsy-pki-tests.db": "is not writable",
	} {
		_, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %q, want one line with %q", path, err, want)
		}
	}
	if _, err := sqlite.Open(t.Context(), sqlite.Config{Path: text}); err == nil || strings.Contains(err.Error(), "in use") {
		t.Errorf("a failed Open kept the lock: %v", err)
	}
}

func TestMigratingAnOpenDatabase(t *testing.T) {
	t.Parallel()
	e := open(t, sqlite.Config{})
	missing, err := e.Pending(t.Context())
	if err != nil || len(missing) == 0 {
		t.Fatalf("Pending: got %v, %v", missing, err)
	}
	applied, err := e.Migrate(t.Context())
	if err != nil || strings.Join(applied, " ") != strings.Join(missing, " ") {
		t.Errorf("Migrate: got %v, %v; want %v", applied, err, missing)
	}
	for name, f := range map[string]func(context.Context) ([]string, error){"Migrate": e.Migrate, "Pending": e.Pending} {
		if files, err := f(t.Context()); err != nil || len(files) != 0 {
			t.Errorf("%s when all is done: got %v, %v", name, files, err)
		}
	}
	run(t, e, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, 1)`)
	for name, f := range map[string]func(context.Context) ([]string, error){"Migrate": e.Migrate, "Pending": e.Pending} {
		if _, err := f(t.Context()); !errors.Is(err, store.ErrNewerSchema) || !strings.Contains(err.Error(), "9999") {
			t.Errorf("%s on a newer schema: got %v", name, err)
		}
	}
}
