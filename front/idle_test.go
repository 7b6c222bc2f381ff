package front_test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/front"
)

// untilTold answers requests for / at once, and others when they are told to.
func untilTold(goOn <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			<-goOn
		}
		_, _ = io.WriteString(w, r.URL.Path)
	}
}

// closed reports whether the other side has closed c. It is for connections from
// which nothing more is to come.
func closed(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	return !isDeadline(err)
}

func (h *house) evicted(t *testing.T) float64 {
	t.Helper()
	return h.metric(t, "secsy_http_connections_refused_total", "reason=evicted_idle")
}

// await waits for a metric to become n: over real sockets, nothing else tells.
func (h *house) await(t *testing.T, name string, n float64) {
	t.Helper()
	for deadline := time.Now().Add(patience); h.metric(t, name) != n; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%s stays at %v, want %v", name, h.metric(t, name), n)
		}
	}
}

func TestTheLongestIdleConnectionMakesRoom(t *testing.T) {
	t.Parallel()
	bubble(t, one(front.Listener{Limits: front.Limits{Connections: 3, ConnectionsPerClient: 3}}, tellCaller), func(t *testing.T, s *street, h *house) {
		a, b, c := s.from(t, "192.0.2.1"), s.from(t, "192.0.2.2"), s.from(t, "192.0.2.3")
		for _, x := range []net.Conn{b, a, c} {
			status(t, x, plainGet)
			time.Sleep(time.Second)
		}
		status(t, b, plainGet) // now a is idle for longest
		synctest.Wait()
		d := s.from(t, "192.0.2.4")
		if got := status(t, d, plainGet); got != http.StatusOK {
			t.Errorf("the new connection: %d, want 200", got)
		}
		if !closed(a) || closed(b) || closed(c) {
			t.Errorf("closed: a %v, b %v, c %v; want a, which is idle for longest", closed(a), closed(b), closed(c))
		}
		if n := h.evicted(t); n != 1 {
			t.Errorf("%v evictions counted, want 1", n)
		}
		if n := h.metric(t, "secsy_http_connections"); n != 3 {
			t.Errorf("%v connections open, want 3", n)
		}
	})
}

func TestAMuteConnectionMakesRoomAfterASecond(t *testing.T) {
	t.Parallel()
	bubble(t, one(front.Listener{Limits: front.Limits{Connections: 2, ConnectionsPerClient: 2}}, tellCaller), func(t *testing.T, s *street, h *house) {
		nothing, half := s.from(t, "192.0.2.1"), s.from(t, "192.0.2.2")
		send(t, half, "GET / HTTP/1.1\r\nHost: h\r\n")
		time.Sleep(time.Second - time.Millisecond)
		if got := answered(t, s.from(t, "192.0.2.3")); got != http.StatusServiceUnavailable {
			t.Errorf("before the second is over: %d, want 503", got)
		}
		time.Sleep(2 * time.Millisecond)
		for range 2 {
			if got := status(t, s.from(t, "192.0.2.3"), plainGet); got != http.StatusOK {
				t.Errorf("afterwards: %d, want 200", got)
			}
		}
		if !closed(nothing) || !closed(half) {
			t.Errorf("closed: the mute one %v, half a request %v; want both", closed(nothing), closed(half))
		}
		if n := h.evicted(t); n != 2 {
			t.Errorf("%v evictions counted, want 2", n)
		}
	})
}

// Mute or idle, it is the time that counts.
func TestTheLongerSilenceMakesRoom(t *testing.T) {
	t.Parallel()
	for name, muteFirst := range map[string]bool{"mute": true, "idle": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, one(front.Listener{Limits: front.Limits{Connections: 2, ConnectionsPerClient: 2}}, tellCaller), func(t *testing.T, s *street, _ *house) {
				first := s.from(t, "192.0.2.1")
				if !muteFirst {
					status(t, first, plainGet)
				}
				time.Sleep(2 * time.Second)
				second := s.from(t, "192.0.2.2")
				if muteFirst {
					status(t, second, plainGet)
				}
				time.Sleep(2 * time.Second)
				if got := status(t, s.from(t, "192.0.2.3"), plainGet); got != http.StatusOK {
					t.Errorf("the new connection: %d, want 200", got)
				}
				if !closed(first) || closed(second) {
					t.Errorf("closed: first %v, second %v; want the first", closed(first), closed(second))
				}
			})
		})
	}
}

