package acme

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/peer"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// What requests cost their source. A newOrder is the unit: a transaction that
// waits for the disk. A step of an order is one signature to verify and some
// rows to read by key, now and then a small write: about a quarter of that. An
// order for one name is a newOrder and some ten steps, so three or four tokens.
// The directory and a nonce are microseconds without a database, and have a
// price so that there is an end to them, too.
const (
	priceStep  = ratelimit.Token / 4
	priceReady = ratelimit.Token / 10
	// reserved is left to whoever is let in to begin something: 32 steps, which
	// is an order of several names.
	reserved = 8
)

// A class is endpoints with one price, one name in metrics and one way to refuse.
type class struct {
	name  string
	path  string // prefix of its paths, below the root
	limit *ratelimit.Endpoint
	// status is what a refusal for too many requests has. What comes in the
	// middle of something gets 503: uacme and acme.sh wait for as long as a 503
	// says, and take a 429 for the end, which leaves half an order behind. What
	// begins something gets 429, on which nobody insists.
	status int
	refuse func(http.ResponseWriter, *http.Request, ratelimit.Decision)
}

type classes struct{ directory, newNonce, renewalInfo, newAccount, newOrder, revoke, steps *class }

func newClasses(l *ratelimit.Limiter, c *canned) classes {
	class := func(name, path string, status int, o ratelimit.EndpointOptions) *class {
		return &class{name, path, l.Endpoint(name, o), status, c.refuser(status)}
	}
	return classes{
		directory: class("acme_directory", "/directory", http.StatusTooManyRequests, ratelimit.EndpointOptions{Group: ratelimit.Entry, Cost: priceReady, SkipGlobal: true}),
		// A nonce costs no more than its refusal, and a revocation may need one first.
		newNonce: class("acme_new_nonce", "/new-nonce", http.StatusServiceUnavailable, ratelimit.EndpointOptions{Group: ratelimit.Entry, Cost: priceReady, SkipGlobal: true}),
		// One row by its key. Who can't read it renews when he would have without.
		renewalInfo: class("acme_renewal_info", "/"+renewalInfoPath, http.StatusTooManyRequests, ratelimit.EndpointOptions{Group: ratelimit.Entry, Cost: priceReady, SkipGlobal: true}),
		newAccount:  class("acme_new_account", "/new-account", http.StatusTooManyRequests, ratelimit.EndpointOptions{Cost: ratelimit.Token, Reserve: reserved}),
		newOrder:    class("acme_new_order", "/new-order", http.StatusTooManyRequests, ratelimit.EndpointOptions{Cost: ratelimit.Token, Reserve: reserved}),
		// A certificate whose key is lost can't wait for a bucket to refill; it
		// waits its turn at the gate.
		revoke: class("acme_revoke", "/revoke-cert", http.StatusServiceUnavailable, ratelimit.EndpointOptions{Exempt: true}),
		steps:  class("acme", "", http.StatusServiceUnavailable, ratelimit.EndpointOptions{Cost: priceStep}),
	}
}

func (c classes) all() []*class {
	return []*class{c.directory, c.newNonce, c.renewalInfo, c.newAccount, c.newOrder, c.revoke, c.steps}
}

// A Route is a class of endpoints, for whoever stands before Handler to charge
// and to refuse requests by.
type Route struct {
	Path   string // itself and what is below, as it came over the wire; of several the longest counts
	Class  string // the name in metrics and logs
	Limit  *ratelimit.Endpoint
	Refuse func(http.ResponseWriter, *http.Request, ratelimit.Decision) // cheap, in ACME's form
}

// Routes returns the classes of all that Handler answers. Handler takes a
// request for admitted by the class of its path; what it learns more of it, its
// account, it charges itself.
func (s *Server) Routes() []Route {
	var out []Route
	for _, c := range s.classes.all() {
		out = append(out, Route{Path: s.root + c.path, Class: c.name, Limit: c.limit, Refuse: c.refuse})
	}
	if c := s.classes.newOrder; s.cfg.PreAuthorization {
		out = append(out, Route{Path: s.root + "/new-authz", Class: c.name, Limit: c.limit, Refuse: c.refuse})
	}
	return out
}

