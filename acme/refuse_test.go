package acme

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// plainServer is a server that refuses.
func plainServer(t testing.TB) *Server {
	t.Helper()
	s, err := New(Config{
		BaseURL: &url.URL{Scheme: "https", Host: "ca.example"}, Logger: slog.New(slog.DiscardHandler),
		Store: struct{ Store }{}, CA: struct{ CA }{}, Validator: struct{ Validator }{},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A canned answer has all that every other answer has, and its length.
func TestRefusalHasWhatEveryAnswerHas(t *testing.T) {
	t.Parallel()
	s := plainServer(t)
	for _, route := range s.Routes() {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
			w := httptest.NewRecorder()
			route.Refuse(w, httptest.NewRequestWithContext(t.Context(), method, route.Path, nil), ratelimit.Decision{RetryAfter: 7 * time.Second})
			status := http.StatusServiceUnavailable
			if slices.Contains([]string{"acme_directory", "acme_renewal_info", "acme_new_account", "acme_new_order"}, route.Class) {
				status = http.StatusTooManyRequests
			}
			h := w.Header()
			nonce := h.Get("Replay-Nonce")
			if w.Code != status || s.nonces.redeem(nonce) != nil {
				t.Errorf("%s %s: %d, nonce %q", method, route.Path, w.Code, nonce)
			}
			h.Del("Replay-Nonce")
			length := h.Get("Content-Length")
			h.Del("Content-Length")
			want := http.Header{
				"Cache-Control": {"no-store"}, "X-Content-Type-Options": {"nosniff"}, "Content-Type": {"application/problem+json"},
				"Access-Control-Allow-Origin": {"*"}, "Access-Control-Expose-Headers": {"Link, Location, Replay-Nonce, Retry-After"},
				"Link":        {`<https://ca.example/acme/directory>;rel="index"`, `<https://ca.example/acme/help/rate-limits>;rel="help"`},
				"Retry-After": {"7"},
			}
			if !maps.EqualFunc(h, want, slices.Equal) {
				t.Errorf("%s %s: %v\nwant %v", method, route.Path, h, want)
			}
			if method == http.MethodHead {
				if w.Body.Len() != 0 {
					t.Errorf("HEAD %s has a body", route.Path)
				}
				continue
			}
			var p struct {
				Type, Detail string
				Status       int
			}
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Type != "urn:ietf:params:acme:error:rateLimited" || p.Detail == "" || p.Status != status {
				t.Errorf("%s: %s, %v", route.Path, w.Body, err)
			}
			if length != strconv.Itoa(w.Body.Len()) {
				t.Errorf("Content-Length is %s of %d", length, w.Body.Len())
			}
		}
	}
}

// Whoever waits for as long as Retry-After says is let in, but for waits that
// clients would not bear.
func TestRefusalSaysTheTruthUpToTenMinutes(t *testing.T) {
	t.Parallel()
	s := plainServer(t)
	for wait, want := range map[time.Duration]string{0: "1", time.Second: "1", 90 * time.Second: "90", 10 * time.Minute: "600", 24 * time.Hour: "600"} {
		w := httptest.NewRecorder()
		s.classes.newOrder.refuse(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil), ratelimit.Decision{RetryAfter: wait})
		if got := w.Header()["Retry-After"]; len(got) != 1 || got[0] != want {
			t.Errorf("after %s: %q; want %s", wait, got, want)
		}
	}
}

// A person often sees no more of a refusal than its detail: which limit it is, and
// how long to wait, stand there in the same words as in the header.
func TestRefusalTellsPeopleWhichLimitAndHowLong(t *testing.T) {
	t.Parallel()
	s := plainServer(t)
	for _, row := range []struct {
		tier ratelimit.Tier
		wait time.Duration
		want string
	}{
		{ratelimit.PerIP, 4 * time.Second, "too many requests from your address; try again in 4 seconds"},
		{ratelimit.PerPrefix, 16 * time.Second, "too many requests from your network; try again in 16 seconds"},
		{ratelimit.EndpointIP, 0, "too many requests of this kind from your address; try again in 1 seconds"},
		{ratelimit.EndpointAll, 600 * time.Second, "too many requests of this kind from all clients together; try again in 600 seconds"},
		{ratelimit.Global, 24 * time.Hour, "too many requests from all clients together; try again in 600 seconds"},
		{ratelimit.None, time.Second, "too many requests; try again in 1 seconds"},
	} {
		w := httptest.NewRecorder()
		s.classes.newOrder.refuse(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil), ratelimit.Decision{Tier: row.tier, RetryAfter: row.wait})
		var p struct{ Detail string }
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Detail != row.want {
			t.Errorf("%s: %q, %v; want %q", row.tier, p.Detail, err, row.want)
		}
		if n := strconv.Itoa(w.Body.Len()); w.Header().Get("Content-Length") != n {
			t.Errorf("%s: Content-Length is %s of %s", row.tier, w.Header().Get("Content-Length"), n)
		}
	}
}

