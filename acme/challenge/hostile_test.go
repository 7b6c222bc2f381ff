package challenge_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
)

// A hostile is a server that sends its beginning, and then one thing over and
// over for as long as somebody takes it.
type hostile struct {
	port int
	sent <-chan int // bytes taken by one client, once it is gone
}

func startHostile(t *testing.T, begin, again string) hostile {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan int, 16)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { sent <- flood(c, begin, again) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return hostile{l.Addr().(*net.TCPAddr).Port, sent}
}

func flood(c net.Conn, begin, again string) (sent int) {
	defer c.Close()
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(4 << 10) // what the kernel holds is not what the client read
	}
	if begin != "tls" {
		_, _ = c.Read(make([]byte, 4<<10))
	}
	n, err := io.WriteString(c, strings.TrimPrefix(begin, "tls"))
	sent += n
	for err == nil && again != "" {
		n, err = io.WriteString(c, again)
		sent += n
	}
	_, _ = io.Copy(io.Discard, c) // until the client leaves
	return sent
}

// Whatever a server sends, and for however long: the attempt ends in its time,
// takes no more than a little of it, and closes the connection.
func TestHostileServersAreGivenNoMoreThanTheirBounds(t *testing.T) {
	t.Parallel()
	const ok = "HTTP/1.1 200 OK\r\n"
	line := "X-Filler: " + strings.Repeat("x", 1000) + "\r\n"
	for what, c := range map[string]struct{ begin, again string }{
		"nothing":                {"", ""},
		"half a status line":     {"HTTP/1.", ""},
		"an endless status line": {"HTTP/1.1 200 ", "OK"},
		"no HTTP":                {"SSH-2.0-OpenSSH_9.9\r\n", "\x00\xff"},
		"endless header":         {ok, line},
		"endless header line":    {ok + "X: ", "xxxxxxxx"},
		"endless continuation":   {ok + "X: a\r\n", " b\r\n"},
		"ten megabytes of one":   {ok + "X: " + strings.Repeat("x", 10<<20) + "\r\n\r\n", ""},
		"endless informations":   {"", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"},
		"endless continues":      {"", "HTTP/1.1 100 Continue\r\n\r\n"},
		"endless processing":     {"", "HTTP/1.1 102 Processing\r\n\r\n"},
		"switching protocols":    {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", "xxxxxxxx"},
		"endless body":           {ok + "\r\n", line},
		"endless chunks":         {ok + "Transfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n"},
		"endless chunk":          {ok + "Transfer-Encoding: chunked\r\n\r\n7fffffffffffffff\r\n", line},
		"endless chunk length":   {ok + "Transfer-Encoding: chunked\r\n\r\n", "0000"},
		"endless extension":      {ok + "Transfer-Encoding: chunked\r\n\r\n1;", "xxxx"},
		"junk for a chunk":       {ok + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", ""},
		"endless trailer":        {ok + "Transfer-Encoding: chunked\r\nTrailer: X\r\n\r\n0\r\n", line},
		"no end of a short body": {ok + "Content-Length: 100\r\n\r\nx", ""},
		"unknown encoding":       {ok + "Transfer-Encoding: gzip, chunked\r\n\r\n", "1\r\nx\r\n"},
		"negative length":        {ok + "Content-Length: -1\r\n\r\n", "x"},
		"two lengths":            {ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n", "x"},
		"HTTP/2 uninvited":       {"\x00\x00\x00\x04\x00\x00\x00\x00\x00", "\x00\x00\x00\x04\x00\x00\x00\x00\x00"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h := startHostile(t, c.begin, c.again)
			cfg := config(newNameServer(t, address()), h.port)
			h.attempt(t, func() *acme.Problem {
				cfg.StepTimeout, cfg.Timeout = time.Second, 2*time.Second
				_, p := validate(t, cfg, acme.HTTP01)
				return p
			})
		})
	}
}

func address() string { return name + ". IN A 127.0.0.1" }

// attempt runs one, and holds it to its bounds.
func (h hostile) attempt(t *testing.T, attempt func() *acme.Problem) {
	t.Helper()
	start := time.Now()
	p := attempt()
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	if p == nil {
		t.Fatal("it passed")
	}
	if len(p.Detail) > 1000 {
		t.Errorf("a detail of %d bytes", len(p.Detail))
	}
	// Buffers of the kernel on both sides are most of this.
	if n := <-h.sent; n > 8<<20 {
		t.Errorf("%d bytes were taken", n)
	}
}

func TestHostileTLSIsGivenNoMoreThanItsBounds(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct{ begin, again string }{
		"nothing":           {"tls", ""},
		"half a record":     {"tls\x16\x03\x03\x40\x00", "\x00"},
		"endless warnings":  {"tls", "\x15\x03\x03\x00\x02\x01\x5a"},
		"endless empties":   {"tls", "\x16\x03\x03\x00\x00"},
		"no TLS":            {"tlsHTTP/1.1 400 Bad Request\r\n\r\n", "x"},
		"a record too long": {"tls\x16\x03\x03\xff\xff", strings.Repeat("x", 1000)},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h := startHostile(t, c.begin, c.again)
			port := serveHTTP(t, http.RedirectHandler(fmt.Sprintf("https://%s:%d/", name, h.port), http.StatusFound))
			cfg := config(newNameServer(t, address()), port)
			cfg.HTTPSPort = h.port
			h.attempt(t, func() *acme.Problem {
				cfg.StepTimeout, cfg.Timeout = time.Second, 2*time.Second
				_, p := validate(t, cfg, acme.HTTP01)
				if p != nil && p.Type != acme.TLSError {
					t.Errorf("problem %s %q", p.Type, p.Detail)
				}
				return p
			})
		})
	}
}
