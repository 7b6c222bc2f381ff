package acme_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/peer"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// sourceHeader says where a test's request comes from, to the gatehouse alone,
// which says by quietHeader that there would be no line of it.
const (
	sourceHeader = "Test-Source"
	quietHeader  = "Test-Quiet"
)

// A gatehouse stands before the handler as a front does: it knows the source,
// and admits or refuses by the routes.
type gatehouse struct {
	routes []acme.Route
	inside http.Handler
}

func (g *gatehouse) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	addr, _ := netip.ParseAddr(r.Header.Get(sourceHeader))
	ctx, notes := peer.WithNotes(peer.With(r.Context(), peer.Peer{Addr: addr, RequestID: "test"}))
	r = r.WithContext(ctx)
	var best acme.Route
	for _, c := range g.routes {
		rest, ok := strings.CutPrefix(r.URL.EscapedPath(), c.Path)
		if ok && (rest == "" || rest[0] == '/') && len(c.Path) > len(best.Path) {
			best = c
		}
	}
	if d := best.Limit.Admit(addr); !d.OK {
		best.Refuse(w, r, d)
		return
	}
	answer := httptest.NewRecorder()
	g.inside.ServeHTTP(answer, r)
	maps.Copy(w.Header(), answer.Header())
	if notes.Quiet() {
		w.Header().Set(quietHeader, "yes")
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// direct carries requests to a handler without a network, which would keep the
// time of a bubble from going on.
type direct struct{ h http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.RequestURI = r.URL.RequestURI()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	d.h.ServeHTTP(w, r)
	return w.Result(), nil
}

// A limited world has a limiter.
type limited struct {
	*world
	limiter *ratelimit.Limiter
}

// limitedWorld is a world behind a gatehouse, whose limiter is as cfg says.
func limitedWorld(t *testing.T, cfg ratelimit.Config, options ...func(*acme.Config)) limited {
	t.Helper()
	l, err := ratelimit.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := makeWorld(t, "https://ca.example", append([]func(*acme.Config){func(c *acme.Config) { c.Limiter = l }}, options...)...)
	w.http = &http.Client{Transport: direct{&gatehouse{w.server.Routes(), w.server.Handler()}}}
	w.run()
	return limited{w, l}
}

// slowly is a bucket that holds n and is not refilled while a test runs.
func slowly(n int) ratelimit.Bucket { return ratelimit.Bucket{Rate: 1e-5, Burst: n} }

// from has the client send from another address.
func (c *client) from(addr string) *client {
	d := *c
	d.nonce, d.more = "", http.Header{sourceHeader: {addr}}
	return &d
}

func newBudget(t *testing.T) *ratelimit.Budget {
	t.Helper()
	b, err := ratelimit.NewBudget(ratelimit.BudgetConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// forged is a request in c's name that somebody else signed.
func (c *client) forged(url string, payload any) *reply {
	c.t.Helper()
	h := c.header(url, nil)
	return c.send(url, jws(c.t, newKey(c.t), h, payload))
}

// What strangers sign in an account's name costs the account nothing: after
// forged requests from other addresses its own first order is served.
func TestForgedRequestsDoNotTouchTheAccount(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, ratelimit.Config{PerAccount: slowly(1)})
	victim := w.client().from("192.0.2.1")
	for i := range 5 {
		c := victim.from(fmt.Sprintf("198.51.100.%d", i))
		c.forged(w.url("new-order"), dns("a.example.com")).problem(400, "malformed")
	}
	victim.order("a.example.com")
}

// From one address, no more requests in one account's name are even verified
// than the account has; other accounts behind that address are served.
func TestClaimsOfOneAccountAreBoundedForEachSource(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, ratelimit.Config{PerAccount: slowly(2)})
	victim, neighbour := w.client().from("192.0.2.1"), w.client().from("203.0.113.1")
	forger := victim.from("203.0.113.1")
	for range 2 {
		forger.forged(w.url("new-order"), dns("a.example.com")).problem(400, "malformed")
	}
	r := forger.forged(w.url("new-order"), dns("a.example.com")).problem(429, "rateLimited")
	if !strings.Contains(r.str("detail"), "in the name of this account") {
		t.Errorf("detail is %q", r.str("detail"))
	}
	neighbour.order("a.example.com")
	victim.order("a.example.com")
}

// Headers that a client chooses are no names: rotating them opens no new bucket.
func TestHeadersOfAClientNameNobody(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, ratelimit.Config{PerAccount: slowly(2), PerIP: slowly(40)})
	c := w.client().from("192.0.2.1")
	served := 0
	for i := range 10 {
		for _, name := range []string{"X-Secsy-Tenant", "X-Tenant-Id", "X-Forwarded-For", "Forwarded", "X-Real-Ip", "X-Forwarded-Host"} {
			c.more.Set(name, fmt.Sprintf("198.51.100.%d", i))
		}
		if c.post(w.url("new-order"), dns("a.example.com")).status == 201 {
			served++
		}
	}
	if served != 2 {
		t.Errorf("%d of 10 orders were served in an account of 2", served)
	}
}

