package admin

import (
	"context"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"

	"github.com/secsy-pki/secsy-pki/admin/client"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/crl"
)

func (s *Server) listIssuers(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	list := client.IssuerList{Issuers: make([]client.Issuer, 0, len(s.issuers))}
	for _, i := range s.issuers {
		wire := wireIssuer(i)
		var err error
		if wire.CRL, err = s.latestCRL(r.Context(), i.ID); err != nil {
			return err
		}
		list.Issuers = append(list.Issuers, wire)
	}
	return answer(w, list)
}

func (s *Server) latestCRL(ctx context.Context, id ca.IssuerID) (*client.CRL, error) {
	if s.crls == nil {
		return nil, nil
	}
	l, err := s.crls.Latest(ctx, crl.Series{Scope: crl.Scope{Issuer: id}})
	if errors.Is(err, crl.ErrNone) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the latest CRL of %s: %w", id, err)
	}
	return &client.CRL{Number: int64(l.Number), ThisUpdate: l.ThisUpdate, NextUpdate: l.NextUpdate, Entries: l.Entries}, nil
}

func wireIssuer(i *ca.Issuer) client.Issuer {
	sum := sha256.Sum256(i.Cert.Raw)
	return client.Issuer{
		Name: i.Name, ID: string(i.ID), Subject: i.Cert.Subject.String(), Serial: string(ca.SerialOf(i.Cert.SerialNumber)),
		NotBefore: i.Cert.NotBefore, NotAfter: i.Cert.NotAfter,
		KeyAlgorithm: keyAlgorithm(i.Cert), Fingerprint: hex.EncodeToString(sum[:]), Active: i.Active,
		OCSPURL: i.OCSPURL, CRLURL: i.CRLURL, CertURL: i.CertURL,
		PEM: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Cert.Raw})),
	}
}

func keyAlgorithm(c *x509.Certificate) string {
	switch k := c.PublicKey.(type) {
	case *ecdsa.PublicKey:
		return "ECDSA " + k.Curve.Params().Name
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA %d", k.N.BitLen())
	}
	return c.PublicKeyAlgorithm.String()
}
