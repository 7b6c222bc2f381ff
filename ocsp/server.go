package ocsp

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	_ "crypto/sha512" // CertIDs by SHA-384 and SHA-512

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/peer"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// KeyStore finds responder keys and makes the missing ones.
type KeyStore interface {
	keys.Store
	keys.Generator
}

// A Config says for whom and how to answer.
type Config struct {
	Issuers    []*ca.Issuer // whose certificates are answered for; at least one
	Source     Source
	Responders Responders
	Leases     Leases    // nil: there is no other replica
	CA         Issuer    // issues the responders' certificates
	Ledger     ca.Ledger // records them
	// Keys are behind a guard, which bounds how much is signed at a time.
	Keys    KeyStore
	Limiter *ratelimit.Limiter // nil: no source is limited

	Path          string         // where the handler is mounted; "" means "/ocsp"
	KeyAlgorithm  keys.Algorithm // of responder keys yet to be made; "" means ECDSA P-256
	Validity      time.Duration  // nextUpdate - thisUpdate, 8 hours to 10 days; 0 means 4 days
	RefreshMargin time.Duration  // signed anew when less than this is left; 0 means half of Validity
	MaxAge        time.Duration  // the longest an HTTP cache may keep an answer; 0 means 1 hour
	CacheSize     int            // certificates whose responses are kept in memory; 0 means 20,000
	ReadTimeout   time.Duration  // the longest wait for the store; 0 means 5 seconds
	SignTimeout   time.Duration  // the longest that signing for one request may take; 0 means 10 seconds
	Nonce         Nonces         // what becomes of a nonce; "" means EchoNonce
	// Archive is how long after its end a certificate is answered for, with the
	// archive cutoff of RFC 6960 §4.4.4 in all responses. 0: not at all.
	Archive time.Duration
	// RevokeUnissued has serials that were never assigned signed as revoked, by the
	// extended definition of RFC 6960 §2.2. Each costs a signature, which pays as a
	// nonce does. Otherwise they are unauthorized, and cost none.
	RevokeUnissued bool
	// Ahead are the hashes of CertIDs by which all certificates in force are kept
	// signed for before anybody asks, at AheadRate signatures a second at the most;
	// 0 means 200. Shelf keeps the signatures.
	Ahead     []Hash
	AheadRate int
	Shelf     Shelf

	Logger     *slog.Logger          // nil: discarded
	Registerer prometheus.Registerer // nil: no metrics
	Now        func() time.Time      // nil: time.Now
}

// Nonces says what becomes of a request's nonce (RFC 9654).
type Nonces string

// The ways with nonces. RFC 9919 §3.2.1 allows an answer without.
const (
	EchoNonce   Nonces = "echo"   // into an answer of its own, or left out when there is no time for one
	InsistNonce Nonces = "insist" // into an answer of its own, or there is none
	IgnoreNonce Nonces = "ignore" // the answer is what everybody gets
)

// Limits of BR §4.9.10 on the validity of a response.
const (
	minValidity = 8 * time.Hour
	maxValidity = 10 * 24 * time.Hour
	// unissuedValidity is short, as the serial may be assigned yet.
	unissuedValidity = time.Hour
	// backdate is for clients whose clocks are behind.
	backdate = time.Minute
	// retryRefresh is how long an answer that could not be renewed is sent
	// before the next attempt.
	retryRefresh = 30 * time.Second
	// refreshWait is how long an answer that is still good waits to be renewed.
	refreshWait = time.Second
	// overtime is how long a signature is waited for beyond the time that it has:
	// a call of the device that hangs does not keep to any.
	overtime = 500 * time.Millisecond
)