// Whoever sends again what an account has sent spends nothing of the account's,
// and a nonce that is used is no failed proof of the source either.
func TestReplayedRequestsCostTheAccountNothing(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, ratelimit.Config{PerAccount: slowly(2), PerIP: slowly(20)})
	victim := w.client().from("192.0.2.1")
	order := w.url("new-order")
	m := jws(t, victim.key, victim.header(order, nil), dns("a.example.com"))
	victim.send(order, m).want(201)
	for i := range 6 {
		thief := victim.from(fmt.Sprintf("198.51.100.%d", i/2))
		thief.send(order, m).want(400)
	}
	victim.from("192.0.2.2").order("b.example.com")
}

// Limits of an account hold once its proof does, from wherever it comes; the
// answer says so, and waiting for as long as it says is enough.
func TestAccountIsLimitedWhereverItComesFrom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := limitedWorld(t, ratelimit.Config{PerAccount: ratelimit.Bucket{Rate: 0.2, Burst: 2}})
		c, other := w.client(), w.client()
		order := w.url("new-order")
		for i := range 2 {
			c.from(fmt.Sprintf("192.0.2.%d", i)).order("a.example.com")
		}
		late := c.from("192.0.2.9")
		r := late.post(order, dns("a.example.com")).problem(429, "rateLimited")
		wait, err := strconv.Atoi(r.header.Get("Retry-After"))
		if err != nil || wait < 1 || wait > 5 {
			t.Fatalf("Retry-After is %q", r.header.Get("Retry-After"))
		}
		if want := fmt.Sprintf("too many requests of this account; try again in %d seconds", wait); r.str("detail") != want {
			t.Errorf("detail is %q; want %q", r.str("detail"), want)
		}
		if !slices.Contains(r.header["Link"], `<https://ca.example/>;rel="help"`) {
			t.Errorf("Link is %q", r.header["Link"])
		}
		other.from("192.0.2.9").order("a.example.com")
		time.Sleep(time.Duration(wait) * time.Second)
		late.order("a.example.com")
	})
}

// In the middle of an order a no is a 503: some clients wait on it, and give up
// on a 429. What begins something gets 429.
func TestRefusalsInTheMiddleOfAnOrderAreToBeWaitedFor(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, ratelimit.Config{PerAccount: slowly(1), PerIP: slowly(3)})
	c := w.client().from("192.0.2.1")
	u, o := c.order("a.example.com")
	elsewhere := c.from("192.0.2.2")
	elsewhere.get(u).problem(503, "rateLimited") // the account
	elsewhere.post(w.url("new-order"), dns("a.example.com")).problem(429, "rateLimited")
	// The source.
	spent := c.from("192.0.2.3")
	for spent.do("GET", w.url("directory"), "", nil).status == 200 {
	}
	spent.do("HEAD", w.url("new-nonce"), "", nil).want(503)
	for spent.do("POST", w.url("order/x"), "", nil).status != 503 { // the directory has a bucket of its own
	}
	for _, url := range []string{u, o.str("finalize"), o.strs("authorizations")[0], w.url("cert/x"), c.kid, c.kid + "/orders", w.url("key-change")} {
		spent.get(url).problem(503, "rateLimited")
	}
	for _, url := range []string{w.url("new-order"), w.url("new-account")} {
		spent.get(url).problem(429, "rateLimited")
	}
	spent.do("GET", w.url("directory"), "", nil).problem(429, "rateLimited")
}

// Finalizing is not refused for what the account did before; nor is a key
// changed too late, or an account given up.
func TestAnAccountOverItsLimitCanStillFinishAndLeave(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, ratelimit.Config{PerAccount: slowly(3)}, func(c *acme.Config) { c.Budget = newBudget(t) })
	c := w.client().from("192.0.2.1")
	u, r := c.order("a.example.com")
	authz := r.strs("authorizations")[0]
	c.post(c.from("192.0.2.2").challengeURL(authz, "dns-01"), map[string]any{}).want(200)
	spent := c
	for i := 2; spent.get(u).status == 200; i++ {
		if spent = c.from(fmt.Sprintf("192.0.2.%d", i)); i > 250 {
			t.Fatal("the account has no limit")
		}
	}
	w.awaitReady(t, u)
	spent.get(u).problem(503, "rateLimited")
	// Of others' orders it hears no more than that it is over its limit.
	_, others := w.client().from("192.0.2.3").order("b.example.com")
	csr := csrBody(catest.CSR(t, newKey(t), "a.example.com"))
	for _, url := range []string{others.str("finalize"), w.url("order/" + audit.NewID() + "/finalize")} {
		spent.post(url, csr).problem(503, "rateLimited")
	}
	if got := spent.post(r.str("finalize"), csr).want(200).str("status"); got != "valid" {
		t.Errorf("order is %s", got)
	}
	spent.changeKey().want(200)
	spent.post(c.kid, map[string]any{"contact": []string{}}).problem(503, "rateLimited")
	spent.post(c.kid, map[string]any{"status": "deactivated"}).want(200)
}

