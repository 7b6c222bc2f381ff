package crl

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/ca"
)

// sharded gives the issuer of w n shards.
func (w *world) sharded(n int) {
	w.t.Helper()
	var err error
	w.issuer.CRLShards, err = OpenShards(w.t.Context(), w, w.issuer.ID, n, w.issuer.CRLURL, NeededUntil(time.Now(), 48*time.Hour))
	if err != nil {
		w.t.Fatal(err)
	}
}

// withDeltas has deltas every hour to a list every ten.
func (w *world) withDeltas(c *Config) {
	c.Period, c.Life = 10*time.Hour, 48*time.Hour
	c.Plans = map[ca.IssuerID]Plan{w.issuer.ID: {Delta: time.Hour}}
}

// served parses what s has of a series, verified.
func (w *world) served(s *Server, of Series) *x509.RevocationList {
	w.t.Helper()
	sh := s.shelf(of.Scope)
	if sh == nil {
		w.t.Fatalf("nothing of %s", of.Scope)
	}
	l, ok := sh.slot(of.Delta).take()
	if !ok {
		w.t.Fatalf("no CRL of %v", of)
	}
	defer func() { _ = l.file.body.Release() }()
	list, err := x509.ParseRevocationList(bytesOf(w.t, l.file.body))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := list.CheckSignatureFrom(w.issuer.Cert); err != nil {
		w.t.Fatal(err)
	}
	return list
}

func (w *world) scope(shard int) Scope { return Scope{w.issuer.ID, shard} }

func ext(l *x509.RevocationList, id asn1.ObjectIdentifier) *pkix.Extension {
	i := slices.IndexFunc(l.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(id) })
	if i < 0 {
		return nil
	}
	return &l.Extensions[i]
}

// A list and the certificates on it say one address, octet for octet; the list
// of all says none (smallstep/certificates#2250, rustls/webpki#228).
func TestShardSaysTheAddressOfItsCertificates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sharded(2)
	s := w.prepared(nil)
	for _, shard := range w.issuer.CRLShards {
		idp := ext(w.served(s, Series{Scope: w.scope(shard.ID)}), oidDistributionPoint)
		if idp == nil || !idp.Critical {
			t.Fatalf("shard %d: %+v", shard.ID, idp)
		}
		var point struct {
			Point struct {
				FullName []asn1.RawValue `asn1:"tag:0"`
			} `asn1:"tag:0"`
			OnlyUsers bool `asn1:"tag:1,optional"`
			OnlyCAs   bool `asn1:"tag:2,optional"`
		}
		if rest, err := asn1.Unmarshal(idp.Value, &point); err != nil || len(rest) > 0 {
			t.Fatalf("%x: %v", idp.Value, err)
		}
		if names := point.Point.FullName; len(names) != 1 || names[0].Tag != 6 || string(names[0].Bytes) != shard.URL || !point.OnlyUsers || point.OnlyCAs {
			t.Errorf("shard %d: %+v, want %s", shard.ID, point, shard.URL)
		}
	}
	if idp := ext(w.current(s), oidDistributionPoint); idp != nil {
		t.Errorf("the list of all has a scope: %x", idp.Value)
	}
}

func TestRevocationTouchesItsShardAndTheListOfAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.sharded(3)
		s := w.prepared(nil)
		defer run(t, s)()
		synctest.Wait()
		before := map[int]*big.Int{}
		for shard := range 4 {
			before[shard] = w.served(s, Series{Scope: w.scope(shard)}).Number
		}
		w.revokeIn(2, "05", ca.Superseded, time.Now().Add(time.Hour))
		s.Trigger(w.issuer.ID)
		time.Sleep(20 * time.Second)
		for shard := range 4 {
			l := w.served(s, Series{Scope: w.scope(shard)})
			own := shard == 0 || shard == 2
			if listed := len(l.RevokedCertificateEntries) == 1; listed != own || l.Number.Cmp(before[shard]) > 0 != own {
				t.Errorf("shard %d: number %d after %d, %v", shard, l.Number, before[shard], serials(l))
			}
		}
	})
}

