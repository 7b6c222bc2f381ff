package acme_test

import (
	"bytes"
	"context"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/admin"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/store"
)

// A beside is a world's second directory: the same database, authority and
// listener, at a path of its own.
func newBeside(t *testing.T, options ...func(*acme.Config)) (first, second *world) {
	t.Helper()
	mux := http.NewServeMux()
	srv := httptest.NewUnstartedServer(mux)
	at := "https://" + srv.Listener.Addr().String()
	var cfg acme.Config
	keep := func(c *acme.Config) { cfg = *c }
	first = makeWorld(t, at, append(options, keep)...)
	second = &world{}
	*second = *first
	second.path = "acme/d/second/"
	second.store = first.store.Directory("second")
	second.watched = &watched{Store: second.store, moved: make(chan struct{})}
	cfg.Directory, cfg.Beside, cfg.Path, cfg.Store = "second", first.server, "/acme/d/second", second.watched
	var err error
	if second.server, err = acme.New(cfg); err != nil {
		t.Fatal(err)
	}
	mux.Handle("/", first.server.Handler())
	mux.Handle("/acme/d/second/", second.server.Handler())
	srv.StartTLS()
	t.Cleanup(srv.Close)
	first.http, second.http = srv.Client(), srv.Client()
	first.run()
	return first, second
}

// What is another directory's looks like what does not exist, by whatever key
// and by whatever URL it is asked for.
func TestAnotherDirectorysObjectsLookLikeNone(t *testing.T) {
	t.Parallel()
	one, two := newBeside(t)
	owner := one.client()
	u, r := owner.ready("a.example.com")
	authz := r.strs("authorizations")[0]
	ch := owner.challengeURL(authz, "dns-01")
	csr := csrBody(catest.CSR(t, newKey(t), "a.example.com"))
	done := owner.post(r.str("finalize"), csr).want(200)
	_, open := owner.order("b.example.com")

	// The same key has an account there, too: another one.
	twin := &client{t: t, w: two, key: owner.key}
	twin.kid = twin.register(nil).want(201).location()
	if strings.TrimPrefix(twin.kid, two.url("account/")) == strings.TrimPrefix(owner.kid, one.url("account/")) {
		t.Error("both directories gave the account the same id")
	}
	// over is where a thing of the first directory would be in the second.
	over := func(u string) string { return strings.Replace(u, one.url(""), two.url(""), 1) }
	for _, row := range []struct {
		url, none string
		payload   any
	}{
		{over(owner.kid), two.url("account/none"), ""},
		{over(owner.kid), two.url("account/none"), map[string]any{"status": "deactivated"}},
		{over(owner.kid) + "/orders", two.url("account/none/orders"), ""},
		{over(u), two.url("order/none"), ""},
		{over(r.str("finalize")), two.url("order/none/finalize"), csr},
		{over(authz), two.url("authz/none"), ""},
		{over(open.strs("authorizations")[0]), two.url("authz/none"), map[string]any{"status": "deactivated"}},
		{over(ch), two.url("challenge/none/dns-01"), ""},
		{over(strings.Replace(open.strs("authorizations")[0], "/authz/", "/challenge/", 1) + "/dns-01"), two.url("challenge/none/dns-01"), map[string]any{}},
		{over(done.str("certificate")), two.url("cert/none"), ""},
	} {
		theirs, none := twin.post(row.url, row.payload), twin.post(row.none, row.payload)
		if theirs.status != 404 || none.status != 404 || !bytes.Equal(theirs.body, none.body) {
			t.Errorf("%s: %d %s\n%s: %d %s", row.url, theirs.status, theirs.body, row.none, none.status, none.body)
		}
	}
	if got := owner.get(open.location()).str("status"); got != "pending" {
		t.Errorf("order is %s after another directory's requests", got)
	}

	// Nor does an account of one sign in the other, by its id there or here.
	for _, kid := range []string{over(owner.kid), two.url("account/" + audit.NewID())} {
		stranger := &client{t: t, w: two, key: owner.key, kid: kid}
		stranger.get(two.url("order/"+audit.NewID())).problem(400, "accountDoesNotExist")
	}
	stranger := &client{t: t, w: two, key: owner.key, kid: owner.kid}
	stranger.get(two.url("order/"+audit.NewID())).problem(400, "malformed")

	// One that has no account there is not found by its key.
	lone := one.client()
	lone = &client{t: t, w: two, key: lone.key}
	lone.post(two.url("new-account"), map[string]any{"onlyReturnExisting": true}).problem(400, "accountDoesNotExist")
}

