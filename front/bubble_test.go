package front_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/front"
)

// A street is a listener in memory. What serves it can live in a bubble, where
// time passes only while everybody waits.
type street struct {
	arrivals chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func (s *street) Accept() (net.Conn, error) {
	select {
	case c := <-s.arrivals:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

func (s *street) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func (s *street) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80} }

// cameFrom is a connection whose other end has an address.
type cameFrom struct {
	net.Conn
	from netip.AddrPort
}

func (c cameFrom) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.from) }

// from connects a client with that address.
func (s *street) from(t *testing.T, address string) net.Conn {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { _ = ours.Close() })
	s.arrivals <- cameFrom{theirs, netip.AddrPortFrom(netip.MustParseAddr(address), 4711)}
	return ours
}

// bubble serves one listener in a bubble.
func bubble(t *testing.T, cfg front.Config, test func(t *testing.T, s *street, h *house)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &house{done: make(chan error, 1), log: newLogbook(), reg: prometheus.NewRegistry()}
		cfg.Log, cfg.Registerer, cfg.DrainTimeout = h.log.logger(), h.reg, 0
		cfg.Listeners[0].Name, cfg.Listeners[0].Address = "public", "192.0.2.1:80"
		f, err := front.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		s := &street{arrivals: make(chan net.Conn), closed: make(chan struct{})}
		front.ListenOnForTest(f, map[string]net.Listener{"public": s})
		ctx, cancel := context.WithCancel(context.Background())
		go func() { h.done <- f.Serve(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-h.done; err != nil {
				t.Errorf("Serve = %v", err)
			}
			time.Sleep(time.Minute) // for net/http to be done with what was cut off
		})
		test(t, s, h)
	})
}

// send writes from the side of the test, which must not wait for the reader.
func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Errorf("sending: %v", err)
	}
}

// lasts reads until the other side closes and returns what came, and after how
// long it closed.
func lasts(c net.Conn) (string, time.Duration) {
	start := time.Now()
	all, _ := io.ReadAll(c) // an evicted connection may end in an error
	return string(all), time.Since(start)
}

const plainGet = "GET / HTTP/1.1\r\nHost: h\r\n\r\n"

// status sends a request and returns the status of its answer; 0: none came.
func status(t *testing.T, c net.Conn, text string) int {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		return 0
	}
	return answered(t, c)
}

// answered reads one answer and returns its status; 0: none came.
func answered(t *testing.T, c net.Conn) int {
	t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	defer func() { _ = res.Body.Close() }()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Errorf("reading an answer: %v", err)
	}
	return res.StatusCode
}

func isDeadline(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// readAndTell reads the body and answers as a protocol would.
func readAndTell(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	code := http.StatusOK
	if err != nil {
		code = http.StatusBadRequest
	}
	if isDeadline(err) {
		code = http.StatusRequestTimeout
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		code = http.StatusRequestEntityTooLarge
	}
	w.WriteHeader(code)
	_, _ = fmt.Fprintf(w, "read %d", len(b))
}

func code(answer string) string {
	line, _, _ := strings.Cut(answer, "\r\n")
	return strings.TrimPrefix(line, "HTTP/1.1 ")
}
