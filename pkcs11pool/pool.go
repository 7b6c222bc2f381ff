package pkcs11pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

// A Pool is a keys.Store, keys.Generator and keys.Destroyer on tokens. It is
// safe for concurrent use.
type Pool struct {
	cfg     Config
	log     *slog.Logger
	tokens  []*token // never changed after Open
	ring    ring
	start   time.Time
	stop    chan struct{} // closed when the pool is
	opened  chan struct{} // closed when Open has succeeded
	keepers sync.WaitGroup
	back    chan struct{} // told that a session has come back, when the pool is closed
	metrics *metrics      // nil: none

	sizes sync.Mutex // guards told, and that Resized is told one thing after the other
	told  int

	mu       sync.Mutex // guards what follows, and much of tokens and sessions; never held while the device is called
	queue    queue
	turn     int // which token is looked at first
	closed   bool
	drained  bool          // closed, and no session is kept any more
	over     chan struct{} // closed when Close is done
	closeErr error         // once over is closed
	waits    uint64
	waited   time.Duration
	refusals [reasons]uint64
}

// Open opens the tokens: module, slot, login, sessions. With several tokens it is
// enough that one can be used, and with cfg.Lenient that one may be some time.
func Open(ctx context.Context, cfg Config) (*Pool, error) { return openWith(ctx, cfg, load) }

// openWith is Open with modules by load.
func openWith(ctx context.Context, cfg Config, load func(path string) (*module, error)) (*Pool, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	p := &Pool{
		cfg:    cfg,
		log:    cfg.Logger,
		start:  time.Now(),
		stop:   make(chan struct{}),
		opened: make(chan struct{}),
		over:   make(chan struct{}),
		back:   make(chan struct{}, 1),
	}
	for _, c := range cfg.Tokens {
		t, err := p.newToken(c, load)
		if err != nil {
			p.forgetPINs()
			return nil, fmt.Errorf("pkcs11pool: token %s: %w", c.Name, err)
		}
		p.tokens = append(p.tokens, t)
	}
	if err := p.firstAttempts(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if err := p.register(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	close(p.opened)
	return p, nil
}

// newToken loads a token's module and asks for its PIN. It calls nothing yet.
func (p *Pool) newToken(c TokenConfig, load func(path string) (*module, error)) (*token, error) {
	m, err := load(c.Module)
	if err != nil {
		return nil, err
	}
	t := &token{
		pool:   p,
		index:  len(p.tokens),
		name:   c.Name,
		cfg:    c,
		module: m,
		wake:   make(chan struct{}, 1),
		first:  make(chan error, 1),
		since:  time.Now(),
		limit:  p.cfg.MaxSessions,
		idle:   make([]*session, 0, p.cfg.MaxSessions),
	}
	if c.PIN == nil {
		return t, nil
	}
	if t.pin, err = c.PIN(); err != nil {
		return nil, fmt.Errorf("PIN: %w", err)
	}
	return t, nil
}

// firstAttempts tries to bring all tokens up, and reports whether that is good
// enough.
func (p *Pool) firstAttempts(ctx context.Context) error {
	for _, t := range p.tokens {
		t.module.use(t)
		p.keepers.Add(1)
		go t.keep()
	}
	var failed []error
	var fatal bool
	for _, t := range p.tokens {
		select {
		case err := <-t.first:
			if err == nil {
				continue
			}
			fatal = fatal || permanent(err)
			failed = append(failed, fmt.Errorf("pkcs11pool: token %s: %w", t.name, err))
		case <-ctx.Done():
			return fmt.Errorf("pkcs11pool: opening token %s: %w", t.name, ctx.Err())
		}
	}
	if fatal || len(failed) == len(p.tokens) && !p.cfg.Lenient {
		return errors.Join(failed...)
	}
	return p.twice()
}

// twice is an error if two entries of the configuration are the same token.
func (p *Pool) twice() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	type where struct {
		m    *module
		slot uint
	}
	names := map[where]string{}
	for _, t := range p.tokens {
		at := where{t.module, t.slot}
		if other, taken := names[at]; taken && t.state == Up {
			return fmt.Errorf("pkcs11pool: tokens %s and %s are the same one", other, t.name)
		}
		if t.state == Up {
			names[at] = t.name
		}
	}
	return nil
}

// now is the pool's time.
func (p *Pool) now() time.Duration { return time.Since(p.start) }

// Check returns nil while some token can be used, from memory.
func (p *Pool) Check(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var away []error
	for _, t := range p.tokens {
		if t.state == Up && !p.closed {
			return nil
		}
		away = append(away, fmt.Errorf("pkcs11pool: token %s is %v: %w", t.name, t.state, t.cause))
	}
	if p.closed {
		return errClosed
	}
	return errors.Join(away...)
}

// Ready returns nil if it is worth asking for something now, and a
// *keys.BusyError if not, from memory.
func (p *Pool) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return busyFor(closedPool, errClosed)
	}
	for _, t := range p.tokens {
		if t.state == Up {
			return nil
		}
	}
	return p.unavailableLocked(&job{})
}

