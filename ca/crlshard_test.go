package ca_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
)

// shards are n of them at addresses of their own.
func shards(n int) []ca.CRLShard {
	var out []ca.CRLShard
	for id := 1; id <= n; id++ {
		out = append(out, ca.CRLShard{ID: id, URL: fmt.Sprintf("http://pki.example.com/crl/issuing/%d.crl", id)})
	}
	return out
}

// begun keeps what was recorded last.
type begun struct {
	ca.Ledger
	in ca.Intent
}

func (b *begun) Begin(ctx context.Context, in ca.Intent) error {
	b.in = in
	return b.Ledger.Begin(ctx, in)
}

// What is recorded and what is signed are one choice, which a later change of
// the number of shards has no part in.
func TestShardIsSaidInTheCertificateAndRecorded(t *testing.T) {
	t.Parallel()
	all := shards(4)
	c := catest.New(t)
	c.Issuer.CRLShards = all
	seen, key := map[int]int{}, catest.NewKey(t)
	for i := range 64 {
		led := &begun{Ledger: c.Store.PlainLedger()}
		got, err := c.Issue(t.Context(), ca.Request{PublicKey: key.Public(), Identifiers: catest.IDs("www.example.com")}, led)
		if err != nil {
			t.Fatal(err)
		}
		in := led.in
		if in.CRLShard < 1 || in.CRLShard > len(all) {
			t.Fatalf("certificate %d: shard %d", i, in.CRLShard)
		}
		if points := parse(t, got.DER).CRLDistributionPoints; !slices.Equal(points, []string{all[in.CRLShard-1].URL}) {
			t.Fatalf("shard %d, and the certificate says %q", in.CRLShard, points)
		}
		seen[in.CRLShard]++
	}
	if len(seen) != len(all) {
		t.Errorf("64 certificates in shards %v", seen)
	}
}

func TestCertificateThatNamesNoCRLIsInNoShard(t *testing.T) {
	t.Parallel()
	c := catest.New(t, func(cfg *ca.Config) {
		cfg.Profiles = []ca.Profile{{Name: "bare", Validity: day, OmitCRL: true}}
		cfg.DefaultProfile = "bare"
	})
	c.Issuer.CRLShards, c.Issuer.FreshestCRL = shards(4), true
	led := &begun{Ledger: c.Store.PlainLedger()}
	got, err := c.Issue(t.Context(), ca.Request{PublicKey: catest.NewKey(t).Public(), Identifiers: catest.IDs("www.example.com")}, led)
	if err != nil {
		t.Fatal(err)
	}
	if led.in.CRLShard != 0 {
		t.Errorf("shard %d", led.in.CRLShard)
	}
	for _, e := range parse(t, got.DER).Extensions {
		if e.Id.String() == "2.5.29.46" {
			t.Error("freshestCRL without a CRL")
		}
	}
}

func TestNoStatusIsSaidOnlyWhereThereIsNone(t *testing.T) {
	t.Parallel()
	p := ca.Profile{Name: "short", Validity: 6 * day, Backdate: time.Hour, NoRevAvail: true}
	err := p.Validate()
	if err == nil || !strings.Contains(err.Error(), "ocsp") || !strings.Contains(err.Error(), "crl") {
		t.Errorf("with the addresses of both: %v", err)
	}
	p.OmitOCSP, p.OmitCRL = true, true
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	for validity, want := range map[time.Duration]bool{7 * day: true, 7*day + time.Second: false} {
		p.Validity = validity
		_, err := ca.New(ca.Config{
			Issuers: []*ca.Issuer{catest.New(t).Issuer}, Profiles: []ca.Profile{p}, Policy: ca.Public, Store: catest.NewStore(),
			Linter: catest.Linter(t, ca.Public), Clock: func() time.Time { return on(2026, time.December, 15) },
		})
		if (err == nil) != want {
			t.Errorf("under the public policy, %s: %v", validity, err)
		}
	}
}
