package front

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
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
	ordinaryBody = 64 << 10    // one that is worth reading to close it in order
	maxPiece     = 64 << 10    // of an answer; whoever takes less in a second is not reading
	unreadPeriod = time.Second // for net/http to read the rest of a refused body
)

// ServeHTTP says who is calling, hands the request to its route, and accounts
// for the answer whatever the handler does.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	s.inFlight.Add(1)
	defer s.inFlight.Add(-1)

	// The limit comes first: what it refuses should cost as little as it can.
	route := s.routes.match(rawPath(r.URL))
	conn, client := s.source(r)
	if d := route.limit.AdmitAt(client, start); !d.OK {
		s.refuse(w, r, route, d, start)
		return
	}
	sampled := route.sampled()
	if !sampled && route.quick != nil && r.ContentLength == 0 && s.quickly(w, r, route, start) {
		return
	}

	caller := peer.Peer{Addr: client, Conn: conn, RequestID: newRequestID(), Endpoint: route.class.name}
	place := connOf(r.Context())
	place.work()
	defer place.pause()
	// Work for an answer that can't be sent any more is waste.
	ctx, cancel := context.WithTimeout(r.Context(), s.cfg.Limits.Write)
	defer cancel()
	ctx, notes := peer.WithNotes(peer.With(ctx, caller))
	inner := r.WithContext(ctx)
	body := newBody(w, r, place, route.maxBody)
	inner.Body = body
	a := &answer{ResponseWriter: w, place: place}
	if r.ProtoMajor == 1 {
		a.body = body
	}
	setHeaders(w.Header(), r, caller.RequestID)

	cut := s.run(route.handler, a, inner)
	took := time.Since(start)
	route.class.observe(a.code(), took)
	// Who has to make room is counted. A line for each, and any number of
	// requests that never came would fill the log.
	list := notes.All()
	if !notes.Quiet() && (sampled || route.leavesLine(a.code(), list)) && (body.unread() == 0 || !place.madeRoom()) {
		s.logAccess(ctx, r, route, caller, a, took, list)
	}
	if cut {
		panic(http.ErrAbortHandler) // the client must not take half an answer for a whole one
	}
}

// quickly has the route answer from what is at hand, and reports whether it did.
// It costs no more than a refusal does.
func (s *server) quickly(w http.ResponseWriter, r *http.Request, rt *route, start time.Time) bool {
	a := answers.Get().(*answer)
	*a = answer{ResponseWriter: w}
	w.Header()["X-Content-Type-Options"] = nosniffValue
	closeIfFaulty(w.Header(), r)
	done, cut := s.callQuick(rt, a, r)
	if done {
		rt.class.observe(a.code(), time.Since(start))
	}
	*a = answer{}
	answers.Put(a)
	if cut {
		panic(http.ErrAbortHandler)
	}
	return done
}

func (s *server) callQuick(rt *route, a *answer, r *http.Request) (done, cut bool) {
	defer func() {
		if p := recover(); p != nil {
			done, cut = true, s.panicked(p, a, r)
		}
	}()
	return rt.quick(a, r), false
}

// run calls the handler. A panic becomes a constant 500; run reports true if it
// is too late for that, and the connection has to be cut.
func (s *server) run(h http.Handler, a *answer, r *http.Request) (cut bool) {
	defer func() {
		if p := recover(); p != nil {
			cut = s.panicked(p, a, r)
		}
	}()
	if len(r.RequestURI) > maxURI {
		plainAnswer(a, http.StatusRequestURITooLong, "request target too long\n")
		return false
	}
	h.ServeHTTP(a, r)
	return false
}

// panicked accounts for a handler that panicked with p and answers in its place,
// if that is still possible.
func (s *server) panicked(p any, a *answer, r *http.Request) (cut bool) {
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		return true
	}
	s.metrics.all.panics.Inc()
	id, stack := peer.From(r.Context()).RequestID, debug.Stack()
	s.log.ErrorContext(r.Context(), "handler panicked",
		"request_id", id, "panic", p, "stack", string(stack[:min(len(stack), maxLogStack)]))
	if a.status != 0 {
		return true
	}
	clear(a.Header())
	setHeaders(a.Header(), r, id)
	plainAnswer(a, http.StatusInternalServerError, "internal error\n")
	return false
}

// rawPath is the path as it came over the wire.
func rawPath(u *url.URL) string {
	if u.RawPath != "" { // always right: net/http has parsed it from the wire itself
		return u.RawPath
	}
	return u.EscapedPath()
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
	h["X-Content-Type-Options"] = nosniffValue
	if requestID != "" {
		h["X-Request-Id"] = []string{requestID}
	}
	closeIfFaulty(h, r)
}

// closeIfFaulty ends a connection with a request that others may see end
// elsewhere: what follows may be smuggled and must not be read. RFC 9112 §6.1
// asks for that where a length came beside chunks, and where chunks came in
// HTTP/1.0. net/http no longer says which of them came, so chunks are enough,
// and HTTP/1.0 is.
func closeIfFaulty(h http.Header, r *http.Request) {
	if r.ProtoMajor == 1 && (r.ProtoMinor == 0 || len(r.TransferEncoding) > 0) {
		h["Connection"] = closeValue
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
		slog.String("path", printable(rawPath(r.URL), maxLogPath)), // never the query: secrets end up there
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
	place  *conn // that it goes out on
	body   *body // of a request whose connection depends on its being read; else nil
	status int   // 0: nothing yet
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
		if status >= 400 && a.body != nil {
			leaveBody(a.ResponseWriter, a.body.unread(), time.Now())
		}
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (n int, err error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	for first := true; first || len(p) > 0; first = false {
		piece := p[:min(len(p), maxPiece)]
		m, err := a.send(piece)
		n += m
		if err != nil {
			return n, err
		}
		p = p[len(piece):]
	}
	return n, nil
}

// send waits for the client to take p.
func (a *answer) send(p []byte) (int, error) {
	a.place.pause()
	defer a.place.work()
	n, err := a.ResponseWriter.Write(p)
	a.bytes += int64(n)
	return n, err
}
