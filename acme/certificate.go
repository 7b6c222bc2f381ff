package acme

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"

	"github.com/secsy-pki/secsy-pki/ca"
)

// certificate answers with a chain, end entity first (RFC 8555 §7.4.2).
func (s *Server) certificate(w http.ResponseWriter, r *http.Request) error {
	req, err := s.readRequest(r)
	if err != nil {
		return err
	}
	id := pathValue(r, "id")
	if !isID(id) {
		return s.notTheirs(r.Context(), req)
	}
	rec, err := s.store.CertificateOf(r.Context(), actor(req.account.ID), id)
	if errors.Is(err, ca.ErrNotFound) {
		return s.notTheirs(r.Context(), req)
	}
	if err != nil {
		return err
	}
	issuer, ok := s.ca.Issuer(rec.Issuer)
	if !ok {
		return fmt.Errorf("certificate %s: issuer %s is not configured", rec.ID, rec.Issuer)
	}
	out := pemOf(rec.DER)
	out = append(out, pemOf(issuer.Cert.Raw)...)
	for _, c := range issuer.Chain {
		out = append(out, pemOf(c.Raw)...)
	}
	w.Header().Set("Content-Type", "application/pem-certificate-chain")
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(out)
	return nil
}

func pemOf(der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}) }
