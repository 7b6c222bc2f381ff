package crl

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// A Config says whose CRLs to build, and when.
type Config struct {
	Issuers []*ca.Issuer // those whose key is at hand, active or not; at least one
	Store   Store

	Period          time.Duration // between scheduled CRLs, at most 24 hours; 0 means 12 hours
	Validity        time.Duration // nextUpdate - thisUpdate, two periods to 10 days; 0 means 7 days
	RevocationDelay time.Duration // from a revocation to its CRL, so that many share one; 0 means 5 seconds
	Poll            time.Duration // between looks for what other replicas did; 0 means 15 seconds
	BuildTimeout    time.Duration // the longest that building one CRL may take; 0 means 5 minutes
	MaxAge          time.Duration // the longest an HTTP cache may keep a CRL; 0 means 1 hour

	Limiter *ratelimit.Limiter // nil: no source is limited

	Logger     *slog.Logger          // nil: discarded
	Registerer prometheus.Registerer // nil: no metrics
	Now        func() time.Time      // nil: time.Now
}

const (
	// BR §4.9.7: within 24 hours of a revocation, and valid for 10 days at most.
	maxPeriod   = 24 * time.Hour
	maxValidity = 10 * 24 * time.Hour
	// keep is how many CRLs of an issuer stay in the store.
	keep = 8
	// heldRetry is the pause while another replica builds.
	heldRetry = time.Second
	// busyRetry is the pause after a device had no time, doubled each time up to
	// mostBusy or Poll: it is to be noticed soon that it is back.
	busyRetry = time.Second
	mostBusy  = 10 * time.Second
	// releaseTimeout bounds giving back a lease.
	releaseTimeout = 5 * time.Second
)

func (c Config) withDefaults() (Config, error) {
	if len(c.Issuers) == 0 || c.Store == nil {
		return c, errors.New("crl: issuers and a store are needed")
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.Period, 12 * time.Hour},
		{&c.Validity, 7 * 24 * time.Hour},
		{&c.RevocationDelay, 5 * time.Second},
		{&c.Poll, 15 * time.Second},
		{&c.BuildTimeout, 5 * time.Minute},
		{&c.MaxAge, time.Hour},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
		if *d.field < 0 {
			return c, errors.New("crl: a duration is negative")
		}
	}
	switch {
	case c.Period > maxPeriod:
		return c, fmt.Errorf("crl: period %v is more than %v", c.Period, maxPeriod)
	case c.Validity > maxValidity || c.Validity < 2*c.Period:
		return c, fmt.Errorf("crl: validity %v is not between two periods and %v", c.Validity, maxValidity)
	case c.RevocationDelay > c.Period:
		return c, fmt.Errorf("crl: revocation delay %v is more than the period", c.RevocationDelay)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c, nil
}

// A Server keeps the CRLs of its issuers current and serves them. It is safe
// for concurrent use.
type Server struct {
	cfg     Config
	shelves map[ca.IssuerID]*shelf
	limit   *ratelimit.Endpoint
	metrics *metrics
}

// A shelf holds what is served for one issuer.
type shelf struct {
	issuer  *ca.Issuer
	cert    file
	list    atomic.Pointer[shelved] // nil: none yet
	trigger chan struct{}           // holds one wake-up
	trouble trouble                 // its builder's alone
}

// A trouble is a row of updates that failed, of which the log has a line for
// each way in which they do, and one for the end.
type trouble struct {
	told     map[string]bool // outcomes
	since    time.Time
	failures int
}

// A shelved CRL is one on the shelf, ready to be served.
type shelved struct {
	CRL
	file file
}

// put replaces what is on the shelf, whose body lasts for those who read it.
// The shelf is what holds body from now on.
func (s *Server) put(ctx context.Context, sh *shelf, c CRL, body *Body, info Info) {
	was := sh.list.Swap(&shelved{CRL: c, file: newFile(typeCRL, body, info.SHA256, c.ThisUpdate)})
	if was != nil {
		s.giveBack(ctx, was.file.body)
	}
}

// take returns what is on the shelf, whose body is to be released.
func (sh *shelf) take() (*shelved, bool) {
	for {
		l := sh.list.Load()
		if l == nil {
			return nil, false
		}
		if l.file.body.Hold() {
			return l, true
		}
	}
}