// awaitReady waits for an order without asking the server.
func (w *world) awaitReady(t *testing.T, url string) {
	t.Helper()
	id := url[strings.LastIndexByte(url, '/')+1:]
	for {
		moved := w.watched.next()
		o, err := w.store.Order(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if o.Status == acme.OrderReady {
			return
		}
		select {
		case <-moved:
		case <-t.Context().Done():
			t.Fatalf("order is %s", o.Status)
		}
	}
}

// changeKey gives the account a new key.
func (c *client) changeKey() *reply {
	c.t.Helper()
	url, next := c.w.url("key-change"), newKey(c.t)
	inner := jws(c.t, next, map[string]any{"alg": "ES256", "jwk": jwkOf(next.Public()), "url": url},
		map[string]any{"account": c.kid, "oldKey": jwkOf(c.key.Public())})
	r := c.post(url, inner)
	if r.status == 200 {
		c.key = next
	}
	return r
}

// A proof that does not hold costs its source far more than a request; a nonce
// that is not good, or a request that makes no sense, does not.
func TestFailedProofsCostTheirSource(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, ratelimit.Config{PerIP: slowly(40)})
	c := w.client()
	cert := catest.New(t).Certificate(t, "a.example.com")
	nobody, n := w.url("account/"+audit.NewID()), 0
	for name, row := range map[string]struct {
		send  func(c *client) *reply
		costs bool
	}{
		"a wrong signature": {func(c *client) *reply { return c.forged(c.kid, "") }, true},
		"one by a key":      {func(c *client) *reply { d := *c; d.kid = ""; return d.forged(w.url("new-account"), "{}") }, true},
		"an account that is not": {func(c *client) *reply {
			return c.send(c.kid, jws(t, c.key, c.header(c.kid, map[string]any{"kid": nobody}), ""))
		}, true},
		"one that can't be": {func(c *client) *reply {
			return c.send(c.kid, jws(t, c.key, c.header(c.kid, map[string]any{"kid": w.url("account/x")}), ""))
		}, true},
		"another url": {func(c *client) *reply { return c.send(c.kid, jws(t, c.key, c.header(nobody, nil), "")) }, true},
		"a used nonce": {func(c *client) *reply {
			return c.send(c.kid, jws(t, c.key, c.header(c.kid, map[string]any{"nonce": "xx"}), ""))
		}, false},
		"no JWS":          {func(c *client) *reply { return c.send(c.kid, []byte("{}")) }, false},
		"another's order": {func(c *client) *reply { return c.get(w.url("order/" + audit.NewID())) }, false},
		"a revocation by a forger": {func(c *client) *reply {
			return c.forged(w.url("revoke-cert"), map[string]any{"certificate": b64(cert.DER)})
		}, true},
		"the inside of a key change": {func(c *client) *reply {
			url, next := w.url("key-change"), newKey(t)
			inner := jws(t, newKey(t), map[string]any{"alg": "ES256", "jwk": jwkOf(next.Public()), "url": url}, map[string]any{})
			return c.post(url, inner)
		}, true},
	} {
		n++
		d, refused := c.from(fmt.Sprintf("192.0.2.%d", n)), 0
		for range 20 {
			if r := row.send(d); r.status == 429 || r.status == 503 {
				refused++
			}
		}
		// Revocations pass, and leave the source with nothing for a step.
		left := d.get(w.url("cert/" + audit.NewID())).status
		if paid := refused > 0 || left == 503; paid != row.costs {
			t.Errorf("%s: %d of 20 refused, and then %d", name, refused, left)
		}
	}
}

