package sqlite

import (
	"context"
	"database/sql/driver"
	"net/url"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/mattn/go-sqlite3"
)

func dialTest(t testing.TB) *link {
	t.Helper()
	l, err := dial(filepath.Join(t.TempDir(), "test.db"), new(rewriter), url.Values{"mode": {"rwc"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	})
	for _, q := range []string{
		`CREATE TABLE orders (id TEXT NOT NULL PRIMARY KEY, account TEXT NOT NULL, status TEXT NOT NULL, tries BIGINT NOT NULL, csr BLOB)`,
		`CREATE INDEX orders_open ON orders (account) WHERE status = 'open'`,
		`INSERT INTO orders VALUES ('an id of some length', 'an account of some length', 'open', 1, x'0102')`,
	} {
		if _, err := l.Exec(context.Background(), q, nil); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// SQLite looks at what is bound to some parameters when it plans a statement,
// and plans it anew for the next value. We always ask for what is found by its
// key, whatever the value.
func TestStatementsAreCompiledOnce(t *testing.T) {
	t.Parallel()
	l := dialTest(t)
	hidden, plainly := int64(0), int64(0)
	for _, q := range []string{
		`SELECT id FROM orders WHERE account = $1 AND tries = $2 AND status = 'open' LIMIT $3`,
		`SELECT id FROM orders WHERE status = $1 AND tries <> $2 OR account LIKE $1 LIMIT $3`,
	} {
		hidden += compiledAgain(t, l.raw, l.params.rewrite(q))
		plainly += compiledAgain(t, l.raw, plain(q))
	}
	if hidden != 0 {
		t.Errorf("compiled again %d times", hidden)
	}
	if plainly == 0 {
		t.Error("SQLite compiles them once by itself: nothing is to be hidden any more")
	}
}

// plain writes parameters as a rewriter would that hides nothing.
func plain(q string) string {
	out := []byte(q)
	for i, c := range out {
		if c == '$' {
			out[i] = '?'
		}
	}
	return string(out)
}

// compiledAgain runs a prepared q some times, and looks at the driver's copy of
// SQLite's own count.
func compiledAgain(t *testing.T, c *sqlite3.SQLiteConn, q string) int64 {
	t.Helper()
	stmt, err := c.Prepare(q)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stmt.Close() }()
	for n := range int64(5) {
		rows, err := stmt.(*sqlite3.SQLiteStmt).QueryContext(context.Background(), []driver.NamedValue{
			{Ordinal: 1, Value: "x"}, {Ordinal: 2, Value: n}, {Ordinal: 3, Value: n + 3},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := rows.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return reflect.ValueOf(stmt).Elem().FieldByName("repreps").Int()
}

func TestValuesGoOnlyWhereTheyFit(t *testing.T) {
	t.Parallel()
	var (
		s   string
		n   int64
		i   int
		raw = []byte{1}
	)
	for _, fits := range []struct {
		dest any
		v    driver.Value
		want bool
	}{
		{&s, "a", true},
		{&n, int64(1), true},
		{&i, int64(1), true},
		{&raw, []byte{2}, true},
		{&raw, nil, true},
		{&s, nil, false},
		{&n, nil, false},
		{&s, int64(1), false},
		{&s, []byte("a"), false},
		{&n, "1", false},
		{&n, 1.5, false},
		{&raw, "a", false},
		{s, "a", false},
		{new(bool), int64(1), false},
	} {
		if got := put(fits.dest, fits.v); got != fits.want {
			t.Errorf("%T into %T: %t, want %t", fits.v, fits.dest, got, fits.want)
		}
	}
	if raw != nil {
		t.Errorf("NULL left %v in its place", raw)
	}
}

// BenchmarkReadRow is a row of five columns by its key, on one connection.
func BenchmarkReadRow(b *testing.B) {
	l, ctx := dialTest(b), context.WithoutCancel(b.Context())
	var (
		id, account, status string
		tries               int64
		csr                 []byte
	)
	args := []any{"an id of some length", "an account of some length"}
	b.ReportAllocs()
	for b.Loop() {
		rows, err := l.Query(ctx, `SELECT id, account, status, tries, csr FROM orders WHERE id = $1 AND account = $2`, args)
		if err != nil {
			b.Fatal(err)
		}
		if !rows.Next() {
			b.Fatal(rows.Err())
		}
		if err := rows.Scan(&id, &account, &status, &tries, &csr); err != nil {
			b.Fatal(err)
		}
		if err := rows.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
