package ocsp

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	xocsp "golang.org/x/crypto/ocsp"

	"github.com/secsy-pki/secsy-pki/ca"
)

// following is a server that follows the changes from now on.
func (w *world) following(change func(*Config)) *Server {
	w.t.Helper()
	s := w.server(change)
	if err := s.look(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) asked() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reads
}

func pathOf(der []byte) string { return "/ocsp/" + b64(der) }

func TestAnAnswerThatIsThereAsksNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.following(func(c *Config) { c.Nonce = IgnoreNonce })
		c := w.leaf(0, 5, Status{State: ca.Issued})
		q := w.query(0, c, crypto.SHA1)
		first := get(s, http.MethodGet, pathOf(q))
		reads := w.asked()
		nonce := w.withNonce(0, c, "a nonce of thirty-two characters")
		for name, rec := range map[string]*httptest.ResponseRecorder{
			"the same":         get(s, http.MethodGet, pathOf(q)),
			"another spelling": get(s, http.MethodGet, "/ocsp//"+b64(q)),
			"a body":           doPost(s, q, requestType),
			"the same body":    doPost(s, q, requestType),
			"with a nonce":     doPost(s, nonce, requestType),
		} {
			if !bytes.Equal(rec.Body.Bytes(), first.Body.Bytes()) || rec.Code != http.StatusOK {
				t.Errorf("%s: HTTP %d", name, rec.Code)
			}
			if cc := rec.Header().Get("Cache-Control"); (cc == "no-store") != (name == "with a nonce") {
				t.Errorf("%s: %s", name, cc)
			}
		}
		if head := get(s, http.MethodHead, pathOf(q)); head.Header().Get("Content-Length") != first.Header().Get("Content-Length") {
			t.Errorf("HEAD: %v", head.Header())
		}
		if same := get(s, http.MethodGet, pathOf(q), "If-None-Match", first.Header().Get("ETag")); same.Code != http.StatusNotModified || same.Header().Get("Content-Type") != "" {
			t.Errorf("HTTP %d, %v", same.Code, same.Header())
		}
		if w.asked() != reads || w.keys.Signatures() != 1 {
			t.Errorf("%d reads more, %d signatures", w.asked()-reads, w.keys.Signatures())
		}
	})
}

func TestUnknownSerialsAreNeitherKeptNorSigned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.following(nil)
	stranger := certify(t, &x509.Certificate{SerialNumber: w.leaf(1, 77, Status{State: ca.Issued}).SerialNumber}, w.issuers[0].Cert, newKey(t).Public(), w.caKeys[w.issuers[0].ID])
	q := w.query(0, stranger, crypto.SHA1)
	for n := range 5 {
		refused(t, get(s, http.MethodGet, pathOf(q)), unauthorized)
		refused(t, doPost(s, q, requestType), unauthorized)
		if w.asked() != 2*(n+1) {
			t.Errorf("%d reads", w.asked())
		}
	}
	if s.cache.len() != 0 || s.cache.spellings() != 0 || w.keys.Signatures() != 0 {
		t.Errorf("%d answers, %d spellings, %d signatures", s.cache.len(), s.cache.spellings(), w.keys.Signatures())
	}
}

func TestARevocationOfThisProcessShowsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.following(nil)
		c := w.leaf(0, 5, Status{State: ca.Issued})
		q := w.query(0, c, crypto.SHA1)
		w.saysGood(get(s, http.MethodGet, pathOf(q)), 0, c)
		w.set(0, c, Status{State: ca.Issued, RevokedAt: time.Now(), Reason: ca.Superseded})
		s.Changed(w.issuers[0].ID, ca.SerialOf(c.SerialNumber))
		if got := w.says(get(s, http.MethodGet, pathOf(q)), 0, c); got != xocsp.Revoked {
			t.Errorf("status %d", got)
		}
	})
}

