// Package sqlite is the store engine on one SQLite file, for one process.
package sqlite

import (
	"context"
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
	writerCache = 16 << 20         // bytes of pages that the writer keeps; each of its commits empties the readers'

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
	writer  *writer
	readers *pool

	mu     sync.Mutex // guards closed, and that no call begins after it
	closed bool
	calls  sync.WaitGroup
}

// Open opens or creates the database and takes it for this process.
func Open(_ context.Context, cfg Config) (*Engine, error) {
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
	e := &Engine{path: path, log: cfg.Logger, lock: lock}
	if err := e.open(cfg); err != nil {
		return nil, errors.Join(err, giveLock(lock))
	}
	go e.writer.run()
	return e, nil
}

func (e *Engine) open(cfg Config) error {
	if err := create(e.path); err != nil {
		return explainPath(e.path, err)
	}
	params := new(rewriter)
	w := &writer{
		dial: func() (*link, error) { return dialWriter(e.path, params) }, log: cfg.Logger, max: cfg.MaxBatch,
		queue: make(chan *member, cfg.MaxQueue), stopped: make(chan struct{}),
	}
	if err := w.connect(); err != nil {
		return fmt.Errorf("opening database %s: %w", e.path, err)
	}
	e.writer, e.readers = w, &pool{
		dial: func() (*link, error) {
			return dial(e.path, params, url.Values{"mode": {"ro"}, "_query_only": {"on"}})
		},
		seats: make(chan struct{}, cfg.MaxReaders),
	}
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
	return e.read(ctx, func(ctx context.Context, l *link, tx store.Tx) error {
		if err := l.steer("BEGIN"); err != nil {
			return fmt.Errorf("beginning to read: %w", err)
		}
		return fn(ctx, tx)
	})
}

// ReadRow implements store.Engine: one statement is a transaction of its own.
func (e *Engine) ReadRow(ctx context.Context, scan func(store.Row) error, q string, args ...any) error {
	return e.read(ctx, func(ctx context.Context, _ *link, tx store.Tx) error {
		// A row by its key is there in microseconds. To watch the context
		// meanwhile would take longer than that.
		return scan(tx.QueryRow(context.WithoutCancel(ctx), q, args...))
	})
}

// read runs fn on a link that only reads.
func (e *Engine) read(ctx context.Context, fn func(ctx context.Context, l *link, tx store.Tx) error) error {
	ctx, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer e.calls.Done()
	l, err := e.readers.borrow(ctx)
	if err != nil {
		return err
	}
	tx := store.NewSession(l)
	defer func() {
		_ = tx.Finish(nil) // for a panic; harmless twice
		e.leave(ctx, l)
	}()
	return tx.Finish(fn(ctx, l, tx))
}

// leave ends the transaction that may be open on l, and gives l back.
func (e *Engine) leave(ctx context.Context, l *link) {
	if !l.raw.AutoCommit() {
		if err := l.steer("ROLLBACK"); err != nil {
			e.log.WarnContext(ctx, "ending a read", "error", errors.Join(err, e.readers.drop(l)))
			return
		}
	}
	e.readers.giveBack(l)
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
		Readers: len(e.readers.seats),
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
	return errors.Join(e.readers.close(), e.writer.close(), giveLock(e.lock))
}

var _ store.Engine = (*Engine)(nil)
