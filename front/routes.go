package front

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/secsy-pki/secsy-pki/peer"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// A Route gives everything at or below a prefix of the path to one handler.
//
// The longest prefix wins. It is compared with the path as it came over the
// wire, neither cleaned nor decoded: an OCSP request in a path is base64, whose
// "//", "%2F" and "+" mean something (RFC 6960 Appendix A.1), and a path that
// hides a prefix behind escapes isn't that prefix.
type Route struct {
	Prefix  string // "/" or "/acme": itself and "/acme/...", not "/acmes"
	Class   string // the name in metrics and logs: lower-case, one of few
	Handler http.Handler
	MaxBody int64 // bytes of a request body; 0 means the listener's

	// Quick answers a request without a body from what it has at hand, or does
	// nothing and reports false: then Handler answers. It is called without a
	// request id, a peer, a deadline or anything else in the request's context, and
	// so waits for nobody. Nil: there is none.
	Quick func(w http.ResponseWriter, r *http.Request) bool
	// Lines says which requests leave a line in the access log. All are counted.
	Lines Lines

	// Limit is asked before anything of the request but its line, its headers
	// and its source has been looked at. What it refuses is counted, and has no
	// line of its own: the limiter's recorder tells of it. Nil: nothing is
	// limited, as on all listeners for operators.
	Limit *ratelimit.Endpoint
	// Refuse answers a request that Limit refused, in the protocol's own form.
	// It must be cheap: nothing is read, and nothing needs to be allocated. Nil:
	// 429 in plain text.
	Refuse Refuser
}

// Lines says which requests leave a line. The zero value has each leave one.
type Lines struct {
	// OnlyErrors has those leave one that are answered with 400 or more, or that the
	// handler noted something about (peer.Annotate).
	OnlyErrors bool
	// None has none leave one.
	None bool
	// Sample has one in so many leave one whatever comes of it; 0: none.
	Sample uint64
}

// A Refuser writes the answer to a request that is refused by d, a Retry-After
// included. The request has no id and no peer. w must not be kept.
type Refuser func(w http.ResponseWriter, r *http.Request, d ratelimit.Decision)

var className = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)

// classNone is the class of requests that no route wants.
const classNone = "none"

type route struct {
	prefix  string // without a final slash; "" is the root
	handler http.Handler
	maxBody int64
	class   *classMetrics
	limit   *ratelimit.Endpoint
	refuse  Refuser
	quick   func(w http.ResponseWriter, r *http.Request) bool
	lines   Lines
	count   atomic.Uint64 // of requests, for the sample
}

// sampled reports whether a request leaves a line whatever comes of it.
func (r *route) sampled() bool {
	switch {
	case r.lines.Sample > 0 && r.count.Add(1)%r.lines.Sample == 0:
		return true
	default:
		return !r.lines.OnlyErrors && !r.lines.None
	}
}

// leavesLine reports whether a request that was not sampled leaves one.
func (r *route) leavesLine(code int, notes []peer.Note) bool {
	return r.lines.OnlyErrors && (code >= http.StatusBadRequest || len(notes) > 0)
}

type table []*route // the longest prefix first

func newTable(l Listener, m *listenerMetrics) (table, error) {
	none := &route{handler: http.HandlerFunc(notFound), maxBody: l.Limits.Body, class: m.class(classNone), limit: l.Unrouted, refuse: refusePlain}
	if l.Operator && l.Unrouted != nil {
		return nil, errors.New("its paths without a route have a limit: it is during a flood that operators need their listener")
	}
	t := table{}
	for _, r := range l.Routes {
		if !strings.HasPrefix(r.Prefix, "/") || r.Handler == nil || !className.MatchString(r.Class) || r.MaxBody < 0 {
			return nil, fmt.Errorf("route %q needs a prefix that starts with /, a class of lower-case letters and a handler", r.Prefix)
		}
		if l.Operator && r.Limit != nil {
			return nil, fmt.Errorf("route %q has a limit: it is during a flood that operators need their listener", r.Prefix)
		}
		x := &route{
			prefix: strings.TrimSuffix(r.Prefix, "/"), handler: r.Handler, maxBody: r.MaxBody, class: m.class(r.Class),
			limit: r.Limit, refuse: r.Refuse, quick: r.Quick, lines: r.Lines,
		}
		if x.maxBody == 0 {
			x.maxBody = l.Limits.Body
		}
		if x.refuse == nil {
			x.refuse = refusePlain
		}
		if slices.ContainsFunc(t, func(o *route) bool { return o.prefix == x.prefix }) {
			return nil, fmt.Errorf("route %q is given twice", r.Prefix)
		}
		t = append(t, x)
	}
	slices.SortFunc(t, func(a, b *route) int { return len(b.prefix) - len(a.prefix) })
	return append(t, none), nil
}

// match finds the route of a raw path; the last route of a table takes what no
// other wants.
func (t table) match(path string) *route {
	last := len(t) - 1
	for _, r := range t[:last] {
		rest, ok := strings.CutPrefix(path, r.prefix)
		if ok && (rest == "" && r.prefix != "" || strings.HasPrefix(rest, "/")) {
			return r
		}
	}
	return t[last]
}

func notFound(w http.ResponseWriter, _ *http.Request) {
	plainAnswer(w, http.StatusNotFound, "not found\n")
}

// plainAnswer writes a constant text. Nothing of the request or of us is in it.
func plainAnswer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // a client that left is no news
}
