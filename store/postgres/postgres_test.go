package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/postgres"
	"github.com/secsy-pki/secsy-pki/store/storetest"
)

func open(t *testing.T, cfg postgres.Config) *postgres.Engine {
	t.Helper()
	e, err := postgres.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func openWithTable(t *testing.T, cfg postgres.Config) *postgres.Engine {
	t.Helper()
	e := open(t, cfg)
	run(t, e, `CREATE TABLE numbers (n BIGINT PRIMARY KEY, hits BIGINT NOT NULL DEFAULT 0)`)
	return e
}

func run(t *testing.T, e *postgres.Engine, q string, args ...any) {
	t.Helper()
	err := e.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
		_, err := tx.Exec(ctx, q, args...)
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", q, err)
	}
}

func number(t *testing.T, e *postgres.Engine, q string) (n int64) {
	t.Helper()
	err := e.Read(t.Context(), func(ctx context.Context, tx store.Tx) error { return tx.QueryRow(ctx, q).Scan(&n) })
	if err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	return n
}

func TestTransactionThatGaveWayRunsAgain(t *testing.T) {
	t.Parallel()
	e := openWithTable(t, postgres.Config{URL: storetest.PostgresURL(t)})
	for _, code := range []string{"40001", "40P01"} {
		runs := 0
		err := e.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
			runs++
			if _, err := tx.Exec(ctx, `INSERT INTO numbers (n) SELECT 1 + count(*) FROM numbers`); err != nil {
				return err
			}
			if runs < 3 {
				_, _ = tx.Exec(ctx, `DO $do$ BEGIN RAISE EXCEPTION 'give way' USING ERRCODE = '`+code+`'; END $do$`)
				return errors.New("an error that hides its cause")
			}
			return nil
		})
		if err != nil || runs != 3 {
			t.Errorf("%s: got %v after %d runs, want success in the third", code, err, runs)
		}
	}
	if got := number(t, e, `SELECT count(*) FROM numbers`); got != 2 {
		t.Errorf("%d rows, want 2: only what the last run did", got)
	}
}

func TestRetriesEnd(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Config{URL: storetest.PostgresURL(t)})
	runs := 0
	err := e.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
		runs++
		_, err := tx.Exec(ctx, `DO $do$ BEGIN RAISE EXCEPTION 'give way' USING ERRCODE = '40001'; END $do$`)
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "40001") || runs < 2 || runs > 20 {
		t.Errorf("got %v after %d runs", err, runs)
	}
	runs = 0
	mine := errors.New("mine")
	err = e.Write(t.Context(), func(context.Context, store.Tx) error {
		runs++
		return mine
	})
	if !errors.Is(err, mine) || runs != 1 {
		t.Errorf("an error of the function's own: got %v after %d runs, want one", err, runs)
	}
}

