package front

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// Values of headers that many answers have, made once. Their capacity is their
// length: whoever appends to one makes its own.
var (
	closeValue     = []string{"close"}
	nosniffValue   = []string{"nosniff"}
	plainTextValue = []string{"text/plain; charset=utf-8"}
	noStoreValue   = []string{"no-store"}
	refusalLength  = []string{strconv.Itoa(len(rateLimited))}
)

var rateLimited = []byte("too many requests\n")

// refusePlain is the Refuser of routes that brought none.
func refusePlain(w http.ResponseWriter, _ *http.Request, d ratelimit.Decision) {
	h := w.Header()
	h["Content-Type"] = plainTextValue
	h["Content-Length"] = refusalLength
	h["Cache-Control"] = noStoreValue // no cache between us may answer others with it
	h["Retry-After"] = ratelimit.SecondsHeader(d.Seconds())
	w.WriteHeader(http.StatusTooManyRequests)
	_, _ = w.Write(rateLimited) // a client that left is no news
}

// answers keeps those that refuse and quickly have done with.
var answers = sync.Pool{New: func() any { return new(answer) }}

// refuse answers a request that the limit of its route turned down. It is what a
// flood is answered with: nothing of the request is read, nothing is logged, and
// nothing of ours is allocated. There is no request id, as there is no line that
// it would help to find.
func (s *server) refuse(w http.ResponseWriter, r *http.Request, rt *route, d ratelimit.Decision, start time.Time) {
	a := answers.Get().(*answer)
	*a = answer{ResponseWriter: w}
	w.Header()["X-Content-Type-Options"] = nosniffValue
	if r.ProtoMajor == 1 {
		leaveBody(w, r.ContentLength, start)
		closeIfFaulty(w.Header(), r)
	}
	cut := s.callRefuser(rt, a, r, d)
	rt.class.observe(a.code(), time.Since(start))
	*a = answer{}
	answers.Put(a)
	if cut {
		panic(http.ErrAbortHandler)
	}
}

func (s *server) callRefuser(rt *route, a *answer, r *http.Request, d ratelimit.Decision) (cut bool) {
	defer func() {
		if p := recover(); p != nil {
			cut = s.panicked(p, a, r)
		}
	}()
	rt.refuse(a, r, d)
	return false
}

// source is where a request comes from: the other end of its connection, and
// the client that trusted hops name. Both are invalid for a local socket, whose
// caller has credentials instead of an address.
func (s *server) source(r *http.Request) (conn, client netip.Addr) {
	ap, err := netip.ParseAddrPort(r.RemoteAddr) // made by net/http: nothing is allocated here
	if err != nil {
		return netip.Addr{}, netip.Addr{}
	}
	conn = plain(ap.Addr())
	return conn, s.cfg.Hops.Client(conn, r.Header)
}

// leaveBody says what becomes of a body that nobody will read, of which rest is
// left (-1: unknown). Left alone, net/http reads on for its end, up to 256 KiB
// and for as long as the client cares to send.
//
// A small rest is worth a short wait, to keep the connection. One of ordinary
// size is read after the answer, as the client has most likely sent it already:
// that costs less than to close a connection with bytes unread. More than that,
// or who knows how much, is not read at all.
func leaveBody(w http.ResponseWriter, rest int64, now time.Time) {
	switch {
	case rest == 0:
		return
	case rest < 0 || rest > ordinaryBody:
		hangUp(w, now)
		return
	case rest > smallBody:
		w.Header()["Connection"] = closeValue
	}
	_ = http.NewResponseController(w).SetReadDeadline(now.Add(unreadPeriod)) // best effort
}

// hangUp has net/http close the connection after the answer without reading
// more. Only half of it at first: closed at once and with bytes unread, TCP
// would take the answer away from the client.
func hangUp(w http.ResponseWriter, now time.Time) {
	_, _ = http.MaxBytesReader(w, tooMuch{}, 0).Read(oneByte[:]) // a body beyond its bound is how one asks for that
	w.Header()["Connection"] = closeValue
	_ = http.NewResponseController(w).SetReadDeadline(now) // best effort
}

var oneByte [1]byte // nobody writes to it

// tooMuch is a body that is always longer than allowed.
type tooMuch struct{}

func (tooMuch) Read([]byte) (int, error) { return 1, nil }
func (tooMuch) Close() error             { return nil }

// body bounds what a handler can read. A length that is announced and too long
// fails the first read, so nothing of it is read. The error of a body that did
// not come in time is os.ErrDeadlineExceeded, and can still be answered.
type body struct {
	io.ReadCloser
	place  *conn // that it comes on
	length int64 // as announced; -1: not
	limit  int64
	read   int64
	ended  error // why no more will come; io.EOF: that was all
}

func newBody(w http.ResponseWriter, r *http.Request, place *conn, limit int64) *body {
	return &body{ReadCloser: http.MaxBytesReader(w, r.Body, limit), place: place, length: r.ContentLength, limit: limit}
}

func (b *body) Read(p []byte) (int, error) {
	if b.length > b.limit {
		return 0, &http.MaxBytesError{Limit: b.limit}
	}
	n, err := b.wait(p)
	b.read += int64(n)
	if err != nil {
		b.ended = err
	}
	return n, err
}

// wait reads, which takes as long as the client likes.
func (b *body) wait(p []byte) (int, error) {
	if b.length == 0 {
		return b.ReadCloser.Read(p)
	}
	b.place.pause()
	defer b.place.work()
	return b.ReadCloser.Read(p)
}

// unread is how much of the body is left; -1: unknown, or not worth waiting for.
func (b *body) unread() int64 {
	switch {
	case b.length == 0 || errors.Is(b.ended, io.EOF):
		return 0
	case b.length < 0 || b.ended != nil:
		return -1
	}
	return b.length - b.read
}
