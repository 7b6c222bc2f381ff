// Package sqlite is the store engine on one SQLite file, for one process.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/secsy-pki/secsy-pki/store"
)

const (
	busyTimeout = 10 * time.Second // for programs beside ours, as sqlite3's .backup
	walKept     = 64 << 20         // bytes of write-ahead log that stay after a checkpoint
	stmtCache   = 256              // prepared statements for each connection

	// synchronousFull is SQLite's number for syncing the log at each commit.
	synchronousFull = 2
)

// A Config says where the database is.
type Config struct {
	// Path is the file; it is created when missing, its folder is not. Beside
	// it live Path-wal and Path-shm, which belong to it, and Path.lock.
	Path string
	// MaxBatch is how many writers may share one commit; 0 means 128.
	MaxBatch int
	// MaxQueue is how many writers may wait in line; more wait to get into it,
	// each as long as its context allows. 0 means 1024.
	MaxQueue int
	// MaxReaders is how many reads run at the same time; 0 means 4 for each CPU.
	MaxReaders int
	// Logger is told of what no caller hears; nil means nobody.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.MaxBatch <= 0 {
		c.MaxBatch = 128
	}
	if c.MaxQueue <= 0 {
		c.MaxQueue = 1024
	}
	if c.MaxReaders <= 0 {
		c.MaxReaders = 4 * runtime.GOMAXPROCS(0)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// An Engine is an open database. It is used by many goroutines, and by one
// process at a time.
type Engine struct {
	path    string
	log     *slog.Logger
	lock    *os.File
	params  *rewriter
	writer  *writer
	readers *sql.DB

	mu     sync.Mutex // guards closed, and that no call begins after it
	closed bool
	calls  sync.WaitGroup
}

// Open opens or creates the database and takes it for this process.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	cfg = cfg.withDefaults()
	if cfg.Path == "" {
		return nil, errors.New("opening database: no path")
	}
	path, err := filepath.Abs(cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("opening database %s: %w", cfg.Path, err)
	}
	lock, err := takeLock(path)
	if err != nil {
		return nil, err
	}
	e := &Engine{path: path, log: cfg.Logger, lock: lock, params: new(rewriter)}
	if err := e.open(ctx, cfg); err != nil {
		return nil, errors.Join(err, giveLock(lock))
	}
	go e.writer.run()
	return e, nil
}

func (e *Engine) open(ctx context.Context, cfg Config) error {
	if err := create(e.path); err != nil {
		return explainPath(e.path, err)
	}
	writing, err := sql.Open("sqlite3", dsn(e.path, url.Values{
		"mode": {"rw"}, "_journal_mode": {"WAL"}, "_synchronous": {"FULL"}, "_foreign_keys": {"on"},
	}))
	if err != nil {
		return fmt.Errorf("opening database %s: %w", e.path, err)
	}
	writing.SetMaxOpenConns(1)
	w := &writer{
		db: writing, log: cfg.Logger, max: cfg.MaxBatch, params: e.params,
		queue: make(chan *member, cfg.MaxQueue), stopped: make(chan struct{}),
	}
	if err := w.connect(ctx); err != nil {
		return errors.Join(fmt.Errorf("opening database %s: %w", e.path, err), writing.Close())
	}
	reading, err := sql.Open("sqlite3", dsn(e.path, url.Values{"mode": {"ro"}, "_query_only": {"on"}}))
	if err != nil {
		return errors.Join(fmt.Errorf("opening database %s: %w", e.path, err), writing.Close())
	}
	reading.SetMaxOpenConns(cfg.MaxReaders)
	reading.SetMaxIdleConns(cfg.MaxReaders)
	e.writer, e.readers = w, reading
	return nil
}

