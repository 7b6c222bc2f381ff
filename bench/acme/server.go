package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/secsy-pki/secsy-pki/bench/postgres"
)

// A server is a program that was started for the run.
type server struct {
	name      string
	cmd       *exec.Cmd
	done      chan struct{}
	said      bytes.Buffer
	directory string
	roots     *x509.CertPool
	metrics   string           // URL, "" for none
	postgres  *postgres.Server // nil: another database
}

func launch(name string, cmd *exec.Cmd) (*server, error) {
	s := &server{name: name, cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &s.said, &s.said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() { _ = cmd.Wait(); close(s.done) }()
	return s, nil
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(20 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.done
	}
}

// await polls: a program gives no other sign.
func (s *server) await(ctx context.Context, ready func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-s.done:
			return fmt.Errorf("%s ended: %s", s.name, s.said.Bytes())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", s.name, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// cpu is the processor time of the server so far, in user and kernel mode.
func (s *server) cpu() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	const tick = time.Second / 100
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 13 {
		return 0, errors.New("reading the processor time: too few fields")
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * tick, err
}

// asked is how many statements and waits for the disk the server has made so far.
func (s *server) asked(ctx context.Context) (statements, fsyncs float64, err error) {
	if s.metrics == "" {
		return 0, 0, nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.metrics, nil)
	if err != nil {
		return 0, 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = res.Body.Close() }()
	for sc := bufio.NewScanner(res.Body); sc.Scan(); {
		name, value, _ := strings.Cut(sc.Text(), " ")
		v, _ := strconv.ParseFloat(value, 64) // of the two that are wanted it is a number
		switch name {
		case "secsy_store_statements_total":
			statements = v
		case "secsy_store_commits_total":
			fsyncs = v
		}
	}
	if s.postgres != nil { // which shares the waits of commits at the same time
		fsyncs, err = s.postgres.Syncs(ctx)
	}
	return statements, fsyncs, err
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

func freePorts(n int) ([]int, error) {
	var out []int
	for range n {
		p, err := freePort()
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// ours starts a server that was never started before, without limits for its
// one client address, on a database of its own.
func ours(ctx context.Context, bin, dir string, r *responder, pg *postgres.Server) (*server, error) {
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	_, port, err := net.SplitHostPort(r.http)
	if err != nil {
		return nil, err
	}
	start := func() (*server, error) {
		cmd := exec.Command(bin, "quickstart", "--dir", dir, "--listen-http", at(0), "--listen-https", at(1), "--listen-operator", at(2), "--http01-port", port, "--dns", r.dns)
		cmd.Env = os.Environ()
		if pg != nil {
			cmd.Env = append(cmd.Env, "SECSY_POSTGRES_URL="+pg.URL)
		}
		s, err := launch("secsy-pki", cmd)
		if err != nil {
			return nil, err
		}
		if err := s.await(ctx, func() error { return get(ctx, http.DefaultClient, "http://"+at(2)+"/readyz") }); err != nil {
			s.stop()
			return nil, err
		}
		return s, nil
	}
	s, err := start() // which makes the configuration
	if err != nil {
		return nil, err
	}
	s.stop()
	if err := lift(filepath.Join(dir, "config.yaml")); err != nil {
		return nil, err
	}
	if s, err = start(); err != nil {
		return nil, err
	}
	s.directory, s.metrics, s.postgres = "https://localhost:"+strconv.Itoa(ports[1])+"/acme/directory", "http://"+at(2)+"/metrics", pg
	s.roots, err = readRoots([]string{filepath.Join(dir, "root.pem")})
	return s, err
}

// lift takes the limits of clients off, which all come from one address here.
func lift(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(b), "\nrate_limit:\n")
	if !ok {
		return fmt.Errorf("%s has no section rate_limit", file)
	}
	const off = "  overrides: [{source: 127.0.0.0/8, exempt: true}]\n  global: {rate: 0}\n  per_account: {rate: 0}\n"
	return os.WriteFile(file, []byte(head+"\nrate_limit:\n"+off+rest), 0o600)
}

func get(ctx context.Context, c *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, res.Status)
	}
	return nil
}

func readRoots(files []string) (*x509.CertPool, error) {
	pool, found := x509.NewCertPool(), false
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && pool.AppendCertsFromPEM(b) {
			found = true
		}
	}
	if !found {
		return nil, fmt.Errorf("no root among %v", files)
	}
	return pool, nil
}

// peer starts Pebble, which keeps all in memory and signs without a device.
func peer(ctx context.Context, dir string, r *responder) (*server, error) {
	bin, err := exec.LookPath("pebble")
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(r.http)
	if err != nil {
		return nil, err
	}
	web, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if err := selfSigned(cert, key); err != nil {
		return nil, err
	}
	conf, err := json.Marshal(map[string]any{"pebble": map[string]any{
		"listenAddress": fmt.Sprintf("127.0.0.1:%d", ports[0]), "managementListenAddress": fmt.Sprintf("127.0.0.1:%d", ports[1]),
		"certificate": cert, "privateKey": key, "httpPort": web, "tlsPort": ports[2],
	}})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "config.json")
	if err := os.WriteFile(file, conf, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(bin, "-config", file, "-dnsserver", r.dns)
	cmd.Env = append(os.Environ(), "PEBBLE_VA_NOSLEEP=1", "PEBBLE_WFE_NONCEREJECT=0", "PEBBLE_AUTHZREUSE=0")
	s, err := launch("pebble", cmd)
	if err != nil {
		return nil, err
	}
	s.directory = fmt.Sprintf("https://localhost:%d/dir", ports[0])
	if s.roots, err = readRoots([]string{cert}); err != nil {
		return nil, err
	}
	return s, s.await(ctx, func() error {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0]))
		if err != nil {
			return err
		}
		return c.Close()
	})
}

func selfSigned(certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return err
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k}), 0o600))
}
