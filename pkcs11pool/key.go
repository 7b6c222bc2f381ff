package pkcs11pool

import (
	"cmp"
	"context"
	"crypto"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

// maxKeys bounds the keys that are remembered.
const maxKeys = 1024

// A ring is what is remembered of keys and tokens. Its zero value is empty.
type ring struct {
	making sync.Once
	made   chan struct{} // one slot: keys are made and destroyed one at a time

	mu    sync.Mutex            // guards what is below
	keys  map[string]keys.Key   // by reference, at most maxKeys
	ables map[*token]*abilities // as many as there are tokens
}

func (r *ring) key(ref string) keys.Key {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keys[ref]
}

// keep remembers a key, and returns the one that is remembered: the first.
func (r *ring) keep(ref string, k keys.Key) keys.Key {
	r.mu.Lock()
	defer r.mu.Unlock()
	if first, ok := r.keys[ref]; ok {
		return first
	}
	if r.keys == nil {
		r.keys = make(map[string]keys.Key)
	}
	for other := range r.keys { // any: it is found again when it is asked for
		if len(r.keys) < maxKeys {
			break
		}
		delete(r.keys, other)
	}
	r.keys[ref] = k
	return k
}

// forget drops a key, whatever it is called, and has nobody use it any more.
func (r *ring) forget(pub crypto.PublicKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for ref, k := range r.keys {
		if samePublic(k.Public(), pub) {
			keyOf(k).destroyed.Store(true)
			delete(r.keys, ref)
		}
	}
}

// all returns the keys that are remembered.
func (r *ring) all() []*key {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*key, 0, len(r.keys))
	for _, k := range r.keys {
		all = append(all, keyOf(k))
	}
	return all
}

func (r *ring) abilitiesOf(t *token) *abilities {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ables[t]
}

func (r *ring) keepAbilities(t *token, a *abilities) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ables == nil {
		r.ables = make(map[*token]*abilities)
	}
	r.ables[t] = a
}

// take has the caller alone make or destroy keys until give.
func (r *ring) take(ctx context.Context) error {
	r.making.Do(func() { r.made = make(chan struct{}, 1) })
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case r.made <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *ring) give() { <-r.made }

// Key implements keys.Store. The reference is a label, or a URI of RFC 7512 with
// the label, the ID or both: "pkcs11:object=issuing;id=%01". Several keys of a
// label are one too many: the one with the smallest ID is taken.
//
// The key is looked for on all tokens that are up, and must be the same on all
// that have it. Those that have it not are not asked for it again before they
// have been down. Those that are down are asked when they come back. An RSA key
// that may decrypt is a keys.Decrypter.
func (p *Pool) Key(ctx context.Context, text string) (keys.Key, error) {
	if k := p.ring.key(text); k != nil {
		return k, nil
	}
	r, err := parseRef(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", keys.ErrNotFound, err)
	}
	k, err := p.open(ctx, r)
	if err != nil {
		return nil, err
	}
	return p.ring.keep(text, k), nil
}

// open looks for a key on all tokens.
func (p *Pool) open(ctx context.Context, r ref) (keys.Key, error) {
	k := p.newKey(r, nil)
	s := survey{ref: r}
	var skills skill
	for _, t := range p.tokens {
		at, err := ask(ctx, p, t, "finding key "+r.text, func(c *conn) (*place, error) { return p.lookUp(c, r) })
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("finding key %q: %w", r.text, err)
		}
		if err == nil {
			k.place(t).Store(at)
		}
		if s.add(t, at, err) {
			skills |= at.skills
		}
	}
	if err := s.verdict(); err != nil {
		return nil, err
	}
	k.public = s.public
	s.warn(ctx, p.log)
	return k.as(skills), nil
}

// newKey returns a key of which it is not known where it is.
func (p *Pool) newKey(r ref, pub crypto.PublicKey) *key {
	k := &key{
		pool: p, ref: r, public: pub, places: make([]atomic.Pointer[place], len(p.tokens)),
		signing: "signing with key " + r.text, decrypting: "decrypting with key " + r.text,
	}
	k.uses = k.with(canSign | canSignPSS | canDecrypt)
	k.signs, k.signsPSS, k.decrypts = k.with(canSign), k.with(canSignPSS), k.with(canDecrypt)
	return k
}

