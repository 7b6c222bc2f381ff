package sqlite

import (
	"context"

	"github.com/secsy-pki/secsy-pki/store"
)

// A sharedConn is the store.Conn of a member. SQLite rolls back the whole
// transaction, and with it the other members, when a statement is interrupted:
// so a statement that has begun runs to its end.
type sharedConn struct{ *link }

func (c sharedConn) Exec(_ context.Context, q string, args []any) (int64, error) {
	return c.link.Exec(context.Background(), q, args)
}

func (c sharedConn) Query(_ context.Context, q string, args []any) (store.Cursor, error) {
	return c.link.Query(context.Background(), q, args)
}
