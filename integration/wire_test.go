package integration

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A rawConn is a TLS connection on which a test writes requests of HTTP/1.1 by
// hand, one before the answer to the one before has been read: what is no part of
// an answer is then taken for the next one's beginning.
type rawConn struct {
	t    *testing.T
	conn *tls.Conn
	in   *bufio.Reader
	host string
}

func (s *server) raw(t *testing.T) *rawConn {
	t.Helper()
	pem, err := os.ReadFile(s.env["CA_BUNDLE"])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	host, _, _ := strings.Cut(strings.TrimPrefix(s.env["ACME_DIRECTORY"], "https://"), "/")
	conn, err := tls.Dial("tcp", host, &tls.Config{RootCAs: roots, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &rawConn{t, conn, bufio.NewReader(conn), host}
}

func (c *rawConn) write(method, path, contentType, body string) {
	c.t.Helper()
	head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\n", method, path, c.host)
	if method == http.MethodPost {
		head += fmt.Sprintf("Content-Type: %s\r\nContent-Length: %d\r\n", contentType, len(body))
	}
	if _, err := io.WriteString(c.conn, head+"\r\n"+body); err != nil {
		c.t.Fatal(err)
	}
}

// read reads one answer: its status, its header lines as they came, its body.
func (c *rawConn) read(method string) (status int, lines map[string][]string, body []byte) {
	c.t.Helper()
	line := func() string {
		l, err := c.in.ReadString('\n')
		if err != nil {
			c.t.Fatalf("reading a line (%q): %v", l, err)
		}
		return strings.TrimSuffix(l, "\r\n")
	}
	first := line()
	if _, err := fmt.Sscanf(first, "HTTP/1.1 %d", &status); err != nil {
		c.t.Fatalf("not the beginning of an answer: %q", first)
	}
	lines = map[string][]string{}
	for l := line(); l != ""; l = line() {
		name, value, _ := strings.Cut(l, ": ")
		lines[strings.ToLower(name)] = append(lines[strings.ToLower(name)], value)
	}
	if method == http.MethodHead || status == http.StatusNoContent {
		return status, lines, nil
	}
	n, err := strconv.Atoi(strings.Join(lines["content-length"], ","))
	if err != nil {
		c.t.Fatalf("%d: the length is %q", status, lines["content-length"])
	}
	body = make([]byte, n)
	if _, err := io.ReadFull(c.in, body); err != nil {
		c.t.Fatal(err)
	}
	return status, lines, body
}

// wellFormed holds an answer to what every answer of ACME has, whoever gives it:
// the handlers, or the listener before them.
func wellFormed(t *testing.T, what string, status int, lines map[string][]string, body []byte) {
	t.Helper()
	nonce := lines["replay-nonce"]
	if len(nonce) != 1 {
		t.Errorf("%s %d: nonces %q", what, status, nonce)
	} else if _, err := base64.RawURLEncoding.DecodeString(nonce[0]); err != nil || nonce[0] == "" {
		t.Errorf("%s %d: nonce %q", what, status, nonce[0])
	}
	if !slices.Equal(lines["cache-control"], []string{"no-store"}) || !slices.Equal(lines["access-control-allow-origin"], []string{"*"}) {
		t.Errorf("%s %d: %v", what, status, lines)
	}
	for _, l := range lines["link"] {
		if strings.Count(l, "rel=") != 1 {
			t.Errorf("%s %d: Link %q", what, status, l)
		}
	}
	if status < 400 {
		return
	}
	if !slices.Equal(lines["content-type"], []string{"application/problem+json"}) {
		t.Errorf("%s %d: Content-Type %q", what, status, lines["content-type"])
	}
	var problem struct {
		Type   string
		Status int
	}
	if err := json.Unmarshal(body, &problem); len(body) > 0 && (err != nil || problem.Status != status || !strings.HasPrefix(problem.Type, "urn:ietf:params:acme:error:")) {
		t.Errorf("%s %d: %s", what, status, body)
	}
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		n, err := strconv.Atoi(strings.Join(lines["retry-after"], ","))
		if err != nil || n < 1 || n > 600 || problem.Type != "" && problem.Type != "urn:ietf:params:acme:error:rateLimited" {
			t.Errorf("%s %d: Retry-After %q, %s", what, status, lines["retry-after"], problem.Type)
		}
	}
}

// TestAnswersOfTheBuiltServerAreWellFormed reads, from the socket, what the
// listener and the handlers say to requests that are no good, sent without
// waiting for an answer.
func TestAnswersOfTheBuiltServerAreWellFormed(t *testing.T) {
	t.Parallel()
	s := startQuickstart(t, quickstart{})
	const jose = "application/jose+json"
	requests := []struct {
		method, path, typ, body string
		status                  int
	}{
		{"GET", "/acme/directory", "", "", 200},
		{"HEAD", "/acme/directory", "", "", 200},
		{"HEAD", "/acme/new-nonce", "", "", 200},
		{"GET", "/acme/new-nonce", "", "", 204},
		{"HEAD", "/acme/new-nonce", "", "", 200},
		{"OPTIONS", "/acme/new-order", "", "", 204},
		{"GET", "/acme/new-order", "", "", 405},
		{"HEAD", "/acme/new-order", "", "", 405},
		{"DELETE", "/acme/account/1", "", "", 405},
		{"GET", "/acme/nothing", "", "", 404},
		{"HEAD", "/acme/nothing", "", "", 404},
		{"POST", "/acme/new-order", "application/json", "{}", 415},
		{"POST", "/acme/new-order", "text/plain", "", 415},
		{"POST", "/acme/new-order", jose, "", 400},
		{"POST", "/acme/new-order", jose, "{}", 400},
		{"POST", "/acme/revoke-cert", jose, "[]", 400},
		{"POST", "/acme/new-order", jose, strings.Repeat("x", 100<<10), 413},
	}
	c := s.raw(t)
	for _, r := range requests[:len(requests)-1] { // the last one ends the connection
		c.write(r.method, r.path, r.typ, r.body)
	}
	for i, r := range requests {
		if i == len(requests)-1 {
			c = s.raw(t)
			c.write(r.method, r.path, r.typ, r.body)
		}
		status, lines, body := c.read(r.method)
		if status != r.status {
			t.Errorf("%s %s: %d; want %d: %s", r.method, r.path, status, r.status, body)
		}
		wellFormed(t, r.method+" "+r.path, status, lines, body)
	}
}

// TestRefusalsOfTheListenerAreWellFormed does the same with what is refused for
// its number, before anything of it is read.
func TestRefusalsOfTheListenerAreWellFormed(t *testing.T) {
	t.Parallel()
	s := limited(t, quickstart{}, "  per_ip: {rate: 0.05, burst: 8}\n")
	c := s.raw(t)
	for range 40 { // a quarter of a token each
		c.write("POST", "/acme/order/1", "application/jose+json", "{}")
		_, _, _ = c.read("POST")
	}
	for path, want := range map[string]int{"/acme/new-order": 429, "/acme/new-account": 429, "/acme/order/1": 503, "/acme/order/1/finalize": 503, "/acme/key-change": 503} {
		c.write("POST", path, "application/jose+json", "{}")
		status, lines, body := c.read("POST")
		if status != want {
			t.Errorf("%s: %d; want %d: %s", path, status, want, body)
		}
		wellFormed(t, path, status, lines, body)
	}
	c.write("POST", "/acme/revoke-cert", "application/jose+json", "{}")
	if status, _, body := c.read("POST"); status != http.StatusBadRequest {
		t.Errorf("a revocation, which no limit refuses: %d %s", status, body)
	}
}
