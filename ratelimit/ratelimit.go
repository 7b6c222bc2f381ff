// Package ratelimit decides, before any work is done, whether a request may be
// made: by the address that it comes from, by the account that it is proven to
// belong to, and by what all requests together may cost.
package ratelimit

import (
	"net/netip"
	"time"
)

// A Cost is what a request is worth, in thousandths of a token, so that an
// answer that is ready costs next to nothing and can still be counted.
type Cost int64

// Token is the price of an ordinary request.
const Token Cost = 1000

// A Tier is one kind of bucket: a closed set, as each is a label.
type Tier uint8

// The tiers, in the order in which they are asked: what an attacker owns first,
// what all share last, so that a source which is over its limit never reaches
// the shared ones.
const (
	None             Tier = iota
	PerIP                 // IPv4 /32, IPv6 /64
	PerPrefix             // IPv6 /48
	EndpointIP            // PerIP of one class of endpoints
	PerSourceAccount      // an address with the account that it claims to be
	PerAccount            // a proven account
	EndpointAll           // one class of endpoints, all callers
	Global                // everything
	tiers
)

// String is the tier's name in metrics and configuration.
func (t Tier) String() string {
	return [...]string{"none", "per_ip", "per_prefix", "endpoint_ip", "per_source_account", "per_account", "endpoint", "global"}[t]
}

// A Bucket refills at Rate tokens a second and holds Burst. It is inert when
// either is 0. The time that a token takes is rounded up to a nanosecond.
type Bucket struct {
	Rate   float64
	Burst  int
	Shadow bool // counts what it would refuse, and refuses nothing
}

// Active reports whether the bucket limits anything.
func (b Bucket) Active() bool { return b.Rate > 0 && b.Burst > 0 }

// An Override is what one source or account has instead of the common bucket of
// its tier. Exactly one of Source and Account is set. Of several sources the
// longest prefix counts.
type Override struct {
	Source  netip.Prefix // its PerIP bucket, one for each IPv4 address or IPv6 /64 within; a longer prefix has one
	Account string       // its PerAccount bucket
	Bucket  Bucket       // PerPrefix has PrefixFactor times as much; EndpointIP is not changed by it
	Exempt  bool         // no limit of this source or account; Global and EndpointAll hold all the same
}

// EndpointLimit are the optional tiers of one class of endpoints.
type EndpointLimit struct {
	PerIP Bucket
	All   Bucket
}

// A Config says what the tiers are. All of it can be changed while requests are
// answered, except MaxKeys, Recorder and Now.
type Config struct {
	Global     Bucket
	PerIP      Bucket
	PerAccount Bucket
	// PrefixFactor is how many times PerIP an IPv6 /48 has; 0 means 4.
	PrefixFactor int
	NAT64        []netip.Prefix // addresses within stand for the IPv4 address in their last 32 bits
	MaxKeys      int            // of each tier that has keys, about 18 bytes each; rounded up; 0 means 100,000
	Endpoints    map[string]EndpointLimit
	Overrides    []Override
	// Shadow lets no tier refuse anything: what each would refuse is counted,
	// and not taken from it. So it is with one Bucket that says Shadow.
	Shadow bool
	// Jitter makes a RetryAfter of more than ten seconds up to a tenth longer, so
	// that not all come back at once. It is the same for a source every time.
	Jitter   bool
	Recorder *Recorder    // told of refusals; may be nil
	Now      func() int64 // nanoseconds on a clock that nobody can set; nil: since New
}

// A Decision is the answer to one request.
type Decision struct {
	OK    bool
	Never bool // the cost is more than the bucket ever holds: waiting does not help
	Tier  Tier // that refused
	// RetryAfter is how long to wait, in whole seconds, at least one; a caller
	// that is alone and waits exactly that long is let in.
	RetryAfter time.Duration
}

// Seconds is RetryAfter for a header.
func (d Decision) Seconds() int64 { return int64(d.RetryAfter / time.Second) }

// A Group is endpoints that share the buckets of their sources and the global
// one, and share none with other groups: a flood of one kind of request leaves
// the others alone.
type Group uint8

// The groups.
const (
	Work   Group = iota // what makes work: orders, enrolments
	Status              // what others than the CA's clients rely on: OCSP, CRLs
	Entry               // what comes before anything else, and costs next to nothing: a directory, a nonce
	Stray               // what nobody asked for who knows us: paths that are not there
	groups
)

// EndpointOptions say what a request to one class of endpoints costs.
type EndpointOptions struct {
	Group Group
	Cost  Cost // 0 means Token
	// Reserve are tokens that must be left in the source's bucket, up to half
	// of its burst. It is for requests that begin something: who is let in can
	// then go through with it.
	Reserve int
	// SkipGlobal is for answers that are ready. They cost about what a refusal
	// costs, so that a bucket for everybody protects nothing: it would only let a
	// few addresses decide that nobody gets them.
	SkipGlobal bool
	// Exempt is for what is never refused by a tier: it is only counted.
	Exempt bool
}
