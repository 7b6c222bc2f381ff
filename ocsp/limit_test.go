package ocsp

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	xocsp "golang.org/x/crypto/ocsp"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/peer"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// postFrom sends a request from an address, as the front has it.
func postFrom(ctx context.Context, s *Server, addr string, body []byte) *httptest.ResponseRecorder {
	ctx = peer.With(ctx, peer.Peer{Addr: netip.MustParseAddr(addr), Endpoint: "ocsp"})
	r := httptest.NewRequest(http.MethodPost, "/ocsp", bytes.NewReader(body)).WithContext(ctx)
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, r)
	return rec
}

// later checks that rec says in both languages to come back.
func later(t *testing.T, rec *httptest.ResponseRecorder, code int, seconds string) {
	t.Helper()
	h := rec.Header()
	if rec.Code != code || h.Get("Retry-After") != seconds || !bytes.Equal(rec.Body.Bytes(), tryLater.der()) {
		t.Errorf("HTTP %d, Retry-After %q, %x; want %d, %s and tryLater", rec.Code, h.Get("Retry-After"), rec.Body.Bytes(), code, seconds)
	}
	if h.Get("Content-Type") != responseType || h.Get("Cache-Control") != "no-store" || h.Get("Content-Length") != "5" {
		t.Errorf("headers %v", h)
	}
}

// saysGood checks that rec is a signed answer about c.
func (w *world) saysGood(rec *httptest.ResponseRecorder, i int, c *x509.Certificate) {
	w.t.Helper()
	resp, err := xocsp.ParseResponseForCert(rec.Body.Bytes(), c, w.issuers[i].Cert)
	if err != nil || resp.Status != xocsp.Good {
		w.t.Errorf("HTTP %d %x: %v", rec.Code, rec.Body.Bytes(), err)
	}
}

func (w *world) withNonce(i int, c *x509.Certificate, nonce string) []byte {
	w.t.Helper()
	return encodeRequest(w.t, idsOf(w.t, w.query(i, c, crypto.SHA1)), []byte(nonce))
}

// What the device has no room for now is HTTP's 503, which says when to come
// back, with tryLater for those that look at the body alone.
func TestABusyDeviceSaysWhenToComeBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	q := w.query(0, w.leaf(0, 5, Status{State: ca.Issued}), crypto.SHA1)
	for _, c := range []struct {
		err     error
		seconds string
	}{
		{keys.ErrBusy, "2"},
		{&keys.BusyError{Reason: "queue_full", RetryAfter: time.Second}, "1"},
		{&keys.BusyError{Reason: "timeout", RetryAfter: 2500 * time.Millisecond}, "3"},
		{&keys.BusyError{Reason: "timeout", RetryAfter: time.Hour}, "3600"},
		{&keys.BusyError{Reason: "canceled", RetryAfter: time.Second, Err: context.DeadlineExceeded}, "1"},
		{&keys.BusyError{Reason: "canceled"}, "1"},
	} {
		w.keys.Fail(c.err)
		later(t, doPost(s, q, requestType), http.StatusServiceUnavailable, c.seconds)
		later(t, get(s, http.MethodGet, "/ocsp/"+b64(q)), http.StatusServiceUnavailable, c.seconds)
	}
	w.keys.Fail(nil)
	if rec := doPost(s, q, requestType); rec.Code != http.StatusOK || rec.Header().Get("Retry-After") != "" {
		t.Errorf("HTTP %d, %v", rec.Code, rec.Header())
	}
}

// A mute is a body that must not be read, and a writer whose headers are there.
type mute struct {
	t      testing.TB
	header http.Header
	code   int
	body   []byte
}

func (m *mute) Header() http.Header         { return m.header }
func (m *mute) WriteHeader(code int)        { m.code = code }
func (m *mute) Write(p []byte) (int, error) { m.body = p; return len(p), nil }
func (m *mute) Close() error                { return nil }
func (m *mute) Read([]byte) (int, error) {
	m.t.Error("the body was read")
	return 0, errors.New("read")
}

