package ca_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/keys"
)

// TestCertificatesOfAuthoritiesAreAdoptedByWhoSignedThem: the issuer's own, if it
// signed that itself, and those below it or beside it; others never, whatever
// name they say to be signed by.
func TestCertificatesOfAuthoritiesAreAdoptedByWhoSignedThem(t *testing.T) {
	t.Parallel()
	c := catest.New(t)
	is := c.Issuers()[0]
	stranger := catest.NewKey(t)
	sub := func(serial int64, by *x509.Certificate, key keys.Key) *x509.Certificate {
		t.Helper()
		tmpl := &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "below"}, IsCA: true, BasicConstraintsValid: true,
			KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		}
		der, err := x509.CreateCertificate(nil, tmpl, by, catest.NewKey(t).Public(), keys.Signer(t.Context(), key))
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	ours := sub(77, is.Cert, is.Key)
	for _, want := range []bool{true, false} {
		if got, err := c.Adopt(t.Context(), ours); err != nil || got != want {
			t.Errorf("%v, %v; want %v", got, err, want)
		}
	}
	rec, err := c.Store.Record(t.Context(), ca.SerialOf(ours.SerialNumber))
	if err != nil || rec.Issuer != is.ID || rec.State != ca.Issued || !rec.NotAfter.Equal(ours.NotAfter) {
		t.Errorf("%+v, %v", rec, err)
	}
	if last := c.Store.Entries()[len(c.Store.Entries())-1]; last.Action != ca.ActionAdopted {
		t.Errorf("the last entry is %s", last.Action)
	}
	forged := *is.Cert
	forged.PublicKey = stranger.Public()
	forged.AuthorityKeyId, forged.SubjectKeyId = nil, nil
	theirs := sub(78, &forged, keys.FromSigner(stranger))
	if got, err := c.Adopt(t.Context(), theirs); err != nil || got {
		t.Errorf("another's is adopted: %v, %v", got, err)
	}
}
