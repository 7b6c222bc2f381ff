package ocsp

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	xocsp "golang.org/x/crypto/ocsp"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/keys"
)

func TestStatesBecomeAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	at := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
	for name, c := range map[string]struct {
		status Status
		want   int
		reason int
	}{
		"issued":                   {Status{State: ca.Issued}, xocsp.Good, 0},
		"revoked, no reason":       {Status{State: ca.Issued, RevokedAt: at}, xocsp.Revoked, 0},
		"revoked, key lost":        {Status{State: ca.Issued, RevokedAt: at, Reason: 1}, xocsp.Revoked, 1},
		"revoked, superseded":      {Status{State: ca.Issued, RevokedAt: at, Reason: 4}, xocsp.Revoked, 4},
		"abandoned":                {Status{State: ca.Abandoned, RevokedAt: at, Reason: 5}, xocsp.Revoked, 5},
		"revoked at this instant":  {Status{State: ca.Issued, RevokedAt: time.Now()}, xocsp.Revoked, 0},
		"abandoned, no hour known": {Status{State: ca.Abandoned}, xocsp.Revoked, 0},
	} {
		leaf := w.leaf(0, time.Now().UnixNano(), c.status)
		for _, h := range []crypto.Hash{crypto.SHA1, crypto.SHA256, crypto.SHA384, crypto.SHA512} {
			rec := doPost(s, w.query(0, leaf, h), requestType)
			resp, err := xocsp.ParseResponseForCert(rec.Body.Bytes(), leaf, w.issuers[0].Cert)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if resp.Status != c.want || resp.RevocationReason != c.reason {
				t.Errorf("%s: status %d reason %d", name, resp.Status, resp.RevocationReason)
			}
			if c.want == xocsp.Revoked && !c.status.RevokedAt.IsZero() && !resp.RevokedAt.Equal(c.status.RevokedAt.Truncate(time.Second)) {
				t.Errorf("%s: revoked at %v", name, resp.RevokedAt)
			}
			if resp.ThisUpdate.After(resp.ProducedAt) || resp.RevokedAt.After(resp.ThisUpdate) {
				t.Errorf("%s: revoked %v, this %v, produced %v", name, resp.RevokedAt, resp.ThisUpdate, resp.ProducedAt)
			}
			if resp.IssuerHash != h {
				t.Errorf("%s: asked by %v, answered by %v", name, h, resp.IssuerHash)
			}
		}
	}
}

func TestResponderIsNamedByKeyAndBringsItsCertificate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	resp := w.ask(w.server(nil), 0, w.leaf(0, 5, Status{State: ca.Issued}))
	if len(resp.RawResponderName) != 0 || len(resp.ResponderKeyHash) != 20 {
		t.Error("not by key")
	}
	if resp.Certificate == nil || resp.Certificate.Equal(w.issuers[0].Cert) {
		t.Fatal("no delegate's certificate")
	}
	if resp.NextUpdate.Sub(resp.ThisUpdate) != 4*24*time.Hour {
		t.Errorf("valid for %v", resp.NextUpdate.Sub(resp.ThisUpdate))
	}
}

// Two CAs may well have given the same serial.
func TestSiblingsWithOneSerialAreKeptApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	good := w.leaf(0, 5, Status{State: ca.Issued})
	bad := w.leaf(1, 5, Status{State: ca.Issued, RevokedAt: time.Now().Add(-time.Hour)})
	for range 2 { // signed, then cached
		if r := w.ask(s, 0, good); r.Status != xocsp.Good {
			t.Errorf("the good one: %d", r.Status)
		}
		if r := w.ask(s, 1, bad); r.Status != xocsp.Revoked {
			t.Errorf("the revoked one: %d", r.Status)
		}
	}
}

func TestBothIssuerHashesMustMatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	c := w.leaf(0, 5, Status{State: ca.Issued})
	q, other := w.query(0, c, crypto.SHA256), w.query(1, c, crypto.SHA256)
	a, _ := parseRequest(q)
	b, _ := parseRequest(other)
	for name, der := range map[string][]byte{
		"another's name":       bytes.Replace(q, a.certIDs[0].nameHash, b.certIDs[0].nameHash, 1),
		"another's key":        bytes.Replace(q, a.certIDs[0].keyHash, b.certIDs[0].keyHash, 1),
		"a foreign CA":         bytes.Replace(q, a.certIDs[0].keyHash, make([]byte, 32), 1),
		"a hash of our own":    bytes.Replace(q, []byte{0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 1}, []byte{0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 9}, 1),
		"the other's, asked 0": other,
	} {
		if bytes.Equal(der, q) {
			t.Fatalf("%s: nothing changed", name)
		}
		refused(t, doPost(s, der, requestType), unauthorized)
	}
}

