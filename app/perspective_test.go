package app

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/config"
)

// perspectiveFolder has a configuration, a certificate and its key.
func perspectiveFolder(t *testing.T, until time.Time) string {
	t.Helper()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: until.Add(-time.Hour), NotAfter: until,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"c.pem": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		"c.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
		"p.yaml": []byte(`name: fra1
region: ripencc
listen: {address: "127.0.0.1:0", operator: "127.0.0.1:0", certificate: c.pem, key: c.key}
clients: {ca_bundle: c.pem}
validation: {resolver: "127.0.0.1:53"}
`),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func loadedPerspective(t *testing.T, dir string) *config.PerspectiveServer {
	t.Helper()
	c, err := config.LoadPerspectiveServer(filepath.Join(dir, "p.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// lines is a log that a test waits for.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
	any chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.any <- struct{}{}:
	default:
	}
	return l.buf.Write(p)
}

func (l *lines) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.buf.String(), s)
}

func TestAPerspectiveReloadsWhatItCanAndEndsInOrder(t *testing.T) {
	t.Parallel()
	dir := perspectiveFolder(t, time.Now().Add(time.Hour))
	log := &lines{any: make(chan struct{}, 1)}
	reload := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- RunPerspective(ctx, PerspectiveOptions{
			Config: loadedPerspective(t, dir), ConfigPath: filepath.Join(dir, "p.yaml"), Stderr: log, Reload: reload,
			Ready: func(net.Addr, net.Addr) { close(ready) },
		})
	}()
	await := func(what string) {
		t.Helper()
		for !log.has(what) {
			select {
			case <-log.any:
			case <-time.After(20 * time.Second):
				t.Fatalf("the log does not say %q", what)
			}
		}
	}
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	file := filepath.Join(dir, "p.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		reload <- struct{}{}
	}
	write(string(text) + "log: {level: debug}\nlimits: {looks: 5}\n")
	await("key=log.level from=info to=debug")
	await("key=limits.looks from=64 to=5")
	write("name: [")
	await("everything stays as it was")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestWhatIsWrongWithAPerspectiveIsNamed(t *testing.T) {
	t.Parallel()
	good := perspectiveFolder(t, time.Now().Add(time.Hour))
	var out bytes.Buffer
	if err := CheckPerspective(loadedPerspective(t, good), &out); err != nil || strings.Count(out.String(), "  ok  ") != 3 {
		t.Errorf("got %v and %s", err, &out)
	}
	for want, change := range map[string]func(*config.PerspectiveServer){
		"listen.certificate: ": func(c *config.PerspectiveServer) { c.Listen.Key = c.Clients.CABundle },
		"clients.ca_bundle: ":  func(c *config.PerspectiveServer) { c.Clients.CABundle = c.Listen.Key },
		"no such file":         func(c *config.PerspectiveServer) { c.Clients.CABundle = "/none.pem" },
	} {
		c := loadedPerspective(t, good)
		change(c)
		run := RunPerspective(t.Context(), PerspectiveOptions{Config: c, Stderr: io.Discard})
		for _, err := range []error{CheckPerspective(c, io.Discard), run} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
	}
	old := loadedPerspective(t, perspectiveFolder(t, time.Now().Add(-time.Minute)))
	if err := CheckPerspective(old, io.Discard); err == nil || !strings.Contains(err.Error(), "has expired") {
		t.Errorf("an expired certificate: %v", err)
	}
}

// Whoever runs the check before an upgrade hears of the date, too.
func TestCheckTellsUntilWhenPerspectivesAreEnough(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Policy = config.PolicyPublic
	for _, region := range []string{"arin", "apnic", "ripencc", "arin"} {
		cfg.ACME.Validation.Perspectives = append(cfg.ACME.Validation.Perspectives, config.Perspective{Region: region})
	}
	before := time.Date(2026, time.November, 30, 0, 0, 0, 0, time.UTC)
	if s := perspectiveSummary(cfg, before); !strings.HasPrefix(s, "remote perspectives: 4, in regions: 3; too few from 2026-12-15 on: ") || !strings.Contains(s, "at least 5") {
		t.Error(s)
	}
	cfg.ACME.Validation.Perspectives = append(cfg.ACME.Validation.Perspectives, config.Perspective{Region: "lacnic"})
	if s := perspectiveSummary(cfg, before); s != "remote perspectives: 5, in regions: 4" {
		t.Error(s)
	}
	cfg.Policy, cfg.ACME.Validation.Perspectives = config.PolicyInternal, cfg.ACME.Validation.Perspectives[:1]
	if s := perspectiveSummary(cfg, before); s != "remote perspectives: 1, in regions: 1" {
		t.Error(s)
	}
}
