package acme_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// What all clients of the field need, taken together, as it goes over the wire:
// these tests read bytes from a TLS socket, since a library joins headers, drops
// what it does not like, and hides a body that should not be there. Each law is
// held over HTTP/1.1 and over HTTP/2.

// A wireReply is an answer as it came.
type wireReply struct {
	what   string // method and path
	method string
	status int
	lines  []line // in their order, names in lower case
	body   []byte
}

type line struct{ name, value string }

func (r wireReply) all(name string) (out []string) {
	for _, l := range r.lines {
		if l.name == name {
			out = append(out, l.value)
		}
	}
	return out
}

// A wire carries requests by hand, one after another, over one connection for as
// long as the server keeps it, and remembers what came back.
type wire struct {
	t    *testing.T
	conn func() net.Conn
	talk func(c *wireConn, r *http.Request, body []byte) wireReply
	mu   sync.Mutex // guards what follows
	now  *wireConn
	n    int // connections
	seen []wireReply
}

type wireConn struct {
	net.Conn
	in     *bufio.Reader
	framer *http2.Framer
	stream uint32
}

// refuseHeader has the listener refuse a request as a front does that has had too many.
const refuseHeader = "Test-Refuse"

// onTheWire runs a law over both protocols.
func onTheWire(t *testing.T, law func(t *testing.T, w *world, x *wire), options ...func(*acme.Config)) {
	t.Helper()
	t.Parallel()
	for _, proto := range []string{"http/1.1", "h2"} {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			w, x := newWire(t, proto, options...)
			law(t, w, x)
			x.end()
		})
	}
}

