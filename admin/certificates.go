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
	p := readParams(r, "name", "serial", "state", "issuer", "profile", "account", "spki_sha256", "incident",
		"issued_after", "issued_before", "not_before_from", "not_before_to", "limit", "cursor")
	q := ca.ListQuery{
		Name:         p.text("name"),
		SerialPrefix: p.serialPrefix(),
		State:        ca.State(p.oneOf("state", client.States())),
		Profile:      p.text("profile"),
		IssuedAfter:  p.time("issued_after"), IssuedBefore: p.time("issued_before"),
		NotBeforeFrom: p.time("not_before_from"), NotBeforeTo: p.time("not_before_to"),
		Before: p.cursor("certificates"),
		Limit:  p.limit(),
	}
	selectState(&q, time.Now().UTC())
	q.Issuer = s.issuerOf(p.text("issuer"))
	var err error
	if q.SPKIHash, err = spkiHashOf(p.text("spki_sha256")); err != nil {
		p.fail(err)
	}
	if q.Requester, err = accountOf(p.text("account")); err != nil {
		p.fail(err)
	}
	if p.err != nil {
		return q, p.err
	}
	return q, s.selectIncident(r.Context(), &q, p.text("incident"))
}

// selectState says in the store's words what operators ask for in one.
func selectState(q *ca.ListQuery, now time.Time) {
	switch q.State {
	case "revoked":
		q.State, q.Revoked = ca.Issued, true
	case "held":
		q.State, q.Reason = ca.Issued, ca.CertificateHold
	case ca.Issued:
		q.Unrevoked = true
	case "valid":
		q.State, q.Unrevoked, q.NotAfterFrom = ca.Issued, true, now
	case "unexpired":
		q.State, q.NotAfterFrom = ca.Issued, now
	}
}

// selectIncident adds what an incident selects.
func (s *Server) selectIncident(ctx context.Context, q *ca.ListQuery, name string) error {
	if name == "" {
		return nil
	}
	if s.incidents == nil {
		return noIncident(name, ca.ErrNotFound)
	}
	i, err := s.incidents.Incident(ctx, name)
	if err != nil {
		return noIncident(name, err)
	}
	sel := i.Covers()
	given := q.Issuer != "" || q.Profile != "" || q.SPKIHash != "" || q.Requester != "" || !q.IssuedAfter.IsZero() || !q.IssuedBefore.IsZero()
	switch {
	case given:
		return invalid("incident", "has conditions of its own: only name, state and not_before go with it")
	case !i.EndedAt.IsZero():
		return problemf(http.StatusConflict, client.CodeConflict, "the incident %q has ended, and what it listed is forgotten", name)
	case sel.Listed:
		q.ListedBy = name
	}
	q.Issuer, q.Profile, q.SPKIHash, q.Requester = sel.Issuer, sel.Profile, sel.SPKIHash, sel.Requester
	q.IssuedAfter, q.IssuedBefore = sel.IssuedAfter, sel.IssuedBefore
	return nil
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
		c.RevokedAt, c.Reason, c.InvalidSince = timePtr(rec.RevokedAt), rec.Reason.String(), timePtr(rec.InvalidityAt)
	}
	return c
}

// status is the one word that an operator looks for.
func status(rec ca.Record, now time.Time) string {
	switch {
	case rec.State != ca.Issued:
		return string(rec.State)
	case rec.Revoked() && rec.Reason == ca.CertificateHold:
		return "held"
	case rec.Revoked():
		return "revoked"
	case now.After(rec.NotAfter):
		return "expired"
	case now.Before(rec.NotBefore):
		return "notYetValid"
	}
	return "valid"
}
