package front_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/front"
	"github.com/secsy-pki/secsy-pki/peer"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// patience is how long a test waits for what should happen at once.
const patience = 20 * time.Second

// logbook collects JSON log lines.
type logbook struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	lines chan map[string]any
}

func newLogbook() *logbook { return &logbook{lines: make(chan map[string]any, 1000)} }

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Write(p)
	m := map[string]any{}
	if err := json.Unmarshal(p, &m); err == nil {
		select {
		case l.lines <- m:
		default:
		}
	}
	return len(p), nil
}

func (l *logbook) logger() *slog.Logger { return slog.New(slog.NewJSONHandler(l, nil)) }

func (l *logbook) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// next waits for the next line with this message.
func (l *logbook) next(t *testing.T, msg string) map[string]any {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case m := <-l.lines:
			if m["msg"] == msg {
				return m
			}
		case <-deadline:
			t.Fatalf("no line %q in the log:\n%s", msg, l.text())
		}
	}
}

// house is a Front that serves on free ports of the loopback.
type house struct {
	*front.Front
	stop func()
	done chan error
	log  *logbook
	reg  *prometheus.Registry
}

func open(t *testing.T, cfg front.Config) *house {
	t.Helper()
	h := &house{done: make(chan error, 1), log: newLogbook(), reg: prometheus.NewRegistry()}
	cfg.Log, cfg.Registerer = h.log.logger(), h.reg
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		if l.Name == "" {
			l.Name = "public"
		}
		if l.Address == "" && l.Socket == "" {
			l.Address = "127.0.0.1:0"
		}
	}
	f, err := front.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.Front, h.stop = f, cancel
	served := make(chan struct{})
	go func() {
		defer close(served)
		h.done <- f.Serve(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-served:
		case <-time.After(patience):
			t.Error("Serve did not return")
		}
	})
	return h
}

func one(l front.Listener, handler http.HandlerFunc) front.Config {
	l.Routes = append(l.Routes, front.Route{Prefix: "/", Class: "test", Handler: handler})
	return front.Config{Listeners: []front.Listener{l}, DrainTimeout: patience}
}

func (h *house) address() string { return h.Addresses()["public"].String() }

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	var d net.Dialer
	network := "tcp"
	if strings.HasPrefix(address, "/") {
		network = "unix"
	}
	c, err := d.DialContext(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

// say sends raw bytes and reads all until the other side closes.
func say(t *testing.T, address, text string) string {
	t.Helper()
	c := dial(t, address)
	_, _ = io.WriteString(c, text) // the other side may close before it has read all
	return hear(t, c)
}

func hear(t *testing.T, c net.Conn) string {
	t.Helper()
	all, err := io.ReadAll(c)
	if err, ok := errors.AsType[net.Error](err); ok && err.Timeout() {
		t.Fatalf("the connection stays open after %q", all)
	}
	return string(all)
}

// reply is an answer without its body.
type reply struct {
	StatusCode int
	Header     http.Header
	Close      bool // the connection ends with it
}

// ask sends a request over a connection of its own.
func ask(t *testing.T, address, path string, header ...string) (reply, string) {
	t.Helper()
	c := dial(t, address)
	return askOver(t, c, path, header...)
}

func askOver(t *testing.T, c net.Conn, path string, header ...string) (reply, string) {
	t.Helper()
	text := "GET " + path + " HTTP/1.1\r\nHost: h\r\n" + strings.Join(append(header, ""), "\r\n") + "\r\n"
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return readAnswer(t, bufio.NewReader(c))
}

func readAnswer(t *testing.T, r *bufio.Reader) (reply, string) {
	t.Helper()
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, res.Close}, string(text)
}

func tellCaller(w http.ResponseWriter, r *http.Request) {
	p := peer.From(r.Context())
	_, _ = fmt.Fprintf(w, "client=%s conn=%s", p.Addr, p.Conn)
}

