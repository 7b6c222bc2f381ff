package ca_test

import (
	"errors"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/keys/keystest"
)

// An outage may last for hours, and all who were refused come again and again:
// none of their attempts may leave a serial, a row or an entry.
func TestAttemptsWhileTheDeviceIsAwayLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	entries, asked := len(c.Store.Entries()), c.Keys.Asked()
	c.Keys.Away(17 * time.Second)
	for name, req := range map[string]ca.Request{
		"a certificate": catest.Request(t, "www.example.com"),
		"a responder":   {Profile: ca.ProfileResponder, PublicKey: catest.NewKey(t).Public()},
		"our https":     {Profile: ca.ProfileSelf, PublicKey: catest.NewKey(t).Public(), Identifiers: catest.IDs("pki.example.com")},
	} {
		_, err := c.Issue(t.Context(), req, c.Store.PlainLedger())
		if r := refusal(t, err, ca.Busy); r.RetryAfter != 17*time.Second || !errors.Is(err, keys.ErrBusy) {
			t.Errorf("%s: %+v", name, r)
		}
		if r := refusal(t, c.Ready(req.Profile), ca.Busy); r.RetryAfter != 17*time.Second {
			t.Errorf("%s: ready: %+v", name, r)
		}
	}
	if len(c.Store.Records()) != 0 || len(c.Store.Entries()) != entries || c.Keys.Asked() != asked {
		t.Errorf("%d records, %d entries more, asked %d times", len(c.Store.Records()), len(c.Store.Entries())-entries, c.Keys.Asked()-asked)
	}
	// What is wrong with a request is said all the same.
	_, err := c.Issue(t.Context(), ca.Request{Profile: "absent"}, c.Store.PlainLedger())
	wantRefusal(t, err, ca.UnknownProfile)
	c.Keys.Back()
	if err := c.Ready(""); err != nil {
		t.Error(err)
	}
	c.Certificate(t, "www.example.com")
}

// A key that turns out to be another one is not busy: no waiting helps.
func TestAnIssuerWithAnotherKeyIssuesNothing(t *testing.T) {
	t.Parallel()
	c := catest.New(t, func(cfg *ca.Config) {
		unlinted(cfg)
		_, issuer := catest.NewIssuer(t, keystest.New(), *cfg)
		others := keystest.New()
		if _, err := others.Generate(t.Context(), catest.KeyLabel, keys.ECDSAP256); err != nil {
			t.Fatal(err)
		}
		late := keys.Later(others, catest.KeyLabel, issuer.Cert.PublicKey, keys.ErrBusy)
		if err := late.Find(t.Context()); !errors.Is(err, keys.ErrOtherKey) {
			t.Fatal(err)
		}
		issuer.Key = late
		cfg.Issuers = []*ca.Issuer{issuer}
	})
	_, err := c.Issue(t.Context(), catest.Request(t, "www.example.com"), c.Store.PlainLedger())
	if _, refused := errors.AsType[*ca.Refusal](err); refused || !errors.Is(err, keys.ErrOtherKey) || len(c.Store.Records()) != 0 {
		t.Errorf("%v, %d records", err, len(c.Store.Records()))
	}
}

// Whoever may choose takes an issuer whose device is there.
func TestAnIssuerWhoseDeviceIsAwayIsPassedOver(t *testing.T) {
	t.Parallel()
	here, away := keystest.New(), keystest.New()
	c := catest.New(t, func(cfg *ca.Config) {
		unlinted(cfg)
		for name, ks := range map[string]*keystest.Store{"here": here, "away": away} {
			_, issuer := catest.NewIssuer(t, ks, *cfg)
			issuer.Name = name
			cfg.Issuers = append(cfg.Issuers, issuer)
		}
	})
	used := map[ca.IssuerID]int{}
	for range 4 {
		used[c.Certificate(t, "www.example.com").Issuer]++
	}
	if len(used) != 2 {
		t.Errorf("they don't take turns: %v", used)
	}
	away.Away(time.Minute)
	before := away.Asked()
	for range 4 {
		c.Certificate(t, "www.example.com")
	}
	here.Away(time.Minute)
	_, err := c.Issue(t.Context(), catest.Request(t, "www.example.com"), c.Store.PlainLedger())
	wantRefusal(t, err, ca.Busy)
	if away.Asked() != before {
		t.Error("the one that is away was asked")
	}
}

// A call that hangs may sign yet: its serial is abandoned, and never another
// signature asked for under it.
func TestAHungDeviceAbandonsAndRevokes(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	asked := c.Keys.Asked()
	hang := c.Keys.Hang()
	defer hang.Return()
	_, err := c.Issue(t.Context(), catest.Request(t, "www.example.com"), c.Store.PlainLedger())
	if _, refused := errors.AsType[*ca.Refusal](err); refused || !ca.Hung(err) || ca.NeverSigned(err) {
		t.Errorf("error %v", err)
	}
	r := only(t, c.Store)
	if r.State != ca.Abandoned || !r.Revoked() || r.Reason != ca.AbandonedReason || c.Keys.Asked() != asked+1 {
		t.Errorf("record %+v, asked %d times", r, c.Keys.Asked()-asked)
	}
	if ca.Hung(keystest.ErrDevice) || ca.Hung(keys.ErrBusy) {
		t.Error("every error is called a hang")
	}
}

// Two signatures under one serial must never be: the device is not let repeat.
func TestACertificateIsNeverRepeatable(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	if _, err := c.Issue(keys.Repeatable(t.Context()), catest.Request(t, "www.example.com"), c.Store.PlainLedger()); err != nil {
		t.Fatal(err)
	}
	for _, s := range c.Keys.Signed() {
		if s.Repeatable {
			t.Errorf("%+v", s)
		}
	}
}