// thisUpdate is that of what is on the shelf.
func (sh *shelf) thisUpdate() time.Time {
	if l := sh.list.Load(); l != nil {
		return l.ThisUpdate
	}
	return time.Time{}
}

// New returns a Server that has no CRLs until Prepare or Run.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, shelves: make(map[ca.IssuerID]*shelf),
		limit: cfg.Limiter.Endpoint("crl", ratelimit.EndpointOptions{Group: ratelimit.Status, Cost: fileCost, SkipGlobal: true}),
	}
	for _, is := range cfg.Issuers {
		if s.shelves[is.ID] != nil {
			return nil, fmt.Errorf("crl: issuer %s is there twice", is.ID)
		}
		if is.Key == nil || len(is.Cert.SubjectKeyId) == 0 {
			return nil, fmt.Errorf("crl: issuer %s lacks a key or a subject key identifier", is.ID)
		}
		s.shelves[is.ID] = &shelf{
			issuer:  is,
			cert:    newFile(typeCert, bodyOf(is.Cert.Raw), sha256.Sum256(is.Cert.Raw), is.Cert.NotBefore),
			trigger: make(chan struct{}, 1),
		}
	}
	s.metrics, err = newMetrics(cfg.Registerer, s)
	return s, err
}

// Trigger says that something of issuer was revoked. It never blocks.
func (s *Server) Trigger(issuer ca.IssuerID) {
	sh := s.shelves[issuer]
	if sh == nil {
		return
	}
	select {
	case sh.trigger <- struct{}{}:
	default: // a wake-up is waiting already
	}
}

// Current returns the CRL that is being served for issuer.
func (s *Server) Current(issuer ca.IssuerID) (CRL, bool) {
	sh := s.shelves[issuer]
	if sh == nil {
		return CRL{}, false
	}
	l := sh.list.Load()
	if l == nil {
		return CRL{}, false
	}
	return l.CRL, true
}

// Prepare puts a CRL on every shelf: the stored one, or a new one if there is
// none or it is due. Where another replica is building the first one, it waits
// for that. Its error names the issuers that have none; Run keeps trying.
func (s *Server) Prepare(ctx context.Context) error {
	// Even a builder that vanished is waited for no longer than this.
	ctx, cancel := context.WithTimeout(ctx, 2*s.cfg.BuildTimeout)
	defer cancel()
	var errs []error
	for _, sh := range s.shelves {
		if err := s.prepare(ctx, sh); err != nil {
			errs = append(errs, fmt.Errorf("preparing the CRL of issuer %s: %w", sh.issuer.ID, err))
		}
	}
	return errors.Join(errs...)
}