// metric sums a counter or gauge over the series whose labels include all given.
func (h *house) metric(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	families, err := h.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			have := map[string]bool{}
			for _, l := range m.GetLabel() {
				have[l.GetName()+"="+l.GetValue()] = true
			}
			all := true
			for _, l := range labels {
				all = all && have[l]
			}
			if all {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func writeCertificate(t *testing.T, dir, name string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, b := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: der},
		keyFile:  {Type: "PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

func rootsFrom(t *testing.T, certFile string) *x509.CertPool {
	t.Helper()
	roots := x509.NewCertPool()
	leaf, err := os.ReadFile(certFile)
	if err != nil || !roots.AppendCertsFromPEM(leaf) {
		t.Fatal("reading the certificate back", err)
	}
	return roots
}

// openTLS serves https and returns how a client speaks to it.
func openTLS(t *testing.T, l front.Listener, handler http.HandlerFunc) (*house, *tls.Config) {
	t.Helper()
	certFile, keyFile := writeCertificate(t, t.TempDir(), "ca.test")
	cert, err := front.NewFileCertificate(front.FileCertificateConfig{CertFile: certFile, KeyFile: keyFile})
	if err != nil {
		t.Fatal(err)
	}
	l.Certificate = cert.GetCertificate
	return open(t, one(l, handler)), &tls.Config{RootCAs: rootsFrom(t, certFile), ServerName: "ca.test"}
}

func TestARawPathReachesItsHandlerUntouched(t *testing.T) {
	t.Parallel()
	l := front.Listener{Routes: []front.Route{{Prefix: "/ocsp", Class: "ocsp", Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "ocsp "+r.RequestURI)
	})}}}
	h := open(t, one(l, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "root "+r.RequestURI) }))
	for path, class := range map[string]string{
		"/ocsp":                                 "ocsp",
		"/ocsp/":                                "ocsp",
		"/ocsp/MFQ//wUj+/Q==":                   "ocsp",
		"/ocsp/MFQ%2F%2fwUj%2B+%3D%3D":          "ocsp",
		"/ocsp//../a/./b":                       "ocsp",
		"/ocsp/?query":                          "ocsp",
		"/ocspx":                                "root",
		"/%6fcsp/x":                             "root",
		"//ocsp/x":                              "root",
		"/a/../ocsp":                            "root",
		"/ocsp/" + strings.Repeat("A", 8<<10-6): "ocsp",
	} {
		if _, got := ask(t, h.address(), path); got != class+" "+path {
			t.Errorf("%.40s... reached %.60q, want %s", path, got, class)
		}
	}
	if res, _ := ask(t, h.address(), "/ocsp/"+strings.Repeat("A", 8<<10-5)); res.StatusCode != http.StatusRequestURITooLong {
		t.Errorf("a target of 8 KiB and a byte: %d, want 414", res.StatusCode)
	}
}

func TestWhatNoRouteWantsIsNotFound(t *testing.T) {
	t.Parallel()
	h := open(t, front.Config{Listeners: []front.Listener{{Routes: []front.Route{{Prefix: "/acme/", Class: "acme", Handler: http.HandlerFunc(tellCaller)}}}}})
	for path, want := range map[string]int{"/": 404, "/acmes": 404, "/acme": 200, "/acme/x": 200, "*": 404} {
		res, _ := ask(t, h.address(), path)
		if res.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, res.StatusCode, want)
		}
		if res.Header.Get("X-Content-Type-Options") != "nosniff" || res.Header.Get("Server") != "" {
			t.Errorf("%s: header %v", path, res.Header)
		}
	}
	if n := h.metric(t, "secsy_http_requests_total", "class=none", "code_class=4xx"); n != 3 {
		t.Errorf("%v requests counted as none, want 3", n)
	}
}

func TestAnOversizedHeaderIsRefused(t *testing.T) {
	t.Parallel()
	h := open(t, one(front.Listener{}, tellCaller))
	res, _ := ask(t, h.address(), "/", "X-Big: "+strings.Repeat("x", 15<<10))
	if res.StatusCode != http.StatusOK {
		t.Errorf("15 KiB: %d, want 200", res.StatusCode)
	}
	got := say(t, h.address(), "GET / HTTP/1.1\r\nHost: h\r\nX-Big: "+strings.Repeat("x", 21<<10)+"\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 431 ") {
		t.Errorf("21 KiB: %.40q, want 431", got)
	}
}

