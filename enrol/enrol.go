// Package enrol is the desk at which devices get certificates: it knows who may
// ask for what, and sees to it that the same request gives one certificate.
//
// It knows no wire. EST and SCEP decode what devices send, prove what the wire can
// prove and ask here; the desk looks at passwords, certificates and challenges,
// decides by the endpoint's rules, keeps what waits for an operator, and has the CA
// issue.
package enrol

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
)

// A Kind is how somebody proved who it is.
type Kind string

// The kinds of principals.
const (
	User        Kind = "user"        // by name and password
	Certificate Kind = "certificate" // by the key of a certificate
	Challenge   Kind = "challenge"   // by a secret in the request
)

// A Principal is whoever was proven to ask.
type Principal struct {
	Kind Kind
	Name string // the user, the certificate's serial or fingerprint, the challenge's id
	// Subject is what rules put in the place of {name}: the user's name, the
	// certificate's common name, what the challenge is for.
	Subject string
	// Current is the record of the certificate, if this CA issued it. Only such a
	// one can be renewed.
	Current *ca.Record
}

// Actor is the principal in audit entries and limits.
func (p Principal) Actor() string { return "enrol:" + string(p.Kind) + "/" + p.Name }

// A Request asks for a certificate.
type Request struct {
	Endpoint string // the label
	CSR      []byte // DER
	// Principal is who was proven to ask. The zero one: the challenge proves it.
	Principal   Principal
	Challenge   string // the challengePassword where it is a credential, as in SCEP
	Transaction string // SCEP's transactionID; "" for none
	// Renewal has the request renew Principal.Current, by the rules for that.
	Renewal   bool
	Requester ca.Requester // where it comes from; its Actor is set by the desk
}

// A Poll asks what became of a request.
type Poll struct {
	Endpoint    string
	Transaction string
	SPKI        [32]byte // SHA-256 of the SubjectPublicKeyInfo of the request
	Requester   ca.Requester
}

// A Result is a certificate, or when to come back.
type Result struct {
	Certificate []byte        // DER; nil: the request waits
	Chain       [][]byte      // of its issuer, without the leaf
	RetryAfter  time.Duration // of a request that waits
}

// Pending reports whether the request waits, for an operator or for its turn.
func (r Result) Pending() bool { return r.Certificate == nil }

var (
	// ErrDenied is no. Who asks is told nothing else: not whether there is such a
	// user, endpoint, challenge or rule. What the error wraps is for us.
	ErrDenied = errors.New("enrol: denied")
	// ErrNotFound says that there is no such user, challenge or request.
	ErrNotFound = errors.New("enrol: no such object")
	// ErrExists says that there is one of that name.
	ErrExists = errors.New("enrol: there is one already")
	// ErrMoved says that a request is no longer as it was: somebody was quicker.
	ErrMoved = errors.New("enrol: the request has moved on")
	// ErrSpent says that a challenge was used up meanwhile.
	ErrSpent = errors.New("enrol: the challenge is spent")
)

func denied(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrDenied, fmt.Sprintf(format, args...))
}

// A BusyError says that trying again is right, and when.
type BusyError struct {
	RetryAfter time.Duration
	Err        error // for us
}

func (e *BusyError) Error() string {
	if e.Err == nil {
		return "enrol: busy"
	}
	return "enrol: busy: " + e.Err.Error()
}

func (e *BusyError) Unwrap() error { return e.Err }

// A CA issues: ca.Authority, as the desk sees it.
type CA interface {
	RequestedNames(ctx context.Context, profile string, csr []byte) ([]ca.Identifier, error)
	CheckIdentifiers(ctx context.Context, profile string, ids []ca.Identifier) error
	CheckCSR(ctx context.Context, profile string, csr []byte, ids []ca.Identifier) (crypto.PublicKey, error)
	Issue(ctx context.Context, req ca.Request, led ca.Ledger) (ca.Certificate, error)
}

// A State is how far a request came.
type State string

// The states. What is processing has a lease; what is approved is issued when its
// device comes back.
const (
	Waiting    State = "waiting" // for an operator
	Approved   State = "approved"
	Denied     State = "denied"
	Processing State = "processing"
	Issued     State = "issued"
)

// A Record is a request as it is kept.
type Record struct {
	ID          string
	Key         string // the same for the same request of the same principal
	Endpoint    string
	Profile     string
	Principal   string // as Principal.Actor
	Transaction string
	CSR         []byte
	SPKI        [32]byte
	Names       []ca.Identifier
	Renewal     bool
	Challenge   string // the id of the challenge that it takes; "" for none
	State       State
	IntentID    string // of the certificate being issued
	Serial      ca.Serial
	Certificate []byte // DER, of what is issued and not revoked
	CreatedAt   time.Time
	LeaseUntil  time.Time // of what is processing
	DecidedAt   time.Time
	DecidedBy   string
	PurgeAt     time.Time // after that the same request is a new one
}

