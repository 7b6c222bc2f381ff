package acme_test

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/storetest"
)

// A world is a server on a real listener, over a real store and a real authority.
type world struct {
	t         *testing.T
	server    *acme.Server
	base      string
	path      string // of the directory; "" is the usual one
	http      *http.Client
	ca        *catest.CA
	db        *store.DB
	store     *store.ACME
	watched   *watched
	validator *validator
	clock     *clock
	stop      func() // ends Run and waits for it
}

type clock struct {
	mu  sync.Mutex // guards add
	add time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.add)
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add += d
}

// A validator says of each name what the test wants.
type validator struct {
	mu    sync.Mutex // guards all
	wrong map[string]*acme.Problem
	hold  map[string]*hold
	calls []acme.Validation
}

func (v *validator) Validate(ctx context.Context, q acme.Validation) (acme.ValidationRecord, *acme.Problem) {
	v.mu.Lock()
	v.calls = append(v.calls, q)
	p, hold := v.wrong[q.Identifier.Value], v.hold[q.Identifier.Value]
	v.mu.Unlock()
	if hold != nil {
		hold.enter()
		select {
		case <-hold.released:
		case <-ctx.Done():
		}
	}
	return acme.ValidationRecord{Type: q.Type, Name: q.Identifier.Value, At: time.Now()}, p
}

func (v *validator) fail(name string, p *acme.Problem) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.wrong[name] = p
}

// A hold keeps validations waiting; entered is closed when one does.
type hold struct {
	entered, released chan struct{}
	enter             func()
}

func (v *validator) holdBack(name string) *hold {
	v.mu.Lock()
	defer v.mu.Unlock()
	h := &hold{entered: make(chan struct{}), released: make(chan struct{})}
	h.enter = sync.OnceFunc(func() { close(h.entered) })
	v.hold[name] = h
	return h
}

func (v *validator) seen(name string) (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, c := range v.calls {
		if c.Identifier.Value == name {
			n++
		}
	}
	return n
}

func newWorld(t *testing.T, options ...func(*acme.Config)) *world {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	w := makeWorld(t, "https://"+srv.Listener.Addr().String(), options...)
	srv.Config.Handler = w.server.Handler()
	srv.StartTLS()
	t.Cleanup(srv.Close)
	w.http = srv.Client()
	w.run()
	return w
}

// makeWorld makes all but what carries requests to the server.
func makeWorld(t *testing.T, at string, options ...func(*acme.Config)) *world {
	t.Helper()
	w := &world{
		t: t, base: at, db: storetest.SQLite(t), clock: &clock{},
		validator: &validator{wrong: map[string]*acme.Problem{}, hold: map[string]*hold{}},
	}
	w.store = store.NewACME(w.db)
	w.watched = &watched{Store: w.store, db: w.db, moved: make(chan struct{})}
	w.ca = catest.New(t, func(c *ca.Config) { c.Store = store.NewCA(w.db) })
	base, err := url.Parse(w.base)
	if err != nil {
		t.Fatal(err)
	}
	cfg := acme.Config{
		BaseURL: base, Store: w.watched, CA: w.ca.Authority, Validator: w.validator, Logger: slog.New(slog.DiscardHandler), Clock: w.clock.now,
		CAAIdentities: []string{"ca.example"}, Website: "https://ca.example/",
	}
	for _, o := range options {
		o(&cfg)
	}
	if w.server, err = acme.New(cfg); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.server.Run(ctx) }()
	var once sync.Once
	w.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				w.t.Errorf("Run: %v", err)
			}
		})
	}
	w.t.Cleanup(w.stop)
}

func (w *world) url(path string) string {
	if w.path != "" {
		return w.base + "/" + w.path + path
	}
	return w.base + "/acme/" + path
}

// stranger is a client without an account.
func (w *world) stranger() *client { return &client{t: w.t, w: w, key: newKey(w.t)} }

// client is one with a new account.
func (w *world) client() *client {
	w.t.Helper()
	c := w.stranger()
	c.kid = c.post(w.url("new-account"), map[string]any{"termsOfServiceAgreed": true}).want(201).location()
	return c
}

func dns(names ...string) map[string]any {
	ids := make([]map[string]string, 0, len(names))
	for _, n := range names {
		ids = append(ids, map[string]string{"type": "dns", "value": n})
	}
	return map[string]any{"identifiers": ids}
}

// order makes an order and returns where it is, and it.
func (c *client) order(names ...string) (string, *reply) {
	c.t.Helper()
	r := c.post(c.w.url("new-order"), dns(names...)).want(201)
	return r.location(), r
}

// challengeURL finds one challenge of an authorization.
func (c *client) challengeURL(authz, typ string) string {
	c.t.Helper()
	list, _ := c.get(authz).want(200).json["challenges"].([]any)
	for _, v := range list {
		ch, _ := v.(map[string]any)
		if ch["type"] == typ {
			u, _ := ch["url"].(string)
			return u
		}
	}
	c.t.Fatalf("no %s challenge", typ)
	return ""
}