// terms are what a signed request is admitted on.
type terms struct {
	class  *class
	exempt bool // no limit of its account or of its claim to be from it
	budget bool // the refusal budget holds
	// hold keeps the no of the account's limits, and of its claim, in the
	// request, for a handler that may yet overrule it. Who forges such a
	// request pays for the proof that fails.
	hold bool
	gate *gate.Gate // for the work of reading and verifying; nil: no turns
}

// claimed charges a request to its source together with the account that it
// names. Nothing is proven yet: the account itself can't be charged, or anybody
// could lock it out.
func (s *Server) claimed(r *http.Request, t terms, account string) error {
	if t.exempt {
		return nil
	}
	d := t.class.limit.Claimed(peer.From(r.Context()).Addr, account)
	if d.OK {
		return nil
	}
	peer.Quiet(r.Context())
	return tooMuch(d, t.class.status, "from this address in the name of this account")
}

// failedProof charges a proof that did not hold to its source: verifying is
// the most that a stranger can make us do.
func (s *Server) failedProof(r *http.Request, t terms) {
	c := t.class
	if t.exempt {
		c = s.classes.steps // an exempt class charges nobody, and forgers have to pay here, too
	}
	c.limit.FailedProof(peer.From(r.Context()).Addr)
}

// proven charges a request to its account, whose signature held and whose nonce
// is redeemed: a copy of somebody's request costs him nothing.
func (s *Server) proven(r *http.Request, t terms, a Account) error {
	if t.exempt {
		return nil
	}
	if d := t.class.limit.Proven(a.ID); !d.OK {
		peer.Quiet(r.Context())
		return tooMuch(d, t.class.status, byAccount)
	}
	if !t.budget {
		return nil
	}
	if d := s.cfg.Budget.Check(r.Context(), actor(a.ID)); !d.OK {
		peer.Quiet(r.Context())
		// In the words of the limit before: why an account has to wait, and
		// what it asked for now, is not to be learnt from the answer.
		return tooMuch(d, http.StatusTooManyRequests, byAccount)
	}
	return nil
}

const byAccount = "of this account"

func tooMuch(d ratelimit.Decision, status int, whose string) *Problem {
	wait := max(d.RetryAfter, time.Second)
	return &Problem{
		Type: RateLimited, Status: status, RetryAfter: wait,
		Detail: fmt.Sprintf("too many requests %s; try again in %d seconds", whose, int64(wait/time.Second)),
	}
}

// notTheirs refuses an account what is another's or nobody's, and has it wait
// longer each time that it goes on asking for such.
func (s *Server) notTheirs(ctx context.Context, req request) error {
	if req.held != nil {
		return req.held
	}
	s.cfg.Budget.Refused(ctx, actor(req.account.ID))
	return notHere()
}

// QuotaRefused is how many orders the quota refused.
func (s *Server) QuotaRefused() int64 { return s.quotaRefused.Load() }

// RevocationGate is where revocations take turns at being read and verified. It
// is for its figures.
func (s *Server) RevocationGate() *gate.Gate { return s.revokes }

// orderLimits are what the account of a new order may have.
func (s *Server) orderLimits(o Order) OrderLimits {
	l := OrderLimits{MaxOpen: s.cfg.MaxOpenOrders, Quota: s.cfg.OrderQuota, Pausing: s.cfg.Pausing.Failures > 0}
	if o.AutoRenewal != nil {
		l.KeepUntil = o.AutoRenewal.End.Add(s.cfg.Retention)
	}
	if o.exempt() {
		l.Quota = ratelimit.Quota{}
	} else {
		l.Debits = s.debits(o)
	}
	return l
}