// A UserRecord is somebody who has a password.
type UserRecord struct {
	Name       string
	Password   string   // hashed, as HashPassword writes it; lists leave it out
	Endpoints  []string // that the user may enrol at; none: all
	Comment    string
	CreatedAt  time.Time
	CreatedBy  string
	DisabledAt time.Time // zero: in use
}

// A ChallengeRecord is a secret that somebody may use in place of a name.
type ChallengeRecord struct {
	ID        string
	Digest    string // lower-case hex of the HMAC of the secret
	Endpoint  string
	Subject   string          // what rules put in the place of {name}
	Names     []ca.Identifier // that the request has to have, exactly; none: what the rules allow
	MaxUses   int             // 0: any number
	Uses      int
	Comment   string
	CreatedAt time.Time
	CreatedBy string
	Expires   time.Time // zero: never
	RevokedAt time.Time
}

// Usable reports whether a request may begin with the challenge.
func (c ChallengeRecord) Usable(now time.Time) bool {
	return c.RevokedAt.IsZero() && (c.Expires.IsZero() || now.Before(c.Expires)) && (c.MaxUses == 0 || c.Uses < c.MaxUses)
}

// A Store keeps what the desk knows. It is safe for concurrent use, each method is
// one transaction, and each entry is in the transaction of its fact.
type Store interface {
	// User returns ErrNotFound for nobody.
	User(ctx context.Context, name string) (UserRecord, error)
	// Challenge finds one by the digest of its secret; ErrNotFound for none.
	Challenge(ctx context.Context, endpoint, digest string) (ChallengeRecord, error)

	// RequestByKey returns a request that is not yet to be purged; ErrNotFound for none.
	RequestByKey(ctx context.Context, key string, now time.Time) (Record, error)
	// RequestByTransaction finds the newest of a transaction and key; ErrNotFound for none.
	RequestByTransaction(ctx context.Context, endpoint, transaction string, spki [32]byte, now time.Time) (Record, error)
	// Keep keeps a request that waits, and takes its challenge: ErrMoved if one of
	// its key is there, ErrSpent if the challenge is. Most bounds how many may wait
	// at the endpoint: ErrFull.
	Keep(ctx context.Context, r Record, most int, e audit.Entry) error
	// Begin claims a request for in: one that is approved, or a new one, which is
	// stored with what it has in r, its challenge taken. ErrMoved and ErrSpent as for Keep.
	Begin(ctx context.Context, r Record, in ca.Intent) error
	// Commit makes the request issued; ca.ErrLeaseLost if it is no longer that of in.
	Commit(ctx context.Context, r Record, in ca.Intent, c ca.Certificate) error
	// Abort gives the request back: one that was approved is again, another is
	// forgotten, and its challenge may be used again.
	Abort(ctx context.Context, r Record, in ca.Intent, cause error) error
	// Sweep gives back what was processing and whose lease is over, as Abort does,
	// and deletes what is to be purged. It returns how many rows it found.
	Sweep(ctx context.Context, now time.Time, limit int) (int, error)

	// Record returns ca.ErrNotFound for a serial never assigned.
	Record(ctx context.Context, s ca.Serial) (ca.Record, error)
}

// ErrFull says that as many requests wait as may.
var ErrFull = errors.New("enrol: too many requests wait")

// A Verdict is what somebody else says of a request.
type Verdict string

// The verdicts.
const (
	Allow Verdict = "allow"
	Deny  Verdict = "deny"
	Ask   Verdict = "ask" // an operator
)

// A Decider is asked about each request that the rules allow, such as an
// inventory of devices. An error is no, for now.
type Decider interface {
	Decide(ctx context.Context, q Question) (Verdict, error)
}

// A Question is what a Decider is asked.
type Question struct {
	Endpoint    string          `json:"endpoint"`
	Profile     string          `json:"profile"`
	Principal   string          `json:"principal"`
	Transaction string          `json:"transaction,omitempty"`
	Names       []ca.Identifier `json:"names"`
	Renewal     bool            `json:"renewal"`
	SPKI        string          `json:"spki_sha256"`
	CSR         []byte          `json:"csr"`
}

// An Endpoint is one label that devices enrol at.
type Endpoint struct {
	Label   string
	Profile string
	Issuer  ca.IssuerID // "": as the profile says
	Rules   []Rule      // the first that fits allows; none that fits: denied
	// Manual has an operator approve each first certificate.
	Manual bool
	// Decider is asked after the rules; nil for nobody.
	Decider Decider
	// Manufacturers are who vouches for certificates that devices are born with.
	Manufacturers *x509.CertPool
	// Shared is a challenge that all devices have; "" for none. As it proves
	// nothing about a device, it is for networks that are closed otherwise.
	Shared  string
	Renewal Renewal
}

// Renewal is how certificates are renewed.
type Renewal struct {
	Off bool
	// Grace is for how long after its end a certificate can still be renewed.
	Grace time.Duration
	// Early is the share of its lifetime that has to be over, in percent.
	Early int
	// NewKey refuses the key of the old certificate.
	NewKey bool
}
