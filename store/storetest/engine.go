package storetest

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/store"
)

// Engine is what every engine promises, whatever is stored in it.
func Engine(t *testing.T, open func(t *testing.T) *store.DB) {
	for _, law := range []struct {
		name string
		run  func(t *testing.T, db *store.DB)
	}{
		{"ReadSeesWhatWriteReturned", readSeesWhatWriteReturned},
		{"ReadSeesOneMoment", readSeesOneMoment},
		{"ReadCannotWrite", readCannotWrite},
		{"ErrorUndoesAll", errorUndoesAll},
		{"SwallowedErrorUndoesAll", swallowedErrorUndoesAll},
		{"PanicUndoesAllAndReachesItsCaller", panicUndoesAll},
		{"EndedGoroutineUndoesAll", endedGoroutineUndoesAll},
		{"EndedContextUndoesAll", endedContextUndoesAll},
		{"EndedContextRunsNothing", endedContextRunsNothing},
		{"ContextCarriesTheCallersValues", contextCarriesValues},
		{"TransactionInsideOfAnotherIsRefused", nestedIsRefused},
		{"OneQueryIsOpenAtATime", oneQueryAtATime},
		{"OneRowIsReadByItself", oneRow},
		{"RowsLeftOpenAreClosed", rowsLeftOpenAreClosed},
		{"TxIsOverWhenItsFunctionReturned", txIsOver},
		{"UniqueAndNoRowsAreTold", uniqueAndNoRowsAreTold},
		{"ValuesComeBackAsTheyWere", valuesComeBack},
		{"ForeignTypesAreRefused", foreignTypesAreRefused},
		{"ParametersGoByNumber", parametersGoByNumber},
		{"CountsAreOfChangedRows", countsAreOfChangedRows},
		{"CompareAndSwapLosesNothing", compareAndSwapLosesNothing},
		{"FailingWritersDoNotHarmOthers", failingWritersDoNotHarmOthers},
		{"CloseWaits", closeWaits},
		{"PingAnswers", pingAnswers},
	} {
		t.Run(law.name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			change(t, db, `CREATE TABLE laws (id TEXT PRIMARY KEY, n BIGINT NOT NULL, raw BYTEA, UNIQUE (n))`)
			law.run(t, db)
		})
	}
}