func newWire(t *testing.T, proto string, options ...func(*acme.Config)) (*world, *wire) {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	small := func(c *acme.Config) { c.MaxBody = 8 << 10 }
	w := makeWorld(t, "https://"+srv.Listener.Addr().String(), append([]func(*acme.Config){small}, options...)...)
	inside, routes := w.server.Handler(), w.server.Routes()
	srv.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get(refuseHeader) == "" {
			inside.ServeHTTP(rw, r)
			return
		}
		best := acme.Route{}
		for _, c := range routes {
			if strings.HasPrefix(r.URL.Path, c.Path) && len(c.Path) > len(best.Path) {
				best = c
			}
		}
		best.Refuse(rw, r, ratelimit.Decision{RetryAfter: 90 * time.Minute})
	})
	srv.EnableHTTP2 = proto == "h2"
	srv.StartTLS()
	t.Cleanup(srv.Close)
	w.run()
	roots := srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	x := &wire{t: t}
	x.conn = func() net.Conn {
		c, err := tls.Dial("tcp", srv.Listener.Addr().String(), &tls.Config{RootCAs: roots, NextProtos: []string{proto}})
		if err != nil {
			t.Fatal(err)
		}
		if got := c.ConnectionState().NegotiatedProtocol; got != proto {
			t.Fatalf("the server speaks %q; want %q", got, proto)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	x.talk = talk1
	if proto == "h2" {
		x.talk = talk2
	}
	w.http = &http.Client{Transport: x}
	return w, x
}

func (x *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.now == nil {
		c := x.conn()
		x.n++
		x.now = &wireConn{Conn: c, in: bufio.NewReader(c)}
	}
	got := x.talk(x.now, r, body)
	got.what, got.method = r.Method+" "+r.URL.Path, r.Method
	x.seen = append(x.seen, got)
	if slices.Contains(got.all("connection"), "close") {
		_ = x.now.Close()
		x.now = nil
	}
	h := http.Header{}
	for _, l := range got.lines {
		h.Add(l.name, l.value)
	}
	return &http.Response{StatusCode: got.status, Header: h, Body: io.NopCloser(bytes.NewReader(got.body)), Request: r}, nil
}

// all returns what was answered, and forgets it.
func (x *wire) all() []wireReply {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := x.seen
	x.seen = nil
	return out
}

// last is the newest answer.
func (x *wire) last() wireReply {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.seen[len(x.seen)-1]
}

// end wants nothing on the connection that no answer accounts for.
func (x *wire) end() {
	x.t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.now == nil || x.now.framer != nil {
		return // talk2 counts octets itself
	}
	_ = x.now.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if b, err := x.now.in.Peek(1); err == nil {
		x.t.Errorf("octets that belong to no answer: %q", b)
	}
}

// talk1 speaks HTTP/1.1. A body where none may be would be taken for the next
// answer's status line, and fail there.
func talk1(c *wireConn, r *http.Request, body []byte) wireReply {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.Method, r.URL.RequestURI(), r.URL.Host)
	for name, values := range r.Header {
		for _, v := range values {
			fmt.Fprintf(&b, "%s: %s\r\n", name, v)
		}
	}
	if r.Method == http.MethodPost {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	b.WriteString("\r\n")
	b.Write(body)
	if _, err := c.Write(b.Bytes()); err != nil {
		panic(err)
	}
	var out wireReply
	status := readLine(c.in)
	if _, err := fmt.Sscanf(status, "HTTP/1.1 %d ", &out.status); err != nil {
		panic(fmt.Errorf("status line %q: %w", status, err))
	}
	for l := readLine(c.in); l != ""; l = readLine(c.in) {
		name, value, ok := strings.Cut(l, ": ")
		if !ok {
			panic(fmt.Errorf("header line %q", l))
		}
		out.lines = append(out.lines, line{strings.ToLower(name), value})
	}
	if r.Method == http.MethodHead || out.status == http.StatusNoContent {
		return out
	}
	var from io.Reader
	if te := out.all("transfer-encoding"); len(te) > 0 {
		from = httputil.NewChunkedReader(c.in)
	} else {
		n, err := strconv.Atoi(strings.Join(out.all("content-length"), ","))
		if err != nil {
			panic(fmt.Errorf("content-length of %d %v: %w", out.status, out.lines, err))
		}
		from = io.LimitReader(c.in, int64(n))
	}
	var err error
	if out.body, err = io.ReadAll(from); err != nil {
		panic(err)
	}
	if len(out.all("transfer-encoding")) > 0 {
		_ = readLine(c.in) // the end of the trailers
	}
	return out
}

func readLine(r *bufio.Reader) string {
	l, err := r.ReadString('\n')
	if err != nil {
		panic(fmt.Errorf("reading a line (%q): %w", l, err))
	}
	return strings.TrimSuffix(l, "\r\n")
}

// talk2 speaks HTTP/2, frame by frame: a content-length that is not the octets
// that follow ends the stream with clients that count (RFC 9113 §8.1.1).
func talk2(c *wireConn, r *http.Request, body []byte) wireReply {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	if c.framer == nil {
		_, err := io.WriteString(c, http2.ClientPreface)
		must(err)
		c.framer, c.stream = http2.NewFramer(c, c.in), 1
		c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		must(c.framer.WriteSettings())
	}
	id := c.stream
	c.stream += 2
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	field := func(name, value string) { must(enc.WriteField(hpack.HeaderField{Name: name, Value: value})) }
	field(":method", r.Method)
	field(":scheme", "https")
	field(":authority", r.URL.Host)
	field(":path", r.URL.RequestURI())
	for name, values := range r.Header {
		for _, v := range values {
			field(strings.ToLower(name), v)
		}
	}
	post := r.Method == http.MethodPost
	must(c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: !post}))
	for post {
		part := body[:min(len(body), 16<<10)]
		body = body[len(part):]
		post = len(body) > 0
		must(c.framer.WriteData(id, !post, part))
	}
	out, ended := wireReply{}, false
	for !ended {
		f, err := c.framer.ReadFrame()
		must(err)
		if f.Header().StreamID != 0 && f.Header().StreamID != id {
			if s, ok := f.(*http2.RSTStreamFrame); ok && (s.ErrCode == http2.ErrCodeNo || s.ErrCode == http2.ErrCodeStreamClosed) {
				continue // its answer was complete before its request was: RFC 9113 §8.1
			}
			panic(fmt.Errorf("a frame of stream %d, which has ended: %+v", f.Header().StreamID, f))
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				must(c.framer.WriteSettingsAck())
			}
		case *http2.MetaHeadersFrame:
			for _, h := range f.Fields {
				if h.Name == ":status" {
					out.status, err = strconv.Atoi(h.Value)
					must(err)
					continue
				}
				out.lines = append(out.lines, line{h.Name, h.Value})
			}
			ended = f.StreamEnded()
		case *http2.DataFrame:
			out.body = append(out.body, f.Data()...)
			ended = f.StreamEnded()
		case *http2.RSTStreamFrame:
			panic(fmt.Errorf("%s %s: the stream was reset: %v", r.Method, r.URL.Path, f.ErrCode))
		case *http2.GoAwayFrame:
			panic(fmt.Errorf("the server goes away: %v", f))
		}
	}
	return out
}