// Not parallel: AllocsPerRun counts what others allocate, too.
func TestARefusalIsCannedAndReadsNothing(t *testing.T) {
	w := newWorld(t)
	s := w.server(nil)
	m := &mute{t: t, header: http.Header{}}
	r := httptest.NewRequest(http.MethodPost, "/ocsp", m)
	for wait, want := range map[time.Duration]string{
		0: "1", time.Second: "1", 7 * time.Second: "7", 10 * time.Minute: "600", 10*time.Minute + time.Second: "601", time.Hour: "3600",
	} {
		s.Refuse(m, r, ratelimit.Decision{Tier: ratelimit.PerIP, RetryAfter: wait})
		h := m.header
		if m.code != http.StatusTooManyRequests || h.Get("Retry-After") != want || !bytes.Equal(m.body, tryLater.der()) {
			t.Errorf("%v: HTTP %d, Retry-After %q, %x", wait, m.code, h.Get("Retry-After"), m.body)
		}
		if h.Get("Content-Type") != responseType || h.Get("Cache-Control") != "no-store" || h.Get("Content-Length") != "5" {
			t.Errorf("headers %v", h)
		}
	}
	d := ratelimit.Decision{Tier: ratelimit.Global, RetryAfter: 3 * time.Second}
	if n := testing.AllocsPerRun(100, func() { s.Refuse(m, r, d) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	// Whoever adds to a header does not add to that of the next refusal.
	m.header["Cache-Control"] = append(m.header["Cache-Control"], "private")
	next := &mute{t: t, header: http.Header{}}
	s.Refuse(next, r, d)
	if got := next.header["Cache-Control"]; len(got) != 1 || got[0] != "no-store" {
		t.Errorf("Cache-Control %v", got)
	}
}

// A note is what a signature was asked for with.
type note struct {
	purpose keys.Purpose
	caller  peer.Peer
}

// A notary is a key store that notes what signatures are for.
type notary struct {
	KeyStore
	mu    sync.Mutex // guards notes
	notes []note
	veto  func(context.Context) error // may be nil
}

func (n *notary) Key(ctx context.Context, label string) (keys.Key, error) {
	return n.wrap(n.KeyStore.Key(ctx, label))
}

func (n *notary) Generate(ctx context.Context, label string, alg keys.Algorithm) (keys.Key, error) {
	return n.wrap(n.KeyStore.Generate(ctx, label, alg))
}

func (n *notary) wrap(k keys.Key, err error) (keys.Key, error) { return notedKey{k, n}, err }

type notedKey struct {
	keys.Key
	notary *notary
}

func (k notedKey) Sign(ctx context.Context, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	k.notary.mu.Lock()
	k.notary.notes = append(k.notary.notes, note{keys.PurposeOf(ctx), peer.From(ctx)})
	k.notary.mu.Unlock()
	if k.notary.veto != nil {
		if err := k.notary.veto(ctx); err != nil {
			return nil, err
		}
	}
	return k.Key.Sign(ctx, digest, opts)
}

func (n *notary) last(t *testing.T) note {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.notes) == 0 {
		t.Fatal("nothing was signed")
	}
	return n.notes[len(n.notes)-1]
}

// The guard before the device puts first what many will read, before that what
// says that a certificate was revoked, and last what serves one stranger.
func TestTheDeviceHearsWhoAnAnswerIsFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := &notary{KeyStore: w.keys}
	s := w.server(func(c *Config) { c.Keys = n })
	now := time.Now()
	good := w.leaf(0, 5, Status{State: ca.Issued})
	other := w.leaf(0, 6, Status{State: ca.Issued})
	revoked := w.leaf(0, 7, Status{State: ca.Issued, RevokedAt: now.Add(-time.Hour), Reason: ca.Superseded})
	longAgo := w.leaf(0, 8, Status{State: ca.Issued, RevokedAt: now.AddDate(0, 0, -30), Reason: ca.Superseded})
	backdated := w.leaf(0, 9, Status{State: ca.Issued, RevokedAt: now.AddDate(0, 0, -30), Reason: ca.KeyCompromise})
	both := encodeRequest(t, idsOf(t, w.query(0, good, crypto.SHA1), w.query(0, other, crypto.SHA1)), nil)
	for _, c := range []struct {
		name string
		body []byte
		want keys.Purpose
	}{
		{"good", w.query(0, good, crypto.SHA1), keys.ForStatus},
		{"just revoked", w.query(0, revoked, crypto.SHA1), keys.ForRevocation},
		{"revoked so long ago that everybody knows", w.query(0, longAgo, crypto.SHA1), keys.ForStatus},
		{"compromised long before it was known", w.query(0, backdated, crypto.SHA1), keys.ForRevocation},
		{"a nonce", w.withNonce(0, good, "0123456789abcdef"), keys.ForOne},
		{"a nonce of a revoked one", w.withNonce(0, revoked, "0123456789abcdef"), keys.ForOne},
		{"two in one", both, keys.ForOne},
	} {
		if rec := postFrom(t.Context(), s, "192.0.2.7", c.body); rec.Body.Len() < 100 {
			t.Fatalf("%s: HTTP %d %x", c.name, rec.Code, rec.Body.Bytes())
		}
		if got := n.last(t); got.purpose != c.want || got.caller.Addr.String() != "192.0.2.7" {
			t.Errorf("%s: %+v, want purpose %d", c.name, got, c.want)
		}
	}
}

