package acme

import (
	"context"
	"net/netip"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

// A ChallengeType names a way to prove control of an identifier (RFC 8555 §8).
type ChallengeType string

// The challenge types.
const (
	HTTP01 ChallengeType = "http-01"
	DNS01  ChallengeType = "dns-01"
)

// A Validation asks whether an account controls an identifier.
type Validation struct {
	Type             ChallengeType
	Identifier       ca.Identifier // never with "*."
	Token            string
	KeyAuthorization string // token "." thumbprint, RFC 8555 §8.1
	AccountID        string
}

// A ValidationRecord is the evidence of one attempt, good or bad, for the audit log.
type ValidationRecord struct {
	Type     ChallengeType `json:"type"`
	Name     string        `json:"name"`
	URLs     []string      `json:"urls,omitempty"`  // what was fetched, redirects included
	Addrs    []netip.Addr  `json:"addrs,omitempty"` // what was connected to
	Resolver string        `json:"resolver,omitempty"`
	At       time.Time     `json:"at"`
	Took     time.Duration `json:"took"`
}

// A Validator goes out and looks. It is safe for concurrent use, keeps to ctx
// and to bounds of its own, and returns nil for a proven identifier. The problem's
// detail may be shown to the client.
type Validator interface {
	Validate(ctx context.Context, v Validation) (ValidationRecord, *Problem)
}