// tour asks for everything, in right and in wrong ways, and returns all that was
// answered by the way.
func tour(t *testing.T, w *world, x *wire) []wireReply {
	t.Helper()
	s := w.stranger()
	s.do("GET", w.url("directory"), "", nil).want(200)
	s.do("HEAD", w.url("directory"), "", nil).want(200)
	s.do("HEAD", w.url("new-nonce"), "", nil).want(200)
	s.do("GET", w.url("new-nonce"), "", nil).want(204)
	s.do("GET", w.url("help/rate-limits"), "", nil).want(200)
	s.do("GET", w.url("none"), "", nil).want(404)
	s.do("HEAD", w.url("none"), "", nil).want(404)
	s.do("GET", w.url("new-order"), "", nil).want(405)
	s.do("HEAD", w.url("new-order"), "", nil).want(405)
	w.client().get(w.url("directory")).want(200)
	w.client().get(w.url("new-nonce")).want(204)
	s.do("PUT", w.url("directory"), "", nil).want(405)
	s.do("OPTIONS", w.url("new-order"), "", nil).want(204)
	s.do("POST", w.url("new-order"), "application/json", []byte("{}")).want(415)
	s.do("POST", w.url("new-order"), "application/jose+json", bytes.Repeat([]byte{' '}, 9<<10)).want(413)
	s.do("POST", w.url("new-order"), "application/jose+json", []byte("{")).want(400)
	for _, path := range []string{"directory", "new-nonce", "new-account", "new-order", "revoke-cert", "order/1"} {
		for _, method := range []string{"GET", "HEAD", "POST"} {
			limited := *s
			limited.more = http.Header{refuseHeader: {"yes"}}
			limited.do(method, w.url(path), "", nil)
		}
	}

	c := w.client()
	again := &client{t: t, w: w, key: c.key}
	again.post(w.url("new-account"), map[string]any{"onlyReturnExisting": true}).want(200)
	w.stranger().post(w.url("new-account"), map[string]any{"onlyReturnExisting": true}).want(400)
	c.get(c.kid).want(200)
	c.post(c.kid, map[string]any{"contact": []string{"mailto:a@example.com"}}).want(200)
	c.send(c.kid, jws(t, c.key, c.header(c.kid, map[string]any{"nonce": "AAAA"}), "")).want(400)
	c.send(c.kid, jws(t, c.key, c.header(c.kid, map[string]any{"url": w.url("x")}), "")).want(403)

	pendingURL, pending := c.order("tour-a.example.com", "*.tour-a.example.com")
	c.post(pending.str("finalize"), csrBody(catest.CSR(t, newKey(t), "tour-a.example.com"))).want(403)
	authz := pending.strs("authorizations")[0]
	c.get(pendingURL).want(200)
	c.get(authz).want(200)
	c.get(c.challengeURL(authz, "dns-01")).want(200)
	w.client().get(pendingURL).want(404)
	c.post(authz, map[string]any{"status": "deactivated"}).want(200)
	c.get(pendingURL).want(200)

	_, ready := c.ready("tour-b.example.com")
	c.get(ready.strs("authorizations")[0]).want(200)
	c.post(ready.str("finalize"), csrBody([]byte("junk"))).want(400)
	done := c.post(ready.str("finalize"), csrBody(catest.CSR(t, newKey(t), "tour-b.example.com"))).want(200)
	c.get(done.location()).want(200)
	cert := c.get(done.str("certificate")).want(200)
	c.get(c.kid + "/orders").want(200)
	c.post(w.url("revoke-cert"), map[string]any{"certificate": b64(leaf(t, cert.body).Raw)}).want(200)
	c.post(w.url("revoke-cert"), map[string]any{"certificate": b64(leaf(t, cert.body).Raw)}).want(400)

	_, late := c.ready("tour-c.example.com")
	w.ca.Keys.Fail(keys.ErrBusy)
	slow := c.post(late.str("finalize"), csrBody(catest.CSR(t, newKey(t), "tour-c.example.com"))).want(200)
	c.get(slow.location()).want(200)
	w.ca.Keys.Fail(nil)

	next := newKey(t)
	change := func() *reply {
		url := w.url("key-change")
		return c.post(url, jws(t, next, map[string]any{"alg": "ES256", "jwk": jwkOf(next.Public()), "url": url}, map[string]any{"account": c.kid, "oldKey": jwkOf(c.key.Public())}))
	}
	change().want(200)
	c.key = next
	change().want(409)
	c.post(c.kid, map[string]any{"status": "deactivated"}).want(200)
	c.get(c.kid).want(403)
	return x.all()
}