// A client beyond its own bound makes room among its own connections, and costs
// nobody else one.
func TestAClientAtItsBoundGivesUpItsOwnConnection(t *testing.T) {
	t.Parallel()
	bubble(t, one(front.Listener{Limits: front.Limits{Connections: 4, ConnectionsPerClient: 2}}, tellCaller), func(t *testing.T, s *street, h *house) {
		other := s.from(t, "2001:db8:1::1")
		status(t, other, plainGet)
		time.Sleep(time.Second)
		first, second := s.from(t, "2001:db8:2::1"), s.from(t, "2001:db8:2::2")
		status(t, first, plainGet)
		time.Sleep(time.Second)
		status(t, second, plainGet)
		synctest.Wait()
		for i := range 3 { // the addresses of one network of 64 bits are one client
			if got := status(t, s.from(t, fmt.Sprintf("2001:db8:2::%d", 3+i)), plainGet); got != http.StatusOK {
				t.Errorf("connection %d of the client: %d, want 200", 3+i, got)
			}
			synctest.Wait()
		}
		if !closed(first) || !closed(second) || closed(other) {
			t.Errorf("closed: first %v, second %v, another's %v; want its own", closed(first), closed(second), closed(other))
		}
		if n := h.metric(t, "secsy_http_connections"); n != 3 {
			t.Errorf("%v connections open, want 3", n)
		}
	})
}

// A connection whose request is under way stays, in its handler and as long as
// its body keeps coming, whoever comes; the newcomer is turned away.
func TestARequestUnderWayIsNeverEvicted(t *testing.T) {
	t.Parallel()
	for reason, c := range map[string]struct {
		newcomer string
		limits   front.Limits
	}{
		"full":        {"192.0.2.2", front.Limits{Connections: 2, ConnectionsPerClient: 2}},
		"client_full": {"192.0.2.1", front.Limits{Connections: 10, ConnectionsPerClient: 2}},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			handler := func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					readAndTell(w, r)
					return
				}
				time.Sleep(10 * time.Second) // in the bubble
			}
			bubble(t, one(front.Listener{Limits: c.limits}, handler), func(t *testing.T, s *street, h *house) {
				inHandler, inBody := s.from(t, "192.0.2.1"), s.from(t, "192.0.2.1")
				send(t, inHandler, plainGet)
				send(t, inBody, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 7\r\n\r\nx")
				for range 5 {
					time.Sleep(time.Second - time.Millisecond)
					send(t, inBody, "x")
				}
				time.Sleep(time.Second - time.Millisecond)
				refused := s.from(t, c.newcomer)
				res, err := http.ReadResponse(bufio.NewReader(refused), nil)
				if err != nil {
					t.Fatal(err)
				}
				_ = res.Body.Close()
				if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
					t.Errorf("one too many got %d %v", res.StatusCode, res.Header)
				}
				send(t, inBody, "y")
				if got := answered(t, inBody); got != http.StatusOK {
					t.Errorf("the request in its body: %d, want 200", got)
				}
				if got := answered(t, inHandler); got != http.StatusOK {
					t.Errorf("the request in its handler: %d, want 200", got)
				}
				if n := h.metric(t, "secsy_http_connections_refused_total", "reason="+reason); n != 1 {
					t.Errorf("%v counted, want 1", n)
				}
				if n := h.evicted(t); n != 0 {
					t.Errorf("%v evictions counted, want none", n)
				}
			})
		})
	}
}

// holding answers requests for / at once; others it reads, works on, or answers
// at length.
func holding(work func()) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/read":
			readAndTell(w, r)
		case "/work":
			work()
		case "/large":
			_, _ = w.Write(make([]byte, 1<<20))
		}
	}
}

