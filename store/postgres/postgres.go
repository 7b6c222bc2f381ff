// Package postgres is the store engine on a PostgreSQL server, shared by many processes.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/secsy-pki/secsy-pki/store"
)

const (
	connectTimeout = 10 * time.Second
	endTimeout     = 15 * time.Second // for a commit or rollback, whatever the caller's time
	attempts       = 8                // of one Write
	firstPause     = 5 * time.Millisecond
	lastPause      = 500 * time.Millisecond
)

// A Config says where the database is.
type Config struct {
	// URL is postgres://user:password@host:port/database?sslmode=verify-full …
	// What it leaves out is taken from the environment, as psql does.
	URL string
	// MaxConns is how many connections are open at most; 0 means what the URL
	// says in pool_max_conns, or else 4 for each CPU.
	MaxConns int
	// Logger is told of what no caller hears; nil means nobody.
	Logger *slog.Logger
}

// An Engine is a pool of connections to one database. It is used by many
// goroutines, and by many processes at a time.
type Engine struct {
	pool   *pgxpool.Pool
	log    *slog.Logger
	secret secrets

	mu     sync.Mutex // guards closed, and that no call begins after it
	closed bool
	calls  sync.WaitGroup
}

// Open connects to the database.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	pc, secret, err := parse(cfg)
	if err != nil {
		return nil, err
	}
	e := &Engine{log: cfg.Logger, secret: secret}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if e.pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
		return nil, fmt.Errorf("opening the PostgreSQL pool: %w", secret.clean(err))
	}
	if err := e.inspect(ctx); err != nil {
		e.pool.Close()
		return nil, err
	}
	return e, nil
}

func parse(cfg Config) (*pgxpool.Config, secrets, error) {
	secret, err := secretsOf(cfg.URL)
	if err != nil {
		return nil, nil, err
	}
	pc, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the PostgreSQL URL: %w", secret.clean(err))
	}
	if pc.ConnConfig.Password != "" { // it may come from a file or the environment
		secret = append(secret, pc.ConnConfig.Password)
	}
	switch {
	case cfg.MaxConns > 0:
		pc.MaxConns = int32(min(cfg.MaxConns, 10_000))
	case !hasParam(cfg.URL, "pool_max_conns"):
		// More connections than the CPUs can serve make commits slower, not more.
		pc.MaxConns = int32(4 * runtime.GOMAXPROCS(0))
	}
	if pc.ConnConfig.ConnectTimeout == 0 {
		pc.ConnConfig.ConnectTimeout = connectTimeout
	}
	pc.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		// A program that vanishes in a transaction must not keep its locks for hours.
		_, err := c.Exec(ctx, "SET idle_in_transaction_session_timeout = '60s'")
		return err
	}
	return pc, secret, nil
}

// inspect connects once, and warns when commits would not survive a crash.
func (e *Engine) inspect(ctx context.Context) error {
	var fsync, commits string
	err := e.pool.QueryRow(ctx, "SELECT current_setting('fsync'), current_setting('synchronous_commit')").Scan(&fsync, &commits)
	if err != nil {
		return fmt.Errorf("connecting to PostgreSQL: %w", e.secret.clean(err))
	}
	if fsync == "off" || commits == "off" {
		e.log.WarnContext(ctx, "PostgreSQL may lose committed transactions in a crash", "fsync", fsync, "synchronous_commit", commits)
	}
	return nil
}

// Write implements store.Engine: one transaction at READ COMMITTED, run again
// when the server gave it up in favour of another one or went away before the
// commit was sent.
func (e *Engine) Write(ctx context.Context, fn func(ctx context.Context, tx store.Tx) error) error {
	ctx, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer e.calls.Done()
	for n := range attempts {
		var again bool
		if again, err = e.try(ctx, fn); !again {
			return err
		}
		e.log.DebugContext(ctx, "running a transaction again", "attempt", n+1, "cause", err)
		if !pause(ctx, n) {
			return err
		}
	}
	return fmt.Errorf("giving up after %d attempts: %w", attempts, err)
}

// try runs fn in one transaction. It says again when nothing was kept and a
// new attempt may fare better.
func (e *Engine) try(ctx context.Context, fn func(ctx context.Context, tx store.Tx) error) (again bool, err error) {
	pt, err := e.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return e.lost(ctx, err), fmt.Errorf("beginning: %w", e.secret.clean(err))
	}
	defer e.rollback(ctx, pt) // does nothing after a commit
	tx := store.NewSession(conn{pt})
	err = fn(ctx, tx)
	failed := tx.Err()
	if err = tx.Finish(err); err != nil {
		return conflict(failed) || failed != nil && e.lost(ctx, failed), err
	}
	return e.commit(ctx, pt)
}

