// Package est speaks Enrolment over Secure Transport (RFC 7030, with the encodings
// of RFC 8951 and the attributes of RFC 9908) with devices. It decodes, finds what
// TLS and HTTP prove of who asks, asks the desk that decides and has certificates
// issued, and encodes.
package est

import (
	"context"
	"crypto/x509"
	"errors"
	"net/netip"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

// A Desk decides about requests and has certificates issued. It is safe for
// concurrent use.
//
// Errors: ErrDenied where credentials or policy say no, a *ca.Refusal where the
// request itself can't be certified, a *BusyError or a refusal of a gate where
// trying again later is right. All others are faults of ours.
type Desk interface {
	// CheckPassword says who logs in. It takes as long for who does not exist, at
	// endpoints that are none, too.
	CheckPassword(ctx context.Context, endpoint, user, password string, client netip.Addr) (Principal, error)
	// CheckCertificate says who has the key of chain[0]. That the key was there is
	// proven, all else is for the desk: chain, time, revocation, what it may be used for.
	CheckCertificate(ctx context.Context, endpoint string, chain []*x509.Certificate) (Principal, error)
	// Enrol issues a certificate or keeps the request for approval. The same request
	// of the same principal gives the same certificate, or still waits.
	Enrol(ctx context.Context, req Request) (Result, error)
}

// A Principal is whoever was proven to ask, in the desk's own terms.
type Principal interface {
	Actor() string // in limits and logs
}

// A Request is a certification request whose own signature holds.
type Request struct {
	Endpoint  string    // the label
	CSR       []byte    // DER
	Principal Principal // nil: Code is all that there is
	Code      string    // the challengePassword where that is an enrolment code
	// Renewal has the request renew the certificate that proved the principal.
	Renewal bool
	// Once says that the request can't wait: its key is gone with the answer. A desk
	// that would have it wait denies it.
	Once      bool
	Requester ca.Requester // its Actor is for the desk to set
}

// A Result is a certificate, or when to come back.
type Result struct {
	Certificate []byte        // DER; nil: the request waits
	RetryAfter  time.Duration // of a request that waits
}

// ErrDenied says no, and never why: neither who is known nor what is allowed may
// be found out by asking.
var ErrDenied = errors.New("est: denied")

// A BusyError says that trying again is right, and when.
type BusyError struct {
	RetryAfter time.Duration
	Err        error // for us
}

func (e *BusyError) Error() string {
	if e.Err == nil {
		return "est: busy"
	}
	return "est: busy: " + e.Err.Error()
}

func (e *BusyError) Unwrap() error { return e.Err }
