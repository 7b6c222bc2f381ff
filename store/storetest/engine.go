package storetest

import (
	"context"
	"testing"

	"github.com/secsy-pki/secsy-pki/store"
)

// Engine is what every engine promises, whatever is stored in it.
func Engine(t *testing.T, open func(t *testing.T) *store.DB) {
	t.Run("ReadSeesWhatWriteReturned", func(t *testing.T) {
		t.Parallel()
		db := open(t)
		ctx := t.Context()
		err := db.Write(ctx, func(ctx context.Context, tx store.Tx) error {
			if _, err := tx.Exec(ctx, `CREATE TABLE laws (id TEXT PRIMARY KEY, n BIGINT NOT NULL)`); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `INSERT INTO laws (n, id) VALUES ($2, $1)`, "a", 7)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		var n int64
		err = db.Read(ctx, func(ctx context.Context, tx store.Tx) error {
			return tx.QueryRow(ctx, `SELECT n FROM laws WHERE id = $1`, "a").Scan(&n)
		})
		if err != nil || n != 7 {
			t.Fatalf("got %d, %v; want 7", n, err)
		}
	})
}