// openssl/openssl#31040, #31297, xipki#175.
func TestDeltaIsMarkedAndOfItsBase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.sharded(1)
		s := w.prepared(w.withDeltas)
		defer run(t, s)()
		time.Sleep(30 * time.Minute)
		w.revokeIn(1, "05", ca.Superseded, time.Now().Add(time.Hour))
		s.Trigger(w.issuer.ID)
		time.Sleep(time.Minute)
		for shard := range 2 {
			scope := w.scope(shard)
			complete, delta := w.served(s, Series{Scope: scope}), w.served(s, Series{scope, true})
			base := w.kept(scope).scheduled
			indicator := ext(delta, oidDeltaIndicator)
			if indicator == nil || !indicator.Critical {
				t.Fatalf("shard %d: indicator %+v", shard, indicator)
			}
			var number *big.Int
			if _, err := asn1.Unmarshal(indicator.Value, &number); err != nil || number.Int64() != int64(base.Number) || number.Cmp(delta.Number) >= 0 {
				t.Errorf("shard %d: delta %d to %d, want to %d", shard, delta.Number, number, base.Number)
			}
			if complete.Number.Int64() == int64(base.Number) || delta.Number.Cmp(complete.Number) <= 0 || !delta.ThisUpdate.After(complete.ThisUpdate) {
				t.Errorf("shard %d: complete %d, delta %d", shard, complete.Number, delta.Number)
			}
			if delta.NextUpdate.After(base.NextUpdate) || !delta.NextUpdate.After(delta.ThisUpdate) {
				t.Errorf("shard %d: the delta ends at %v, its base at %v", shard, delta.NextUpdate, base.NextUpdate)
			}
			if a, b := ext(complete, oidDistributionPoint), ext(delta, oidDistributionPoint); (a == nil) != (b == nil) || a != nil && !bytes.Equal(a.Value, b.Value) {
				t.Errorf("shard %d: scopes differ: %v, %v", shard, a, b)
			}
			freshest := ext(complete, oidFreshest)
			if freshest == nil || freshest.Critical || !bytes.Contains(freshest.Value, []byte("/crl/"+scope.String()+"/delta.crl")) {
				t.Errorf("shard %d: freshestCRL %+v", shard, freshest)
			}
			if ext(delta, oidFreshest) != nil || ext(complete, oidDeltaIndicator) != nil {
				t.Errorf("shard %d: complete and delta are mixed up", shard)
			}
			if got := serials(delta); !slices.Equal(got, []ca.Serial{"05"}) {
				t.Errorf("shard %d: delta lists %v", shard, got)
			}
		}
	})
}

func TestDeltaEndsNoLaterThanItsBase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.prepared(w.withDeltas)
	sh, now := s.shelf(w.scope(0)), time.Now()
	h := Head{Base: Base{Number: 5, NextUpdate: now.Add(90 * time.Minute)}}
	if got := s.nextUpdate(sh, Series{Delta: true}, h, now); !got.Equal(h.Base.NextUpdate) {
		t.Errorf("until %v, the base until %v", got, h.Base.NextUpdate)
	}
	h.Base.NextUpdate = now
	if due := s.deltaDueAt(sh, h); due != never {
		t.Errorf("a delta to a base that has ended is due at %v", due)
	}
}

