package catest_test

import (
	"crypto/x509"
	"testing"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
)

func TestCertificatesVerify(t *testing.T) {
	t.Parallel()
	for _, policy := range []ca.Policy{ca.Internal, ca.Public} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			c := catest.New(t, func(cfg *ca.Config) { cfg.Policy = policy })
			got := c.Certificate(t, "www.example.com", "8.8.8.8")
			cert, err := x509.ParseCertificate(got.DER)
			if err != nil {
				t.Fatal(err)
			}
			roots, between := x509.NewCertPool(), x509.NewCertPool()
			roots.AddCert(c.Root)
			between.AddCert(c.Issuer.Cert)
			if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: "www.example.com"}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRespondersAreIssued(t *testing.T) {
	t.Parallel()
	for _, policy := range []ca.Policy{ca.Internal, ca.Public} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			c := catest.New(t, func(cfg *ca.Config) { cfg.Policy = policy })
			got, err := c.Issue(t.Context(), ca.Request{Profile: ca.ProfileResponder, PublicKey: catest.NewKey(t).Public(), Issuer: c.Issuer.ID},
				c.Store.PlainLedger())
			if err != nil {
				t.Fatal(err)
			}
			cert, err := x509.ParseCertificate(got.DER)
			if err != nil {
				t.Fatal(err)
			}
			if cert.Subject.CommonName != "Secsy Test Issuing 1 OCSP responder" || len(cert.ExtKeyUsage) != 1 || cert.ExtKeyUsage[0] != x509.ExtKeyUsageOCSPSigning {
				t.Errorf("subject %s, uses %v", cert.Subject, cert.ExtKeyUsage)
			}
			if cert.KeyUsage != x509.KeyUsageDigitalSignature || cert.CRLDistributionPoints != nil || cert.OCSPServer != nil {
				t.Error("a responder has more than it needs")
			}
		})
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	catest.StoreSuite(t, func(*testing.T) ca.Store { return catest.NewStore() })
}
