package acme

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

// An OrderStatus is where an order stands (RFC 8555 §7.1.6).
type OrderStatus string

// The states of an order.
const (
	OrderPending    OrderStatus = "pending"
	OrderReady      OrderStatus = "ready"
	OrderProcessing OrderStatus = "processing"
	OrderValid      OrderStatus = "valid"
	OrderInvalid    OrderStatus = "invalid"
	OrderCanceled   OrderStatus = "canceled" // never stored: valid, but renewed no more (RFC 8739 §3.1.2)
)

// An Order is a client's wish for one certificate.
type Order struct {
	ID          string
	AccountID   string
	Directory   string
	Status      OrderStatus // as stored; At says what it is at a time
	Profile     string
	Identifiers []ca.Identifier
	AuthzIDs    []string
	NotBefore   time.Time
	NotAfter    time.Time
	CreatedAt   time.Time
	Expires     time.Time // never after any of its valid authorizations
	Error       *Problem
	SetHash     string // of what was asked for: two orders that have the same are for the same
	Replaces    CertID // the certificate that it renews, if the client said so (RFC 9773 §5)

	// Once finalized:
	CSR      []byte // while processing
	CSRHash  string
	IntentID string    // "" while processing: parked
	Attempts int       // that failed, and the one under way
	Deaths   int       // attempts that ended with their process
	DueAt    time.Time // while processing: when to look at it again
	Renewal  bool      // its account held a certificate for the same names

	AutoRenewal *AutoRenewal // nil: one certificate is all
	CanceledAt  time.Time    // when its renewal was

	CertificateID string
	Serial        ca.Serial

	caaAt time.Time // of the oldest check of CAA records of its names; not stored
}

// At returns the order as it is at now: one that expired unfinished is invalid,
// whether or not the sweeper came by.
func (o Order) At(now time.Time) Order {
	if (o.Status == OrderPending || o.Status == OrderReady) && !now.Before(o.Expires) {
		o.Status = OrderInvalid
		p := OrderExpired()
		o.Error = &p
	}
	return o
}

// sameCSR reports whether the order was finalized with the CSR of that hash.
func (o Order) sameCSR(hash string) bool { return o.CSRHash != "" && o.CSRHash == hash }

func hashCSR(der []byte) string {
	h := sha256.Sum256(der)
	return hex.EncodeToString(h[:])
}

// OrderExpired is the end of an order that nobody finalized in time.
func OrderExpired() Problem {
	return Problem{Type: Malformed, Status: 400, Detail: "the order expired before it was finalized"}
}
