package crl

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
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
	// Plans are for issuers that want more than complete CRLs.
	Plans map[ca.IssuerID]Plan
	// Life is how long a certificate may be valid that names a CRL: as long are
	// shards kept that no issuer puts certificates into any more.
	Life time.Duration

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

// A Plan is what an issuer's CRLs are beyond the usual.
type Plan struct {
	Delta       time.Duration // between deltas, at most the period; 0: there are none
	KeepExpired time.Duration // how long entries stay past their certificate's expiry, beside the one CRL they always do
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
	for id, p := range c.Plans {
		if p.Delta < 0 || p.Delta > c.Period || p.KeepExpired < 0 {
			return c, fmt.Errorf("crl: the plan of issuer %s has a negative time, or deltas more seldom than every %v", id, c.Period)
		}
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
	certs   map[ca.IssuerID]file
	limit   *ratelimit.Endpoint
	metrics *metrics
	said    map[ca.IssuerID]time.Time // when shards were last said to be needed; lookForShards' alone

	mu      sync.RWMutex // guards what follows
	shelves map[string]*shelf
}

// A shelf holds what is served of one scope.
type shelf struct {
	scope   Scope
	issuer  *ca.Issuer
	plan    Plan
	url     string        // what certificates call its complete CRL; "" if they don't
	list    slot          // complete
	delta   slot          // the delta to one that was complete
	trigger chan struct{} // holds one wake-up
	trouble trouble       // its builder's alone

	wanted atomic.Bool            // by an operator
	work   atomic.Pointer[work]   // what is being built; nil: nothing
	why    atomic.Pointer[string] // the last attempt failed; nil: it did not
}

func (sh *shelf) slot(delta bool) *slot {
	if delta {
		return &sh.delta
	}
	return &sh.list
}

// A slot holds the latest of a series; nil: none yet.
type slot struct{ atomic.Pointer[shelved] }

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
	sum  [sha256.Size]byte
}

// put replaces what is in the slot, whose body lasts for those who read it. The
// slot is what holds body from now on.
func (s *Server) put(ctx context.Context, to *slot, c CRL, body *Body, info Info) {
	was := to.Swap(&shelved{CRL: c, file: newFile(typeCRL, body, info.SHA256, c.ThisUpdate), sum: info.SHA256})
	if was != nil {
		s.giveBack(ctx, was.file.body)
	}
}

// take returns what is in the slot, whose body is to be released.
func (sl *slot) take() (*shelved, bool) {
	for {
		l := sl.Load()
		if l == nil {
			return nil, false
		}
		if l.file.body.Hold() {
			return l, true
		}
	}
}

// New returns a Server that has no CRLs until Prepare or Run.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, shelves: make(map[string]*shelf), certs: make(map[ca.IssuerID]file), said: make(map[ca.IssuerID]time.Time),
		limit: cfg.Limiter.Endpoint("crl", ratelimit.EndpointOptions{Group: ratelimit.Status, Cost: fileCost, SkipGlobal: true}),
	}
	for _, is := range cfg.Issuers {
		if s.shelf(Scope{Issuer: is.ID}) != nil {
			return nil, fmt.Errorf("crl: issuer %s is there twice", is.ID)
		}
		if is.Key == nil || len(is.Cert.SubjectKeyId) == 0 {
			return nil, fmt.Errorf("crl: issuer %s lacks a key or a subject key identifier", is.ID)
		}
		s.certs[is.ID] = newFile(typeCert, bodyOf(is.Cert.Raw), sha256.Sum256(is.Cert.Raw), is.Cert.NotBefore)
		s.addShelf(is, Scope{Issuer: is.ID}, is.CRLURL)
	}
	s.metrics, err = newMetrics(cfg.Registerer, s)
	return s, err
}

// addShelf makes room for a scope. Without an address there are no deltas: no
// CRL could say where they are.
func (s *Server) addShelf(is *ca.Issuer, scope Scope, url string) {
	sh := &shelf{scope: scope, issuer: is, plan: s.cfg.Plans[is.ID], url: url, trigger: make(chan struct{}, 1)}
	if url == "" {
		sh.plan.Delta = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shelves[scope.String()] = sh
}

// shelf finds the shelf of a scope, nil for none.
func (s *Server) shelf(scope Scope) *shelf { return s.shelfNamed(scope.String()) }

func (s *Server) shelfNamed(name string) *shelf {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.shelves[name]
}

// all lists the shelves, those of one issuer together and in order.
func (s *Server) all() []*shelf {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.SortedFunc(maps.Values(s.shelves), func(a, b *shelf) int {
		return cmp.Or(cmp.Compare(a.scope.Issuer, b.scope.Issuer), cmp.Compare(a.scope.Shard, b.scope.Shard))
	})
}

// Trigger says that the status of one of issuer's certificates has changed. It
// never blocks. Each shelf looks by itself whether it was one of its own.
func (s *Server) Trigger(issuer ca.IssuerID) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, sh := range s.shelves {
		if sh.scope.Issuer != issuer {
			continue
		}
		select {
		case sh.trigger <- struct{}{}:
		default: // a wake-up is waiting already
		}
	}
}

// Current returns the complete CRL that is being served for all of issuer.
func (s *Server) Current(issuer ca.IssuerID) (CRL, bool) {
	sh := s.shelf(Scope{Issuer: issuer})
	if sh == nil {
		return CRL{}, false
	}
	l := sh.list.Load()
	if l == nil {
		return CRL{}, false
	}
	return l.CRL, true
}

