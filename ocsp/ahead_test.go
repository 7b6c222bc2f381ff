package ocsp

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	xocsp "golang.org/x/crypto/ocsp"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/keys"
)

// The world is a Shelf, too.

func (w *world) dueLocked(serial ca.Serial) {
	for _, h := range []Hash{SHA1, SHA256} {
		if a, ok := w.ahead[h][serial]; ok {
			a.RefreshAt = time.Time{}
			w.ahead[h][serial] = a
		}
	}
}

func (w *world) Ahead(_ context.Context, serial ca.Serial, h Hash) (Ahead, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a, ok := w.ahead[h][serial]
	if !ok {
		return a, ca.ErrNotFound
	}
	for _, der := range w.history {
		if c, err := x509.ParseCertificate(der); err == nil && ca.SerialOf(c.SerialNumber) == a.Responder {
			a.ResponderDER = der
		}
	}
	return a, nil
}

func (w *world) Due(_ context.Context, h Hash, now time.Time, limit int) ([]Assigned, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Assigned
	for _, c := range w.assigned {
		if a, ok := w.ahead[h][c.Serial]; ok && !a.RefreshAt.After(now) {
			c.Signed, c.RefreshAt = true, a.RefreshAt
			out = append(out, c)
		}
	}
	slices.SortStableFunc(out, func(a, b Assigned) int { return a.RefreshAt.Compare(b.RefreshAt) })
	return out[:min(limit, len(out))], nil
}

func (w *world) Assigned(_ context.Context, h Hash, after Place, limit int) ([]Assigned, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Assigned
	for _, c := range w.assigned {
		if n := c.CreatedAt.Compare(after.CreatedAt); n > 0 || n == 0 && c.Serial > after.Serial {
			_, c.Signed = w.ahead[h][c.Serial]
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b Assigned) int {
		if n := a.CreatedAt.Compare(b.CreatedAt); n != 0 {
			return n
		}
		return strings.Compare(string(a.Serial), string(b.Serial))
	})
	return out[:min(limit, len(out))], nil
}

func (w *world) Keep(_ context.Context, h Hash, list []Ahead) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range list {
		for _, c := range w.assigned {
			if c.Serial == a.Serial && c.StatusSeq != a.StatusSeq {
				a.RefreshAt = time.Time{}
			}
		}
		w.ahead[h][a.Serial] = a
	}
	return nil
}

func (w *world) Drop(_ context.Context, h Hash, list []ca.Serial) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range list {
		delete(w.ahead[h], s)
	}
	return nil
}

func (w *world) PutOff(_ context.Context, h Hash, list []ca.Serial, until time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range list {
		a := w.ahead[h][s]
		a.RefreshAt = until
		w.ahead[h][s] = a
	}
	return nil
}

func (w *world) kept(h Hash) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.ahead[h])
}

// aheadFor has answers signed ahead by those hashes.
func aheadFor(hashes ...Hash) func(*Config) {
	return func(c *Config) { c.Ahead = hashes }
}

func (w *world) leaves(i, n int, from int64) []*x509.Certificate {
	w.t.Helper()
	out := make([]*x509.Certificate, 0, n)
	for k := range int64(n) {
		out = append(out, w.leaf(i, from+k, Status{State: ca.Issued}))
	}
	return out
}

// judged asks by hash and has another implementation read the answer.
func (w *world) judged(s *Server, i int, c *x509.Certificate, h crypto.Hash) *xocsp.Response {
	w.t.Helper()
	rec := doPost(s, w.query(i, c, h), requestType)
	resp, err := xocsp.ParseResponseForCert(rec.Body.Bytes(), c, w.issuers[i].Cert)
	if err != nil {
		w.t.Fatalf("serial %v by %v: %x: %v", c.SerialNumber, h, rec.Body.Bytes(), err)
	}
	return resp
}

