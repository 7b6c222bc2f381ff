package front

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/secsy-pki/secsy-pki/peer"
)

const (
	maxURI       = 8 << 10 // of the request line; the longest OCSP request that is worth a GET fits
	maxLogPath   = 128
	maxLogAgent  = 128
	maxLogStack  = 16 << 10
	smallBody    = 4 << 10     // an unread rest that is worth reading to keep the connection
	unreadPeriod = time.Second // for net/http to read the rest of a refused body
)

// ServeHTTP says who is calling, hands the request to its route, and accounts
// for the answer whatever the handler does.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	s.inFlight.Add(1)
	s.metrics.inFlight.Inc()
	defer func() {
		s.metrics.inFlight.Dec()
		s.inFlight.Add(-1)
	}()

	route := s.routes.match(r.URL.EscapedPath())
	caller := s.caller(r)
	// Work for an answer that can't be sent any more is waste.
	ctx, cancel := context.WithTimeout(r.Context(), s.cfg.Limits.Write)
	defer cancel()
	ctx, notes := peer.WithNotes(peer.With(ctx, caller))
	inner := r.WithContext(ctx)
	body := newBody(w, r, route.maxBody)
	inner.Body = body
	a := &answer{ResponseWriter: w, http1: r.ProtoMajor == 1, body: body}
	setHeaders(w.Header(), r, caller.RequestID)

	cut := s.run(route.handler, a, inner)
	took := time.Since(start)
	route.class.observe(a.code(), took)
	if !notes.Quiet() {
		s.logAccess(ctx, r, route, caller, a, took, notes.All())
	}
	if cut {
		panic(http.ErrAbortHandler) // the client must not take half an answer for a whole one
	}
}

// run calls the handler. A panic becomes a constant 500; run reports true if it
// is too late for that, and the connection has to be cut.
func (s *server) run(h http.Handler, a *answer, r *http.Request) (cut bool) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
			cut = true
			return
		}
		s.metrics.all.panics.Inc()
		stack := debug.Stack()
		s.log.ErrorContext(r.Context(), "handler panicked",
			"request_id", peer.From(r.Context()).RequestID, "panic", p,
			"stack", string(stack[:min(len(stack), maxLogStack)]))
		if a.status != 0 {
			cut = true
			return
		}
		clear(a.Header())
		setHeaders(a.Header(), r, peer.From(r.Context()).RequestID)
		plainAnswer(a, http.StatusInternalServerError, "internal error\n")
	}()
	if len(r.RequestURI) > maxURI {
		plainAnswer(a, http.StatusRequestURITooLong, "request target too long\n")
		return false
	}
	h.ServeHTTP(a, r)
	return false
}

func (s *server) caller(r *http.Request) peer.Peer {
	p := peer.Peer{RequestID: newRequestID()}
	// A local socket has no address; its caller has credentials instead.
	if ap, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		p.Conn = plain(ap.Addr())
		p.Addr = s.cfg.Hops.Client(p.Conn, r.Header)
	}
	return p
}

// newRequestID is fresh for each request. One that a client sends is not taken
// over: it would let the client write another's id into our log.
func newRequestID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// setHeaders sets what all answers have. There is no Strict-Transport-Security:
// the clients of a CA are no browsers, and a browser that learnt it from one
// page would no longer fetch CRLs and OCSP answers over the plain HTTP that they
// must be served on.
func setHeaders(h http.Header, r *http.Request, requestID string) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Request-Id", requestID)
	// RFC 9112 §6.1: where a length came beside the chunks, which net/http no
	// longer says, what follows may be smuggled and must not be read.
	if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
		h.Set("Connection", "close")
	}
}

