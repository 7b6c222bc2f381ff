package perspective

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/acme/challenge"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/front"
	"github.com/secsy-pki/secsy-pki/gate"
)

func TestWhatAllSeeIsCorroborated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.honest("fra", RIPENCC), w.honest("nrt", APNIC)
	c := w.corroborator()
	rec, p := c.Validate(t.Context(), someValidation)
	if p != nil {
		t.Fatal(p)
	}
	want := someValidation
	want.AccountID = ""
	for _, l := range []*look{a, b} {
		if len(l.asked) != 1 || !reflect.DeepEqual(l.asked[0], want) {
			t.Errorf("asked %+v", l.asked)
		}
	}
	if rec.Corroborated != "2/2" || len(rec.Perspectives) != 2 {
		t.Fatalf("got %+v", rec)
	}
	for i, name := range []string{"fra", "nrt"} {
		r := rec.Perspectives[i]
		if r.Name != name || !r.OK || r.Problem != "" || len(r.Addrs) != 1 || r.Took <= 0 || r.Region != []string{"ripencc", "apnic"}[i] {
			t.Errorf("got %+v", r)
		}
		if w.outcome(name, "agreed") != 1 {
			t.Errorf("no sample for %s", name)
		}
	}
	caa, p := c.CheckCAA(t.Context(), someQuery)
	if p != nil || caa.Corroborated != "2/2" || len(caa.Perspectives) != 2 || len(a.caa) != 1 || a.caa[0] != someQuery {
		t.Errorf("CAA: %+v, %v; asked %+v", caa, p, a.caa)
	}
}

func TestWhatWeDoNotSeeOurselvesIsAskedOfNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.honest("fra", RIPENCC)
	w.local.set(wrong)
	c := w.corroborator()
	if rec, p := c.Validate(t.Context(), someValidation); p != wrong || rec.Perspectives != nil {
		t.Errorf("got %+v, %v", rec, p)
	}
	if _, p := c.CheckCAA(t.Context(), someQuery); p != wrong {
		t.Errorf("got %v", p)
	}
	if n := a.times(); n != 0 {
		t.Errorf("it was asked %d times", n)
	}
}

// What an onion service signs needs no network to be seen.
func TestOnionServicesAreAskedOfNobodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.honest("fra", RIPENCC)
	c := w.corroborator()
	const service = "bbcweb3hytmzhn5d532owbu6oqadra5z3ar726vq5kgwwn6aucdccrad.onion"
	v := acme.Validation{Type: acme.OnionCSR01, Identifier: ca.Identifier{Type: ca.DNS, Value: service}}
	if rec, p := c.Validate(t.Context(), v); p != nil || rec.Perspectives != nil {
		t.Errorf("got %+v, %v", rec, p)
	}
	if rec, p := c.CheckCAA(t.Context(), acme.CAAQuery{Name: service, Method: acme.OnionCSR01}); p != nil || rec.Perspectives != nil {
		t.Errorf("CAA: got %+v, %v", rec, p)
	}
	if n := a.times(); n != 0 {
		t.Errorf("it was asked %d times", n)
	}
}

