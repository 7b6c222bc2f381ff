package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/secsy-pki/secsy-pki/store"
)

// errDone says that a Tx was used after its function returned.
var errDone = errors.New("store: transaction is over")

// A conn is a connection on which statements run: *sql.Conn or *sql.Tx.
type conn interface {
	ExecContext(ctx context.Context, q string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, q string, args ...any) (*sql.Rows, error)
}

// A tx is one member of a shared transaction, or a reader. It keeps the laws of
// PostgreSQL, so that what passes here passes there: after a statement's error
// nothing more runs, and only one query is open at a time.
type tx struct {
	conn   conn
	quotes *rewriter
	// shared says that other members have statements in the same transaction.
	// SQLite rolls all of it back when a statement is interrupted, so ctx is
	// looked at between statements only.
	shared bool
	open   *rows
	err    error // the first error of a statement
}

func (t *tx) Exec(ctx context.Context, q string, args ...any) (int64, error) {
	ctx, err := t.begin(ctx, args)
	if err != nil {
		return 0, err
	}
	res, err := t.conn.ExecContext(ctx, t.quotes.rewrite(q), args...)
	if err != nil {
		return 0, t.fail(err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, t.fail(err)
	}
	return n, nil
}

func (t *tx) Query(ctx context.Context, q string, args ...any) (store.Rows, error) {
	rs, err := t.query(ctx, q, args)
	if err != nil {
		return nil, err
	}
	return rs, nil
}

func (t *tx) QueryRow(ctx context.Context, q string, args ...any) store.Row {
	rs, err := t.query(ctx, q, args)
	return row{rs, err}
}

func (t *tx) query(ctx context.Context, q string, args []any) (*rows, error) {
	ctx, err := t.begin(ctx, args)
	if err != nil {
		return nil, err
	}
	rs, err := t.conn.QueryContext(ctx, t.quotes.rewrite(q), args...) //nolint:sqlclosecheck // closed by rows.Close, at the latest by finish
	if err != nil {
		return nil, t.fail(err)
	}
	t.open = &rows{tx: t, rows: rs}
	return t.open, nil
}

// begin says whether a statement may run, and in which context.
func (t *tx) begin(ctx context.Context, args []any) (context.Context, error) {
	if t.err != nil {
		return nil, t.err
	}
	if t.open != nil {
		return nil, t.fail(store.ErrRowsOpen)
	}
	if err := ctx.Err(); err != nil {
		return nil, t.fail(err)
	}
	for i, a := range args {
		if err := checkArg(a); err != nil {
			return nil, t.fail(fmt.Errorf("parameter $%d: %w", i+1, err))
		}
	}
	if t.shared {
		return context.Background(), nil
	}
	return ctx, nil
}

func (t *tx) fail(err error) error {
	err = classify(err)
	if t.err == nil {
		t.err = err
	}
	return err
}

// finish ends the use of t and returns the error that undoes it.
func (t *tx) finish(err error) error {
	if t.open != nil {
		t.open.Close()
	}
	if err == nil {
		err = t.err
	}
	t.err = errDone
	return err
}

// checkArg refuses what the columns of the other engine would not take.
func checkArg(a any) error {
	v, err := driver.DefaultParameterConverter.ConvertValue(a)
	if err != nil {
		return err
	}
	switch v.(type) {
	case nil, int64, string, []byte:
		return nil
	}
	return fmt.Errorf("store: %T is none of the types of columns", a)
}

type rows struct {
	tx   *tx
	rows *sql.Rows
}

func (r *rows) Next() bool             { return r.rows.Next() }
func (r *rows) Scan(dest ...any) error { return classify(r.rows.Scan(dest...)) }

func (r *rows) Err() error {
	if err := r.rows.Err(); err != nil {
		return r.tx.fail(err)
	}
	return nil
}

func (r *rows) Close() {
	if r.tx.open != r {
		return
	}
	r.tx.open = nil
	if err := errors.Join(r.rows.Err(), r.rows.Close()); err != nil {
		_ = r.tx.fail(err)
	}
}

type row struct {
	rows *rows
	err  error
}

func (r row) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return store.ErrNoRows
	}
	return r.rows.Scan(dest...)
}
