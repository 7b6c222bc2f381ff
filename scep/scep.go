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
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/enrol"
	"github.com/secsy-pki/secsy-pki/keys"
)

// A Desk decides about requests and has certificates issued: enrol.Desk. It is safe
// for concurrent use. What of its errors is for devices is enrol's: ErrDenied, a
// *BusyError, and beside these a *ca.Refusal.
type Desk interface {
	CheckCertificate(ctx context.Context, endpoint string, chain []*x509.Certificate) (enrol.Principal, error)
	Enrol(ctx context.Context, req enrol.Request) (enrol.Result, error)
	Poll(ctx context.Context, p enrol.Poll) (enrol.Result, error)
}

// Certificates finds certificates that the CA issued. It is safe for concurrent use.
type Certificates interface {
	// Record returns ca.ErrNotFound for a serial never assigned.
	Record(ctx context.Context, s ca.Serial) (ca.Record, error)
}

// CRLs has the lists of revoked certificates. It is safe for concurrent use.
type CRLs interface {
	// DER returns the issuer's current complete list; nil: there is none, or none of
	// at most most octets.
	DER(ctx context.Context, issuer ca.IssuerID, most int) ([]byte, error)
}

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
