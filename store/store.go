// Package store is where every line of SQL lives: one file for each room that
// it serves, each statement written once, in the SQL that both engines speak.
//
// Statements use $1, $2 … for parameters. Times are stored as BIGINT
// microseconds since 1970 UTC (0 for none), flags as BIGINT 0 or 1, ids and hex
// as TEXT, DER as BYTEA/BLOB, JSON as TEXT.
package store

import (
	"context"
	"errors"
	"time"
)

// A Tx runs statements inside one transaction. It is used by one goroutine.
type Tx interface {
	// Exec returns how many rows it changed.
	Exec(ctx context.Context, q string, args ...any) (int64, error)
	// QueryRow's Scan returns ErrNoRows when there is none.
	QueryRow(ctx context.Context, q string, args ...any) Row
	Query(ctx context.Context, q string, args ...any) (Rows, error)
}

// A Row is the one row of a query.
type Row interface{ Scan(dest ...any) error }

// Rows are the rows of a query; Close is always needed, and harmless twice.
type Rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
	Close()
}

var (
	// ErrNoRows says that the row asked for is not there.
	ErrNoRows = errors.New("store: no rows")
	// ErrUnique says that a statement met a unique constraint.
	ErrUnique = errors.New("store: already there")
)

// An Engine is one kind of database: it opens, begins, retries and classifies errors.
type Engine interface {
	// Write runs fn in a transaction and returns once it is durable. fn may be
	// run more than once, must do nothing but statements, and its error undoes
	// it. Errors of statements match ErrNoRows and ErrUnique where they apply.
	Write(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error
	// Read runs fn against committed data, seeing every Write that returned before.
	Read(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error
	// ReadRow is Read for one query of one row, without the transaction around
	// it. scan may be run more than once.
	ReadRow(ctx context.Context, scan func(Row) error, q string, args ...any) error
	// Ping says whether the database answers.
	Ping(ctx context.Context) error
	Close() error
}

// A DB is a database of either engine.
type DB struct {
	Engine
	meter meter
}

// New returns a DB on e, which must have been migrated.
func New(e Engine) *DB { return &DB{Engine: e} }

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}
