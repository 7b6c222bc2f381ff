package front_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/front"
	"github.com/secsy-pki/secsy-pki/peer"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// perIP is a limit of burst requests of one source, and next to none after them.
func perIP(t testing.TB, burst int) *ratelimit.Endpoint {
	t.Helper()
	l, err := ratelimit.New(ratelimit.Config{PerIP: ratelimit.Bucket{Rate: 0.01, Burst: burst}})
	if err != nil {
		t.Fatal(err)
	}
	return l.Endpoint("acme_new_order", ratelimit.EndpointOptions{})
}

// spent is a limit that has nothing left for source.
func spent(t testing.TB, source string) *ratelimit.Endpoint {
	t.Helper()
	e := perIP(t, 1)
	if d := e.Admit(netip.MustParseAddr(source)); !d.OK {
		t.Fatalf("the first request of %s is refused: %+v", source, d)
	}
	return e
}

// limited is a listener whose only route has that limit.
func limited(l front.Listener, limit *ratelimit.Endpoint, refuse front.Refuser, handler http.HandlerFunc) front.Config {
	l.Routes = append(l.Routes, front.Route{Prefix: "/acme", Class: "acme_new_order", Handler: handler, Limit: limit, Refuse: refuse})
	return front.Config{Listeners: []front.Listener{l}, DrainTimeout: patience}
}

func neverCalled(t *testing.T) http.HandlerFunc {
	return func(http.ResponseWriter, *http.Request) { t.Error("a refused request reached its handler") }
}

// A refusal is counted, and is over before anything is logged about it: a flood
// must not fill the log.
func TestARefusedRequestIsCountedAndLeavesNoLine(t *testing.T) {
	t.Parallel()
	h := open(t, limited(front.Listener{}, perIP(t, 2), nil, tellCaller))
	c := dial(t, h.address())
	for i, want := range []int{200, 200, 429, 429, 429} {
		if res, _ := askOver(t, c, "/acme/new-order"); res.StatusCode != want {
			t.Errorf("request %d: %d, want %d", i+1, res.StatusCode, want)
		}
	}
	askOver(t, c, "/elsewhere") // its line comes after all of the others
	lines := 0
	for line := h.log.next(t, "request"); line["path"] == "/acme/new-order"; line = h.log.next(t, "request") {
		lines++
	}
	if lines != 2 {
		t.Errorf("%d lines of five requests, want the 2 that were admitted", lines)
	}
	for labels, want := range map[string]float64{"2xx": 2, "4xx": 3} {
		if n := h.metric(t, "secsy_http_requests_total", "class=acme_new_order", "code_class="+labels); n != want {
			t.Errorf("%v requests counted as %s, want %v", n, labels, want)
		}
	}
	h.await(t, "secsy_http_requests_in_flight", 0)
}

func TestARefusalIsInFlightWhileItIsWritten(t *testing.T) {
	t.Parallel()
	writing, goOn := make(chan struct{}), make(chan struct{})
	h := open(t, limited(front.Listener{}, spent(t, "127.0.0.1"), func(w http.ResponseWriter, _ *http.Request, _ ratelimit.Decision) {
		close(writing)
		<-goOn
		w.WriteHeader(http.StatusTooManyRequests)
	}, neverCalled(t)))
	c := dial(t, h.address())
	send(t, c, "GET /acme HTTP/1.1\r\nHost: h\r\n\r\n")
	<-writing
	if n := h.metric(t, "secsy_http_requests_in_flight"); n != 1 {
		t.Errorf("%v in flight, want 1", n)
	}
	close(goOn)
	if got := answered(t, c); got != http.StatusTooManyRequests {
		t.Errorf("status %d, want 429", got)
	}
}