// TestAllInForceAreAnsweredWithoutTheDeviceUntilNextUpdate: all states, both
// issuers and both hashes, and also after a restart without the device; and never
// past nextUpdate.
func TestAllInForceAreAnsweredWithoutTheDeviceUntilNextUpdate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.lifetime = 90 * 24 * time.Hour
		long := time.Now().Add(60 * 24 * time.Hour)
		good := append(w.leaves(0, 3, 100), w.leaf(0, 0x80, Status{State: ca.Issued, NotAfter: long}))
		revoked := w.leaf(0, 201, Status{State: ca.Issued, RevokedAt: time.Now(), Reason: ca.Superseded})
		abandoned := w.leaf(0, 202, Status{State: ca.Abandoned, RevokedAt: time.Now(), Reason: ca.CessationOfOperation})
		sibling := w.leaf(1, 203, Status{State: ca.Issued})
		w.leaf(0, 204, Status{State: ca.Void})
		w.leaf(0, 205, Status{State: ca.Issued, NotAfter: time.Now().Add(-time.Hour)})
		pending := w.leaf(0, 206, Status{State: ca.Pending})
		s := w.server(aheadFor(SHA1, SHA256))
		stop := runServer(t, s)
		time.Sleep(3 * aheadOverlap)
		w.set(0, pending, Status{State: ca.Issued}) // it comes late
		time.Sleep(time.Minute)
		stop()
		if a, b := w.kept(SHA1), w.kept(SHA256); a != 8 || b != 8 {
			t.Fatalf("%d and %d signatures for 8 certificates", a, b)
		}
		signed := w.keys.Signatures()
		w.keys.Away(time.Minute)
		again, err := New(func() Config { c := w.config(); c.Ahead = []Hash{SHA1, SHA256}; return c }())
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Prepare(t.Context()); !errors.Is(err, keys.ErrBusy) {
			t.Fatalf("preparing: %v", err)
		}
		for _, s := range []*Server{s, again} {
			for _, h := range []crypto.Hash{crypto.SHA1, crypto.SHA256} {
				for _, c := range append(good, pending) {
					if r := w.judged(s, 0, c, h); r.Status != xocsp.Good || r.IssuerHash != h {
						t.Errorf("%v: %d", c.SerialNumber, r.Status)
					}
				}
				if r := w.judged(s, 0, revoked, h); r.Status != xocsp.Revoked || r.RevocationReason != int(ca.Superseded) {
					t.Errorf("revoked: %d %d", r.Status, r.RevocationReason)
				}
				if r := w.judged(s, 0, abandoned, h); r.Status != xocsp.Revoked {
					t.Errorf("abandoned: %d", r.Status)
				}
				if r := w.judged(s, 1, sibling, h); r.Status != xocsp.Good {
					t.Errorf("sibling: %d", r.Status)
				}
			}
		}
		if n := w.keys.Signatures(); n != signed {
			t.Errorf("%d signatures while the device was away", n-signed)
		}
		end := w.judged(s, 0, good[0], crypto.SHA1).NextUpdate
		time.Sleep(time.Until(end) - time.Second)
		w.judged(again, 0, good[0], crypto.SHA1)
		time.Sleep(time.Second)
		for _, s := range []*Server{s, again} {
			if rec := doPost(s, w.query(0, good[0], crypto.SHA1), requestType); !bytes.Equal(rec.Body.Bytes(), tryLater.der()) {
				t.Errorf("past nextUpdate: %x", rec.Body.Bytes())
			}
		}
	})
}

// TestARevocationOverrulesWhatWasSignedAhead: at once, and with a signature of
// its own soon; without the device there is no answer, and never the old one.
func TestARevocationOverrulesWhatWasSignedAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		one, two := w.leaf(0, 5, Status{State: ca.Issued}), w.leaf(0, 6, Status{State: ca.Issued})
		s := w.server(aheadFor(SHA1))
		stop := runServer(t, s)
		time.Sleep(time.Minute)
		at := time.Now()
		w.keys.Away(time.Second)
		w.set(0, one, Status{State: ca.Issued, RevokedAt: at, Reason: ca.KeyCompromise})
		if rec := doPost(s, w.query(0, one, crypto.SHA1), requestType); !bytes.Equal(rec.Body.Bytes(), tryLater.der()) {
			t.Errorf("without the device: %x", rec.Body.Bytes())
		}
		w.judged(s, 0, two, crypto.SHA1)
		w.keys.Back()
		if r := w.judged(s, 0, one, crypto.SHA1); r.Status != xocsp.Revoked {
			t.Errorf("status %d", r.Status)
		}
		time.Sleep(time.Minute)
		stop()
		w.keys.Away(time.Second)
		again := w.restarted(aheadFor(SHA1))
		if r := w.judged(again, 0, one, crypto.SHA1); r.Status != xocsp.Revoked || r.RevocationReason != int(ca.KeyCompromise) {
			t.Errorf("signed ahead: %d %d", r.Status, r.RevocationReason)
		}
	})
}