func TestOneOfFourMayDisagreeAndTwoMayNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	looks := []*look{w.honest("iad", ARIN), w.honest("fra", RIPENCC), w.honest("nrt", APNIC), w.honest("cpt", AFRINIC)}
	c := w.corroborator(func(c *Config) { c.Rule.Public = true })
	looks[1].set(wrong)
	rec, p := c.Validate(t.Context(), someValidation)
	if p != nil || rec.Corroborated != "3/4" {
		t.Fatalf("one dissent: %+v, %v", rec, p)
	}
	if got, want := rec.Perspectives[1].Problem, `unauthorized: the server answered "hijacked"`; got != want || rec.Perspectives[1].OK {
		t.Errorf("got %q, want %q", got, want)
	}
	looks[3].set(&acme.Problem{Type: acme.DNSError, Detail: "NXDOMAIN"})
	looks[2].set(&acme.Problem{Type: acme.Unauthorized, Detail: "another"})
	rec, p = c.Validate(t.Context(), someValidation)
	if p == nil || rec.Corroborated != "1/4" {
		t.Fatalf("three dissents: %+v, %v", rec, p)
	}
	const want = `3 of 4 remote perspectives did not see it (afrinic, apnic, ripencc): the server answered "hijacked"`
	if p.Type != acme.Unauthorized || p.Detail != want || !errors.Is(p, acme.ErrContested) {
		t.Errorf("got %s: %s", p.Type, p.Detail)
	}
	for _, name := range []string{"iad", "fra", "nrt", "cpt"} {
		if strings.Contains(p.Detail, name) {
			t.Errorf("the client is told %s", name)
		}
	}
	_, p = c.CheckCAA(t.Context(), someQuery)
	if p == nil || !strings.HasPrefix(p.Detail, "3 of 4 remote perspectives did not find it allowed (") {
		t.Errorf("CAA: %v", p)
	}
	for _, want := range []string{"perspectives disagree", "corroborated=false", "corroborated=true", "nrt"} {
		if !strings.Contains(w.log.String(), want) {
			t.Errorf("the log does not say %q", want)
		}
	}
}

func TestThoseWhoAgreeAreInTwoRegions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 3 {
		w.honest(fmt.Sprint("a", i), ARIN)
	}
	lone := w.honest("fra", RIPENCC)
	c := w.corroborator(func(c *Config) { c.Rule.Public = true })
	if _, p := c.Validate(t.Context(), someValidation); p != nil {
		t.Fatal(p)
	}
	lone.set(wrong)
	rec, p := c.Validate(t.Context(), someValidation)
	if p == nil || rec.Corroborated != "3/4" || !strings.Contains(p.Detail, "all in one region") {
		t.Errorf("got %+v, %v", rec, p)
	}
}

// TestOnlyTheRightCertificateIsLetIn is about both ends of the connection.
func TestOnlyTheRightCertificateIsLetIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := newPKI(t)
	l := &look{}
	addr := w.serve("fra", RIPENCC, l)
	past := func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
	}
	with := func(cert *tls.Certificate) func(*RemoteConfig) {
		return func(c *RemoteConfig) { c.Certificate = func() (*tls.Certificate, error) { return cert, nil } }
	}
	for name, change := range map[string]func(*RemoteConfig){
		"none":          with(&tls.Certificate{}),
		"another CA's":  with(other.client(t)),
		"an expired":    with(w.pki.issue(t, "primary.example", x509.ExtKeyUsageClientAuth, past)),
		"a server's":    with(w.pki.issue(t, "primary.example", x509.ExtKeyUsageServerAuth)),
		"another name":  with(w.pki.issue(t, "www.primary.example", x509.ExtKeyUsageClientAuth)),
		"a common name": with(w.pki.issue(t, "other.example", x509.ExtKeyUsageClientAuth, func(c *x509.Certificate) { c.Subject.CommonName = "primary.example" })),
		"other roots":   func(c *RemoteConfig) { c.Roots = other.pool() },
		"another host":  func(c *RemoteConfig) { c.URL.Host = strings.Replace(addr, "127.0.0.1", "localhost", 1) },
		"no key": func(c *RemoteConfig) {
			c.Certificate = func() (*tls.Certificate, error) { return nil, errors.New("gone") }
		},
	} {
		r := w.add("fra", RIPENCC, addr, change)
		a := goodAsks()[0]
		if got, err := r.ask(t.Context(), a); !errors.Is(err, errUnreachable) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
	if n := l.times(); n != 0 {
		t.Errorf("it looked %d times", n)
	}
	if got, err := w.add("fra", RIPENCC, addr).ask(t.Context(), goodAsks()[0]); err != nil || !got.OK {
		t.Errorf("the right one: %+v, %v", got, err)
	}
}