// Rule 1: a nonce in every answer, whatever its status: one header line, plain
// base64url, which no client can split at a comma or fail to decode.
func TestEveryAnswerOnTheWireHasOneNonce(t *testing.T) {
	onTheWire(t, func(t *testing.T, w *world, x *wire) {
		statuses, seen := map[int]bool{}, map[string]bool{}
		for _, r := range tour(t, w, x) {
			statuses[r.status] = true
			n := r.all("replay-nonce")
			if len(n) != 1 {
				t.Errorf("%s %d: nonces %q", r.what, r.status, n)
				continue
			}
			if _, err := base64.RawURLEncoding.Strict().DecodeString(n[0]); err != nil || n[0] == "" {
				t.Errorf("%s %d: nonce %q: %v", r.what, r.status, n[0], err)
			}
			if seen[n[0]] {
				t.Errorf("%s %d: nonce %q was given out twice", r.what, r.status, n[0])
			}
			seen[n[0]] = true
			if got := r.all("cache-control"); !slices.Equal(got, []string{"no-store"}) {
				t.Errorf("%s %d: Cache-Control %q", r.what, r.status, got)
			}
		}
		for _, want := range []int{200, 201, 204, 400, 403, 404, 405, 409, 413, 415, 429, 503} {
			if !statuses[want] {
				t.Errorf("the tour met no %d", want)
			}
		}
	})
}

// Rule 1, of faults of ours, which leave by another way.
func TestAFaultOfOursBringsANonceToo(t *testing.T) {
	onTheWire(t, func(t *testing.T, w *world, x *wire) {
		w.stranger().post(w.url("new-account"), map[string]any{}).want(500)
		if n := x.last().all("replay-nonce"); len(n) != 1 || n[0] == "" {
			t.Errorf("nonces %q", n)
		}
	}, func(c *acme.Config) { c.Store = panicking{c.Store} })
}

// Rule 1: HEAD is 200 and GET 204, neither has an octet of a body, and no
// length promises one: over HTTP/2 that is a protocol error to some clients.
func TestANonceComesWithoutABody(t *testing.T) {
	onTheWire(t, func(t *testing.T, w *world, x *wire) {
		s := w.stranger()
		for range 3 { // on one connection, where left-overs would be seen
			for method, status := range map[string]int{"HEAD": 200, "GET": 204} {
				s.do(method, w.url("new-nonce"), "", nil).want(status)
				r := x.last()
				length := r.all("content-length")
				if len(r.body) != 0 || len(length) > 1 || len(length) == 1 && length[0] != "0" || r.all("transfer-encoding") != nil {
					t.Errorf("%s: %d octets, headers %v", method, len(r.body), r.lines)
				}
				if status == 204 && length != nil {
					t.Errorf("204 with a length (RFC 9110 §8.6): %v", r.lines)
				}
			}
		}
		if x.n != 1 {
			t.Errorf("%d connections for six requests", x.n)
		}
	})
}

// RFC 8555 §6.3: what GET reads of the directory and of newNonce, POST-as-GET does.
func TestDirectoryAndNonceAreReadByPOSTAsGETToo(t *testing.T) {
	onTheWire(t, func(t *testing.T, w *world, x *wire) {
		c := w.client()
		plain := c.do("GET", w.url("directory"), "", nil).want(200)
		if signed := c.get(w.url("directory")).want(200); !bytes.Equal(signed.body, plain.body) {
			t.Errorf("signed: %s\nplain: %s", signed.body, plain.body)
		}
		c.get(w.url("new-nonce")).want(204)
		if r := x.last(); len(r.body) != 0 || r.all("content-length") != nil {
			t.Errorf("newNonce: %v %q", r.lines, r.body)
		}
		c.get(w.url("directory")).want(200) // with the nonce of newNonce
		c.post(w.url("directory"), map[string]any{}).problem(400, "malformed")
		c.send(w.url("new-nonce"), []byte("{}")).problem(400, "malformed")
		w.stranger().get(w.url("directory")).problem(400, "malformed")
	})
}

// Rule 1: what HEAD says of an answer's length is what GET would have sent.
func TestLengthsAreTrueOnTheWire(t *testing.T) {
	onTheWire(t, func(t *testing.T, w *world, x *wire) {
		get := map[string]int{}
		for _, r := range tour(t, w, x) {
			length := r.all("content-length")
			if len(length) > 1 {
				t.Errorf("%s: lengths %q", r.what, length)
			}
			if len(length) == 1 && r.method != http.MethodHead && length[0] != strconv.Itoa(len(r.body)) {
				t.Errorf("%s %d: length %s of %d octets", r.what, r.status, length[0], len(r.body))
			}
			if r.method == http.MethodHead && len(r.body) != 0 {
				t.Errorf("%s: HEAD with a body", r.what)
			}
			path := r.what[strings.IndexByte(r.what, ' '):] + strconv.Itoa(r.status)
			if r.method == http.MethodGet {
				get[path] = len(r.body)
			}
			if want, ok := get[path]; ok && r.method == http.MethodHead && len(length) == 1 && length[0] != strconv.Itoa(want) {
				t.Errorf("%s: HEAD says %s octets, GET has %d", r.what, length[0], want)
			}
		}
	})
}