// restarted is a server that has found no key yet.
func (w *world) restarted(change func(*Config)) *Server {
	w.t.Helper()
	cfg := w.config()
	change(&cfg)
	s, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// TestSignaturesAreMadeAnewByHalfLifeSpreadOverTime: what was signed in one go
// comes due little by little, always before half of its life is over, and
// nothing is signed more often than that needs.
func TestSignaturesAreMadeAnewByHalfLifeSpreadOverTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 40
		w := newWorld(t)
		w.lifetime = 90 * 24 * time.Hour
		leaves := w.leaves(0, n, 100)
		s := w.server(aheadFor(SHA256))
		stop := runServer(t, s)
		time.Sleep(47 * time.Hour)
		first := w.keys.Signatures()
		if first <= n || first >= 2*n+2 {
			t.Errorf("%d signatures for %d certificates after 47 hours", first, n)
		}
		time.Sleep(10 * 24 * time.Hour)
		synctest.Wait()
		var oldest, youngest time.Duration
		w.mu.Lock()
		youngest = time.Hour * 1000
		for _, a := range w.ahead[SHA256] {
			age := time.Since(a.ProducedAt)
			oldest, youngest = max(oldest, age), min(youngest, age)
		}
		w.mu.Unlock()
		if oldest > 48*time.Hour+time.Minute {
			t.Errorf("one is %v old", oldest)
		}
		if oldest-youngest < 12*time.Hour {
			t.Errorf("all were signed within %v", oldest-youngest)
		}
		if total := w.keys.Signatures() - first; total > n*10*24/36+n {
			t.Errorf("%d signatures in 10 days", total)
		}
		stop()
		w.judged(s, 0, leaves[0], crypto.SHA256)
	})
}

// TestSigningAheadKeepsToItsRate: and to its place behind all else.
func TestSigningAheadKeepsToItsRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.leaves(0, 120, 100)
		var purposes []keys.Purpose
		n := &notary{KeyStore: w.keys, veto: func(ctx context.Context) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			purposes = append(purposes, keys.PurposeOf(ctx))
			return nil
		}}
		stop := runServer(t, w.server(func(c *Config) { c.Ahead, c.AheadRate, c.Keys = []Hash{SHA1}, 2, n }))
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := w.keys.Signatures(); got < 40 || got > 62 {
			t.Errorf("%d signatures in 30 s at 2 a second", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := w.kept(SHA1); got != 120 {
			t.Errorf("%d of 120 signatures", got)
		}
		stop()
		for _, p := range purposes {
			if p != keys.ForAhead {
				t.Fatalf("signed for purpose %d", p)
			}
		}
	})
}

// TestABusyDeviceGetsNoSignaturesAhead: what the guard turns away is tried again
// later, and nothing is lost.
func TestABusyDeviceGetsNoSignaturesAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 10, MaxWait: time.Second})
		w.leaves(0, 30, 100)
		s := w.server(func(c *Config) { aheadFor(SHA1)(c); w.guarded(g)(c) })
		seat, err := g.AcquireSeat(t.Context(), gate.Issuance, "x")
		if err != nil {
			t.Fatal(err)
		}
		stop := runServer(t, s)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := w.kept(SHA1); got != 0 {
			t.Errorf("%d signatures without a seat", got)
		}
		seat.Release()
		time.Sleep(2 * time.Minute)
		stop()
		if got := w.kept(SHA1); got != 30 {
			t.Errorf("%d of 30 signatures", got)
		}
	})
}

func TestTwoReplicasSignAheadOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.leaves(0, 500, 100)
		for range 2 {
			defer runServer(t, w.server(aheadFor(SHA1, SHA256)))()
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := w.keys.Signatures(); got != 1000 {
			t.Errorf("%d signatures for 500 certificates by two hashes", got)
		}
	})
}