// Capacity is how many sessions the tokens that are up may have together.
func (p *Pool) Capacity() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, t := range p.tokens {
		if t.state == Up {
			n += t.limit
		}
	}
	return n
}

// tellSize says what the capacity is, if it is another than before.
func (p *Pool) tellSize() {
	p.sizes.Lock()
	defer p.sizes.Unlock()
	if n := p.Capacity(); n != p.told {
		p.told = n
		if p.cfg.Resized != nil {
			p.cfg.Resized(n)
		}
	}
}

// sleep waits for d. It reports false when the pool is closed.
func (p *Pool) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.stop:
		return false
	}
}

// wait waits for c. It reports false when the pool is closed.
func (p *Pool) wait(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-p.stop:
		return false
	}
}

// Close takes no new work, waits for what is under way, at most for CallTimeout,
// and gives everything back.
func (p *Pool) Close() error {
	p.mu.Lock()
	first := !p.closed
	if first {
		p.closed = true
		close(p.stop)
		p.refuseAllLocked(closedPool, errClosed)
	}
	p.mu.Unlock()
	if first {
		p.closeErr = p.shutDown()
		close(p.over)
	}
	<-p.over
	return p.closeErr
}

func (p *Pool) shutDown() error {
	deadline := time.NewTimer(p.cfg.CallTimeout)
	defer deadline.Stop()
	keepers := make(chan struct{})
	go func() { p.keepers.Wait(); close(keepers) }()
	select {
	case <-keepers:
	case <-deadline.C:
		deadline.Reset(0)
	}
	p.awaitTokens(deadline, func(t *token) bool { return t.count[lent]+t.count[opening] == 0 })
	var left []error
	for _, t := range p.tokens {
		if err := p.logout(t); err != nil && !isHung(err) {
			left = append(left, fmt.Errorf("pkcs11pool: token %s: %w", t.name, err))
		}
	}
	p.mu.Lock()
	p.drained = true
	for _, t := range p.tokens {
		p.endIdleLocked(t)
	}
	p.mu.Unlock()
	deadline.Reset(p.cfg.CallTimeout)
	p.awaitTokens(deadline, func(t *token) bool { return t.open() == t.count[hung] })
	for _, t := range p.tokens {
		if err := t.leave(); err != nil {
			left = append(left, err)
		}
	}
	p.unregister()
	return errors.Join(left...)
}

// awaitTokens waits until all tokens are as wanted, or until the deadline.
func (p *Pool) awaitTokens(deadline *time.Timer, wanted func(*token) bool) {
	for {
		p.mu.Lock()
		all := true
		for _, t := range p.tokens {
			all = all && wanted(t)
		}
		p.mu.Unlock()
		if all {
			return
		}
		select {
		case <-p.back:
		case <-deadline.C:
			deadline.Reset(0) // for the next
			return
		}
	}
}

// logout logs out of a token, unless another pool is at it.
func (p *Pool) logout(t *token) error {
	p.mu.Lock()
	if t.state != Up || len(t.idle) == 0 || t.pin == nil {
		p.mu.Unlock()
		return nil
	}
	s := t.idle[len(t.idle)-1]
	t.idle = t.idle[:len(t.idle)-1]
	slot := t.slot
	p.moveLocked(s, lent)
	p.mu.Unlock()
	var err error
	if !t.module.shared(t, slot) {
		err = s.call(&job{run: func(c *conn) error { return c.Logout(c.session) }})
		if isCode(err, pkcs11.CKR_USER_NOT_LOGGED_IN) || meaningOf(err).class == classToken {
			err = nil
		}
	}
	p.drop(s, err)
	return err
}

// leave gives the module back, if nothing keeps it busy, and forgets the PIN.
func (t *token) leave() error {
	t.pool.mu.Lock()
	left, hanging := t.open(), t.count[hung]
	t.pool.mu.Unlock()
	var errs []error
	if left > 0 {
		errs = append(errs, fmt.Errorf("pkcs11pool: token %s: %d sessions have not come back, %d of them hang", t.name, left, hanging))
	}
	if err := t.module.leave(t, t.pool.cfg.CallTimeout); err != nil {
		errs = append(errs, fmt.Errorf("pkcs11pool: module %s: %w", t.module.path, err))
	}
	if left == 0 {
		clear(t.pin)
	}
	return errors.Join(errs...)
}

// forgetPINs is for tokens that were never called.
func (p *Pool) forgetPINs() {
	for _, t := range p.tokens {
		clear(t.pin)
	}
}

// busyFor is a *keys.BusyError with that reason.
func busyFor(why reason, err error) *keys.BusyError {
	return &keys.BusyError{Reason: why.String(), RetryAfter: time.Second, Err: err}
}
