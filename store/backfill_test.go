package store_test

import (
	"database/sql"
	"path/filepath"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/mattn/go-sqlite3"
	"github.com/pressly/goose/v3"

	"github.com/secsy-pki/secsy-pki/migrations"
	"github.com/secsy-pki/secsy-pki/store/storetest"
)

// What was revoked before there were numbers has one afterwards, in the order
// of time, so that who follows the changes by number misses none of it.
func TestOldRevocationsAreNumbered(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) (*sql.DB, *goose.Provider){
		"sqlite": func(t *testing.T) (*sql.DB, *goose.Provider) {
			db, err := sql.Open("sqlite3", filepath.Join(t.TempDir(), "old.db"))
			noError(t, err)
			p, err := goose.NewProvider(goose.DialectSQLite3, db, migrations.SQLite())
			noError(t, err)
			return db, p
		},
		"postgres": func(t *testing.T) (*sql.DB, *goose.Provider) {
			db, err := sql.Open("pgx", storetest.PostgresURL(t))
			noError(t, err)
			p, err := goose.NewProvider(goose.DialectPostgres, db, migrations.Postgres())
			noError(t, err)
			return db, p
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, p := open(t)
			defer db.Close()
			_, err := p.UpTo(t.Context(), 14)
			noError(t, err)
			_, err = db.ExecContext(t.Context(), `INSERT INTO certificates (serial, id, issuer, profile, state, spki_hash, names, requester,
					not_before, not_after, created_at, lease_until, revoked_at, reason)
				VALUES ('01', 'a', 'one', 'p', 'issued', '', '[]', '', 0, 0, 0, 0, 30, 4), ('02', 'b', 'one', 'p', 'abandoned', '', '[]', '', 0, 0, 0, 0, 10, 5),
					('03', 'c', 'two', 'p', 'issued', '', '[]', '', 0, 0, 0, 0, 20, 4), ('04', 'd', 'one', 'p', 'issued', '', '[]', '', 0, 0, 0, 0, 0, 0)`)
			noError(t, err)
			_, err = p.Up(t.Context())
			noError(t, err)
			for q, want := range map[string]int64{
				`SELECT revocation_seq FROM certificates WHERE serial = '01'`: 2,
				`SELECT revocation_seq FROM certificates WHERE serial = '02'`: 1,
				`SELECT revocation_seq FROM certificates WHERE serial = '03'`: 1,
				`SELECT revocation_seq FROM certificates WHERE serial = '04'`: 0,
				`SELECT seq FROM revocation_heads WHERE issuer = 'one'`:       2,
				`SELECT seq FROM revocation_heads WHERE issuer = 'two'`:       1,
			} {
				var got int64
				if err := db.QueryRowContext(t.Context(), q).Scan(&got); err != nil || got != want {
					t.Errorf("%s: %d, %v; want %d", q, got, err, want)
				}
			}
		})
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
