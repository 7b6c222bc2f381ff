package admin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/secsy-pki/secsy-pki/admin/client"
	"github.com/secsy-pki/secsy-pki/ca"
)

func (s *Server) listCertificates(w http.ResponseWriter, r *http.Request) error {
	q, err := s.readCertificateQuery(r)
	if err != nil {
		return err
	}
	recs, next, err := s.certificates.List(r.Context(), q)
	if errors.Is(err, ca.ErrNotFound) {
		return errBadCursor
	}
	if err != nil {
		return fmt.Errorf("listing certificates: %w", err)
	}
	now := time.Now()
	page := client.CertificatePage{Certificates: make([]client.Certificate, 0, len(recs)), Next: encodeCursor("certificates", next)}
	for _, rec := range recs {
		page.Certificates = append(page.Certificates, s.wireCertificate(rec, now))
	}
	return answer(w, page)
}

func (s *Server) readCertificateQuery(r *http.Request) (ca.ListQuery, error) {
	p := readParams(r, "name", "serial", "state", "issuer", "limit", "cursor")
	q := ca.ListQuery{
		Name:         p.text("name"),
		SerialPrefix: p.serialPrefix(),
		State:        ca.State(p.oneOf("state", client.States())),
		Before:       p.cursor("certificates"),
		Limit:        p.limit(),
	}
	switch q.State {
	case "revoked": // not a state of the store: an issued one that was taken back
		q.State, q.Revoked = ca.Issued, true
	case ca.Issued:
		q.Unrevoked = true
	}
	q.Issuer = s.issuerOf(p.text("issuer"))
	return q, p.err
}

// issuerOf finds an issuer's id by its name. What is no name is taken for the
// id of one that the configuration may have no longer.
func (s *Server) issuerOf(nameOrID string) ca.IssuerID {
	for _, i := range s.issuers {
		if i.Name == nameOrID {
			return i.ID
		}
	}
	return ca.IssuerID(nameOrID)
}

func (s *Server) certificate(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	serial, err := serialOf(r.PathValue("serial"))
	if err != nil {
		return err
	}
	return s.answerCertificate(r.Context(), w, serial)
}

func (s *Server) answerCertificate(ctx context.Context, w http.ResponseWriter, serial ca.Serial) error {
	rec, err := s.record(ctx, serial)
	if err != nil {
		return err
	}
	c := s.wireCertificate(rec, time.Now())
	if rec.DER != nil {
		sum := sha256.Sum256(rec.DER)
		c.Fingerprint = hex.EncodeToString(sum[:])
		c.PEM = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: rec.DER}))
	}
	return answer(w, c)
}

func (s *Server) record(ctx context.Context, serial ca.Serial) (ca.Record, error) {
	rec, err := s.certificates.Record(ctx, serial)
	if errors.Is(err, ca.ErrNotFound) {
		return ca.Record{}, problemf(http.StatusNotFound, client.CodeNotFound, "no certificate with the serial %s was issued here", serial)
	}
	if err != nil {
		return ca.Record{}, fmt.Errorf("reading certificate: %w", err)
	}
	return rec, nil
}

func (s *Server) revoke(w http.ResponseWriter, r *http.Request) error {
	req, err := readRevocation(w, r)
	if err != nil {
		return err
	}
	if err := s.authority.Revoke(r.Context(), req); err != nil {
		return s.whyNotRevoked(r.Context(), req.Serial, err)
	}
	return s.answerCertificate(r.Context(), w, req.Serial)
}

func readRevocation(w http.ResponseWriter, r *http.Request) (ca.Revocation, error) {
	serial, err := serialOf(r.PathValue("serial"))
	if err != nil {
		return ca.Revocation{}, err
	}
	var name string
	if err := readBody(w, r, map[string]any{"reason": &name}); err != nil {
		return ca.Revocation{}, err
	}
	reason, err := reasonOf(name)
	if err != nil {
		return ca.Revocation{}, err
	}
	return ca.Revocation{
		Serial: serial, Reason: reason, At: time.Now().UTC(), Requester: requester(r.Context()),
		BlockKey: reason == ca.KeyCompromise, // a key that is out must not come back in another certificate
	}, nil
}

// whyNotRevoked says what stands in the way, in an operator's words.
func (s *Server) whyNotRevoked(ctx context.Context, serial ca.Serial, cause error) error {
	if !errors.Is(cause, ca.ErrNotFound) && !errors.Is(cause, ca.ErrAlreadyRevoked) {
		return fmt.Errorf("revoking: %w", cause)
	}
	rec, err := s.record(ctx, serial)
	switch {
	case err != nil:
		return err
	case rec.State != ca.Issued:
		return problemf(http.StatusConflict, client.CodeNotIssued, "the serial %s is %s: there is no certificate to revoke", serial, rec.State)
	default:
		return problemf(http.StatusConflict, client.CodeAlreadyRevoked, "the certificate was revoked at %s for %s",
			rec.RevokedAt.UTC().Format(time.RFC3339), rec.Reason)
	}
}

func (s *Server) wireCertificate(rec ca.Record, now time.Time) client.Certificate {
	c := client.Certificate{
		Serial: string(rec.Serial), Status: status(rec, now),
		Issuer: string(rec.Issuer), Profile: rec.Profile, Requester: rec.Requester,
		Names:     make([]client.Name, 0, len(rec.Names)),
		NotBefore: rec.NotBefore, NotAfter: rec.NotAfter, CreatedAt: rec.CreatedAt,
		SPKIHash: hex.EncodeToString(rec.SPKIHash[:]),
	}
	for _, n := range rec.Names {
		c.Names = append(c.Names, client.Name{Type: string(n.Type), Value: n.Value})
	}
	for _, i := range s.issuers {
		if i.ID == rec.Issuer {
			c.IssuerName = i.Name
			break
		}
	}
	c.ReplacedBy = string(rec.ReplacedBy)
	if rec.State == ca.Issued {
		w := rec.RenewalWindow()
		c.RenewFrom, c.RenewTo = &w.Start, &w.End
	}
	if rec.Revoked() {
		c.RevokedAt, c.Reason = timePtr(rec.RevokedAt), rec.Reason.String()
	}
	return c
}

// status is the one word that an operator looks for.
func status(rec ca.Record, now time.Time) string {
	switch {
	case rec.State != ca.Issued:
		return string(rec.State)
	case rec.Revoked():
		return "revoked"
	case now.After(rec.NotAfter):
		return "expired"
	case now.Before(rec.NotBefore):
		return "notYetValid"
	}
	return "valid"
}