func TestABodyIsBoundedByItsRoute(t *testing.T) {
	t.Parallel()
	read := func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if tooBig, ok := errors.AsType[*http.MaxBytesError](err); ok {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			_, _ = fmt.Fprintf(w, "read %d limit %d", len(b), tooBig.Limit)
			return
		}
		_, _ = fmt.Fprintf(w, "read %d", len(b))
	}
	l := front.Listener{
		Limits: front.Limits{Body: 100},
		Routes: []front.Route{{Prefix: "/big", Class: "big", Handler: http.HandlerFunc(read), MaxBody: 200}},
	}
	h := open(t, one(l, read))
	for _, c := range []struct{ path, framing, body, want string }{
		{"/", "Content-Length: 100", strings.Repeat("x", 100), "read 100"},
		{"/", "Content-Length: 101", strings.Repeat("x", 101), "read 0 limit 100"}, // announced: nothing is read
		{"/", "Transfer-Encoding: chunked", "65\r\n" + strings.Repeat("x", 101) + "\r\n0\r\n\r\n", "read 100 limit 100"},
		{"/big", "Content-Length: 200", strings.Repeat("x", 200), "read 200"},
		{"/big", "Content-Length: 201", strings.Repeat("x", 201), "read 0 limit 200"},
	} {
		conn := dial(t, h.address())
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: h\r\n%s\r\n\r\n%s", c.path, c.framing, c.body); err != nil {
			t.Fatal(err)
		}
		if _, got := readAnswer(t, bufio.NewReader(conn)); got != c.want {
			t.Errorf("%s with %s: %q, want %q", c.path, c.framing, got, c.want)
		}
	}
}

func TestARefusalDoesNotWaitForTheBody(t *testing.T) {
	t.Parallel()
	h := open(t, one(front.Listener{Limits: front.Limits{Read: time.Hour, Write: time.Hour}}, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	for _, framing := range []string{"Content-Length: 100", "Content-Length: 60000", "Transfer-Encoding: chunked", "Content-Length: 100000000"} {
		t.Run(framing, func(t *testing.T) {
			t.Parallel()
			got := say(t, h.address(), "POST / HTTP/1.1\r\nHost: h\r\n"+framing+"\r\n\r\n") // and no body, ever
			if !strings.HasPrefix(got, "HTTP/1.1 429 ") || !strings.Contains(got, "Connection: close") {
				t.Errorf("%q, want 429 and a close", got)
			}
		})
	}
	got := say(t, h.address(), "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 60000\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 429 ") {
		t.Errorf("a body that asks first: %q, want 429 and no 100", got)
	}
}

// Two parties that disagree on where a request ends see different requests
// after it. Ours goes by the chunks, and reads nothing after them.
func TestNothingIsReadAfterAChunkedRequest(t *testing.T) {
	t.Parallel()
	h := open(t, one(front.Listener{}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, r.URL.Path)
	}))
	for _, length := range []string{"", "Content-Length: 5\r\n"} {
		got := say(t, h.address(), "POST /first HTTP/1.1\r\nHost: x\r\n"+length+"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+
			"GET /smuggled HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if strings.Count(got, "HTTP/1.1 200") != 1 || !strings.Contains(got, "Connection: close") || !strings.HasSuffix(got, "/first") {
			t.Errorf("%q", got)
		}
	}
}

func TestASpoofedHeaderFromAStrangerIsIgnored(t *testing.T) {
	t.Parallel()
	stranger := newHops(t, front.XForwardedFor, "10.0.0.0/8")
	h := open(t, one(front.Listener{Hops: stranger}, tellCaller))
	nobody := open(t, one(front.Listener{}, tellCaller))
	for i := range 5 { // rotating the leftmost address must not make new clients
		spoof := fmt.Sprintf("X-Forwarded-For: 203.0.113.%d", i)
		for _, x := range []*house{h, nobody} {
			if _, got := ask(t, x.address(), "/", spoof); got != "client=127.0.0.1 conn=127.0.0.1" {
				t.Errorf("caller is %q", got)
			}
		}
	}
	proxy := newHops(t, front.XForwardedFor, "127.0.0.0/8")
	trusted := open(t, one(front.Listener{Hops: proxy}, tellCaller))
	if _, got := ask(t, trusted.address(), "/", "X-Forwarded-For: 203.0.113.1", "X-Forwarded-For: 192.0.2.7"); got != "client=192.0.2.7 conn=127.0.0.1" {
		t.Errorf("caller behind a proxy is %q", got)
	}
}

