// Package ca is the certification authority itself: it decides what may be
// issued, lints it, records it, has it signed, and records that.
//
// It knows no wire protocol, no SQL and no device. The edges bring it requests
// and a Ledger; keys come as keys.Key.
package ca

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
)

// A Serial is a certificate's serial number as lower-case hex of its big-endian
// octets, an even number of digits, no superfluous leading zero octet.
type Serial string

// An IssuerID names an issuer for ever: the first 32 hex digits of the SHA-256
// over its DER subject followed by its DER SubjectPublicKeyInfo. Re-signing or
// cross-signing an issuer keeps it.
type IssuerID string

// IdentifierType is the kind of an Identifier, in ACME's words (RFC 8555 §9.7.7, RFC 8738).
type IdentifierType string

// The identifier types.
const (
	DNS IdentifierType = "dns"
	IP  IdentifierType = "ip"
)

// An Identifier is a name that a certificate may hold. A dns value is lower
// case, without trailing dot, in A-labels, and may begin with "*.".
type Identifier struct {
	Type  IdentifierType `json:"type"`
	Value string         `json:"value"`
}

// A Requester says on whose behalf something happens, for the audit log.
type Requester struct {
	Actor     string     // "acme:account/ID", "operator:uid/0", "system"
	Addr      netip.Addr // zero for none
	RequestID string
}

// A Request asks for one certificate. Names are those that the edge has proven
// the requester to control; the CA takes them, not the CSR's, into the
// certificate, and refuses a CSR that asks for others.
type Request struct {
	Profile     string           // "" means the default profile
	CSR         []byte           // DER PKCS#10; its self-signature is checked here
	PublicKey   crypto.PublicKey // instead of a CSR, for the CA's own certificates
	Issuer      IssuerID         // "" means one that the profile allows; a responder needs its own, active or not
	Identifiers []Identifier
	NotBefore   time.Time // zero: as the profile says
	NotAfter    time.Time // zero: as the profile says
	Requester   Requester
	Renewal     bool // the requester holds a certificate for the same names that is still valid
}

// An Intent is a certificate about to be signed, made durable before any key is used.
type Intent struct {
	ID         string // opaque, unguessable; the certificate keeps it
	Serial     Serial // unique over all issuers
	Issuer     IssuerID
	Profile    string
	TBS        []byte // the linted TBSCertificate, DER
	SPKIHash   [32]byte
	Names      []Identifier
	NotBefore  time.Time
	NotAfter   time.Time
	Requester  Requester
	CRLShard   int // the part of the issuer's CRL that says so in the certificate; 0: none
	CreatedAt  time.Time
	LeaseUntil time.Time // after this, whoever finds the intent unsigned may abandon it
}

// A Certificate is one that was signed and recorded.
type Certificate struct {
	ID        string
	Serial    Serial
	Issuer    IssuerID
	Profile   string
	DER       []byte
	NotBefore time.Time
	NotAfter  time.Time
}

// A State is how far a certificate came.
type State string

// The states. A pending one has a lease; an abandoned one may or may not have
// been signed, was never handed out, and counts as revoked; a void one was
// certainly never signed.
const (
	Pending   State = "pending"
	Issued    State = "issued"
	Abandoned State = "abandoned"
	Void      State = "void"
)

// A Record is all the store knows of one serial.
type Record struct {
	Certificate  // DER is nil unless State is Issued
	State        State
	SPKIHash     [32]byte
	Names        []Identifier
	Requester    string // the actor of the request
	CreatedAt    time.Time
	RevokedAt    time.Time // zero: not revoked
	Reason       Reason
	InvalidityAt time.Time // since when the key is known or feared to be lost; zero: not said
	StatusSeq    int64     // the number of the last change of status, in the order of the issuer's; 0: none
	ReplacedBy   Serial    // the certificate that was ordered to take its place; "" for none
	AutoRenewed  bool      // one of a row that is renewed until it is canceled (RFC 8739)
}

// Revoked reports whether the record counts as revoked.
func (r Record) Revoked() bool { return !r.RevokedAt.IsZero() }

// A Reason is a CRLReason (RFC 5280 §5.3.1).
type Reason int

// A Revocation takes back one certificate.
type Revocation struct {
	Serial       Serial
	Reason       Reason
	At           time.Time // zero: now
	InvalidityAt time.Time // since when the key is known or feared to be lost (RFC 5280 §5.3.2); zero: not said
	Requester    Requester
	BlockKey     bool     // never certify this public key again (keyCompromise proven or said)
	SHA256       [32]byte // of the certificate that is meant; zero: whichever has the serial
}

// Apply returns what rec becomes by r: ErrNotFound for what was never issued,
// ErrAlreadyRevoked where r changes nothing.
//
// What is revoked is revoked once more only for keyCompromise, or to say that
// the key was lost earlier than was known: the time goes back and never forth.
// What is on hold may be revoked for any other reason, and keeps the time of the
// hold (X.509, reason code extension).
func (r Revocation) Apply(rec Record) (Record, error) {
	compromise := r.Reason == KeyCompromise
	earlier := compromise && r.At.Before(rec.RevokedAt)
	switch {
	case rec.State != Issued:
		return rec, ErrNotFound
	case !rec.Revoked(), earlier:
		rec.RevokedAt = r.At
	case rec.Reason == CertificateHold && r.Reason != CertificateHold, compromise && rec.Reason != KeyCompromise:
	default:
		return rec, ErrAlreadyRevoked
	}
	rec.Reason = r.Reason
	if !r.InvalidityAt.IsZero() {
		rec.InvalidityAt = r.InvalidityAt
	}
	return rec, nil
}