// Without a form of its own, a route refuses in plain text. The time to wait is
// the decision's, in whole seconds and at least one.
func TestAPlainRefusalSaysWhenToComeBack(t *testing.T) {
	t.Parallel()
	limit := spent(t, "127.0.0.1")
	h := open(t, limited(front.Listener{}, limit, nil, neverCalled(t)))
	res, text := ask(t, h.address(), "/acme")
	if res.StatusCode != http.StatusTooManyRequests || text != "too many requests\n" ||
		res.Header.Get("Content-Type") != "text/plain; charset=utf-8" || res.Header.Get("X-Content-Type-Options") != "nosniff" ||
		res.Header.Get("Cache-Control") != "no-store" || res.Header.Get("Content-Length") != strconv.Itoa(len(text)) {
		t.Errorf("%d %q %v", res.StatusCode, text, res.Header)
	}
	// A token takes a hundred seconds.
	seconds, err := strconv.Atoi(res.Header.Get("Retry-After"))
	if err != nil || seconds < 90 || seconds > 100 {
		t.Errorf("Retry-After: %q, want up to 100", res.Header.Get("Retry-After"))
	}
	if id := res.Header.Get("X-Request-Id"); id != "" {
		t.Errorf("a refusal without a line has the id %s", id)
	}
}

// The route says in which form it refuses, and what was answered is counted.
func TestARouteRefusesInItsOwnForm(t *testing.T) {
	t.Parallel()
	var got ratelimit.Decision
	h := open(t, limited(front.Listener{}, spent(t, "127.0.0.1"), func(w http.ResponseWriter, r *http.Request, d ratelimit.Decision) {
		got = d
		w.Header().Set("Content-Type", "application/ocsp-response")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, r.URL.Path)
	}, neverCalled(t)))
	res, text := ask(t, h.address(), "/acme/x")
	if res.StatusCode != http.StatusServiceUnavailable || text != "/acme/x" || res.Header.Get("Content-Type") != "application/ocsp-response" {
		t.Errorf("%d %q %v", res.StatusCode, text, res.Header)
	}
	if got.OK || got.Tier != ratelimit.PerIP || got.Seconds() < 1 {
		t.Errorf("the refuser was told %+v", got)
	}
	if n := h.metric(t, "secsy_http_requests_total", "code_class=5xx"); n != 1 {
		t.Errorf("%v answers counted as 5xx, want 1", n)
	}
}

func TestARefuserThatPanicsIsSeen(t *testing.T) {
	t.Parallel()
	h := open(t, limited(front.Listener{}, spent(t, "127.0.0.1"), func(w http.ResponseWriter, r *http.Request, _ ratelimit.Decision) {
		if r.Method == http.MethodGet {
			panic("secret of the inside")
		}
		w.WriteHeader(http.StatusTooManyRequests)
	}, neverCalled(t)))
	if res, text := ask(t, h.address(), "/acme"); res.StatusCode != 500 || text != "internal error\n" {
		t.Errorf("%d %q, want a constant 500", res.StatusCode, text)
	}
	h.log.next(t, "handler panicked")
	if n := h.metric(t, "secsy_http_panics_total"); n != 1 {
		t.Errorf("%v panics counted, want 1", n)
	}
	h.await(t, "secsy_http_requests_in_flight", 0)
}

// The limit comes before everything that a request makes: its handler and its
// body are not touched, and a client that asks whether to send one is not told to.
func TestARefusalReadsNothingAndAsksForNothing(t *testing.T) {
	t.Parallel()
	h := open(t, limited(front.Listener{Limits: front.Limits{Read: time.Hour, Write: time.Hour}}, spent(t, "127.0.0.1"), nil, neverCalled(t)))
	for _, framing := range []string{
		"Content-Length: 100", "Content-Length: 60000", "Content-Length: 100000000", "Transfer-Encoding: chunked",
		"Expect: 100-continue\r\nContent-Length: 100", "Expect: 100-continue\r\nContent-Length: 60000",
		"Expect: 100-continue\r\nTransfer-Encoding: chunked",
	} {
		t.Run(framing, func(t *testing.T) {
			t.Parallel()
			got := say(t, h.address(), "POST /acme/new-order HTTP/1.1\r\nHost: h\r\n"+framing+"\r\n\r\n") // and no body, ever
			if code(got) != "429 Too Many Requests" || !strings.Contains(got, "Connection: close\r\n") || strings.Contains(got, "100 Continue") {
				t.Errorf("%q, want 429 and a close, and no 100", got)
			}
		})
	}
}

// unreadable is a body that must not be read.
type unreadable struct{ t testing.TB }

func (u unreadable) Read([]byte) (int, error) {
	u.t.Error("the body of a refused request was read")
	return 0, io.EOF
}
func (unreadable) Close() error { return nil }