func TestAServerThatIsWiredWronglyAnswersNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := &look{}
	// A listener that wants no certificate.
	addr := w.serve("fra", RIPENCC, l, func(_ *ServerConfig, lis *front.Listener) { lis.Clients = nil })
	r := w.add("fra", RIPENCC, addr)
	if got, err := r.ask(t.Context(), goodAsks()[0]); !errors.Is(err, errInvalid) || !strings.Contains(err.Error(), "403") || l.times() != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestAPerspectiveThatGivesNoAnswerDisagrees(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	reply := func(change func(*answer)) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			var a ask
			_ = json.NewDecoder(r.Body).Decode(&a)
			out := answer{Version: version, ID: a.ID, Name: "x", Region: LACNIC, OK: true}
			if change != nil {
				change(&out)
			}
			rw.Header().Set("Content-Type", jsonType)
			b, _ := encode(out)
			_, _ = rw.Write(b)
		}
	}
	raw := func(status int, kind, body string) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", kind)
			rw.WriteHeader(status)
			_, _ = io.WriteString(rw, body)
		}
	}
	for name, c := range map[string]struct {
		h       http.HandlerFunc
		outcome string
	}{
		"as it should be": {reply(nil), "agreed"},
		"hangs": {func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-hang:
			case <-r.Context().Done():
			}
		}, "timeout"},
		"hangs in the answer": {func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", jsonType)
			_, _ = io.WriteString(rw, `{"version":1,`)
			_ = http.NewResponseController(rw).Flush()
			select {
			case <-hang:
			case <-r.Context().Done():
			}
		}, "timeout"},
		"hangs up": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "unreachable"},
		"garbage":  {raw(200, jsonType, "\x00\x01ok"), "invalid"},
		"nothing":  {raw(200, jsonType, ""), "invalid"},
		"a page":   {raw(200, "text/html", "<h1>Portal</h1>"), "invalid"},
		"an error": {raw(500, jsonType, `{"ok":true}`), "invalid"},
		"busy":     {raw(503, "text/plain", "busy"), "busy"},
		"a redirect": {func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, "/v1/other", http.StatusTemporaryRedirect)
		}, "invalid"},
		"oversized": {raw(200, jsonType, `{"version":1,"id":"`+strings.Repeat("a", 1<<20)+`"}`), "invalid"},
		"endless": {func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", jsonType)
			for r.Context().Err() == nil {
				if _, err := rw.Write(make([]byte, 4096)); err != nil {
					return
				}
			}
		}, "invalid"},
		"another's":       {reply(func(a *answer) { a.ID = someID }), "invalid"},
		"another name":    {reply(func(a *answer) { a.Name = "y" }), "invalid"},
		"another region":  {reply(func(a *answer) { a.Region = ARIN }), "invalid"},
		"both":            {reply(func(a *answer) { a.Problem = &objection{Type: acme.DNSError} }), "invalid"},
		"neither":         {reply(func(a *answer) { a.OK = false }), "invalid"},
		"another version": {reply(func(a *answer) { a.Version = 2 }), "invalid"},
		"an odd problem":  {reply(func(a *answer) { a.OK, a.Problem = false, &objection{Type: "<script>", Detail: "x"} }), "invalid"},
		"a plain no":      {reply(func(a *answer) { a.OK, a.Problem = false, &objection{Type: acme.TLSError, Detail: "x"} }), "dissented"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.rogue("x", LACNIC, c.h)
			cor := w.corroborator(func(cfg *Config) {
				if c.outcome == "timeout" {
					cfg.Timeout = 300 * time.Millisecond
				}
			})
			rec, p := cor.Validate(t.Context(), someValidation)
			if (p == nil) != (c.outcome == "agreed") || w.outcome("x", c.outcome) != 1 {
				t.Errorf("got %+v, %v; not counted as %s", rec, p, c.outcome)
			}
			if p != nil && c.outcome != "dissented" && (p.Type != acme.ServerInternal || !strings.Contains(p.Detail, "they could not look")) {
				t.Errorf("got %s: %s", p.Type, p.Detail)
			}
			if p != nil && len(rec.Perspectives[0].Problem) == 0 {
				t.Error("the record does not say why")
			}
		})
	}
}

