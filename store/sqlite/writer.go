package sqlite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"runtime"
	"runtime/debug"
	"sync/atomic"

	"github.com/secsy-pki/secsy-pki/store"
)

// A member is one Write that shares a transaction with others.
type member struct {
	ctx   context.Context
	fn    func(ctx context.Context, tx store.Tx) error
	state atomic.Int32 // waiting, then started or left

	done     chan struct{} // closed when the rest is final
	err      error
	panicked any
	exited   bool // fn ended its goroutine
}

const (
	waiting int32 = iota
	started
	left
)

func newMember(ctx context.Context, fn func(ctx context.Context, tx store.Tx) error) *member {
	return &member{ctx: ctx, fn: fn, done: make(chan struct{})}
}

// start says whether m is to run: its caller still waits, and has time left.
func (m *member) start() bool {
	return m.ctx.Err() == nil && m.state.CompareAndSwap(waiting, started)
}

// leave says whether m's caller may go: m has not run, and never will.
func (m *member) leave() bool { return m.state.CompareAndSwap(waiting, left) }

func (m *member) finish(err error) {
	m.err = err
	close(m.done)
}

// outcome gives to the caller what happened to fn, as if it had called it.
func (m *member) outcome() error {
	switch {
	case m.panicked != nil:
		panic(m.panicked)
	case m.exited:
		runtime.Goexit()
	}
	return m.err
}

// A writer owns the only connection that writes. One goroutine runs members one
// after the other, each in a savepoint, and commits when nobody waits any more
// or the batch is full: one fsync for all of them. None waits for company but
// of those whom the processors have yet to get to.
type writer struct {
	dial func() (*link, error)
	log  *slog.Logger
	max  int

	queue   chan *member
	stopped chan struct{}

	writes, commits atomic.Uint64

	// These belong to the goroutine.
	conn  *link     // nil when it is to be opened again
	batch []*member // have run, and share the open transaction
}

// run serves members until the queue is closed. A function that ends its
// goroutine, as testing's FailNow does, takes this one with it; the next one
// goes on with the batch.
func (w *writer) run() {
	over := false
	defer func() {
		if !over {
			go w.run()
			return
		}
		close(w.stopped)
	}()
	for m := w.next(); m != nil; m = w.next() {
		if m.start() {
			w.serve(m)
		}
	}
	over = true
}

// next returns the next member, and commits before it waits for one.
func (w *writer) next() *member {
	if len(w.batch) > 0 && len(w.batch) < w.max {
		m := w.poll()
		if m == nil {
			// Whoever can run now may be about to write. If nobody can, this takes
			// no time.
			runtime.Gosched()
			m = w.poll()
		}
		if m != nil {
			return m
		}
	}
	if len(w.batch) > 0 {
		w.commit()
	}
	return <-w.queue
}

// poll returns a member that is there already, or nil.
func (w *writer) poll() *member {
	select {
	case m := <-w.queue:
		return m
	default:
		return nil
	}
}

// serve runs m and adds it to the batch, or undoes it.
func (w *writer) serve(m *member) {
	// The first one needs no savepoint: undoing it undoes all there is.
	open := "BEGIN IMMEDIATE"
	if len(w.batch) > 0 {
		open = "SAVEPOINT member"
	}
	if err := w.control(open); err != nil {
		m.finish(fmt.Errorf("beginning: %w", err))
		if len(w.batch) > 0 {
			w.abandon(err)
		} else {
			w.disconnect()
		}
		return
	}
	tx := store.NewSession(sharedConn{w.conn})
	m.exited = true
	defer func() {
		m.panicked = recover()
		if m.panicked != nil {
			w.log.ErrorContext(m.ctx, "a write panicked", "panic", m.panicked, "stack", string(debug.Stack()))
			m.exited = false
		}
		err := tx.Finish(m.err)
		if err == nil && !m.exited && m.panicked == nil {
			w.keep(m)
		} else {
			w.undo(m, err)
		}
	}()
	m.err = m.fn(m.ctx, tx)
	m.exited = false
}

