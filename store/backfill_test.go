package store_test

import (
	"bytes"
	"database/sql"
	"path/filepath"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/mattn/go-sqlite3"
	"github.com/pressly/goose/v3"

	"github.com/secsy-pki/secsy-pki/migrations"
	"github.com/secsy-pki/secsy-pki/store/storetest"
)

// oldDatabases opens an empty database of each engine, to be migrated step by step.
var oldDatabases = map[string]func(t *testing.T) (*sql.DB, *goose.Provider){
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
}

// What was revoked before there were numbers has one afterwards, in the order
// of time, so that who follows the changes by number misses none of it.
func TestOldRevocationsAreNumbered(t *testing.T) {
	t.Parallel()
	for name, open := range oldDatabases {
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

// A CRL that was one value is in pieces afterwards, and the same.
func TestOldCRLsAreCutIntoPieces(t *testing.T) {
	t.Parallel()
	for name, open := range oldDatabases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, p := open(t)
			defer db.Close()
			_, err := p.UpTo(t.Context(), 16)
			noError(t, err)
			content := make([]byte, 2<<20+7)
			for i := range content {
				content[i] = byte(i >> 9)
			}
			for number, n := range []int{0, 1, 1 << 20, len(content)} {
				_, err = db.ExecContext(t.Context(), `INSERT INTO crls (issuer, number, this_update, next_update, entries, revocations, compromises, der)
					VALUES ('one', $1, 0, 0, 0, 0, 0, $2)`, number, content[:n])
				noError(t, err)
			}
			_, err = p.Up(t.Context())
			noError(t, err)
			for number, n := range []int{0, 1, 1 << 20, len(content)} {
				var octets int
				err := db.QueryRowContext(t.Context(), `SELECT b.octets FROM crls l JOIN crl_bodies b ON b.id = l.body
					WHERE l.number = $1 AND b.octets = l.octets AND b.published = 1`, number).Scan(&octets)
				if got := pieces(t, db, number); err != nil || octets != n || !bytes.Equal(got, content[:n]) {
					t.Errorf("CRL %d of %d octets: %d, in pieces %d, %v", number, n, octets, len(got), err)
				}
			}
		})
	}
}

// pieces puts a CRL together again.
func pieces(t *testing.T, db *sql.DB, number int) (all []byte) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT k.octets FROM crls l JOIN crl_chunks k ON k.body = l.body WHERE l.number = $1 ORDER BY k.seq`, number)
	noError(t, err)
	defer rows.Close()
	for rows.Next() {
		var piece []byte
		noError(t, rows.Scan(&piece))
		if len(piece) > 1<<20 {
			t.Errorf("a piece of %d octets", len(piece))
		}
		all = append(all, piece...)
	}
	noError(t, rows.Err())
	return all
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
