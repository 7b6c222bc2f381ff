package ca_test

import (
	"crypto/x509"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/keys"
)

func TestRegistrationAuthorityHasAnRSAKeyThatSignsAndDecrypts(t *testing.T) {
	t.Parallel()
	c := catest.New(t)
	issuer := c.Issuers()[0]
	key, err := keys.NewPrivateKey(keys.RSA2048)
	if err != nil {
		t.Fatal(err)
	}
	req := ca.Request{Profile: ca.ProfileRegistration, Issuer: issuer.ID, PublicKey: key.Public()}
	got, err := c.Issue(t.Context(), req, c.Store.PlainLedger())
	if err != nil {
		t.Fatal(err)
	}
	cert := parse(t, got.DER)
	if cert.KeyUsage != x509.KeyUsageDigitalSignature|x509.KeyUsageKeyEncipherment || len(cert.ExtKeyUsage) != 0 || cert.IsCA ||
		!strings.HasSuffix(cert.Subject.CommonName, " SCEP RA") || cert.CheckSignatureFrom(issuer.Cert) != nil {
		t.Errorf("it is %+v, of %v", cert.Subject, cert.KeyUsage)
	}
	weak, named := req, req
	weak.PublicKey = catest.NewKey(t).Public() // which can't decrypt
	_, err = c.Issue(t.Context(), weak, c.Store.PlainLedger())
	wantRefusal(t, err, ca.BadPublicKey)
	named.Identifiers = catest.IDs("www.example.com")
	_, err = c.Issue(t.Context(), named, c.Store.PlainLedger())
	wantRefusal(t, err, ca.RejectedIdentifier)
	public := catest.New(t, func(cfg *ca.Config) { cfg.Policy = ca.Public })
	_, err = public.Issue(t.Context(), req, public.Store.PlainLedger())
	wantRefusal(t, err, ca.UnknownProfile)
}