// commit has its own time: a caller that goes away now would leave the outcome unknown.
func (e *Engine) commit(ctx context.Context, pt pgx.Tx) (again bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if pt.Conn().IsClosed() {
		e.pool.Reset()
		return true, fmt.Errorf("committing: %w", pgconn.ErrConnClosed)
	}
	err = pt.Commit(ctx)
	if err == nil {
		return false, nil
	}
	pe, answered := errors.AsType[*pgconn.PgError](err)
	if answered && pe.SeverityUnlocalized == "ERROR" || errors.Is(err, pgx.ErrTxCommitRollback) {
		return conflict(err), fmt.Errorf("committing: %w", classify(err))
	}
	// The driver's SafeToRetry is no help here: it says yes to a connection that
	// ended between the commit and its answer.
	e.pool.Reset()
	return false, fmt.Errorf("committing: %w: %w", store.ErrUnknownOutcome, e.secret.clean(err))
}

func (e *Engine) rollback(ctx context.Context, pt pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if err := pt.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		// The pool closes a connection that it can't clean; the server rolls back.
		e.log.DebugContext(ctx, "rolling back", "error", e.secret.clean(err))
	}
}

// Read implements store.Engine: fn sees the database as it was at its first statement.
func (e *Engine) Read(ctx context.Context, fn func(ctx context.Context, tx store.Tx) error) error {
	ctx, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer e.calls.Done()
	pt, err := e.beginRead(ctx)
	if err != nil {
		return fmt.Errorf("beginning to read: %w", e.secret.clean(err))
	}
	defer e.rollback(ctx, pt)
	tx := store.NewSession(conn{pt})
	err = fn(ctx, tx)
	if failed := tx.Err(); failed != nil {
		e.lost(ctx, failed)
	}
	return tx.Finish(err)
}

// ReadRow implements store.Engine: one statement is a transaction of its own,
// and takes one message each way. It is run again on a connection that is alive.
func (e *Engine) ReadRow(ctx context.Context, scan func(store.Row) error, q string, args ...any) error {
	ctx, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer e.calls.Done()
	for n := range attempts {
		var failed error
		if failed, err = e.readRow(ctx, scan, q, args); failed == nil || !e.lost(ctx, failed) || !pause(ctx, n) {
			break
		}
	}
	return err
}

func (e *Engine) readRow(ctx context.Context, scan func(store.Row) error, q string, args []any) (failed, err error) {
	tx := store.NewSession(conn{e.pool})
	defer func() { _ = tx.Finish(nil) }() // for a panic; harmless twice
	err = scan(tx.QueryRow(ctx, q, args...))
	failed = tx.Err()
	return failed, e.secret.clean(tx.Finish(err))
}

// beginRead gets over connections that died in the pool. What comes later is
// not run again, for fn may have collected rows.
func (e *Engine) beginRead(ctx context.Context) (pt pgx.Tx, err error) {
	for n := range attempts {
		pt, err = e.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
		if err == nil || !e.lost(ctx, err) || !pause(ctx, n) {
			break
		}
	}
	return pt, err
}

// Ping implements store.Engine.
func (e *Engine) Ping(ctx context.Context) error {
	ctx, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer e.calls.Done()
	if err := e.pool.Ping(ctx); err != nil {
		return fmt.Errorf("asking PostgreSQL: %w", e.secret.clean(err))
	}
	return nil
}

// lost says that err is the end of a connection and not of the caller's time.
// The others in the pool have likely ended with it, so they are not used again.
func (e *Engine) lost(ctx context.Context, err error) bool {
	if ctx.Err() != nil || !connectionLost(err) {
		return false
	}
	e.pool.Reset()
	return true
}

// pause waits longer after each attempt, a random part of it, or for as long as
// the caller does.
func pause(ctx context.Context, attempt int) bool {
	most := min(firstPause<<attempt, lastPause)
	timer := time.NewTimer(rand.N(most) + most/4)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

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

// Close waits for what was begun, and closes the connections.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.calls.Wait()
	e.pool.Close()
	return nil
}

var _ store.Engine = (*Engine)(nil)
