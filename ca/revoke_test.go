package ca_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
)

func TestOnlySomeReasonsRevoke(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	allowed := map[ca.Reason]bool{0: true, 1: true, 3: true, 4: true, 5: true, 9: true}
	for reason := ca.Reason(-1); reason <= 11; reason++ {
		got := c.Certificate(t, "a.example")
		err := c.Revoke(t.Context(), ca.Revocation{Serial: got.Serial, Reason: reason})
		rec, recErr := c.Record(t.Context(), got.Serial)
		if recErr != nil {
			t.Fatal(recErr)
		}
		if allowed[reason] {
			if err != nil || !rec.Revoked() || rec.Reason != reason {
				t.Errorf("reason %d: %v", reason, err)
			}
			continue
		}
		wantRefusal(t, err, ca.BadReason)
		if rec.Revoked() {
			t.Errorf("reason %d revoked all the same", reason)
		}
	}
}

func TestRevocationIsToldOnceAndAfterIt(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	var told []ca.Revoked
	c.OnRevoke(func(r ca.Revoked) {
		if rec, err := c.Record(t.Context(), r.Serial); err != nil || !rec.Revoked() {
			t.Errorf("told before it was recorded: %v", err)
		}
		told = append(told, r)
	})
	got := c.Certificate(t, "a.example")
	r := ca.Revocation{Serial: got.Serial, Reason: ca.Superseded, Requester: ca.Requester{Actor: "test"}}
	if err := c.Revoke(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if err := c.Revoke(t.Context(), r); !errors.Is(err, ca.ErrAlreadyRevoked) {
		t.Errorf("again: %v", err)
	}
	if err := c.Revoke(t.Context(), ca.Revocation{Serial: "01ff", Reason: ca.Superseded}); !errors.Is(err, ca.ErrNotFound) {
		t.Errorf("unknown serial: %v", err)
	}
	if len(told) != 1 || told[0].Issuer != c.Issuer.ID || told[0].Serial != got.Serial || told[0].Reason != ca.Superseded {
		t.Errorf("told %v", told)
	}
	entries := c.Store.Entries()
	if e := entries[len(entries)-1]; e.Action != ca.ActionRevoked || e.Actor != "test" || e.Object != "certificate/"+string(got.Serial) {
		t.Errorf("entry %+v", e)
	}
}

func TestOnlyCompromiseIsDatedBack(t *testing.T) {
	t.Parallel()
	now := on(2026, time.October, 1)
	c := catest.New(t, unlinted, at(now))
	for _, tt := range []struct {
		reason   ca.Reason
		at, want time.Time
	}{
		{ca.KeyCompromise, now.Add(-day), now.Add(-day)},
		{ca.KeyCompromise, now.Add(day), now},
		{ca.KeyCompromise, time.Time{}, now},
		{ca.Superseded, now.Add(-day), now},
		{ca.Superseded, now.Add(day), now},
	} {
		got := c.Certificate(t, "a.example")
		if err := c.Revoke(t.Context(), ca.Revocation{Serial: got.Serial, Reason: tt.reason, At: tt.at}); err != nil {
			t.Fatal(err)
		}
		if rec, err := c.Record(t.Context(), got.Serial); err != nil || !rec.RevokedAt.Equal(tt.want) {
			t.Errorf("%s at %s: revoked %s, error %v", tt.reason, tt.at, rec.RevokedAt, err)
		}
	}
}

func TestBlockedKeyGetsNoCertificate(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	req := catest.Request(t, "a.example")
	got, err := c.Issue(t.Context(), req, c.Store.PlainLedger())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Revoke(t.Context(), ca.Revocation{Serial: got.Serial, Reason: ca.KeyCompromise, BlockKey: true}); err != nil {
		t.Fatal(err)
	}
	_, err = c.Issue(t.Context(), req, c.Store.PlainLedger())
	wantRefusal(t, err, ca.BadCSR)
	wantRefusal(t, c.CheckKey(t.Context(), parse(t, got.DER).PublicKey), ca.BadPublicKey)
}

func TestRecordOfWantsEveryOctet(t *testing.T) {
	t.Parallel()
	c, other := catest.New(t, unlinted), catest.New(t, unlinted)
	got := c.Certificate(t, "a.example")
	if r, err := c.RecordOf(t.Context(), got.DER); err != nil || r.Serial != got.Serial {
		t.Errorf("own certificate: %v", err)
	}
	forged := bytes.Clone(got.DER)
	forged[len(forged)-1] ^= 1
	for name, der := range map[string][]byte{"forged": forged, "another CA's": other.Certificate(t, "a.example").DER, "the issuer's": c.Issuer.Cert.Raw} {
		if _, err := x509.ParseCertificate(der); err != nil {
			t.Fatal(err)
		}
		if _, err := c.RecordOf(t.Context(), der); !errors.Is(err, ca.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := c.RecordOf(t.Context(), []byte("no certificate"))
	wantRefusal(t, err, ca.BadCertificate)
}

func TestRunAbandonsWhatTheDeadLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := catest.New(t, unlinted)
		const left = 250 // more than recovery reads at once
		for n := range left {
			in := catest.Intent(n)
			in.CreatedAt, in.LeaseUntil = time.Now(), time.Now().Add(90*time.Second)
			if err := c.Store.PlainLedger().Begin(t.Context(), in); err != nil {
				t.Fatal(err)
			}
		}
		var told atomic.Int32
		c.OnRevoke(func(ca.Revoked) { told.Add(1) })
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(80 * time.Second)
		if told.Load() != 0 {
			t.Errorf("%d abandoned under a running lease", told.Load())
		}
		time.Sleep(time.Minute)
		stop()
		if err := <-done; err != nil || told.Load() != left {
			t.Errorf("%d abandoned, error %v", told.Load(), err)
		}
		for _, r := range c.Store.Records() {
			if r.State != ca.Abandoned || !r.Revoked() {
				t.Fatalf("record %+v", r)
			}
		}
	})
}