// A source and an account that have spent everything can still revoke: no tier,
// budget or quota is asked, and what is refused on the way there brings a nonce.
func TestRevocationIsRefusedByNoLimit(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, ratelimit.Config{}, func(c *acme.Config) {
		c.Budget = newBudget(t)
		c.OrderQuota = ratelimit.Quota{Limit: 2, Window: time.Hour}
	})
	c := w.client()
	byAccount, _ := c.issue("a.example.com")
	byKey, key := c.issue("b.example.com")
	for range 6 {
		c.get(w.url("order/" + audit.NewID()))
	}
	c.get(w.url("order/"+audit.NewID())).problem(429, "rateLimited")             // the budget
	c.post(w.url("new-order"), dns("c.example.com")).problem(429, "rateLimited") // the quota
	none := ratelimit.Bucket{Rate: 1e-5, Burst: 1}
	if err := w.limiter.Reconfigure(ratelimit.Config{PerIP: none, PerAccount: none, Global: none}); err != nil {
		t.Fatal(err)
	}
	spent := c.from("192.0.2.1")
	for spent.do("GET", w.url("directory"), "", nil).status == 200 {
	}
	spent.nonce = ""
	spent.do("HEAD", w.url("new-nonce"), "", nil).want(503)
	if spent.nonce == "" {
		t.Fatal("the refusal brought no nonce")
	}
	spent.post(w.url("revoke-cert"), map[string]any{"certificate": b64(byAccount.Raw)}).want(200)
	(&client{t: t, w: w.world, key: key}).from("192.0.2.1").
		post(w.url("revoke-cert"), map[string]any{"certificate": b64(byKey.Raw), "reason": 1}).want(200)
}

// What revocations take of the processors they take in turns, and whoever waits
// too long for one is told when to come back. It has lost nothing.
func TestRevocationsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := limitedWorld(t, ratelimit.Config{})
		c := w.client()
		cert, _ := c.issue("a.example.com")
		body := map[string]any{"certificate": b64(cert.Raw)}
		release := w.server.TakeAllTurns(t.Context())
		began := time.Now()
		r := c.post(w.url("revoke-cert"), body).problem(503, "rateLimited")
		if s, err := strconv.Atoi(r.header.Get("Retry-After")); err != nil || s < 1 || s > 60 {
			t.Errorf("Retry-After is %q", r.header.Get("Retry-After"))
		}
		if waited := time.Since(began); waited > 5*time.Second {
			t.Errorf("the client was kept waiting for %s", waited)
		}
		c.order("b.example.com") // others take no turns
		release()
		c.post(w.url("revoke-cert"), body).want(200)
	})
}

// Revocations pass all tiers, so floods of them are refused at the turns: that
// leaves few lines, and none for each.
func TestRevocationsWithoutATurnLeaveFewLines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lines []ratelimit.Record
		rec := ratelimit.NewRecorder(func(_ context.Context, r ratelimit.Record) { lines = append(lines, r) })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- rec.Run(ctx) }()
		w := limitedWorld(t, ratelimit.Config{}, func(c *acme.Config) { c.Recorder = rec })
		c := w.client().from("192.0.2.1")
		cert, _ := c.issue("a.example.com")
		release := w.server.TakeAllTurns(t.Context())
		revoke := func() *reply { return c.post(w.url("revoke-cert"), map[string]any{"certificate": b64(cert.Raw)}) }
		const floods = 20
		for range floods {
			if r := revoke().problem(503, "rateLimited"); r.header.Get(quietHeader) == "" {
				t.Error("a revocation without a turn has a line of its own")
			}
		}
		release()
		if r := revoke().want(200); r.header.Get(quietHeader) != "" {
			t.Error("a revocation has no line")
		}
		time.Sleep(time.Minute)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		// Each waited some seconds for its turn, so there is more than one burst.
		told := int64(0)
		for _, l := range lines {
			told += l.Suppressed
			if !l.Closed {
				told++
			}
		}
		if len(lines) == 0 || len(lines) > 6 || told != floods {
			t.Fatalf("%d of %d told of in %d lines: %+v", told, floods, len(lines), lines)
		}
		if l := lines[0]; l.What != "turns" || l.Endpoint != "acme_revoke" || l.Identity != "" || l.Source.String() != "192.0.2.1" {
			t.Errorf("line: %+v", l)
		}
	})
}

// Bodies that don't come keep nobody from revoking.
func TestSlowRevocationsHoldNoTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := limitedWorld(t, ratelimit.Config{})
		c := w.client()
		cert, _ := c.issue("a.example.com")
		var slow sync.WaitGroup
		never, end := io.Pipe()
		for range 64 {
			slow.Go(func() {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url("revoke-cert"), io.MultiReader(strings.NewReader("{"), never))
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("Content-Type", "application/jose+json")
				resp, err := w.http.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				if _ = resp.Body.Close(); resp.StatusCode != 400 {
					t.Errorf("half a body is answered by %s", resp.Status)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		c.post(w.url("revoke-cert"), map[string]any{"certificate": b64(cert.Raw)}).want(200)
		if waited := time.Since(began); waited > 0 {
			t.Errorf("the honest one waited for %s", waited)
		}
		_ = end.Close()
		slow.Wait()
	})
}