// Rule 2: acme.sh knows a bad nonce by the words, others by type and status; and
// the one in the answer is good.
func TestABadNonceIsToldInTheWordsThatClientsKnow(t *testing.T) {
	onTheWire(t, func(t *testing.T, w *world, x *wire) {
		c := w.client()
		for _, nonce := range []any{"AAAA", "", nil, strings.Repeat("A", 60)} {
			c.send(c.kid, jws(t, c.key, c.header(c.kid, map[string]any{"nonce": nonce}), "")).problem(400, "badNonce")
			if !bytes.Contains(x.last().body, []byte("JWS has an invalid anti-replay nonce")) {
				t.Errorf("%v: %s", nonce, x.last().body)
			}
			c.get(c.kid).want(200) // with the nonce of the refusal
		}
		// RFC 8555 §6.5.2: what is no base64url was never a nonce.
		for _, nonce := range []any{"a,b", "not base64!", "AAAA=", "A", 7} {
			c.send(c.kid, jws(t, c.key, c.header(c.kid, map[string]any{"nonce": nonce}), "")).problem(400, "malformed")
		}
	})
}

// Rule 3: where things are, in the answers in which clients look for it. A
// client that finds no Location after finalizing polls an empty address.
func TestLocationsAreWhereClientsLookForThem(t *testing.T) {
	onTheWire(t, func(t *testing.T, w *world, x *wire) {
		location := func(what string, want string) {
			t.Helper()
			got := x.last().all("location")
			if len(got) != 1 || want != "" && got[0] != want || !strings.HasPrefix(got[0], w.base) {
				t.Errorf("%s: Location %q; want %q", what, got, want)
			}
		}
		c := w.client()
		location("newAccount", c.kid)
		(&client{t: t, w: w, key: c.key}).post(w.url("new-account"), map[string]any{}).want(200)
		location("newAccount of a known key", c.kid)
		c.post(c.kid, map[string]any{"contact": []string{"mailto:a@example.com"}}).want(200)
		location("account update", c.kid)
		order, r := c.order("a.example.com")
		location("newOrder", order)
		c.get(order).want(200)
		location("order", order)
		chall := c.challengeURL(r.strs("authorizations")[0], "dns-01")
		c.post(chall, map[string]any{}).want(200)
		location("challenge", chall)
		c.await(order, "ready")
		csr := csrBody(catest.CSR(t, newKey(t), "a.example.com"))
		w.ca.Keys.Fail(keys.ErrBusy)
		c.post(r.str("finalize"), csr).want(200)
		location("finalize, processing", order)
		c.get(order).want(200)
		location("order, processing", order)
		w.ca.Keys.Fail(nil)
		w.clock.advance(time.Hour)
		if err := w.server.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.await(order, "valid")
		location("order, valid", order)
		c.post(r.str("finalize"), csr).want(200)
		location("finalize, valid", order)
	})
}

// Rule 3: some clients read one link a line, and stop there.
func TestEveryLinkHasALineOfItsOwn(t *testing.T) {
	form := regexp.MustCompile(`^<(https://[^<>, ]+)>;rel="([a-z-]+)"$`)
	onTheWire(t, func(t *testing.T, w *world, x *wire) {
		for _, r := range tour(t, w, x) {
			rels := map[string]int{}
			for _, l := range r.all("link") {
				m := form.FindStringSubmatch(l)
				if m == nil {
					t.Errorf("%s: Link %q", r.what, l)
					continue
				}
				rels[m[2]]++
			}
			if rels["index"] != 1 {
				t.Errorf("%s %d: links %q, want one to the directory", r.what, r.status, r.all("link"))
			}
			if strings.Contains(r.what, "/challenge/") && r.status == 200 && rels["up"] != 1 {
				t.Errorf("%s: links %q, want one up to the authorization", r.what, r.all("link"))
			}
		}
	})
}

// Rule 4: acme4j and acme.sh compare the whole value.
func TestContentTypesHaveNoParameters(t *testing.T) {
	onTheWire(t, func(t *testing.T, w *world, x *wire) {
		for _, r := range tour(t, w, x) {
			want := []string{"application/json"}
			switch {
			case strings.HasSuffix(r.what, "/help/rate-limits"):
				continue // for people
			case r.status >= 400:
				want = []string{"application/problem+json"}
			case r.status == 204, strings.HasSuffix(r.what, "/new-nonce"), strings.HasSuffix(r.what, "/revoke-cert"):
				want = nil
			case strings.Contains(r.what, "/cert/"):
				want = []string{"application/pem-certificate-chain"}
			}
			if got := r.all("content-type"); !slices.Equal(got, want) {
				t.Errorf("%s %d: Content-Type %q; want %q", r.what, r.status, got, want)
			}
		}
	})
}