// withDefaults returns c with every field set, or says what is wrong with it.
func (c Config) withDefaults() (Config, error) {
	if len(c.Issuers) == 0 || c.Source == nil || c.Responders == nil || c.CA == nil || c.Ledger == nil || c.Keys == nil {
		return c, errors.New("ocsp: issuers, source, responders, CA, ledger and keys are all needed")
	}
	if c.Path == "" {
		c.Path = "/ocsp"
	}
	c.Path = strings.TrimRight(c.Path, "/")
	if c.KeyAlgorithm == "" {
		c.KeyAlgorithm = keys.ECDSAP256
	}
	if c.Validity == 0 {
		c.Validity = 4 * 24 * time.Hour
	}
	if c.Validity < minValidity || c.Validity > maxValidity {
		return c, fmt.Errorf("ocsp: validity %v is not between %v and %v", c.Validity, minValidity, maxValidity)
	}
	if c.RefreshMargin == 0 {
		c.RefreshMargin = c.Validity / 2
	}
	// BR §4.9.10: anew 8 hours before nextUpdate, or at half-life of the short ones.
	if least := min(minValidity, c.Validity/2); c.RefreshMargin < least || c.RefreshMargin >= c.Validity {
		return c, fmt.Errorf("ocsp: refresh margin %v is not between %v and the validity", c.RefreshMargin, least)
	}
	if c.AheadRate == 0 {
		c.AheadRate = 200
	}
	if len(c.Ahead) > 0 && c.Shelf == nil || c.AheadRate < 0 {
		return c, errors.New("ocsp: signing ahead needs a shelf and a rate that is not negative")
	}
	switch c.Nonce {
	case "":
		c.Nonce = EchoNonce
	case EchoNonce, InsistNonce, IgnoreNonce:
	default:
		return c, fmt.Errorf("ocsp: nonce %q is none of %s, %s and %s", c.Nonce, EchoNonce, InsistNonce, IgnoreNonce)
	}
	if c.MaxAge == 0 {
		c.MaxAge = time.Hour
	}
	if c.CacheSize == 0 {
		c.CacheSize = 20_000
	}
	if c.ReadTimeout == 0 {
		c.ReadTimeout = 5 * time.Second
	}
	if c.SignTimeout == 0 {
		c.SignTimeout = 10 * time.Second
	}
	if c.MaxAge < 0 || c.CacheSize < 0 || c.ReadTimeout < 0 || c.SignTimeout < 0 || c.Archive < 0 {
		return c, errors.New("ocsp: negative max age, cache size, timeout or archive")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c, nil
}

// A Server answers OCSP requests. It is safe for concurrent use.
type Server struct {
	cfg        Config
	holder     string // who this is among replicas
	posts      []*post
	byHash     map[issuerHash]*post
	cache      *cache
	view       view
	looking    trouble // of the view
	flights    singleflight.Group
	limit      *ratelimit.Endpoint // of all requests
	signLimit  *ratelimit.Endpoint // of those that need a signature
	nonceLimit *ratelimit.Endpoint // of those that need one which nobody else has use for
	metrics    *metrics
	faults     faultLog
}

// An issuerHash is how a CertID names an issuer. Both hashes count, so that one
// CA never answers for a sibling of the same name or key.
type issuerHash struct {
	hash      crypto.Hash
	name, key string
}

// New returns a Server that answers tryLater until Prepare or Run has found it
// its responder certificates.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg:     cfg,
		holder:  rand.Text(),
		byHash:  make(map[issuerHash]*post),
		cache:   newCache(cfg.CacheSize),
		looking: trouble{calm: lookingCalm},
		faults:  faultLog{log: cfg.Logger, now: cfg.Now},

		limit:      cfg.Limiter.Endpoint("ocsp", ratelimit.EndpointOptions{Group: ratelimit.Status, Cost: answerCost, SkipGlobal: true}),
		signLimit:  cfg.Limiter.Endpoint("ocsp_sign", ratelimit.EndpointOptions{Group: ratelimit.Status, Cost: signCost}),
		nonceLimit: cfg.Limiter.Endpoint("ocsp_nonce", ratelimit.EndpointOptions{Group: ratelimit.Status, Cost: signCost}),
	}
	for i, is := range cfg.Issuers {
		if err := s.addIssuer(i, is); err != nil {
			return nil, fmt.Errorf("adding issuer %s: %w", is.ID, err)
		}
	}
	s.metrics, err = newMetrics(cfg.Registerer, s.cache, s.following)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Server) addIssuer(i int, is *ca.Issuer) error {
	bits, err := publicKeyBits(is.Cert.RawSubjectPublicKeyInfo)
	if err != nil {
		return err
	}
	p := &post{index: i, issuer: is, hashes: make(map[crypto.Hash]issuerHash), signing: trouble{calm: signingCalm}}
	for _, h := range []crypto.Hash{crypto.SHA1, crypto.SHA256, crypto.SHA384, crypto.SHA512} {
		k := issuerHash{hash: h, name: digest(h, is.Cert.RawSubject), key: digest(h, bits)}
		if _, taken := s.byHash[k]; taken {
			return errors.New("an issuer of the same name and key is there already")
		}
		s.byHash[k], p.hashes[h] = p, k
	}
	s.posts = append(s.posts, p)
	return nil
}