func TestOneAnswerForEveryCertificateAskedAbout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	good := w.leaf(0, 5, Status{State: ca.Issued})
	bad := w.leaf(0, 6, Status{State: ca.Issued, RevokedAt: time.Now().Add(-time.Hour)})
	ids := idsOf(t, w.query(0, good, crypto.SHA1), w.query(0, good, crypto.SHA256), w.query(0, bad, crypto.SHA1))
	body := doPost(s, encodeRequest(t, ids, nil), requestType).Body.Bytes()
	for _, c := range []*x509.Certificate{good, bad} {
		resp, err := xocsp.ParseResponseForCert(body, c, w.issuers[0].Cert)
		if err != nil {
			t.Fatal(err)
		}
		if (resp.Status == xocsp.Good) != (c == good) {
			t.Errorf("serial %v: %d", c.SerialNumber, resp.Status)
		}
	}
	for _, id := range ids {
		if !bytes.Contains(body, id.raw) {
			t.Errorf("CertID %x is not answered", id.raw)
		}
	}
	// One delegate cannot speak for two issuers, nor about what was never issued.
	foreign := idsOf(t, w.query(1, w.leaf(1, 7, Status{State: ca.Issued}), crypto.SHA1))
	refused(t, doPost(s, encodeRequest(t, append(foreign, ids...), nil), requestType), unauthorized)
	ids[2].number = []byte{9}
	refused(t, doPost(s, encodeRequest(t, ids, nil), requestType), unauthorized)
}

func TestNonceComesBackAndIsNeverCached(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	c := w.leaf(0, 5, Status{State: ca.Issued})
	ids := idsOf(t, w.query(0, c, crypto.SHA1))
	for _, n := range []int{1, 16, 23, 32, 33, 128} {
		nonce := bytes.Repeat([]byte{0xa5}, n)
		rec := doPost(s, encodeRequest(t, ids, nonce), requestType)
		if cc := rec.Header().Get("Cache-Control"); cc != "no-store" {
			t.Errorf("Cache-Control %q", cc)
		}
		if _, err := xocsp.ParseResponseForCert(rec.Body.Bytes(), c, w.issuers[0].Cert); err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(rec.Body.Bytes(), nonceExtension(t, nonce)) {
			t.Errorf("a nonce of %d octets did not come back", n)
		}
	}
	for _, n := range []int{0, 129} {
		refused(t, doPost(s, encodeRequest(t, ids, make([]byte, n)), requestType), malformedRequest)
	}
	if w.keys.Signatures() != 6 {
		t.Errorf("%d signatures", w.keys.Signatures())
	}
	// Without a device to sign the nonce, the answer that is there will do.
	w.ask(s, 0, c)
	w.keys.Fail(keys.ErrBusy)
	rec := doPost(s, encodeRequest(t, ids, []byte("0123456789abcdef")), requestType)
	if _, err := xocsp.ParseResponseForCert(rec.Body.Bytes(), c, w.issuers[0].Cert); err != nil || rec.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("busy: %v, %v", err, rec.Header())
	}
}

func TestNonceMayBeLeftOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(func(c *Config) { c.Nonce = IgnoreNonce })
	c := w.leaf(0, 5, Status{State: ca.Issued})
	for range 3 {
		rec := doPost(s, encodeRequest(t, idsOf(t, w.query(0, c, crypto.SHA1)), []byte("0123456789abcdef")), requestType)
		if bytes.Contains(rec.Body.Bytes(), []byte("0123456789abcdef")) || rec.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%v %x", rec.Header(), rec.Body.Bytes())
		}
	}
	if w.keys.Signatures() != 1 {
		t.Errorf("%d signatures", w.keys.Signatures())
	}
}

// The cache holds for each spelling of the question what answers it.
func TestWhoAsksFirstDoesNotDecideTheHash(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	c := w.leaf(0, 5, Status{State: ca.Issued})
	for range 2 {
		for _, h := range []crypto.Hash{crypto.SHA256, crypto.SHA1} {
			q := w.query(0, c, h)
			if body := doPost(s, q, requestType).Body.Bytes(); !bytes.Contains(body, idsOf(t, q)[0].raw) {
				t.Errorf("asked by %v, answered otherwise", h)
			}
		}
	}
	if w.keys.Signatures() != 2 {
		t.Errorf("%d signatures", w.keys.Signatures())
	}
}

