package ca_test

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/keys"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// fixedIssuer is an issuer that is the same in every run, from testdata.
func fixedIssuer(t *testing.T) *ca.Issuer {
	t.Helper()
	rest := read(t, "testdata/issuer.pem")
	keyPEM, rest := pem.Decode(rest)
	certPEM, _ := pem.Decode(rest)
	key, err := x509.ParsePKCS8PrivateKey(keyPEM.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	cert := parse(t, certPEM.Bytes)
	return &ca.Issuer{
		ID: ca.IDOf(cert), Name: "golden", Cert: cert, Key: keys.FromSigner(key.(crypto.Signer)), Active: true,
		OCSPURL: "http://pki.example.com/ocsp", CRLURL: "http://pki.example.com/golden.crl", CertURL: "http://pki.example.com/golden.cer",
	}
}

// fixedKey is a subscriber's public key that is the same in every run.
func fixedKey(t *testing.T, file string) crypto.PublicKey {
	t.Helper()
	block, _ := pem.Decode(read(t, file))
	pub, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return pub
}

// TestEveryOctetToBeSignedIsAsReviewed holds the TBSCertificate of each kind of
// certificate against a file, its random serial made zero.
func TestEveryOctetToBeSignedIsAsReviewed(t *testing.T) {
	t.Parallel()
	server := ca.Profile{
		Name: "server", Validity: 90 * day, Backdate: time.Hour, CommonName: ca.CNFirst, KeyUsages: []string{"digitalSignature", "keyEncipherment"},
	}
	bare := ca.Profile{Name: "bare", Validity: 6 * day, OmitCRL: true, OmitOCSP: true}
	short := ca.Profile{Name: "short", Validity: 6 * day, OmitCRL: true, OmitOCSP: true, NoRevAvail: true}
	sharded := func(i *ca.Issuer) {
		i.CRLShards, i.FreshestCRL = []ca.CRLShard{{ID: 3, URL: "http://pki.example.com/crl/golden/3.crl"}}, true
	}
	names := catest.IDs("www.example.com", "*.example.org", "8.8.8.8", "2606:4700::1111")
	for _, tt := range []struct {
		file    string
		policy  ca.Policy
		profile string
		key     string
		names   []ca.Identifier
		issuer  func(*ca.Issuer)
	}{
		{"server-internal-ecdsa", ca.Internal, "server", "testdata/ecdsa-p256.pub", names, nil},
		{"server-internal-rsa", ca.Internal, "server", "testdata/rsa-2048.pub", names, nil},
		{"server-public-ecdsa", ca.Public, "server", "testdata/ecdsa-p256.pub", names, nil},
		{"bare-public-ecdsa", ca.Public, "bare", "testdata/ecdsa-p256.pub", names[:1], nil},
		{"self-internal", ca.Internal, ca.ProfileSelf, "testdata/ecdsa-p256.pub", catest.IDs("pki", "10.0.0.1"), nil},
		{"responder-internal", ca.Internal, ca.ProfileResponder, "testdata/ecdsa-p256.pub", nil, nil},
		{"responder-public", ca.Public, ca.ProfileResponder, "testdata/ecdsa-p256.pub", nil, nil},
		{"registration-internal", ca.Internal, ca.ProfileRegistration, "testdata/rsa-2048.pub", nil, nil},
		{"short-internal-ecdsa", ca.Internal, "short", "testdata/ecdsa-p256.pub", names[:1], nil},
		{"short-public-ecdsa", ca.Public, "short", "testdata/ecdsa-p256.pub", names[:1], nil},
		{"sharded-internal-ecdsa", ca.Internal, "server", "testdata/ecdsa-p256.pub", names, sharded},
	} {
		t.Run(tt.file, func(t *testing.T) {
			t.Parallel()
			issuer := fixedIssuer(t)
			if tt.issuer != nil {
				tt.issuer(issuer)
			}
			c := catest.New(t, at(on(2026, time.December, 15)), func(cfg *ca.Config) {
				cfg.Policy, cfg.Issuers = tt.policy, []*ca.Issuer{issuer}
				cfg.Profiles, cfg.DefaultProfile = []ca.Profile{server, bare, short}, "server"
			})
			got, err := c.Issue(t.Context(), ca.Request{Profile: tt.profile, PublicKey: fixedKey(t, tt.key), Identifiers: tt.names, Issuer: issuer.ID}, c.Store.PlainLedger())
			if err != nil {
				t.Fatal(err)
			}
			cert := parse(t, got.DER)
			serial := cert.SerialNumber.Bytes()
			tbs := bytes.Replace(cert.RawTBSCertificate, serial, append(serial[:1:1], make([]byte, len(serial)-1)...), 1)
			compare(t, filepath.Join("testdata", tt.file+".hex"), tbs)
		})
	}
}

func compare(t *testing.T, file string, got []byte) {
	t.Helper()
	var lines strings.Builder
	for len(got) > 0 {
		n := min(32, len(got))
		lines.WriteString(hex.EncodeToString(got[:n]) + "\n")
		got = got[n:]
	}
	if *update {
		if err := os.WriteFile(file, []byte(lines.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want := string(read(t, file)); lines.String() != want {
		t.Errorf("%s: to be signed:\n%swant:\n%s", file, lines.String(), want)
	}
}