// says is the status in rec, in the eyes of another implementation.
func (w *world) says(rec *httptest.ResponseRecorder, i int, c *x509.Certificate) int {
	w.t.Helper()
	r, err := xocsp.ParseResponseForCert(rec.Body.Bytes(), c, w.issuers[i].Cert)
	if err != nil {
		w.t.Errorf("parsing %x: %v", rec.Body.Bytes(), err)
		return -1
	}
	return r.Status
}

// Of two processes on one database, the one that does not revoke has no other
// word of it than its looks. It may say "good" for as long as the other one waits
// before it acknowledges, and not longer, also if its looks fail.
func TestARevocationElsewhereShowsByTheTimeItIsAcknowledged(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]func(*world){
		"all is well":                 func(*world) {},
		"the looks fail":              func(w *world) { w.lookErr = errors.New("no connection") },
		"the looks fail all the time": func(w *world) { w.frozen.Store(true) },
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			s := w.server(nil)
			stop := follow(t, s)
			defer stop()
			synctest.Wait()
			c := w.leaf(0, 5, Status{State: ca.Issued})
			q := w.query(0, c, crypto.SHA1)
			w.saysGood(get(s, http.MethodGet, pathOf(q)), 0, c)
			time.Sleep(17 * time.Millisecond) // between two looks
			reads := w.asked()
			w.mu.Lock()
			trouble(w)
			w.mu.Unlock()
			w.set(0, c, Status{State: ca.Issued, RevokedAt: time.Now(), Reason: ca.Superseded})
			if got := w.says(get(s, http.MethodGet, pathOf(q)), 0, c); got != xocsp.Good || w.asked() != reads {
				t.Errorf("%s: status %d at once, %d reads: it is not from memory", name, got, w.asked()-reads)
			}
			time.Sleep(Lag)
			w.frozen.Store(false)
			for range 3 {
				if got := w.says(get(s, http.MethodGet, pathOf(q)), 0, c); got != xocsp.Revoked {
					t.Errorf("%s: status %d after it was acknowledged", name, got)
				}
			}
		})
	}
}

func TestTheChangesAreFollowedAgainAfterAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.server(nil)
		stop := follow(t, s)
		defer stop()
		c := w.leaf(0, 5, Status{State: ca.Issued})
		w.frozen.Store(true)
		time.Sleep(5 * Lag)
		if s.following() {
			t.Error("it follows what does not answer")
		}
		w.frozen.Store(false)
		time.Sleep(lookingCalm + 2*Lag) // the last look to fail began before
		w.ask(s, 0, c)
		reads := w.asked()
		w.ask(s, 0, c)
		if w.asked() != reads || !s.following() {
			t.Error("it reads the store for each answer")
		}
		if n := bytes.Count(w.logs.Bytes(), []byte("followed")); n != 2 {
			t.Errorf("%d lines:\n%s", n, &w.logs)
		}
	})
}

// What is signed while its certificate is revoked says so, to the one who waits
// for it and to all others.
func TestASignatureThatARevocationOvertakesIsMadeAnew(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			s := w.following(nil)
			c := w.leaf(0, 5, Status{State: ca.Issued})
			q := w.query(0, c, crypto.SHA1)
			hold := w.keys.Hold()
			var rec *httptest.ResponseRecorder
			var wg sync.WaitGroup
			wg.Go(func() { rec = get(s, http.MethodGet, pathOf(q)) })
			<-hold.Arrived
			w.set(0, c, Status{State: ca.Issued, RevokedAt: time.Now(), Reason: ca.Superseded})
			if told {
				s.Changed(w.issuers[0].ID, ca.SerialOf(c.SerialNumber))
			} else {
				time.Sleep(Lag) // as the other process does
			}
			hold.Release()
			wg.Wait()
			if got := w.says(rec, 0, c); got != xocsp.Revoked {
				t.Errorf("told %v: status %d", told, got)
			}
			if err := s.look(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := w.says(get(s, http.MethodGet, pathOf(q)), 0, c); got != xocsp.Revoked {
				t.Errorf("told %v: status %d afterwards", told, got)
			}
		})
	}
}

