package acme

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/peer"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// Config is what a Server is made of. Zero values of bounds and lifetimes mean the defaults.
type Config struct {
	BaseURL *url.URL // how clients reach the server: every link and the check of "url" use it, no header can change it
	Path    string   // below BaseURL, default "/acme"
	// Instance names this replica among those on one database: its nonces
	// outlive its restart.
	Instance string

	// Directory is whose accounts these are: "" is the one that every server has.
	// Store shows those of this directory only.
	Directory string
	// Beside is the first server of the process, if this is another directory of
	// it. They share all turns and bounds of work, which are the first one's, and
	// the first one's Run works for both. Nil: this is the first.
	Beside *Server

	Store     Store
	CA        CA
	Validator Validator
	CAA       CAAChecker // nil: CAA records are not asked for

	TermsOfService string // URL; if set, accounts must agree to it
	Website        string
	CAAIdentities  []string
	Profiles       map[string]string // what clients may choose by name, with a description or its URL
	DefaultProfile string            // the authority's own default if empty
	// PreferredChains names, for a profile, the root whose chain is sent first, by
	// its common name. Without it, it is the issuer's own.
	PreferredChains map[string]string
	Challenges      []ChallengeType // offered, in this order; default DefaultChallenges
	Binding         BindingMode     // of new accounts to external ones
	Scope           Scope           // what all accounts here may order

	OrderLifetime time.Duration // to finalize it, default 7 days
	AuthzLifetime time.Duration // of a valid authorization, default 30 days
	// MaxReuse is for how long a proof may be relied on for what is issued at t,
	// whatever AuthzLifetime says; nil: for ever.
	MaxReuse  func(t time.Time) time.Duration
	Retention time.Duration // of what ended, before it is deleted, default 30 days

	ReuseAuthorizations bool // a new order relies on what its account has proven already
	ReuseOrders         bool // a new order for what an open one is for is that one

	PreAuthorization bool     // there is newAuthz; it needs ReuseAuthorizations
	Subdomains       bool     // names may be proven by a domain above them (RFC 9444)
	NoSubdomains     []string // profiles whose names may not

	ValidationWorkers int           // default 16; one account has less than half of them
	ValidationQueue   int           // default four for each worker; what is beyond waits in the database
	ValidationTimeout time.Duration // of one validation, default 60 s
	ValidationWait    time.Duration // how long a client that starts a validation waits for its outcome, default 1 s, negative: not at all
	FinalizeSlots     int           // issuances at a time, default 16
	FinalizeWait      time.Duration // how long a client waits for its certificate, default 10 s
	IssuanceQueue     int           // clients who wait for a slot, default 256; what is beyond is put off at once
	MaxBacklog        int           // orders that are put off or being issued, default 10,000; what is beyond stays ready
	IssueTimeout      time.Duration // of one issuance, default 60 s
	MaxIssueAttempts  int           // of one order that fails for reasons other than a busy device or the end of the process, default 5

	MaxBody       int64 // default 64 KiB
	MaxNames      int   // in an order, default 100
	MaxOpenOrders int   // of one account, default 300
	PageSize      int   // of the list of orders, default 100

	Star StarConfig // certificates that we renew; off by default

	RenewalPoll time.Duration // how often clients ask whether to renew, default 6 h, a minute to a day

	// Admission. Handler charges accounts; sources are charged before it, by Routes.
	Limiter    *ratelimit.Limiter // nil: no limits of requests
	Budget     *ratelimit.Budget  // patience with accounts that ask for others' objects; nil: without end
	OrderQuota ratelimit.Quota    // of identifiers in new orders, for each account; the zero Quota is off
	// DuplicateQuota is of orders of one account for one set of names, DomainQuota of
	// orders of all for one registered domain; the zero Quota is off. Renewals in
	// their window are counted by none.
	DuplicateQuota, DomainQuota ratelimit.Quota

	Pausing  Pausing             // of names whose validations go on failing; the zero Pausing is off
	Recorder *ratelimit.Recorder // told of what the quota refuses, and of revocations without a turn; nil: nobody is

	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
	Clock      func() time.Time      // default time.Now
}

