package lint_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	zx509 "github.com/zmap/zcrypto/x509"
	"github.com/zmap/zlint/v3"
	zl "github.com/zmap/zlint/v3/lint"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/ca/lint"
)

// Names on which the lint of TestMain misbehaves.
const (
	panics = "panic.example.com"
	hangs  = "hang.example.com"
)

// release lets hanging lints go.
var release = make(chan struct{})

// misbehaving is a lint that a certificate's names can bring down.
type misbehaving struct{}

func (misbehaving) CheckApplies(c *zx509.Certificate) bool {
	return slices.Contains(c.DNSNames, panics) || slices.Contains(c.DNSNames, hangs)
}

func (misbehaving) Execute(c *zx509.Certificate) *zl.LintResult {
	if slices.Contains(c.DNSNames, panics) {
		panic("index out of range")
	}
	<-release
	return &zl.LintResult{Status: zl.Pass}
}

func TestMain(m *testing.M) {
	zl.RegisterCertificateLint(&zl.CertificateLint{
		LintMetadata: zl.LintMetadata{Name: "e_secsy_misbehaving", Description: "for tests", Citation: "none", Source: zl.Community},
		Lint:         func() zl.CertificateLintInterface { return misbehaving{} },
	})
	code := m.Run()
	os.Exit(code)
}

// draftOf makes a draft for names that change has altered, under a new authority.
func draftOf(t testing.TB, change func(*x509.Certificate), names ...string) ca.Draft {
	t.Helper()
	caKey, key := catest.NewKey(t), catest.NewKey(t)
	now := time.Now().UTC().Truncate(time.Second)
	issuer := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Country: []string{"DE"}, Organization: []string{"Test"}, CommonName: "Test CA"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(1000 * 24 * time.Hour), IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, SubjectKeyId: []byte("a key id of the issuer"),
	}
	caDER, err := x509.CreateCertificate(rand.Reader, issuer, issuer, caKey.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	parent, err := x509.ParseCertificate(caDER)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(append([]byte{1}, make([]byte, 16)...)), DNSNames: names,
		NotBefore: now, NotAfter: now.Add(90*24*time.Hour - time.Second), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
		OCSPServer: []string{"http://pki.example.com/ocsp"}, IssuingCertificateURL: []string{"http://pki.example.com/ca.cer"},
		CRLDistributionPoints: []string{"http://pki.example.com/ca.crl"},
	}
	policy, err := x509.OIDFromInts([]uint64{2, 23, 140, 1, 2, 1})
	if err != nil {
		t.Fatal(err)
	}
	tmpl.Policies = []x509.OID{policy}
	change(tmpl)
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, key.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return ca.Draft{DER: der, Issuer: parent, Kind: ca.LintServer, SPKIHash: sha256.Sum256(spki)}
}

func same(*x509.Certificate) {}

// noStatus has the certificate say that there is no status of it (RFC 9608), as
// one of some days may.
func noStatus(c *x509.Certificate) {
	c.NotAfter = c.NotBefore.Add(6 * 24 * time.Hour)
	c.OCSPServer, c.CRLDistributionPoints = nil, nil
	c.ExtraExtensions = []pkix.Extension{{Id: []int{2, 5, 29, 56}, Value: []byte{5, 0}}}
}

