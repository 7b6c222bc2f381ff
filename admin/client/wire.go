package client

import "time"

// A Name is one name that a certificate holds.
type Name struct {
	Type  string `json:"type"` // "dns" or "ip"
	Value string `json:"value"`
}

// A Certificate is what is known of one serial.
//
// Status is the one word for it: valid, expired, notYetValid, revoked, held, pending
// (being signed now), abandoned (perhaps signed, never handed out, counts as
// revoked) or void (never signed).
type Certificate struct {
	Serial     string     `json:"serial"`
	Status     string     `json:"status"`
	Issuer     string     `json:"issuer"`
	IssuerName string     `json:"issuer_name,omitempty"` // the configuration's name; none if it is not there any more
	Profile    string     `json:"profile"`
	Names      []Name     `json:"names"`
	Requester  string     `json:"requester"`
	NotBefore  time.Time  `json:"not_before"`
	NotAfter   time.Time  `json:"not_after"`
	CreatedAt  time.Time  `json:"created_at"`
	RevokedAt  *time.Time `json:"revoked_at,omitempty"`
	Reason     string     `json:"reason,omitempty"` // of the revocation
	// Since when its key is known or feared to be lost, if the revocation said so.
	InvalidSince *time.Time `json:"invalid_since,omitempty"`

	SPKIHash   string     `json:"spki_sha256"`
	RenewFrom  *time.Time `json:"renew_from,omitempty"` // its own window, whatever incidents say
	RenewTo    *time.Time `json:"renew_to,omitempty"`
	ReplacedBy string     `json:"replaced_by,omitempty"` // the serial of the one that was ordered in its place

	// Only where one certificate was asked for, and there is one.
	Fingerprint string `json:"sha256,omitempty"`
	PEM         string `json:"pem,omitempty"`
}

// A CertificatePage is a part of a list, newest first. An empty Next says that
// it is the last one.
type CertificatePage struct {
	Certificates []Certificate `json:"certificates"`
	Next         string        `json:"next,omitempty"`
}

// A CertificateFilter selects certificates. Zero fields select everything.
type CertificateFilter struct {
	Name     string // this name and all below it
	Serial   string // hex digits that the serial begins with; colons and case don't matter
	State    string // one of States
	Issuer   string // an issuer's name or id
	Profile  string
	Account  string // an ACME account's id or URL
	SPKIHash string // SHA-256 of the public key, in hex
	Incident string // what this incident selects; most other conditions don't go with it

	IssuedAfter   string // RFC 3339, as all times here
	IssuedBefore  string
	NotBeforeFrom string
	NotBeforeTo   string // and not then

	Limit  int    // of one page; 0: 50, at most 500
	Cursor string // Next of the page before
}

// States are what a CertificateFilter can ask for. Issued ones are valid or
// expired; unexpired ones may be revoked; held ones are among those revoked.
func States() []string {
	return []string{"issued", "valid", "unexpired", "revoked", "held", "pending", "abandoned", "void"}
}

// Reasons are the reasons for which a certificate can be revoked.
func Reasons() []string {
	return []string{"unspecified", "keyCompromise", "affiliationChanged", "superseded", "cessationOfOperation", "privilegeWithdrawn"}
}

// An Issuer is a CA certificate that the server works with.
type Issuer struct {
	Name         string    `json:"name"`
	ID           string    `json:"id"`
	Subject      string    `json:"subject"`
	Serial       string    `json:"serial"`
	NotBefore    time.Time `json:"not_before"`
	NotAfter     time.Time `json:"not_after"`
	KeyAlgorithm string    `json:"key_algorithm"`
	Fingerprint  string    `json:"sha256"`
	Active       bool      `json:"active"` // new certificates come from it
	OCSPURL      string    `json:"ocsp_url,omitempty"`
	CRLURL       string    `json:"crl_url,omitempty"`
	CertURL      string    `json:"cert_url,omitempty"`
	CRL          *CRL      `json:"crl,omitempty"` // the last published
	PEM          string    `json:"pem"`
}

// A CRL is what was published last for an issuer.
type CRL struct {
	Number     int64     `json:"number"`
	ThisUpdate time.Time `json:"this_update"`
	NextUpdate time.Time `json:"next_update"`
	Entries    int       `json:"entries"`
}

// IssuerList is every issuer.
type IssuerList struct {
	Issuers []Issuer `json:"issuers"`
}

// An AuditEntry is one entry of the audit chain, each field as it was hashed:
// docs/audit.md says how to compute Hash from the others.
type AuditEntry struct {
	Seq     int64  `json:"seq"`
	ID      string `json:"id"`
	At      string `json:"at"` // RFC 3339, UTC, six digits of fraction
	Actor   string `json:"actor"`
	Action  string `json:"action"`
	Object  string `json:"object"`
	Remote  string `json:"remote"`
	Request string `json:"request"`
	Detail  string `json:"detail"` // the text of a JSON object, or empty
	Hash    string `json:"hash"`
}