// A client whose body takes too long hears why.
func TestSlowBodyIsARequestTimeout(t *testing.T) {
	t.Parallel()
	w := makeWorld(t, "https://ca.example")
	srv := httptest.NewUnstartedServer(w.server.Handler())
	srv.Config.ReadTimeout = 200 * time.Millisecond
	srv.Start()
	t.Cleanup(srv.Close)
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "POST /acme/new-order HTTP/1.1\r\nHost: x\r\nContent-Type: application/jose+json\r\nContent-Length: 100\r\n\r\n{")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != 408 || resp.Header.Get("Content-Type") != "application/problem+json" || !bytes.Contains(body, []byte(`"status":408`)) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// An account that goes on asking for what is not its own waits for longer and
// longer, and is served in between. The request that crosses the line still
// hears what the others did; then even a right one is put off.
func TestAccountThatProbesIsSlowedDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := limitedWorld(t, ratelimit.Config{}, func(c *acme.Config) { c.Budget = newBudget(t) })
		owner, c := w.client(), w.client()
		cert, _ := owner.issue("a.example.com")
		_, theirs := owner.order("b.example.com")
		mine, _ := c.order("c.example.com")
		for i, ask := range []func() *reply{
			func() *reply { return c.get(theirs.location()) },
			func() *reply { return c.get(theirs.strs("authorizations")[0]) },
			func() *reply { return c.post(w.url("revoke-cert"), map[string]any{"certificate": b64(cert.Raw)}) },
			func() *reply { return c.get(owner.kid + "/orders") },
			func() *reply { return c.get(w.url("cert/" + audit.NewID())) },
		} {
			if r := ask(); r.status != 404 && r.status != 403 {
				t.Fatalf("attempt %d: %d %s", i+1, r.status, r.body)
			}
		}
		var bodies [][]byte
		for _, url := range []string{mine, theirs.location(), w.url("order/" + audit.NewID())} {
			r := c.get(url).problem(429, "rateLimited")
			if got := r.header.Get("Retry-After"); got != "1" {
				t.Errorf("Retry-After is %q", got)
			}
			bodies = append(bodies, r.body)
		}
		if !bytes.Equal(bodies[0], bodies[1]) || !bytes.Equal(bodies[0], bodies[2]) {
			t.Errorf("the bodies tell what was asked for: %s", bodies)
		}
		time.Sleep(1300 * time.Millisecond)
		c.get(mine).want(200)
		owner.get(theirs.location()).want(200)
	})
}

// What an account may do at any time it may do while it is slowed down: order,
// finalize what is its own, revoke, change its key and leave.
func TestProbingDoesNotStopWhatIsOnesOwn(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, ratelimit.Config{}, func(c *acme.Config) { c.Budget = newBudget(t) })
	c := w.client()
	cert, _ := c.issue("a.example.com")
	_, ready := c.ready("b.example.com")
	for range 10 { // so that the interval is longer than the test
		c.get(w.url("account/"+audit.NewID())).problem(404, "malformed")
	}
	limited := func() { t.Helper(); c.get(ready.location()).problem(429, "rateLimited") }
	limited()
	c.order("c.example.com")
	csr := csrBody(catest.CSR(t, newKey(t), "b.example.com"))
	c.post(w.url("order/"+audit.NewID()+"/finalize"), csr).problem(429, "rateLimited")
	c.post(ready.str("finalize"), csr).want(200)
	c.post(w.url("revoke-cert"), map[string]any{"certificate": b64(cert.Raw)}).want(200)
	c.changeKey().want(200)
	limited()
	c.post(c.kid, map[string]any{"status": "deactivated"}).want(200)
}

// Mistakes are no probing, however many.
func TestMistakesDoNotSlowAnAccountDown(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, ratelimit.Config{}, func(c *acme.Config) { c.Budget = newBudget(t) })
	c := w.client()
	pending, o := c.order("a.example.com")
	_, ready := c.ready("b.example.com")
	for range 10 {
		c.post(w.url("new-order"), "{").problem(400, "malformed")
		c.post(pending, "{}").problem(400, "malformed")
		c.post(ready.str("finalize"), csrBody([]byte("x"))).problem(400, "badCSR")
		c.post(o.str("finalize"), csrBody([]byte("x"))).problem(403, "orderNotReady")
		c.send(pending, jws(t, c.key, c.header(pending, map[string]any{"nonce": "xx"}), "")).problem(400, "badNonce")
		c.forged(pending, "").problem(400, "malformed")
		c.post(w.url("revoke-cert"), map[string]any{"certificate": "x"}).problem(400, "malformed")
	}
	c.get(pending).want(200)
	c.get(pending).want(200)
}