// What is left unread closes the connection, unless it is small: then it is read,
// shortly, and the connection goes on.
func TestOnlyASmallRestKeepsTheConnection(t *testing.T) {
	t.Parallel()
	h := open(t, limited(front.Listener{}, spent(t, "127.0.0.1"), nil, neverCalled(t)))
	for _, c := range []struct {
		framing, body string
		answers       int
	}{
		{"X-None: 1", "", 2},
		{"Content-Length: 0", "", 2},
		{"Content-Length: 4096", strings.Repeat("x", 4096), 2},
		{"Content-Length: 4097", strings.Repeat("x", 4097), 1},
		{"Content-Length: 60000", strings.Repeat("x", 60000), 1},
		{"Transfer-Encoding: chunked", "1\r\nx\r\n0\r\n\r\n", 1},
	} {
		conn := dial(t, h.address())
		got := make(chan string, 1)
		go func() {
			all, _ := io.ReadAll(conn)
			got <- string(all)
		}()
		_, _ = fmt.Fprintf(conn, "POST /acme HTTP/1.1\r\nHost: h\r\n%s\r\n\r\n%s", c.framing, c.body)
		_, _ = io.WriteString(conn, strings.Replace(get, "GET /", "GET /acme", 1))
		if all := <-got; strings.Count(all, "HTTP/1.1 429 ") != c.answers || !strings.Contains(all, "Connection: close") {
			t.Errorf("%s: %q, want %d answers and a close", c.framing, all, c.answers)
		}
	}
}

// Left alone, net/http reads up to 256 KiB after the answer. Of a body above the
// ordinary, nothing more is taken off the wire, however long the client sends.
func TestALargeBodyIsLeftOnTheWire(t *testing.T) {
	t.Parallel()
	for _, framing := range []string{"Content-Length: 200000", "Transfer-Encoding: chunked"} {
		t.Run(framing, func(t *testing.T) {
			t.Parallel()
			bubble(t, limited(front.Listener{}, spent(t, "192.0.2.7"), nil, neverCalled(t)), func(t *testing.T, s *street, _ *house) {
				c := s.from(t, "192.0.2.7")
				got := make(chan string, 1)
				go func() {
					all, _ := io.ReadAll(c)
					got <- string(all)
				}()
				send(t, c, "POST /acme HTTP/1.1\r\nHost: h\r\n"+framing+"\r\n\r\n")
				synctest.Wait()
				start := time.Now()
				n, err := c.Write(bytes.Repeat([]byte("10000\r\n"), 40000)) // far from the end of both
				if err == nil || n > 8<<10 {
					t.Errorf("%d octets of the body were taken (%v)", n, err)
				}
				// At once would be too early: bytes that come to a closed connection
				// make TCP throw the answer away.
				if took := time.Since(start); took < 100*time.Millisecond || took > time.Second {
					t.Errorf("the connection was closed after %s", took)
				}
				if all := <-got; code(all) != "429 Too Many Requests" {
					t.Errorf("%q, want 429", all)
				}
			})
		})
	}
}

// A client that sends all of a large body before it looks still finds the
// answer: the connection is not reset under it.
func TestTheRefusalOfALargeBodyReachesItsClient(t *testing.T) {
	t.Parallel()
	h := open(t, limited(front.Listener{}, spent(t, "127.0.0.1"), nil, neverCalled(t)))
	for _, size := range []int{5000, 60000, 200000} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			t.Parallel()
			for range 10 {
				c := dial(t, h.address())
				send(t, c, fmt.Sprintf("POST /acme HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat("x", size)))
				if got := answered(t, c); got != http.StatusTooManyRequests {
					t.Errorf("status %d, want 429", got)
				}
			}
		})
	}
}

