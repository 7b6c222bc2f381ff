package acme

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

// A ChallengeType names a way to prove control of an identifier (RFC 8555 §8).
type ChallengeType string

// The challenge types.
const (
	HTTP01       ChallengeType = "http-01"        // RFC 8555 §8.3
	DNS01        ChallengeType = "dns-01"         // RFC 8555 §8.4
	TLSALPN01    ChallengeType = "tls-alpn-01"    // RFC 8737
	DNSAccount01 ChallengeType = "dns-account-01" // draft-ietf-acme-dns-account-label
	DNSPersist01 ChallengeType = "dns-persist-01" // draft-ietf-acme-dns-persist
	OnionCSR01   ChallengeType = "onion-csr-01"   // RFC 9799

	DeviceAttest01 ChallengeType = "device-attest-01" // draft-ietf-acme-device-attest
)

// A Validation asks whether an account controls an identifier.
type Validation struct {
	Type             ChallengeType
	Identifier       ca.Identifier // never with "*."
	Wildcard         bool          // everything directly below it is to be proven, too
	Token            string
	KeyAuthorization string // token "." thumbprint, RFC 8555 §8.1
	AccountID        string
	AccountURL       string
	IssuedAt         time.Time // when the token was made
	Answer           []byte    // what the client sent to say that it is ready, for those types that are proven by it
}

// A ValidationRecord is the evidence of one attempt, good or bad, for the audit log.
type ValidationRecord struct {
	Type    ChallengeType `json:"type"`
	Name    string        `json:"name"`
	URLs    []string      `json:"urls,omitempty"`    // what was fetched, redirects included
	Addrs   []netip.Addr  `json:"addrs,omitempty"`   // what was connected to
	Records []string      `json:"records,omitempty"` // TXT: the one that proves, or the first ones that do not
	// Until is when the proof no longer may be relied on; zero: it says nothing of that.
	Until time.Time `json:"until,omitzero"`
	// Certificate is the SHA-256 of the one that a server of tls-alpn-01 showed.
	Certificate string `json:"certificate,omitempty"`
	Resolver    string `json:"resolver,omitempty"`
	// DNSSEC says, where it is required, whether all answers of the DNS were
	// signed ("secure"), or some were of zones that are proven not to be ("insecure").
	DNSSEC string        `json:"dnssec,omitempty"`
	At     time.Time     `json:"at"`
	Took   time.Duration `json:"took"`
	CAA    *CAARecord    `json:"caa,omitempty"` // of the check that went with it
	// AttestedKey is the SHA-256, in hex, of the SubjectPublicKeyInfo that a
	// device proved to hold, and Format how: certificates are for this key only.
	AttestedKey string `json:"attested_key,omitempty"`
	Format      string `json:"format,omitempty"`
	// Perspectives are what was seen from elsewhere, if anything had to be.
	Perspectives []PerspectiveRecord `json:"perspectives,omitempty"`
	Corroborated string              `json:"corroborated,omitempty"` // how many agreed, as in "4/5" (Baseline Requirements §5.4.1)
}

// A PerspectiveRecord is what one remote perspective saw.
type PerspectiveRecord struct {
	Name    string        `json:"name"`
	Region  string        `json:"region"` // of the regional internet registries
	OK      bool          `json:"ok"`
	Problem string        `json:"problem,omitempty"` // type and detail of what it said against it
	Addrs   []netip.Addr  `json:"addrs,omitempty"`
	Took    time.Duration `json:"took"`
}

// ErrContested is in the Err of a problem that is not ours: we saw what had to be
// seen, and not enough remote perspectives did.
var ErrContested = errors.New("remote perspectives do not corroborate it")

// A Validator goes out and looks. It is safe for concurrent use, keeps to ctx
// and to bounds of its own, and returns nil for a proven identifier. The problem's
// detail may be shown to the client.
type Validator interface {
	Validate(ctx context.Context, v Validation) (ValidationRecord, *Problem)
}

// A CAAQuery asks whether the CAA records of a domain allow a certificate for
// one name (RFC 8659, RFC 8657).
type CAAQuery struct {
	Name       string // without "*."
	Wildcard   bool
	Method     ChallengeType // by which the name was, or is to be, proven
	AccountURL string
	Onion      *OnionCAA // of names in .onion: what its service says, nil for nothing
}

// An OnionCAA is what an onion service itself says instead of CAA records, and
// signs (RFC 9799 §6.4).
type OnionCAA struct {
	CAA       *string `json:"caa"` // nil: it has none
	Expiry    int64   `json:"expiry"`
	Signature string  `json:"signature"`
}

// A CAARecord is the evidence of one check of CAA records.
type CAARecord struct {
	Name     string        `json:"name"`
	Found    string        `json:"found,omitempty"` // the domain whose records counted, "" for none
	Records  []string      `json:"records,omitempty"`
	Resolver string        `json:"resolver,omitempty"`
	DNSSEC   string        `json:"dnssec,omitempty"` // as in ValidationRecord
	At       time.Time     `json:"at"`
	Took     time.Duration `json:"took"`
	// Perspectives are what was seen from elsewhere, if anything had to be.
	Perspectives []PerspectiveRecord `json:"perspectives,omitempty"`
	Corroborated string              `json:"corroborated,omitempty"` // how many agreed, as in "4/5" (Baseline Requirements §5.4.1)
}

// A CAAChecker asks the DNS. It keeps to the rules of a Validator: nil means
// that the certificate is allowed, and no answer is never a yes.
type CAAChecker interface {
	CheckCAA(ctx context.Context, q CAAQuery) (CAARecord, *Problem)
}
