// Package crl builds and serves certificate revocation lists (RFC 5280 §5).
//
// A list is complete: one for each issuer, built when it is due and soon after
// a revocation, by whichever replica takes the number first, and served by all
// of them. However long it is, no part of it but a buffer is in memory on the
// way from the certificates to the store and to whoever asks: beyond the first
// MiB it is in a file without a name.
package crl

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
)

// A Number is a CRL number. Those of one issuer only grow; gaps say nothing.
type Number int64

// A CRL is one that was published.
type CRL struct {
	Issuer     ca.IssuerID
	Number     Number
	ThisUpdate time.Time
	NextUpdate time.Time
	Entries    int
	Octets     int64
	Count      Count // of the moment before the entries were read
	Body       BodyID
}

// A BodyID is the store's name for the octets of a list.
type BodyID string

// A Count says how much was ever revoked. It changes with every change to
// what a CRL must list, since a revocation is final and its reason can only
// turn into keyCompromise.
type Count struct {
	Revocations int64
	Compromises int64 // those among them for keyCompromise
}

// A Head is what the store says of an issuer's CRLs at one moment.
type Head struct {
	Published   Number    // 0: none yet
	ScheduledAt time.Time // thisUpdate of the last CRL that was due; zero: none yet
	Count       Count     // now, in the certificates
	Covered     Count     // by the CRL last published
}

// An Entry is one revoked certificate.
type Entry struct {
	Serial    ca.Serial
	RevokedAt time.Time
	Reason    ca.Reason
	InvalidAt time.Time // since when the key is suspected (RFC 5280 §5.3.2); zero: not said
}

// A Lease says how the next number is to be taken.
type Lease struct {
	Floor Number    // the number is at least this
	Now   time.Time // leases that ended by now are free
	Until time.Time // the new lease's end
}

// A Publication is a signed and checked CRL on its way into the store.
type Publication struct {
	CRL
	Scheduled bool // it was due, not only wanted because of a revocation
	Keep      int  // how many CRLs stay, this one included
	Audit     audit.Entry
}

// A Store keeps CRLs and their numbers, and lists what is revoked. It is safe
// for concurrent use.
type Store interface {
	Head(ctx context.Context, issuer ca.IssuerID) (Head, error)
	// Latest returns the CRL last published, ErrNone when there is none.
	Latest(ctx context.Context, issuer ca.IssuerID) (CRL, error)
	// Reserve takes the next number, durably, and with it the right to build
	// until the lease ends; ErrHeld while somebody else has that right.
	Reserve(ctx context.Context, issuer ca.IssuerID, l Lease) (Number, error)
	// Release gives back the lease that came with n. The number is spent.
	Release(ctx context.Context, issuer ca.IssuerID, n Number) error
	// Revoked gives out, one by one and as of one moment, what is revoked and, by
	// its expiry or its revocation, not older than cutoff, in the order of serials.
	Revoked(ctx context.Context, issuer ca.IssuerID, cutoff time.Time) iter.Seq2[Entry, error]
	// StillRevoked returns those of serials that Revoked would give out now.
	StillRevoked(ctx context.Context, issuer ca.IssuerID, serials []ca.Serial, cutoff time.Time) ([]ca.Serial, error)
	// Publish makes p, whose octets were Put, the latest CRL and ends its lease,
	// audit entry and all in one transaction; ErrSuperseded if a higher number was
	// published before.
	Publish(ctx context.Context, p Publication) error
	Bodies
}

// Bodies keeps the octets of lists. It is safe for concurrent use.
type Bodies interface {
	// Put keeps what r gives, durably, under a name of its own. An hour after at
	// it may go, unless a CRL with it was published.
	Put(ctx context.Context, at time.Time, r io.Reader) (BodyID, error)
	// Get writes the octets of that name to w; ErrNone if there are none any more.
	Get(ctx context.Context, id BodyID, w io.Writer) error
	// Drop forgets what was Put and is not to be published.
	Drop(ctx context.Context, id BodyID) error
}

var (
	// ErrNone says that no CRL was published yet.
	ErrNone = errors.New("crl: none published")
	// ErrIncomplete says that the octets of a CRL are not all there.
	ErrIncomplete = errors.New("crl: octets are missing")
	// ErrHeld says that somebody else is building.
	ErrHeld = errors.New("crl: somebody else is building")
	// ErrSuperseded says that a later CRL is there already.
	ErrSuperseded = errors.New("crl: superseded")
)
