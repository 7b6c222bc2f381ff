package ca_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"slices"
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
		want := ca.BadReason
		if reason == ca.CertificateHold {
			want = ca.HoldForbidden
		}
		wantRefusal(t, err, want)
		if rec.Revoked() {
			t.Errorf("reason %d revoked all the same", reason)
		}
	}
}

// BR §4.9.13: there is no suspension under public trust, whatever the issuer says.
func TestHoldIsTheIssuersToAllowAndNeverPublic(t *testing.T) {
	t.Parallel()
	internal, public := catest.New(t, unlinted), catest.New(t, unlinted, func(cfg *ca.Config) { cfg.Policy = ca.Public })
	for _, c := range []*catest.CA{internal, public} {
		c.Issuer.Hold = true
	}
	got := internal.Certificate(t, "a.example")
	var told []ca.Revoked
	internal.OnRevoke(func(r ca.Revoked) { told = append(told, r) })
	hold := ca.Revocation{Serial: got.Serial, Reason: ca.CertificateHold, Requester: ca.Requester{Actor: "test"}}
	if err := internal.Revoke(t.Context(), hold); err != nil {
		t.Fatal(err)
	}
	if err := internal.Release(t.Context(), got.Serial, hold.Requester); err != nil {
		t.Fatal(err)
	}
	if err := internal.Release(t.Context(), got.Serial, hold.Requester); !errors.Is(err, ca.ErrNotHeld) {
		t.Errorf("released twice: %v", err)
	}
	if err := internal.Release(t.Context(), "01ff", hold.Requester); !errors.Is(err, ca.ErrNotFound) {
		t.Errorf("released what is not there: %v", err)
	}
	if len(told) != 2 || told[0].Reason != ca.CertificateHold || told[1].Reason != ca.RemoveFromCRL || told[1].Issuer != internal.Issuer.ID {
		t.Errorf("told %v", told)
	}
	entries := internal.Store.Entries()
	if n := len(entries); entries[n-2].Action != ca.ActionHeld || entries[n-1].Action != ca.ActionReleased || entries[n-1].Actor != "test" {
		t.Errorf("entries %v", entries)
	}
	err := public.Revoke(t.Context(), ca.Revocation{Serial: public.Certificate(t, "www.example.com").Serial, Reason: ca.CertificateHold})
	wantRefusal(t, err, ca.HoldForbidden)
}

func TestInvalidityDateIsInThePast(t *testing.T) {
	t.Parallel()
	now := on(2026, time.October, 1)
	c := catest.New(t, unlinted, at(now))
	got := c.Certificate(t, "a.example")
	r := ca.Revocation{Serial: got.Serial, Reason: ca.KeyCompromise, InvalidityAt: now.Add(time.Second)}
	wantRefusal(t, c.Revoke(t.Context(), r), ca.BadInvalidity)
	r.InvalidityAt = now.Add(-30 * day)
	if err := c.Revoke(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if rec, err := c.Record(t.Context(), got.Serial); err != nil || !rec.InvalidityAt.Equal(r.InvalidityAt) || !rec.RevokedAt.Equal(now) {
		t.Errorf("invalid since %s, revoked %s, %v", rec.InvalidityAt, rec.RevokedAt, err)
	}
}

// Of many at once each stands for itself, and a rehearsal says the same and does nothing.
func TestManyAreRevokedOneByOne(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	var told []ca.Serial
	c.OnRevoke(func(r ca.Revoked) { told = append(told, r.Serial) })
	one, two, other, gone := c.Certificate(t, "a.example"), c.Certificate(t, "b.example"), c.Certificate(t, "c.example"), c.Certificate(t, "d.example")
	if err := c.Revoke(t.Context(), ca.Revocation{Serial: gone.Serial, Reason: ca.Superseded}); err != nil {
		t.Fatal(err)
	}
	told = nil
	rs := []ca.Revocation{
		{Serial: one.Serial, Reason: ca.Superseded, SHA256: sha256.Sum256(one.DER)},
		{Serial: "01ff", Reason: ca.Superseded},
		{Serial: gone.Serial, Reason: ca.Superseded},
		{Serial: other.Serial, Reason: ca.Superseded, SHA256: sha256.Sum256(one.DER)},
		{Serial: other.Serial, Reason: ca.CACompromise},
		{Serial: two.Serial, Reason: ca.CessationOfOperation},
	}
	want := func(errs []error, err error) {
		t.Helper()
		if err != nil || len(errs) != len(rs) {
			t.Fatal(errs, err)
		}
		for i, want := range []error{nil, ca.ErrNotFound, ca.ErrAlreadyRevoked, ca.ErrNotFound, nil, nil} {
			if i == 4 {
				wantRefusal(t, errs[i], ca.BadReason)
			} else if !errors.Is(errs[i], want) {
				t.Errorf("%d: %v, want %v", i, errs[i], want)
			}
		}
	}
	recs, errs, err := c.RehearseRevoke(t.Context(), rs)
	want(errs, err)
	if recs[0].Revoked() || !recs[2].Revoked() || recs[1].Serial != "" || len(told) != 0 {
		t.Errorf("rehearsed: %+v, told %v", recs, told)
	}
	want(c.RevokeAll(t.Context(), rs))
	if !slices.Equal(told, []ca.Serial{one.Serial, gone.Serial, two.Serial}) {
		t.Errorf("told %v", told)
	}
	if rec, err := c.Record(t.Context(), other.Serial); err != nil || rec.Revoked() {
		t.Errorf("the other: %+v, %v", rec, err)
	}
	if _, err := c.RevokeAll(t.Context(), make([]ca.Revocation, ca.MaxRevocations+1)); err == nil {
		t.Error("more than the bound was accepted")
	}
}

// Once somebody has heard that a certificate is revoked, no part of this process
// says otherwise from memory: neither if another process has recorded it, nor if
// one ended between the two.
func TestRevocationIsToldAfterItAndBeforeAnybodyHearsOfIt(t *testing.T) {
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
	for i, want := range []error{nil, ca.ErrAlreadyRevoked} {
		if err := c.Revoke(t.Context(), r); !errors.Is(err, want) || len(told) != i+1 {
			t.Fatalf("time %d: %v, told %d times", i+1, err, len(told))
		}
	}
	if err := c.Revoke(t.Context(), ca.Revocation{Serial: "01ff", Reason: ca.Superseded}); !errors.Is(err, ca.ErrNotFound) {
		t.Errorf("unknown serial: %v", err)
	}
	if len(told) != 2 || told[0] != told[1] || told[0].Issuer != c.Issuer.ID || told[0].Serial != got.Serial || told[0].Reason != ca.Superseded {
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