// A change of another certificate costs the one who waits a question, and nobody
// a signature.
func TestAnotherCertificatesChangeCostsNoSignature(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.following(nil)
		c := w.leaf(0, 5, Status{State: ca.Issued})
		q := w.query(0, c, crypto.SHA1)
		hold := w.keys.Hold()
		var wg sync.WaitGroup
		wg.Go(func() { w.saysGood(get(s, http.MethodGet, pathOf(q)), 0, c) })
		<-hold.Arrived
		s.Changed(w.issuers[0].ID, ca.SerialOf(c.SerialNumber)) // which is true of any in its shard
		hold.Release()
		wg.Wait()
		reads := w.asked()
		w.saysGood(get(s, http.MethodGet, pathOf(q)), 0, c)
		if w.keys.Signatures() != 1 || w.asked() != reads {
			t.Errorf("%d signatures, %d reads more", w.keys.Signatures(), w.asked()-reads)
		}
	})
}

func TestAClockThatStepsTurnsToTheStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var step atomic.Int64
		s := w.following(func(c *Config) {
			c.Now = func() time.Time { return time.Now().Add(time.Duration(step.Load())) }
		})
		c := w.leaf(0, 5, Status{State: ca.Issued})
		q := w.query(0, c, crypto.SHA1)
		w.saysGood(get(s, http.MethodGet, pathOf(q)), 0, c)
		w.set(0, c, Status{State: ca.Issued, RevokedAt: time.Now().Add(-time.Hour), Reason: ca.Superseded})
		for _, by := range []time.Duration{Lag, time.Hour, -Lag, -time.Hour} {
			step.Store(int64(by))
			if s.following() {
				t.Errorf("%v away, what was seen counts as new", by)
			}
			if got := w.says(get(s, http.MethodGet, pathOf(q)), 0, c); got != xocsp.Revoked {
				t.Errorf("stepped by %v: status %d", by, got)
			}
		}
	})
}

func TestNothingExpiredIsSentFromMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.following(nil)
		c := w.leaf(0, 5, Status{State: ca.Issued})
		q := w.query(0, c, crypto.SHA1)
		get(s, http.MethodGet, pathOf(q))
		a := s.cache.bySpelling(pathOf(q))
		w.keys.Fail(errors.New("no device"))
		time.Sleep(time.Until(a.ends) - time.Nanosecond)
		if err := s.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.saysGood(get(s, http.MethodGet, pathOf(q)), 0, c)
		time.Sleep(time.Nanosecond)
		if rec := get(s, http.MethodGet, pathOf(q)); rec.Body.Len() > 5 {
			t.Errorf("HTTP %d, %d octets", rec.Code, rec.Body.Len())
		}
	})
}

// A database that was taken back to a backup counts its changes anew.
func TestAHeadThatGoesBackForgetsEverything(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.leaf(0, 5, Status{State: ca.Issued})
	id := w.issuers[0].ID
	w.heads[id] = 9
	s := w.following(nil)
	w.ask(s, 0, c)
	w.heads[id] = 3
	w.statuses[id][ca.SerialOf(c.SerialNumber)] = Status{State: ca.Issued, RevokedAt: time.Now(), NotAfter: c.NotAfter}
	if err := s.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := w.ask(s, 0, c); r.Status != xocsp.Revoked {
		t.Errorf("status %d", r.Status)
	}
}

func TestManyChangesAreReadPageByPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.following(nil)
	id := w.issuers[0].ID
	const n = 2*changesPage + 1
	for i := range n {
		w.changed[id][subjectNo(i+1).serial] = int64(i + 1)
	}
	w.heads[id] = n
	last := subject{0, subjectNo(n).serial}
	s.cache.put(last, nil, s.cache.changes(last), &answer{})
	if err := s.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.posts[0].seen != n || s.cache.len() != 0 {
		t.Errorf("seen %d, kept %d", s.posts[0].seen, s.cache.len())
	}
}

