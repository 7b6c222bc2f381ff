package store

import (
	"context"
	"sync/atomic"
)

// A Stat is a reading of what a database was asked.
type Stat struct {
	Reads      uint64 // functions that only read, and single queries
	Writes     uint64 // functions whose writing was kept
	Commits    uint64 // transactions that they were kept in; several may share one, and each waits for the disk
	Statements uint64 // of both kinds, background work included
}

// meter counts for a DB.
type meter struct{ reads, writes, statements atomic.Uint64 }

// Stat returns the counters.
func (db *DB) Stat() Stat {
	s := Stat{Reads: db.meter.reads.Load(), Writes: db.meter.writes.Load(), Statements: db.meter.statements.Load()}
	s.Commits = s.Writes
	if e, ok := db.Engine.(interface{ Commits() uint64 }); ok {
		s.Commits = e.Commits()
	}
	return s
}

// Write is the engine's, counted.
func (db *DB) Write(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error {
	err := db.Engine.Write(ctx, func(ctx context.Context, tx Tx) error { return fn(ctx, metered{tx, &db.meter}) })
	if err == nil {
		db.meter.writes.Add(1)
	}
	return err
}

// Read is the engine's, counted.
func (db *DB) Read(ctx context.Context, fn func(ctx context.Context, tx Tx) error) error {
	db.meter.reads.Add(1)
	return db.Engine.Read(ctx, func(ctx context.Context, tx Tx) error { return fn(ctx, metered{tx, &db.meter}) })
}

// ReadRow is the engine's, counted.
func (db *DB) ReadRow(ctx context.Context, scan func(Row) error, q string, args ...any) error {
	db.meter.reads.Add(1)
	db.meter.statements.Add(1)
	return db.Engine.ReadRow(ctx, scan, q, args...)
}

type metered struct {
	Tx
	*meter
}

func (m metered) Exec(ctx context.Context, q string, args ...any) (int64, error) {
	m.statements.Add(1)
	return m.Tx.Exec(ctx, q, args...)
}

func (m metered) QueryRow(ctx context.Context, q string, args ...any) Row {
	m.statements.Add(1)
	return m.Tx.QueryRow(ctx, q, args...)
}

func (m metered) Query(ctx context.Context, q string, args ...any) (Rows, error) {
	m.statements.Add(1)
	return m.Tx.Query(ctx, q, args...)
}