func TestNoncesOfOneDirectoryAreNoneInAnother(t *testing.T) {
	t.Parallel()
	one, two := newBeside(t)
	c := two.client()
	c.nonce = one.stranger().takeNonce()
	c.post(two.url("new-order"), dns("a.example.com")).problem(400, "badNonce")
}

// Each directory hands its own nonces on to the next start.
func TestNoncesAreHandedOnByDirectory(t *testing.T) {
	t.Parallel()
	one, two := newBeside(t)
	two.stranger().takeNonce()
	var states [][]byte
	for directory, s := range map[string]*acme.Server{"": one.server, "second": two.server} {
		if err := s.SaveNonces(t.Context()); err != nil {
			t.Fatal(err)
		}
		st, err := one.store.TakeNonces(t.Context(), directory, "", one.clock.now().Add(-time.Minute))
		if err != nil {
			t.Fatalf("directory %q: %v", directory, err)
		}
		states = append(states, st.State)
	}
	if bytes.Equal(states[0], states[1]) {
		t.Error("both directories handed on the same")
	}
}

func TestExternalKeysOfOneDirectoryAreNoneInAnother(t *testing.T) {
	t.Parallel()
	one, two := newBeside(t, binds(acme.BindingRequired))
	k := one.eabKey(func(k *admin.ExternalKey) { k.MaxUses = 0 })
	c := two.stranger()
	theirs := c.register(c.bind(k.KID, k.MAC, nil)).problem(403, "unauthorized")
	c = two.stranger()
	none := c.register(c.bind(audit.NewID(), k.MAC, nil)).problem(403, "unauthorized")
	if !bytes.Equal(theirs.body, none.body) {
		t.Errorf("%s and %s", theirs.body, none.body)
	}
	c = one.stranger()
	c.register(c.bind(k.KID, k.MAC, nil)).want(201)
}

// The key of an account is for no certificate, wherever the account is.
func TestAccountKeysAreCertifiedInNoDirectory(t *testing.T) {
	t.Parallel()
	one, two := newBeside(t)
	key := one.client().key
	c := two.client()
	_, r := c.ready("a.example.com")
	c.post(r.str("finalize"), csrBody(catest.CSR(t, key, "a.example.com"))).problem(400, "badCSR")
}

// The first server's Run validates, issues and recovers for all of them.
func TestEachDirectoryIsWorkedFor(t *testing.T) {
	t.Parallel()
	crash := &crashing{times: 1}
	_, two := newBeside(t, func(c *acme.Config) { crash.CA, c.CA = c.CA, crash })
	c := two.client()
	u, r := c.ready("a.example.com")
	if got := c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).want(200).str("status"); got != "processing" {
		t.Fatalf("the order is %s", got)
	}
	two.clock.advance(1 << 40)
	got := c.await(u, "valid", "invalid")
	if got.str("status") != "valid" || two.certificates(ca.Issued) != 1 {
		t.Errorf("the order is %s", got.body)
	}
	c.get(got.str("certificate")).want(200)
	if err := two.server.Run(t.Context()); err == nil {
		t.Error("the second directory runs by itself")
	}
}