// DER returns the octets of the complete CRL that is being served for all of issuer;
// nil: there is none, or none of at most most octets.
func (s *Server) DER(ctx context.Context, issuer ca.IssuerID, most int) ([]byte, error) {
	sh := s.shelf(Scope{Issuer: issuer})
	if sh == nil {
		return nil, nil
	}
	l, ok := sh.list.take()
	if !ok {
		return nil, nil
	}
	defer s.giveBack(ctx, l.file.body)
	if l.file.body.Size() > int64(most) {
		return nil, nil
	}
	der, err := io.ReadAll(l.file.body.Open())
	if err != nil {
		return nil, fmt.Errorf("reading the CRL of issuer %s: %w", issuer, err)
	}
	return der, nil
}

// Check says which scopes have no CRL that is valid. A shard that another replica
// has just opened may be without its first one.
func (s *Server) Check() error {
	now := s.cfg.Now()
	var bad []string
	for _, sh := range s.all() {
		if l := sh.list.Load(); l == nil && sh.scope.Shard == 0 || l != nil && now.After(l.NextUpdate) {
			bad = append(bad, sh.scope.String())
		}
	}
	if len(bad) == 0 {
		return nil
	}
	const most = 5
	more := ""
	if n := len(bad) - most; n > 0 {
		bad, more = bad[:most], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("no current CRL of %s%s", strings.Join(bad, ", "), more)
}

// preparing is how many shelves are prepared at once.
const preparing = 4

// Prepare puts a CRL on every shelf: the stored one, or a new one if there is
// none or it is due. Where another replica is building the first one, it waits
// for that. Its error names the scopes that have none; Run keeps trying.
func (s *Server) Prepare(ctx context.Context) error {
	// Even a builder that vanished is waited for no longer than this.
	ctx, cancel := context.WithTimeout(ctx, 2*s.cfg.BuildTimeout)
	defer cancel()
	if err := s.lookForShards(ctx); err != nil {
		return err
	}
	all := s.all()
	var (
		wg   sync.WaitGroup
		errs = make([]error, len(all))
		free = make(chan struct{}, preparing)
	)
	for i, sh := range all {
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			if err := s.prepare(ctx, sh); err != nil {
				errs[i] = fmt.Errorf("preparing the CRL of %s: %w", sh.scope, err)
			}
		})
	}
	wg.Wait()
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
		s.cfg.Logger.InfoContext(ctx, "waiting for the CRL that another replica builds", "scope", sh.scope.String())
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// Run keeps the CRLs current until ctx ends: one builder for each scope.
func (s *Server) Run(ctx context.Context) error {
	var (
		wg     sync.WaitGroup
		atWork = map[*shelf]context.CancelFunc{}
	)
	defer wg.Wait()
	for {
		all := s.all()
		for _, sh := range all {
			if atWork[sh] == nil {
				own, cancel := context.WithCancel(ctx)
				atWork[sh] = cancel
				wg.Go(func() { s.keepCurrent(own, sh) })
			}
		}
		for sh, cancel := range atWork {
			if !slices.Contains(all, sh) {
				cancel()
				delete(atWork, sh)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(s.cfg.Poll):
		}
		if err := s.lookForShards(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Logger.ErrorContext(ctx, "looking for CRL shards", "error", err)
		}
	}
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
		sh.why.Store(nil)
		if t.failures > 0 {
			s.cfg.Logger.InfoContext(ctx, "updating a CRL works again", "scope", sh.scope.String(), "after", s.cfg.Now().Sub(t.since), "failures", t.failures)
		}
		*t = trouble{}
		return
	}
	if how == "held" {
		return
	}
	why := err.Error()
	sh.why.Store(&why)
	if t.failures++; t.failures == 1 {
		t.since, t.told = s.cfg.Now(), map[string]bool{}
	}
	if t.told[how] {
		return
	}
	t.told[how] = true
	log := s.cfg.Logger.With("scope", sh.scope.String(), "valid_until", sh.validUntil(), "error", err)
	if how == "busy" {
		log.WarnContext(ctx, "updating a CRL waits for the signing device")
		return
	}
	log.ErrorContext(ctx, "updating a CRL, which is tried until it succeeds")
}

// validUntil is when the complete CRL on the shelf ends, zero for none.
func (sh *shelf) validUntil() time.Time {
	if l := sh.list.Load(); l != nil {
		return l.NextUpdate
	}
	return time.Time{}
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

// update brings sh up to what the store has, builds what is called for, and
// says when to look again.
func (s *Server) update(ctx context.Context, sh *shelf) (time.Duration, error) {
	head, err := s.look(ctx, sh)
	unusable := errors.Is(err, errUnusable)
	if err != nil && !unusable {
		s.metrics.count(sh, "", err)
		return s.cfg.Poll, err
	}
	if unusable {
		s.cfg.Logger.WarnContext(ctx, "replacing the stored CRL", "scope", sh.scope.String(), "number", int64(head.Published), "cause", err)
	}
	due := unusable || !s.cfg.Now().Before(s.dueAt(sh, head))
	if wanted := sh.wanted.Load(); due || wanted || head.Changed {
		if head, err = s.build(ctx, sh, head, Series{sh.scope, false}, due); err != nil {
			return s.tryAgain(sh, err)
		}
		sh.wanted.CompareAndSwap(wanted, false)
	}
	if !s.cfg.Now().Before(s.deltaDueAt(sh, head)) {
		if head, err = s.build(ctx, sh, head, Series{sh.scope, true}, true); err != nil {
			return s.tryAgain(sh, err)
		}
	}
	return s.untilNext(sh, head), nil
}

// tryAgain says when to look again after a CRL could not be built.
func (s *Server) tryAgain(sh *shelf, err error) (time.Duration, error) {
	switch {
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