func linter(t testing.TB, cfg lint.Config) *lint.Linter {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	l, err := lint.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestFaultsAreFoundByPolicy(t *testing.T) {
	t.Parallel()
	internal, public := linter(t, lint.Config{}), linter(t, lint.Config{Policy: ca.Public})
	for name, tt := range map[string]struct {
		change           func(*x509.Certificate)
		host             string
		internal, public string // a lint that must be found, "" for none at all
	}{
		"good":         {same, "www.example.com", "", ""},
		"short serial": {func(c *x509.Certificate) { c.SerialNumber = big.NewInt(7) }, "www.example.com", "e_secsy_serial_shape", "e_secsy_serial_shape"},
		"outlives":     {func(c *x509.Certificate) { c.NotAfter = c.NotAfter.Add(1000 * 24 * time.Hour) }, "www.example.com", "e_secsy_outlives_issuer", "e_secsy_outlives_issuer"},
		"authority":    {func(c *x509.Certificate) { c.IsCA = true }, "www.example.com", "e_secsy_authority", "e_secsy_authority"},
		"too long":     {func(c *x509.Certificate) { c.NotAfter = c.NotBefore.Add(300 * 24 * time.Hour) }, "www.example.com", "", "e_server_cert_valid_time_longer_than_200_days"},
		"to the limit": {func(c *x509.Certificate) { c.NotAfter = c.NotBefore.Add(200*24*time.Hour - time.Second) }, "www.example.com", "", ""},
		"private name": {same, "db.corp.internal", "", "e_dnsname_not_valid_tld"},
		"private addr": {func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} }, "www.example.com", "", "e_ext_san_contains_reserved_ip"},
		"client too":   {func(c *x509.Certificate) { c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageCodeSigning) }, "www.example.com", "", "e_sub_cert_eku_check"},
		"no status":    {noStatus, "www.example.com", "", ""},
		"and yet OCSP": {func(c *x509.Certificate) { noStatus(c); c.OCSPServer = []string{"http://pki.example.com/ocsp"} }, "www.example.com", "e_secsy_no_rev_avail", "e_secsy_no_rev_avail"},
		"and yet CRL": {func(c *x509.Certificate) {
			noStatus(c)
			c.CRLDistributionPoints = []string{"http://pki.example.com/ca.crl"}
		}, "www.example.com", "e_secsy_no_rev_avail", "e_secsy_no_rev_avail"},
		"and a delta": {func(c *x509.Certificate) {
			noStatus(c)
			c.ExtraExtensions = append(c.ExtraExtensions, pkix.Extension{Id: []int{2, 5, 29, 46}, Value: []byte{0x30, 0}})
		}, "www.example.com", "e_secsy_no_rev_avail", "e_secsy_no_rev_avail"},
		"critical": {func(c *x509.Certificate) { noStatus(c); c.ExtraExtensions[0].Critical = true }, "www.example.com", "e_secsy_no_rev_avail", "e_secsy_no_rev_avail"},
		"not NULL": {func(c *x509.Certificate) { noStatus(c); c.ExtraExtensions[0].Value = []byte{0x30, 0} }, "www.example.com", "e_secsy_no_rev_avail", "e_secsy_no_rev_avail"},
		"no SAN":   {func(c *x509.Certificate) { c.DNSNames = nil }, "", "e_subject_empty_without_san", "e_ext_san_missing"},
	} {
		d := draftOf(t, tt.change, tt.host)
		for policy, l := range map[string]*lint.Linter{"internal": internal, "public": public} {
			want := tt.internal
			if policy == "public" {
				want = tt.public
			}
			found, err := l.Lint(t.Context(), d)
			if err != nil {
				t.Errorf("%s, %s: %v", name, policy, err)
			}
			if want == "" && len(found) > 0 {
				t.Errorf("%s, %s: found %v", name, policy, found)
			}
			if want != "" && !slices.ContainsFunc(found, func(f ca.Finding) bool { return strings.Contains(f.Lint, want) }) {
				t.Errorf("%s, %s: found %v, want %s", name, policy, found, want)
			}
		}
	}
}

// We run the lints ourselves, and do not configure what needs none.
func TestLintsFindWhatZlintFinds(t *testing.T) {
	t.Parallel()
	d := draftOf(t, func(c *x509.Certificate) {
		c.NotAfter = c.NotBefore.Add(900 * 24 * time.Hour)
		c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageCodeSigning)
		c.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)}
	}, "db.corp.internal", "a_b.example.com")
	cert, err := zx509.ParseCertificate(d.DER)
	if err != nil {
		t.Fatal(err)
	}
	found, err := linter(t, lint.Config{Policy: ca.Public}).Lint(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	ours := 0
	theirs := zlint.LintCertificate(cert).Results
	for _, f := range found {
		if strings.HasPrefix(f.Lint, "e_secsy_") {
			continue
		}
		ours++
		if r := theirs[f.Lint]; r == nil || r.Status.String() != f.Status || r.Details != f.Detail {
			t.Errorf("found %v, zlint says %v", f, r)
		}
	}
	if ours < 5 {
		t.Errorf("found %v, which is too little", found)
	}
	for name, r := range theirs {
		if r.Status >= zl.Error && r.LintMetadata.Source == zl.CABFBaselineRequirements && !slices.ContainsFunc(found, func(f ca.Finding) bool { return f.Lint == name }) {
			t.Errorf("zlint finds %s and we do not", name)
		}
	}
}

func TestDraftIsWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	l := linter(t, lint.Config{})
	d, other := draftOf(t, same, "www.example.com"), draftOf(t, same, "www.example.com")
	for name, change := range map[string]func(*ca.Draft){
		"e_secsy_other_key":        func(d *ca.Draft) { d.SPKIHash = other.SPKIHash },
		"e_secsy_authority":        func(d *ca.Draft) { d.Kind = ca.LintIssuing },
		"e_secsy_authority_key_id": func(d *ca.Draft) { i := *d.Issuer; i.SubjectKeyId = []byte("another"); d.Issuer = &i },
		"e_secsy_issuer_name":      func(d *ca.Draft) { i := *d.Issuer; i.RawSubject = []byte{0x30, 0}; d.Issuer = &i },
	} {
		changed := d
		change(&changed)
		found, err := l.Lint(t.Context(), changed)
		if err != nil || !slices.ContainsFunc(found, func(f ca.Finding) bool { return f.Lint == name }) {
			t.Errorf("%s: found %v, error %v", name, found, err)
		}
	}
}

func TestPanickingLintRefuses(t *testing.T) {
	t.Parallel()
	l := linter(t, lint.Config{})
	found, err := l.Lint(t.Context(), draftOf(t, same, panics))
	if err == nil && len(found) == 0 {
		t.Error("a panic passed")
	}
}

func TestHangingLintsAreBounded(t *testing.T) {
	t.Parallel()
	l := linter(t, lint.Config{Timeout: 20 * time.Millisecond, Running: 2})
	bad, good := draftOf(t, same, hangs), draftOf(t, same, "www.example.com")
	for range 2 {
		if _, err := l.Lint(t.Context(), bad); err == nil {
			t.Error("a hanging lint passed")
		}
	}
	// Both slots are held: refusing is all that is left.
	if _, err := l.Lint(t.Context(), good); err == nil {
		t.Error("a third lint ran beside two that hang")
	}
	close(release)
}

func TestNothingIsLintedWithoutTime(t *testing.T) {
	t.Parallel()
	l := linter(t, lint.Config{Running: 1})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		if _, err := l.Lint(ctx, draftOf(t, same, "www.example.com")); err != nil {
			return
		}
	}
	t.Error("linted a hundred times for a caller that had left")
}

func TestUnknownLintsAndPoliciesAreRefused(t *testing.T) {
	t.Parallel()
	if _, err := lint.New(lint.Config{Ignore: []string{"e_no_such_lint"}}); err == nil {
		t.Error("an unknown lint may be ignored")
	}
	if _, err := lint.New(lint.Config{Policy: "lax"}); err == nil {
		t.Error("an unknown policy has lints")
	}
	l := linter(t, lint.Config{})
	if _, err := l.Lint(t.Context(), ca.Draft{Kind: "other"}); err == nil {
		t.Error("an unknown kind passed")
	}
	if _, err := l.Lint(t.Context(), ca.Draft{Kind: ca.LintServer, DER: []byte("no certificate")}); err == nil {
		t.Error("no certificate passed")
	}
}

func TestIgnoredLintDoesNotBlock(t *testing.T) {
	t.Parallel()
	d := draftOf(t, same, "db.corp.internal")
	strict := linter(t, lint.Config{Policy: ca.Public})
	found, err := strict.Lint(t.Context(), d)
	if err != nil || len(found) == 0 {
		t.Fatalf("found %v, error %v", found, err)
	}
	var names []string
	for _, f := range found {
		names = append(names, f.Lint)
	}
	found, err = linter(t, lint.Config{Policy: ca.Public, Ignore: names}).Lint(t.Context(), d)
	if err != nil || len(found) > 0 {
		t.Errorf("found %v, error %v", found, err)
	}
}

func BenchmarkLint(b *testing.B) {
	for _, policy := range []ca.Policy{ca.Internal, ca.Public} {
		b.Run(string(policy), func(b *testing.B) {
			l, d := linter(b, lint.Config{Policy: policy}), draftOf(b, same, "www.example.com", "example.com")
			b.ReportAllocs()
			for b.Loop() {
				if found, err := l.Lint(b.Context(), d); err != nil || len(found) > 0 {
					b.Fatal(found, err)
				}
			}
		})
	}
}