// An AuditPage is a part of a list. An empty Next says that it is the last one.
type AuditPage struct {
	Entries []AuditEntry `json:"entries"`
	Next    string       `json:"next,omitempty"`
}

// An AuditFilter selects entries. Zero fields select everything.
type AuditFilter struct {
	After  int64  // only entries after this place
	Newest bool   // last first
	Action string // exactly
	Object string // exactly, "certificate/SERIAL" for example
	Limit  int    // of one page; 0: 50, at most 500
	Cursor string // Next of the page before
}

// A Verification is what was found about the audit chain.
type Verification struct {
	OK           bool       `json:"ok"`
	Head         string     `json:"head"` // SEQ:HASH; note it outside, and expect it next time
	Entries      int64      `json:"entries"`
	FindingCount int64      `json:"finding_count"`
	Findings     []Finding  `json:"findings,omitempty"` // the first ones
	Backlog      int64      `json:"backlog"`            // entries without a place yet
	Oldest       *time.Time `json:"backlog_oldest,omitempty"`
	Milliseconds int64      `json:"milliseconds"`
}

// A Finding is one thing wrong with the audit chain.
type Finding struct {
	Kind   string `json:"kind"`
	Seq    int64  `json:"seq"`
	Detail string `json:"detail"`
}

// A Revocation is the body of a request to revoke.
type Revocation struct {
	Reason       string `json:"reason"`                  // one of Reasons, or Hold
	RevokedAt    string `json:"revoked_at,omitempty"`    // for keyCompromise only: a time in the past
	InvalidSince string `json:"invalid_since,omitempty"` // since when the key is known or feared to be lost
}

// Hold is the reason that can be taken back, where an issuer allows it.
const Hold = "certificateHold"

// MaxRevocations is how many certificates one RevokeMany takes.
const MaxRevocations = 200

// Revocations is the body of a request to revoke many, for the same reason where
// one has none of its own.
type Revocations struct {
	Certificates []Revoke `json:"certificates"`
	Revocation
	DryRun bool `json:"dry_run,omitempty"` // only say what would happen
}

// A Revoke is one certificate to revoke.
type Revoke struct {
	Serial string `json:"serial"`
	Reason string `json:"reason,omitempty"`
	SHA256 string `json:"sha256,omitempty"` // of the certificate, where it is at hand: it must be the one
}

// RevokedMany says of each certificate, in the order of the request, what came of it.
type RevokedMany struct {
	Results []Result `json:"results"`
}

// A Result is what came of one certificate.
type Result struct {
	Serial  string `json:"serial"`
	Outcome string `json:"outcome"`
	Reason  string `json:"reason"`
	Detail  string `json:"detail,omitempty"`
}

// The outcomes. All but the first two mean that the certificate is not revoked.
const (
	OutcomeRevoked   = "revoked"
	OutcomeAlready   = "alreadyRevoked" // before, and nothing changed
	OutcomeUnknown   = "notFound"
	OutcomeNotIssued = "notIssued"
	OutcomeRefused   = "refused" // by policy
)

// A VerifyRequest is the body of a request to verify the audit chain.
type VerifyRequest struct {
	Expect string `json:"expect,omitempty"` // SEQ:HASH
}

// ProblemType is the media type of errors (RFC 9457).
const ProblemType = "application/problem+json"

// A Problem is an error on the wire (RFC 9457). Code never changes its meaning;
// Detail is for people.
type Problem struct {
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Code      string `json:"code"`
	Detail    string `json:"detail"`
	RequestID string `json:"request_id,omitempty"` // finds the lines in the log
}

// The codes of problems.
const (
	CodeMalformed        = "malformed"        // the body is not the JSON that was expected
	CodeUnknownField     = "unknownField"     // the body or the query has a field that nobody knows
	CodeInvalidParameter = "invalidParameter" // a field has a value that it can't have
	CodeTooLarge         = "tooLarge"
	CodeMediaType        = "unsupportedMediaType"
	CodeMethod           = "methodNotAllowed"
	CodeNoSuchPath       = "noSuchPath"
	CodeUnauthenticated  = "unauthenticated"
	CodeNotFound         = "notFound"
	CodeAlreadyRevoked   = "alreadyRevoked"
	CodeNotHeld          = "notHeld"
	CodeNotIssued        = "notIssued" // the serial never became a certificate, or not yet
	CodeConflict         = "conflict"  // something else has the name, or is in the way
	CodeTooMany          = "tooMany"   // a bound is reached
	CodeRefused          = "refused"   // the CA's policy says no
	CodeBusy             = "busy"
	CodeTimeout          = "timeout"
	CodeInternal         = "internal"
)