func (s *server) logAccess(ctx context.Context, r *http.Request, rt *route, c peer.Peer, a *answer, took time.Duration, notes []peer.Note) {
	if !s.access.Enabled(ctx, slog.LevelInfo) {
		return
	}
	attrs := make([]slog.Attr, 0, 16)
	attrs = append(attrs,
		slog.String("request_id", c.RequestID),
		slog.String("listener", s.cfg.Name),
		slog.String("class", rt.class.name),
		slog.String("method", printable(r.Method, 16)),
		slog.String("path", printable(r.URL.EscapedPath(), maxLogPath)), // never the query: secrets end up there
		slog.Int("status", a.code()),
		slog.Int64("bytes", a.bytes),
		slog.Float64("duration_ms", float64(took.Microseconds())/1000),
		slog.String("client", address(c.Addr)),
		slog.String("conn", address(c.Conn)),
		slog.String("proto", r.Proto),
		slog.String("agent", printable(r.UserAgent(), maxLogAgent)),
	)
	if r.TLS != nil {
		attrs = append(attrs, slog.String("tls", tls.VersionName(r.TLS.Version)))
	}
	if cred, ok := peer.CredFrom(ctx); ok {
		attrs = append(attrs, slog.Group("local", slog.Any("uid", cred.UID), slog.Any("pid", cred.PID)))
	}
	if len(notes) > 0 {
		group := make([]slog.Attr, len(notes))
		for i, n := range notes {
			group[i] = slog.String(n.Key, printable(n.Value, len(n.Value)))
		}
		attrs = append(attrs, slog.GroupAttrs("note", group...))
	}
	s.access.LogAttrs(ctx, slog.LevelInfo, "request", attrs...)
}

func address(a netip.Addr) string {
	if !a.IsValid() {
		return "local"
	}
	return a.String()
}

// printable bounds a stranger's string and replaces what could play tricks on a
// terminal or a log reader.
func printable(s string, limit int) string {
	s = strings.TrimSpace(s[:min(len(s), limit)])
	return strings.Map(func(c rune) rune {
		if c == utf8.RuneError || !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, s)
}

// answer remembers what was answered.
type answer struct {
	http.ResponseWriter
	http1  bool
	body   *body
	status int // 0: nothing yet
	bytes  int64
}

// Unwrap lets http.ResponseController reach the connection, to flush or to give
// a long download more time.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) code() int {
	if a.status == 0 {
		return http.StatusOK
	}
	return a.status
}

func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
		if status >= 400 {
			a.dropBody()
		}
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	n, err := a.ResponseWriter.Write(p)
	a.bytes += int64(n)
	return n, err
}

// dropBody keeps a refusal cheap. Before it answers, net/http reads what is left
// of a body, up to 256 KiB and for as long as the client cares to send: a large
// rest is not waited for, and a small one only shortly.
func (a *answer) dropBody() {
	rest := a.body.unread()
	if rest == 0 || !a.http1 {
		return
	}
	if rest < 0 || rest > smallBody {
		a.Header().Set("Connection", "close")
	}
	_ = http.NewResponseController(a.ResponseWriter).SetReadDeadline(time.Now().Add(unreadPeriod)) // best effort
}

// body bounds what a handler can read. A length that is announced and too long
// fails the first read, so nothing of it is read.
type body struct {
	io.ReadCloser
	length  int64 // as announced; -1: not
	limit   int64
	read    int64
	drained bool
}

func newBody(w http.ResponseWriter, r *http.Request, limit int64) *body {
	return &body{ReadCloser: http.MaxBytesReader(w, r.Body, limit), length: r.ContentLength, limit: limit}
}

func (b *body) Read(p []byte) (int, error) {
	if b.length > b.limit {
		return 0, &http.MaxBytesError{Limit: b.limit}
	}
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	b.drained = b.drained || errors.Is(err, io.EOF)
	return n, err
}

// unread is how much of the body is left; -1: unknown.
func (b *body) unread() int64 {
	switch {
	case b.drained || b.length == 0:
		return 0
	case b.length < 0:
		return -1
	}
	return b.length - b.read
}