// Whoever has a complete list that the delta may be put upon knows, with both,
// what is revoked: RFC 5280 §5.2.4 for every list from the base on.
func TestDeltaUponAnyListFromItsBaseOnSaysWhatIsRevoked(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			w, rnd := newWorld(t), rand.New(rand.NewPCG(seed, 1))
			s := w.prepared(w.withDeltas)
			defer run(t, s)()
			completes, truth := map[Number]map[ca.Serial]int{}, map[ca.Serial]int{}
			reasons := []ca.Reason{ca.CertificateHold, ca.Superseded, ca.KeyCompromise}
			deltas := 0
			for range 60 {
				serial := ca.Serial(fmt.Sprintf("01%02x", rnd.IntN(12)))
				switch was, ok := truth[serial]; {
				case ok && was == int(ca.CertificateHold) && rnd.IntN(2) == 0:
					w.revoke(serial, ca.RemoveFromCRL, time.Now().Add(1000*time.Hour))
					delete(truth, serial)
				case ok && was == int(ca.KeyCompromise):
				default:
					reason := reasons[rnd.IntN(3)]
					w.revoke(serial, reason, time.Now().Add(1000*time.Hour))
					truth[serial] = int(reason)
				}
				s.Trigger(w.issuer.ID)
				time.Sleep(time.Duration(1+rnd.IntN(100)) * time.Minute)
				complete, delta := w.served(s, Series{Scope: w.scope(0)}), w.served(s, Series{w.scope(0), true})
				completes[Number(complete.Number.Int64())] = entriesOf(complete)
				base := w.kept(w.scope(0)).delta.Base
				if Number(delta.Number.Int64()) < Number(complete.Number.Int64()) {
					continue // it is not put upon this one
				}
				for number, have := range completes {
					if number < base || int64(number) >= delta.Number.Int64() {
						continue
					}
					deltas++
					if got := upon(have, delta); !maps.Equal(got, w.statuses()) {
						t.Fatalf("seed %d: delta %d upon %d: %v, want %v", seed, delta.Number, number, got, w.statuses())
					}
				}
			}
			if deltas < 40 {
				t.Errorf("only %d deltas were put upon lists", deltas)
			}
		})
	}
}

func entriesOf(l *x509.RevocationList) map[ca.Serial]int {
	out := map[ca.Serial]int{}
	for _, e := range l.RevokedCertificateEntries {
		out[ca.SerialOf(e.SerialNumber)] = e.ReasonCode
	}
	return out
}

// upon applies a delta as RFC 5280 §6.3.3 has it.
func upon(complete map[ca.Serial]int, delta *x509.RevocationList) map[ca.Serial]int {
	out := maps.Clone(complete)
	for serial, reason := range entriesOf(delta) {
		if reason == int(ca.RemoveFromCRL) {
			delete(out, serial)
		} else {
			out[serial] = reason
		}
	}
	return out
}

// statuses is what is revoked by now.
func (w *world) statuses() map[ca.Serial]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[ca.Serial]int{}
	for s, r := range w.revoked {
		if !r.RevokedAt.IsZero() {
			out[s] = int(r.Reason)
		}
	}
	return out
}

// letsencrypt/boulder#8096: a new reason is on the next list, and once.
func TestNewReasonIsOnEveryListOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.sharded(2)
		s := w.prepared(w.withDeltas)
		defer run(t, s)()
		for _, reason := range []ca.Reason{ca.Superseded, ca.KeyCompromise} {
			w.revokeIn(1, "05", reason, time.Now().Add(100*time.Hour))
			s.Trigger(w.issuer.ID)
			time.Sleep(20 * time.Minute)
			for _, of := range []Series{{w.scope(0), false}, {w.scope(1), false}, {w.scope(0), true}, {w.scope(1), true}} {
				l := w.served(s, of)
				if n := len(l.RevokedCertificateEntries); n != 1 || l.RevokedCertificateEntries[0].ReasonCode != int(reason) {
					t.Errorf("%v: %+v, want reason %v", of, l.RevokedCertificateEntries, reason)
				}
			}
		}
	})
}