func TestDrainFinishesWhatItBegan(t *testing.T) {
	t.Parallel()
	ready, err := front.NewReadiness(front.ReadinessConfig{})
	if err != nil {
		t.Fatal(err)
	}
	entered, goOn := make(chan struct{}), make(chan struct{})
	cfg := one(front.Listener{}, func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-goOn
		if err := r.Context().Err(); err != nil {
			t.Errorf("a request in flight sees %v", err)
		}
		_, _ = io.WriteString(w, "finished")
	})
	cfg.Readiness = ready
	cfg.Listeners = append(cfg.Listeners, front.Listener{Name: "operator", Operator: true, Routes: front.OperatorRoutes(ready, prometheus.NewRegistry(), nil)})
	h := open(t, cfg)

	inFlight := dial(t, h.address())
	if _, err := io.WriteString(inFlight, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-entered
	h.stop()
	h.log.next(t, "draining")

	res, got := ask(t, h.Addresses()["operator"].String(), "/readyz")
	if res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(got, "draining") {
		t.Errorf("/readyz = %d %s, want 503 draining", res.StatusCode, got)
	}
	var d net.Dialer
	for { // the listener closes at its own pace
		c, err := d.DialContext(t.Context(), "tcp", h.address())
		if err != nil {
			break
		}
		_ = c.Close()
	}
	close(goOn)
	if _, got := readAnswer(t, bufio.NewReader(inFlight)); got != "finished" {
		t.Errorf("the request in flight got %q", got)
	}
	if err := <-h.done; err != nil {
		t.Errorf("Serve = %v", err)
	}
}

func TestLoadBalancersHaveTimeToNoticeADrain(t *testing.T) {
	t.Parallel()
	ready, err := front.NewReadiness(front.ReadinessConfig{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := one(front.Listener{Routes: front.OperatorRoutes(ready, prometheus.NewRegistry(), nil)}, tellCaller)
	cfg.Readiness, cfg.DrainDelay = ready, 2*time.Second
	h := open(t, cfg)
	h.stop()
	h.log.next(t, "draining")
	if res, _ := ask(t, h.address(), "/readyz"); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("/readyz = %d, want 503", res.StatusCode)
	}
	if res, _ := ask(t, h.address(), "/"); res.StatusCode != http.StatusOK {
		t.Errorf("a request during the delay: %d, want 200", res.StatusCode)
	}
	if err := <-h.done; err != nil {
		t.Errorf("Serve = %v", err)
	}
}

func TestDrainCutsOffWhatTakesTooLong(t *testing.T) {
	t.Parallel()
	entered, ended := make(chan struct{}), make(chan error, 1)
	cfg := one(front.Listener{}, func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
		ended <- r.Context().Err()
	})
	cfg.DrainTimeout = 20 * time.Millisecond
	h := open(t, cfg)
	if _, err := io.WriteString(dial(t, h.address()), "GET / HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-entered
	h.stop()
	if err := <-h.done; err != nil {
		t.Errorf("Serve = %v", err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the request saw %v", err)
	}
	if line := h.log.next(t, "drain timed out, cutting requests off"); line["in_flight"] != 1.0 {
		t.Errorf("line %v, want 1 in flight", line)
	}
}

func TestATakenPortIsToldOnOneLineAndNothingStaysOpen(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	taken, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	f, err := front.New(front.Config{Listeners: []front.Listener{
		{Name: "good", Address: "127.0.0.1:0"},
		{Name: "public-http", Address: taken.Addr().String()},
	}})
	if err != nil {
		t.Fatal(err)
	}
	err = f.Listen(t.Context())
	if err == nil {
		t.Fatal("Listen took a taken port")
	}
	for _, want := range []string{`"public-http"`, taken.Addr().String(), "in use", "stop the program"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error has several lines: %q", err)
	}
	var d net.Dialer
	if c, err := d.DialContext(t.Context(), "tcp", f.Addresses()["good"].String()); err == nil {
		_ = c.Close()
		t.Error("a listener stays open after a failed Listen")
	}
}

func TestAPanicAnswers500AndTheProcessLives(t *testing.T) {
	t.Parallel()
	h := open(t, one(front.Listener{}, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/before":
			w.Header().Set("Etag", "x")
			panic("secret of the inside")
		case "/after":
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			panic("secret of the inside")
		case "/abort":
			panic(http.ErrAbortHandler)
		}
	}))
	res, got := ask(t, h.address(), "/before")
	if res.StatusCode != 500 || got != "internal error\n" || res.Header.Get("Etag") != "" || res.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("panic: %d %q %v", res.StatusCode, got, res.Header)
	}
	line := h.log.next(t, "handler panicked")
	if line["request_id"] != res.Header.Get("X-Request-Id") || !strings.Contains(fmt.Sprint(line["stack"]), "front_test.go") {
		t.Errorf("line %v lacks the request id or the stack", line)
	}
	if line := h.log.next(t, "request"); line["status"] != 500.0 {
		t.Errorf("access line %v, want status 500", line)
	}
	if got := say(t, h.address(), "GET /after HTTP/1.1\r\nHost: h\r\n\r\n"); strings.HasSuffix(got, "0\r\n\r\n") {
		t.Errorf("half an answer looks whole: %q", got)
	}
	if got := say(t, h.address(), "GET /abort HTTP/1.1\r\nHost: h\r\n\r\n"); got != "" {
		t.Errorf("an aborted request was answered with %q", got)
	}
	if n := h.metric(t, "secsy_http_panics_total"); n != 2 {
		t.Errorf("%v panics counted, want 2", n)
	}
	if res, _ := ask(t, h.address(), "/"); res.StatusCode != 200 {
		t.Errorf("after the panics: %d", res.StatusCode)
	}
}

