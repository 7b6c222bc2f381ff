package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
)

var (
	// ErrRowsOpen says that a statement was begun before the rows of the last
	// query were closed.
	ErrRowsOpen = errors.New("store: rows of the last query are still open")
	// ErrOver says that a Tx was used after its function returned.
	ErrOver = errors.New("store: the transaction is over")
)

// A Conn is a connection of an engine, with a transaction open on it. Its
// errors are classified. Parameters are nil, int64, string or []byte.
type Conn interface {
	Exec(ctx context.Context, q string, args []any) (int64, error)
	Query(ctx context.Context, q string, args []any) (Cursor, error)
}

// A Cursor is what a Conn's query found.
type Cursor interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
	Close() error
}

// A Session is the Tx that engines give away. It holds them to the same laws,
// so that what passes on one passes on the other: after a statement's error
// nothing more runs and nothing is kept, only one query is open at a time, and
// parameters are of the types of columns.
type Session struct {
	conn Conn
	open *rows
	err  error // the first error of a statement
}

// NewSession returns a Tx on c, used until Finish.
func NewSession(c Conn) *Session { return &Session{conn: c} }

// Exec implements Tx.
func (s *Session) Exec(ctx context.Context, q string, args ...any) (int64, error) {
	args, err := s.begin(ctx, args)
	if err != nil {
		return 0, err
	}
	n, err := s.conn.Exec(ctx, q, args)
	return n, s.note(err)
}

// Query implements Tx.
func (s *Session) Query(ctx context.Context, q string, args ...any) (Rows, error) {
	rs, err := s.query(ctx, q, args)
	if err != nil {
		return nil, err
	}
	return rs, nil
}

// QueryRow implements Tx.
func (s *Session) QueryRow(ctx context.Context, q string, args ...any) Row {
	rs, err := s.query(ctx, q, args)
	return row{rs, err}
}

func (s *Session) query(ctx context.Context, q string, args []any) (*rows, error) {
	args, err := s.begin(ctx, args)
	if err != nil {
		return nil, err
	}
	c, err := s.conn.Query(ctx, q, args)
	if err != nil {
		return nil, s.note(err)
	}
	s.open = &rows{session: s, cursor: c}
	return s.open, nil
}

// begin says whether a statement may run, and with which parameters.
func (s *Session) begin(ctx context.Context, args []any) ([]any, error) {
	if s.err != nil {
		return nil, s.err
	}
	if s.open != nil {
		return nil, s.note(ErrRowsOpen)
	}
	if err := ctx.Err(); err != nil {
		return nil, s.note(err)
	}
	values := make([]any, len(args))
	for i, a := range args {
		v, err := value(a)
		if err != nil {
			return nil, s.note(fmt.Errorf("parameter $%d: %w", i+1, err))
		}
		values[i] = v
	}
	return values, nil
}

// value gives a parameter one of the types of columns.
func value(a any) (any, error) {
	switch a.(type) {
	case nil, int64, string, []byte:
		return a, nil
	}
	switch v := reflect.ValueOf(a); {
	case v.CanInt():
		return v.Int(), nil
	case v.CanUint() && v.Uint() <= math.MaxInt64:
		return int64(v.Uint()), nil
	case v.Kind() == reflect.String:
		return v.String(), nil
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		return v.Bytes(), nil
	}
	return nil, fmt.Errorf("store: no column takes a %T, or not this one", a)
}

func (s *Session) note(err error) error {
	if s.err == nil {
		s.err = err
	}
	return err
}

// Err is the first error of a statement. It undoes the transaction, even if
// the function swallowed it.
func (s *Session) Err() error { return s.err }

// Finish ends the use of s, given what the function returned, and says whether
// the transaction is to be kept.
func (s *Session) Finish(err error) error {
	if s.open != nil {
		s.open.Close()
	}
	if err == nil {
		err = s.err
	}
	if s.err == nil {
		s.err = ErrOver
	}
	return err
}

type rows struct {
	session *Session
	cursor  Cursor
}

func (r *rows) Next() bool {
	if r.cursor.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *rows) Scan(dest ...any) error { return r.cursor.Scan(dest...) }
func (r *rows) Err() error             { return r.cursor.Err() }

func (r *rows) Close() {
	if r.session.open != r {
		return
	}
	r.session.open = nil
	_ = r.session.note(errors.Join(r.cursor.Close(), r.cursor.Err()))
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
		return ErrNoRows
	}
	return r.rows.Scan(dest...)
}
