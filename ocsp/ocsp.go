// Package ocsp answers what the state of a certificate is, in the terms of RFC
// 6960 as narrowed by RFC 9919, with the nonces of RFC 9654.
//
// A response is signed by a delegated responder, never by the CA's own key. It
// may be kept, but goes out only while the changes of statuses are followed, or
// after the store was asked once more, so that no "good" is sent after a
// revocation was acknowledged, on whichever replica.
package ocsp

import (
	"context"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

// A Source knows the state of certificates. It is safe for concurrent use.
type Source interface {
	// Status returns what is committed now; an error matching ca.ErrNotFound
	// says that this issuer never assigned the serial.
	Status(ctx context.Context, issuer ca.IssuerID, serial ca.Serial) (Status, error)
	// Heads returns the number of the last change of status that is committed, of
	// each issuer that has any.
	Heads(ctx context.Context) (map[ca.IssuerID]int64, error)
	// Changes lists certificates whose status has changed after change number
	// since, in the order of their last changes, limit at most.
	Changes(ctx context.Context, issuer ca.IssuerID, since int64, limit int) ([]Change, error)
}

// A Change is the last change of a certificate's status. Numbers grow in the
// order of commits, and those of one issuer are its own.
type Change struct {
	Serial ca.Serial
	Number int64
}

// A Status is what the store says of one certificate.
type Status struct {
	State     ca.State
	RevokedAt time.Time // zero: not revoked
	Reason    ca.Reason
	NotAfter  time.Time

	unissued bool // no certificate has this serial
}

// unissued is what the extended definition of "revoked" says of a serial that no
// certificate has (RFC 6960 §2.2).
func unissued() Status {
	return Status{RevokedAt: time.Unix(0, 0), Reason: ca.CertificateHold, unissued: true}
}

// same reports whether a response made for s still tells the truth about o.
func (s Status) same(o Status) bool {
	return s.State == o.State && s.RevokedAt.Equal(o.RevokedAt) && s.Reason == o.Reason
}

// revoked reports whether the certificate is to be called revoked. An abandoned
// one may have been signed, so it is revoked whatever else is known of it.
func (s Status) revoked() bool { return !s.RevokedAt.IsZero() || s.State == ca.Abandoned }

// An Issuer has certificates issued: the CA, as seen by a responder that needs
// one for itself.
type Issuer interface {
	Issue(ctx context.Context, req ca.Request, led ca.Ledger) (ca.Certificate, error)
}

// A Responders store keeps the certificates of delegated responders, so that a
// restart and other replicas with the same key go on with the same one. It is
// safe for concurrent use.
type Responders interface {
	// Responder returns the DER certificate for an issuer and the SHA-256 of the
	// responder's SubjectPublicKeyInfo; ca.ErrNotFound when there is none.
	Responder(ctx context.Context, issuer ca.IssuerID, spki [32]byte) ([]byte, error)
	// SaveResponder keeps the certificate unless one that ends later is there.
	SaveResponder(ctx context.Context, issuer ca.IssuerID, spki [32]byte, der []byte, notAfter time.Time) error
}

// Leases divide work among replicas. They are safe for concurrent use.
type Leases interface {
	// Claim gives a piece of work to holder until then, and reports false while
	// another's claim to it runs. Whoever has it may claim it again.
	Claim(ctx context.Context, work, holder string, now, until time.Time) (bool, error)
	// Leave ends holder's claim, if it still runs.
	Leave(ctx context.Context, work, holder string) error
}

// A responseStatus is an OCSPResponseStatus other than successful (RFC 6960
// §4.2.1). It is the only error that strangers see.
type responseStatus byte

const (
	malformedRequest responseStatus = 1
	internalError    responseStatus = 2
	tryLater         responseStatus = 3
	unauthorized     responseStatus = 6
)

func (s responseStatus) Error() string { return "ocsp: " + s.String() }

func (s responseStatus) String() string {
	switch s {
	case malformedRequest:
		return "malformed_request"
	case tryLater:
		return "try_later"
	case unauthorized:
		return "unauthorized"
	default:
		return "internal_error"
	}
}

// der returns the whole OCSPResponse: five octets, without responseBytes.
func (s responseStatus) der() []byte { return []byte{0x30, 3, 0x0a, 1, byte(s)} }