// A Ledger makes one issuance durable, in the terms of the edge that asked for
// it: each method is one transaction, the audit entry and the edge's own state
// (an order, say) inside.
//
// Begin claims by compare-and-swap before any key is used; its error means that
// nothing may be signed. Commit fails with ErrLeaseLost if the intent is no
// longer pending. Abort with an error matching keys.ErrBusy leaves the edge's
// request to be tried again and the intent void; with any other error the intent
// is abandoned, and the edge says whether its request is tried again under a new
// serial or failed.
type Ledger interface {
	Begin(ctx context.Context, in Intent) error
	Commit(ctx context.Context, in Intent, c Certificate) error
	Abort(ctx context.Context, in Intent, cause error) error
}

// MaxRevocations is how many one RevokeAll takes.
const MaxRevocations = 200

// A Store is what the CA itself asks of the database, beside Ledgers.
type Store interface {
	// Record returns ErrNotFound for a serial never assigned.
	Record(ctx context.Context, s Serial) (Record, error)
	// RecordsOf is Record for up to MaxRevocations serials; those never assigned are left out.
	RecordsOf(ctx context.Context, serials []Serial) ([]Record, error)
	// Adopt records c as issued, with e in the same transaction, and reports false
	// if it is there. ErrSerialTaken: another one has its serial.
	Adopt(ctx context.Context, c Certificate, spki [32]byte, e audit.Entry) (bool, error)
	// Revoke does what r.Apply says of what is there, with e in the same transaction.
	//
	// Each change of status takes the next number of its issuer in the same
	// transaction (Record.StatusSeq), and whoever reads one number sees all
	// changes below it.
	Revoke(ctx context.Context, r Revocation, e audit.Entry) error
	// RevokeAll is Revoke for up to MaxRevocations in one transaction, with their
	// own entries. errs says why one of them changed nothing, nil for none.
	RevokeAll(ctx context.Context, rs []Revocation) (errs []error, err error)
	// Release ends a hold, with e in the same transaction: ErrNotHeld for what is
	// not on hold, ErrNotFound for a serial never assigned.
	Release(ctx context.Context, s Serial, e audit.Entry) error
	// KeyBlocked reports whether a SubjectPublicKeyInfo hash is on the blocklist.
	KeyBlocked(ctx context.Context, spki [32]byte) (bool, error)
	// Expired lists pending intents whose lease ended before now, oldest first.
	Expired(ctx context.Context, now time.Time, limit int) ([]Intent, error)
	// Abandon moves one pending intent whose lease ended before now to
	// abandoned and revoked, and fails with ErrLeaseLost if it is neither.
	Abandon(ctx context.Context, s Serial, now time.Time, e audit.Entry) error
	// PlainLedger records issuances that belong to no edge (the CA's own).
	PlainLedger() Ledger
}

var (
	// ErrNotFound says that there is no such certificate.
	ErrNotFound = errors.New("ca: no such certificate")
	// ErrAlreadyRevoked says that somebody else revoked it before.
	ErrAlreadyRevoked = errors.New("ca: already revoked")
	// ErrNotHeld says that there is no hold to release.
	ErrNotHeld = errors.New("ca: not on hold")
	// ErrLeaseLost says that the intent was taken from its owner, or was never pending.
	ErrLeaseLost = errors.New("ca: intent is no longer pending")
	// ErrSerialTaken says that the serial is assigned already; another one must be drawn.
	ErrSerialTaken = errors.New("ca: serial taken")
)

// A Code is the kind of a Refusal; each edge translates it to its own words.
type Code string

// The refusal codes.
const (
	BadCSR             Code = "badCSR"             // the CSR is malformed or asks for what was not proven
	BadPublicKey       Code = "badPublicKey"       // the key is weak, blocked or of a kind not allowed
	RejectedIdentifier Code = "rejectedIdentifier" // policy forbids the name
	Malformed          Code = "malformed"          // the name is not even written right
	Unsupported        Code = "unsupported"        // an identifier type that the profile does not have
	BadValidity        Code = "badValidity"        // notBefore/notAfter not allowed
	UnknownProfile     Code = "unknownProfile"
	BadReason          Code = "badRevocationReason"
	HoldForbidden      Code = "holdForbidden"     // by the issuer's configuration
	BadInvalidity      Code = "badInvalidityDate" // not in the past
	BadCertificate     Code = "badCertificate"    // what was sent to be revoked is no certificate
	Busy               Code = "busy"              // later; RetryAfter is set
	Forbidden          Code = "forbidden"
)

// A Refusal is a no that the requester may hear. Detail may be shown to
// strangers, Err never.
type Refusal struct {
	Code       Code
	Detail     string
	Identifier *Identifier // the name at fault, if it is one
	Others     []*Refusal  // one for each further name at fault
	RetryAfter time.Duration
	Err        error
}

func (r *Refusal) Error() string {
	if r.Err != nil {
		return fmt.Sprintf("%s: %s: %v", r.Code, r.Detail, r.Err)
	}
	return fmt.Sprintf("%s: %s", r.Code, r.Detail)
}

func (r *Refusal) Unwrap() error { return r.Err }
