package sqlite

import (
	"context"
	"database/sql"

	"github.com/secsy-pki/secsy-pki/store"
)

// A runner runs statements: *sql.Conn or *sql.Tx.
type runner interface {
	ExecContext(ctx context.Context, q string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, q string, args ...any) (*sql.Rows, error)
}

// A conn is the store.Conn of a reader.
type conn struct {
	runner
	params *rewriter
}

func (c conn) Exec(ctx context.Context, q string, args []any) (int64, error) {
	res, err := c.ExecContext(ctx, c.params.rewrite(q), args...)
	if err != nil {
		return 0, classify(err)
	}
	return res.RowsAffected()
}

func (c conn) Query(ctx context.Context, q string, args []any) (store.Cursor, error) {
	rows, err := c.QueryContext(ctx, c.params.rewrite(q), args...) //nolint:rowserrcheck // the session asks the cursor
	if err != nil {
		return nil, classify(err)
	}
	return cursor{rows}, nil
}

// A sharedConn is the store.Conn of a member. SQLite rolls back the whole
// transaction, and with it the other members, when a statement is interrupted:
// so a statement that has begun runs to its end.
type sharedConn struct{ conn }

func (c sharedConn) Exec(_ context.Context, q string, args []any) (int64, error) {
	return c.conn.Exec(context.Background(), q, args)
}

func (c sharedConn) Query(_ context.Context, q string, args []any) (store.Cursor, error) {
	return c.conn.Query(context.Background(), q, args)
}

type cursor struct{ rows *sql.Rows }

func (c cursor) Next() bool             { return c.rows.Next() }
func (c cursor) Scan(dest ...any) error { return classify(c.rows.Scan(dest...)) }
func (c cursor) Err() error             { return classify(c.rows.Err()) }
func (c cursor) Close() error           { return classify(c.rows.Close()) }