func TestWhoIsDownIsToldOnceAndForgivenLikeOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.honest("fra", RIPENCC)
	w.honest("nrt", APNIC)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	_ = ln.Close() // nobody is there
	w.add("gru", LACNIC, addr)
	c := w.corroborator()
	for range 3 {
		if rec, p := c.Validate(t.Context(), someValidation); p != nil || rec.Corroborated != "2/3" {
			t.Fatalf("got %+v, %v", rec, p)
		}
	}
	if n := strings.Count(w.log.String(), "gives no answer"); n != 1 {
		t.Errorf("told %d times", n)
	}
	if w.outcome("gru", "unreachable") != 3 || w.metric("secsy_perspective_remotes_silent", nil) != 1 {
		t.Error("not counted")
	}
}

func TestTheSlowAreNotWaitedForOnceTheyDoNotMatter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	looks := []*look{w.honest("fra", RIPENCC), w.honest("nrt", APNIC), w.honest("iad", ARIN)}
	looks[2].hold = make(chan struct{}) // for ever
	c := w.corroborator(func(c *Config) { c.Grace, c.Timeout = 50*time.Millisecond, time.Hour })
	rec, p := c.Validate(t.Context(), someValidation)
	if p != nil || rec.Corroborated != "2/3" || !strings.Contains(rec.Perspectives[2].Problem, "not waited for") {
		t.Fatalf("got %+v, %v", rec, p)
	}
	if w.outcome("iad", "late") != 1 || !strings.Contains(w.log.String(), "gives no answer") {
		t.Error("nobody is told of it")
	}
	// One that is slow and matters is waited for.
	looks[0].set(wrong)
	slow := make(chan struct{})
	looks[2].mu.Lock()
	looks[2].hold = slow
	looks[2].mu.Unlock()
	time.AfterFunc(200*time.Millisecond, func() { close(slow) })
	if rec, p := c.Validate(t.Context(), someValidation); p != nil || rec.Corroborated != "2/3" || !rec.Perspectives[2].OK {
		t.Errorf("got %+v, %v", rec, p)
	}
}

func TestEndingIsNoDissent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.honest("fra", RIPENCC)
	l.hold, l.began = make(chan struct{}), make(chan struct{}, 1)
	c := w.corroborator()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-l.began; cancel() }()
	if _, p := c.Validate(ctx, someValidation); p == nil {
		t.Error("a validation that was broken off passed")
	}
	if strings.Contains(w.log.String(), "gives no answer") {
		t.Error("the perspective is blamed")
	}
}

func TestTooMuchWorkIsRefusedWithRetryAfter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g, err := gate.New(gate.Config{Seats: 1, Reserve: &[gate.Classes]int{}})
	if err != nil {
		t.Fatal(err)
	}
	l := w.honest("fra", RIPENCC, func(c *ServerConfig, _ *front.Listener) { c.Gate = g })
	l.hold, l.began = make(chan struct{}), make(chan struct{}, 4)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(l.began)
		if a, err := w.remotes[0].ask(t.Context(), goodAsks()[0]); err != nil || !a.OK {
			t.Errorf("the first: %+v, %v", a, err)
		}
	})
	<-l.began
	if a, err := w.remotes[0].ask(t.Context(), goodAsks()[0]); !errors.Is(err, errBusy) {
		t.Errorf("the second: %+v, %v", a, err)
	}
	res, err := w.remotes[0].http.Post(w.remotes[0].base+pathCAA, jsonType, strings.NewReader(must(t, goodAsks()[1])))
	if err != nil || res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
		t.Errorf("got %v, %v", res, err)
	}
	_ = res.Body.Close()
	close(l.hold)
	wg.Wait()
}

