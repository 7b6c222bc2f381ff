package crl

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
)

func TestStoredCRLIsServedAfterARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, _ := w.prepared(nil).Current(w.issuer.ID)
	again, _ := w.prepared(nil).Current(w.issuer.ID)
	if again.Number != first.Number || len(w.list) != 1 {
		t.Errorf("number %d after %d", again.Number, first.Number)
	}
	// What was revoked meanwhile is on it at once.
	w.revoke("05", ca.Superseded, time.Now())
	if got := serials(w.current(w.prepared(nil))); !slices.Equal(got, []ca.Serial{"05"}) {
		t.Errorf("%v", got)
	}
}

func TestRevocationsShareACRLSoonAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.prepared(nil)
		defer run(t, s)()
		synctest.Wait()
		for _, serial := range []ca.Serial{"05", "06", "07"} {
			w.revoke(serial, ca.Superseded, time.Now().Add(time.Hour))
			s.Trigger(w.issuer.ID)
			time.Sleep(time.Second)
		}
		if n := w.published(); n != 1 {
			t.Errorf("%d CRLs before the delay is over", n)
		}
		time.Sleep(4 * time.Second)
		if got, n := serials(w.current(s)), w.published(); len(got) != 3 || n != 2 {
			t.Errorf("%v on CRL %d", got, n)
		}
		s.Trigger("nobody") // and nothing happens
	})
}

func TestRevocationElsewhereIsNoticed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := w.prepared(nil), w.prepared(nil)
		defer run(t, a)()
		defer run(t, b)()
		synctest.Wait()
		w.revoke("05", ca.Superseded, time.Now().Add(time.Hour))
		a.Trigger(w.issuer.ID)
		time.Sleep(40 * time.Second)
		for _, s := range []*Server{a, b} {
			if got := serials(w.current(s)); !slices.Equal(got, []ca.Serial{"05"}) {
				t.Errorf("%v", got)
			}
		}
		if n := w.published(); n != 2 {
			t.Errorf("%d CRLs by two replicas", n)
		}
		// So is a new reason.
		w.revoke("05", ca.KeyCompromise, time.Now().Add(time.Hour))
		time.Sleep(40 * time.Second)
		if l := w.current(b); l.RevokedCertificateEntries[0].ReasonCode != 1 || len(l.RevokedCertificateEntries) != 1 {
			t.Errorf("%+v", l.RevokedCertificateEntries)
		}
	})
}

func TestNumbersAndTimesOnlyGrow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := w.prepared(nil), w.server(nil)
		defer run(t, a)()
		defer run(t, b)()
		for i := range 5 {
			w.revoke(ca.Serial([]string{"05", "06", "07", "08", "09"}[i]), ca.Superseded, time.Now().Add(time.Hour))
			a.Trigger(w.issuer.ID)
			b.Trigger(w.issuer.ID)
			time.Sleep(6 * time.Second)
		}
		time.Sleep(30 * time.Hour)
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.list) < 8 {
			t.Errorf("%d CRLs", len(w.list))
		}
		for i, c := range w.list[1:] {
			if prev := w.list[i]; c.Number <= prev.Number || !c.ThisUpdate.After(prev.ThisUpdate) {
				t.Errorf("%d of %v after %d of %v", c.Number, c.ThisUpdate, prev.Number, prev.ThisUpdate)
			}
		}
	})
}

func TestExpiredEntryStaysForOneScheduledCRL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.prepared(func(c *Config) { c.Period = 10 * time.Hour })
		defer run(t, s)()
		w.revoke("05", ca.Superseded, time.Now().Add(time.Hour))
		listed := func() bool { return slices.Contains(serials(w.current(s)), "05") }
		time.Sleep(2 * time.Hour)
		// Early CRLs don't count as scheduled ones.
		for _, serial := range []ca.Serial{"06", "07"} {
			w.revoke(serial, ca.Superseded, time.Now().AddDate(1, 0, 0))
			s.Trigger(w.issuer.ID)
			time.Sleep(time.Minute)
			if !listed() {
				t.Error("gone before any scheduled CRL past its expiry")
			}
		}
		time.Sleep(9 * time.Hour)
		if !listed() {
			t.Error("not on the first scheduled CRL past its expiry")
		}
		time.Sleep(10 * time.Hour)
		if listed() {
			t.Error("still there on the second")
		}
		if got := serials(w.current(s)); !slices.Equal(got, []ca.Serial{"06", "07"}) {
			t.Errorf("%v", got)
		}
	})
}