// A Server is the ACME edge of one directory. Handler answers clients; Run does
// what goes on in the background for it and those beside it, and must run as long
// as requests are served.
type Server struct {
	cfg     Config
	store   Store
	ca      CA
	origin  string // scheme://host[:port]
	root    string // path of everything here
	nonces  *nonces
	header  []headerLine // of every answer
	classes classes
	decoys  decoys
	pauses  pauses
	keys    *keyCache
	// accounts are those that signed lately, as they were when they were read.
	accounts *recent[Account]
	*shared

	issuerDomains []string // as challenges of dns-persist-01 have them

	decoyMAC [decoyMACSize]byte // of a binding by nobody's key

	incidents    atomic.Pointer[[]ca.Incident] // that are open, as of the last poll
	quotaRefused atomic.Int64
	metrics      *metrics
	log          *slog.Logger

	validations *queue
	dueOrders   chan struct{} // a hint that an order was parked

	dueValidations chan struct{} // a hint that a validation was given back
}

// New returns a Server, or says what is wrong with c.
func New(c Config) (*Server, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	c.setDefaults()
	n, err := newNonces(nonceWindow, nonceRekeyAt)
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(ofDirectory(c.Registerer, c.Directory))
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: c, store: c.Store, ca: c.CA,
		origin:  c.BaseURL.Scheme + "://" + c.BaseURL.Host,
		root:    strings.TrimSuffix(c.BaseURL.Path, "/") + c.Path,
		nonces:  n,
		metrics: m, log: c.Logger,
		validations:    newQueue(c.ValidationQueue, validationLease(c.ValidationTimeout)),
		dueOrders:      make(chan struct{}, 1),
		dueValidations: make(chan struct{}, 1),
	}
	for _, d := range c.CAAIdentities {
		s.issuerDomains = append(s.issuerDomains, strings.ToLower(d))
	}
	if c.Beside != nil {
		s.shared = c.Beside.shared
	} else if err := s.makeShared(); err != nil {
		return nil, err
	}
	if err := s.prepareAdmission(); err != nil {
		return nil, err
	}
	s.join(s)
	return s, nil
}

// makeShared makes what servers beside this one share with it.
func (s *Server) makeShared() error {
	s.shared = &shared{backlog: newBacklog(s.cfg.MaxBacklog)}
	if err := s.makeGates(); err != nil {
		return err
	}
	var err error
	if s.revokes, err = newRevocationGate(); err != nil {
		return err
	}
	if err := registerBacklog(s.cfg.Registerer, s.Backlog); err != nil {
		return err
	}
	return registerIncidents(s.cfg.Registerer, s.OpenIncidents)
}

// prepareAdmission makes what requests are admitted and refused by.
func (s *Server) prepareAdmission() (err error) {
	s.header = commonHeader(s.url("directory"))
	s.keys, s.accounts = newKeyCache(), newRecent[Account](keysCached)
	s.decoyMAC = newDecoyMAC()
	s.classes = newClasses(s.cfg.Limiter, newCanned(s.nonces, s.header, s.helpLink()))
	if s.decoys, err = newDecoys(); err != nil {
		return err
	}
	if s.cfg.Beside == nil {
		s.cfg.Recorder.Watch("turns", s.classes.revoke.name, s.noTurns.count.Load, s.noTurns.example)
	}
	return nil
}

// helpLink is where a refused client, or who looks after it, reads on (RFC 8555 §6.6).
func (s *Server) helpLink() string {
	if s.cfg.Website != "" {
		return link(s.cfg.Website, "help")
	}
	return link(s.url(helpPath), "help")
}

