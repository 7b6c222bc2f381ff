package acme_test

import (
	"bytes"
	"log/slog"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
)

// A lockedBuffer is a log that a test reads.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func pausing(w **lockedBuffer) func(*acme.Config) {
	*w = new(lockedBuffer)
	return func(c *acme.Config) {
		c.Pausing = acme.Pausing{Failures: 3, Period: time.Hour}
		c.Logger = slog.New(slog.NewTextHandler(*w, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
}

// failed orders a name and fails to prove it, n times.
func (c *client) failed(n int, name string) {
	c.t.Helper()
	c.w.validator.fail(name, &acme.Problem{Type: acme.Connection, Detail: "connection refused"})
	for range n {
		_, o := c.order(name)
		if got := c.prove(o.strs("authorizations")[0], "http-01").str("status"); got != "invalid" {
			c.t.Fatalf("authorization is %s", got)
		}
	}
}

var linkInDetail = regexp.MustCompile(`https://\S+/acme/unpause\?token=([A-Za-z0-9_-]+)$`)

// pausedLink orders what is paused and returns the link that the refusal has.
func (c *client) pausedLink(names ...string) (link, token string) {
	c.t.Helper()
	r := c.post(c.w.url("new-order"), dns(names...)).problem(429, "rateLimited")
	if got := r.header.Get("Retry-After"); got != "600" {
		c.t.Errorf("Retry-After is %q", got)
	}
	m := linkInDetail.FindStringSubmatch(r.str("detail"))
	if m == nil {
		c.t.Fatalf("no link in %q", r.str("detail"))
	}
	return m[0], m[1]
}

// form posts one as a browser does.
func (w *world) form(at string, values url.Values) *reply {
	c := w.stranger()
	return c.do("POST", at, "application/x-www-form-urlencoded", []byte(values.Encode()))
}

// What an account fails to prove again and again it can't order, and nobody else
// is touched. The link shows what is paused and ends it, once for all names.
func TestPausedNamesAreUnpausedByTheLink(t *testing.T) {
	t.Parallel()
	var log *lockedBuffer
	w := newWorld(t, pausing(&log))
	c, other := w.client(), w.client()
	c.failed(3, "a.example.com")
	c.failed(3, "b.example.com")
	c.failed(2, "c.example.com")
	link, token := c.pausedLink("z.example.com", "a.example.com", "b.example.com")
	other.order("a.example.com")
	c.order("c.example.com")
	c.order("d.example.com")

	page := w.stranger().do("GET", link, "", nil).want(200)
	for _, want := range []string{"a.example.com", "b.example.com", `<form method="post"`, token, c.kid} {
		if !bytes.Contains(page.body, []byte(want)) {
			t.Errorf("the page has no %q: %s", want, page.body)
		}
	}
	if bytes.Contains(page.body, []byte("c.example.com")) || bytes.Contains(page.body, []byte("<script")) {
		t.Errorf("page: %s", page.body)
	}
	for name, want := range map[string]string{
		"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "Access-Control-Allow-Origin": "",
		"Content-Security-Policy": "default-src 'none'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
	} {
		if got := page.header.Get(name); got != want {
			t.Errorf("%s is %q; want %q", name, got, want)
		}
	}
	c.pausedLink("a.example.com") // looking has changed nothing

	done := w.form(w.url("unpause"), url.Values{"token": {token}}).want(200)
	if !bytes.Contains(done.body, []byte("2 names are no longer paused")) {
		t.Errorf("page: %s", done.body)
	}
	c.failed(3, "a.example.com") // a new row
	one := w.form(w.url("unpause"), url.Values{"token": {token}}).want(200)
	if !bytes.Contains(one.body, []byte("One name is no longer paused")) {
		t.Errorf("page: %s", one.body)
	}
	c.failed(2, "a.example.com") // and another
	c.order("a.example.com", "b.example.com")
	again := w.form(w.url("unpause"), url.Values{"token": {token}}).want(200)
	if !bytes.Contains(again.body, []byte("Nothing was paused")) {
		t.Errorf("page: %s", again.body)
	}
	if out := log.String(); strings.Contains(out, token) || strings.Contains(out, token[:20]) || !strings.Contains(out, "rateLimited") {
		t.Errorf("the log has the token, or nothing: %s", out)
	}
}

// A proof ends a pause: the order from before that succeeds shows that all is well.
func TestAProofEndsAPause(t *testing.T) {
	t.Parallel()
	var log *lockedBuffer
	w := newWorld(t, pausing(&log))
	c := w.client()
	_, before := c.order("a.example.com")
	c.failed(3, "a.example.com")
	c.pausedLink("a.example.com")
	w.validator.fail("a.example.com", nil)
	if got := c.prove(before.strs("authorizations")[0], "http-01").str("status"); got != "valid" {
		t.Fatal(got)
	}
	c.order("a.example.com")
}

// A fault of ours is nobody's failure.
func TestOurOwnFaultsPauseNobody(t *testing.T) {
	t.Parallel()
	var log *lockedBuffer
	w := newWorld(t, pausing(&log))
	c := w.client()
	w.validator.fail("a.example.com", &acme.Problem{Type: acme.ServerInternal, Detail: "ours"})
	for range 5 {
		_, o := c.order("a.example.com")
		c.prove(o.strs("authorizations")[0], "http-01")
	}
	c.order("a.example.com")
}

// Of tokens that are not good, for whatever reason, one hears the same, and they
// change nothing.
func TestBadLinksAreAllTheSame(t *testing.T) {
	t.Parallel()
	var log *lockedBuffer
	w := newWorld(t, pausing(&log))
	c, other := w.client(), w.client()
	c.failed(3, "a.example.com")
	other.failed(3, "a.example.com")
	_, token := c.pausedLink("a.example.com")
	_, foreign := other.pausedLink("a.example.com")
	bad := []string{"", "x", token[:len(token)-1], token + "A", foreign[:22] + token[22:], token[:22] + foreign[22:], strings.Repeat("A", len(token)), strings.Repeat("A", 5000)}
	want := w.stranger().do("GET", w.url("unpause"), "", nil).want(404)
	same := func(what string, r *reply) {
		t.Helper()
		r.want(404)
		if !bytes.Equal(r.body, want.body) {
			t.Errorf("%s: %s", what, r.body)
		}
	}
	for _, b := range bad {
		same("GET "+b, w.stranger().do("GET", w.url("unpause")+"?token="+url.QueryEscape(b), "", nil))
		same("POST "+b, w.form(w.url("unpause"), url.Values{"token": {b}}))
	}
	same("a token in the query of a POST", w.form(w.url("unpause")+"?token="+token, url.Values{}))
	same("another content type", w.stranger().do("POST", w.url("unpause"), "text/plain", []byte("token="+token)))
	same("a large form", w.form(w.url("unpause"), url.Values{"x": {strings.Repeat("x", 5000)}, "token": {token}}))
	c.pausedLink("a.example.com")
	w.clock.advance(14*24*time.Hour - time.Minute)
	w.stranger().do("GET", w.url("unpause")+"?token="+token, "", nil).want(200)
	w.clock.advance(2 * time.Minute)
	same("an old one", w.stranger().do("GET", w.url("unpause")+"?token="+token, "", nil))
	same("an old one", w.form(w.url("unpause"), url.Values{"token": {token}}))
}

// Authorizations ahead of an order are refused as the order would be.
func TestAPausedNameIsNotAuthorizedAhead(t *testing.T) {
	t.Parallel()
	var log *lockedBuffer
	w := newWorld(t, pausing(&log), func(c *acme.Config) { c.PreAuthorization, c.ReuseAuthorizations = true, true })
	c := w.client()
	c.failed(3, "a.example.com")
	ahead := func(name string) *reply {
		return c.post(w.url("new-authz"), map[string]any{"identifier": map[string]string{"type": "dns", "value": name}})
	}
	ahead("a.example.com").problem(429, "rateLimited")
	ahead("b.example.com").want(201)
}
