package acme

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/secsy-pki/secsy-pki/ca"
)

// revokeCert takes back a certificate (RFC 8555 §7.6) for the account that
// ordered it, for whoever has its key, and for an account that holds
// authorizations for all its names. No limit refuses it: a compromised key is
// revoked within 24 hours (CA/Browser Forum BR §4.9.1.1), flood or no flood.
func (s *Server) revokeCert(w http.ResponseWriter, r *http.Request) error {
	req, err := s.eitherRequest(r, terms{class: s.classes.revoke, exempt: true, gate: s.revokes})
	if err != nil {
		return err
	}
	cert, reason, err := readRevocation(req)
	if err != nil {
		return err
	}
	rev, err := s.mayRevoke(r, req, cert, reason)
	if err != nil {
		return err
	}
	if rec, err := s.store.Record(r.Context(), rev.Serial); err == nil && rec.AutoRenewed {
		// RFC 8739 §3.1.2: it is short-lived, and its renewal is canceled.
		return &Problem{Type: AutoRenewalRevocationNotSupported, Detail: "certificates that are renewed automatically are not revoked here; cancel their order"}
	}
	switch err := s.ca.Revoke(r.Context(), rev); {
	case errors.Is(err, ca.ErrNotFound):
		return notYours()
	case err != nil:
		return fmt.Errorf("revoking %s: %w", rev.Serial, err)
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

func readRevocation(req request) (*x509.Certificate, ca.Reason, error) {
	var body struct {
		Certificate string           `json:"certificate"`
		Reason      *json.RawMessage `json:"reason"`
	}
	if err := req.decode(&body); err != nil {
		return nil, 0, err
	}
	der, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(body.Certificate, "="))
	if err != nil {
		return nil, 0, malformed("certificate is not base64url")
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, 0, &Problem{Type: Malformed, Detail: "certificate is not a DER certificate", Err: err}
	}
	var reason int
	if body.Reason != nil && json.Unmarshal(*body.Reason, &reason) != nil {
		return nil, 0, &Problem{Type: BadRevocationReason, Detail: "reason is not a whole number"}
	}
	return cert, ca.Reason(reason), checkReason(ca.Reason(reason))
}

// checkReason accepts what a subscriber may say; the others are the CA's own
// (BR §7.2.2, §4.9.1.1).
func checkReason(r ca.Reason) error {
	switch r {
	case ca.Unspecified, ca.KeyCompromise, ca.AffiliationChanged, ca.Superseded, ca.CessationOfOperation:
		return nil
	}
	return &Problem{Type: BadRevocationReason, Detail: "a subscriber may give reason 0, 1, 3, 4 or 5 (RFC 5280 §5.3.1)"}
}

// mayRevoke says whether the signer may revoke cert, and how. A certificate
// that is not ours and one that is not the signer's get the same answer, after
// the same questions to the store.
func (s *Server) mayRevoke(r *http.Request, req request, cert *x509.Certificate, reason ca.Reason) (ca.Revocation, error) {
	rec, err := s.store.Record(r.Context(), ca.SerialOf(cert.SerialNumber))
	if err != nil && !errors.Is(err, ca.ErrNotFound) {
		return ca.Revocation{}, err
	}
	ours := err == nil && rec.State == ca.Issued && bytes.Equal(rec.DER, cert.Raw)
	rev := ca.Revocation{Serial: rec.Serial, Reason: reason, At: s.now(), Requester: requester(r.Context(), actor(req.account.ID))}
	if req.account.ID == "" {
		if !ours || !sameKey(req, cert) {
			return ca.Revocation{}, notYours()
		}
		rev.Requester.Actor = "acme:key/" + req.thumbprint
		rev.BlockKey = reason == ca.KeyCompromise
		return rev, nil
	}
	if ours && rec.Requester == actor(req.account.ID) {
		return rev, nil
	}
	names := rec.Names
	if !ours {
		names = s.claimedNames(cert)
	}
	holds, err := s.store.Holds(r.Context(), req.account.ID, names, s.now())
	if err != nil {
		return ca.Revocation{}, err
	}
	if !ours || !holds {
		s.cfg.Budget.Refused(r.Context(), actor(req.account.ID))
		return ca.Revocation{}, notYours()
	}
	if reason == ca.KeyCompromise {
		return ca.Revocation{}, &Problem{Type: BadRevocationReason, Detail: "sign the request with the certificate's own key to report it as compromised"}
	}
	return rev, nil
}

// claimedNames are the names of a certificate that is not ours, no more of them
// than ours have.
func (s *Server) claimedNames(cert *x509.Certificate) []ca.Identifier {
	var ids []ca.Identifier
	for _, n := range cert.DNSNames {
		ids = append(ids, ca.Identifier{Type: ca.DNS, Value: n})
		if len(ids) == s.cfg.MaxNames {
			return ids
		}
	}
	for _, ip := range cert.IPAddresses {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			ids = append(ids, ca.Identifier{Type: ca.IP, Value: addr.Unmap().String()})
		}
		if len(ids) == s.cfg.MaxNames {
			return ids
		}
	}
	return ids
}

func sameKey(req request, cert *x509.Certificate) bool {
	k, ok := req.key.Key.(interface{ Equal(x crypto.PublicKey) bool })
	return ok && k.Equal(cert.PublicKey)
}

func notYours() *Problem {
	return unauthorized("the certificate is not one of this server's, or is not yours to revoke")
}