// A refresh is in everybody's interest, so neither the debt nor the turn of
// whoever happens to come by; and nobody else waits for it.
func TestARefreshIsNobodysAndNobodyWaitsForItLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := &notary{KeyStore: w.keys}
		s := w.server(func(c *Config) { c.Keys = n })
		c := w.leaf(0, 5, Status{State: ca.Issued})
		q := w.query(0, c, crypto.SHA1)
		first := w.ask(s, 0, c)
		time.Sleep(49 * time.Hour)
		hold := w.keys.Hold()
		defer hold.Release()
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { w.saysGood(postFrom(t.Context(), s, "192.0.2.7", q), 0, c) })
		<-hold.Arrived
		for range 10 {
			if again := w.ask(s, 0, c); !again.ProducedAt.Equal(first.ProducedAt) || time.Since(start) != 0 {
				t.Errorf("after %v, an answer of %v", time.Since(start), again.ProducedAt)
			}
		}
		wg.Wait()
		if took := time.Since(start); took != time.Second {
			t.Errorf("the one who renews it waited for %v", took)
		}
		if got := n.last(t); got.purpose != keys.ForStatus || got.caller != (peer.Peer{}) {
			t.Errorf("refreshed as %+v", got)
		}
		time.Sleep(retryRefresh)
		hold.Release()
		if !w.ask(s, 0, c).ProducedAt.After(first.ProducedAt) {
			t.Error("not renewed when the device was there again")
		}
	})
}

// Those who ask for the same answer share one signature. If it is the turn of a
// flooder that the guard turns away, the others must not go down with it.
func TestAFloodDoesNotSpeakForThoseWhoWaitWithIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		flooder := netip.MustParseAddr("198.51.100.1")
		n := &notary{KeyStore: w.keys, veto: func(ctx context.Context) error {
			if peer.From(ctx).Addr != flooder {
				return nil
			}
			time.Sleep(time.Second)
			return &keys.BusyError{Reason: "timeout", RetryAfter: time.Second}
		}}
		s := w.server(func(c *Config) { c.Keys = n })
		c := w.leaf(0, 5, Status{State: ca.Issued})
		q := w.query(0, c, crypto.SHA1)
		var wg sync.WaitGroup
		wg.Go(func() {
			later(t, postFrom(t.Context(), s, flooder.String(), q), http.StatusServiceUnavailable, "1")
		})
		synctest.Wait()
		for range 20 {
			wg.Go(func() { w.saysGood(postFrom(t.Context(), s, "192.0.2.7", q), 0, c) })
		}
		wg.Wait()
		if got := w.keys.Signatures(); got != 1 {
			t.Errorf("%d signatures for one answer", got)
		}
	})
}