func TestAllMethodsAreLimitedAlike(t *testing.T) {
	t.Parallel()
	h := open(t, limited(front.Listener{}, spent(t, "127.0.0.1"), nil, neverCalled(t)))
	for _, method := range []string{"HEAD", "OPTIONS", "GET", "POST", "PUT", "X"} {
		got := say(t, h.address(), method+" /acme/new-nonce HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
		if code(got) != "429 Too Many Requests" || !strings.Contains(got, "Retry-After: ") {
			t.Errorf("%s: %q, want 429", method, got)
		}
		// RFC 9112 §6.1: HTTP/1.0 may have been framed by what net/http hides.
		old := say(t, h.address(), method+" /acme/new-nonce HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"+plainGet)
		if strings.Count(old, " 429 ") != 1 || strings.Contains(old, " 404 ") {
			t.Errorf("%s by HTTP/1.0: %q, want 429 and a close", method, old)
		}
		if method == "HEAD" && !strings.HasSuffix(got, "\r\n\r\n") {
			t.Errorf("HEAD was answered with a body: %q", got)
		}
	}
}

// Over HTTP/2 a refusal ends its stream only.
func TestARefusedStreamLeavesItsConnection(t *testing.T) {
	t.Parallel()
	h, config := openTLS(t, front.Listener{Routes: []front.Route{{
		Prefix: "/acme", Class: "acme", Handler: neverCalled(t), Limit: spent(t, "127.0.0.1"),
	}}}, tellCaller)
	tr := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	defer tr.CloseIdleConnections()
	for i := range 10 {
		path, want := "/acme", http.StatusTooManyRequests
		if i%2 == 1 {
			path, want = "/", http.StatusOK
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+h.address()+path, bytes.NewReader(make([]byte, 60000)))
		if err != nil {
			t.Fatal(err)
		}
		res, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.ProtoMajor != 2 || res.StatusCode != want {
			t.Errorf("%s: %s %d, want %d", path, res.Proto, res.StatusCode, want)
		}
	}
	if n := h.metric(t, "secsy_http_connections"); n != 1 {
		t.Errorf("%v connections, want 1", n)
	}
}

// Probes and collectors are needed most during a flood: their listener has no
// limits, and a configuration that gives it one does not start.
func TestHealthAndMetricsAreNeverLimited(t *testing.T) {
	t.Parallel()
	ready, err := front.NewReadiness(front.ReadinessConfig{})
	if err != nil {
		t.Fatal(err)
	}
	limit := spent(t, "127.0.0.1")
	cfg := limited(front.Listener{}, limit, nil, neverCalled(t))
	cfg.Readiness = ready
	probes := front.OperatorRoutes(ready, prometheus.NewRegistry(), nil)
	cfg.Listeners = append(cfg.Listeners, front.Listener{Name: "operator", Operator: true, Routes: probes})
	h := open(t, cfg)
	if res, _ := ask(t, h.address(), "/acme"); res.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("the source is not limited: %d", res.StatusCode)
	}
	c := dial(t, h.Addresses()["operator"].String())
	for range 100 {
		for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
			if res, _ := askOver(t, c, path); res.StatusCode != http.StatusOK {
				t.Fatalf("%s: %d, want 200", path, res.StatusCode)
			}
		}
	}
	for i := range probes {
		bad := front.OperatorRoutes(ready, prometheus.NewRegistry(), nil)
		bad[i].Limit = limit
		_, err := front.New(front.Config{Listeners: []front.Listener{{Name: "operator", Address: "127.0.0.1:0", Operator: true, Routes: bad}}})
		if err == nil || !strings.Contains(err.Error(), probes[i].Prefix) {
			t.Errorf("a limit of %s: %v, want an error that names it", probes[i].Prefix, err)
		}
	}
}

// What comes with a request and nobody has vouched for buys nothing: one peer
// has one bucket, whatever addresses and tenants it writes.
func TestWhatAStrangerWritesBuysNoTokens(t *testing.T) {
	t.Parallel()
	for name, hops := range map[string]*front.Hops{
		"no proxies":          nil,
		"proxies, not this":   newHops(t, front.XForwardedFor, "10.0.0.0/8"),
		"Forwarded, not this": newHops(t, front.Forwarded, "10.0.0.0/8"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := limited(front.Listener{Name: "public", Address: "127.0.0.1:0", Hops: hops}, perIP(t, 2), nil, tellCaller)
			admitted := admittedOf(t, cfg, 1000, func(i int, r *http.Request) {
				a := fmt.Sprintf("203.0.%d.%d", i/250, i%250)
				for _, header := range []string{
					"X-Forwarded-For", "X-Real-Ip", "True-Client-Ip", "Cf-Connecting-Ip", "X-Client-Ip", "X-Secsy-Tenant", "X-Request-Id",
				} {
					r.Header.Set(header, a)
				}
				r.Header.Set("Forwarded", "for="+a)
				r.RemoteAddr = fmt.Sprint("198.51.100.9:", 1024+i)
				r.Host = a
			})
			if admitted != 2 {
				t.Errorf("%d of 1000 requests were admitted, want the burst of 2", admitted)
			}
		})
	}
}