// change runs one statement in a transaction of its own.
func change(t *testing.T, db *store.DB, q string, args ...any) (changed int64) {
	t.Helper()
	err := db.Write(t.Context(), func(ctx context.Context, tx store.Tx) (err error) {
		changed, err = tx.Exec(ctx, q, args...)
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	return changed
}

// number reads one number.
func number(t *testing.T, db *store.DB, q string, args ...any) (n int64) {
	t.Helper()
	err := db.Read(t.Context(), func(ctx context.Context, tx store.Tx) error {
		return tx.QueryRow(ctx, q, args...).Scan(&n)
	})
	if err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	return n
}

func insert(ctx context.Context, tx store.Tx, id string, n int64) error {
	_, err := tx.Exec(ctx, `INSERT INTO laws (id, n) VALUES ($1, $2)`, id, n)
	return err
}

func wantCount(t *testing.T, db *store.DB, want int64) {
	t.Helper()
	if got := number(t, db, `SELECT count(*) FROM laws`); got != want {
		t.Errorf("%d rows are there, want %d", got, want)
	}
}

func readSeesWhatWriteReturned(t *testing.T, db *store.DB) {
	for n := range int64(50) {
		err := db.Write(t.Context(), func(ctx context.Context, tx store.Tx) error { return insert(ctx, tx, string(rune('A'+n)), n) })
		if err != nil {
			t.Fatal(err)
		}
		if got := number(t, db, `SELECT max(n) FROM laws`); got != n {
			t.Fatalf("read %d after writing %d", got, n)
		}
	}
}

func readSeesOneMoment(t *testing.T, db *store.DB) {
	err := db.Read(t.Context(), func(ctx context.Context, tx store.Tx) error {
		for range 2 {
			var n int64
			if err := tx.QueryRow(ctx, `SELECT count(*) FROM laws`).Scan(&n); err != nil {
				return err
			}
			if n != 0 {
				t.Errorf("a write that came later is seen")
			}
			change(t, db, `INSERT INTO laws (id, n) VALUES ('later', 1) ON CONFLICT (id) DO NOTHING`)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	wantCount(t, db, 1)
}

func readCannotWrite(t *testing.T, db *store.DB) {
	err := db.Read(t.Context(), func(ctx context.Context, tx store.Tx) error { return insert(ctx, tx, "a", 1) })
	if err == nil {
		t.Error("a read wrote")
	}
	wantCount(t, db, 0)
}

func errorUndoesAll(t *testing.T, db *store.DB) {
	mine := errors.New("changed my mind")
	err := db.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
		return errors.Join(insert(ctx, tx, "a", 1), insert(ctx, tx, "b", 2), mine)
	})
	if !errors.Is(err, mine) {
		t.Errorf("got %v, want the function's own error", err)
	}
	wantCount(t, db, 0)
}

func swallowedErrorUndoesAll(t *testing.T, db *store.DB) {
	err := db.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
		if err := insert(ctx, tx, "a", 1); err != nil {
			return err
		}
		_ = insert(ctx, tx, "a", 2) // fails
		if err := insert(ctx, tx, "c", 3); !errors.Is(err, store.ErrUnique) {
			t.Errorf("a statement after a failed one: got %v, want its error", err)
		}
		return nil
	})
	if !errors.Is(err, store.ErrUnique) {
		t.Errorf("got %v, want the error of the statement that failed", err)
	}
	wantCount(t, db, 0)
}

func panicUndoesAll(t *testing.T, db *store.DB) {
	func() {
		defer func() {
			if got := recover(); got != "boom" {
				t.Errorf("the caller recovered %v, want what the function panicked with", got)
			}
		}()
		_ = db.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
			if err := insert(ctx, tx, "a", 1); err != nil {
				return err
			}
			panic("boom")
		})
	}()
	wantCount(t, db, 0)
	change(t, db, `INSERT INTO laws (id, n) VALUES ('next', 1)`)
}

// Tests call FailNow in transactions, which ends their goroutine.
func endedGoroutineUndoesAll(t *testing.T, db *store.DB) {
	ended := make(chan bool)
	go func() {
		returned := false
		defer func() { ended <- !returned }()
		_ = db.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
			if err := insert(ctx, tx, "a", 1); err != nil {
				return err
			}
			runtime.Goexit()
			return nil
		})
		returned = true
	}()
	if !<-ended {
		t.Error("Write returned, though its function ended the goroutine")
	}
	wantCount(t, db, 0)
	change(t, db, `INSERT INTO laws (id, n) VALUES ('next', 1)`)
}

func endedContextUndoesAll(t *testing.T, db *store.DB) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := db.Write(ctx, func(ctx context.Context, tx store.Tx) error {
		if err := insert(ctx, tx, "a", 1); err != nil {
			return err
		}
		cancel()
		return insert(ctx, tx, "b", 2)
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	wantCount(t, db, 0)
}

func endedContextRunsNothing(t *testing.T, db *store.DB) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	fn := func(context.Context, store.Tx) error {
		t.Error("the function ran")
		return nil
	}
	if err := db.Write(ctx, fn); !errors.Is(err, context.Canceled) {
		t.Errorf("Write: got %v, want context.Canceled", err)
	}
	if err := db.Read(ctx, fn); !errors.Is(err, context.Canceled) {
		t.Errorf("Read: got %v, want context.Canceled", err)
	}
}

