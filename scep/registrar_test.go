package scep

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/keys"
)

func raOf(s *Server) *registrar { return s.offices[0].registrar.Load() }

// MDM profiles remember the authority's certificate, and one replica decrypts what
// was sealed for another.
func TestRestartsAndReplicasHaveTheSameAuthority(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := raOf(w.served(nil))
	for range 3 {
		if again := raOf(w.served(nil)); !again.cert.Equal(first.cert) {
			t.Error("another authority")
		}
	}
	if n := len(w.ca.Store.Records()); n != 1 {
		t.Errorf("%d certificates were issued", n)
	}
}

func TestWhatIsSealedForTheCertificateOfBeforeOpens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	d := newDevice(t, s, deviceKey())
	old := d.ra
	begin := time.Now()
	w.now = func() time.Time { return begin.Add(280 * 24 * time.Hour) } // in its last quarter
	// The CA's clock goes on as it does, so the new certificate is one of today.
	w.kept.mu.Lock()
	for spki := range w.kept.ends {
		w.kept.ends[spki] = time.Time{}
	}
	w.kept.mu.Unlock()
	if err := s.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if raOf(s).cert.Equal(old) {
		t.Fatal("it was not renewed")
	}
	if raOf(s).spki != spkiHash(old) {
		t.Error("the key is another one")
	}
	if h := d.hear(post(t, s, d.message(csr(t, d.key, goodChallenge, "a.example.com"))), ""); h.status != "0" {
		t.Error(h)
	}
}

func TestACompromisedAuthorityHasASuccessorWithAnotherKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	old := raOf(s)
	if err := w.ca.Revoke(t.Context(), ca.Revocation{Serial: ca.SerialOf(old.cert.SerialNumber), Reason: ca.KeyCompromise, BlockKey: true}); err != nil {
		t.Fatal(err)
	}
	if err := s.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if raOf(s).spki == old.spki {
		t.Error("the key is the same")
	}
	if k, err := w.ca.Keys.Key(t.Context(), "scep-"+string(w.ca.Issuer.ID)+"-2"); err != nil {
		t.Errorf("its key: %v, %v", k, err)
	}
}

// A key that was made to sign only is not passed off as one of a registration authority.
func TestAKeyThatCannotDecryptIsSaid(t *testing.T) {
	t.Parallel()
	w := &world{t: t, ca: catest.New(t), desk: &desk{}, kept: &registrations{}, now: time.Now, logs: new(bytes.Buffer)}
	if _, err := w.ca.Keys.Put("scep-"+string(w.ca.Issuer.ID), ecKey()); err != nil {
		t.Fatal(err)
	}
	s := w.server(nil)
	err := s.Prepare(t.Context())
	if err == nil || !strings.Contains(err.Error(), "can't decrypt") {
		t.Error(err)
	}
}

func TestAStoredCertificateOfAnotherKeyOrUseIsPassedOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	spki := raOf(s).spki
	for name, der := range map[string][]byte{
		"no certificate": []byte("no"), "another key": selfSigned(t, deviceKey()).Raw, "another issuer": selfSigned(t, raKey()).Raw,
	} {
		w.kept.mu.Lock()
		w.kept.ders[spki], w.kept.ends[spki] = der, time.Time{}
		w.kept.mu.Unlock()
		next := w.served(nil)
		if ra := raOf(next); ra.cert.CheckSignatureFrom(w.ca.Issuer.Cert) != nil || ra.spki != spki {
			t.Errorf("%s was taken", name)
		}
	}
}

// A start with the device away is made good as soon as it is back.
func TestRunFindsTheAuthorityWhenTheDeviceIsBack(t *testing.T) {
	t.Parallel()
	deviceKey() // made outside of the bubble
	raKey()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.server(nil)
		w.ca.Keys.Away(time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(time.Minute)
		if raOf(s) != nil {
			t.Error("it has one without a device")
		}
		w.ca.Keys.Back()
		time.Sleep(lastRetry)
		if raOf(s) == nil {
			t.Error("it has none")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := strings.Count(w.logs.String(), "level=ERROR"); n != 1 {
			t.Errorf("%d lines of errors", n)
		}
	})
}

func TestConfigsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, change := range map[string]func(c *Config){
		"no endpoint":   func(c *Config) { c.Endpoints = nil },
		"no desk":       func(c *Config) { c.Desk = nil },
		"a bad label":   func(c *Config) { c.Endpoints[0].Label = "a/b" },
		"no issuer":     func(c *Config) { c.Endpoints[0].Issuer = nil },
		"a label twice": func(c *Config) { c.Endpoints = append(c.Endpoints, c.Endpoints[0]) },
		"no default":    func(c *Config) { c.Default = "others" },
		"an EC key":     func(c *Config) { c.KeyAlgorithm = keys.ECDSAP256 },
		"no share":      func(c *Config) { c.Share = -1 },
	} {
		cfg := w.server(nil).cfg
		cfg.Endpoints = append([]Endpoint{}, cfg.Endpoints...)
		change(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Somebody who tries to decrypt by asking needs so many messages that it is seen.
func TestManyWrongMessagesRingOnceAnHour(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	begin := time.Now()
	w.now = func() time.Time { return begin }
	for range 3 * alarmAt {
		s.alarm.rings(t.Context(), "issuer")
	}
	if n := strings.Count(w.logs.String(), "wrong inside"); n != 1 {
		t.Errorf("%d lines", n)
	}
	w.now = func() time.Time { return begin.Add(alarmWindow) }
	for range alarmAt {
		s.alarm.rings(t.Context(), "issuer")
	}
	if n := strings.Count(w.logs.String(), "wrong inside"); n != 2 {
		t.Errorf("%d lines an hour later", n)
	}
}

func TestErrorsOfTheAuthorityAreSaidByPrepare(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	w.ca.Keys.Fail(errors.New("the device is broken"))
	if err := s.Prepare(t.Context()); err == nil || raOf(s) != nil {
		t.Errorf("%v", err)
	}
}