func TestTheHolderOfTheKeyRevokesInAnyDirectory(t *testing.T) {
	t.Parallel()
	one, two := newBeside(t)
	cert, key := one.client().issue("a.example.com")
	other := two.client()
	other.post(two.url("revoke-cert"), map[string]any{"certificate": b64(cert.Raw)}).problem(403, "unauthorized")
	holder := &client{t: t, w: two, key: key}
	holder.post(two.url("revoke-cert"), map[string]any{"certificate": b64(cert.Raw)}).want(200)
}

// A certificate of one directory is replaced by an order of the other as little
// as one that there is not.
func TestAnotherDirectorysCertificateIsNotReplaced(t *testing.T) {
	t.Parallel()
	one, two := newBeside(t)
	cert, _ := one.client().issue("a.example.com")
	unknown := *cert
	unknown.SerialNumber = new(big.Int).Add(cert.SerialNumber, big.NewInt(1))
	c := two.client()
	var bodies [][]byte
	for _, id := range []string{certID(cert), certID(&unknown)} {
		o := dns("a.example.com")
		o["replaces"] = id
		r := c.post(two.url("new-order"), o)
		if r.status < 400 {
			t.Errorf("%d %s", r.status, r.body)
		}
		bodies = append(bodies, r.body)
	}
	if !bytes.Equal(bodies[0], bodies[1]) {
		t.Errorf("%s and %s", bodies[0], bodies[1])
	}
}

// lines keeps what is logged.
type lines struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// What was accepted in a directory that is gone is not lost in silence.
func TestOrdersOfADirectoryThatIsGoneAreTold(t *testing.T) {
	t.Parallel()
	var log lines
	w := makeWorld(t, "https://ca.example", func(c *acme.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	gone := w.store.Directory("gone")
	id := audit.NewID()
	a := acme.Account{ID: id, Key: []byte("{}"), Thumbprint: id, Status: acme.AccountValid, CreatedAt: w.clock.now()}
	if _, _, err := gone.CreateAccount(t.Context(), a, audit.New("t", "t", "t", nil)); err != nil {
		t.Fatal(err)
	}
	err := w.db.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO acme_orders (id, account_id, status, profile, identifiers, authz_ids, open_authzs, not_before, not_after, created_at, expires, sweep_at, directory)
			VALUES ('o', $1, 'processing', 'p', '[]', '[]', 0, 0, 0, 0, 0, 0, 'gone')`, id)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO acme_stars (order_id, account_id, directory, begin_at, period, certificate_id, due_at, purge_at)
			VALUES ('renewed', $1, 'gone', 0, 0, '', 1, 1), ('canceled', $1, 'gone', 0, 0, '', 0, 1)`, id)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.server.TellOfOrphans(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := log.String(); !strings.Contains(got, "level=WARN") || !strings.Contains(got, "directory=gone orders=2") {
		t.Errorf("logged %q", got)
	}
}

func TestDirectoriesShareOneRegistry(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	_, two := newBeside(t, func(c *acme.Config) { c.Registerer = reg })
	two.client()
	list, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, f := range list {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if f.GetName() == "secsy_acme_requests_total" && l.GetName() == "directory" {
					seen[l.GetValue()] = true
				}
			}
		}
	}
	if !seen["second"] || seen["first"] {
		t.Errorf("directories in metrics: %v", seen)
	}
}

func TestTheFirstServerIsTheOneWithoutAName(t *testing.T) {
	t.Parallel()
	w := makeWorld(t, "https://ca.example")
	base, err := url.Parse("https://ca.example")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]acme.Config{
		"a name and beside nobody": {Directory: "a"},
		"no name and beside":       {Beside: w.server},
	} {
		c.BaseURL, c.Store, c.CA, c.Validator, c.Logger = base, w.store, w.ca.Authority, w.validator, slog.New(slog.DiscardHandler)
		if _, err := acme.New(c); err == nil {
			t.Errorf("%s: it was made", name)
		}
	}
}