func TestARequestIDIsOursAndNeverTwice(t *testing.T) {
	t.Parallel()
	h := open(t, one(front.Listener{}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, peer.From(r.Context()).RequestID)
	}))
	seen := map[string]bool{}
	c := dial(t, h.address())
	for range 50 {
		res, id := askOver(t, c, "/", "X-Request-Id: mine")
		if len(id) != 32 || seen[id] || res.Header.Get("X-Request-Id") != id {
			t.Fatalf("request id %q, header %q", id, res.Header.Get("X-Request-Id"))
		}
		seen[id] = true
	}
}

func TestTheAccessLineIsBoundedAndClean(t *testing.T) {
	t.Parallel()
	h := open(t, one(front.Listener{}, func(w http.ResponseWriter, r *http.Request) {
		peer.Annotate(r.Context(), "account", "a\u202e\x1b[31m\n7")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "12345")
	}))
	ask(t, h.address(), "/%1b[31m/"+strings.Repeat("p", 1000)+"?password=secret",
		"User-Agent: \xff\u202e"+strings.Repeat("u", 1000), "X-Forwarded-For: 6.6.6.6")
	line := h.log.next(t, "request")
	for key, want := range map[string]any{
		"listener": "public", "class": "test", "method": "GET", "status": 201.0, "bytes": 5.0,
		"client": "127.0.0.1", "conn": "127.0.0.1", "proto": "HTTP/1.1",
	} {
		if line[key] != want {
			t.Errorf("%s = %v, want %v", key, line[key], want)
		}
	}
	for _, key := range []string{"time", "request_id", "duration_ms"} {
		if line[key] == nil {
			t.Errorf("no %s in %v", key, line)
		}
	}
	path, agent := line["path"].(string), line["agent"].(string)
	if len(path) > 128 || len(agent) > 128 || !strings.HasPrefix(agent, "??u") {
		t.Errorf("path of %d, agent of %d bytes: %q", len(path), len(agent), agent)
	}
	if got := line["note"].(map[string]any)["account"]; got != "a??[31m?7" {
		t.Errorf("note = %q", got)
	}
	if text := h.log.text(); strings.Contains(text, "secret") || strings.Contains(text, "6.6.6.6") {
		t.Errorf("the log says too much: %s", text)
	}
}