// checkQuota refuses an order that is larger than the quota ever holds, which
// takes no transaction to know.
func (s *Server) checkQuota(o Order) error {
	if o.exempt() {
		return nil
	}
	_, d := s.cfg.OrderQuota.Debit(o.CreatedAt, time.Time{}, len(o.Identifiers))
	if s.cfg.OrderQuota.Active() && d.Never {
		return s.neverFits(o)
	}
	return nil
}

func (s *Server) neverFits(o Order) error {
	// Not rateLimited: no waiting helps.
	return &Problem{Type: RejectedIdentifier, Detail: fmt.Sprintf(
		"the order has %d identifiers, and an account's quota never holds more than %d at once; split it", len(o.Identifiers), s.cfg.OrderQuota.Limit)}
}

// overQuota is what an account hears whose quota does not hold an order. The
// header says no more than some clients bear, so whoever obeys it may hear this
// again, at no cost; the detail says all.
func (s *Server) overQuota(r *http.Request, o Order, q *QuotaError) error {
	if s.cfg.Recorder != nil {
		peer.Quiet(r.Context())
	}
	s.quotaRefused.Add(1)
	s.cfg.Recorder.Refused("quota", s.classes.newOrder.name, actor(o.AccountID), peer.From(r.Context()).Addr)
	if q.Decision.Never {
		return s.neverFits(o)
	}
	wait := max(q.Decision.RetryAfter, time.Second)
	return &Problem{
		Type: RateLimited, RetryAfter: wait, Err: q,
		Detail: s.usedUp(o, q, wait),
	}
}

const (
	revocationQueue = 64
	revocationWait  = 5 * time.Second
)

// newRevocationGate makes the turns in which revocations are read and verified.
// They pass all limits, so this is what keeps a flood of them from taking every
// processor, and one source from taking all the turns.
func newRevocationGate() (*gate.Gate, error) {
	return gate.New(gate.Config{Seats: runtime.GOMAXPROCS(0), MaxQueue: revocationQueue, MaxWait: revocationWait})
}

// compute runs f, which does nothing but compute, in its turn if there are turns.
func (s *Server) compute(r *http.Request, t terms, f func() error) error {
	if t.gate == nil {
		return f()
	}
	source := peer.From(r.Context()).Addr
	release, err := t.gate.Acquire(r.Context(), gate.Revocation, peer.NetworkName(source))
	if err != nil {
		s.noTurn(r, source)
		return err
	}
	defer release()
	return f()
}

// noTurn counts a revocation that got no turn. No tier refuses them, so floods
// of them end here, and leave no line for each either.
func (s *Server) noTurn(r *http.Request, source netip.Addr) {
	s.noTurns.count.Add(1)
	s.noTurns.source.Store(&source)
	if s.cfg.Recorder != nil {
		peer.Quiet(r.Context())
	}
}

// missedTurns are revocations without a turn, of strangers all.
type missedTurns struct {
	count  atomic.Int64
	source atomic.Pointer[netip.Addr] // of the last one
}

func (m *missedTurns) example() netip.Addr {
	if a := m.source.Load(); a != nil {
		return *a
	}
	return netip.Addr{}
}

// help is where refusals point to if no website is configured.
func (s *Server) help(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write([]byte(helpText))
	return nil
}

const (
	helpPath = "help/rate-limits"
	helpText = `Requests to this ACME server are limited, for each client address, for each
account, and for all clients together. New orders may be limited further, by
quotas of identifiers and of orders for the same names for each account, and of
orders for one registered domain for all accounts together; renewals by ARI within
their window are not.

Names that an account goes on failing to prove may be paused for it. The refusal
has a link to a page that ends the pause: mend what fails first.

A refused request has the problem type rateLimited. It changed nothing and
counts for nothing: wait for as long as Retry-After says, and send it again.
Status 503 is given to requests in the middle of an order: go on with the same
order. Status 429 is given to requests that begin something.

Accounts that ask again and again for what is not theirs are slowed down, and
never locked out. Revocations are not limited.

Whoever needs more than the limits allow asks the operator of this server.
`
)
