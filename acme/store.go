package acme

import (
	"context"
	"crypto"
	"errors"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

var (
	// ErrNotFound says that there is no such account, order or authorization.
	ErrNotFound = errors.New("acme: no such object")
	// ErrMoved says that a compare-and-swap lost: the object is no longer in
	// the state that the change starts from. Whoever hears it reads again.
	ErrMoved = errors.New("acme: the object moved on")
	// ErrKeyTaken says that another account has the key.
	ErrKeyTaken = errors.New("acme: key belongs to another account")
	// ErrUnsigned says that the account is not as it signed any more.
	ErrUnsigned = errors.New("acme: the account changed its key or has ended")
	// ErrSame says that there is an open order for the same.
	ErrSame = errors.New("acme: there is an open order for the same")
	// ErrTooManyOpen says that the account has its fill of unfinished orders.
	ErrTooManyOpen = errors.New("acme: too many open orders")
	// ErrUnproven says that an authorization that an order relies on no longer
	// holds. The order is invalid by then.
	ErrUnproven = errors.New("acme: an authorization of the order no longer holds")
)

// A QuotaError says that an order costs more than its account's quota holds: now,
// or ever.
type QuotaError struct {
	Decision ratelimit.Decision
	Debit    Debit // zero: that of identifiers
}

func (e *QuotaError) Error() string {
	if e.Decision.Never {
		return "acme: the order costs more than the quota ever holds"
	}
	return "acme: the account's quota is used up for " + e.Decision.RetryAfter.String()
}

// A CA is what this room asks of the certification authority. It is safe for
// concurrent use. An error that matches *ca.Refusal may be heard by the client.
type CA interface {
	Issue(ctx context.Context, req ca.Request, led ca.Ledger) (ca.Certificate, error)
	Revoke(ctx context.Context, r ca.Revocation) error
	Issuer(id ca.IssuerID) (*ca.Issuer, bool)
	// Ready says, without asking a device, whether Issue would be in vain for now.
	Ready(profile string) error
	Policy
}

// A Policy says beforehand what the authority would refuse.
type Policy interface {
	CheckIdentifiers(ctx context.Context, profile string, ids []ca.Identifier) error
	CheckCSR(ctx context.Context, profile string, der []byte, ids []ca.Identifier) (crypto.PublicKey, error)
	CheckKey(ctx context.Context, pub crypto.PublicKey) error
	CheckValidity(profile string, notBefore, notAfter time.Time) error
	// UsualLifetime is that of a certificate for which no dates were asked for, 0
	// if there is no such profile.
	UsualLifetime(profile string) time.Duration
}

// A Store keeps the state of this room. It is safe for concurrent use; what a
// method wrote is durable on return and visible to every later read, and the
// audit entry given to a method is in the same transaction as the fact.
type Store interface {
	Accounts
	Bindings
	Orphans
	Orders
	Authorizations
	Issuances
	Certificates
	Devices
	NonceStates
	Pauses
	Reuse
	Renewals
	Stars
	Ahead
	CAAChecks
	// Sweep turns orders that expired to invalid, and deletes orders and
	// authorizations whose time to be purged has come. It touches at most limit
	// of each and reports how many it did touch. What accounts no longer owe of
	// their quotas goes with it.
	Sweep(ctx context.Context, s Sweep) (int, error)
	// EndLeases makes every validation and issuance under way due at now, if it
	// were due later. An order that was begun several times before has to wait
	// a little for each of them.
	EndLeases(ctx context.Context, now time.Time) error
}

// Accounts keeps the accounts of one directory. The thumbprint of a key is
// unique among them.
type Accounts interface {
	// CreateAccount stores a unless its key has an account, which is returned
	// instead, with false. Only an account that it stores uses its EAB key;
	// ErrBindingSpent says that there was nothing left to use.
	CreateAccount(ctx context.Context, a Account, e audit.Entry) (Account, bool, error)
	// Account and AccountByKey return ErrNotFound for none.
	Account(ctx context.Context, id string) (Account, error)
	AccountByKey(ctx context.Context, thumbprint string) (Account, error)
	// UpdateContacts, DeactivateAccount and ChangeKey need the account to be
	// valid and return ErrMoved if it is not.
	UpdateContacts(ctx context.Context, id string, contacts []string, e audit.Entry) error
	// DeactivateAccount also turns the account's unfinished orders to invalid.
	DeactivateAccount(ctx context.Context, id string, closed Closing, e audit.Entry) error
	// ChangeKey needs the account's key to be still the one of thumbprint old.
	ChangeKey(ctx context.Context, id, old string, jwk []byte, thumbprint string, e audit.Entry) error
}

// A Signer is a valid account whose key has that thumbprint, if it is so still.
type Signer struct{ AccountID, Thumbprint string }

// Actor names the account in the audit log, and as a requester of certificates.
func (s Signer) Actor() string { return actor(s.AccountID) }

// Orders keeps orders.
type Orders interface {
	// CreateOrder stores o with as, the authorizations that are made for it, and
	// debits its identifiers in one transaction, or fails with ErrUnsigned,
	// ErrSame, ErrTooManyOpen, a *QuotaError, or ErrReplaced if another order that is neither invalid nor
	// expired replaces the same certificate. What failed has cost nothing. The
	// other authorizations of o must be valid ones of its account that do not
	// expire before it: ErrMoved says that they are not.
	CreateOrder(ctx context.Context, o Order, as []Authorization, l OrderLimits) error
	Order(ctx context.Context, id string) (Order, error)
	// OrderOf returns ErrNotFound, by the same work, for what is not there and
	// for another account's, and also if the account is not as it signed.
	OrderOf(ctx context.Context, by Signer, id string) (Order, error)
	// ListOrders returns a page of the account's orders that are not invalid by
	// rising id, from the first after the given one on.
	ListOrders(ctx context.Context, accountID, after string, limit int) ([]OrderRef, error)
}

// OrderLimits are what an account may have, at the time of a new order.
type OrderLimits struct {
	MaxOpen int             // orders that are neither finalized nor invalid
	Quota   ratelimit.Quota // of identifiers; the zero Quota is off
	Debits  []Debit         // further ones, all or none
	Pausing bool            // whether what is paused may not be needed
	// By is who signed; the zero Signer asks for nobody.
	By Signer
	// Unlike refuses an order for which there is an open one with the same SetHash
	// that expires later than then; zero: not.
	Unlike time.Time
	// KeepUntil is when the order is deleted at the earliest, once it is valid.
	KeepUntil time.Time
}

// An OrderRef is an order in a list.
type OrderRef struct {
	ID     string
	Status OrderStatus
}

// Authorizations keeps authorizations and the state of their validation.
type Authorizations interface {
	Authorization(ctx context.Context, id string) (Authorization, error)
	// AuthorizationOf is to Authorization what OrderOf is to Order.
	AuthorizationOf(ctx context.Context, by Signer, id string) (Authorization, error)
	// StartChallenge moves a pending, unstarted authorization to t with a lease
	// until lease, or returns ErrMoved.
	StartChallenge(ctx context.Context, id string, t ChallengeType, lease, now time.Time) error
	// DueValidations lists started validations whose lease ended, each account's
	// oldest first. It is the turn of the accounts that hold the fewest leases,
	// of equals of the one after the given one, and so on around.
	DueValidations(ctx context.Context, now time.Time, after string, limit int) ([]Authorization, error)
	// ExtendLease moves the holder's lease of a started validation from old to
	// until; ErrMoved says that somebody else has it.
	ExtendLease(ctx context.Context, id string, old, until time.Time) error
	// TakeLease is ExtendLease for somebody else than the last holder, and
	// counts the attempt. GiveBackLease makes the validation due at now for
	// somebody else, and undoes the count: nothing came of it, but nothing went
	// wrong either.
	TakeLease(ctx context.Context, id string, old, until time.Time) error
	GiveBackLease(ctx context.Context, id string, old, now time.Time) error
	// FinishValidation writes the outcome if the lease is still the caller's:
	// ErrMoved otherwise. The last valid authorization makes its order ready, a
	// failed one makes it invalid, in the same transaction. e is the entry of
	// a valid one.
	FinishValidation(ctx context.Context, v Validated, e audit.Entry) error
	// DeactivateAuthorization moves a pending or valid authorization to
	// deactivated, and all its account's orders that rely on it, but for those
	// that are being issued, to invalid. e is the entry of a valid one.
	DeactivateAuthorization(ctx context.Context, id string, now time.Time, closed Closing, e audit.Entry) error
	// Holds reports whether the account has valid authorizations for all ids.
	Holds(ctx context.Context, accountID string, ids []ca.Identifier, now time.Time) (bool, error)
}

// Issuances keeps orders that are being issued. Each move is one transaction
// together with the intent's.
type Issuances interface {
	// Park moves a ready order to processing without an intent, so that it
	// is issued from DueAt on. ErrMoved says that it is not ready.
	Park(ctx context.Context, c Claim) error
	// BeginIssue claims the order for in and records the intent. ErrMoved says
	// that another intent has it, that it was claimed for another CSR, or that it
	// expired; ErrUnproven that its authorizations do not hold any more, for
	// which the order has become invalid.
	BeginIssue(ctx context.Context, c Claim, in ca.Intent) error
	// CommitIssue makes the order valid and records the certificate, which one it
	// replaces, and the row of certificates that it begins;
	// ca.ErrLeaseLost says that the order is no longer this intent's.
	CommitIssue(ctx context.Context, orderID string, in ca.Intent, c ca.Certificate, purgeAt time.Time) error
	// AbortIssue ends the intent, and does v to the order if it is still this intent's.
	AbortIssue(ctx context.Context, orderID string, in ca.Intent, cause error, v Verdict) error
	// DueOrders lists processing orders whose time to be looked at has come, each
	// account's oldest first. It is the turn of the accounts that have the fewest
	// processing orders whose time has not come, of equals of the one after the
	// given one, and so on around; renewals, and what has been due for a minute,
	// come a turn earlier.
	DueOrders(ctx context.Context, now time.Time, after string, limit int) ([]Order, error)
	// ClaimDue moves the time from old to until: ErrMoved says that somebody
	// else did. If the order has an intent, its attempt ended with its process,
	// and is counted among the deaths from then on.
	ClaimDue(ctx context.Context, orderID string, old, until time.Time) error
	// Settle does v to a processing order that has still the intent given,
	// where no intent of its own is to be ended. e may be nil.
	Settle(ctx context.Context, orderID, intentID string, v Verdict, e *audit.Entry) error
	// Backlog counts the processing orders, and those of the top accounts that have most.
	Backlog(ctx context.Context, top int) (BacklogCount, error)
	// Facts says at once what there is to know before a CSR is accepted.
	Facts(ctx context.Context, q FactsQuery) (Facts, error)
}

// A FactsQuery asks about the CSR of an order.
type FactsQuery struct {
	Thumbprint string // of the CSR's key
	Requester  string
	Names      []ca.Identifier
	Now        time.Time
}

// Facts are what is known of a CSR.
type Facts struct {
	AccountKey bool // its key has an account, in any directory
	// Held says that the requester was issued a certificate for exactly these names
	// that is neither revoked nor expired. It is asked of the certificates, not of
	// the orders, which are purged.
	Held bool
}

// A BacklogCount is how many orders are processing.
type BacklogCount struct {
	Total int
	Of    map[string]int // by account, for those that have most
}

// Certificates finds what was issued.
type Certificates interface {
	// CertificateOf returns a certificate that was issued to requester, and
	// ca.ErrNotFound, by the same work, for all others and for none.
	CertificateOf(ctx context.Context, requester, id string) (ca.Record, error)
	// CertificateBy is to CertificateOf what OrderOf is to Order.
	CertificateBy(ctx context.Context, by Signer, id string) (ca.Record, error)
	// Record returns ca.ErrNotFound for a serial never assigned.
	Record(ctx context.Context, s ca.Serial) (ca.Record, error)
}

// A Claim is an attempt to move an order to processing.
type Claim struct {
	OrderID string
	Prev    string // the intent that the order has: "" for none
	CSR     []byte
	CSRHash string
	Now     time.Time // the order must expire after it
	DueAt   time.Time // when to look at the order again
	Renewal bool

	// Authzs are the order's: each must be valid at Now, and proven at Since or
	// later. Unproven is what becomes of the order if one is not.
	Authzs   []string
	Since    time.Time
	Unproven Closing
}

// A Verdict is what becomes of an order whose issuance did not end well.
type Verdict struct {
	Failed  *Problem // the order is invalid; nil: it stays processing, without intent
	Counts  bool     // the try counts towards the most that are made
	DueAt   time.Time
	PurgeAt time.Time
}

// A Closing is what an order that ends invalid keeps.
type Closing struct {
	Error   Problem
	PurgeAt time.Time
}

// Validated is the outcome of a validation.
type Validated struct {
	AuthzID string
	OrderID string
	Lease   time.Time // the caller's
	At      time.Time
	Failed  *Problem // nil: valid
	// Contested says that it failed although we saw it ourselves. That is kept in
	// the audit log, which other failures are not.
	Contested bool
	// AttestedKey is the key that the authorization holds for; "": any.
	AttestedKey string
	Expires     time.Time // of the authorization, now that it is valid
	PurgeAt     time.Time // of the authorization
	CAAAt       time.Time // when CAA records allowed a certificate, zero if they were not asked for
	Closing     Closing   // of the order, if it failed
	Failure     *Failure  // counts if it failed; nil: no pausing
}

// of is the authorization with its outcome, as far as it is shown.
func (v Validated) of(a Authorization) Authorization {
	a.Status, a.Validated, a.Expires, a.Error = AuthzValid, v.At, v.Expires, nil
	if v.Failed != nil {
		a.Status, a.Validated, a.Error = AuthzInvalid, time.Time{}, v.Failed
	}
	return a
}

// A Sweep is one round of cleaning.
type Sweep struct {
	Now     time.Time
	Closing Closing // of orders that expired
	Limit   int
}