// A revocation that is stamped before the last scheduled list, and of a
// certificate that had expired by then, is listed all the same: what was seen
// goes by number.
func TestLateRevocationOfAnExpiredCertificateIsListedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.prepared(func(c *Config) { c.Period = 10 * time.Hour })
		defer run(t, s)()
		time.Sleep(time.Hour)
		w.revoke("05", ca.KeyCompromise, time.Now().Add(-5*time.Hour))
		w.mu.Lock()
		r := w.revoked["05"]
		r.RevokedAt = time.Now().Add(-6 * time.Hour)
		w.revoked["05"] = r
		w.mu.Unlock()
		s.Trigger(w.issuer.ID)
		time.Sleep(10 * time.Hour) // past one scheduled list
		if got := serials(w.current(s)); !slices.Equal(got, []ca.Serial{"05"}) {
			t.Errorf("%v", got)
		}
		time.Sleep(10 * time.Hour)
		if got := serials(w.current(s)); len(got) > 0 {
			t.Errorf("%v on the second scheduled list", got)
		}
	})
}

func TestExpiredStayWhereTheListSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const kept = 30 * time.Hour
		s := w.prepared(func(c *Config) {
			c.Period, c.Plans = 10*time.Hour, map[ca.IssuerID]Plan{w.issuer.ID: {KeepExpired: kept}}
		})
		defer run(t, s)()
		expiry := time.Now().Add(time.Hour)
		w.revoke("05", ca.Superseded, expiry)
		for range 8 {
			time.Sleep(10 * time.Hour)
			l := w.current(s)
			e := ext(l, oidExpiredOnCRL)
			if e == nil || e.Critical {
				t.Fatalf("expiredCertsOnCRL %+v", e)
			}
			var since time.Time
			if _, err := asn1.UnmarshalWithParams(e.Value, &since, "generalized"); err != nil {
				t.Fatal(err)
			}
			if listed := len(l.RevokedCertificateEntries) > 0; !expiry.Before(since) && !listed || expiry.Before(since.Add(-10*time.Hour)) && listed {
				t.Errorf("since %v, expired at %v, listed %t", since, expiry, listed)
			}
		}
	})
}

// dogtagpki/pki#138, vyos/vyos-1x#5195.
func TestNumbersGrowOverClocksAndReplicas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sharded(1)
	start := time.Now()
	last := map[Scope]Number{}
	for i, clock := range []time.Duration{0, time.Hour, -24 * time.Hour, -24 * time.Hour, time.Minute, -100 * 24 * time.Hour} {
		// Each time another replica, whose clock is another one, takes over.
		w.revokeIn(1, ca.Serial(fmt.Sprintf("01%02x", i)), ca.Superseded, start.Add(time.Hour))
		s := w.prepared(func(c *Config) { w.withDeltas(c); c.Now = func() time.Time { return start.Add(clock) } })
		for shard := range 2 {
			scope := w.scope(shard)
			for _, delta := range []bool{false, true} {
				n := Number(w.served(s, Series{scope, delta}).Number.Int64())
				if n <= last[scope] {
					t.Errorf("step %d, %s: number %d after %d", i, scope, n, last[scope])
				}
				last[scope] = n
			}
		}
	}
}

func TestShardIsServedAsLongAsCertificatesNameIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.sharded(2)
		const life = 48 * time.Hour
		// The number of shards was changed to one.
		w.issuer.CRLShards = w.issuer.CRLShards[:1]
		s := w.prepared(func(c *Config) { c.Life = life })
		defer run(t, s)()
		get := func(path string) int {
			rec := httptest.NewRecorder()
			s.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, http.NoBody))
			return rec.Code
		}
		name := "/crl/" + string(w.issuer.ID)
		time.Sleep(life)
		if one, two := get(name+"/1.crl"), get(name+"/2.crl"); one != 200 || two != 200 {
			t.Errorf("while certificates name both: %d, %d", one, two)
		}
		time.Sleep(3 * 24 * time.Hour)
		if one, two := get(name+"/1.crl"), get(name+"/2.crl"); one != 200 || two != 404 {
			t.Errorf("once the last of the second has expired: %d, %d", one, two)
		}
		if len(s.all()) != 2 {
			t.Errorf("%d scopes", len(s.all()))
		}
	})
}

