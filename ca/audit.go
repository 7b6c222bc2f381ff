package ca

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/keys"
)

// What the CA writes into the audit log.
const (
	ActionIntended  = "certificate.intended"  // about to be signed
	ActionIssued    = "certificate.issued"    // signed and recorded
	ActionAdopted   = "certificate.adopted"   // an authority's, signed before or elsewhere
	ActionVoided    = "certificate.voided"    // never signed; the serial is spent
	ActionAbandoned = "certificate.abandoned" // perhaps signed, never handed out
	ActionRevoked   = "certificate.revoked"
	ActionHeld      = "certificate.held"     // revoked for now
	ActionReleased  = "certificate.released" // from a hold
)

const (
	// maxCause bounds how much of an error text an audit entry takes.
	maxCause = 512
	// maxListed bounds the octets of names in an entry, so that the entry stays
	// within audit.MaxDetail with all else that it says.
	maxListed = 6 << 10
)

type intentDetail struct {
	ID        string       `json:"id"`
	Issuer    IssuerID     `json:"issuer"`
	Profile   string       `json:"profile"`
	Names     []Identifier `json:"names,omitempty"`
	NameCount int          `json:"names_total,omitempty"`  // where Names are only the first
	NamesHash string       `json:"names_sha256,omitempty"` // of them all then
	NotBefore time.Time    `json:"not_before"`
	NotAfter  time.Time    `json:"not_after"`
	SPKIHash  string       `json:"spki_sha256"`
	TBSHash   string       `json:"tbs_sha256,omitempty"`
	DERHash   string       `json:"der_sha256,omitempty"` // of one that was signed elsewhere
}

type issuedDetail struct {
	ID      string `json:"id"`
	DERHash string `json:"der_sha256"`
}

type abortDetail struct {
	ID    string `json:"id"`
	Cause string `json:"cause,omitempty"`
}

type revokedDetail struct {
	Reason   int    `json:"reason"`
	Name     string `json:"reason_name"`
	At       string `json:"revoked_at"` // a time that is there already stays, unless this one is earlier
	Invalid  string `json:"invalid_since,omitempty"`
	BlockKey bool   `json:"block_key,omitempty"`
}

// Intended is the entry of a Ledger's Begin.
func (in Intent) Intended() audit.Entry {
	d := intentDetail{
		ID: in.ID, Issuer: in.Issuer, Profile: in.Profile, Names: firstNames(in.Names), NotBefore: in.NotBefore.UTC(), NotAfter: in.NotAfter.UTC(),
		SPKIHash: hexOf(in.SPKIHash[:]), TBSHash: sha256Hex(in.TBS),
	}
	if len(d.Names) < len(in.Names) {
		d.NameCount, d.NamesHash = len(in.Names), namesHash(in.Names)
	}
	return in.Requester.entry(ActionIntended, in.Serial, d)
}

// firstNames are as many as an entry may list.
func firstNames(names []Identifier) []Identifier {
	size := 0
	for i, n := range names {
		size += len(`{"type":"","value":""},`) + len(n.Type) + len(n.Value) // checked names need no escapes
		if size > maxListed {
			return names[:i]
		}
	}
	return names
}

// namesHash is what docs/audit.md says it is: over a line "type:value" for each.
func namesHash(names []Identifier) string {
	h := sha256.New()
	for _, n := range names {
		_, _ = fmt.Fprintf(h, "%s:%s\n", n.Type, n.Value) // a hash takes all
	}
	return hexOf(h.Sum(nil))
}

// Committed is the entry of a Ledger's Commit.
func (in Intent) Committed(c Certificate) audit.Entry {
	return in.Requester.entry(ActionIssued, in.Serial, issuedDetail{ID: in.ID, DERHash: sha256Hex(c.DER)})
}

// Aborted is the entry of a Ledger's Abort. Its time is that of the revocation,
// if the intent becomes abandoned.
func (in Intent) Aborted(cause error) audit.Entry {
	action := ActionAbandoned
	if NeverSigned(cause) {
		action = ActionVoided
	}
	return in.Requester.entry(action, in.Serial, abortDetail{ID: in.ID, Cause: causeText(cause)})
}

// NeverSigned reports whether cause says that no device was called, so that an
// aborted intent is void and not abandoned.
func NeverSigned(cause error) bool { return errors.Is(cause, keys.ErrBusy) }

// Hung reports whether cause says that the device has not returned from a call:
// the fault is the device's and not of what was to be signed.
func Hung(cause error) bool {
	_, ok := errors.AsType[*keys.HungError](cause)
	return ok
}

// Entry is the audit entry of a revocation.
func (r Revocation) Entry() audit.Entry {
	action := ActionRevoked
	if r.Reason == CertificateHold {
		action = ActionHeld
	}
	d := revokedDetail{Reason: int(r.Reason), Name: r.Reason.String(), At: r.At.UTC().Format(time.RFC3339), BlockKey: r.BlockKey}
	if !r.InvalidityAt.IsZero() {
		d.Invalid = r.InvalidityAt.UTC().Format(time.RFC3339)
	}
	return r.Requester.entry(action, r.Serial, d)
}

func (r Requester) entry(action string, s Serial, detail any) audit.Entry {
	actor := r.Actor
	if actor == "" {
		actor = "system"
	}
	e := audit.New(actor, action, "certificate/"+string(s), detail)
	if r.Addr.IsValid() {
		e.Remote = r.Addr.String()
	}
	e.Request = r.RequestID
	return e
}

func causeText(err error) string {
	if err == nil {
		return ""
	}
	s := err.Error()
	if len(s) > maxCause {
		s = s[:maxCause]
	}
	return s
}