func digest(h crypto.Hash, b []byte) string {
	d := h.New()
	d.Write(b)
	return string(d.Sum(nil))
}

// answer returns the response to req, and whether HTTP caches may keep it.
// Errors match a responseStatus; all others are internal.
func (s *Server) answer(ctx context.Context, req *request) (a *answer, cacheable bool, err error) {
	p, err := s.postFor(req)
	if err != nil {
		return nil, false, err
	}
	if s.cfg.Nonce == IgnoreNonce || req.nonce == nil {
		if a := s.atHand(p, req, s.cfg.Now()); a != nil {
			return a, req.nonce == nil, nil
		}
	}
	var told []known
	for range maxReads {
		now, err := s.statuses(ctx, p, req)
		if err != nil {
			return nil, false, err
		}
		if a != nil && sameStatuses(told, now) {
			s.keep(req, now, a)
		} else if a, cacheable, err = s.answerAs(ctx, p, req, now); err != nil {
			return nil, false, err
		}
		if told = now; s.holds(told) {
			return a, cacheable, nil
		}
	}
	return nil, false, fmt.Errorf("%w: the status changes all the time", tryLater)
}

// maxReads is how often the store is asked for one request, all in all.
const maxReads = 3

// atHand returns the answer that is in memory, to a request that would be
// answered with it. Nil: the store has to be asked.
func (s *Server) atHand(p *post, req *request, now time.Time) *answer {
	if len(req.certIDs) != 1 || !s.view.fresh(now) {
		return nil
	}
	serial, ok := req.certIDs[0].serial()
	if !ok {
		return nil
	}
	a := s.cache.get(subject{p.index, serial}, req.certIDs[0].raw)
	if a == nil || !a.valid(now) || a.due(now) {
		return nil
	}
	s.metrics.fromMemory.Inc()
	return a
}

// answerAs returns the response to req of certificates whose states are told.
func (s *Server) answerAs(ctx context.Context, p *post, req *request, told []known) (a *answer, cacheable bool, err error) {
	nonce := req.nonce
	if s.cfg.Nonce == IgnoreNonce {
		nonce = nil
	}
	one := len(req.certIDs) == 1 && !told[0].unissued
	if one && nonce == nil {
		a, err = s.shared(ctx, nil, p, req.certIDs[0], told[0])
		return a, req.nonce == nil, err
	}
	who := s.asker(ctx, s.nonceLimit)
	a, err = s.single(ctx, who, p, req.certIDs, told, nonce)
	if one && s.cfg.Nonce == EchoNonce && ctx.Err() == nil && (turnedAway(err) || passing(err)) {
		// RFC 9919 §3.2.1: an answer without the nonce is better than none.
		if !who.paid {
			who = nil
		}
		if shared, e := s.shared(ctx, who, p, req.certIDs[0], told[0]); e == nil {
			return shared, false, nil
		}
	}
	return a, false, err
}

// A known is the status of a certificate with what says how long it may be
// believed: it is what was committed when the store was asked.
type known struct {
	Status
	subject subject
	changes uint64 // that the cache had heard of before
	asked   time.Time
}

// holds reports whether what was told may be said now: no change has become
// known since, and none can have been acknowledged that did not.
func (s *Server) holds(told []known) bool {
	now := s.cfg.Now()
	for _, k := range told {
		if s.cache.changes(k.subject) != k.changes || !within(now.Sub(k.asked)) && !s.view.fresh(now) {
			return false
		}
	}
	return true
}

