package ocsp

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"testing"
	"time"

	xocsp "golang.org/x/crypto/ocsp"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/keys"
)

// records lets a CA's own store be asked for states.
type records struct{ ca.Store }

func (r records) Status(ctx context.Context, issuer ca.IssuerID, serial ca.Serial) (Status, error) {
	rec, err := r.Record(ctx, serial)
	if err != nil {
		return Status{}, err
	}
	if rec.Issuer != issuer {
		return Status{}, ca.ErrNotFound
	}
	return Status{State: rec.State, RevokedAt: rec.RevokedAt, Reason: rec.Reason, NotAfter: rec.NotAfter}, nil
}

func (r records) Heads(context.Context) (map[ca.IssuerID]int64, error) { return nil, nil }

func (r records) Changes(context.Context, ca.IssuerID, int64, int) ([]Change, error) { return nil, nil }

// The CA's own profile for responders must be what the responder needs, and
// what it issues is in the same status table as all else, its responders' too.
func TestCAAndResponderWorkTogether(t *testing.T) {
	t.Parallel()
	authority, kept := catest.New(t), newWorld(t)
	s, err := New(Config{
		Issuers: authority.Issuers(), Source: records{authority.Store}, Responders: kept,
		CA: authority, Ledger: authority.Store.PlainLedger(), Keys: authority.Keys,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	ask := func(leaf *x509.Certificate) *xocsp.Response {
		t.Helper()
		q, err := xocsp.CreateRequest(leaf, authority.Issuer.Cert, &xocsp.RequestOptions{Hash: crypto.SHA256})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := xocsp.ParseResponseForCert(doPost(s, q, requestType).Body.Bytes(), leaf, authority.Issuer.Cert)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	issued := authority.Certificate(t, "www.example.com")
	leaf, err := x509.ParseCertificate(issued.DER)
	if err != nil {
		t.Fatal(err)
	}
	good := ask(leaf)
	if good.Status != xocsp.Good || good.NextUpdate.After(good.Certificate.NotAfter) {
		t.Errorf("status %d until %v", good.Status, good.NextUpdate)
	}
	if own := ask(good.Certificate); own.Status != xocsp.Good {
		t.Errorf("the responder's own certificate: %d", own.Status)
	}
	// NeySlim/ultimate-ca-manager#344: a CA's own certificate has a status as well.
	if added, err := authority.Adopt(t.Context(), authority.Issuer.Cert); err != nil || added != bytes.Equal(authority.Issuer.Cert.RawIssuer, authority.Issuer.Cert.RawSubject) {
		t.Fatalf("adopted: %v, %v", added, err)
	}
	below := subordinate(t, authority)
	if added, err := authority.Adopt(t.Context(), below); err != nil || !added {
		t.Fatalf("adopted: %v, %v", added, err)
	}
	if sub := ask(below); sub.Status != xocsp.Good {
		t.Errorf("an authority below it: %d", sub.Status)
	}
	err = authority.Revoke(t.Context(), ca.Revocation{Serial: ca.SerialOf(below.SerialNumber), Reason: ca.CessationOfOperation, Requester: ca.Requester{Actor: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	if sub := ask(below); sub.Status != xocsp.Revoked {
		t.Errorf("a revoked authority below it: %d", sub.Status)
	}
	err = authority.Revoke(t.Context(), ca.Revocation{Serial: issued.Serial, Reason: ca.Superseded, Requester: ca.Requester{Actor: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	if bad := ask(leaf); bad.Status != xocsp.Revoked || bad.RevocationReason != int(ca.Superseded) || time.Since(bad.RevokedAt) > time.Minute {
		t.Errorf("after the revocation: %d, %d, %v", bad.Status, bad.RevocationReason, bad.RevokedAt)
	}
}

// subordinate is an authority that the CA signed outside of its ledger.
func subordinate(t *testing.T, authority *catest.CA) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(nil, &x509.Certificate{
		SerialNumber: big.NewInt(0x7711223344556677), Subject: pkix.Name{CommonName: "below"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}, authority.Issuer.Cert, newKey(t).Public(), keys.Signer(t.Context(), authority.Issuer.Key))
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}