// as is what others get to see of a key.
func (k *key) as(s skill) keys.Key {
	if s&canDecrypt != 0 {
		return decrypter{k}
	}
	return k
}

// errDifferent says that not all tokens have the same key.
var errDifferent = errors.New("pkcs11pool: tokens have different keys")

// A survey is what the tokens said when they were asked for a key.
type survey struct {
	ref    ref
	public crypto.PublicKey // nil: no token has the key
	owner  string           // the token that had it first
	unlike string           // a token that has another key
	silent []error          // of tokens that did not answer
	unfit  []error          // of tokens where the key can't be used
	absent []string         // tokens that have it not
}

// add reports whether the token has the key.
func (s *survey) add(t *token, at *place, err error) bool {
	switch {
	case err != nil:
		s.silent = append(s.silent, fmt.Errorf("token %s did not answer: %w", t.name, err))
	case errors.Is(at.why, keys.ErrNotFound):
		s.absent = append(s.absent, t.name)
	case at.why != nil:
		s.unfit = append(s.unfit, fmt.Errorf("token %s: %w", t.name, at.why))
	case s.public == nil:
		s.public, s.owner = at.public, t.name
		return true
	case samePublic(s.public, at.public):
		return true
	default:
		s.unlike = t.name
	}
	return false
}

// verdict is why there is no key to be had. That a key is nowhere is said only
// when all tokens have said so.
func (s *survey) verdict() error {
	switch {
	case s.unlike != "":
		return fmt.Errorf("%w %q: tokens %s and %s", errDifferent, s.ref.text, s.owner, s.unlike)
	case s.public != nil:
		return nil
	case len(s.unfit) > 0:
		return fmt.Errorf("pkcs11pool: key %q can't be used: %w", s.ref.text, errors.Join(s.unfit...))
	case len(s.silent) > 0:
		return busy(errors.Join(s.silent...))
	}
	return fmt.Errorf("%w: %q on token %v", keys.ErrNotFound, s.ref.text, s.absent)
}

func (s *survey) warn(ctx context.Context, log *slog.Logger) {
	for _, name := range s.absent {
		log.WarnContext(ctx, "token has not the key and is left out for it", "token", name, "key", s.ref.text)
	}
	for _, err := range s.unfit {
		log.WarnContext(ctx, "key can't be used on a token, which is left out for it", "key", s.ref.text, "err", err)
	}
	for _, err := range s.silent {
		log.WarnContext(ctx, "token was not asked for the key, and will be when it is back", "key", s.ref.text, "err", err)
	}
}

// busy says that the device did nothing, in the words of the error behind it if
// that knows better when to come again.
func busy(err error) error {
	b := busyFor(unavailable, err)
	if inner, ok := errors.AsType[*keys.BusyError](err); ok {
		b.Reason, b.RetryAfter = inner.Reason, inner.RetryAfter
	}
	return b
}

// A key is a private key on one token or more.
type key struct {
	pool      *Pool
	ref       ref
	public    crypto.PublicKey
	places    []atomic.Pointer[place] // by token
	destroyed atomic.Bool

	signing, decrypting string // what is done with it, in errors

	// Which tokens are asked for what: those that can, and those of which it is
	// not known.
	uses, signs, signsPSS, decrypts func(*token) bool
}

// keyOf returns what stands behind a key of this room.
func keyOf(k keys.Key) *key {
	if d, ok := k.(decrypter); ok {
		return d.key
	}
	return k.(*key)
}

// place is where the key is on t, as far as is known.
func (k *key) place(t *token) *atomic.Pointer[place] { return &k.places[t.index] }

func (k *key) with(s skill) func(*token) bool {
	return func(t *token) bool {
		at := k.place(t).Load()
		return !at.holds(t) || at.why == nil && at.skills&s != 0
	}
}

// Public implements keys.Key.
func (k *key) Public() crypto.PublicKey { return k.public }