func TestServerTakesOnlyProperQuestions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.honest("fra", RIPENCC, func(c *ServerConfig, _ *front.Listener) { c.CAA = nil })
	r := w.remotes[0]
	good := must(t, goodAsks()[0])
	for name, c := range map[string]struct {
		method, path, kind, body string
		want                     int
	}{
		"right":            {"POST", pathValidation, jsonType, good, 200},
		"GET":              {"GET", pathValidation, jsonType, "", 405},
		"another path":     {"POST", "/v1/validation/", jsonType, good, 404},
		"another kind":     {"POST", pathValidation, "text/plain", good, 400},
		"CAA to the wrong": {"POST", pathValidation, jsonType, must(t, goodAsks()[1]), 400},
		"and back":         {"POST", pathCAA, jsonType, good, 400},
		"no CAA here":      {"POST", pathCAA, jsonType, must(t, goodAsks()[1]), 501},
		"huge":             {"POST", pathValidation, jsonType, good + strings.Repeat(" ", maxMessage), 400},
		"garbage":          {"POST", pathValidation, jsonType, "{", 400},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, r.base+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", c.kind)
		res, err := r.http.Do(req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if res.StatusCode != c.want || res.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: got %s, %v", name, res.Status, res.Header)
		}
		_ = res.Body.Close()
	}
	if n := l.times(); n != 1 {
		t.Errorf("it looked %d times", n)
	}
}

// An endless counts what is read from it.
type endless struct{ n int }

func (e *endless) Read(p []byte) (int, error) {
	e.n += len(p)
	return len(p), nil
}

func TestNoMoreIsReadThanAQuestionMayHave(t *testing.T) {
	t.Parallel()
	g, err := gate.New(gate.Config{Seats: 1, Reserve: &[gate.Classes]int{}})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	s, err := NewServer(ServerConfig{Name: "fra", Region: RIPENCC, Validator: &look{}, Gate: g})
	if err != nil {
		t.Fatal(err)
	}
	body := &endless{}
	req := httptest.NewRequest(http.MethodPost, pathValidation, body)
	req.Header.Set("Content-Type", jsonType)
	leaf := w.pki.client(t).Leaf
	req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf}}}
	rec := httptest.NewRecorder()
	s.ServeHTTP(rec, req)
	if rec.Code != http.StatusBadRequest || body.n > 4*maxMessage {
		t.Errorf("status %d after %d octets", rec.Code, body.n)
	}
	expired := w.pki.issue(t, "primary.example", x509.ExtKeyUsageClientAuth, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }).Leaf
	req.TLS.PeerCertificates[0] = expired // since the handshake
	rec = httptest.NewRecorder()
	if s.ServeHTTP(rec, req); rec.Code != http.StatusForbidden {
		t.Errorf("a certificate that has expired meanwhile: status %d", rec.Code)
	}
}

// TestWhatIsToldIsAboutTheName holds that trouble of perspectives is no reason to
// tell a client while another perspective has one.
func TestWhatIsToldIsAboutTheName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	trouble := &acme.Problem{Type: acme.ServerInternal, Detail: "out of sockets"}
	w.honest("fra", RIPENCC).set(trouble)
	w.honest("nrt", APNIC).set(trouble)
	w.honest("iad", ARIN).set(&acme.Problem{Type: acme.DNSError, Detail: "NXDOMAIN"})
	_, p := w.corroborator().Validate(t.Context(), someValidation)
	if p == nil || p.Type != acme.DNSError || p.Detail != "3 of 3 remote perspectives did not see it (apnic, arin, ripencc): NXDOMAIN" {
		t.Errorf("got %v", p)
	}
}

func TestAPanicInALookIsANo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.honest("fra", RIPENCC).panics = true
	rec, p := w.corroborator().Validate(t.Context(), someValidation)
	if p == nil || p.Type != acme.ServerInternal || !strings.Contains(rec.Perspectives[0].Problem, "failed inside") {
		t.Errorf("got %+v, %v", rec, p)
	}
}

