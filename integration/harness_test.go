// Package integration tests the built program from outside: real clients, real
// databases, real signals.
package integration

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binary is the program under test: SECSY_BIN, or what `make build` left.
var binary = sync.OnceValues(func() (string, error) {
	if b := os.Getenv("SECSY_BIN"); b != "" {
		return b, nil
	}
	return filepath.Abs("../bin/secsy-pki")
})

func secsy(t testing.TB) string {
	t.Helper()
	b, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(b); err != nil {
		t.Fatalf("the program is not built (%v): run make build", err)
	}
	return b
}

var (
	portsMu sync.Mutex
	ports   = map[int]bool{}
)

// freePort returns a loopback TCP port that nothing listens on and that no
// other test of this process was given. It stays below the range that the
// kernel gives to outgoing connections.
func freePort(t testing.TB) int {
	t.Helper()
	portsMu.Lock()
	defer portsMu.Unlock()
	for p := 20000 + os.Getpid()%8000; p < 32000; p++ {
		if ports[p] {
			continue
		}
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(p))
		if err != nil {
			continue
		}
		_ = l.Close()
		ports[p] = true
		return p
	}
	t.Fatal("no free loopback port")
	return 0
}

// process is a program that a test started and will end.
type process struct {
	cmd  *exec.Cmd
	out  *tail
	done chan struct{}
	err  error
}

func start(t testing.TB, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, out: &tail{}, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.out, p.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	go func() { p.err = cmd.Wait(); close(p.done) }()
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("%s said:\n%s", name, p.out)
		}
	})
	return p
}

// stop ends the process: SIGTERM, and SIGKILL to one that does not listen.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		p.kill()
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// tail keeps the last part of what a program prints.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (w *tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b = append(w.b, p...)
	if over := len(w.b) - 256<<10; over > 0 {
		w.b = append([]byte(nil), w.b[over:]...)
	}
	return len(p), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.b)
}

// dnsMock is a DNS server that answers 127.0.0.1 for every name, and whose TXT
// records are set by HTTP. More arguments may have it answer challenges, too.
type dnsMock struct{ addr, admin string }

func startDNS(t testing.TB, more ...string) dnsMock {
	t.Helper()
	dns, admin := freePort(t), freePort(t)
	d := dnsMock{addr: fmt.Sprintf("127.0.0.1:%d", dns), admin: fmt.Sprintf("http://127.0.0.1:%d", admin)}
	args := []string{"-management", fmt.Sprintf("127.0.0.1:%d", admin), "-http01", "", "-https01", "", "-tlsalpn01", "", "-defaultIPv4", "127.0.0.1", "-defaultIPv6", ""}
	help, _ := exec.Command("pebble-challtestsrv", "-help").CombinedOutput()
	if bytes.Contains(help, []byte("-dnsserver")) { // newer versions
		args = append(args, "-dnsserver", d.addr, "-doh", "")
	} else {
		args = append(args, "-dns01", d.addr)
	}
	start(t, "pebble-challtestsrv", exec.Command("pebble-challtestsrv", append(args, more...)...))
	waitFor(t, "pebble-challtestsrv", func() error { return dial(fmt.Sprintf("127.0.0.1:%d", admin)) })
	return d
}

func dial(addr string) error {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}

// waitFor polls until ok returns nil; real programs give no other sign.
func waitFor(t testing.TB, what string, ok func() error) {
	t.Helper()
	deadline := time.After(60 * time.Second)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ok()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s is not there after 60 s: %v", what, err)
		case <-tick.C:
		}
	}
}

// server is a CA started by quickstart.
type server struct {
	*process
	dir      string
	env      map[string]string // quickstart.env
	operator string            // address
	http01   int
	tlsALPN  int
	args     []string
	environ  []string
}

type quickstart struct {
	dir      string // "" makes one
	dns      dnsMock
	postgres string // connection URL, "" for SQLite
	http01   int    // 0 picks one
}

func startQuickstart(t testing.TB, q quickstart) *server {
	t.Helper()
	if q.dir == "" {
		q.dir = filepath.Join(t.TempDir(), "secsy-data")
	}
	if q.http01 == 0 {
		q.http01 = freePort(t)
	}
	s := &server{dir: q.dir, operator: fmt.Sprintf("127.0.0.1:%d", freePort(t)), http01: q.http01, tlsALPN: freePort(t)}
	s.args = []string{
		"quickstart", "--dir", q.dir,
		"--listen-http", fmt.Sprintf("127.0.0.1:%d", freePort(t)),
		"--listen-https", fmt.Sprintf("127.0.0.1:%d", freePort(t)),
		"--listen-operator", s.operator,
		"--http01-port", strconv.Itoa(s.http01),
		"--tls-alpn01-port", strconv.Itoa(s.tlsALPN),
	}
	if q.dns.addr != "" {
		s.args = append(s.args, "--dns", q.dns.addr)
	}
	s.environ = os.Environ()
	if q.postgres != "" {
		s.environ = append(s.environ, "SECSY_POSTGRES_URL="+q.postgres)
	}
	s.start(t)
	return s
}

func (s *server) start(t testing.TB) {
	t.Helper()
	cmd := exec.Command(secsy(t), s.args...)
	cmd.Env = s.environ
	s.process = start(t, "secsy-pki quickstart", cmd)
	s.waitReady(t)
	s.env = readEnv(t, filepath.Join(s.dir, "quickstart.env"))
}

func (s *server) waitReady(t testing.TB) {
	t.Helper()
	if !s.waitReadyOrDead(t) {
		t.Fatalf("secsy-pki ended: %v\n%s", s.err, s.out)
	}
}

// waitReadyOrDead reports whether the server became ready; false means that it ended.
func (s *server) waitReadyOrDead(t testing.TB) (ready bool) {
	t.Helper()
	p := s.process
	waitFor(t, "secsy-pki", func() error {
		select {
		case <-p.done:
			return nil
		default:
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.operator+"/readyz", nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			b, _ := io.ReadAll(io.LimitReader(res.Body, 1024))
			return fmt.Errorf("not ready: %s %s", res.Status, b)
		}
		ready = true
		return nil
	})
	return ready
}

// readEnv reads NAME=value lines, quotes taken off.
func readEnv(t testing.TB, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	env := map[string]string{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		name, value, ok := strings.Cut(sc.Text(), "=")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		env[name] = strings.Trim(value, `'"`)
	}
	return env
}

// client returns an HTTP client that trusts the server's root.
func (s *server) client(t testing.TB) *http.Client {
	t.Helper()
	pem, err := os.ReadFile(s.env["CA_BUNDLE"])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		t.Fatal("CA_BUNDLE holds no certificate")
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 30 * time.Second}
}

// run runs the program to its end.
func run(t testing.TB, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return runIn(t, "", nil, args...)
}

func runIn(t testing.TB, dir string, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, secsy(t), args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var out, errb bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errb
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("running secsy-pki %s: %v", strings.Join(args, " "), err)
	}
	return out.String(), errb.String(), cmd.ProcessState.ExitCode()
}