// Ready is for keys.Ready: is a token up that has the key?
func (k *key) Ready() error {
	p := k.pool
	if err := p.Ready(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if j := (&job{on: k.uses}); !p.hopeLocked(j) {
		return p.unavailableLocked(j)
	}
	return nil
}

// at returns where the key is on the token of c, and looks for it if need be.
func (k *key) at(c *conn) (*place, error) {
	known := k.place(c.token)
	before := known.Load()
	if before.holds(c.token) {
		return before, nil
	}
	at, err := k.pool.lookUp(c, k.ref)
	if err != nil {
		return nil, err
	}
	if errors.Is(at.why, keys.ErrNotFound) && before.had() {
		return nil, fmt.Errorf("%w: %q", errKeyLost, k.ref.text)
	}
	if at.why == nil && !samePublic(at.public, k.public) {
		at.why = errors.New("the token has another key of that name")
	}
	known.Store(at)
	if at.why != nil && (before == nil || before.why == nil) {
		k.pool.log.Warn("key can't be used on a token, which is left out for it",
			slog.String("token", c.token.name), slog.String("key", k.ref.text), slog.Any("err", at.why))
	}
	return at, nil
}

// begin starts an operation with the key. A handle that the token does not know,
// though nobody told that its sessions are others now, is found anew once.
// False without an error: the token can't do it.
func (k *key) begin(c *conn, needs skill, start func(*place) error) (bool, error) {
	for try := 0; ; try++ {
		at, err := k.at(c)
		if err != nil {
			return false, err
		}
		if at.why != nil || at.skills&needs == 0 {
			return false, nil
		}
		if err = start(at); err == nil {
			return true, nil
		}
		if k.ifStale(c, err) && try == 0 {
			continue
		}
		return false, err
	}
}

// checkKeys is an error if the token has lost all keys that it has had. That is
// no way to lose keys: a directory is not mounted, a partition not activated, a
// library has not noticed that its device is another now. One that is gone while
// others are there was destroyed by somebody, and is left out.
func (t *token) checkKeys(c *conn) error {
	const most = 16 // are enough to tell
	var gone []*key
	had := 0
	for _, k := range t.pool.ring.all() {
		if !k.place(t).Load().had() || had == most {
			continue
		}
		had++
		found, err := findPrivate(c, k.ref.template(), maxMatches)
		switch {
		case errors.Is(err, errTooMany):
		case err != nil:
			return err
		case len(found) == 0:
			gone = append(gone, k)
		}
	}
	if had > 0 && len(gone) == had {
		return fmt.Errorf("%w: %q", errKeyLost, gone[0].ref.text)
	}
	for _, k := range gone {
		k.place(t).Store(&place{objects: t.objects(), again: time.Now().Add(mostPause), why: keys.ErrNotFound})
		t.pool.log.Warn("token has not the key any more and is left out for it", slog.String("token", t.name), slog.String("key", k.ref.text))
	}
	return nil
}

// ifStale doubts where the key is if an error says that it is not there.
func (k *key) ifStale(c *conn, err error) bool {
	code, ok := errors.AsType[pkcs11.Error](err)
	if !ok || code != pkcs11.CKR_KEY_HANDLE_INVALID && code != pkcs11.CKR_OBJECT_HANDLE_INVALID {
		return false
	}
	known := k.place(c.token)
	if at := known.Load(); at != nil {
		doubted := *at
		doubted.doubtful, doubted.again = true, time.Time{}
		known.CompareAndSwap(at, &doubted)
	}
	return true
}

// errUnable says that a token was found to be unable to do something with a key.
var errUnable = errors.New("the token can't do it")

func (k *key) gone() error {
	return fmt.Errorf("%w: %q: it has been destroyed", keys.ErrNotFound, k.ref.text)
}

// anywhere says whether any token is worth asking.
func (k *key) anywhere(on func(*token) bool) error {
	if k.destroyed.Load() {
		return k.gone()
	}
	for _, t := range k.pool.tokens {
		if on(t) {
			return nil
		}
	}
	return k.nowhere()
}

// nowhere says that the device did nothing: a token that has been down is asked
// again when it is back.
func (k *key) nowhere() error {
	b := busyFor(unavailable, fmt.Errorf("no token can use key %q", k.ref.text))
	b.RetryAfter = mostPause
	return b
}

// Sign implements keys.Key. Digests are of SHA-256, SHA-384 or SHA-512.
func (k *key) Sign(ctx context.Context, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if err := keys.CheckDigest(k.public, digest, opts); err != nil {
		return nil, err
	}
	s, err := k.newSigning(digest, opts)
	if err != nil {
		return nil, err
	}
	on := k.signs
	if s.needs == canSignPSS {
		on = k.signsPSS
	}
	s.job = job{op: k.signing, mechanism: s.label, on: on, repeatable: s.deterministic || keys.IsRepeatable(ctx), signing: s}
	if err := k.work(ctx, &s.job); err != nil {
		return nil, err
	}
	return s.signature, nil
}

// A signing is one signature on its way: all that is needed for it, in one piece.
// Nobody but a session looks at it unless it was made in time.
type signing struct {
	job
	scheme
	key       *key
	signature []byte
	room      [64]byte          // for a digest
	raw       [mostScalars]byte // for an answer, if it is long enough
}

// newSigning takes a copy of digest: a call that hangs may read it when the caller
// has long reused its own.
func (k *key) newSigning(digest []byte, opts crypto.SignerOpts) (s *signing, err error) {
	s = &signing{key: k}
	s.scheme, err = schemeFor(k.public, append(s.room[:0], digest...), opts)
	return s, err
}

// answer is room for the device's answer.
func (s *signing) answer() []byte {
	if s.size <= len(s.raw) {
		return s.raw[:s.size]
	}
	return make([]byte, s.size)
}

// run is the job's.
func (s *signing) run(c *conn) error {
	if s.key.destroyed.Load() {
		return s.key.gone()
	}
	var answer []byte
	var end error // of a signature that was begun
	able, err := s.key.begin(c, s.needs, func(at *place) (err error) {
		answer, err, end = c.sign(at, s)
		c.effect = err == nil
		return err
	})
	if err == nil && end != nil {
		s.key.ifStale(c, end)
		err = end
	}
	if err := s.key.check(able, err); err != nil {
		return err
	}
	s.signature, err = s.finish(answer)
	return err
}

// sign begins a signature and makes it, in one go if that is possible.
func (c *conn) sign(at *place, s *signing) (answer []byte, begin, end error) {
	if whole, ok := c.cryptoki.(*calls); ok && whole.whole != nil && !at.asks {
		answer = s.answer()
		n, begin, end := whole.SignWhole(c.session, s.scheme.mechanism[0], at.handle, s.message, answer)
		return answer[:n], begin, end
	}
	if err := c.SignInit(c.session, s.scheme.mechanism, at.handle); err != nil {
		return nil, err, nil
	}
	if err := authenticate(c, at); err != nil {
		return nil, err, nil
	}
	answer, end = c.Sign(c.session, s.message)
	return answer, nil, end
}

// work has a token do something with the key, and the next if that one finds that
// it is not able to.
func work[T any](ctx context.Context, k *key, j job, run func(*conn) (result T, able bool, err error)) (result T, err error) {
	var done T // is read after success alone: a call that was given up may write to it at any time
	j.run = func(c *conn) error {
		if k.destroyed.Load() {
			return k.gone()
		}
		result, able, err := run(c)
		if err := k.check(able, err); err != nil {
			return err
		}
		done = result
		return nil
	}
	if err := k.work(ctx, &j); err != nil {
		return result, err
	}
	return done, nil
}

// check says what became of a job with the key.
func (k *key) check(able bool, err error) error {
	switch {
	case err != nil:
		return err
	case k.destroyed.Load(): // the handle may have been another's already
		return k.gone()
	case !able:
		return errUnable
	}
	return nil
}

func (k *key) work(ctx context.Context, j *job) error {
	for range len(k.places) + 1 {
		err := k.pool.do(ctx, j)
		if err == nil {
			return nil
		}
		if errors.Is(err, keys.ErrBusy) { // as it is wherever no token can do it
			return cmp.Or(k.anywhere(j.on), err)
		}
		if !errors.Is(err, errUnable) {
			return err
		}
	}
	return k.nowhere()
}

// authenticate gives the PIN once more to a key that asks for it before each use.
// A PIN that is refused is not tried again, nor for anything else.
func authenticate(c *conn, at *place) error {
	if !at.asks {
		return nil
	}
	t := c.token
	this := refusedPIN{token: at.owner, pin: maphash.Bytes(pinSeed, t.pin)}
	if t.pin == nil {
		return errNoPIN
	}
	return t.module.try(this, func() error { return c.Login(c.session, pkcs11.CKU_CONTEXT_SPECIFIC, string(t.pin)) })
}
