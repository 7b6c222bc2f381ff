package storetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/postgres"
)

// ServerEnv names the URL of a PostgreSQL server, for a role that may create
// databases. Without it the tests start a server of their own.
const ServerEnv = "SECSY_TEST_POSTGRES"

// Postgres returns a migrated database of its own on a PostgreSQL server,
// closed and dropped with t.
func Postgres(t *testing.T) *store.DB {
	t.Helper()
	e, err := postgres.Open(t.Context(), postgres.Config{URL: PostgresURL(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("closing the database: %v", err)
		}
	})
	if _, err := e.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return store.New(e)
}

// PostgresURL returns the URL of an empty database, dropped with t.
func PostgresURL(t testing.TB) string {
	t.Helper()
	own, err := postgresServer()
	if err != nil {
		t.Fatal(err)
	}
	server := own.url
	u, err := url.Parse(server)
	if err != nil {
		t.Fatalf("%s is not a URL", ServerEnv)
	}
	name := "secsy_test_" + strings.ToLower(rand.Text())
	if err := administer(t.Context(), server, "CREATE DATABASE "+name+" TEMPLATE template0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := administer(context.Background(), server, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	u.Path = "/" + name
	return u.String()
}

func administer(ctx context.Context, server, statement string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := pgx.Connect(ctx, server)
	if err != nil {
		return fmt.Errorf("connecting to the PostgreSQL server of the tests: %w", err)
	}
	_, err = c.Exec(ctx, statement)
	return errors.Join(err, c.Close(ctx))
}

// A pgServer runs until alive is closed, at the latest by the end of the process.
type pgServer struct {
	url   string
	alive io.Closer
}

// postgresServer is the one server of this test process.
var postgresServer = sync.OnceValues(func() (*pgServer, error) {
	if server := os.Getenv(ServerEnv); server != "" {
		return &pgServer{url: server}, nil
	}
	return startPostgres()
})

// supervise runs a server until its standard input ends, which it does when the
// test process does, however that happens; then the server and its folder go.
const supervise = `
"$1/postgres" -D "$2/data" -k "$2" -c listen_addresses= -c fsync=off -c max_connections=200 >"$2/log" 2>&1 &
read -r _
kill -INT $!
wait $!
rm -rf "$2"
`

// startPostgres starts a server that only this user (and root) can reach: on a
// socket in a folder of its own.
func startPostgres() (*pgServer, error) {
	bin, err := postgresBin()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "secsy-pg-")
	if err != nil {
		return nil, err
	}
	server, err := startIn(dir, bin)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting PostgreSQL: %w", err), os.RemoveAll(dir))
	}
	if err := awaitPostgres(server.url, filepath.Join(dir, "log")); err != nil {
		return nil, errors.Join(err, server.alive.Close())
	}
	return server, nil
}

func startIn(dir, bin string) (*pgServer, error) {
	who, err := serverUser(dir)
	if err != nil {
		return nil, err
	}
	initdb := exec.Command(filepath.Join(bin, "initdb"), "-D", filepath.Join(dir, "data"),
		"--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
	initdb.SysProcAttr, initdb.Dir = who, dir
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("running initdb: %w\n%s", err, out)
	}
	server := exec.Command("/bin/sh", "-c", supervise, "sh", bin, dir)
	server.SysProcAttr, server.Dir = who, dir
	alive, err := server.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := server.Start(); err != nil {
		return nil, err
	}
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Path: "/postgres", RawQuery: url.Values{"host": {dir}}.Encode()}
	return &pgServer{u.String(), alive}, nil
}

// postgresBin finds the newest installed server.
func postgresBin() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		path, err := exec.LookPath("initdb")
		if err != nil {
			return "", fmt.Errorf("no PostgreSQL server is installed: install the Debian package postgresql, or set %s to the URL of a server", ServerEnv)
		}
		found = []string{path}
	}
	version := func(path string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path)))) // 0 outside of Debian's folders
		return n
	}
	newest := slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })
	return filepath.Dir(newest), nil
}

// serverUser gives dir to the user that the server runs as: PostgreSQL refuses
// to be root.
func serverUser(dir string) (*syscall.SysProcAttr, error) {
	if os.Getuid() != 0 {
		return &syscall.SysProcAttr{Setpgid: true}, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return nil, fmt.Errorf("finding a user for PostgreSQL, which does not run as root: %w", err)
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	if err := os.Chown(dir, int(uid), int(gid)); err != nil {
		return nil, err
	}
	return &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}

// awaitPostgres returns once the server answers.
func awaitPostgres(server, log string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		c, err := pgx.Connect(ctx, server)
		if err == nil {
			return c.Close(ctx)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			said, _ := os.ReadFile(log)
			return fmt.Errorf("waiting for PostgreSQL: %w\n%s", err, bytes.TrimSpace(said))
		}
	}
}
