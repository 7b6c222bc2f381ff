package admin

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/secsy-pki/secsy-pki/admin/client"
	"github.com/secsy-pki/secsy-pki/ca"
)

func (s *Server) revoke(w http.ResponseWriter, r *http.Request) error {
	serial, err := serialOf(r.PathValue("serial"))
	if err != nil {
		return err
	}
	var body client.Revocation
	if err := readBody(w, r, map[string]any{"reason": &body.Reason, "revoked_at": &body.RevokedAt, "invalid_since": &body.InvalidSince}); err != nil {
		return err
	}
	rev, err := readRevocation(r.Context(), body)
	if err != nil {
		return err
	}
	rev.Serial = serial
	if err := s.authority.Revoke(r.Context(), rev); err != nil {
		return s.whyNotRevoked(r.Context(), serial, err)
	}
	return s.answerCertificate(r.Context(), w, serial)
}

// readRevocation reads all but the serial.
func readRevocation(ctx context.Context, body client.Revocation) (ca.Revocation, error) {
	rev := ca.Revocation{Requester: requester(ctx)}
	var err error
	if rev.Reason, err = reasonOf(body.Reason); err != nil {
		return rev, err
	}
	rev.BlockKey = rev.Reason == ca.KeyCompromise // a key that is out must not come back in another certificate
	if rev.At, err = timeOf("revoked_at", body.RevokedAt); err != nil {
		return rev, err
	}
	if rev.InvalidityAt, err = timeOf("invalid_since", body.InvalidSince); err != nil {
		return rev, err
	}
	switch {
	case rev.At.IsZero():
	case rev.Reason != ca.KeyCompromise:
		return rev, invalid("revoked_at", "is for keyCompromise only: a revocation for %s begins now", rev.Reason)
	case rev.At.After(time.Now()):
		return rev, invalid("revoked_at", "is not in the past")
	}
	return rev, nil
}

func (s *Server) release(w http.ResponseWriter, r *http.Request) error {
	serial, err := serialOf(r.PathValue("serial"))
	if err != nil {
		return err
	}
	if err := readBody(w, r, nil); err != nil {
		return err
	}
	switch err := s.authority.Release(r.Context(), serial, requester(r.Context())); {
	case errors.Is(err, ca.ErrNotHeld):
		return problemf(http.StatusConflict, client.CodeNotHeld, "the certificate %s is not on hold", serial)
	case errors.Is(err, ca.ErrNotFound):
		return errNeverIssued(serial)
	case err != nil:
		return fmt.Errorf("releasing: %w", err)
	}
	return s.answerCertificate(r.Context(), w, serial)
}

func errNeverIssued(serial ca.Serial) error {
	return problemf(http.StatusNotFound, client.CodeNotFound, "no certificate with the serial %s was issued here", serial)
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

// revokeMany revokes each of a list that can be, and says of each what came of it.
func (s *Server) revokeMany(w http.ResponseWriter, r *http.Request) error {
	rs, dry, err := readRevocations(w, r)
	if err != nil {
		return err
	}
	out := client.RevokedMany{Results: make([]client.Result, len(rs))}
	// The rehearsal says what was there before, in words that only it knows.
	recs, errs, err := s.authority.RehearseRevoke(r.Context(), rs)
	if err == nil && !dry {
		errs, err = s.authority.RevokeAll(r.Context(), rs)
	}
	if err != nil {
		return fmt.Errorf("revoking many: %w", err)
	}
	for i, r := range rs {
		out.Results[i] = result(r, recs[i], errs[i])
	}
	return answer(w, out)
}

func readRevocations(w http.ResponseWriter, r *http.Request) (rs []ca.Revocation, dry bool, err error) {
	var (
		all  client.Revocation
		list []json.RawMessage
	)
	if err := readBodyOf(w, r, maxBulk, map[string]any{
		"certificates": &list, "reason": &all.Reason, "revoked_at": &all.RevokedAt, "invalid_since": &all.InvalidSince, "dry_run": &dry,
	}); err != nil {
		return nil, false, err
	}
	if len(list) == 0 || len(list) > client.MaxRevocations {
		return nil, false, invalid("certificates", "has %d of them; 1 to %d are taken at a time", len(list), client.MaxRevocations)
	}
	for n, item := range list {
		rev, err := readOneOfMany(r.Context(), item, all)
		if p, ok := errors.AsType[*problem](err); ok {
			return nil, false, problemf(p.status, p.code, "certificates[%d]: %s", n, p.detail)
		}
		if err != nil {
			return nil, false, err
		}
		rs = append(rs, rev)
	}
	return rs, dry, nil
}

// readOneOfMany takes from all what the certificate does not say itself.
func readOneOfMany(ctx context.Context, item json.RawMessage, all client.Revocation) (ca.Revocation, error) {
	var serial, sum string
	one := client.Revocation{RevokedAt: all.RevokedAt, InvalidSince: all.InvalidSince}
	if err := decodeObject(item, map[string]any{"serial": &serial, "reason": &one.Reason, "sha256": &sum}); err != nil {
		return ca.Revocation{}, err
	}
	if one.Reason == "" {
		one.Reason = all.Reason
	}
	rev, err := readRevocation(ctx, one)
	if err != nil {
		return rev, err
	}
	if rev.Serial, err = serialOf(serial); err != nil {
		return rev, err
	}
	if b, err := hex.DecodeString(hexDigits(sum)); sum != "" && (err != nil || copy(rev.SHA256[:], b) != len(rev.SHA256) || len(b) != len(rev.SHA256)) {
		return rev, invalid("sha256", "is not the SHA-256 of a certificate in hex")
	}
	return rev, nil
}

// result says what became, or would become, of a certificate that was rec.
func result(r ca.Revocation, rec ca.Record, err error) client.Result {
	out := client.Result{Serial: string(r.Serial), Outcome: client.OutcomeRevoked, Reason: r.Reason.String()}
	switch refusal, refused := errors.AsType[*ca.Refusal](err); {
	case err == nil:
		if rec.Revoked() {
			out.Detail = "was revoked before for " + rec.Reason.String()
		}
	case refused:
		out.Outcome, out.Detail = client.OutcomeRefused, refusal.Detail
	case errors.Is(err, ca.ErrAlreadyRevoked):
		out.Outcome = client.OutcomeAlready
		if rec.Revoked() { // and not since the rehearsal
			out.Detail = "at " + rec.RevokedAt.UTC().Format(time.RFC3339) + " for " + rec.Reason.String()
		}
	case rec.Serial == "":
		out.Outcome, out.Detail = client.OutcomeUnknown, "no certificate with this serial was issued here"
	case rec.State != ca.Issued:
		out.Outcome, out.Detail = client.OutcomeNotIssued, "the serial is "+string(rec.State)+": there is no certificate"
	default:
		out.Outcome, out.Detail = client.OutcomeUnknown, "another certificate of this serial was issued here"
	}
	return out
}
