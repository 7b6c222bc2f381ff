// Package postgres starts a PostgreSQL server for one benchmark, on the disk and
// with every commit waiting for it.
package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A Server runs until Close, at the latest until this process ends.
type Server struct {
	URL string

	bin, dir string
	cmd      *exec.Cmd
	done     chan struct{}
	said     bytes.Buffer
}

// Start starts one in a folder below the current one, which Close removes.
func Start(ctx context.Context) (*Server, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(found) == 0 {
		return nil, errors.New("PostgreSQL is not installed")
	}
	s := &Server{bin: slices.Max(found), done: make(chan struct{})}
	if s.dir, err = os.MkdirTemp(".", ".bench-pg-"); err != nil { // not in /tmp, which may be memory
		return nil, err
	}
	if s.dir, err = filepath.Abs(s.dir); err != nil {
		return nil, err
	}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) start(ctx context.Context) error {
	as := func(args ...string) *exec.Cmd { return exec.Command(args[0], args[1:]...) }
	if os.Getuid() == 0 { // it refuses to run as root
		if out, err := exec.Command("chown", "nobody", s.dir).CombinedOutput(); err != nil {
			return fmt.Errorf("chown: %w: %s", err, out)
		}
		as = func(args ...string) *exec.Cmd {
			return exec.Command("setpriv", append([]string{"--reuid=nobody", "--regid=nogroup", "--clear-groups", "--"}, args...)...)
		}
	}
	data := filepath.Join(s.dir, "data")
	initdb := as(filepath.Join(s.bin, "initdb"), "-D", data, "-U", "secsy", "-A", "trust", "-E", "UTF8", "--locale=C")
	initdb.Dir = s.dir
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	s.URL = fmt.Sprintf("postgres://secsy@127.0.0.1:%d/postgres?sslmode=disable", port)
	s.cmd = as(filepath.Join(s.bin, "postgres"), "-D", data, "-p", strconv.Itoa(port), "-k", "", "-c", "listen_addresses=127.0.0.1")
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = s.dir, &s.said, &s.said
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.cmd = nil
		return fmt.Errorf("starting postgres: %w", err)
	}
	go func() { _ = s.cmd.Wait(); close(s.done) }()
	return s.await(ctx, strconv.Itoa(port))
}

// await polls: a program gives no other sign.
func (s *Server) await(ctx context.Context, port string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := exec.CommandContext(ctx, filepath.Join(s.bin, "pg_isready"), "-h", "127.0.0.1", "-p", port).Run()
		if err == nil {
			return nil
		}
		select {
		case <-s.done:
			return fmt.Errorf("postgres ended: %s", s.said.Bytes())
		case <-ctx.Done():
			return fmt.Errorf("postgres is not ready: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Syncs is how often the server has waited for its log to be on the disk.
func (s *Server) Syncs(ctx context.Context) (float64, error) {
	q := "SELECT wal_sync FROM pg_stat_wal"
	out, err := exec.CommandContext(ctx, filepath.Join(s.bin, "psql"), s.URL, "-Atc", q).Output()
	if err != nil { // since version 18
		q = "SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'"
		out, err = exec.CommandContext(ctx, filepath.Join(s.bin, "psql"), s.URL, "-Atc", q).Output()
	}
	if err != nil {
		return 0, fmt.Errorf("asking PostgreSQL for its syncs: %w", err)
	}
	return strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
}

// Close stops the server and removes its folder.
func (s *Server) Close() error {
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-s.done:
		case <-time.After(20 * time.Second):
			_ = s.cmd.Process.Kill()
			<-s.done
		}
	}
	return os.RemoveAll(s.dir)
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	a, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, errors.Join(errors.New("no TCP address"), l.Close())
	}
	return a.Port, l.Close()
}
