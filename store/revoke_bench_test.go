package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/postgres"
	"github.com/secsy-pki/secsy-pki/store/storetest"
)

// BenchmarkRevokeAll is one part of a mass revocation. 500 of them are a hundred
// thousand certificates:
//
//	go test ./store -run '^$' -bench RevokeAll -benchtime 500x
func BenchmarkRevokeAll(b *testing.B) {
	for name, open := range map[string]func(*testing.B) *store.DB{"sqlite": openSQLite, "postgres": openPostgres} {
		b.Run(name, func(b *testing.B) {
			db := open(b)
			c := store.NewCA(db)
			const numbers = `WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < $1) `
			err := db.Write(b.Context(), func(ctx context.Context, tx store.Tx) error {
				_, err := tx.Exec(ctx, numbers+`INSERT INTO certificates (serial, id, issuer, profile, state, spki_hash, names, requester, not_before, not_after, created_at, lease_until)
					SELECT 'serial' || i, 'id' || i, 'i', 'p', 'issued', '', '[]', 'account' || (i % 10), 0, i, i, 0 FROM n`, int64(b.N*ca.MaxRevocations))
				if err == nil {
					_, err = tx.Exec(ctx, `ANALYZE certificates`) // as autovacuum does
				}
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
			next := 0
			b.ResetTimer()
			for range b.N {
				rs := make([]ca.Revocation, ca.MaxRevocations)
				for i := range rs {
					rs[i] = ca.Revocation{Serial: ca.Serial(fmt.Sprintf("serial%d", next)), Reason: ca.Superseded, At: time.Now(), Requester: ca.Requester{Actor: "operator:uid/0"}}
					next++
				}
				errs, err := c.RevokeAll(b.Context(), rs)
				if err != nil {
					b.Fatal(err)
				}
				for _, err := range errs {
					if err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(next)/b.Elapsed().Seconds(), "certificates/s")
		})
	}
}

func openPostgres(b *testing.B) *store.DB {
	b.Helper()
	e, err := postgres.Open(b.Context(), postgres.Config{URL: storetest.PostgresURL(b)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = e.Close() })
	if _, err := e.Migrate(b.Context()); err != nil {
		b.Fatal(err)
	}
	return store.New(e)
}
