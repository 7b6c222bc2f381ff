// Package scep speaks the Simple Certificate Enrolment Protocol (RFC 8894) with
// devices. It decodes, proves who signed and opens what was sealed, asks the desk
// that decides and has certificates issued, and encodes.
//
// A message costs a decryption by the device before anything is known of who sent
// it. So whatever can be refused without comes first, what is left stands in line
// at a gate of its own, and of a message that is wrong inside nothing is told but
// that.
package scep

import (
	"context"
	"crypto/x509"
	"errors"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
)

// A Desk decides about requests and has certificates issued. It is safe for
// concurrent use.
//
// Errors: ErrDenied where policy or credentials say no, a *ca.Refusal where the
// request itself can't be certified, a *BusyError where trying again later is
// right. All others are faults of ours.
type Desk interface {
	// Enrol issues a certificate or keeps the request for approval. The same request
	// of the same transaction gives the same certificate, or still waits.
	Enrol(ctx context.Context, req Request) (Result, error)
	// Poll asks what became of a request that waits. Whose key is not that of the
	// request is denied.
	Poll(ctx context.Context, p Poll) (Result, error)
}

// A Request is a certification request whose message was signed and sealed as it
// has to be.
type Request struct {
	Endpoint    string // the label
	Transaction string // the transactionID, of printable characters that mean nothing
	CSR         []byte // DER, its signature checked
	Challenge   string // the challengePassword; "" for none
	// Current is the certificate whose key signed the message, if the endpoint's
	// issuer signed it: the request is to renew it. That it is in force and not
	// revoked is for the desk to see to. Nil: the key of the CSR signed.
	Current *x509.Certificate
}

// A Poll is a question about a request that waits.
type Poll struct {
	Endpoint    string
	Transaction string
	SPKI        [32]byte // SHA-256 of the SubjectPublicKeyInfo of who asks
}

// A Result is a certificate, or the word that the request waits.
type Result struct {
	Certificate []byte // DER; nil: pending
}

// ErrDenied says no, and never why: neither who is known nor what is allowed may
// be found out by asking.
var ErrDenied = errors.New("scep: denied")

// A BusyError says that trying again is right, and when.
type BusyError struct {
	RetryAfter time.Duration
	Err        error // for us
}

func (e *BusyError) Error() string {
	if e.Err == nil {
		return "scep: busy"
	}
	return "scep: busy: " + e.Err.Error()
}

func (e *BusyError) Unwrap() error { return e.Err }

// Certificates finds certificates that the CA issued. It is safe for concurrent use.
type Certificates interface {
	// Record returns ca.ErrNotFound for a serial never assigned.
	Record(ctx context.Context, s ca.Serial) (ca.Record, error)
}

// CRLs has the lists of revoked certificates. It is safe for concurrent use.
type CRLs interface {
	// CRL returns the issuer's current complete list, DER. An error matching
	// ErrNoCRL says that there is none, or none of at most most octets.
	CRL(ctx context.Context, issuer ca.IssuerID, most int) ([]byte, error)
}

// ErrNoCRL says that there is no list to be had by SCEP.
var ErrNoCRL = errors.New("scep: no CRL")

// An Issuer has certificates issued: the CA, as seen by a registration authority
// that needs one for itself.
type Issuer interface {
	Issue(ctx context.Context, req ca.Request, led ca.Ledger) (ca.Certificate, error)
}

// A Registrations store keeps the certificates of registration authorities, so
// that a restart and other replicas go on with the same one: devices remember it.
// It is safe for concurrent use.
type Registrations interface {
	// Registration returns the DER certificate for an issuer and the SHA-256 of the
	// authority's SubjectPublicKeyInfo; ca.ErrNotFound when there is none.
	Registration(ctx context.Context, issuer ca.IssuerID, spki [32]byte) ([]byte, error)
	// SaveRegistration keeps the certificate unless one that ends later is there.
	SaveRegistration(ctx context.Context, issuer ca.IssuerID, spki [32]byte, der []byte, notAfter time.Time) error
}

// KeyStore finds keys of registration authorities and makes the missing ones.
type KeyStore interface {
	keys.Store
	keys.Generator
}