// An answer with a nonce is of no use to anybody once its client has left: it
// leaves the queue, and nothing is signed in its place.
func TestAClientThatLeavesTakesItsNonceAlong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := &notary{KeyStore: w.keys, veto: func(ctx context.Context) error {
			<-ctx.Done()
			return &keys.BusyError{Reason: "canceled", RetryAfter: time.Second, Err: ctx.Err()}
		}}
		s := w.server(func(c *Config) { c.Keys = n })
		body := w.withNonce(0, w.leaf(0, 5, Status{State: ca.Issued}), "0123456789abcdef")
		ctx, leave := context.WithCancel(t.Context())
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { postFrom(ctx, s, "192.0.2.7", body) })
		synctest.Wait()
		leave()
		wg.Wait()
		if len(n.notes) != 1 || time.Since(start) != 0 {
			t.Errorf("%d tries in %v", len(n.notes), time.Since(start))
		}
	})
}

func newLimiter(t *testing.T, burst int) *ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.New(ratelimit.Config{PerIP: ratelimit.Bucket{Rate: 0.01, Burst: burst}, MaxKeys: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// overLimit checks that rec says that its source is over the limit, and returns
// for how long.
func overLimit(t *testing.T, rec *httptest.ResponseRecorder) time.Duration {
	t.Helper()
	later(t, rec, http.StatusTooManyRequests, rec.Header().Get("Retry-After"))
	n, err := strconv.Atoi(rec.Header().Get("Retry-After"))
	if err != nil || n < 1 {
		t.Errorf("Retry-After: %v", rec.Header())
	}
	return time.Duration(n) * time.Second
}

func TestWithoutALimiterNobodyIsLimited(t *testing.T) {
	t.Parallel()
	if d := newWorld(t).server(nil).Limit().Admit(netip.MustParseAddr("192.0.2.7")); !d.OK {
		t.Errorf("%+v", d)
	}
}

// What is there costs next to nothing, so that a client behind many others is
// still served; what has to be signed costs a whole token, all in all.
func TestAReadyAnswerCostsAHundredthOfASignedOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.server(func(c *Config) { c.Limiter = newLimiter(t, 3) })
		const source = "192.0.2.7"
		ask := func(n int64) *httptest.ResponseRecorder {
			if d := s.Limit().Admit(netip.MustParseAddr(source)); !d.OK {
				t.Errorf("question %d was refused: %+v", n, d)
			}
			return postFrom(t.Context(), s, source, w.query(0, w.leaf(0, n, Status{State: ca.Issued}), crypto.SHA1))
		}
		for n := range int64(2) {
			if rec := ask(n + 1); rec.Body.Len() < 100 {
				t.Errorf("answer %d: HTTP %d", n, rec.Code)
			}
		}
		// A hundred that are there are as much as the third signature.
		for range 100 {
			if rec := ask(1); rec.Body.Len() < 100 {
				t.Fatalf("HTTP %d", rec.Code)
			}
		}
		if d := s.Limit().Admit(netip.MustParseAddr(source)); d.OK {
			t.Error("more than three tokens were had")
		}
		if n := w.keys.Signatures(); n != 2 {
			t.Errorf("%d signatures", n)
		}
	})
}

