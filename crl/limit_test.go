package crl

import (
	"context"
	"crypto"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/hsmguard"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// A notingKey notes what its signatures are asked for, and when.
type notingKey struct {
	keys.Key
	mu    sync.Mutex // guards what follows
	noted []keys.Purpose
	times []time.Time
}

func (k *notingKey) Sign(ctx context.Context, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	k.mu.Lock()
	k.noted, k.times = append(k.noted, keys.PurposeOf(ctx)), append(k.times, time.Now())
	k.mu.Unlock()
	return k.Key.Sign(ctx, digest, opts)
}

func (k *notingKey) asked() []time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.times)
}

func (w *world) noting() *notingKey {
	k := &notingKey{Key: w.issuer.Key}
	w.issuer.Key = k
	return k
}

// The guard before the device lets a CRL that is only due wait for a moment, and
// one with news go before everything else.
func TestTheDeviceHearsWhetherACRLHasNews(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := w.noting()
		s := w.prepared(nil)
		update := func() {
			if _, err := s.update(t.Context(), s.shelf(Scope{Issuer: w.issuer.ID})); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(13 * time.Hour)
		update() // it is due
		w.revoke("05", ca.Superseded, time.Now().Add(time.Hour))
		update() // it has news
		time.Sleep(13 * time.Hour)
		w.revoke("06", ca.Superseded, time.Now().Add(time.Hour))
		update() // both
		want := []keys.Purpose{keys.ForStatus, keys.ForStatus, keys.ForRevocation, keys.ForRevocation}
		if !slices.Equal(k.noted, want) {
			t.Errorf("purposes %d, want %d", k.noted, want)
		}
	})
}

// A device that had no time is asked again soon, and then less and less often;
// what is served stays, as it is good until its nextUpdate.
func TestABusyDeviceIsAskedAgainSoonAndTheOldCRLServedMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := w.noting()
		reg := prometheus.NewRegistry()
		s := w.prepared(func(c *Config) { c.Registerer = reg })
		defer run(t, s)()
		synctest.Wait()
		before, _ := s.Current(w.issuer.ID)
		w.keys.Fail(keys.ErrBusy)
		w.revoke("05", ca.Superseded, time.Now().Add(24*time.Hour))
		s.Trigger(w.issuer.ID)
		asked := time.Now().Add(5 * time.Second) // after the delay in which others may follow
		time.Sleep(time.Hour)
		synctest.Wait() // the hour ends at an instant at which it asks
		var pauses []time.Duration
		last := asked
		for _, at := range k.asked()[1:] {
			pauses = append(pauses, at.Sub(last))
			last = at
		}
		want := []time.Duration{0, 1, 2, 4, 8, 10, 10}
		for i := range want {
			if want[i] *= time.Second; i >= len(pauses) || pauses[i] != want[i] {
				t.Fatalf("pauses %v, want %v", pauses[:min(len(pauses), 8)], want)
			}
		}
		rec := get(s, http.MethodGet, "/crl/"+string(w.issuer.ID)+".crl")
		if c, _ := s.Current(w.issuer.ID); c.Number != before.Number || rec.Code != http.StatusOK {
			t.Errorf("number %d after %d, HTTP %d", c.Number, before.Number, rec.Code)
		}
		if busy, failed := buildsCounted(t, reg, "busy"), buildsCounted(t, reg, "error"); busy != float64(len(pauses)) || failed != 0 {
			t.Errorf("%v counted as busy and %v as failed of %d", busy, failed, len(pauses))
		}
		w.keys.Fail(nil)
		time.Sleep(16 * time.Second)
		if got := serials(w.current(s)); !slices.Equal(got, []ca.Serial{"05"}) {
			t.Errorf("%v", got)
		}
		// The next time begins with a short pause again, or the one that is asked for.
		w.keys.FailNext(1, keys.ErrBusy)
		w.keys.FailNext(1, &keys.BusyError{Reason: "queue_full", RetryAfter: 7 * time.Second})
		w.keys.FailNext(1, &keys.BusyError{Reason: "queue_full", RetryAfter: time.Hour})
		n := len(k.asked())
		w.revoke("06", ca.Superseded, time.Now().Add(24*time.Hour))
		s.Trigger(w.issuer.ID)
		time.Sleep(time.Minute)
		pauses = nil
		times := k.asked()[n:]
		for i := range times[1:] {
			pauses = append(pauses, times[i+1].Sub(times[i]))
		}
		if !slices.Equal(pauses, []time.Duration{time.Second, 7 * time.Second, 10 * time.Second}) {
			t.Errorf("pauses %v", pauses)
		}
	})
}

// CRLs and certificates are there, and need no device to be served.
func TestCRLsAreServedWhileTheOnlySeatIsHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		g, err := gate.New(gate.Config{Seats: 1, MaxQueue: 64, MaxWait: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if w.issuer.Key, err = hsmguard.New(hsmguard.Config{Gate: g}).Keys(w.keys).Key(t.Context(), "ca"); err != nil {
			t.Fatal(err)
		}
		s := w.prepared(nil)
		defer run(t, s)()
		synctest.Wait()
		leave, err := g.Acquire(t.Context(), gate.Issuance, "acme:account/1")
		if err != nil {
			t.Fatal(err)
		}
		w.revoke("05", ca.Superseded, time.Now().Add(24*time.Hour))
		s.Trigger(w.issuer.ID)
		time.Sleep(7 * time.Second) // the next one waits for its seat
		if st := g.Stat(); st.Class[gate.Revocation].Waiting != 1 {
			t.Errorf("%+v", st)
		}
		start := time.Now()
		for _, path := range []string{"/crl/" + string(w.issuer.ID) + ".crl", "/aia/" + string(w.issuer.ID) + ".cer"} {
			if rec := get(s, http.MethodGet, path); rec.Code != http.StatusOK || rec.Body.Len() < 100 || time.Since(start) != 0 {
				t.Errorf("%s: HTTP %d after %v", path, rec.Code, time.Since(start))
			}
		}
		time.Sleep(time.Minute)
		leave()
		time.Sleep(16 * time.Second)
		if got := serials(w.current(s)); !slices.Equal(got, []ca.Serial{"05"}) {
			t.Errorf("%v", got)
		}
		if st := g.Stat(); st.InFlight != 0 || st.Queued != 0 || st.PeakInFlight != 1 {
			t.Errorf("seats are not conserved: %+v", st)
		}
	})
}

func TestAFileCostsATenthOfARequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	source := netip.MustParseAddr("192.0.2.7")
	if d := w.server(nil).Limit().Admit(source); !d.OK {
		t.Errorf("without a limiter: %+v", d)
	}
	l, err := ratelimit.New(ratelimit.Config{PerIP: ratelimit.Bucket{Rate: 1e-6, Burst: 3}, MaxKeys: 1000})
	if err != nil {
		t.Fatal(err)
	}
	s := w.server(func(c *Config) { c.Limiter = l })
	n := 0
	for s.Limit().Admit(source).OK && n < 1000 {
		n++
	}
	if n != 30 {
		t.Errorf("three tokens were %d requests, want 30", n)
	}
}
