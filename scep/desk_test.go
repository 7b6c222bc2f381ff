package scep_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/enrol"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/scep"
	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/storetest"
)

// A site is SCEP over enrolment's own desk, a real CA and a real database, with
// strongSwan's pki as the device.
type site struct {
	t     *testing.T
	ca    *catest.CA
	store *store.Enrol
	desk  *enrol.Desk
	url   string
	dir   string
}

func newSite(t *testing.T, manual bool) *site {
	t.Helper()
	db := storetest.SQLite(t)
	x := &site{t: t, store: store.NewEnrol(db), dir: t.TempDir()}
	cas := store.NewCA(db)
	x.ca = catest.New(t, func(c *ca.Config) {
		c.Store, c.DefaultProfile = cas, "device"
		c.Profiles = []ca.Profile{{Name: "device", Validity: 24 * time.Hour, ExtKeyUsages: []string{"clientAuth"}, Names: []ca.NameKind{ca.KindDNS, ca.KindCommonName}}}
	})
	var rules []enrol.NamePattern
	for _, s := range []string{"common-name:pump-*", "dns:pump-*.example.com"} {
		p, err := enrol.ParseNamePattern(s)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, p)
	}
	var err error
	x.desk, err = enrol.New(enrol.Config{
		Store: x.store, CA: x.ca.Authority, Issuers: []*ca.Issuer{x.ca.Issuer}, ChallengeKey: make([]byte, 32), Logger: slog.New(slog.DiscardHandler),
		Endpoints: []enrol.Endpoint{{Label: "devices", Profile: "device", Manual: manual, Rules: []enrol.Rule{{Names: rules}}}},
		Governor:  gate.NewGovernor(gate.GovernorConfig{}), Verdicts: gate.NewVerdicts(gate.VerdictsConfig{}), RetryAfter: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	x.ca.Issuer.Root = x.ca.Root
	s, err := scep.New(scep.Config{
		Endpoints: []scep.Endpoint{{Label: "devices", Issuer: x.ca.Issuer}}, Desk: x.desk, CA: x.ca, Ledger: cas.PlainLedger(),
		Certificates: cas, Registrations: store.NewSCEP(db), Keys: x.ca.Keys,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(s.Handler())
	t.Cleanup(srv.Close)
	x.url = srv.URL + "/scep/devices"
	x.pki("", "--scepca", "--url", x.url, "--caout", x.path("ca.pem"), "--raout", x.path("ra.pem"), "--outform", "pem", "--force")
	for _, key := range []string{"k1", "k2"} {
		x.pki(key, "--gen", "--type", "rsa", "--size", "2048", "--outform", "pem")
	}
	return x
}

func (x *site) path(name string) string { return filepath.Join(x.dir, name) }

// pki runs pki, and writes what it says to a file. It reports whether it ended well.
func (x *site) pki(out string, args ...string) bool {
	x.t.Helper()
	cmd := exec.CommandContext(x.t.Context(), "pki", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		x.t.Logf("pki %v: %s", args, stderr.Bytes())
		return false
	}
	if out != "" {
		if err := os.WriteFile(x.path(out), text, 0o600); err != nil {
			x.t.Fatal(err)
		}
	}
	return true
}

// scep has a device enrol or renew.
func (x *site) scep(out, key, name string, args ...string) bool {
	x.t.Helper()
	ra := x.path("ra.pem")
	return x.pki(out, slices.Concat([]string{
		"--scep", "--url", x.url, "--in", x.path(key), "--dn", "CN=" + name, "--san", name + ".example.com", "--outform", "pem", "--cacert", x.path("ca.pem"),
		"--cacert", x.path("ca-1.pem"), "--cacert-enc", ra, "--cacert-sig", ra, "--interval", "1", "--maxpolltime", "30",
	}, args)...)
}

func (x *site) challenge(uses int) string {
	x.t.Helper()
	secret := enrol.NewSecret()
	err := x.store.AddChallenge(x.t.Context(), enrol.ChallengeRecord{
		ID: audit.NewID(), Digest: x.desk.Digest(secret), Endpoint: "devices", MaxUses: uses, CreatedAt: time.Now(), CreatedBy: "operator:uid/0",
	}, audit.New("operator:uid/0", "enrolment.challenge_created", "enrolment/x", nil))
	if err != nil {
		x.t.Fatal(err)
	}
	return secret
}

func (x *site) certificate(name string) *x509.Certificate {
	x.t.Helper()
	b, err := os.ReadFile(x.path(name))
	if err != nil {
		x.t.Fatal(err)
	}
	block, _ := pem.Decode(b)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		x.t.Fatal(err)
	}
	return cert
}

// A challenge for one use is used once, by one key; what comes again for the same
// key under the same transaction is the same certificate.
func TestAOneTimeChallengeGivesOneCertificate(t *testing.T) {
	t.Parallel()
	x := newSite(t, false)
	once := x.challenge(1)
	if x.scep("c.pem", "k1", "server", "--password", once) {
		t.Error("it was given a name that no rule allows")
	}
	for _, out := range []string{"c1.pem", "again.pem"} { // what was refused has spent nothing
		if !x.scep(out, "k1", "pump-1", "--password", once) {
			t.Fatal("it did not enrol")
		}
	}
	if !x.certificate("c1.pem").Equal(x.certificate("again.pem")) {
		t.Error("asked again it is another certificate")
	}
	if x.scep("c2.pem", "k2", "pump-2", "--password", once) {
		t.Error("the challenge was used twice")
	}
	// A renewal needs none, and is for the same names alone.
	if x.scep("c2.pem", "k2", "pump-2", "--cert", x.path("c1.pem"), "--key", x.path("k1")) {
		t.Error("a renewal has another's name")
	}
	if !x.scep("c2.pem", "k2", "pump-1", "--cert", x.path("c1.pem"), "--key", x.path("k1")) {
		t.Fatal("it did not renew")
	}
	if got := x.certificate("c2.pem"); got.Subject.CommonName != "pump-1" || got.Equal(x.certificate("c1.pem")) {
		t.Errorf("renewed as %v", got.Subject)
	}
	// A revoked certificate renews nothing, whatever way it comes.
	if err := x.ca.Revoke(t.Context(), ca.Revocation{Serial: ca.SerialOf(x.certificate("c2.pem").SerialNumber), Reason: ca.KeyCompromise}); err != nil {
		t.Fatal(err)
	}
	if x.scep("c3.pem", "k1", "pump-1", "--cert", x.path("c2.pem"), "--key", x.path("k2")) {
		t.Error("a revoked certificate was renewed")
	}
}

func TestAnOperatorApprovesWhatADevicePollsFor(t *testing.T) {
	t.Parallel()
	x := newSite(t, true)
	secret := x.challenge(1)
	done := make(chan bool, 1)
	go func() { done <- x.scep("c.pem", "k1", "pump-1", "--password", secret) }()
	var waiting []enrol.Record
	for deadline := time.Now().Add(20 * time.Second); len(waiting) == 0 && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var err error
		if waiting, _, err = x.store.ListRequests(t.Context(), enrol.Waiting, "", 10); err != nil {
			t.Fatal(err)
		}
	}
	if len(waiting) != 1 {
		t.Fatalf("%d requests wait", len(waiting))
	}
	now := time.Now()
	err := x.store.DecideRequest(t.Context(), waiting[0].ID, enrol.Approved, "operator:uid/0", now, now.Add(time.Hour),
		audit.New("operator:uid/0", "enrolment.approved", "enrolment/"+waiting[0].ID, nil))
	if err != nil {
		t.Fatal(err)
	}
	if !<-done {
		t.Fatal("no certificate")
	}
	if got := x.certificate("c.pem"); got.Subject.CommonName != "pump-1" {
		t.Errorf("certificate of %v", got.Subject)
	}
}