// Whoever is over the limit hears when it is worth trying again, and then it is.
func TestWhoHasTooMuchSignedComesBackInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.server(func(c *Config) { c.Limiter = newLimiter(t, 1) })
		first, second := w.leaf(0, 5, Status{State: ca.Issued}), w.leaf(0, 6, Status{State: ca.Issued})
		q1, q2 := w.query(0, first, crypto.SHA1), w.query(0, second, crypto.SHA1)
		w.saysGood(postFrom(t.Context(), s, "192.0.2.7", q1), 0, first)
		// 0.99 of a token are asked for, 0.01 is there, and as much comes each second.
		rec := postFrom(t.Context(), s, "192.0.2.7", q2)
		wait := overLimit(t, rec)
		if wait < 98*time.Second || wait > 99*time.Second {
			t.Errorf("come back in %v", wait)
		}
		w.saysGood(postFrom(t.Context(), s, "192.0.2.7", q1), 0, first)
		time.Sleep(wait)
		w.saysGood(postFrom(t.Context(), s, "192.0.2.7", q2), 0, second)
		// It is the source that is limited, not the answer.
		third := w.leaf(0, 7, Status{State: ca.Issued})
		q3 := w.query(0, third, crypto.SHA1)
		overLimit(t, postFrom(t.Context(), s, "192.0.2.7", q3))
		w.saysGood(postFrom(t.Context(), s, "192.0.2.8", q3), 0, third)
		w.saysGood(postFrom(t.Context(), s, "192.0.2.7", q3), 0, third)
	})
}

func TestANonceOverTheLimitGetsTheAnswerThatIsThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.server(func(c *Config) { c.Limiter = newLimiter(t, 1) })
		there, unknown := w.leaf(0, 5, Status{State: ca.Issued}), w.leaf(0, 6, Status{State: ca.Issued})
		w.saysGood(postFrom(t.Context(), s, "192.0.2.7", w.query(0, there, crypto.SHA1)), 0, there)
		rec := postFrom(t.Context(), s, "192.0.2.7", w.withNonce(0, there, "0123456789abcdef"))
		w.saysGood(rec, 0, there)
		if rec.Header().Get("Cache-Control") != "no-store" || bytes.Contains(rec.Body.Bytes(), []byte("0123456789abcdef")) {
			t.Errorf("%v %x", rec.Header(), rec.Body.Bytes())
		}
		overLimit(t, postFrom(t.Context(), s, "192.0.2.7", w.withNonce(0, unknown, "0123456789abcdef")))
		if n := w.keys.Signatures(); n != 1 {
			t.Errorf("%d signatures", n)
		}
	})
}

// A nonce that the device has no time for has paid for the answer without it.
func TestANoncePaysOnceThoughTwoAnswersAreTried(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := &notary{KeyStore: w.keys, veto: func(ctx context.Context) error {
		if keys.PurposeOf(ctx) == keys.ForOne {
			return &keys.BusyError{Reason: "queue_full", RetryAfter: time.Second}
		}
		return nil
	}}
	s := w.server(func(c *Config) { c.Keys = n; c.Limiter = newLimiter(t, 1) })
	c := w.leaf(0, 5, Status{State: ca.Issued})
	w.saysGood(postFrom(t.Context(), s, "192.0.2.7", w.withNonce(0, c, "0123456789abcdef")), 0, c)
}

func TestARefreshIsNeverCharged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		l, err := ratelimit.New(ratelimit.Config{PerIP: ratelimit.Bucket{Rate: 1e-6, Burst: 1}, Global: ratelimit.Bucket{Rate: 1e-6, Burst: 1}, MaxKeys: 1000})
		if err != nil {
			t.Fatal(err)
		}
		s := w.server(func(c *Config) { c.Limiter = l })
		c := w.leaf(0, 5, Status{State: ca.Issued})
		q := w.query(0, c, crypto.SHA1)
		w.saysGood(postFrom(t.Context(), s, "192.0.2.7", q), 0, c)
		time.Sleep(49 * time.Hour)
		w.saysGood(postFrom(t.Context(), s, "192.0.2.7", q), 0, c)
		if n := w.keys.Signatures(); n != 2 {
			t.Errorf("%d signatures: not renewed", n)
		}
	})
}