// A questioned store writes down what it is asked.
type questioned struct {
	acme.Store
	mu    sync.Mutex // guards asked
	asked []string
}

func (q *questioned) note(what string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked = append(q.asked, what)
}

func (q *questioned) all() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.asked
	q.asked = nil
	return out
}

func (q *questioned) Account(ctx context.Context, id string) (acme.Account, error) {
	q.note("Account")
	return q.Store.Account(ctx, id)
}

func (q *questioned) AccountByKey(ctx context.Context, thumbprint string) (acme.Account, error) {
	q.note("AccountByKey")
	return q.Store.AccountByKey(ctx, thumbprint)
}

func (q *questioned) Order(ctx context.Context, id string) (acme.Order, error) {
	q.note("Order")
	return q.Store.Order(ctx, id)
}

func (q *questioned) OrderOf(ctx context.Context, by acme.Signer, id string) (acme.Order, error) {
	q.note("OrderOf")
	return q.Store.OrderOf(ctx, by, id)
}

func (q *questioned) Authorization(ctx context.Context, id string) (acme.Authorization, error) {
	q.note("Authorization")
	return q.Store.Authorization(ctx, id)
}

func (q *questioned) AuthorizationOf(ctx context.Context, by acme.Signer, id string) (acme.Authorization, error) {
	q.note("AuthorizationOf")
	return q.Store.AuthorizationOf(ctx, by, id)
}

func (q *questioned) CertificateBy(ctx context.Context, by acme.Signer, id string) (ca.Record, error) {
	q.note("CertificateBy")
	return q.Store.CertificateBy(ctx, by, id)
}

func (q *questioned) Record(ctx context.Context, s ca.Serial) (ca.Record, error) {
	q.note("Record")
	return q.Store.Record(ctx, s)
}

func (q *questioned) Holds(ctx context.Context, account string, ids []ca.Identifier, now time.Time) (bool, error) {
	q.note(fmt.Sprint("Holds ", ids))
	return q.Store.Holds(ctx, account, ids, now)
}

func (q *questioned) ListOrders(ctx context.Context, account, after string, limit int) ([]acme.OrderRef, error) {
	q.note("ListOrders")
	return q.Store.ListOrders(ctx, account, after, limit)
}

// What is another's and what is nobody's are one to whoever asks: the same
// bytes, after the same questions to the store, on every route.
func TestForeignAndMissingTakeTheSameWork(t *testing.T) {
	t.Parallel()
	var q *questioned
	w := limitedWorld(t, ratelimit.Config{}, func(c *acme.Config) {
		q = &questioned{Store: c.Store}
		c.Store = q
	})
	owner, other := w.client(), w.client()
	_, r := owner.ready("a.example.com")
	authz := r.strs("authorizations")[0]
	csr := csrBody(catest.CSR(t, newKey(t), "a.example.com"))
	done := owner.post(r.str("finalize"), csr).want(200)
	theirs := leaf(t, owner.get(done.str("certificate")).want(200).body)
	unknown := catest.New(t).Certificate(t, "a.example.com")
	missing := audit.NewID()
	revocation := func(der []byte) map[string]any { return map[string]any{"certificate": b64(der)} }
	stranger := w.stranger()
	other.get(other.kid).want(200) // from now on it is remembered

	for name, row := range map[string]struct {
		c                *client
		foreign, missing string
		his, none        any // payloads
	}{
		"account":           {other, owner.kid, w.url("account/" + missing), "", ""},
		"account update":    {other, owner.kid, w.url("account/" + missing), `{"contact":[]}`, `{"contact":[]}`},
		"orders list":       {other, owner.kid + "/orders", w.url("account/" + missing + "/orders"), "", ""},
		"order":             {other, r.location(), w.url("order/" + missing), "", ""},
		"finalize":          {other, r.str("finalize"), w.url("order/" + missing + "/finalize"), csr, csr},
		"finalize, bad CSR": {other, r.str("finalize"), w.url("order/" + missing + "/finalize"), "{}", "{}"},
		"authorization":     {other, authz, w.url("authz/" + missing), "", ""},
		"its deactivation":  {other, authz, w.url("authz/" + missing), `{"status":"deactivated"}`, `{"status":"deactivated"}`},
		"challenge":         {other, strings.Replace(authz, "/authz/", "/challenge/", 1) + "/dns-01", w.url("challenge/" + missing + "/dns-01"), "", ""},
		"its validation":    {other, strings.Replace(authz, "/authz/", "/challenge/", 1) + "/dns-01", w.url("challenge/" + missing + "/dns-01"), "{}", "{}"},
		"certificate":       {other, done.str("certificate"), w.url("cert/" + missing), "", ""},
		"revocation":        {other, w.url("revoke-cert"), w.url("revoke-cert"), revocation(theirs.Raw), revocation(unknown.DER)},
		"revocation by key": {stranger, w.url("revoke-cert"), w.url("revoke-cert"), revocation(theirs.Raw), revocation(unknown.DER)},
	} {
		row.c.takeNonce()
		row.c.do("HEAD", w.url("new-nonce"), "", nil)
		q.all()
		his := row.c.post(row.foreign, row.his)
		hisAsked := q.all()
		none := row.c.post(row.missing, row.none)
		noneAsked := q.all()
		if his.status != 404 && his.status != 403 || his.status != none.status || !bytes.Equal(his.body, none.body) {
			t.Errorf("%s: foreign %d %s\nmissing %d %s", name, his.status, his.body, none.status, none.body)
		}
		his.header.Del("Replay-Nonce")
		none.header.Del("Replay-Nonce")
		if !reflect.DeepEqual(his.header, none.header) {
			t.Errorf("%s: foreign %v\nmissing %v", name, his.header, none.header)
		}
		if !slices.Equal(hisAsked, noneAsked) {
			t.Errorf("%s: foreign asks %q, missing %q", name, hisAsked, noneAsked)
		}
	}
}