// keep puts an answer into the cache that others may have, and that could not be
// put there as some status changed meanwhile.
func (s *Server) keep(req *request, told []known, a *answer) {
	if a.shared {
		s.cache.put(told[0].subject, req.certIDs[0].raw, told[0].changes, a)
	}
}

func sameStatuses(a, b []known) bool {
	return slices.EqualFunc(a, b, func(x, y known) bool { return x.same(y.Status) })
}

// turnedAway reports whether err is about whose turn it is at the device, and so
// says nothing of what others would hear.
func turnedAway(err error) bool {
	_, over := errors.AsType[*limited](err)
	return over || errors.Is(err, keys.ErrBusy)
}

// passing reports whether err is only of the moment, as the device is busy, away,
// or hangs.
func passing(err error) bool {
	_, hung := errors.AsType[*keys.HungError](err)
	return hung || errors.Is(err, keys.ErrBusy) || errors.Is(err, errHangs)
}

// postFor finds the one issuer that all CertIDs name. A delegate speaks for its
// own issuer only, so a request about two cannot be answered.
func (s *Server) postFor(req *request) (*post, error) {
	var found *post
	for _, id := range req.certIDs {
		p := s.byHash[issuerHash{hash: id.hash, name: string(id.nameHash), key: string(id.keyHash)}]
		if p == nil || found != nil && p != found {
			return nil, unauthorized
		}
		found = p
	}
	return found, nil
}

// statuses reads the state of every certificate asked about. If there is no
// record of one there is no signature at all, unless the operator wants it so:
// random serials must not buy any.
func (s *Server) statuses(ctx context.Context, p *post, req *request) ([]known, error) {
	wait := newTerm(ctx, s.cfg.ReadTimeout)
	defer wait.close()
	out := make([]known, 0, len(req.certIDs))
	pending := false
	for _, id := range req.certIDs {
		serial, ok := id.serial()
		if !ok {
			return nil, unauthorized
		}
		k := known{subject: subject{p.index, serial}, asked: s.cfg.Now()}
		k.changes = s.cache.changes(k.subject)
		st, err := s.cfg.Source.Status(wait, p.issuer.ID, serial)
		if err != nil && !errors.Is(err, ca.ErrNotFound) {
			return nil, fmt.Errorf("looking up %s: %w", serial, err)
		}
		if k.Status, err = s.ruled(st, err == nil); err != nil {
			return nil, err
		}
		pending = pending || k.State == ca.Pending
		out = append(out, k)
	}
	if pending {
		return nil, tryLater
	}
	return out, nil
}

// ruled is what is said of a certificate of which the store has st, or nothing.
func (s *Server) ruled(st Status, known bool) (Status, error) {
	void := st.State != ca.Issued && st.State != ca.Abandoned && st.State != ca.Pending
	switch {
	case !known || void: // there is no such certificate
		if !s.cfg.RevokeUnissued {
			return st, unauthorized
		}
		return unissued(), nil
	case !s.cfg.Now().Before(st.NotAfter.Add(s.cfg.Archive)):
		// RFC 9919 §3.2.3: no record is kept of what has expired.
		return st, unauthorized
	}
	return st, nil
}

// shared returns the answer about one certificate whose state is told, signing
// it if there is none that says so or if it is getting old. A nil who is the
// caller of ctx, who has paid for nothing yet.
func (s *Server) shared(ctx context.Context, who *asker, p *post, id certID, told known) (*answer, error) {
	now := s.cfg.Now()
	have := s.cache.get(told.subject, id.raw)
	there := have != nil && have.tells(told.Status, now)
	if there && !have.due(now) {
		return have, nil
	}
	if who == nil {
		who = s.asker(ctx, s.signLimit)
	}
	// The store has been asked: what is signed for all is kept even if the one
	// who asked goes away.
	ctx = context.WithoutCancel(ctx)
	if there {
		return s.refreshed(ctx, have, p, id, told), nil
	}
	return s.inTime(ctx, s.cfg.SignTimeout, func(ctx context.Context) (*answer, error) { return s.signShared(ctx, who, p, id, told) })
}