func (s *Server) prepare(ctx context.Context, sh *shelf) error {
	for {
		wait, err := s.update(ctx, sh)
		switch {
		case sh.list.Load() != nil:
			return nil
		case outcome(err) != "held":
			return err
		}
		s.cfg.Logger.InfoContext(ctx, "waiting for the CRL that another replica builds", "issuer", string(sh.issuer.ID))
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// Run keeps the CRLs current until ctx ends: one builder for each issuer.
func (s *Server) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, sh := range s.shelves {
		wg.Go(func() { s.keepCurrent(ctx, sh) })
	}
	wg.Wait()
	return nil
}

func (s *Server) keepCurrent(ctx context.Context, sh *shelf) {
	busy := 0 // in a row
	for {
		wait, err := s.update(ctx, sh)
		if outcome(err) == "busy" {
			wait = s.busyWait(busy, err)
			busy++
		} else {
			busy = 0
		}
		if ctx.Err() == nil {
			s.tell(ctx, sh, err)
		}
		if !s.await(ctx, sh, wait) {
			return
		}
	}
}

// busyWait is the pause after the device was busy so many times before: short at
// first, since a device that is busy is at work and will be free again.
func (s *Server) busyWait(before int, err error) time.Duration {
	wait := busyRetry << min(before, 16)
	if b, ok := errors.AsType[*keys.BusyError](err); ok {
		wait = max(wait, b.RetryAfter)
	}
	return min(wait, mostBusy, s.cfg.Poll)
}

func (s *Server) tell(ctx context.Context, sh *shelf, err error) {
	t := &sh.trouble
	how := outcome(err)
	if how == "ok" {
		if t.failures > 0 {
			s.cfg.Logger.InfoContext(ctx, "updating a CRL works again", "issuer", string(sh.issuer.ID), "after", s.cfg.Now().Sub(t.since), "failures", t.failures)
		}
		*t = trouble{}
		return
	}
	if how == "held" {
		return
	}
	if t.failures++; t.failures == 1 {
		t.since, t.told = s.cfg.Now(), map[string]bool{}
	}
	if t.told[how] {
		return
	}
	t.told[how] = true
	if how == "busy" {
		s.cfg.Logger.WarnContext(ctx, "updating a CRL waits for the signing device", "issuer", string(sh.issuer.ID), "error", err)
		return
	}
	s.cfg.Logger.ErrorContext(ctx, "updating a CRL, which is tried until it succeeds", "issuer", string(sh.issuer.ID), "error", err)
}

// await returns after wait, or RevocationDelay after a trigger, and false when
// ctx has ended.
func (s *Server) await(ctx context.Context, sh *shelf, wait time.Duration) bool {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	case <-sh.trigger:
	}
	// Whatever is revoked in this time is on the same CRL.
	t.Reset(s.cfg.RevocationDelay)
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// update brings sh up to what the store has, builds the next CRL if that is
// called for, and says when to look again.
func (s *Server) update(ctx context.Context, sh *shelf) (time.Duration, error) {
	head, err := s.look(ctx, sh)
	unusable := errors.Is(err, errUnusable)
	if err != nil && !unusable {
		s.metrics.count(sh, err)
		return s.cfg.Poll, err
	}
	if unusable {
		s.cfg.Logger.WarnContext(ctx, "replacing the stored CRL", "issuer", string(sh.issuer.ID), "number", int64(head.Published), "cause", err)
	}
	now := s.cfg.Now()
	due := unusable || head.Published == 0 || !now.Before(head.ScheduledAt.Add(s.cfg.Period))
	if !due && head.Count == head.Covered {
		return s.untilNext(now, head), nil
	}
	err = s.build(ctx, sh, due)
	s.metrics.count(sh, err)
	switch {
	case err == nil:
		return min(s.cfg.Poll, s.cfg.Period), nil
	case outcome(err) == "held" && sh.list.Load() != nil:
		return heldRetry, nil // what is served stays good meanwhile
	case outcome(err) == "held":
		return heldRetry, err
	default:
		return s.cfg.Poll, err
	}
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrHeld), errors.Is(err, ErrSuperseded):
		return "held"
	case errors.Is(err, keys.ErrBusy):
		return "busy"
	default:
		return "error"
	}
}

func (s *Server) untilNext(now time.Time, h Head) time.Duration {
	return min(s.cfg.Poll, h.ScheduledAt.Add(s.cfg.Period).Sub(now))
}

// look reads the head, and what was published since.
func (s *Server) look(ctx context.Context, sh *shelf) (Head, error) {
	head, err := s.cfg.Store.Head(ctx, sh.issuer.ID)
	if err != nil {
		return head, err
	}
	return head, s.fetch(ctx, sh, head.Published)
}

// errUnusable says that what is stored is not a CRL of the issuer: another one
// is to take its place.
var errUnusable = errors.New("crl: the stored one cannot be used")

// fetch puts the published CRL on the shelf unless that one is there.
func (s *Server) fetch(ctx context.Context, sh *shelf, published Number) error {
	if have := sh.list.Load(); published == 0 || have != nil && have.Number >= published {
		return nil
	}
	c, err := s.cfg.Store.Latest(ctx, sh.issuer.ID)
	if err != nil {
		return err
	}
	body := newBody()
	if err := s.cfg.Store.Get(ctx, c.Body, body); err != nil {
		return errors.Join(err, body.Release())
	}
	info, err := Verify(body, sh.issuer)
	if err != nil {
		return errors.Join(fmt.Errorf("%w: %w", errUnusable, err), body.Release())
	}
	s.put(ctx, sh, c, body, info)
	return nil
}