func contextCarriesValues(t *testing.T, db *store.DB) {
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "mine")
	fn := func(ctx context.Context, _ store.Tx) error {
		if ctx.Value(key{}) != "mine" {
			t.Error("the value is lost")
		}
		return nil
	}
	if err := errors.Join(db.Write(ctx, fn), db.Read(ctx, fn)); err != nil {
		t.Error(err)
	}
}

func nestedIsRefused(t *testing.T, db *store.DB) {
	inner := func(context.Context, store.Tx) error { return nil }
	outer := func(ctx context.Context, _ store.Tx) error {
		if err := db.Write(ctx, inner); !errors.Is(err, store.ErrNested) {
			t.Errorf("Write inside: got %v, want ErrNested", err)
		}
		if err := db.Read(ctx, inner); !errors.Is(err, store.ErrNested) {
			t.Errorf("Read inside: got %v, want ErrNested", err)
		}
		if err := db.ReadRow(ctx, func(store.Row) error { return nil }, `SELECT 1`); !errors.Is(err, store.ErrNested) {
			t.Errorf("ReadRow inside: got %v, want ErrNested", err)
		}
		return nil
	}
	if err := errors.Join(db.Write(t.Context(), outer), db.Read(t.Context(), outer)); err != nil {
		t.Error(err)
	}
}

// A single query sees what was written before it, says when there is no row,
// and gives its connection back whatever its function does.
func oneRow(t *testing.T, db *store.DB) {
	var n int64
	scan := func(r store.Row) error { return r.Scan(&n) }
	read := func() error { return db.ReadRow(t.Context(), scan, `SELECT n FROM laws WHERE id = $1`, "a") }
	if err := read(); !errors.Is(err, store.ErrNoRows) {
		t.Errorf("no row: %v", err)
	}
	change(t, db, `INSERT INTO laws (id, n) VALUES ('a', 1), ('b', 2)`)
	for range 100 { // more than there are connections
		if err := db.ReadRow(t.Context(), func(store.Row) error { return nil }, `SELECT n FROM laws`); err != nil {
			t.Fatal(err)
		}
		func() {
			defer func() { _ = recover() }()
			_ = db.ReadRow(t.Context(), func(store.Row) error { panic("at the row") }, `SELECT n FROM laws`)
		}()
		if err := read(); err != nil || n != 1 {
			t.Fatalf("n is %d: %v", n, err)
		}
	}
	change(t, db, `DELETE FROM laws WHERE id = 'b'`) // n is unique
	for i := range int64(50) {
		change(t, db, `UPDATE laws SET n = n + 1 WHERE id = 'a'`)
		if err := read(); err != nil || n != i+2 {
			t.Fatalf("n is %d after %d writes: %v", n, i+1, err)
		}
	}
	if err := db.ReadRow(t.Context(), scan, `SELECT n FROM nowhere`); err == nil {
		t.Error("a table that is not there was read")
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := db.ReadRow(gone, scan, `SELECT n FROM laws`); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

func oneQueryAtATime(t *testing.T, db *store.DB) {
	change(t, db, `INSERT INTO laws (id, n) VALUES ('a', 1), ('b', 2)`)
	err := db.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
		rows, err := tx.Query(ctx, `SELECT n FROM laws`)
		if err != nil {
			return err
		}
		defer rows.Close()
		rows.Next()
		return insert(ctx, tx, "c", 3)
	})
	if !errors.Is(err, store.ErrRowsOpen) {
		t.Errorf("got %v, want ErrRowsOpen", err)
	}
	err = db.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
		rows, err := tx.Query(ctx, `SELECT n FROM laws`)
		if err != nil {
			return err
		}
		for rows.Next() {
		} // read to their end, they are closed
		return errors.Join(rows.Err(), insert(ctx, tx, "c", 3))
	})
	if err != nil {
		t.Error(err)
	}
	wantCount(t, db, 3)
}