func TestAQuietRequestIsCountedAndNotLogged(t *testing.T) {
	t.Parallel()
	h := open(t, one(front.Listener{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/quiet" {
			peer.Quiet(r.Context())
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	c := dial(t, h.address())
	askOver(t, c, "/quiet")
	askOver(t, c, "/loud")
	if line := h.log.next(t, "request"); line["path"] != "/loud" {
		t.Errorf("first line is of %v", line["path"])
	}
	if n := h.metric(t, "secsy_http_requests_total", "code_class=4xx"); n != 1 {
		t.Errorf("%v refusals counted, want 1", n)
	}
}

func TestBadConfigurationIsRefused(t *testing.T) {
	t.Parallel()
	some := http.HandlerFunc(tellCaller)
	for name, l := range map[string]front.Listener{
		"no name":            {Address: "127.0.0.1:0"},
		"label from outside": {Name: "a b", Address: "127.0.0.1:0"},
		"nowhere":            {Name: "x"},
		"two places":         {Name: "x", Address: "127.0.0.1:0", Socket: "/s"},
		"socket with hops":   {Name: "x", Socket: "/s", Hops: newHops(t, front.Forwarded)},
		"long proxy wait":    {Name: "x", Address: "127.0.0.1:0", Limits: front.Limits{Proxy: 6 * time.Second}},
		"unbounded":          {Name: "x", Address: "127.0.0.1:0", Limits: front.Limits{Read: -1}},
		"relative route":     {Name: "x", Address: "127.0.0.1:0", Routes: []front.Route{{Prefix: "a", Class: "a", Handler: some}}},
		"no handler":         {Name: "x", Address: "127.0.0.1:0", Routes: []front.Route{{Prefix: "/", Class: "a"}}},
		"free class":         {Name: "x", Address: "127.0.0.1:0", Routes: []front.Route{{Prefix: "/", Class: "A b", Handler: some}}},
		"limited operator":   {Name: "x", Address: "127.0.0.1:0", Operator: true, Routes: []front.Route{{Prefix: "/", Class: "a", Handler: some, Limit: &ratelimit.Endpoint{}}}},
		"route twice":        {Name: "x", Address: "127.0.0.1:0", Routes: []front.Route{{Prefix: "/a", Class: "a", Handler: some}, {Prefix: "/a/", Class: "b", Handler: some}}},
	} {
		if _, err := front.New(front.Config{Listeners: []front.Listener{l}}); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	twin := front.Listener{Name: "x", Address: "127.0.0.1:0"}
	if _, err := front.New(front.Config{Listeners: []front.Listener{twin, twin}}); err == nil {
		t.Error("two listeners of one name: taken")
	}
	f, err := front.New(front.Config{Listeners: []front.Listener{twin}})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Serve(t.Context()); err == nil {
		t.Error("Serve without Listen: no error")
	}
}

func TestHTTPSSpeaksHTTP2AndNothingBelowTLS12(t *testing.T) {
	t.Parallel()
	certFile, keyFile := writeCertificate(t, t.TempDir(), "ca.test")
	cert, err := front.NewFileCertificate(front.FileCertificateConfig{CertFile: certFile, KeyFile: keyFile})
	if err != nil {
		t.Fatal(err)
	}
	h := open(t, one(front.Listener{Certificate: cert.GetCertificate}, tellCaller))
	roots := rootsFrom(t, certFile)
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "ca.test"}, ForceAttemptHTTP2: true}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+h.address()+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.ProtoMajor != 2 || res.StatusCode != 200 {
		t.Errorf("got %s %d, want HTTP/2.0 200", res.Proto, res.StatusCode)
	}
	if line := h.log.next(t, "request"); line["tls"] != "TLS 1.3" || line["proto"] != "HTTP/2.0" {
		t.Errorf("access line %v", line)
	}
	old := tls.Client(dial(t, h.address()), &tls.Config{RootCAs: roots, ServerName: "ca.test", MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10})
	if err := old.HandshakeContext(t.Context()); err == nil {
		t.Error("TLS 1.1 was accepted")
	}
	if got := say(t, h.address(), "GET / HTTP/1.1\r\nHost: h\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.0 400") {
		t.Errorf("plain HTTP on the TLS port: %q", got)
	}
	if text := h.log.text(); strings.Contains(text, "handshake") {
		t.Errorf("strangers' handshakes fill the log: %s", text)
	}
}

// BenchmarkRequest is what the front adds to a handler, the access line included.
func BenchmarkRequest(b *testing.B) {
	hops := newHops(b, front.XForwardedFor, "192.0.2.0/24")
	f, err := front.New(front.Config{
		Listeners: []front.Listener{{
			Name: "bench", Address: "127.0.0.1:0", Hops: hops,
			Routes: []front.Route{{Prefix: "/ocsp", Class: "ocsp", Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusOK)
			})}},
		}},
		AccessLog: slog.New(slog.NewJSONHandler(io.Discard, nil)), //nolint:sloglint // writing the line is part of what is measured
	})
	if err != nil {
		b.Fatal(err)
	}
	h := f.Handler("bench")
	r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/ocsp/MFQwUjBQME4wTDAJBgUrDgMCGgUABBQ", nil)
	r.Header.Set("X-Forwarded-For", "203.0.113.7")
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
}