// The same over a real connection: who rotates the address that it claims is
// still the one who connected.
func TestAPeerThatRotatesItsAddressGetsTheBurst(t *testing.T) {
	t.Parallel()
	h := open(t, limited(front.Listener{Hops: newHops(t, front.XForwardedFor, "10.0.0.0/8")}, perIP(t, 2), nil, tellCaller))
	c, admitted := dial(t, h.address()), 0
	for i := range 1000 {
		res, _ := askOver(t, c, "/acme/new-order", fmt.Sprintf("X-Forwarded-For: 203.0.%d.%d, 198.51.100.1", i/250, i%250))
		if res.StatusCode == http.StatusOK {
			admitted++
		}
	}
	if admitted != 2 {
		t.Errorf("%d of 1000 requests were admitted, want the burst of 2", admitted)
	}
}

// Behind our proxies, the client is whom the last of them saw. What it wrote to
// the left of that buys it nothing, and another client has its own bucket.
func TestBehindAProxyEachClientHasItsBucket(t *testing.T) {
	t.Parallel()
	for header, format := range map[string]string{front.XForwardedFor: "%s, %s", front.Forwarded: "for=%s, for=%s"} {
		t.Run(header, func(t *testing.T) {
			t.Parallel()
			limit := perIP(t, 2)
			cfg := limited(front.Listener{Name: "public", Address: "127.0.0.1:0", Hops: newHops(t, header, "10.0.0.0/8")}, limit, nil, tellCaller)
			for _, client := range []string{"192.0.2.7", "192.0.2.8"} {
				admitted := admittedOf(t, cfg, 100, func(i int, r *http.Request) {
					r.RemoteAddr = fmt.Sprintf("10.0.0.%d:4711", i%5)
					r.Header.Set(header, fmt.Sprintf(format, fmt.Sprint("203.0.113.", i), client))
				})
				if admitted != 2 {
					t.Errorf("%d requests of %s were admitted, want the burst of 2", admitted, client)
				}
			}
			// Nothing that a proxy vouches for: all is the proxy's own.
			admitted := admittedOf(t, cfg, 100, func(i int, r *http.Request) {
				r.RemoteAddr = "10.0.0.1:4711"
				r.Header.Set(header, fmt.Sprintf("for=203.0.113.%d, unknown", i))
			})
			if admitted != 2 {
				t.Errorf("%d requests without a client were admitted, want the burst of 2", admitted)
			}
		})
	}
}

// On a listener for both kinds of addresses, IPv4 ones come written as IPv6.
// They are IPv4 addresses, not neighbours in one network of 64 bits.
func TestMappedAddressesAreClientsOfTheirOwn(t *testing.T) {
	t.Parallel()
	cfg := limited(front.Listener{Name: "public", Address: "127.0.0.1:0"}, perIP(t, 2), nil, tellCaller)
	admitted := admittedOf(t, cfg, 400, func(i int, r *http.Request) {
		r.RemoteAddr = fmt.Sprintf("[::ffff:192.0.2.%d]:4711", i%100)
	})
	if admitted != 200 {
		t.Errorf("%d requests of 100 mapped addresses were admitted, want 2 each", admitted)
	}
	admitted = admittedOf(t, cfg, 100, func(i int, r *http.Request) { r.RemoteAddr = fmt.Sprintf("192.0.2.%d:4711", i) })
	if admitted != 0 {
		t.Errorf("%d more were admitted once the addresses were written plainly", admitted)
	}
}

// admittedOf sends n requests through the listener of cfg and counts those that
// reach the handler.
func admittedOf(t *testing.T, cfg front.Config, n int, change func(i int, r *http.Request)) int {
	t.Helper()
	cfg.AccessLog = slog.New(slog.DiscardHandler)
	f, err := front.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	admitted := 0
	for i := range n {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/acme/new-order", nil)
		change(i, r)
		w := httptest.NewRecorder()
		f.Handler("public").ServeHTTP(w, r)
		switch w.Code {
		case http.StatusOK:
			admitted++
		case http.StatusTooManyRequests:
		default:
			t.Fatalf("status %d", w.Code)
		}
	}
	return admitted
}