func TestDeadlockedWritersBothEndWell(t *testing.T) {
	t.Parallel()
	e := openWithTable(t, postgres.Config{URL: storetest.PostgresURL(t)})
	run(t, e, `INSERT INTO numbers (n) VALUES (1), (2)`)
	var met, all sync.WaitGroup
	met.Add(2)
	for _, order := range [][]int64{{1, 2}, {2, 1}} {
		first := true
		all.Go(func() {
			err := e.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
				if _, err := tx.Exec(ctx, `UPDATE numbers SET hits = hits + 1 WHERE n = $1`, order[0]); err != nil {
					return err
				}
				if first {
					first = false
					met.Done()
					met.Wait() // each has its first row now
				}
				_, err := tx.Exec(ctx, `UPDATE numbers SET hits = hits + 1 WHERE n = $1`, order[1])
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := number(t, e, `SELECT sum(hits) FROM numbers`); got != 4 {
		t.Errorf("%d updates are there, want 4", got)
	}
}

func TestConnectionLostBeforeTheCommitIsReplaced(t *testing.T) {
	t.Parallel()
	e := openWithTable(t, postgres.Config{URL: storetest.PostgresURL(t)})
	runs := 0
	err := e.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
		runs++
		if _, err := tx.Exec(ctx, `INSERT INTO numbers (n) VALUES (1)`); err != nil {
			return err
		}
		if runs > 1 {
			return nil
		}
		_, err := tx.Exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
		return err
	})
	if err != nil || runs != 2 {
		t.Errorf("got %v after %d runs, want success in the second", err, runs)
	}
	if got := number(t, e, `SELECT count(*) FROM numbers`); got != 1 {
		t.Errorf("%d rows, want 1", got)
	}
}

func TestConnectionsThatDiedInThePoolAreNotNoticed(t *testing.T) {
	t.Parallel()
	address := storetest.PostgresURL(t)
	e := openWithTable(t, postgres.Config{URL: address, MaxConns: 4})
	killer := open(t, postgres.Config{URL: address})
	for range 3 {
		var busy, all sync.WaitGroup
		busy.Add(4)
		for range 4 { // fill the pool
			all.Go(func() {
				err := e.Read(t.Context(), func(context.Context, store.Tx) error {
					busy.Done()
					busy.Wait()
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		run(t, killer, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()`)
		if got := number(t, e, `SELECT 1`); got != 1 {
			t.Error("no answer")
		}
		run(t, e, `INSERT INTO numbers (n) SELECT 1 + count(*) FROM numbers`)
	}
}

func TestCommitWithoutAnAnswerIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	for _, forward := range []bool{true, false} {
		address := storetest.PostgresURL(t)
		direct := openWithTable(t, postgres.Config{URL: address})
		proxy := startProxy(t, address)
		e := open(t, postgres.Config{URL: proxy.url, MaxConns: 1})
		runs := 0
		proxy.cut.Store(true)
		proxy.forward.Store(forward)
		err := e.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
			runs++
			_, err := tx.Exec(ctx, `INSERT INTO numbers (n) VALUES (1)`)
			return err
		})
		if !errors.Is(err, store.ErrUnknownOutcome) || runs != 1 {
			t.Errorf("got %v after %d runs, want ErrUnknownOutcome after one", err, runs)
		}
		if got := number(t, direct, `SELECT count(*) FROM numbers`); !forward && got != 0 {
			t.Errorf("%d rows, though the commit did not arrive", got)
		}
		if err := e.Ping(t.Context()); err != nil {
			t.Errorf("the next connection: %v", err)
		}
	}
}

// A proxy stands before the server and cuts one connection when it asks to commit.
type proxy struct {
	url          string
	server       string // of its socket
	cut, forward atomic.Bool
}

func startProxy(t *testing.T, server string) *proxy {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{server: u.Host}
	if dir := u.Query().Get("host"); dir != "" {
		p.server = dir + "/.s.PGSQL.5432"
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(t, c)
		}
	}()
	u.Host = l.Addr().String()
	u.RawQuery = "sslmode=disable"
	p.url = u.String()
	return p
}

func (p *proxy) serve(t *testing.T, client net.Conn) {
	defer func() { _ = client.Close() }()
	network := "tcp"
	if strings.HasPrefix(p.server, "/") {
		network = "unix"
	}
	server, err := net.Dial(network, p.server)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = server.Close() }()
	answers := make(chan struct{})
	go func() {
		defer close(answers)
		_, _ = io.Copy(client, server)
		_ = client.Close()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			break
		}
		if bytes.Contains(buf[:n], []byte("commit\x00")) && p.cut.CompareAndSwap(true, false) {
			_ = client.Close()
			if p.forward.Load() {
				_, _ = server.Write(buf[:n])
			}
			break
		}
		if _, err := server.Write(buf[:n]); err != nil {
			break
		}
	}
	_ = server.Close()
	<-answers
}

func TestPasswordsAreInNoErrorAndNoLog(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port at which nobody answers in time, or at all
	if err != nil {
		t.Fatal(err)
	}
	dead := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	for _, address := range []string{
		"postgres://pki:hunter2@" + dead + "/db?sslmode=disable",
		"postgres://pki:hunter2%2F%40@" + dead + "/db?sslmode=disable",
		"postgres://pki@" + dead + "/db?password=hunter2&sslmode=disable",
		"postgres://pki:hunter2@" + dead + "/db?sslmode=wrong",
		"postgres://pki:hunter2@" + dead + "/db?pool_max_conns=many",
		"postgres://pki:hunter2@" + dead + "/db?sslmode=verify-full&sslrootcert=/nonexistent/hunter2",
		"postgres://pki:hunter2/x@" + dead + "/db",
		"postgres://pki:hunter2#x@" + dead + "/db",
		"postgres://pki:%zzhunter2@" + dead + "/db",
		"postgres://pki:hunter2@[::1/db",
		"postgres://pki:hunter2@host:port/db",
		"host=127.0.0.1 user=pki password=hunter2",
		"mysql://pki:hunter2@" + dead,
		"hunter2",
	} {
		_, err := postgres.Open(t.Context(), postgres.Config{URL: address, Logger: logger})
		if err == nil {
			t.Errorf("%s was opened", address)
			continue
		}
		for e := err; e != nil; e = errors.Unwrap(e) {
			if text := e.Error(); strings.Contains(text, "hunter2") || strings.Contains(text, "\n") {
				t.Errorf("%s: the error is %q, want one line without the password", address, text)
			}
		}
	}
	if strings.Contains(log.String(), "hunter2") {
		t.Errorf("the log has the password: %s", &log)
	}
}

func TestServersThatMayLoseCommitsAreWarnedOf(t *testing.T) {
	t.Parallel()
	address := storetest.PostgresURL(t)
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.RawQuery += "&synchronous_commit=off"
	var log bytes.Buffer
	open(t, postgres.Config{URL: u.String(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if !strings.Contains(log.String(), "may lose committed transactions") {
		t.Errorf("no warning: %q", &log)
	}
}

func TestMigratingAtTheSameTimeHappensOnce(t *testing.T) {
	t.Parallel()
	address := storetest.PostgresURL(t)
	one, two := open(t, postgres.Config{URL: address}), open(t, postgres.Config{URL: address})
	missing, err := one.Pending(t.Context())
	if err != nil || len(missing) == 0 {
		t.Fatalf("Pending: got %v, %v", missing, err)
	}
	applied := make([][]string, 2)
	var all sync.WaitGroup
	for i, e := range []*postgres.Engine{one, two} {
		all.Go(func() {
			var err error
			if applied[i], err = e.Migrate(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := slices.Concat(applied...); !slices.Equal(got, missing) {
		t.Errorf("together they applied %v, want %v", got, missing)
	}
	for name, f := range map[string]func(context.Context) ([]string, error){"Migrate": one.Migrate, "Pending": two.Pending} {
		if files, err := f(t.Context()); err != nil || len(files) != 0 {
			t.Errorf("%s when all is done: got %v, %v", name, files, err)
		}
	}
	run(t, one, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)`)
	for name, f := range map[string]func(context.Context) ([]string, error){"Migrate": one.Migrate, "Pending": two.Pending} {
		if _, err := f(t.Context()); !errors.Is(err, store.ErrNewerSchema) || !strings.Contains(err.Error(), "9999") {
			t.Errorf("%s on a newer schema: got %v", name, err)
		}
	}
}