// refreshed renews an answer that is getting old, and sends it on while a new
// one cannot be had, until its nextUpdate. One request has the trouble of that
// and the others go on with what is there. It is nobody's debt, and takes
// nobody's turn at the device.
func (s *Server) refreshed(ctx context.Context, have *answer, p *post, id certID, told known) *answer {
	at := have.refreshAt.Load()
	if now := s.cfg.Now(); now.UnixNano() < at || !have.refreshAt.CompareAndSwap(at, now.Add(retryRefresh).UnixNano()) {
		return have
	}
	wait := min(refreshWait, s.cfg.SignTimeout)
	made, err := s.inTime(peer.With(ctx, peer.Peer{}), wait, func(ctx context.Context) (*answer, error) {
		return s.signShared(ctx, &asker{paid: true}, p, id, told)
	})
	if err != nil {
		if !passing(err) && !errors.Is(err, errUnsigned) {
			s.faults.report(ctx, "refreshing a response, the old one of which is sent on", err)
		}
		return have
	}
	return made
}

// errHangs says that nobody waits any more for a signature that may come yet.
var errHangs = errors.New("the device has not returned")

// inTime has sign make an answer, in a context of no more than length, and leaves
// it to itself when that takes much longer: what comes then is for those who ask
// later.
func (s *Server) inTime(ctx context.Context, length time.Duration, sign func(context.Context) (*answer, error)) (*answer, error) {
	type result struct {
		answer *answer
		err    error
	}
	done := make(chan result, 1)
	t := time.NewTimer(length)
	defer t.Stop()
	go func() { // the guard before the keys bounds how many there are
		growStack()
		wait := newTerm(ctx, length)
		defer wait.close()
		var r result
		defer func() {
			if v := recover(); v != nil { // a request's own would not end the process either
				r.err = fmt.Errorf("panic while signing: %v", v)
				s.cfg.Logger.ErrorContext(ctx, "panic while signing an OCSP response", "panic", v, "stack", string(debug.Stack()))
			}
			done <- r
		}()
		r.answer, r.err = sign(wait)
	}()
	select {
	case r := <-done:
		return r.answer, r.err
	case <-ctx.Done():
	case <-t.C:
	}
	t.Reset(overtime)
	select {
	case r := <-done:
		return r.answer, r.err
	case <-t.C:
		return nil, fmt.Errorf("waiting for a signature: %w", errHangs)
	}
}

// growStack makes room for a signature as long as the stack holds nothing: to move
// it again and again, deeper in, costs as much as a tenth of a signature.
//
//go:noinline
func growStack() { var room [8 << 10]byte; runtime.KeepAlive(&room[0]) }

// signShared signs what everybody gets who asks about a certificate in the state
// told. Of those who ask at the same time one has it signed for all. Where that
// one is turned away, it is the next one's turn: a flood must not speak for
// those who are no part of it.
func (s *Server) signShared(ctx context.Context, who *asker, p *post, id certID, told known) (*answer, error) {
	for {
		mine := false
		made, err, _ := s.flights.Do(told.flight(id), func() (any, error) {
			mine = true
			a, err := s.shelvedOrSigned(ctx, who, p, id, told.Status)
			if err == nil {
				a.shared = true
				s.cache.put(told.subject, id.raw, told.changes, a)
			}
			return a, err
		})
		switch {
		case err == nil:
			return made.(*answer), nil
		case mine || !turnedAway(err) || ctx.Err() != nil:
			return nil, err
		}
		if a := s.cache.get(told.subject, id.raw); a != nil && a.tells(told.Status, s.cfg.Now()) {
			return a, nil // somebody else's turn is over already
		}
	}
}

