package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/secsy-pki/secsy-pki/store"
)

// A runner runs statements: a transaction, or the pool, each in one of its own.
type runner interface {
	Exec(ctx context.Context, q string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, q string, args ...any) (pgx.Rows, error)
}

// A conn is the store.Conn of a runner.
type conn struct{ tx runner }

func (c conn) Exec(ctx context.Context, q string, args []any) (int64, error) {
	tag, err := c.tx.Exec(ctx, q, args...)
	if err != nil {
		return 0, classify(err)
	}
	return tag.RowsAffected(), nil
}

func (c conn) Query(ctx context.Context, q string, args []any) (store.Cursor, error) {
	rows, err := c.tx.Query(ctx, q, args...)
	if err != nil {
		return nil, classify(err)
	}
	return cursor{rows}, nil
}

type cursor struct{ rows pgx.Rows }

func (c cursor) Next() bool             { return c.rows.Next() }
func (c cursor) Scan(dest ...any) error { return classify(c.rows.Scan(dest...)) }
func (c cursor) Err() error             { return classify(c.rows.Err()) }

func (c cursor) Close() error {
	c.rows.Close()
	return nil
}