func (w *writer) keep(m *member) {
	if len(w.batch) > 0 {
		if err := w.control("RELEASE member"); err != nil {
			w.batch = append(w.batch, m)
			w.abandon(err)
			return
		}
	}
	w.batch = append(w.batch, m)
}

// undo takes back what m did, and leaves the rest of the batch as it was.
func (w *writer) undo(m *member, cause error) {
	defer m.finish(cause)
	if w.rolledBack() {
		w.abandon(cause)
		return
	}
	if len(w.batch) == 0 {
		w.rollback()
		return
	}
	err := w.control("ROLLBACK TO member")
	if err == nil {
		err = w.control("RELEASE member")
	}
	if err != nil {
		w.abandon(err)
	}
}

// commit makes the batch durable, or tells every member that it is not.
func (w *writer) commit() {
	if err := w.control("COMMIT"); err != nil {
		w.abandon(fmt.Errorf("committing: %w", err))
		return
	}
	w.commits.Add(1)
	w.writes.Add(uint64(len(w.batch)))
	w.tell(nil)
}

// abandon fails the whole batch and closes its transaction.
func (w *writer) abandon(cause error) {
	w.rollback()
	w.tell(fmt.Errorf("the shared transaction was rolled back: %w", cause))
}

func (w *writer) tell(err error) {
	for i, m := range w.batch {
		w.batch[i] = nil
		m.finish(err)
	}
	w.batch = w.batch[:0]
}

// rollback ends the transaction, by closing the connection if need be.
func (w *writer) rollback() {
	if w.rolledBack() {
		return
	}
	if err := w.control("ROLLBACK"); err != nil {
		w.log.Error("rolling back", "error", err)
		w.disconnect()
	}
}

// rolledBack says that no transaction is open: SQLite itself rolls back on some
// errors, such as a full disk, and what runs after that would commit by itself.
func (w *writer) rolledBack() bool { return w.conn == nil || w.conn.raw.AutoCommit() }

// control runs a statement that steers the transaction.
func (w *writer) control(q string) error {
	if err := w.connect(); err != nil {
		return err
	}
	return w.conn.steer(q)
}

func (w *writer) connect() error {
	if w.conn != nil {
		return nil
	}
	l, err := w.dial()
	if err != nil {
		return err
	}
	w.conn = l
	return nil
}

// dialWriter opens the link that writes, and makes sure that what it commits
// will be durable. SQLite takes a setting that it can't have without an error,
// so that each is asked for.
func dialWriter(path string, params *rewriter) (*link, error) {
	l, err := dial(path, params,
		url.Values{"mode": {"rw"}, "_journal_mode": {"WAL"}, "_synchronous": {"FULL"}, "_foreign_keys": {"on"}},
		fmt.Sprintf("PRAGMA journal_size_limit = %d", walKept),
		// What members may have to take back is a few pages each: without this,
		// those of a batch go to a file.
		"PRAGMA temp_store = MEMORY",
		fmt.Sprintf("PRAGMA cache_size = -%d", writerCache>>10))
	if err != nil {
		return nil, err
	}
	if err := l.checkDurable(); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *link) checkDurable() error {
	var (
		mode        string
		synchronous int64
	)
	ctx, tx := context.Background(), store.NewSession(l)
	if err := tx.QueryRow(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("its file system can't hold a write-ahead log (journal mode is %s)", mode)
	}
	if err := tx.QueryRow(ctx, "PRAGMA synchronous").Scan(&synchronous); err != nil {
		return err
	}
	if synchronous < synchronousFull {
		return fmt.Errorf("commits would not be durable (synchronous is %d)", synchronous)
	}
	return nil
}

// disconnect closes the connection for good, with the transaction that may be
// open on it.
func (w *writer) disconnect() {
	if w.conn == nil {
		return
	}
	if err := w.conn.close(); err != nil {
		w.log.Warn("closing the writing connection", "error", err)
	}
	w.conn = nil
}

// close moves what is in the write-ahead log into the database, so that the one
// file is all there is after a clean end. Without it nothing is lost.
func (w *writer) close() error {
	defer w.disconnect()
	if err := w.control("PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
		return fmt.Errorf("emptying the write-ahead log: %w", err)
	}
	return nil
}