// shelvedOrSigned takes the answer that was signed ahead, unless it is due to be
// made anew and can be.
func (s *Server) shelvedOrSigned(ctx context.Context, who *asker, p *post, id certID, st Status) (*answer, error) {
	ready := s.shelved(ctx, p, id, st)
	if ready != nil && !ready.due(s.cfg.Now()) {
		return ready, nil
	}
	err := who.pay()
	if err == nil {
		var a *answer
		if a, err = s.signAll(keys.WithPurpose(ctx, s.purposeOf(st)), p, id, st); err == nil {
			return a, nil
		}
	}
	if ready != nil {
		ready.refreshAt.Store(s.cfg.Now().Add(retryRefresh).UnixNano())
		return ready, nil
	}
	return nil, err
}

// purposeOf says how urgent it is to say st to all. As long as a "good" from
// before a revocation may be believed somewhere, nothing is more so; the time of
// a compromise may lie far before it was known.
func (s *Server) purposeOf(st Status) keys.Purpose {
	recent := s.cfg.Now().Before(st.RevokedAt.Add(s.cfg.Validity))
	if st.revoked() && (recent || st.Reason == ca.KeyCompromise) {
		return keys.ForRevocation
	}
	return keys.ForStatus
}

// single makes an answer that nobody else can use. When the one who asked for
// it leaves, so does the wish for it.
func (s *Server) single(ctx context.Context, who *asker, p *post, ids []certID, told []known, nonce []byte) (*answer, error) {
	if err := who.pay(); err != nil {
		return nil, err
	}
	statuses := make([]Status, len(told))
	for i, k := range told {
		statuses[i] = k.Status
	}
	return s.inTime(ctx, s.cfg.SignTimeout, func(ctx context.Context) (*answer, error) {
		return s.signOne(keys.WithPurpose(ctx, keys.ForOne), p, ids, statuses, nonce)
	})
}

// flight names one signature: two that would say different things never share it.
func (k known) flight(id certID) string {
	return fmt.Sprintf("%d %d %d %s %s", k.subject.issuer, k.RevokedAt.UnixNano(), k.Reason, k.State, id.raw)
}

// signAll makes a response for all who ask about one certificate.
func (s *Server) signAll(ctx context.Context, p *post, id certID, st Status) (*answer, error) {
	m, err := s.make(ctx, p, []certID{id}, []Status{st}, nil, always)
	if err != nil {
		return nil, err
	}
	return s.answerOf(m, s.refreshAt(m.response.singles[0])), nil
}

// signOne makes a response about certificates of one issuer for one who asks.
func (s *Server) signOne(ctx context.Context, p *post, ids []certID, statuses []Status, nonce []byte) (*answer, error) {
	m, err := s.make(ctx, p, ids, statuses, nonce, (*delegate).suspect)
	if err != nil {
		return nil, err
	}
	return s.unsharedOf(m), nil
}

// always has a signature checked that is for many, and may be kept for days.
func always(*delegate, time.Time) bool { return true }

// A signed is a response with its signature.
type signed struct {
	response *response
	by       *delegate
	tbs, sig []byte
}

// make has the one who speaks for p sign a response, and checks the signature if
// it is to be.
func (s *Server) make(ctx context.Context, p *post, ids []certID, statuses []Status, nonce []byte, toCheck func(*delegate, time.Time) bool) (signed, error) {
	d := p.delegate.Load()
	now := s.cfg.Now()
	if d == nil || !now.Before(d.cert.NotAfter) || d.revoked.Load() {
		s.metrics.signatures.WithLabelValues("no_responder").Inc()
		return signed{}, fmt.Errorf("%w: no responder certificate for issuer %s", tryLater, p.issuer.ID)
	}
	m := signed{response: s.draft(d, now, ids, statuses, nonce), by: d}
	var err error
	m.tbs, m.sig, err = d.sign(keys.Repeatable(ctx), m.response)
	if err == nil && toCheck(d, now) {
		err = d.check(now, m.tbs, m.sig)
	}
	s.metrics.signed(err)
	s.noteSigning(ctx, p, d, err)
	if err != nil {
		return signed{}, fmt.Errorf("answering for issuer %s: %w: %w", p.issuer.ID, errUnsigned, err)
	}
	return m, nil
}