// TestWhatTheShelfHasWrongIsNeverSent: a signature that does not verify is none.
func TestWhatTheShelfHasWrongIsNeverSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		leaf := w.leaf(0, 5, Status{State: ca.Issued})
		stop := runServer(t, w.server(aheadFor(SHA1)))
		time.Sleep(time.Minute)
		stop()
		kept := w.ahead[SHA1]["05"]
		other := newWorld(t) // a responder that another CA certified
		other.server(nil)
		for name, spoil := range map[string]func(a *Ahead){
			"another time":      func(a *Ahead) { a.NextUpdate = a.NextUpdate.Add(time.Hour) },
			"another signature": func(a *Ahead) { a.Signature = slices.Clone(a.Signature); a.Signature[10] ^= 1 },
			"no signature":      func(a *Ahead) { a.Signature = nil },
			"no responder":      func(a *Ahead) { a.Responder = "77" },
		} {
			a := kept
			spoil(&a)
			w.ahead[SHA1]["05"] = a
			before := w.keys.Signatures()
			w.judged(w.server(aheadFor(SHA1)), 0, leaf, crypto.SHA1)
			if w.keys.Signatures() != before+1 {
				t.Errorf("%s: taken from the shelf", name)
			}
		}
		w.ahead[SHA1]["05"] = kept
		before := w.keys.Signatures()
		first := w.judged(w.server(aheadFor(SHA1)), 0, leaf, crypto.SHA1)
		if w.keys.Signatures() != before {
			t.Error("signed though it is on the shelf")
		}
		// A revoked responder's word counts for nothing.
		w.set(0, first.Certificate, Status{State: ca.Issued, RevokedAt: time.Now(), Reason: ca.KeyCompromise})
		if r := w.judged(w.server(aheadFor(SHA1)), 0, leaf, crypto.SHA1); r.Certificate.Equal(first.Certificate) {
			t.Error("a revoked responder speaks")
		}
	})
}

// TestWhatHasEndedOnTheShelfIsSignedAnew, as when nothing was signed ahead for days.
func TestWhatHasEndedOnTheShelfIsSignedAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		leaf := w.leaf(0, 5, Status{State: ca.Issued})
		s := w.server(aheadFor(SHA1))
		stop := runServer(t, s)
		time.Sleep(time.Minute)
		stop()
		kept := w.ahead[SHA1]["05"]
		kept.RefreshAt = kept.NextUpdate.Add(time.Hour)
		w.ahead[SHA1]["05"] = kept
		time.Sleep(time.Until(kept.NextUpdate) - time.Second)
		w.judged(s, 0, leaf, crypto.SHA1)
		before := w.keys.Signatures()
		time.Sleep(time.Second)
		if w.judged(w.server(aheadFor(SHA1)), 0, leaf, crypto.SHA1); w.keys.Signatures() != before+1 {
			t.Errorf("%d signatures", w.keys.Signatures()-before)
		}
	})
}

// TestUnusualSpellingsOfACertIDAreSignedForWhoAsks: the shelf has the usual one,
// and the response repeats the request's.
func TestUnusualSpellingsOfACertIDAreSignedForWhoAsks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		leaf := w.leaf(0, 5, Status{State: ca.Issued})
		s := w.server(aheadFor(SHA1))
		stop := runServer(t, s)
		time.Sleep(time.Minute)
		stop()
		id := idsOf(t, w.query(0, leaf, crypto.SHA1))[0]
		bare := tlv(0x30, []byte{0x30, 7, 6, 5, 0x2b, 0x0e, 3, 2, 0x1a}, tlv(4, id.nameHash), tlv(4, id.keyHash), []byte{2, 1, 5})
		before := w.keys.Signatures()
		rec := doPost(s, tlv(0x30, tlv(0x30, tlv(0x30, tlv(0x30, bare)))), requestType)
		if rec.Code != http.StatusOK || !bytes.Contains(rec.Body.Bytes(), bare) || w.keys.Signatures() != before+1 {
			t.Errorf("HTTP %d %x, %d signatures", rec.Code, rec.Body.Bytes(), w.keys.Signatures()-before)
		}
		if body := doPost(s, w.query(0, leaf, crypto.SHA1), requestType).Body.Bytes(); !bytes.Contains(body, id.raw) || w.keys.Signatures() != before+1 {
			t.Errorf("the usual one: %x", body)
		}
	})
}

// TestExpiredCertificatesLeaveTheShelf bounds it by what is in force.
func TestExpiredCertificatesLeaveTheShelf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.leaf(0, 5, Status{State: ca.Issued, NotAfter: time.Now().Add(time.Hour)})
		w.leaf(0, 6, Status{State: ca.Issued, NotAfter: time.Now().Add(100 * time.Hour)})
		reg := prometheus.NewRegistry()
		defer runServer(t, w.server(func(c *Config) { aheadFor(SHA1)(c); c.Registerer = reg }))()
		time.Sleep(59 * time.Minute)
		synctest.Wait()
		if n := w.kept(SHA1); n != 2 {
			t.Errorf("%d signatures", n)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := w.kept(SHA1); n != 1 {
			t.Errorf("%d signatures after one has expired", n)
		}
		if !strings.Contains(w.logs.String(), "signed ahead for all certificates in force") {
			t.Errorf("no word of it in the log: %s", w.logs.String())
		}
	})
}