func TestReplicaServesShardsThatAnotherOpened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.prepared(nil)
		defer run(t, s)()
		if _, err := OpenShards(t.Context(), w, w.issuer.ID, 2, w.issuer.CRLURL, NeededUntil(time.Now(), time.Hour)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		for shard := 1; shard <= 2; shard++ {
			w.served(s, Series{Scope: w.scope(shard)})
		}
		if err := s.Check(); err != nil {
			t.Error(err)
		}
	})
}

func TestAddressesOfShardsAndDeltas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sharded(1)
	s, plain := w.prepared(w.withDeltas), w.prepared(nil)
	name := "/crl/" + string(w.issuer.ID)
	for path, want := range map[string]int{
		".crl": 200, "/1.crl": 200, "/delta.crl": 200, "/1/delta.crl": 200,
		"/0.crl": 404, "/01.crl": 404, "/2.crl": 404, "/.crl": 404, "/1/.crl": 404, "/delta/delta.crl": 404, "/1/1.crl": 404, "//1.crl": 404, "/-1.crl": 404,
	} {
		rec := httptest.NewRecorder()
		s.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, name+path, http.NoBody))
		if rec.Code != want {
			t.Errorf("%s: %d, want %d", path, rec.Code, want)
		}
	}
	rec := httptest.NewRecorder()
	plain.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, name+"/delta.crl", http.NoBody))
	if rec.Code != 404 {
		t.Errorf("a delta where there is none: %d", rec.Code)
	}
}

func TestShardsAreDueApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sharded(16)
	s, at := w.prepared(nil), time.Now()
	h := Head{Published: 1, ScheduledAt: at}
	due := map[time.Time]bool{}
	for shard := 1; shard <= 16; shard++ {
		d := s.dueAt(s.shelf(w.scope(shard)), h)
		if again := s.dueAt(s.shelf(w.scope(shard)), h); d != again {
			t.Error("replicas do not agree")
		}
		if early := at.Add(s.cfg.Period).Sub(d); early < 0 || early > s.cfg.Period/10 {
			t.Errorf("shard %d is due %v early", shard, early)
		}
		due[d] = true
	}
	if len(due) < 15 {
		t.Errorf("16 shards are due at %d times", len(due))
	}
}

func TestEachScopeHasItsMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sharded(1)
	reg := prometheus.NewRegistry()
	w.prepared(func(c *Config) { w.withDeltas(c); c.Registerer = reg })
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, f := range families {
		got[f.GetName()] = len(f.GetMetric())
	}
	for name, want := range map[string]int{
		"secsy_crl_number": 4, "secsy_crl_this_update_seconds": 4, "secsy_crl_next_update_seconds": 4, "secsy_crl_entries": 4, "secsy_crl_octets": 4,
		"secsy_crl_builds_total": 4, "secsy_crl_build_seconds": 2,
	} {
		if got[name] != want {
			t.Errorf("%s: %d, want %d", name, got[name], want)
		}
	}
}