func TestGoodNeverOutlivesARevocation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	c := w.leaf(0, 5, Status{State: ca.Issued})
	if w.ask(s, 0, c).Status != xocsp.Good {
		t.Fatal("not good")
	}
	// On whichever replica it happened: only the store knows.
	at := time.Now()
	w.set(0, c, Status{State: ca.Issued, RevokedAt: at, Reason: 4})
	if r := w.ask(s, 0, c); r.Status != xocsp.Revoked || r.RevocationReason != 4 {
		t.Errorf("after the revocation: %d, %d", r.Status, r.RevocationReason)
	}
	w.set(0, c, Status{State: ca.Issued, RevokedAt: at, Reason: 1})
	if r := w.ask(s, 0, c); r.RevocationReason != 1 {
		t.Errorf("after the reason changed: %d", r.RevocationReason)
	}
}

// A signature in flight while the certificate is revoked must not be what the
// next one gets.
func TestSignatureInFlightDoesNotBringGoodBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.server(nil)
		c := w.leaf(0, 5, Status{State: ca.Issued})
		hold := w.keys.Hold()
		var wg sync.WaitGroup
		wg.Go(func() { doPost(s, w.query(0, c, crypto.SHA1), requestType) })
		<-hold.Arrived
		w.set(0, c, Status{State: ca.Issued, RevokedAt: time.Now()})
		hold.Release()
		wg.Wait()
		if r := w.ask(s, 0, c); r.Status != xocsp.Revoked {
			t.Errorf("status %d", r.Status)
		}
	})
}

func TestManyAskingAtOnceCostOneSignature(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.server(nil)
		c := w.leaf(0, 5, Status{State: ca.Issued})
		q := w.query(0, c, crypto.SHA1)
		hold := w.keys.Hold()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if rec := doPost(s, q, requestType); rec.Body.Len() < 100 {
					t.Errorf("%x", rec.Body.Bytes())
				}
			})
		}
		synctest.Wait()
		hold.Release()
		wg.Wait()
		if n := w.keys.Signatures(); n != 1 {
			t.Errorf("%d signatures", n)
		}
	})
}

// A nonce buys a signature of its own, so whoever floods us with them gets no
// more than a part of the device, and the others get theirs.
func TestFloodOfNoncesIsShedAndHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g := newGate(t, gate.Config{Seats: 2, MaxQueue: 16, MaxWait: time.Minute})
		s := w.server(w.guarded(g))
		c := w.leaf(0, 5, Status{State: ca.Issued})
		ids := idsOf(t, w.query(0, c, crypto.SHA1))
		before := w.keys.Signatures()
		hold := w.keys.Hold()
		var wg sync.WaitGroup
		const all = 2 + 16
		recs := make([]*httptest.ResponseRecorder, all+1)
		for i := range all {
			wg.Go(func() { recs[i] = doPost(s, encodeRequest(t, ids, nonceOf(i)), requestType) })
		}
		synctest.Wait()
		if n := len(hold.Arrived); n != 2 {
			t.Errorf("%d signatures at once", n)
		}
		// One too many gets the shared answer, which still is to be signed and
		// goes first, in the place of the last of the others. So that one gets it, too.
		wg.Go(func() { recs[all] = doPost(s, encodeRequest(t, ids, nonceOf(all)), requestType) })
		synctest.Wait()
		if st := g.Stat(); st.Class[gate.Status].Waiting != 1 || st.Class[gate.Anonymous].Waiting != 15 {
			t.Errorf("waiting: %d shared answers, %d single ones", st.Class[gate.Status].Waiting, st.Class[gate.Anonymous].Waiting)
		}
		// About several certificates there is no shared answer.
		later(t, doPost(s, encodeRequest(t, append(ids, ids...), nil), requestType), http.StatusServiceUnavailable, "1")
		hold.Release()
		wg.Wait()
		shed := 0
		for i, rec := range recs {
			if rec.Body.Len() < 100 || rec.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("%v %x", rec.Header(), rec.Body.Bytes())
			}
			if !bytes.Contains(rec.Body.Bytes(), nonceOf(i)) {
				shed++
			}
		}
		if n := w.keys.Signatures() - before; n != all || shed != 2 {
			t.Errorf("%d signatures, %d without their nonce", n, shed)
		}
		if st := g.Stat(); st.InFlight != 0 || st.Queued != 0 || st.PeakInFlight != 2 {
			t.Errorf("seats are lost: %+v", st)
		}
	})
}

func nonceOf(i int) []byte { return fmt.Appendf(nil, "the nonce no. %03d", i) }

func TestWaitingForASeatEndsWithTryLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g := newGate(t, gate.Config{Seats: 1, MaxQueue: 8, MaxWait: time.Minute})
		s := w.server(func(c *Config) { w.guarded(g)(c); c.SignTimeout = time.Second })
		hold := w.keys.Hold()
		defer hold.Release()
		var wg sync.WaitGroup
		var atDevice atomic.Int64
		for n := range int64(30) { // distinct ones, above what may wait
			q := w.query(0, w.leaf(0, n+1, Status{State: ca.Issued}), crypto.SHA1)
			wg.Go(func() {
				rec := doPost(s, q, requestType)
				if rec.Code == http.StatusOK {
					atDevice.Add(1)
					refused(t, rec, tryLater)
					return
				}
				later(t, rec, http.StatusServiceUnavailable, rec.Header().Get("Retry-After"))
				if n, err := strconv.Atoi(rec.Header().Get("Retry-After")); err != nil || n < 1 {
					t.Errorf("Retry-After: %v", rec.Header())
				}
			})
		}
		start := time.Now()
		wg.Wait()
		if took := time.Since(start); took > time.Second {
			t.Errorf("waited for %v", took)
		}
		if n := atDevice.Load(); n != 1 {
			t.Errorf("%d had the device's only seat", n)
		}
		if st := g.Stat(); st.InFlight != 0 || st.Queued != 0 {
			t.Errorf("seats are lost: %+v", st)
		}
	})
}

// A database that neither answers nor refuses must not keep clients longer than
// they have patience.
func TestStoreThatHangsMeansTryLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.server(nil)
		c := w.leaf(0, 5, Status{State: ca.Issued})
		w.ask(s, 0, c)
		w.frozen.Store(true)
		start := time.Now()
		refused(t, doPost(s, w.query(0, c, crypto.SHA1), requestType), tryLater)
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("waited for %v", took)
		}
		w.frozen.Store(false)
		w.ask(s, 0, c)
	})
}

func TestOldAnswerServesWhileTheDeviceIsAwayButNotPastItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.server(nil)
		c := w.leaf(0, 5, Status{State: ca.Issued})
		first := w.ask(s, 0, c)
		time.Sleep(35 * time.Hour)
		if !w.ask(s, 0, c).ProducedAt.Equal(first.ProducedAt) {
			t.Error("signed anew before half of its life")
		}
		time.Sleep(14 * time.Hour)
		second := w.ask(s, 0, c)
		if !second.ProducedAt.After(first.ProducedAt) {
			t.Error("not signed anew after half of its life")
		}
		w.keys.Fail(errors.New("device away"))
		time.Sleep(95 * time.Hour)
		if !w.ask(s, 0, c).ProducedAt.Equal(second.ProducedAt) {
			t.Error("the old answer is not sent")
		}
		time.Sleep(time.Hour)
		rec := doPost(s, w.query(0, c, crypto.SHA1), requestType)
		if rec.Body.Len() != 5 {
			t.Error("sent past its nextUpdate")
		}
		w.keys.Fail(nil)
		w.ask(s, 0, c)
	})
}

func TestNextUpdateStopsAtLeafAndDelegate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.lifetime = 48 * time.Hour
		s := w.server(nil)
		end := time.Now().Add(24 * time.Hour).UTC()
		if r := w.ask(s, 0, w.leaf(0, 5, Status{State: ca.Issued, NotAfter: end})); !r.NextUpdate.Equal(end) {
			t.Errorf("leaf ends %v, answer %v", end, r.NextUpdate)
		}
		r := w.ask(s, 0, w.leaf(0, 6, Status{State: ca.Issued}))
		if !r.NextUpdate.Equal(r.Certificate.NotAfter) {
			t.Errorf("delegate ends %v, answer %v", r.Certificate.NotAfter, r.NextUpdate)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, change := range map[string]func(*Config){
		"no issuers":       func(c *Config) { c.Issuers = nil },
		"an issuer twice":  func(c *Config) { c.Issuers = append(c.Issuers, c.Issuers[0]) },
		"no source":        func(c *Config) { c.Source = nil },
		"too short":        func(c *Config) { c.Validity = time.Hour },
		"too long":         func(c *Config) { c.Validity = 11 * 24 * time.Hour },
		"refresh too late": func(c *Config) { c.RefreshMargin = time.Hour },
		"refresh always":   func(c *Config) { c.RefreshMargin = 4 * 24 * time.Hour },
		"negative timeout": func(c *Config) { c.SignTimeout = -1 },
		"negative cache":   func(c *Config) { c.CacheSize = -1 },
	} {
		cfg := w.config()
		change(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestMetricsCountAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	reg := prometheus.NewRegistry()
	s := w.server(func(c *Config) { c.Registerer = reg })
	w.ask(s, 0, w.leaf(0, 5, Status{State: ca.Issued}))
	get(s, http.MethodGet, "/ocsp/")
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	for _, f := range families {
		seen = append(seen, f.GetName())
	}
	for _, want := range []string{"secsy_ocsp_answers_total", "secsy_ocsp_signatures_total", "secsy_ocsp_cached_responses", "secsy_ocsp_responder_not_after_seconds"} {
		if !strings.Contains(strings.Join(seen, " "), want) {
			t.Errorf("no %s among %v", want, seen)
		}
	}
}