// The quota is debited for what an order names, once, when it is taken, and for
// nothing that is refused. Its own no is in words that stay, and comes to an end
// when it says.
func TestQuotaIsSpentByOrdersAlone(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var later atomic.Int64 // read by the background, too
	w := limitedWorld(t, ratelimit.Config{}, func(c *acme.Config) {
		c.OrderQuota = ratelimit.Quota{Limit: 6, Window: time.Hour}
		c.MaxNames = 7
		c.Clock = func() time.Time { return now.Add(time.Duration(later.Load())) }
	})
	c, other := w.client(), w.client()
	url := w.url("new-order")
	for range 3 {
		c.post(url, "{").problem(400, "malformed")
		c.post(url, dns()).problem(400, "malformed")
		c.post(url, dns("a..example")).problem(400, "rejectedIdentifier")
		c.post(url, map[string]any{"identifiers": []any{map[string]string{"type": "email", "value": "a@example.com"}}}).problem(400, "unsupportedIdentifier")
		c.post(url, dns("1.example", "2.example", "3.example", "4.example", "5.example", "6.example", "7.example", "8.example")).problem(400, "rejectedIdentifier")
		r := c.post(url, dns("1.example", "2.example", "3.example", "4.example", "5.example", "6.example", "7.example")).problem(400, "rejectedIdentifier")
		if !strings.Contains(r.str("detail"), "never holds more than 6 at once") {
			t.Errorf("detail is %q", r.str("detail"))
		}
	}
	c.order("a.example.com", "A.example.com", "b.example.com", "*.b.example.com", "d.example.com") // four
	for range 3 {
		r := c.post(url, dns("1.example", "2.example", "3.example", "4.example")).problem(429, "rateLimited")
		want := "the account's quota of 6 identifiers in 1h does not hold this order's 4 now; it will in 1200 seconds, at " +
			now.Add(1200*time.Second).UTC().Add(time.Second-time.Microsecond).Format(time.RFC3339)
		if r.str("detail") != want {
			t.Errorf("detail is %q; want %q", r.str("detail"), want)
		}
		if got := r.header.Get("Retry-After"); got != "600" { // the most that clients bear
			t.Errorf("Retry-After is %q", got)
		}
		if !slices.Contains(r.header["Link"], `<https://ca.example/>;rel="help"`) {
			t.Errorf("Link is %q", r.header["Link"])
		}
	}
	if n := w.server.QuotaRefused(); n != 3 {
		t.Errorf("%d refusals are counted of 3", n)
	}
	c.order("e.example.com", "f.example.com")
	other.order("a.example.com", "b.example.com", "c.example.com", "d.example.com", "e.example.com", "f.example.com")
	later.Store(int64(40 * time.Minute))
	c.order("1.example.com", "2.example.com", "3.example.com", "4.example.com")
	c.post(url, dns("5.example.com")).problem(429, "rateLimited")
}

