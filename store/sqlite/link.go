package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"sync"

	"github.com/mattn/go-sqlite3"

	"github.com/secsy-pki/secsy-pki/store"
)

// A link is one connection to the database, used by one goroutine at a time.
// It is the driver's own: database/sql would convert and copy each value once
// more, and costs a lookup of one row as much as SQLite does.
type link struct {
	raw    *sqlite3.SQLiteConn
	params *rewriter
	steers map[string]*sqlite3.SQLiteStmt // statements without parameters that steer the transaction

	// The arguments of a statement and the row of the open query, of which there
	// is one at a time.
	args []driver.NamedValue
	row  []driver.Value
}

// dial opens a link, and runs pragmas on it.
func dial(path string, params *rewriter, options url.Values, pragmas ...string) (*link, error) {
	// Nobody else uses the link meanwhile.
	options.Set("_mutex", "no")
	c, err := new(sqlite3.SQLiteDriver).Open(dsn(path, options))
	if err != nil {
		return nil, classify(err)
	}
	l := &link{raw: c.(*sqlite3.SQLiteConn), params: params, steers: make(map[string]*sqlite3.SQLiteStmt)}
	for _, q := range pragmas {
		if _, err := l.raw.ExecContext(context.Background(), q, nil); err != nil {
			return nil, errors.Join(classify(err), l.close())
		}
	}
	return l, nil
}

// steer runs a statement without parameters, which is kept prepared.
func (l *link) steer(q string) error {
	stmt, ok := l.steers[q]
	if !ok {
		s, err := l.raw.Prepare(q)
		if err != nil {
			return classify(err)
		}
		stmt = s.(*sqlite3.SQLiteStmt)
		l.steers[q] = stmt
	}
	_, err := stmt.ExecContext(context.Background(), nil)
	return classify(err)
}

// Exec implements store.Conn.
func (l *link) Exec(ctx context.Context, q string, args []any) (int64, error) {
	res, err := l.raw.ExecContext(ctx, l.params.rewrite(q), l.named(args))
	if err != nil {
		return 0, classify(err)
	}
	return res.RowsAffected()
}

// Query implements store.Conn.
func (l *link) Query(ctx context.Context, q string, args []any) (store.Cursor, error) {
	rows, err := l.raw.QueryContext(ctx, l.params.rewrite(q), l.named(args))
	if err != nil {
		return nil, classify(err)
	}
	n := len(rows.Columns())
	if cap(l.row) < n {
		l.row = make([]driver.Value, n)
	}
	return &cursor{rows: rows, row: l.row[:n]}, nil
}

func (l *link) named(args []any) []driver.NamedValue {
	l.args = l.args[:0]
	for i, a := range args {
		l.args = append(l.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return l.args
}

// close gives the connection back to SQLite, which rolls back what is open.
func (l *link) close() error {
	var err error
	for _, s := range l.steers {
		err = errors.Join(err, s.Close())
	}
	return errors.Join(err, l.raw.Close())
}

// A cursor is the store.Cursor of a link.
type cursor struct {
	rows driver.Rows
	row  []driver.Value
	err  error
}

func (c *cursor) Next() bool {
	if c.err != nil {
		return false
	}
	c.err = c.rows.Next(c.row)
	return c.err == nil
}

func (c *cursor) Err() error {
	if errors.Is(c.err, io.EOF) {
		return nil
	}
	return classify(c.err)
}

func (c *cursor) Close() error { return classify(c.rows.Close()) }

func (c *cursor) Scan(dest ...any) error {
	if len(dest) != len(c.row) {
		return fmt.Errorf("%d columns do not go into %d places", len(c.row), len(dest))
	}
	for i, d := range dest {
		if !put(d, c.row[i]) {
			return fmt.Errorf("column %d: a %T does not go into a %T", i, c.row[i], d)
		}
	}
	return nil
}

// put copies a value of a column. What it does not do PostgreSQL does not do
// either, or nobody needs.
func put(dest any, v driver.Value) bool {
	var ok bool
	switch d := dest.(type) {
	case *string:
		*d, ok = v.(string)
	case *int64:
		*d, ok = v.(int64)
	case *int:
		var n int64
		n, ok = v.(int64)
		*d = int(n)
	case *[]byte:
		*d, ok = v.([]byte)
		ok = ok || v == nil
	}
	return ok
}

// A pool holds the links that only read.
type pool struct {
	dial  func() (*link, error)
	seats chan struct{} // holds one for each link in use

	mu   sync.Mutex // guards idle
	idle []*link    // the last is the warmest
}

func (p *pool) borrow(ctx context.Context) (*link, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	select {
	case p.seats <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting to read: %w", context.Cause(ctx))
	}
	if l := p.pop(); l != nil {
		return l, nil
	}
	l, err := p.dial()
	if err != nil {
		<-p.seats
	}
	return l, err
}

func (p *pool) pop() *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle) - 1
	if n < 0 {
		return nil
	}
	l := p.idle[n]
	p.idle[n], p.idle = nil, p.idle[:n]
	return l
}

func (p *pool) giveBack(l *link) {
	p.mu.Lock()
	p.idle = append(p.idle, l)
	p.mu.Unlock()
	<-p.seats
}

// drop closes a borrowed link that is not to be used again.
func (p *pool) drop(l *link) error {
	defer func() { <-p.seats }()
	return l.close()
}

// close closes the links, none of which is in use any more.
func (p *pool) close() (err error) {
	for l := p.pop(); l != nil; l = p.pop() {
		err = errors.Join(err, l.close())
	}
	return err
}
