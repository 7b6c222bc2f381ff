package ocsp

import (
	"bytes"
	"context"
	"crypto"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/hsmguard"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/peer"
)

// A sharedDevice is one that OCSP and issuance have in common, behind one gate.
type sharedDevice struct {
	gate *gate.Gate
	keys KeyStore // guarded
}

const (
	deviceSeats   = 8
	deviceService = 5 * time.Millisecond
)

func newSharedDevice(t *testing.T, w *world, seats int) sharedDevice {
	t.Helper()
	g := newGate(t, gate.Config{Seats: seats, MaxQueue: 64, MaxWait: 5 * time.Second})
	slow := &notary{KeyStore: w.keys, veto: func(context.Context) error { time.Sleep(deviceService); return nil }}
	return sharedDevice{gate: g, keys: hsmguard.New(hsmguard.Config{Gate: g}).Keys(slow).(KeyStore)}
}

// issue asks for certificates' signatures at the rate that the device can just
// do, for a time, and returns how many there were.
func (d sharedDevice) issue(t *testing.T, during time.Duration) int {
	t.Helper()
	key, err := d.keys.Generate(t.Context(), "issuing", keys.ECDSAP256)
	if errors.Is(err, keys.ErrExists) {
		key, err = d.keys.Key(t.Context(), "issuing")
	}
	if err != nil {
		t.Fatal(err)
	}
	var done atomic.Int64
	var wg sync.WaitGroup
	every := deviceService / deviceSeats
	for i := range int(during / every) {
		wg.Go(func() {
			ctx := peer.WithIdentity(t.Context(), fmt.Sprintf("acme:account/%d", i%20))
			if _, err := key.Sign(ctx, make([]byte, 32), crypto.SHA256); err == nil {
				done.Add(1)
			} else if !errors.Is(err, keys.ErrBusy) {
				t.Error(err)
			}
		})
		time.Sleep(every)
	}
	wg.Wait()
	return int(done.Load())
}

// Signatures for nonces come out of the same device as certificates, ten times
// as many as it can make are asked for, and they get what is left.
func TestAFloodOfNoncesLeavesIssuanceAndReadyAnswersAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const during = 500 * time.Millisecond
		w := newWorld(t)
		d := newSharedDevice(t, w, deviceSeats)
		s := w.server(func(c *Config) { c.Keys = d.keys })
		leaf := w.leaf(0, 5, Status{State: ca.Issued})
		plain := w.query(0, leaf, crypto.SHA1)
		w.ask(s, 0, leaf)
		idle := d.issue(t, during)

		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var nonces, shed atomic.Int64
		flood := func(i int) {
			body := w.withNonce(0, leaf, string(nonceOf(i)))
			rec := postFrom(t.Context(), s, fmt.Sprintf("10.0.%d.%d", i%4, i%250), body)
			if rec.Body.Len() < 100 || rec.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("HTTP %d, headers %v", rec.Code, rec.Header())
			}
			if bytes.Contains(rec.Body.Bytes(), nonceOf(i)) {
				nonces.Add(1)
			} else {
				shed.Add(1)
			}
		}
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				wg.Go(func() { flood(i) })
				time.Sleep(deviceService / deviceSeats / 10)
			}
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				start := time.Now()
				rec := postFrom(t.Context(), s, "192.0.2.7", plain)
				if w.saysGood(rec, 0, leaf); time.Since(start) != 0 {
					t.Errorf("an answer that was there took %v", time.Since(start))
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
		busy := d.issue(t, during)
		stop()
		wg.Wait()
		t.Logf("issued %d idle, %d beside %d nonces signed and %d answered without", idle, busy, nonces.Load(), shed.Load())
		if could := int(during / deviceService * deviceSeats); idle < could*95/100 {
			t.Fatalf("issued %d of %d when idle: the device is no measure", idle, could)
		}
		if busy < idle*80/100 {
			t.Errorf("issued %d, when idle %d", busy, idle)
		}
		if nonces.Load() == 0 || shed.Load() == 0 {
			t.Errorf("%d nonces signed, %d shed: no flood, or a dead end", nonces.Load(), shed.Load())
		}
		if st := d.gate.Stat(); st.InFlight != 0 || st.Queued != 0 || st.Identities != 0 || st.PeakInFlight != deviceSeats {
			t.Errorf("seats are not conserved: %+v", st)
		}
	})
}

// What is there needs no device, also for who wanted a nonce.
func TestReadyAnswersAreServedWhileTheOnlySeatIsHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := newSharedDevice(t, w, 1)
		s := w.server(func(c *Config) { c.Keys = d.keys })
		leaf := w.leaf(0, 5, Status{State: ca.Issued})
		q := w.query(0, leaf, crypto.SHA1)
		w.ask(s, 0, leaf)
		leave, err := d.gate.Acquire(t.Context(), gate.Issuance, "acme:account/1")
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
		start := time.Now()
		for range 100 {
			w.saysGood(postFrom(t.Context(), s, "192.0.2.7", q), 0, leaf)
			w.saysGood(get(s, http.MethodGet, "/ocsp/"+b64(q)), 0, leaf)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("they waited for %v", took)
		}
		// One that has to be signed waits for as long as one may, and no longer.
		other := w.leaf(0, 6, Status{State: ca.Issued})
		later(t, postFrom(t.Context(), s, "192.0.2.7", w.query(0, other, crypto.SHA1)), http.StatusServiceUnavailable, "1")
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("it waited for %v", took)
		}
	})
}

// An answer that many will read waits for one signature at most, whatever
// strangers ask for themselves.
func TestASharedAnswerGoesBeforeWaitingNonces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := newSharedDevice(t, w, 1)
		s := w.server(func(c *Config) { c.Keys = d.keys })
		leaf, other := w.leaf(0, 5, Status{State: ca.Issued}), w.leaf(0, 6, Status{State: ca.Issued})
		w.ask(s, 0, leaf)
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				w.saysGood(postFrom(t.Context(), s, fmt.Sprintf("10.0.0.%d", i), w.withNonce(0, leaf, string(nonceOf(i)))), 0, leaf)
			})
		}
		synctest.Wait()
		start := time.Now()
		w.saysGood(postFrom(t.Context(), s, "192.0.2.7", w.query(0, other, crypto.SHA1)), 0, other)
		if took := time.Since(start); took > 2*deviceService {
			t.Errorf("it took %v, of which %v at the device", took, deviceService)
		}
		wg.Wait()
	})
}