// prove answers a challenge and waits for the outcome.
func (c *client) prove(authz, typ string) *reply {
	c.t.Helper()
	c.post(c.challengeURL(authz, typ), map[string]any{}).want(200)
	return c.await(authz, "valid", "invalid")
}

// await reads until the object has one of the states.
func (c *client) await(url string, states ...string) *reply {
	c.t.Helper()
	for {
		moved := c.w.watched.next()
		if r := c.get(url).want(200); slices.Contains(states, r.str("status")) {
			return r
		}
		select {
		case <-moved:
		case <-c.t.Context().Done():
			c.t.Fatalf("%s never became one of %v", url, states)
		}
	}
}

// A watched store tells when something in the background moved.
type watched struct {
	acme.Store
	db    *store.DB
	mu    sync.Mutex // guards moved
	moved chan struct{}
}

// storeOf is the authority's part of the store in c, for a test that brings an
// authority of its own.
func storeOf(c *acme.Config) ca.Store {
	w, _ := c.Store.(*watched)
	return store.NewCA(w.db)
}

func (w *watched) next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.moved
}

func (w *watched) tell() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.moved)
	w.moved = make(chan struct{})
}

func (w *watched) FinishValidation(ctx context.Context, v acme.Validated, e audit.Entry) error {
	defer w.tell()
	return w.Store.FinishValidation(ctx, v, e)
}

func (w *watched) BeginIssue(ctx context.Context, c acme.Claim, in ca.Intent) error {
	defer w.tell()
	return w.Store.BeginIssue(ctx, c, in)
}

func (w *watched) CommitIssue(ctx context.Context, id string, in ca.Intent, c ca.Certificate, purge time.Time) error {
	defer w.tell()
	return w.Store.CommitIssue(ctx, id, in, c, purge)
}

func (w *watched) AbortIssue(ctx context.Context, id string, in ca.Intent, cause error, v acme.Verdict) error {
	defer w.tell()
	return w.Store.AbortIssue(ctx, id, in, cause, v)
}

func (w *watched) Settle(ctx context.Context, id, intent string, v acme.Verdict, e *audit.Entry) error {
	defer w.tell()
	return w.Store.Settle(ctx, id, intent, v, e)
}

// ready makes an order whose names are all proven.
func (c *client) ready(names ...string) (string, *reply) {
	c.t.Helper()
	u, r := c.order(names...)
	for _, a := range r.strs("authorizations") {
		if got := c.prove(a, "dns-01").str("status"); got != "valid" {
			c.t.Fatalf("authorization is %s", got)
		}
	}
	r = c.get(u).want(200)
	if r.str("status") != "ready" {
		c.t.Fatalf("order is %s after its last authorization: %s", r.str("status"), r.body)
	}
	return u, r
}

func csrBody(der []byte) map[string]any { return map[string]any{"csr": b64(der)} }

// issue gets a certificate and its key.
func (c *client) issue(names ...string) (*x509.Certificate, crypto.Signer) {
	c.t.Helper()
	_, r := c.ready(names...)
	key := newKey(c.t)
	r = c.post(r.str("finalize"), csrBody(catest.CSR(c.t, key, names...))).want(200)
	if r.str("status") != "valid" {
		c.t.Fatalf("order is %s: %s", r.str("status"), r.body)
	}
	return leaf(c.t, c.get(r.str("certificate")).want(200).body), key
}

func leaf(t *testing.T, chain []byte) *x509.Certificate {
	t.Helper()
	b, _ := pem.Decode(chain)
	if b == nil {
		t.Fatalf("no PEM in %q", chain)
	}
	cert, err := x509.ParseCertificate(b.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// certificates counts the serials in a state.
func (w *world) certificates(state ca.State) (n int) {
	w.t.Helper()
	list, _, err := store.NewCA(w.db).List(context.Background(), ca.ListQuery{State: state, Limit: 100})
	if err != nil {
		w.t.Fatal(err)
	}
	return len(list)
}

// crashing is an authority whose process ends once, after the intent was
// recorded and before anything else was.
type crashing struct {
	acme.CA
	mu    sync.Mutex // guards times
	times int
}

var errCrash = errors.New("the process ended")

func (c *crashing) Issue(ctx context.Context, req ca.Request, led ca.Ledger) (ca.Certificate, error) {
	c.mu.Lock()
	crash := c.times > 0
	c.times--
	c.mu.Unlock()
	if crash {
		led = crashLedger{led}
	}
	return c.CA.Issue(ctx, req, led)
}

type crashLedger struct{ ca.Ledger }

func (crashLedger) Commit(context.Context, ca.Intent, ca.Certificate) error {
	return errors.Join(errCrash, ca.ErrLeaseLost) // which is not tried again
}