func (c *Config) check() error {
	u := c.BaseURL
	switch {
	case u == nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "":
		return errors.New("acme: BaseURL must be an absolute http or https URL")
	case u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return errors.New("acme: BaseURL must have neither user, query nor fragment")
	case c.Path != "" && (c.Path[0] != '/' || strings.HasSuffix(c.Path, "/")):
		return fmt.Errorf("acme: path %q must begin with a slash and end without one", c.Path)
	case (c.Beside == nil) != (c.Directory == ""):
		return errors.New("acme: the first server has the directory without a name, and is beside none")
	case c.Beside != nil && c.Beside.cfg.Beside != nil:
		return errors.New("acme: Beside must be the first server")
	case c.Store == nil || c.CA == nil || c.Validator == nil || c.Logger == nil:
		return errors.New("acme: Store, CA, Validator and Logger are needed")
	}
	if !slices.Contains([]BindingMode{BindingOff, BindingOptional, BindingRequired}, c.Binding) {
		return fmt.Errorf("acme: unknown binding mode %q", c.Binding)
	}
	if c.PreAuthorization && !c.ReuseAuthorizations {
		return errors.New("acme: PreAuthorization is of no use without ReuseAuthorizations")
	}
	for what, q := range map[string]ratelimit.Quota{"identifiers": c.OrderQuota, "duplicates": c.DuplicateQuota, "registered domains": c.DomainQuota} {
		if err := q.Validate(); err != nil {
			return fmt.Errorf("acme: the quota of %s: %w", what, err)
		}
	}
	return c.checkChallenges()
}

// retention is for how long what ended is kept, if Config does not say.
const retention = 30 * 24 * time.Hour

func (c *Config) setDefaults() {
	const day = 24 * time.Hour
	setDefault(&c.Path, "/acme")
	setDefault(&c.OrderLifetime, 7*day)
	setDefault(&c.AuthzLifetime, 30*day)
	setDefault(&c.Retention, retention)
	setDefault(&c.ValidationWorkers, 16)
	setDefault(&c.ValidationQueue, 4*c.ValidationWorkers)
	setDefault(&c.ValidationTimeout, time.Minute)
	setDefault(&c.ValidationWait, retrySoon)
	setDefault(&c.FinalizeSlots, 16)
	setDefault(&c.FinalizeWait, 10*time.Second)
	setDefault(&c.IssuanceQueue, 256)
	setDefault(&c.MaxBacklog, 10000)
	setDefault(&c.IssueTimeout, time.Minute)
	setDefault(&c.MaxIssueAttempts, 5)
	setDefault(&c.MaxBody, 64<<10)
	setDefault(&c.MaxNames, 100)
	setDefault(&c.MaxOpenOrders, 300)
	setDefault(&c.PageSize, 100)
	setDefault(&c.RenewalPoll, 6*time.Hour)
	setDefault(&c.Star.MinLifetime, day)
	setDefault(&c.Star.MaxDuration, c.AuthzLifetime)
	setDefault(&c.Star.MaxRows, 100)
	if len(c.Challenges) == 0 {
		c.Challenges = DefaultChallenges
	}
	c.Challenges = slices.Clone(c.Challenges)
	if c.Clock == nil {
		c.Clock = time.Now
	}
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// now is in microseconds, as the store keeps it.
func (s *Server) now() time.Time { return s.cfg.Clock().UTC().Truncate(time.Microsecond) }

// url makes an absolute link to something of this server.
func (s *Server) url(parts ...string) string {
	return s.origin + s.root + "/" + strings.Join(parts, "/")
}

// actor names an account in the audit log.
func actor(accountID string) string { return "acme:account/" + accountID }

// entry makes the audit entry of something that account a did.
func (s *Server) entry(ctx context.Context, a Account, action, object string, detail any) audit.Entry {
	e := audit.New(actor(a.ID), action, object, detail)
	p := peer.From(ctx)
	if p.Addr.IsValid() {
		e.Remote = p.Addr.String()
	}
	e.Request = p.RequestID
	return e
}

func requester(ctx context.Context, who string) ca.Requester {
	p := peer.From(ctx)
	return ca.Requester{Actor: who, Addr: p.Addr, RequestID: p.RequestID}
}
