package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// startPostgres starts a PostgreSQL of the test's own and returns its URL.
func startPostgres(t testing.TB) string {
	t.Helper()
	p := newPostgres(t)
	p.start(t)
	return p.url
}

// postgres is a PostgreSQL that can be started, and started again.
type postgres struct {
	*process
	url    string
	server func() *exec.Cmd
	ready  func() error
}

// newPostgres makes the data of one. The server refuses to run as root, so root
// lends it the user nobody.
func newPostgres(t testing.TB) *postgres {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(found) == 0 {
		t.Fatalf("PostgreSQL is not installed: apt-get install postgresql (%v)", err)
	}
	bin := slices.Max(found)
	dir, err := os.MkdirTemp("", "secsy-pg-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	as := func(args ...string) *exec.Cmd { return exec.Command(args[0], args[1:]...) }
	if os.Getuid() == 0 {
		if out, err := exec.Command("chown", "nobody", dir).CombinedOutput(); err != nil {
			t.Fatalf("chown: %v: %s", err, out)
		}
		as = func(args ...string) *exec.Cmd {
			return exec.Command("setpriv", append([]string{"--reuid=nobody", "--regid=nogroup", "--clear-groups", "--"}, args...)...)
		}
	}
	data := filepath.Join(dir, "data")
	initdb := as(filepath.Join(bin, "initdb"), "-D", data, "-U", "secsy", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
	initdb.Dir = dir
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	port := freePort(t)
	ready := filepath.Join(bin, "pg_isready")
	return &postgres{
		url: fmt.Sprintf("postgres://secsy@127.0.0.1:%d/postgres?sslmode=disable", port),
		server: func() *exec.Cmd {
			cmd := as(filepath.Join(bin, "postgres"), "-D", data, "-p", strconv.Itoa(port), "-k", dir,
				"-c", "listen_addresses=127.0.0.1", "-c", "max_connections=50")
			cmd.Dir = dir
			return cmd
		},
		ready: func() error {
			return exec.Command(ready, "-h", "127.0.0.1", "-p", strconv.Itoa(port)).Run()
		},
	}
}

func (p *postgres) start(t testing.TB) {
	t.Helper()
	p.process = start(t, "postgres", p.server())
	waitFor(t, "PostgreSQL", p.ready)
}