// Readers of two processes hear no "good" of a certificate once its revocation
// was acknowledged, whichever process revoked, whatever is signed or renewed
// meanwhile, and while looks fail now and then.
func TestGoodIsNeverHeardAfterAnAcknowledgedRevocation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		one, two := w.server(nil), w.server(nil)
		defer follow(t, one)()
		defer follow(t, two)()
		const certs = 40
		type subject struct {
			cert         *x509.Certificate
			query        []byte
			acknowledged atomic.Bool
		}
		all := make([]*subject, certs)
		for i := range all {
			c := w.leaf(0, int64(i+1), Status{State: ca.Issued})
			all[i] = &subject{cert: c, query: w.query(0, c, crypto.SHA1)}
		}
		var done atomic.Bool
		var wg sync.WaitGroup
		for _, s := range []*Server{one, two} {
			for reader := range 3 {
				wg.Go(func() {
					for n := 0; !done.Load(); n++ {
						x := all[(n*7+reader)%certs]
						already := x.acknowledged.Load()
						rec := get(s, http.MethodGet, pathOf(x.query))
						if got := w.says(rec, 0, x.cert); already && got != xocsp.Revoked {
							t.Errorf("status %d after the acknowledgement", got)
						}
						time.Sleep(time.Duration(1+n%13) * time.Millisecond)
					}
				})
			}
		}
		for i, x := range all {
			time.Sleep(time.Duration(i*37%300) * time.Millisecond)
			w.mu.Lock()
			w.lookErr = nil
			if i%5 == 0 {
				w.lookErr = errors.New("no connection")
			}
			w.mu.Unlock()
			w.set(0, x.cert, Status{State: ca.Issued, RevokedAt: time.Now(), Reason: ca.Superseded})
			wg.Go(func() {
				one.Changed(w.issuers[0].ID, ca.SerialOf(x.cert.SerialNumber))
				time.Sleep(Lag + LagMargin)
				x.acknowledged.Store(true)
			})
		}
		time.Sleep(3 * Lag)
		done.Store(true)
		wg.Wait()
	})
}

// A hit reads the request line and writes what is ready.
func TestAHitAllocatesNothing(t *testing.T) {
	w := newWorld(t)
	s := w.following(nil)
	s.cfg.Now = func() time.Time { return *s.view.began.Load() }
	c := w.leaf(0, 5, Status{State: ca.Issued})
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.RequestURI = pathOf(w.query(0, c, crypto.SHA1))
	s.Handler().ServeHTTP(httptest.NewRecorder(), r)
	m := &mute{header: http.Header{}}
	if n := testing.AllocsPerRun(100, func() {
		if !s.Quick(m, r) {
			t.Fatal("no hit")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if len(m.body) < 100 || m.code != http.StatusOK {
		t.Errorf("HTTP %d, %d octets", m.code, len(m.body))
	}
}

func BenchmarkHit(b *testing.B) {
	w := newWorld(b)
	s := w.server(nil)
	c := w.leaf(0, 5, Status{State: ca.Issued})
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.RequestURI = pathOf(w.query(0, c, crypto.SHA1))
	hit := func(b *testing.B) {
		m := &mute{header: http.Header{}}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if i%10_000 == 0 { // what Run does
				if err := s.look(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			s.Handler().ServeHTTP(m, r)
		}
	}
	b.Run("spelled as before", hit)
	b.Run("another spelling", func(b *testing.B) {
		was := r.RequestURI
		defer func() { r.RequestURI = was }()
		r.RequestURI += string(bytes.Repeat([]byte("="), maxSpelling))
		hit(b)
	})
}

// What is signed for one requester, beside the signature alone.
func BenchmarkSigned(b *testing.B) {
	w := newWorld(b)
	s := w.server(nil)
	q := w.withNonce(0, w.leaf(0, 5, Status{State: ca.Issued}), "a nonce of thirty-two characters")
	b.Run("answer", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if rec := doPost(s, q, requestType); rec.Body.Len() < 100 {
				b.Fatal(rec.Body)
			}
		}
	})
	b.Run("signature alone", func(b *testing.B) {
		d, digest := s.posts[0].delegate.Load(), sha256.Sum256(q)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := d.key.Sign(b.Context(), digest[:], crypto.SHA256); err != nil {
				b.Fatal(err)
			}
		}
	})
}