// A flood of refusals pushes nobody's nonce out of the window, and when it is
// over refusals have nonces again.
func TestFloodOfRefusalsLeavesNoncesGood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := mustNonces(t, 256, 1<<20) // a window of little more than the burst
		refuse := newCanned(n, nil, "").refuser(http.StatusTooManyRequests)
		honest := mustIssue(t, n)
		nonces := func(requests int) (given int) {
			for range requests {
				w := httptest.NewRecorder()
				refuse(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil), ratelimit.Decision{})
				given += len(w.Header()["Replay-Nonce"])
			}
			return given
		}
		if got := nonces(5000); got != refusalNoncesBurst {
			t.Errorf("%d nonces were given out at once; want %d", got, refusalNoncesBurst)
		}
		if err := n.redeem(honest); err != nil {
			t.Error("the flood took a nonce that was out")
		}
		time.Sleep(time.Second)
		if got := nonces(5000); got != refusalNonces {
			t.Errorf("%d nonces were given out a second later; want %d", got, refusalNonces)
		}
	})
}

// Many at once take no more than there is.
func TestTrickleGivesNoMoreThanThereIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := newTrickle(100, 200)
		var (
			wg    sync.WaitGroup
			mu    sync.Mutex
			taken int
		)
		for range 8 {
			wg.Go(func() {
				mine := 0
				for range 1000 {
					if tr.take() {
						mine++
					}
				}
				mu.Lock()
				defer mu.Unlock()
				taken += mine
			})
		}
		wg.Wait()
		if taken == 0 || taken > 200 {
			t.Errorf("%d were taken of 200", taken)
		}
	})
}

// An answerer is a ResponseWriter that costs nothing itself.
type answerer struct {
	header http.Header
	body   bytes.Buffer
}

func (a *answerer) Header() http.Header         { return a.header }
func (a *answerer) WriteHeader(int)             {}
func (a *answerer) Write(b []byte) (int, error) { return a.body.Write(b) }

func (a *answerer) reset() {
	clear(a.header)
	a.body.Reset()
}

// A refusal allocates nothing; the nonce in the first ones is the exception.
func TestRefusalAllocatesNothing(t *testing.T) {
	s := plainServer(t)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/acme/new-order", nil)
	a := &answerer{header: http.Header{}}
	refuse := func() {
		a.reset()
		s.classes.newOrder.refuse(a, r, ratelimit.Decision{RetryAfter: time.Second})
	}
	for range refusalNoncesBurst + 1 {
		refuse()
	}
	tr := newTrickle(1, 1) // spent for as long as the test runs
	tr.full.Store(int64(time.Hour))
	c := newCanned(s.nonces, s.header, s.helpLink())
	c.trickle = tr
	s.classes.newOrder.refuse = c.refuser(http.StatusTooManyRequests)
	if n := testing.AllocsPerRun(1000, refuse); n != 0 {
		t.Errorf("a refusal allocates %v times", n)
	}
}

func BenchmarkRefuse(b *testing.B) {
	for _, row := range []struct {
		name  string
		spent time.Duration
	}{{"nonce", -time.Hour}, {"none", time.Hour}} {
		b.Run(row.name, func(b *testing.B) {
			s := plainServer(b)
			c := newCanned(s.nonces, s.header, s.helpLink())
			if c.trickle = newTrickle(1_000_000_000, 1_000_000_000); row.spent > 0 {
				c.trickle.full.Store(int64(row.spent))
			}
			refuse := c.refuser(http.StatusTooManyRequests)
			r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/acme/new-order", nil)
			a := &answerer{header: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				a.reset()
				refuse(a, r, ratelimit.Decision{RetryAfter: time.Second})
			}
		})
	}
}

// What an account that is not signs is verified like what one that is did not:
// with every algorithm, up to the arithmetic.
func TestNobodysSignatureIsVerified(t *testing.T) {
	t.Parallel()
	s := plainServer(t)
	if len(s.decoys) != len(algorithms) {
		t.Fatalf("%d decoys for %d algorithms", len(s.decoys), len(algorithms))
	}
	size := map[jose.SignatureAlgorithm]int{jose.RS256: 256, jose.ES256: 64, jose.ES384: 96, jose.ES512: 132, jose.EdDSA: 64}
	for _, alg := range algorithms {
		header, err := json.Marshal(map[string]string{"alg": string(alg), "kid": "https://ca.example/acme/account/x", "url": "u"})
		if err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(map[string]string{
			"protected": b64url(header), "payload": "", "signature": b64url(bytes.Repeat([]byte{1}, size[alg])),
		})
		if err != nil {
			t.Fatal(err)
		}
		m, err := parseMessage(raw)
		if err != nil {
			t.Fatal(err)
		}
		key, err := s.keys.of(s.decoys[alg])
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.verify(key)
		if p, ok := errors.AsType[*Problem](err); !ok || !strings.HasPrefix(p.Detail, "the JWS's signature is not right") {
			t.Errorf("%s: %v; want a signature that does not hold", alg, err)
		}
	}
}

func b64url(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
