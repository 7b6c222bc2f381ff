// Package acme serves RFC 8555: accounts, orders, authorizations and certificates
// over signed requests.
package acme

import (
	"fmt"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

// A ProblemType is an ACME error type without its prefix (RFC 8555 §6.7).
type ProblemType string

// The ACME error types.
const (
	AccountDoesNotExist     ProblemType = "accountDoesNotExist"
	AlreadyRevoked          ProblemType = "alreadyRevoked"
	BadCSR                  ProblemType = "badCSR"
	BadNonce                ProblemType = "badNonce"
	BadPublicKey            ProblemType = "badPublicKey"
	BadRevocationReason     ProblemType = "badRevocationReason"
	BadSignatureAlgorithm   ProblemType = "badSignatureAlgorithm"
	CAA                     ProblemType = "caa"
	Compound                ProblemType = "compound"
	Connection              ProblemType = "connection"
	DNSError                ProblemType = "dns"
	ExternalAccountRequired ProblemType = "externalAccountRequired"
	IncorrectResponse       ProblemType = "incorrectResponse"
	InvalidContact          ProblemType = "invalidContact"
	Malformed               ProblemType = "malformed"
	OrderNotReady           ProblemType = "orderNotReady"
	RateLimited             ProblemType = "rateLimited"
	RejectedIdentifier      ProblemType = "rejectedIdentifier"
	ServerInternal          ProblemType = "serverInternal"
	TLSError                ProblemType = "tls"
	Unauthorized            ProblemType = "unauthorized"
	UnsupportedContact      ProblemType = "unsupportedContact"
	UnsupportedIdentifier   ProblemType = "unsupportedIdentifier"
	UserActionRequired      ProblemType = "userActionRequired"
	InvalidProfile          ProblemType = "invalidProfile"
	AlreadyReplaced         ProblemType = "alreadyReplaced"
	OnionCAARequired        ProblemType = "onionCAARequired"
	BadAttestationStatement ProblemType = "badAttestationStatement"

	AutoRenewalCanceled               ProblemType = "autoRenewalCanceled"
	AutoRenewalExpired                ProblemType = "autoRenewalExpired"
	AutoRenewalCancellationInvalid    ProblemType = "autoRenewalCancellationInvalid"
	AutoRenewalRevocationNotSupported ProblemType = "autoRenewalRevocationNotSupported"
)

// A Problem is what a client hears of an error (RFC 7807, RFC 8555 §6.7). It
// is also what an order or a challenge keeps of one.
type Problem struct {
	Type        ProblemType    `json:"type"` // the handlers put the URN prefix before it
	Detail      string         `json:"detail,omitempty"`
	Status      int            `json:"status,omitempty"`
	Instance    string         `json:"instance,omitempty"` // where people read on, of userActionRequired
	Identifier  *ca.Identifier `json:"identifier,omitempty"`
	Algorithms  []string       `json:"algorithms,omitempty"`
	Subproblems []Problem      `json:"subproblems,omitempty"`
	RetryAfter  time.Duration  `json:"-"`
	Location    string         `json:"-"`
	Err         error          `json:"-"` // for our log, never sent
	Private     string         `json:"-"` // sent after the detail, and never logged or kept
}

func (p *Problem) Error() string {
	if p.Err != nil {
		return fmt.Sprintf("%s: %s: %v", p.Type, p.Detail, p.Err)
	}
	return fmt.Sprintf("%s: %s", p.Type, p.Detail)
}

func (p *Problem) Unwrap() error { return p.Err }