// Rule 4: what a client adds to the media type is its own affair; another type is not.
func TestTheMediaTypeOfRequestsMayHaveParameters(t *testing.T) {
	onTheWire(t, func(t *testing.T, w *world, x *wire) {
		c := w.client()
		for typ, status := range map[string]int{
			"application/jose+json": 200, "application/jose+json; charset=utf-8": 200, `Application/JOSE+JSON;charset="UTF-8"`: 200, "application/jose+json;": 200,
			"application/json": 415, "application/jose": 415, "text/plain": 415, "": 415, "application/jose+json, text/plain": 415, "application/x-www-form-urlencoded": 415,
		} {
			body := mustJSON(t, jws(t, c.key, c.header(c.kid, nil), ""))
			if r := c.do("POST", c.kid, typ, body); r.status != status {
				t.Errorf("%q: %d; want %d: %s", typ, r.status, status, r.body)
			}
		}
	})
}

// Rule 5: whole seconds, no dates, no more than ten minutes, on everything that
// is not final: a client that hears none asks four times a second.
func TestRetryAfterOnTheWireIsAWholeNumberOfSeconds(t *testing.T) {
	waits := regexp.MustCompile(`"status":"(pending|processing)"`)
	onTheWire(t, func(t *testing.T, w *world, x *wire) {
		told := 0
		for _, r := range tour(t, w, x) {
			got := r.all("retry-after")
			due := r.status == 429 || r.status == 503 || r.status == 200 && waits.Match(r.body) && !strings.Contains(r.what, "/orders")
			if due && len(got) != 1 {
				t.Errorf("%s %d: Retry-After %q of %s", r.what, r.status, got, r.body)
			}
			for _, v := range got {
				told++
				n, err := strconv.Atoi(v)
				if err != nil || n < 1 || n > 600 {
					t.Errorf("%s %d: Retry-After %q", r.what, r.status, v)
				}
				if r.status == 200 && n > 60 {
					t.Errorf("%s: a transient wait of %q", r.what, v)
				}
			}
		}
		if told < 10 {
			t.Errorf("only %d answers said when to come again", told)
		}
	})
}

// Rule 6: who begins something hears 429, who is in the middle 503, as uacme and
// acme.sh wait on that alone. Both are rateLimited, with a link to help.
func TestRefusalsForTheirNumberHaveTheFormThatClientsWaitOn(t *testing.T) {
	onTheWire(t, func(t *testing.T, w *world, x *wire) {
		s := w.stranger()
		s.more = http.Header{refuseHeader: {"yes"}}
		for path, status := range map[string]int{
			"directory": 429, "new-account": 429, "new-order": 429,
			"new-nonce": 503, "revoke-cert": 503, "key-change": 503, "order/1": 503, "order/1/finalize": 503, "authz/1": 503, "challenge/1/http-01": 503, "cert/1": 503, "account/1": 503,
		} {
			s.do("POST", w.url(path), "application/jose+json", []byte("{}")).problem(status, "rateLimited")
			r := x.last()
			if got := r.all("retry-after"); !slices.Equal(got, []string{"600"}) {
				t.Errorf("%s: Retry-After %q", path, got)
			}
			if !slices.ContainsFunc(r.all("link"), func(l string) bool { return strings.HasSuffix(l, `;rel="help"`) }) {
				t.Errorf("%s: links %q", path, r.all("link"))
			}
		}
	})
}

// Rule 7: finalizing is 200 with the order, whatever the device does: never 201,
// never "ready", never an error for what the client cannot help.
func TestFinalizeIsAcceptedWhateverTheDeviceDoes(t *testing.T) {
	for name, fail := range map[string]func(w *world){
		"well":   func(*world) {},
		"busy":   func(w *world) { w.ca.Keys.Fail(keys.ErrBusy) },
		"broken": func(w *world) { w.ca.Keys.Fail(errors.New("no such slot")) },
	} {
		t.Run(name, func(t *testing.T) {
			onTheWire(t, func(t *testing.T, w *world, x *wire) {
				c := w.client()
				u, r := c.ready("a.example.com")
				fail(w)
				csr := csrBody(catest.CSR(t, newKey(t), "a.example.com"))
				for range 3 {
					got := c.post(r.str("finalize"), csr).want(200)
					want := "processing"
					if name == "well" {
						want = "valid"
					}
					if got.str("status") != want || got.location() != u || got.str("finalize") != r.str("finalize") {
						t.Errorf("finalize: %v %s", got.header, got.body)
					}
					if raw := x.last().all("retry-after"); want == "processing" && len(raw) != 1 {
						t.Errorf("Retry-After %q", raw)
					}
				}
			})
		})
	}
}