// Whoever keeps us waiting, for the rest of a body or for an answer to be taken,
// keeps no place from others: strangers could hold them all, and it would cost
// them nothing.
func TestARequestThatWaitsForItsClientMakesRoomAfterASecond(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"length":         "POST /read HTTP/1.1\r\nHost: h\r\nContent-Length: 60000\r\n\r\nx",
		"chunks":         "POST /read HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nx",
		"continue":       "POST /read HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
		"answer":         "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
		"a large answer": "GET /large HTTP/1.1\r\nHost: h\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			work := func() { time.Sleep(10 * time.Second) } // in the bubble
			bubble(t, one(front.Listener{Limits: front.Limits{Connections: 2, ConnectionsPerClient: 2}}, holding(work)), func(t *testing.T, s *street, h *house) {
				working, waiting := s.from(t, "192.0.2.1"), s.from(t, "192.0.2.2")
				send(t, working, "GET /work HTTP/1.1\r\nHost: h\r\n\r\n")
				send(t, waiting, text)
				time.Sleep(time.Second - time.Millisecond)
				if got := answered(t, s.from(t, "192.0.2.3")); got != http.StatusServiceUnavailable {
					t.Errorf("before the second is over: %d, want 503", got)
				}
				time.Sleep(2 * time.Millisecond)
				if got := status(t, s.from(t, "192.0.2.3"), plainGet); got != http.StatusOK {
					t.Errorf("afterwards: %d, want 200", got)
				}
				if got := answered(t, working); got != http.StatusOK {
					t.Errorf("the request that we were at work on: %d, want 200", got)
				}
				if n := h.evicted(t); n != 1 {
					t.Errorf("%v evictions counted, want 1", n)
				}
			})
		})
	}
}

// Requests that never came whole leave no lines when their connections make room:
// they are counted. One whose client leaves by itself has its line.
func TestConnectionsThatMakeRoomLeaveNoLines(t *testing.T) {
	t.Parallel()
	const half = "POST /read HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nx"
	bubble(t, one(front.Listener{Limits: front.Limits{Connections: 1}}, holding(nil)), func(t *testing.T, s *street, h *house) {
		for range 10 {
			send(t, s.from(t, "192.0.2.2"), half)
			time.Sleep(2 * time.Second)
		}
		left := s.from(t, "192.0.2.3")
		send(t, left, half)
		_ = left.Close()
		time.Sleep(time.Second)
		if n := h.evicted(t); n != 10 {
			t.Errorf("%v evictions counted, want 10", n)
		}
		if n := strings.Count(h.log.text(), `"client":"192.0.2.2"`); n != 0 {
			t.Errorf("%d lines of requests that never came, want none", n)
		}
		if n := strings.Count(h.log.text(), `"client":"192.0.2.3"`); n != 1 {
			t.Errorf("%d lines of the client that left, want 1", n)
		}
	})
}

// On HTTP/2 a connection waits for its client when all its requests do, and is at
// work as long as we are at work on one of them.
func TestStreamsThatWaitForTheirClientMakeRoom(t *testing.T) {
	t.Parallel()
	goOn := make(chan struct{})
	h, config := openTLS(t, front.Listener{Limits: front.Limits{Connections: 2, ConnectionsPerClient: 2}}, holding(func() { <-goOn }))
	send := func(tr *http.Transport, path string, body io.Reader) error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+h.address()+path, body)
		if err != nil {
			return err
		}
		res, err := tr.RoundTrip(req)
		if err != nil {
			return err
		}
		if res.ProtoMajor != 2 {
			t.Errorf("spoke %s", res.Proto)
		}
		return res.Body.Close()
	}
	transport := func() *http.Transport {
		tr := &http.Transport{TLSClientConfig: config.Clone(), ForceAttemptHTTP2: true}
		t.Cleanup(tr.CloseIdleConnections)
		return tr
	}
	never, unmuteNever := io.Pipe()
	defer func() { _ = unmuteNever.Close() }()
	late, unmute := io.Pipe()
	waiting, both := transport(), transport()
	worked, waited, beside := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { worked <- send(both, "/work", http.NoBody) }()
	h.await(t, "secsy_http_requests_in_flight", 1)
	go func() { beside <- send(both, "/read", late) }()
	h.await(t, "secsy_http_requests_in_flight", 2)
	go func() { waited <- send(waiting, "/read", never) }()
	h.await(t, "secsy_http_requests_in_flight", 3)
	for deadline := time.Now().Add(patience); send(transport(), "/", http.NoBody) != nil; {
		if time.Now().After(deadline) {
			t.Fatal("a stream whose body doesn't come keeps its place")
		}
	}
	if err := <-waited; err == nil {
		t.Error("the stream whose body didn't come was answered")
	}
	close(goOn)
	if err := <-worked; err != nil {
		t.Errorf("the request that we were at work on: %v", err)
	}
	_ = unmute.Close()
	if err := <-beside; err != nil {
		t.Errorf("the request beside it: %v", err)
	}
}

