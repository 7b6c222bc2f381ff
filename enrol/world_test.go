package enrol_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/enrol"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/storetest"
)

const (
	goodPassword = "correct horse battery"
	devices      = "devices"
)

// A world is a desk with a real CA and a real database.
type world struct {
	*enrol.Desk
	t     *testing.T
	ca    *catest.CA
	store *store.Enrol
	cas   *store.CA
	now   time.Time
}

func newWorld(t *testing.T, options ...func(*enrol.Endpoint)) *world {
	t.Helper()
	db := storetest.SQLite(t)
	w := &world{t: t, store: store.NewEnrol(db), cas: store.NewCA(db), now: time.Now()}
	w.ca = catest.New(t, func(c *ca.Config) {
		c.Store = w.cas
		c.Profiles = []ca.Profile{{
			Name: "device", Validity: 10 * time.Hour, ExtKeyUsages: []string{"clientAuth"}, Names: []ca.NameKind{ca.KindDNS, ca.KindCommonName, ca.KindSerialNumber},
		}}
		c.DefaultProfile = "device"
	})
	e := enrol.Endpoint{Label: devices, Profile: "device", Rules: []enrol.Rule{
		{Kinds: []enrol.Kind{enrol.User}, Names: names(t, "common-name:{name}", "dns:{name}.example.org")},
		{Kinds: []enrol.Kind{enrol.Certificate}, Names: names(t, "serial-number:{name}")},
		{Kinds: []enrol.Kind{enrol.Challenge}, Names: names(t, "common-name:pump-*")},
	}, Renewal: enrol.Renewal{Grace: time.Hour}}
	for _, o := range options {
		o(&e)
	}
	desk, err := enrol.New(enrol.Config{
		Store: w.store, CA: w.ca.Authority, Issuers: []*ca.Issuer{w.ca.Issuer}, Endpoints: []enrol.Endpoint{e}, ChallengeKey: make([]byte, 32),
		Governor: gate.NewGovernor(gate.GovernorConfig{Ceiling: 2, PerClient: 2, MaxWait: time.Minute}), Verdicts: gate.NewVerdicts(gate.VerdictsConfig{}),
		Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return w.now },
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Desk = desk
	return w
}

func names(t *testing.T, list ...string) (out []enrol.NamePattern) {
	t.Helper()
	for _, s := range list {
		p, err := enrol.ParseNamePattern(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func csr(t *testing.T, key crypto.Signer, subject pkix.Name, dns ...string) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject, DNSNames: dns}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func (w *world) user(name string, change ...func(*enrol.UserRecord)) {
	w.t.Helper()
	hash, err := enrol.HashPassword(goodPassword)
	if err != nil {
		w.t.Fatal(err)
	}
	u := enrol.UserRecord{Name: name, Password: hash, CreatedAt: w.now}
	for _, f := range change {
		f(&u)
	}
	if err := w.store.AddUser(w.t.Context(), u, entry()); err != nil {
		w.t.Fatal(err)
	}
}

func entry() audit.Entry { return audit.New("operator:uid/0", "enrolment.tested", "enrolment/x", nil) }

func asUser(name string) enrol.Principal {
	return enrol.Principal{Kind: enrol.User, Name: name, Subject: name}
}

// challenge stores one, and returns its secret.
func (w *world) challenge(change ...func(*enrol.ChallengeRecord)) string {
	w.t.Helper()
	secret := enrol.NewSecret()
	c := enrol.ChallengeRecord{ID: audit.NewID(), Digest: w.Digest(secret), Endpoint: devices, MaxUses: 1, CreatedAt: w.now, Expires: w.now.Add(time.Hour)}
	for _, f := range change {
		f(&c)
	}
	if err := w.store.AddChallenge(w.t.Context(), c, entry()); err != nil {
		w.t.Fatal(err)
	}
	return secret
}

// issued enrols, and returns the certificate.
func (w *world) issued(req enrol.Request) *x509.Certificate {
	w.t.Helper()
	req.Endpoint = devices
	res, err := w.Enrol(w.t.Context(), req)
	if err != nil || res.Pending() {
		w.t.Fatalf("%+v, %v", res, err)
	}
	cert, err := x509.ParseCertificate(res.Certificate)
	if err != nil {
		w.t.Fatal(err)
	}
	return cert
}