// What clients make of it: a certificate is looked up on the list of its shard and
// of no other, and a delta counts.
func TestClientsTakeShardsAndDeltas(t *testing.T) {
	t.Parallel()
	run := func(program, of string, args ...string) string {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Fatalf("%s is not installed: apt-get install %s", program, of)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
		return fmt.Sprintf("%s%v", out, err)
	}
	w := newWorld(t)
	w.sharded(2)
	// A delta may be dated a second ahead, so as to come after the list of the same second.
	early := func(c *Config) {
		w.withDeltas(c)
		c.Now = func() time.Time { return time.Now().Add(-10 * time.Second) }
	}
	s := w.prepared(early)
	dir := t.TempDir()
	file := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	list := func(name string, of Series) string { return file(name, "X509 CRL", w.served(s, of).Raw) }
	old, other := list("old.pem", Series{Scope: w.scope(1)}), list("other.pem", Series{Scope: w.scope(2)})
	oldAll := list("old-all.pem", Series{Scope: w.scope(0)})
	w.revokeIn(1, "05", ca.Superseded, time.Now().Add(time.Hour))
	s = w.prepared(early)
	delta := list("delta.pem", Series{w.scope(1), true})
	n, _ := ca.Serial("05").Int()
	cert := w.certify(&x509.Certificate{
		SerialNumber: n, Subject: pkix.Name{CommonName: "leaf"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{"leaf.example"}, CRLDistributionPoints: []string{w.issuer.CRLShards[0].URL}, BasicConstraintsValid: true,
	}, w.issuer.Cert, w.key)
	leaf := file("leaf.pem", "CERTIFICATE", cert.Raw)
	root := file("ca.pem", "CERTIFICATE", w.issuer.Cert.Raw)
	current, all := list("new.pem", Series{Scope: w.scope(1)}), list("all.pem", Series{Scope: w.scope(0)})
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"list of its shard, from before", []string{"-CRLfile", old}, "OK"},
		{"the delta to it", []string{"-use_deltas", "-CRLfile", old, "-CRLfile", delta}, "certificate revoked"},
		{"list of its shard", []string{"-CRLfile", current}, "certificate revoked"},
		{"list of all", []string{"-CRLfile", all}, "certificate revoked"},
		{"list of another shard", []string{"-CRLfile", other}, "ifferent CRL scope"},
	} {
		args := append([]string{"verify", "-extended_crl", "-crl_check", "-CAfile", root}, c.args...)
		if out := run("openssl", "openssl", append(args, leaf)...); !strings.Contains(out, c.want) {
			t.Errorf("openssl, %s: want %q:\n%s", c.name, c.want, out)
		}
	}
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"list of its shard, from before", []string{"--crl", old}, "certificate trusted"},
		{"the delta to it", []string{"--crl", old, "--crl", delta}, "certificate was revoked"},
		{"list of its shard", []string{"--crl", current}, "certificate was revoked"},
		{"list of all", []string{"--crl", all}, "certificate was revoked"},
	} {
		if out := run("pki", "strongswan-pki", append([]string{"--verify", "--in", leaf, "--cacert", root}, c.args...)...); !strings.Contains(out, c.want) {
			t.Errorf("strongSwan, %s: want %q:\n%s", c.name, c.want, out)
		}
	}
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: w.key}}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // curl hangs up
	server.StartTLS()
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, crl, want string }{
		{"list of all, from before", oldAll, "<nil>"},
		{"list of all", all, "certificate revoked"},
		{"list of its shard", current, "certificate revoked"},
		{"list of its shard, from before", old, "scope"}, // curl wants one that is of the root, too
	} {
		out := run("curl", "curl", "--noproxy", "*", "-sS", "-o", os.DevNull, "--resolve", "leaf.example:"+port+":127.0.0.1",
			"--cacert", root, "--crlfile", c.crl, "https://leaf.example:"+port)
		if !strings.Contains(out, c.want) || c.want == "<nil>" && out != c.want {
			t.Errorf("curl, %s: want %q:\n%s", c.name, c.want, out)
		}
	}
}

// Readiness names what has ended, and does not stumble over a shard that is new.
func TestOnlyWhatHasEndedIsUnready(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sharded(7)
	now := time.Now()
	s := w.prepared(func(c *Config) { c.Now = func() time.Time { return now } })
	s.addShelf(w.issuer, w.scope(8), "http://pki.example.com/8.crl")
	if err := s.Check(); err != nil {
		t.Error(err)
	}
	now = now.Add(8 * 24 * time.Hour)
	err := s.Check()
	if err == nil || !strings.Contains(err.Error(), string(w.issuer.ID)+", "+w.scope(1).String()) || !strings.HasSuffix(err.Error(), "and 3 more") {
		t.Error(err)
	}
}