func rowsLeftOpenAreClosed(t *testing.T, db *store.DB) {
	change(t, db, `INSERT INTO laws (id, n) VALUES ('a', 1), ('b', 2)`)
	for range 100 { // more than a pool has connections
		err := db.Read(t.Context(), func(ctx context.Context, tx store.Tx) error {
			tx.QueryRow(ctx, `SELECT n FROM laws`)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	err := db.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
		rows, err := tx.Query(ctx, `UPDATE laws SET n = n + 10 RETURNING n`)
		if err != nil {
			return err
		}
		rows.Next()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := number(t, db, `SELECT sum(n) FROM laws`); got != 23 {
		t.Errorf("the sum is %d, want 23: the update is whole, however much of it was read", got)
	}
}

func txIsOver(t *testing.T, db *store.DB) {
	var kept store.Tx
	fn := func(_ context.Context, tx store.Tx) error {
		kept = tx
		return nil
	}
	for name, run := range map[string]func(context.Context, func(context.Context, store.Tx) error) error{"Write": db.Write, "Read": db.Read} {
		if err := run(t.Context(), fn); err != nil {
			t.Fatal(err)
		}
		if _, err := kept.Exec(t.Context(), `DELETE FROM laws`); !errors.Is(err, store.ErrOver) {
			t.Errorf("Exec after %s: got %v, want ErrOver", name, err)
		}
		var n int64
		if err := kept.QueryRow(t.Context(), `SELECT 1`).Scan(&n); !errors.Is(err, store.ErrOver) {
			t.Errorf("QueryRow after %s: got %v, want ErrOver", name, err)
		}
	}
}

func uniqueAndNoRowsAreTold(t *testing.T, db *store.DB) {
	change(t, db, `INSERT INTO laws (id, n) VALUES ('a', 1)`)
	for _, c := range []struct {
		name, q string
		unique  bool
	}{
		{"primary key", `INSERT INTO laws (id, n) VALUES ('a', 2)`, true},
		{"unique", `INSERT INTO laws (id, n) VALUES ('b', 1)`, true},
		{"returning", `INSERT INTO laws (id, n) VALUES ('a', 2) RETURNING n`, true},
		{"not null", `INSERT INTO laws (id) VALUES ('b')`, false},
		{"no table", `INSERT INTO elsewhere (id) VALUES ('b')`, false},
	} {
		for way, run := range map[string]func(context.Context, store.Tx) error{
			"Exec": func(ctx context.Context, tx store.Tx) error {
				_, err := tx.Exec(ctx, c.q)
				return err
			},
			"QueryRow": func(ctx context.Context, tx store.Tx) error {
				var n int64
				return tx.QueryRow(ctx, c.q).Scan(&n)
			},
		} {
			err := db.Write(t.Context(), run)
			if err == nil || errors.Is(err, store.ErrUnique) != c.unique {
				t.Errorf("%s by %s: got %v; want ErrUnique: %v", c.name, way, err, c.unique)
			}
		}
	}
	err := db.Read(t.Context(), func(ctx context.Context, tx store.Tx) error {
		var n int64
		err := tx.QueryRow(ctx, `SELECT n FROM laws WHERE id = $1`, "nobody").Scan(&n)
		if !errors.Is(err, store.ErrNoRows) {
			t.Errorf("got %v, want ErrNoRows", err)
		}
		// It is an answer, so the transaction goes on.
		return tx.QueryRow(ctx, `SELECT n FROM laws WHERE id = $1`, "a").Scan(&n)
	})
	if err != nil {
		t.Error(err)
	}
}

func valuesComeBack(t *testing.T, db *store.DB) {
	type text string
	big := bytes.Repeat([]byte{0, 1, 0xff, '\''}, 1<<20)
	for i, c := range []struct {
		n      any
		want   int64
		id     any
		wantID string
		raw    []byte
	}{
		{int64(0), 0, "zero", "zero", nil},
		{int64(-1 << 63), -1 << 63, "least", "least", []byte{}},
		{int64(1<<63 - 1), 1<<63 - 1, "", "", []byte{0}},
		{int(7), 7, text("named"), "named", []byte("text")},
		{uint32(1<<32 - 1), 1<<32 - 1, "ünïcode ☃ $1 ?", "ünïcode ☃ $1 ?", big},
	} {
		change(t, db, `INSERT INTO laws (id, n, raw) VALUES ($1, $2, $3)`, c.id, c.n, c.raw)
		var id string
		var n int64
		var raw []byte
		err := db.Read(t.Context(), func(ctx context.Context, tx store.Tx) error {
			return tx.QueryRow(ctx, `SELECT id, n, raw FROM laws WHERE id = $1`, c.id).Scan(&id, &n, &raw)
		})
		if err != nil {
			t.Errorf("row %d: %v", i, err)
		}
		if id != c.wantID || n != c.want || !bytes.Equal(raw, c.raw) || (raw == nil) != (c.raw == nil) {
			t.Errorf("row %d: got %q, %d, %d bytes (nil: %v)", i, id, n, len(raw), raw == nil)
		}
	}
	if got := number(t, db, `SELECT count(*) FROM laws WHERE raw IS NULL`); got != 1 {
		t.Errorf("%d rows are NULL, want the one of the nil slice", got)
	}
}

func foreignTypesAreRefused(t *testing.T, db *store.DB) {
	for _, v := range []any{true, 1.5, time.Now(), []string{"a"}, struct{}{}, uint64(1 << 63)} {
		err := db.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO laws (id, n) VALUES ('a', $1)`, v)
			return err
		})
		if err == nil {
			t.Errorf("a %T was stored", v)
		}
	}
}

func parametersGoByNumber(t *testing.T, db *store.DB) {
	change(t, db, `INSERT INTO laws (n, id) VALUES ($2, $1)`, "second $2", int64(5))
	const q = `SELECT n FROM laws /* not $3 */ WHERE n = $2 AND id = $1 AND n = $2 AND id <> '$3' -- nor $4`
	if got := number(t, db, q, "second $2", int64(5)); got != 5 {
		t.Errorf("got %d, want 5", got)
	}
	const many = `INSERT INTO laws (id, n) VALUES ($1, $2), ($3, $4), ($5, $6), ($7, $8), ($9, $10), ($11, $12)`
	change(t, db, many, "a", int64(11), "b", int64(12), "c", int64(13), "d", int64(14), "e", int64(15), "f", int64(16))
	if got := number(t, db, `SELECT n FROM laws WHERE id = 'f'`); got != 16 {
		t.Errorf("the last of twelve parameters is %d, want 16", got)
	}
}

func countsAreOfChangedRows(t *testing.T, db *store.DB) {
	for i, c := range []struct {
		q    string
		want int64
	}{
		{`INSERT INTO laws (id, n) VALUES ('a', 1), ('b', 2)`, 2},
		{`INSERT INTO laws (id, n) VALUES ('a', 1) ON CONFLICT DO NOTHING`, 0},
		{`INSERT INTO laws (id, n) VALUES ('a', 9) ON CONFLICT (id) DO NOTHING`, 0},
		{`INSERT INTO laws (id, n) VALUES ('a', 9), ('c', 3) ON CONFLICT (id) DO NOTHING`, 1},
		{`INSERT INTO laws (id, n) VALUES ('a', 9) ON CONFLICT (id) DO UPDATE SET n = excluded.n`, 1},
		{`INSERT INTO laws (id, n) VALUES ('a', 8) ON CONFLICT (id) DO UPDATE SET n = excluded.n WHERE laws.n < excluded.n`, 0},
		{`UPDATE laws SET n = n WHERE id = 'a'`, 1},
		{`UPDATE laws SET n = 4 WHERE id = 'nobody'`, 0},
		{`DELETE FROM laws WHERE id IN ('a', 'b')`, 2},
		{`DELETE FROM laws WHERE id IN ('a', 'b')`, 0},
	} {
		if got := change(t, db, c.q); got != c.want {
			t.Errorf("statement %d changed %d rows, want %d: %s", i, got, c.want, c.q)
		}
	}
	err := db.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
		rows, err := tx.Query(ctx, `UPDATE laws SET n = n * 10 RETURNING id, n`)
		if err != nil {
			return err
		}
		defer rows.Close()
		var got []int64
		for rows.Next() {
			var id string
			var n int64
			if err := rows.Scan(&id, &n); err != nil {
				return err
			}
			got = append(got, n)
		}
		if !slices.Equal(got, []int64{30}) {
			t.Errorf("RETURNING gave %v, want [30]", got)
		}
		return rows.Err()
	})
	if err != nil {
		t.Error(err)
	}
}

func compareAndSwapLosesNothing(t *testing.T, db *store.DB) {
	change(t, db, `INSERT INTO laws (id, n) VALUES ('counter', 0)`)
	const writers, each = 64, 4
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for range each {
				if err := increment(t.Context(), db); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got := number(t, db, `SELECT n FROM laws WHERE id = 'counter'`); got != writers*each {
		t.Errorf("the counter is at %d, want %d", got, writers*each)
	}
}

// increment swaps the counter for the next number until nobody came between.
func increment(ctx context.Context, db *store.DB) error {
	for {
		won := false
		err := db.Write(ctx, func(ctx context.Context, tx store.Tx) error {
			var n int64
			if err := tx.QueryRow(ctx, `SELECT n FROM laws WHERE id = 'counter'`).Scan(&n); err != nil {
				return err
			}
			changed, err := tx.Exec(ctx, `UPDATE laws SET n = $1 WHERE id = 'counter' AND n = $2`, n+1, n)
			won = changed == 1
			return err
		})
		if err != nil || won {
			return err
		}
	}
}

func failingWritersDoNotHarmOthers(t *testing.T, db *store.DB) {
	mine := errors.New("every third fails")
	var all sync.WaitGroup
	for n := range int64(60) {
		all.Go(func() {
			err := db.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
				if err := insert(ctx, tx, time.Unix(n, 0).UTC().String(), n); err != nil {
					return err
				}
				if n%3 == 0 {
					return mine
				}
				return nil
			})
			if errors.Is(err, mine) != (n%3 == 0) || err != nil && !errors.Is(err, mine) {
				t.Errorf("writer %d got %v", n, err)
			}
		})
	}
	all.Wait()
	wantCount(t, db, 40)
	if got := number(t, db, `SELECT count(*) FROM laws WHERE n % 3 = 0`); got != 0 {
		t.Errorf("%d failed writes are kept", got)
	}
}

func closeWaits(t *testing.T, db *store.DB) {
	running, goOn := make(chan struct{}), make(chan struct{})
	written, closed := make(chan error, 1), make(chan error, 1)
	go func() {
		written <- db.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
			close(running)
			<-goOn
			return insert(ctx, tx, "a", 1)
		})
	}()
	<-running
	go func() { closed <- db.Close() }()
	for !errors.Is(db.Ping(t.Context()), store.ErrClosed) {
	} // Close has begun
	select {
	case err := <-closed:
		t.Errorf("Close did not wait, and returned %v", err)
		closed <- err
	default:
	}
	close(goOn)
	if err := errors.Join(<-written, <-closed); err != nil {
		t.Error(err)
	}
	fn := func(context.Context, store.Tx) error { return nil }
	for _, err := range []error{db.Write(t.Context(), fn), db.Read(t.Context(), fn), db.Ping(t.Context())} {
		if !errors.Is(err, store.ErrClosed) {
			t.Errorf("after Close: got %v, want ErrClosed", err)
		}
	}
	if err := db.Close(); err != nil {
		t.Errorf("the second Close: %v", err)
	}
}

func pingAnswers(t *testing.T, db *store.DB) {
	if err := db.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}