// The source is the other end of a real connection, also behind a PROXY header.
func TestTheLimitSeesThroughAProxyHeader(t *testing.T) {
	t.Parallel()
	h := open(t, limited(front.Listener{ProxyFrom: prefixes(t, "127.0.0.0/8")}, perIP(t, 2), nil, tellCaller))
	request := strings.Replace(get, "GET /", "GET /acme", 1)
	for i, want := range []string{"200 OK", "200 OK", "429 Too Many Requests"} {
		if got := say(t, h.address(), v1+request); code(got) != want {
			t.Errorf("request %d: %q, want %s", i+1, got, want)
		}
	}
	if got := say(t, h.address(), strings.Replace(v1, "192.0.2.7", "192.0.2.8", 1)+request); code(got) != "200 OK" {
		t.Errorf("another client behind the proxy: %q, want 200", got)
	}
}

func TestACallerCarriesTheClassOfItsRoute(t *testing.T) {
	t.Parallel()
	l := front.Listener{Routes: []front.Route{{
		Prefix: "/acme", Class: "acme_new_order",
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, peer.From(r.Context()).Endpoint)
		}),
	}}}
	h := open(t, front.Config{Listeners: []front.Listener{l}})
	if _, got := ask(t, h.address(), "/acme/x"); got != "acme_new_order" {
		t.Errorf("endpoint %q, want the class of the route", got)
	}
}

// discard is what net/http gives a handler, without a connection.
type discard struct {
	header  http.Header
	status  int
	written int
}

func (d *discard) Header() http.Header             { return d.header }
func (d *discard) WriteHeader(status int)          { d.status = status }
func (d *discard) Write(p []byte) (int, error)     { d.written += len(p); return len(p), nil }
func (d *discard) SetReadDeadline(time.Time) error { return nil }

// A refuser as protocols have it: nothing in it is made for the request.
var (
	problemType = []string{"application/problem+json"}
	oneSecond   = []string{"100"}
	helpLink    = []string{`<https://ca.test/help>;rel="help"`}
	problemBody = []byte(`{"type":"urn:ietf:params:acme:error:rateLimited","status":429,"detail":"too many requests from this address"}`)
)

func refuseACME(w http.ResponseWriter, _ *http.Request, _ ratelimit.Decision) {
	h := w.Header()
	h["Content-Type"], h["Retry-After"], h["Link"] = problemType, oneSecond, helpLink
	w.WriteHeader(http.StatusTooManyRequests)
	_, _ = w.Write(problemBody)
}

// newOrder is a request as net/http makes it, with the body still on the wire.
func newOrder(tb testing.TB, size int64) *http.Request {
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("POST /acme/new-order HTTP/1.1\r\nHost: ca.test\r\n" +
		"User-Agent: CertbotACMEClient/4.0.0 (certbot; Linux)\r\nAccept: */*\r\nAccept-Encoding: gzip\r\n" +
		"Content-Type: application/jose+json\r\nContent-Length: " + strconv.FormatInt(size, 10) + "\r\n\r\n")))
	if err != nil {
		tb.Fatal(err)
	}
	r.Body, r.RemoteAddr = unreadable{tb}, "203.0.113.7:49152"
	return r.WithContext(tb.Context())
}

func refusing(tb testing.TB, hops *front.Hops, limit *ratelimit.Endpoint, refuse front.Refuser) http.Handler {
	cfg := limited(front.Listener{Name: "bench", Address: "127.0.0.1:0", Hops: hops}, limit, refuse, func(http.ResponseWriter, *http.Request) {
		tb.Error("a refused request reached its handler")
	})
	cfg.AccessLog = slog.New(slog.NewJSONHandler(io.Discard, nil)) //nolint:sloglint // a line would be part of what is measured
	f, err := front.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return f.Handler("bench")
}