// Refusals of the quota are recorded with who was refused.
func TestQuotaRefusalsAreRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lines []ratelimit.Record
		rec := ratelimit.NewRecorder(func(_ context.Context, r ratelimit.Record) { lines = append(lines, r) })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- rec.Run(ctx) }()
		w := limitedWorld(t, ratelimit.Config{}, func(c *acme.Config) {
			c.OrderQuota, c.Recorder = ratelimit.Quota{Limit: 1, Window: time.Hour}, rec
		})
		c := w.client().from("192.0.2.1")
		c.order("a.example.com")
		for range 20 {
			c.post(w.url("new-order"), dns("b.example.com")).problem(429, "rateLimited")
		}
		time.Sleep(time.Minute)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if len(lines) != 2 || lines[0].Closed || !lines[1].Closed || lines[1].Suppressed != 19 {
			t.Fatalf("lines: %+v", lines)
		}
		want := "acme:account/" + c.kid[strings.LastIndexByte(c.kid, '/')+1:]
		if l := lines[0]; l.What != "quota" || l.Endpoint != "acme_new_order" || l.Identity != want || l.Source.String() != "192.0.2.1" {
			t.Errorf("line: %+v", l)
		}
	})
}

// Every resource has its class, and a path that is spelled in another way does
// not get a better price.
func TestEveryPathHasItsClass(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, ratelimit.Config{})
	classes := map[string]string{}
	for _, r := range w.server.Routes() {
		if r.Limit == nil || r.Refuse == nil {
			t.Errorf("%s has no limit or no answer", r.Path)
		}
		classes[r.Path] = r.Class
	}
	want := map[string]string{
		"/acme": "acme", "/acme/directory": "acme_directory", "/acme/new-nonce": "acme_new_nonce",
		"/acme/renewal-info": "acme_renewal_info",
		"/acme/new-account":  "acme_new_account", "/acme/new-order": "acme_new_order", "/acme/revoke-cert": "acme_revoke",
	}
	if !maps.Equal(classes, want) {
		t.Errorf("classes are %v", classes)
	}
	c := w.client()
	for _, path := range []string{"new%2Dorder", "new-order/", "/new-order", "./new-order", "new-order/.", "n%65w-order", "NEW-ORDER", "revoke-cert/../new-order"} {
		if r := c.post(w.url(path), dns("a.example.com")); r.status != 404 {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
}

// Without a website, a refusal points to words of our own.
func TestRefusalsPointToHelp(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, ratelimit.Config{PerIP: slowly(1)}, func(c *acme.Config) { c.Website = "" })
	c := w.stranger().from("192.0.2.1")
	for c.do("GET", w.url("directory"), "", nil).status == 200 {
	}
	r := c.do("GET", w.url("directory"), "", nil).problem(429, "rateLimited")
	help := `<` + w.url("help/rate-limits") + `>;rel="help"`
	if !slices.Contains(r.header["Link"], help) {
		t.Errorf("Link is %q", r.header["Link"])
	}
	page := c.from("192.0.2.2").do("GET", w.url("help/rate-limits"), "", nil).want(200)
	if page.header.Get("Content-Type") != "text/plain; charset=utf-8" || !bytes.Contains(page.body, []byte("Retry-After")) {
		t.Errorf("%v %s", page.header, page.body)
	}
}

// An account has only so many orders for one set of names, and all accounts only so
// many for one registered domain. What one of the quotas refuses costs none.
func TestDuplicatesAndDomainsHaveQuotas(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var later atomic.Int64
	w := limitedWorld(t, ratelimit.Config{}, func(c *acme.Config) {
		c.DuplicateQuota = ratelimit.Quota{Limit: 2, Window: time.Hour}
		c.DomainQuota = ratelimit.Quota{Limit: 5, Window: 10 * time.Hour}
		c.Clock = func() time.Time { return now.Add(time.Duration(later.Load())) }
	})
	c, other := w.client(), w.client()
	url := w.url("new-order")
	refused := func(c *client, want string, names ...string) {
		t.Helper()
		r := c.post(url, dns(names...)).problem(429, "rateLimited")
		if !strings.Contains(r.str("detail"), want) || r.header.Get("Retry-After") != "600" {
			t.Errorf("detail is %q, Retry-After %q", r.str("detail"), r.header.Get("Retry-After"))
		}
	}
	const duplicates, domains = "all 2 orders for exactly these names", "the 5 orders for names of example.com"
	c.order("a.example.com", "b.example.com")
	c.order("b.example.com", "a.example.com")
	for range 3 {
		refused(c, duplicates, "a.example.com", "b.example.com")
	}
	c.order("a.example.com")
	other.order("a.example.com", "b.example.com")
	other.order("c.example.com", "example.com", "c.example.net") // the fifth of example.com
	for range 3 {
		refused(c, domains, "d.example.com", "d.example.net")
		refused(other, domains, "www.example.com")
	}
	for i := range 4 { // of which none was spent on what was refused
		c.order(fmt.Sprintf("%d.example.net", i))
	}
	if n := w.server.QuotaRefused(); n != 9 {
		t.Errorf("%d refusals are counted of 9", n)
	}
	later.Store(int64(2*time.Hour + time.Second))
	c.order("a.example.com", "b.example.com")
	refused(c, domains, "a.example.com")
}