// answerOf puts together what all are sent of a signed response, to be made anew
// from refreshAt on.
func (s *Server) answerOf(m signed, refreshAt time.Time) *answer {
	a := s.unsharedOf(m)
	sum := sha256.Sum256(a.body)
	a.etag = `"` + hex.EncodeToString(sum[:]) + `"` // RFC 9919 §7.2
	a.refreshAt.Store(refreshAt.UnixNano())
	a.prepare()
	return a
}

// unsharedOf puts together what one is sent of it. HTTP says nothing of it but
// its length.
func (s *Server) unsharedOf(m signed) *answer {
	body := m.by.envelope(m.tbs, m.sig)
	a := &answer{
		body:       body,
		producedAt: m.response.producedAt,
		nextUpdate: soonest(m.response.singles),
		status:     m.response.singles[0].status,
		by:         m.by,
		header:     sharedHeader{length: lengthOf(len(body))},
	}
	a.ends = a.nextUpdate
	for _, of := range m.response.singles {
		if end := of.status.NotAfter.Add(s.cfg.Archive); !of.status.unissued && end.Before(a.ends) {
			a.ends = end
		}
	}
	return a
}

// refreshAt is when an answer is to be made anew: at half of its life or where
// the margin begins, and a little earlier, so that what was signed together does
// not come due together for ever.
func (s *Server) refreshAt(of single) time.Time {
	life := of.nextUpdate.Sub(of.thisUpdate)
	margin := min(s.cfg.RefreshMargin, life/2)
	spread := (life - margin) / 4
	return of.nextUpdate.Add(-margin - mathrand.N(spread+1))
}

// errUnsigned marks the error of a signature, which noteSigning has told of.
var errUnsigned = errors.New("signing a response")

// noteSigning writes the two lines that an outage of the device leaves. That
// there is no seat before the device is no outage.
func (s *Server) noteSigning(ctx context.Context, p *post, d *delegate, err error) {
	now := s.cfg.Now()
	switch {
	case err == nil:
		if over, took, failures := p.signing.works(now); over {
			s.cfg.Logger.InfoContext(ctx, "OCSP responses are signed again", "issuer", string(p.issuer.ID), "after", took, "failures", failures)
		}
	case errors.Is(err, keys.ErrBusy) && keys.Ready(d.key) == nil, errors.Is(err, context.Canceled):
	case p.signing.fails(now):
		s.cfg.Logger.ErrorContext(ctx, "OCSP responses can't be signed; those at hand are sent until their nextUpdate", "issuer", string(p.issuer.ID), "error", err)
	}
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, keys.ErrBusy):
		return "busy"
	default:
		return "error"
	}
}

// draft decides the times. All are cut to the second in the same way: RFC 9919
// §3.2.4 knows no fractions.
func (s *Server) draft(d *delegate, now time.Time, ids []certID, statuses []Status, nonce []byte) *response {
	r := &response{producedAt: now.UTC().Truncate(time.Second), nonce: nonce}
	r.singles = r.room[:0]
	if s.cfg.Archive > 0 {
		r.archiveCutoff = r.producedAt.Add(-s.cfg.Archive)
	}
	for i, id := range ids {
		st := statuses[i]
		this := r.producedAt.Add(-backdate)
		for _, notBefore := range [...]time.Time{d.cert.NotBefore, st.RevokedAt} {
			if notBefore.After(this) { // nothing is known from before that
				this = notBefore.UTC().Truncate(time.Second)
			}
		}
		if this.After(r.producedAt) {
			this = r.producedAt
		}
		next := this.Add(s.cfg.Validity)
		if st.unissued {
			r.extendedRevoke = true
			next = this.Add(unissuedValidity)
		}
		// Some clients refuse an answer that outlives the certificate.
		for _, end := range [...]time.Time{d.cert.NotAfter, st.NotAfter} {
			if end.Before(next) && end.After(now) {
				next = end.UTC().Truncate(time.Second)
			}
		}
		r.singles = append(r.singles, single{certID: id.raw, status: st, thisUpdate: this, nextUpdate: next})
	}
	return r
}

func soonest(singles []single) time.Time {
	t := singles[0].nextUpdate
	for _, s := range singles[1:] {
		if s.nextUpdate.Before(t) {
			t = s.nextUpdate
		}
	}
	return t
}
