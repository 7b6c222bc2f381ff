// Package catest is a whole certification authority for the tests of other
// rooms: real keys, a root and an issuer below it, a real linter, and a store in memory.
package catest

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/netip"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/lint"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/keys/keystest"
)

// Names of what New makes.
const (
	IssuerName  = "issuing"
	ProfileName = "server"
	// KeyLabel is the issuer's key in Keys; RootKeyLabel is the root's.
	KeyLabel     = "issuing"
	RootKeyLabel = "root"
)

// A CA is a certification authority in a test.
type CA struct {
	*ca.Authority
	Store  *Store
	Keys   *keystest.Store
	Root   *x509.Certificate
	Issuer *ca.Issuer
}

// New makes an internal CA with P-256 keys and one profile, "server": 90 days,
// all kinds of names, requested dates allowed. options change its Config before
// the Authority is made.
func New(t testing.TB, options ...func(*ca.Config)) *CA {
	t.Helper()
	c := &CA{Store: NewStore(), Keys: keystest.New()}
	cfg := ca.Config{
		Profiles: []ca.Profile{{
			Name: ProfileName, Validity: 90 * 24 * time.Hour, Backdate: time.Hour, CommonName: ca.CNFirst, RequestedDates: true,
		}},
		DefaultProfile: ProfileName,
		Store:          c.Store,
		Shard:          1,
	}
	for _, o := range options {
		o(&cfg)
	}
	if cfg.Linter == nil {
		cfg.Linter = Linter(t, cfg.Policy)
	}
	if len(cfg.Issuers) == 0 {
		c.Root, c.Issuer = NewIssuer(t, c.Keys, cfg)
		cfg.Issuers = []*ca.Issuer{c.Issuer}
	}
	a, err := ca.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.Authority = a
	return c
}

// Linter makes the real linter.
func Linter(t testing.TB, p ca.Policy) *lint.Linter {
	t.Helper()
	// Slots and time are generous: a test machine may be busy.
	l, err := lint.New(lint.Config{Policy: p, Running: 64, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// NewIssuer makes a root and an issuer below it, with keys in ks, by cfg's
// policy, clock and linter.
func NewIssuer(t testing.TB, ks *keystest.Store, cfg ca.Config) (*x509.Certificate, *ca.Issuer) {
	t.Helper()
	ctx := context.Background()
	rootKey, key := generate(t, ks, RootKeyLabel), generate(t, ks, KeyLabel)
	name := func(cn string) pkix.Name {
		return pkix.Name{Country: []string{"DE"}, Organization: []string{"Secsy Test"}, CommonName: cn}
	}
	// Authorities are older than what they issue and backdate.
	clock := func() time.Time {
		now := time.Now()
		if cfg.Clock != nil {
			now = cfg.Clock()
		}
		return now.Add(-30 * 24 * time.Hour)
	}
	rootDER, err := ca.CreateRoot(ctx, ca.RootRequest{Subject: name("Secsy Test Root"), Key: rootKey, Linter: cfg.Linter, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	root := parse(t, rootDER)
	der, err := ca.CreateIssuing(ctx, ca.IssuingRequest{
		Root: root, RootKey: rootKey, Subject: name("Secsy Test Issuing 1"), PublicKey: key.Public(), Policy: cfg.Policy,
		CRLURL: "http://pki.example.com/crl/root.crl", CertURL: "http://pki.example.com/aia/root.cer", Linter: cfg.Linter, Clock: clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	cert := parse(t, der)
	id := ca.IDOf(cert)
	return root, &ca.Issuer{
		ID: id, Name: IssuerName, Cert: cert, Key: key, Active: true,
		OCSPURL: "http://pki.example.com/ocsp",
		CRLURL:  "http://pki.example.com/crl/" + string(id) + ".crl",
		CertURL: "http://pki.example.com/aia/" + string(id) + ".cer",
	}
}

func generate(t testing.TB, ks *keystest.Store, label string) keys.Key {
	t.Helper()
	k, err := ks.Generate(context.Background(), label, keys.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func parse(t testing.TB, der []byte) *x509.Certificate {
	t.Helper()
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// NewKey makes a subscriber's P-256 key.
func NewKey(t testing.TB) crypto.Signer {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// IDs makes identifiers of names and addresses.
func IDs(values ...string) []ca.Identifier {
	out := make([]ca.Identifier, 0, len(values))
	for _, v := range values {
		id := ca.Identifier{Type: ca.DNS, Value: v}
		if _, err := netip.ParseAddr(v); err == nil {
			id.Type = ca.IP
		}
		out = append(out, id)
	}
	return out
}

// CSR makes a request for names and addresses, in DER.
func CSR(t testing.TB, key crypto.Signer, values ...string) []byte {
	t.Helper()
	tmpl := &x509.CertificateRequest{}
	for _, id := range IDs(values...) {
		if id.Type == ca.IP {
			tmpl.IPAddresses = append(tmpl.IPAddresses, netip.MustParseAddr(id.Value).AsSlice())
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, id.Value)
		}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, tmpl, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// Request asks for a certificate of names and addresses with a new key.
func Request(t testing.TB, values ...string) ca.Request {
	t.Helper()
	return ca.Request{CSR: CSR(t, NewKey(t), values...), Identifiers: IDs(values...), Requester: ca.Requester{Actor: "test"}}
}

// Certificate issues one for names and addresses.
func (c *CA) Certificate(t testing.TB, values ...string) ca.Certificate {
	t.Helper()
	got, err := c.Issue(context.Background(), Request(t, values...), c.Store.PlainLedger())
	if err != nil {
		t.Fatal(err)
	}
	return got
}