func TestFailureLeavesTheOldCRLAndIsMadeGood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		reg := prometheus.NewRegistry()
		s := w.prepared(func(c *Config) { c.Registerer = reg })
		defer run(t, s)()
		before, _ := s.Current(w.issuer.ID)
		w.keys.Fail(keys.ErrBusy)
		w.revoke("05", ca.Superseded, time.Now().Add(time.Hour))
		s.Trigger(w.issuer.ID)
		time.Sleep(time.Minute)
		if c, _ := s.Current(w.issuer.ID); c.Number != before.Number {
			t.Error("another CRL without a device")
		}
		w.keys.Fail(nil)
		time.Sleep(time.Minute)
		if got := serials(w.current(s)); !slices.Equal(got, []ca.Serial{"05"}) {
			t.Errorf("%v", got)
		}
		if fs, err := reg.Gather(); err != nil || len(fs) != 7 {
			t.Errorf("%d metrics, %v", len(fs), err)
		}
	})
}

// A database that is away for hours is told of, and neither floods the log nor
// takes away what is served.
func TestStoreThatIsAwayIsSaidAndOutlived(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var logs bytes.Buffer
		reg := prometheus.NewRegistry()
		s := w.prepared(func(c *Config) { c.Registerer = reg; c.Logger = slog.New(slog.NewTextHandler(&logs, nil)) })
		stop := run(t, s)
		synctest.Wait()
		w.setHeadErr(errors.New("no database"))
		w.revoke("05", ca.Superseded, time.Now().Add(24*time.Hour))
		time.Sleep(time.Hour)
		if _, ok := s.Current(w.issuer.ID); !ok {
			t.Error("nothing is served")
		}
		if failures := buildsCounted(t, reg, "error"); failures < 200 || failures > 300 {
			t.Errorf("%v failures counted in an hour", failures)
		}
		w.setHeadErr(nil)
		time.Sleep(time.Minute)
		if got := serials(w.current(s)); !slices.Equal(got, []ca.Serial{"05"}) {
			t.Errorf("%v", got)
		}
		stop()
		if n := strings.Count(logs.String(), "no database"); n != 1 {
			t.Errorf("%d lines in the log", n)
		}
	})
}

func buildsCounted(t *testing.T, reg *prometheus.Registry, outcome string) (n float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "secsy_crl_builds_total" && l.GetName() == "outcome" && l.GetValue() == outcome {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

func TestPrepareNamesTheIssuerWithoutCRL(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.keys.Fail(keys.ErrBusy)
	s := w.server(nil)
	if err := s.Prepare(t.Context()); !errors.Is(err, keys.ErrBusy) {
		t.Errorf("error %v", err)
	}
	if _, ok := s.Current(w.issuer.ID); ok {
		t.Error("a CRL from nowhere")
	}
	if !w.scopes[Scope{Issuer: w.issuer.ID}].leaseUntil.IsZero() {
		t.Error("the lease is still held")
	}
}

func TestBuilderThatVanishedIsReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.scopes[Scope{Issuer: w.issuer.ID}] = &scopeState{number: 7, leaseUntil: time.Now().Add(5 * time.Minute)}
		s, start := w.prepared(nil), time.Now()
		if w.current(s).Number.Int64() <= 7 {
			t.Error("a number came again")
		}
		if waited := time.Since(start); waited > 5*time.Minute+heldRetry {
			t.Errorf("waited for %v", waited)
		}
	})
}

func TestReplicaThatStartsLaterWaitsForTheFirstCRL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := w.server(nil), w.server(nil)
		hold := w.keys.Hold()
		errs := make(chan error, 2)
		go func() { errs <- a.Prepare(t.Context()) }()
		<-hold.Arrived
		go func() { errs <- b.Prepare(t.Context()) }()
		synctest.Wait()
		hold.Release()
		for range 2 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if n := w.published(); n != 1 || w.current(b).Number.Cmp(w.current(a).Number) != 0 {
			t.Errorf("%d CRLs", n)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, change := range map[string]func(*Config){
		"no issuers":         func(c *Config) { c.Issuers = nil },
		"an issuer twice":    func(c *Config) { c.Issuers = append(c.Issuers, c.Issuers[0]) },
		"no store":           func(c *Config) { c.Store = nil },
		"too seldom":         func(c *Config) { c.Period = 25 * time.Hour },
		"too long":           func(c *Config) { c.Validity = 11 * 24 * time.Hour },
		"less than 2 period": func(c *Config) { c.Validity = 23 * time.Hour },
		"negative":           func(c *Config) { c.Poll = -1 },
		"delay over period":  func(c *Config) { c.RevocationDelay = 13 * time.Hour },
		"no key":             func(c *Config) { c.Issuers = []*ca.Issuer{{ID: "x", Cert: c.Issuers[0].Cert}} },
	} {
		cfg := w.config()
		change(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