// TestNothingIsValidatedOnceTheRuleWantsMore lets a server run over a date.
func TestNothingIsValidatedOnceTheRuleWantsMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.honest("iad", ARIN)
	w.honest("fra", RIPENCC)
	w.honest("nrt", APNIC)
	w.honest("cpt", AFRINIC)
	c := w.corroborator(func(c *Config) { c.Rule.Public = true })
	if _, p := c.Validate(t.Context(), someValidation); p != nil {
		t.Fatal(p)
	}
	if left := w.metric("secsy_perspective_shortfall_seconds", nil); left != (15 * 24 * time.Hour).Seconds() {
		t.Errorf("%v seconds left", left)
	}
	w.at(day(2026, time.December, 15))
	looked := w.local.times()
	for range 3 {
		if _, p := c.Validate(t.Context(), someValidation); p == nil || p.Type != acme.ServerInternal || strings.Contains(p.Detail, "perspective") {
			t.Errorf("got %v", p)
		}
		if _, p := c.CheckCAA(t.Context(), someQuery); p == nil || p.Type != acme.ServerInternal {
			t.Errorf("CAA: got %v", p)
		}
	}
	if w.local.times() != looked {
		t.Error("it went on looking")
	}
	if n := strings.Count(w.log.String(), "validation has stopped"); n != 1 || !strings.Contains(w.log.String(), "at least 5 remote perspectives since 2026-12-15") {
		t.Errorf("told %d times:\n%s", n, w.log)
	}
	if left := w.metric("secsy_perspective_shortfall_seconds", nil); left > 0 {
		t.Errorf("%v seconds left", left)
	}
	if _, err := New(Config{Remotes: w.remotes, Rule: Rule{Public: true}, Validator: w.local, Clock: c.cfg.Clock}); err == nil || !strings.Contains(err.Error(), "2026-12-15") {
		t.Errorf("a start with too few: %v", err)
	}
}

func TestTheOperatorIsWarnedThirtyDaysAhead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i, r := range []Region{ARIN, RIPENCC, APNIC, AFRINIC} {
		w.add(fmt.Sprint("p", i), r, "127.0.0.1:1")
	}
	c := w.corroborator(func(c *Config) { c.Rule.Public = true })
	for _, at := range []struct {
		now  time.Time
		want string
	}{
		{day(2026, time.November, 14), ""},
		{day(2026, time.November, 15), "validation will stop"},
		{day(2026, time.December, 14), "from=2026-12-15"},
		{day(2026, time.December, 15), "validation has stopped"},
	} {
		before := len(w.log.String())
		said := c.warn(t.Context(), at.now, true)
		if got := w.log.String()[before:]; said != (at.want != "") || !strings.Contains(got, at.want) {
			t.Errorf("%s: %q", at.now, got)
		}
		if c.warn(t.Context(), at.now, false) {
			t.Errorf("%s: told again", at.now)
		}
	}
	internal, err := New(Config{Validator: w.local})
	if err != nil || internal.warn(t.Context(), day(2027, 1, 1), true) {
		t.Errorf("an internal CA is warned: %v", err)
	}
}