// Rule 8: the read after the last authorization became valid finds the order
// ready; nginx-acme and cert-manager do not ask again.
func TestTheOrderIsReadyWithItsLastAuthorization(t *testing.T) {
	onTheWire(t, func(t *testing.T, w *world, _ *wire) {
		c := w.client()
		for i := range 5 {
			u, r := c.order(fmt.Sprintf("a%d.example.com", i), fmt.Sprintf("b%d.example.com", i), fmt.Sprintf("*.b%d.example.com", i))
			for n, a := range r.strs("authorizations") {
				if got := c.get(u).str("status"); got != "pending" {
					t.Fatalf("with %d of 3 authorizations the order is %s", n, got)
				}
				if got := c.prove(a, "dns-01").str("status"); got != "valid" {
					t.Fatalf("authorization is %s", got)
				}
			}
			if got := c.get(u).str("status"); got != "ready" {
				t.Errorf("with all authorizations the order is %s", got)
			}
		}
	})
}

// Rule 9: acme.sh takes "invalid" anywhere in an authorization for a failure.
func TestAValidAuthorizationShowsTheChallengeThatWonAlone(t *testing.T) {
	onTheWire(t, func(t *testing.T, w *world, _ *wire) {
		c := w.client()
		w.validator.fail("bad.example.com", &acme.Problem{Type: acme.Connection, Detail: "refused"})
		u, r := c.order("good.example.com", "bad.example.com")
		for _, a := range r.strs("authorizations") {
			for _, typ := range challenges(c.get(a)) {
				if typ.status != "pending" {
					t.Errorf("before: %v", typ)
				}
			}
			got := c.prove(a, "http-01")
			want := got.str("status")
			list := challenges(got)
			if len(list) != 1 || list[0] != (challengeState{"http-01", want}) {
				t.Errorf("%s authorization shows %v", want, list)
			}
			if want == "valid" && bytes.Contains(got.body, []byte("invalid")) {
				t.Errorf("valid authorization: %s", got.body)
			}
		}
		c.await(u, "invalid")
	})
}

type challengeState struct{ typ, status string }

func challenges(r *reply) (out []challengeState) {
	list, _ := r.json["challenges"].([]any)
	for _, v := range list {
		m, _ := v.(map[string]any)
		typ, _ := m["type"].(string)
		status, _ := m["status"].(string)
		out = append(out, challengeState{typ, status})
	}
	return out
}

// Rule 10: the order says what was asked for, in lower case, each once, stars
// where they were; the authorization says the name below the star.
func TestIdentifiersAreEchoed(t *testing.T) {
	onTheWire(t, func(t *testing.T, w *world, _ *wire) {
		c := w.client()
		u, r := c.order("B.example.com", "a.example.com", "*.B.example.com", "b.Example.COM", "A.example.com")
		want := []string{"*.b.example.com", "a.example.com", "b.example.com"}
		for what, got := range map[string]*reply{"newOrder": r, "order": c.get(u)} {
			if ids := identifiers(got.json["identifiers"]); !slices.Equal(ids, want) {
				t.Errorf("%s: %q; want %q", what, ids, want)
			}
		}
		var authzs []string
		for _, a := range r.strs("authorizations") {
			z := c.get(a).want(200)
			name := identifiers([]any{z.json["identifier"]})[0]
			if wild, _ := z.json["wildcard"].(bool); wild {
				name += " wildcard"
			}
			authzs = append(authzs, name)
		}
		slices.Sort(authzs)
		if want := []string{"a.example.com", "b.example.com", "b.example.com wildcard"}; !slices.Equal(authzs, want) {
			t.Errorf("authorizations for %q; want %q", authzs, want)
		}
	})
}