// create makes an empty file that only we may read, and makes its name durable.
// SQLite gives the files beside it the same mode.
func create(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// dsn is the driver's address of the database, whatever its path contains.
func dsn(path string, params url.Values) string {
	params.Set("_busy_timeout", strconv.FormatInt(busyTimeout.Milliseconds(), 10))
	params.Set("_stmt_cache_size", strconv.Itoa(stmtCache))
	u := url.URL{Scheme: "file", Path: path, RawQuery: params.Encode()}
	return u.String()
}

// Write implements store.Engine. fn runs in the writer's goroutine.
func (e *Engine) Write(ctx context.Context, fn func(ctx context.Context, tx store.Tx) error) error {
	ctx, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer e.calls.Done()
	m := newMember(ctx, fn)
	select {
	case e.writer.queue <- m:
	case <-ctx.Done():
		return fmt.Errorf("waiting to write: %w", context.Cause(ctx))
	}
	select {
	case <-m.done:
	case <-ctx.Done():
		if m.leave() {
			return fmt.Errorf("waiting to write: %w", context.Cause(ctx))
		}
		<-m.done // it runs, or is being committed: only the outcome counts
	}
	return m.outcome()
}

// Read implements store.Engine: fn sees the database as it was at its first statement.
func (e *Engine) Read(ctx context.Context, fn func(ctx context.Context, tx store.Tx) error) error {
	ctx, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer e.calls.Done()
	snapshot, err := e.readers.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("beginning to read: %w", classify(err))
	}
	tx := store.NewSession(conn{snapshot, e.params})
	defer func() {
		_ = tx.Finish(nil) // for a panic; harmless twice
		if err := snapshot.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
			e.log.WarnContext(ctx, "ending a read", "error", err)
		}
	}()
	return tx.Finish(fn(ctx, tx))
}

// ReadRow implements store.Engine: one statement is a transaction of its own.
func (e *Engine) ReadRow(ctx context.Context, scan func(store.Row) error, q string, args ...any) error {
	ctx, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer e.calls.Done()
	c, err := e.readers.Conn(ctx)
	if err != nil {
		return classify(err)
	}
	defer func() { _ = c.Close() }() // gives it back
	// A row by its key is there in microseconds. To be able to give up on it
	// meanwhile would have two goroutines made for each read, and wait for both.
	ctx = context.WithoutCancel(ctx)
	tx := store.NewSession(conn{c, e.params})
	defer func() { _ = tx.Finish(nil) }() // for a panic; harmless twice
	return tx.Finish(scan(tx.QueryRow(ctx, q, args...)))
}

// Ping implements store.Engine.
func (e *Engine) Ping(ctx context.Context) error {
	return e.Read(ctx, func(ctx context.Context, tx store.Tx) error {
		var n int64
		return tx.QueryRow(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&n)
	})
}

// A Stat is a reading of the engine's counters.
type Stat struct {
	Writes  uint64 // that were committed
	Commits uint64 // that they shared
	Waiting int    // writers in line now
	Readers int    // reads that run now
}

// Stat returns the counters.
func (e *Engine) Stat() Stat {
	return Stat{
		Writes:  e.writer.writes.Load(),
		Commits: e.writer.commits.Load(),
		Waiting: len(e.writer.queue),
		Readers: e.readers.Stats().InUse,
	}
}

// Commits is how many commits there were, each with its wait for the disk.
func (e *Engine) Commits() uint64 { return e.writer.commits.Load() }

// enter begins a call that Close will wait for.
func (e *Engine) enter(ctx context.Context) (context.Context, error) {
	ctx, err := store.Enter(ctx, e)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, store.ErrClosed
	}
	e.calls.Add(1)
	return ctx, nil
}

// Close waits for what was begun, and gives the database back.
func (e *Engine) Close() error {
	e.mu.Lock()
	was := e.closed
	e.closed = true
	e.mu.Unlock()
	if was {
		return nil
	}
	e.calls.Wait()
	close(e.writer.queue)
	<-e.writer.stopped
	return errors.Join(e.readers.Close(), e.emptyLog(), e.writer.db.Close(), giveLock(e.lock))
}

// emptyLog moves what is in the write-ahead log into the database, so that the
// one file is all there is after a clean end. Without it nothing is lost.
func (e *Engine) emptyLog() error {
	if _, err := e.writer.db.ExecContext(context.Background(), `PRAGMA wal_checkpoint(TRUNCATE)`); err != nil {
		return fmt.Errorf("emptying the write-ahead log: %w", err)
	}
	return nil
}

var _ store.Engine = (*Engine)(nil)
