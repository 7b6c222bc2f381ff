// Package crl builds and serves certificate revocation lists (RFC 5280 §5).
//
// Each issuer has a complete list, one for each of its shards, and where it is
// asked for deltas to them. They are built when they are due and soon after a
// revocation, by whichever replica takes the number first, and served by all of
// them. However long it is, no part of it but a buffer is in memory on the
// way from the certificates to the store and to whoever asks: beyond the first
// MiB it is in a file without a name.
package crl

import (
	"context"
	"errors"
	"io"
	"iter"
	"strconv"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
)

// A Number is a CRL number. Those of one scope only grow; gaps say nothing.
type Number int64

// A Scope is what a CRL is about: all that an issuer certified, or the part of
// it whose certificates name one shard.
type Scope struct {
	Issuer ca.IssuerID
	Shard  int // 0: all, those of shards included
}

// String is how the scope is stored and logged, and with ".crl" the end of its address.
func (s Scope) String() string {
	if s.Shard == 0 {
		return string(s.Issuer)
	}
	return string(s.Issuer) + "/" + strconv.Itoa(s.Shard)
}

// A Series is a row of CRLs, each of which takes the place of the one before:
// the complete ones of a scope, or its deltas. Both take their numbers from one
// sequence (RFC 5280 §5.2.3).
type Series struct {
	Scope
	Delta bool
}

// A CRL is one that was published.
type CRL struct {
	Scope
	Number     Number
	Base       Number // of the complete CRL that this one is a delta to; 0: it is complete
	ThisUpdate time.Time
	NextUpdate time.Time
	Entries    int
	Octets     int64
	Seq        Seq // of the moment before the entries were read
	Body       BodyID
}

// A BodyID is the store's name for the octets of a list.
type BodyID string

// A Seq numbers the changes of status of an issuer's certificates: revocations,
// new reasons, releases from hold. Who reads one sees all changes up to it. It
// is no time: what happens at the same moment, or is stamped by a clock that is
// wrong, is not missed.
type Seq int64

// A Head is what the store says of a scope at one moment.
type Head struct {
	Seq       Seq       // now, of the issuer's certificates
	UpdatedAt time.Time // thisUpdate of the CRL last published, be it complete or a delta

	Published   Number    // the complete one; 0: none yet
	ScheduledAt time.Time // thisUpdate of the last complete one that was due; zero: none yet
	Changed     bool      // some status did since the complete one
	Base        Base      // the last complete one that was due; zero: none, or its row is gone

	Delta        Number // 0: none yet
	DeltaAt      time.Time
	DeltaBase    Number
	DeltaChanged bool // some status did since the delta
}

// A Base is what is to be known of the complete CRL that deltas are based on.
type Base struct {
	Number     Number
	ThisUpdate time.Time
	NextUpdate time.Time
	Seq        Seq
}

// A Selection says what is to be listed of a scope.
type Selection struct {
	Series
	// ExpiredBy and Seen leave off a complete CRL whose certificate had expired by
	// then, if the change that revoked it is up to Seen.
	ExpiredBy time.Time
	Seen      Seq
	// Since is what a delta follows: what changed after it is listed as it is now.
	Since Seq
}

// An Entry is one revoked certificate. In a delta it may be one that was released
// from its hold: its reason is removeFromCRL, and the store has no date for it.
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
	Keep      int  // how many of the series stay, this one included
	Audit     audit.Entry
}

// A Store keeps CRLs and their numbers, and lists what is revoked. It is safe
// for concurrent use.
type Store interface {
	Head(ctx context.Context, s Scope) (Head, error)
	// Latest returns the CRL last published, ErrNone when there is none.
	Latest(ctx context.Context, s Series) (CRL, error)
	// Reserve takes the next number, durably, and with it the right to build
	// until the lease ends; ErrHeld while somebody else has that right.
	Reserve(ctx context.Context, s Scope, l Lease) (Number, error)
	// Release gives back the lease that came with n. The number is spent.
	Release(ctx context.Context, s Scope, n Number) error
	// Revoked gives out what s selects, one by one and as of one moment, in the
	// order of serials.
	Revoked(ctx context.Context, s Selection) iter.Seq2[Entry, error]
	// StillRevoked returns those of serials that Revoked would give out now.
	StillRevoked(ctx context.Context, s Selection, serials []ca.Serial) ([]ca.Serial, error)
	// Publish makes p, whose octets were Put, the latest of its series and ends its
	// lease, audit entry and all in one transaction; ErrSuperseded if a higher
	// number of its scope was published before.
	Publish(ctx context.Context, p Publication) error
	Bodies
	Shards
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