func identifiers(v any) (out []string) {
	list, _ := v.([]any)
	for _, id := range list {
		m, _ := id.(map[string]any)
		s, _ := m["value"].(string)
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

// Rule 11: a key that has an account gets it, 200 and the same body, and a CSR
// sent twice the order: certbot, acmez and others do both.
func TestAskingTwiceTellsTheSame(t *testing.T) {
	onTheWire(t, func(t *testing.T, w *world, x *wire) {
		s := w.stranger()
		body := map[string]any{"termsOfServiceAgreed": true, "contact": []string{"mailto:a@example.com"}}
		first := s.post(w.url("new-account"), body).want(201)
		for _, again := range []map[string]any{body, {"onlyReturnExisting": true}, {}} {
			r := s.post(w.url("new-account"), again).want(200)
			if r.location() != first.location() || !bytes.Equal(r.body, first.body) {
				t.Errorf("again: %v %s\nfirst: %v %s", r.header, r.body, first.header, first.body)
			}
		}
		s.kid = first.location()
		_, ready := s.ready("a.example.com")
		csr := csrBody(catest.CSR(t, newKey(t), "a.example.com"))
		done := s.post(ready.str("finalize"), csr).want(200)
		twice := s.post(ready.str("finalize"), csr).want(200)
		if !bytes.Equal(done.body, twice.body) || done.location() != twice.location() {
			t.Errorf("finalized twice: %s\nand: %s", done.body, twice.body)
		}
		s.post(ready.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).problem(403, "orderNotReady")
		if got := x.last().all("location"); !slices.Equal(got, []string{done.location()}) {
			t.Errorf("Location %q of the order that is not ready", got)
		}
	})
}

// Rule 12: a browser elsewhere may read all that a client needs, and send what
// RFC 8555 §6.2 wants.
func TestBrowsersElsewhereMayRead(t *testing.T) {
	onTheWire(t, func(t *testing.T, w *world, x *wire) {
		for _, r := range tour(t, w, x) {
			if got := r.all("access-control-allow-origin"); !slices.Equal(got, []string{"*"}) {
				t.Errorf("%s %d: origins %q", r.what, r.status, got)
			}
			exposed := strings.Split(strings.Join(r.all("access-control-expose-headers"), ", "), ", ")
			for _, name := range []string{"Link", "Location", "Replay-Nonce", "Retry-After"} {
				if !slices.Contains(exposed, name) {
					t.Errorf("%s %d: %s is not exposed: %q", r.what, r.status, name, exposed)
				}
			}
		}
		s := w.stranger()
		s.more = http.Header{"Origin": {"https://app.example"}, "Access-Control-Request-Method": {"POST"}, "Access-Control-Request-Headers": {"content-type"}}
		for _, path := range []string{"new-account", "new-order", "order/1/finalize"} {
			s.do("OPTIONS", w.url(path), "", nil).want(204)
			r := x.last()
			if !slices.Equal(r.all("access-control-allow-headers"), []string{"Content-Type"}) || !strings.Contains(strings.Join(r.all("access-control-allow-methods"), ""), "POST") {
				t.Errorf("%s: %v", path, r.lines)
			}
		}
	})
}

// Rule 12: a connection serves as many requests as a client has, refusals included.
func TestTheConnectionIsKept(t *testing.T) {
	onTheWire(t, func(t *testing.T, w *world, x *wire) {
		c := w.client()
		for range 20 {
			c.get(c.kid).want(200)
			c.get(w.url("order/" + strings.Repeat("0", 32))).want(404)
			c.send(c.kid, jws(t, c.key, c.header(c.kid, map[string]any{"nonce": "xx"}), "")).want(400)
		}
		if x.n != 1 {
			t.Errorf("%d connections", x.n)
		}
	})
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The directory's own links are below the address that is configured, whatever
// host a client names.
func TestLinksAreBelowTheConfiguredAddress(t *testing.T) {
	onTheWire(t, func(t *testing.T, w *world, x *wire) {
		for _, r := range tour(t, w, x) {
			for _, l := range slices.Concat(r.all("location"), r.all("link")) {
				l, _, _ = strings.Cut(strings.TrimPrefix(l, "<"), ">")
				u, err := url.Parse(l)
				if err != nil || "https://"+u.Host != w.base && u.Host != "ca.example" {
					t.Errorf("%s: %q, %v", r.what, l, err)
				}
			}
		}
	})
}

// Rule 13: renewal information is a plain GET, in JSON, with a Retry-After that
// clients take (a minute to a day), a start before its end, and as many slashes
// before the id as a client joins it with. It has no nonce: caches may keep it.
func TestRenewalInfoOnTheWire(t *testing.T) {
	onTheWire(t, func(t *testing.T, w *world, x *wire) {
		c := w.client()
		cert, _ := c.issue("a.example.com")
		base := c.do("GET", w.url("directory"), "", nil).want(200).str("renewalInfo")
		if strings.HasSuffix(base, "/") {
			t.Errorf("renewalInfo is at %q", base)
		}
		for _, joined := range []string{"/", "//", ""} {
			s := w.stranger()
			r := s.do("GET", base+joined+certID(cert), "", nil).want(200)
			r.window()
			raw := x.last()
			after, err := strconv.Atoi(strings.Join(raw.all("retry-after"), ","))
			if err != nil || after < 60 || after > 86400 {
				t.Errorf("Retry-After %q", raw.all("retry-after"))
			}
			if got := raw.all("content-type"); !slices.Equal(got, []string{"application/json"}) {
				t.Errorf("Content-Type %q", got)
			}
			if got := raw.all("replay-nonce"); got != nil {
				t.Errorf("a nonce that a cache may hand to many: %q", got)
			}
		}
	})
}