// Over TLS it is the inner connection that has the place, and over HTTP/2 it is
// idle when no stream is open.
func TestAnIdleHTTP2ConnectionMakesRoom(t *testing.T) {
	t.Parallel()
	goOn := make(chan struct{})
	h, config := openTLS(t, front.Listener{Limits: front.Limits{Connections: 2, ConnectionsPerClient: 2}}, untilTold(goOn))
	get := func(tr *http.Transport, path string) error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+h.address()+path, nil)
		if err != nil {
			return err
		}
		res, err := tr.RoundTrip(req)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.ProtoMajor != 2 {
			t.Errorf("spoke %s", res.Proto)
		}
		return err
	}
	transport := func() *http.Transport {
		tr := &http.Transport{TLSClientConfig: config.Clone(), ForceAttemptHTTP2: true}
		t.Cleanup(tr.CloseIdleConnections)
		return tr
	}
	idle, busy := transport(), transport()
	slow := make(chan error, 1)
	if err := get(busy, "/"); err != nil {
		t.Fatal(err)
	}
	go func() { slow <- get(busy, "/slow") }()
	h.await(t, "secsy_http_requests_in_flight", 1)
	if err := get(idle, "/"); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(patience)
	for get(transport(), "/") != nil { // the stream of idle may not have ended yet
		if time.Now().After(deadline) {
			t.Fatal("an idle connection keeps its place")
		}
	}
	close(goOn)
	if err := <-slow; err != nil {
		t.Errorf("the request under way: %v", err)
	}
	if n := h.evicted(t); n != 1 {
		t.Errorf("%v evictions counted, want 1", n)
	}
}

// Places are neither lost nor made, whatever connections do at once; and there
// are never more than there may be.
func TestPlacesAreConserved(t *testing.T) {
	t.Parallel()
	const places, clients, rounds = 8, 16, 60
	goOn := make(chan struct{})
	h := open(t, one(front.Listener{Limits: front.Limits{Connections: places, ConnectionsPerClient: places}}, holding(func() { <-goOn })))
	defer close(goOn)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for range rounds {
				once(h.address(), random)
				if n := h.metric(t, "secsy_http_connections"); n > places {
					t.Errorf("%v connections open, want %d at most", n, places)
				}
			}
		})
	}
	wg.Wait()
	h.await(t, "secsy_http_connections", 0)
	// All places are there again, each for a request under way.
	for range places {
		c := dial(t, h.address())
		if _, err := io.WriteString(c, "GET /work HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	h.await(t, "secsy_http_requests_in_flight", places)
	if got := say(t, h.address(), ""); code(got) != "503 Service Unavailable" {
		t.Errorf("one more: %q, want 503", got)
	}
}

// once does one of the things that connections do.
func once(address string, random *rand.Rand) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	text := []string{
		"", "GET / HT", "\x00\r\n\r\n", get, plainGet, plainGet + plainGet,
		"POST /read HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nx",
	}[random.IntN(7)]
	if _, err := io.WriteString(c, text); err != nil || text == "" {
		return
	}
	if random.IntN(2) == 0 {
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	}
}