// Whatever the size of its body and wherever it comes from, nothing of ours is
// made to refuse a request. For a body without bound, net/http makes an error of
// eight octets: it is how it learns to close the connection gently.
func TestARefusalAllocatesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		size   int64
		remote string
		header http.Header
		refuse front.Refuser
		made   float64
	}{
		"2 KiB":           {size: 2 << 10, refuse: refuseACME},
		"60 KiB":          {size: 60 << 10, refuse: refuseACME},
		"unknown":         {size: -1, refuse: refuseACME, made: 1},
		"plain":           {size: 2 << 10},
		"IPv6":            {size: 2 << 10, remote: "[2001:db8::7]:49152"},
		"mapped":          {size: 2 << 10, remote: "[::ffff:203.0.113.7]:49152"},
		"X-Forwarded-For": {size: 2 << 10, remote: "10.0.0.1:49152", header: http.Header{front.XForwardedFor: {"6.6.6.6, 203.0.113.7, 10.0.0.2"}}},
		"Forwarded":       {size: 2 << 10, remote: "10.0.0.1:49152", header: http.Header{front.Forwarded: {`for=6.6.6.6, for="203.0.113.7:4711";proto=https, for=10.0.0.2`}}},
	} {
		t.Run(name, func(t *testing.T) {
			client := netip.MustParseAddr("203.0.113.7")
			if c.remote == "[2001:db8::7]:49152" {
				client = netip.MustParseAddr("2001:db8::7")
			}
			header := front.XForwardedFor
			if c.header[front.Forwarded] != nil {
				header = front.Forwarded
			}
			h := refusing(t, newHops(t, header, "10.0.0.0/8"), spent(t, client.String()), c.refuse)
			r := newOrder(t, 1)
			r.ContentLength = c.size
			if c.remote != "" {
				r.RemoteAddr = c.remote
			}
			for k, v := range c.header {
				r.Header[k] = v
			}
			w := &discard{header: http.Header{}}
			if n := testing.AllocsPerRun(1000, func() { h.ServeHTTP(w, r) }); n > c.made {
				t.Errorf("%v allocations, want %v", n, c.made)
			}
			if w.status != http.StatusTooManyRequests || w.written == 0 {
				t.Errorf("status %d, %d octets", w.status, w.written)
			}
			if closing, want := w.header.Get("Connection") == "close", c.size < 0 || c.size > 4<<10; closing != want {
				t.Errorf("the connection closes: %v, want %v", closing, want)
			}
		})
	}
}

// A header that many answers share is not one that an answer can change.
func TestSharedHeadersStayAsTheyAre(t *testing.T) {
	t.Parallel()
	h := refusing(t, nil, spent(t, "203.0.113.7"), nil)
	for range 2 {
		w := &discard{header: http.Header{}}
		h.ServeHTTP(w, newOrder(t, 60<<10))
		for key := range w.header {
			if got := w.header.Values(key); len(got) != 1 {
				t.Errorf("%s: %q", key, got)
			}
			w.header.Add(key, "added")
		}
	}
}

// BenchmarkRefusedRequest is what a flood costs us a request, beside the
// connection: all that is between net/http and its answer.
func BenchmarkRefusedRequest(b *testing.B) {
	for name, size := range map[string]int64{"2k": 2 << 10, "60k": 60 << 10} {
		b.Run(name, func(b *testing.B) {
			h := refusing(b, nil, spent(b, "203.0.113.7"), refuseACME)
			r, w := newOrder(b, size), &discard{header: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(w, r)
			}
			if w.status != http.StatusTooManyRequests {
				b.Errorf("status %d", w.status)
			}
		})
	}
}

// Whoever makes up paths would otherwise write a line for each of them.
func TestPathsOfNobodyHaveALimitToo(t *testing.T) {
	t.Parallel()
	h := open(t, front.Config{Listeners: []front.Listener{{
		Unrouted: perIP(t, 2), Routes: []front.Route{{Prefix: "/here", Class: "acme", Handler: http.HandlerFunc(tellCaller)}},
	}}, DrainTimeout: patience})
	c := dial(t, h.address())
	for i, want := range []int{404, 404, 429, 429} {
		if res, _ := askOver(t, c, "/"+strconv.Itoa(i)); res.StatusCode != want {
			t.Errorf("request %d: %d, want %d", i+1, res.StatusCode, want)
		}
	}
	if res, _ := askOver(t, c, "/here"); res.StatusCode != http.StatusOK {
		t.Errorf("a path of somebody: %d, want 200", res.StatusCode)
	}
	if n := h.metric(t, "secsy_http_requests_total", "class=none", "code_class=4xx"); n != 4 {
		t.Errorf("%v requests counted, want 4", n)
	}
}