// TestAClosedIdleConnectionIsNoDissent has a perspective restart between two questions.
func TestAClosedIdleConnectionIsNoDissent(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{true, false} {
		w := newWorld(t)
		l := &look{}
		g, err := gate.New(gate.Config{Seats: 1, Reserve: &[gate.Classes]int{}})
		if err != nil {
			t.Fatal(err)
		}
		s, err := NewServer(ServerConfig{Name: "fra", Region: RIPENCC, Validator: l, CAA: l, Gate: g})
		if err != nil {
			t.Fatal(err)
		}
		srv := httptest.NewUnstartedServer(s)
		srv.TLS = &tls.Config{Certificates: []tls.Certificate{*w.pki.server(t)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: w.pki.pool()}
		srv.EnableHTTP2 = h2
		srv.StartTLS()
		defer srv.Close()
		w.add("fra", RIPENCC, srv.Listener.Addr().String())
		c := w.corroborator()
		for range 5 {
			if rec, p := c.Validate(t.Context(), someValidation); p != nil {
				t.Errorf("h2 %v: %+v, %v", h2, rec, p)
			}
			srv.CloseClientConnections()
		}
	}
}

// TestACallerCannotSteerAPerspectiveInside asks, as a server that was taken over
// would, for looks at names that lead inside the perspective's own network.
func TestACallerCannotSteerAPerspectiveInside(t *testing.T) {
	t.Parallel()
	hits := 0
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits++ }))
	defer inside.Close()
	u, err := url.Parse(inside.URL)
	if err != nil {
		t.Fatal(err)
	}
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addrs := map[string]string{"a.example.": "127.0.0.1", "b.example.": "169.254.169.254", "c.example.": "10.0.0.1", "d.example.": "192.168.1.1"}
	srv := &dns.Server{PacketConn: udp, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if name := q.Question[0].Name; q.Question[0].Qtype == dns.TypeA {
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.ParseIP(addrs[name])})
		}
		_ = w.WriteMsg(m)
	})}
	started := make(chan struct{})
	srv.NotifyStartedFunc = func() { close(started) }
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.ActivateAndServe() }()
	<-started
	t.Cleanup(func() { _ = srv.Shutdown(); <-done })

	port := netip.MustParseAddrPort(u.Host).Port()
	v, err := challenge.New(challenge.Config{Resolver: udp.LocalAddr().String(), HTTPPort: int(port), Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.honest("fra", RIPENCC, func(c *ServerConfig, _ *front.Listener) { c.Validator = v })
	c := w.corroborator()
	for _, name := range []string{"a.example", "b.example", "c.example", "d.example", "localhost", "127.0.0.1", "a.example:22", "a.example/x", "[::1]"} {
		q := someValidation
		q.Identifier.Value = name
		q.Token = "evaGxfADs6pSRb2LAv9IZf17Dt3juxGJ-PCt92wr-oA"
		q.KeyAuthorization = q.Token + ".thumb"
		rec, p := c.Validate(t.Context(), q)
		if p == nil || len(rec.Perspectives) != 1 || len(rec.Perspectives[0].Addrs) > 0 {
			t.Errorf("%s: got %+v, %v", name, rec, p)
		}
	}
	if hits != 0 {
		t.Errorf("it went inside %d times", hits)
	}
}

func TestConfigurationsThatMakeNoSenseAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add("a", ARIN, "127.0.0.1:1")
	w.add("a", APNIC, "127.0.0.1:2")
	if _, err := New(Config{Remotes: w.remotes, Validator: w.local}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a name twice: %v", err)
	}
	if _, err := New(Config{Remotes: make([]*Remote, maxRemotes+1), Validator: w.local}); err == nil {
		t.Error("any number of remotes")
	}
	if _, err := New(Config{}); err == nil {
		t.Error("no validator")
	}
	certificate := func() (*tls.Certificate, error) { return nil, nil }
	for name, c := range map[string]RemoteConfig{
		"no name":        {Region: ARIN, URL: &url.URL{Scheme: "https", Host: "a"}, Roots: w.pki.pool(), Certificate: certificate},
		"no region":      {Name: "a", URL: &url.URL{Scheme: "https", Host: "a"}, Roots: w.pki.pool(), Certificate: certificate},
		"plain http":     {Name: "a", Region: ARIN, URL: &url.URL{Scheme: "http", Host: "a"}, Roots: w.pki.pool(), Certificate: certificate},
		"no roots":       {Name: "a", Region: ARIN, URL: &url.URL{Scheme: "https", Host: "a"}, Certificate: certificate},
		"no certificate": {Name: "a", Region: ARIN, URL: &url.URL{Scheme: "https", Host: "a"}, Roots: w.pki.pool()},
	} {
		if _, err := NewRemote(c); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	for name, c := range map[string]ServerConfig{"nothing": {}, "no region": {Name: "a"}, "no validator": {Name: "a", Region: ARIN}} {
		if _, err := NewServer(c); err == nil {
			t.Errorf("server: %s is taken", name)
		}
	}
}
