package pkcs11pool

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

const (
	leastPause    = 100 * time.Millisecond // between attempts to bring a token back
	mostPause     = 10 * time.Second
	beat          = 5 * time.Second // without work, after which a token is asked whether it is still there
	logPause      = time.Minute     // between log lines about such attempts
	restartsAfter = 3               // attempts in vain until the module is initialized anew
)

// keep is the goroutine that brings the token up, closes sessions that nobody
// needs, and brings it back. It alone logs what becomes of the token.
func (t *token) keep() {
	defer t.pool.keepers.Done()
	err := t.connect()
	if err != nil {
		t.failed(err)
	}
	t.first <- err
	if !t.pool.wait(t.pool.opened) {
		return
	}
	if err == nil {
		t.introduce()
	}
	for t.watch() && t.bringBack() {
		continue
	}
}

// introduce says which token it is.
func (t *token) introduce() {
	p := t.pool
	p.mu.Lock()
	slot, info, limit := t.slot, t.info, t.limit
	p.mu.Unlock()
	p.log.LogAttrs(context.Background(), slog.LevelInfo, "PKCS#11 token in use",
		slog.String("token", t.name), slog.Uint64("slot", uint64(slot)), slog.String("serial", trim(info.SerialNumber)),
		slog.String("model", trim(info.Model)), slog.Int("sessions", limit))
	if info.Flags&pkcs11.CKF_USER_PIN_COUNT_LOW != 0 {
		p.log.LogAttrs(context.Background(), slog.LevelWarn, "PKCS#11 token has seen a wrong PIN since the last right one", slog.String("token", t.name))
	}
}

// watch looks after the token for as long as it is up. So that it is noticed that
// it is not, even when nobody wants anything of it, it is asked now and then. It
// reports false when the pool is closed.
func (t *token) watch() bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var left retries
	for {
		t.pool.tellSize()
		next, up := t.pool.tidy(t)
		if !up {
			return true
		}
		timer.Reset(min(next, t.closeLeft(&left), t.ask()))
		select {
		case <-t.wake:
		case <-timer.C:
		case <-t.pool.stop:
			return false
		}
	}
}

// tidy closes the sessions that have been idle for too long, and returns when to
// look again.
func (p *Pool) tidy(t *token) (next time.Duration, up bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.state != Up {
		return 0, false
	}
	next = p.cfg.IdleTime
	for t.alive() > p.cfg.MinSessions && len(t.idle) > 0 {
		s := t.idle[0] // those at the end are lent first
		if left := p.cfg.IdleTime - (p.now() - s.last); left > 0 {
			next = min(next, left)
			break
		}
		t.idle = append(t.idle[:0], t.idle[1:]...)
		p.endLocked(s)
	}
	if left := time.Until(t.opening.next); left > 0 {
		next = min(next, left)
	} else {
		p.balanceLocked() // it may have been put off
	}
	if t.learned.IsZero() {
		return next, true
	}
	if left := p.cfg.IdleTime - time.Since(t.learned); left > 0 {
		return min(next, left), true
	}
	t.learned, t.limit = time.Time{}, p.limitOf(t.info) // others may have closed theirs since
	p.balanceLocked()
	t.nudge() // for the size
	return next, true
}

// retries say when something is tried again that was in vain.
type retries struct {
	pause time.Duration
	next  time.Time
}

func (r *retries) inVain() {
	r.pause = min(max(2*r.pause, leastPause), mostPause)
	r.next = time.Now().Add(r.pause)
}

// closeLeft has some session close those that would not close before, and returns
// when to look again.
func (t *token) closeLeft(r *retries) time.Duration {
	if len(t.module.leftOf(t)) == 0 {
		*r = retries{}
		return mostPause
	}
	if left := time.Until(r.next); left > 0 {
		return left
	}
	r.inVain()
	p := t.pool
	p.mu.Lock()
	s := p.takeLocked(&job{on: t.only}, &attempts{})
	p.mu.Unlock()
	if s != nil {
		p.errand(s, func(*conn) error { return s.calls.closeLeft() }, true)
	}
	return r.pause
}

// ask has an idle session ask the token whether it is still there, if nothing has
// been done with it for a while, and returns when to look again. What is known of
// a token by its answer is what a signature would have brought to light.
func (t *token) ask() time.Duration {
	p := t.pool
	p.mu.Lock()
	if t.state != Up || len(t.idle) == 0 {
		p.mu.Unlock()
		return beat
	}
	if left := beat - (p.now() - t.idle[len(t.idle)-1].last); left > 0 {
		p.mu.Unlock()
		return left
	}
	s := p.takeLocked(&job{on: t.only}, &attempts{})
	p.mu.Unlock()
	if s == nil {
		return beat
	}
	p.errand(s, func(c *conn) error {
		if _, err := c.GetSessionInfo(c.session); err != nil {
			return err
		}
		_, err := c.GetTokenInfo(c.slot)
		return err
	}, false)
	return beat
}

// errand has a session that was lent do something for the keeper, and takes it
// back. That the token does it does not mean that it works.
func (p *Pool) errand(s *session, run func(*conn) error, again bool) {
	err := s.call(&job{run: run})
	o := outcome{why: err}
	if !isHung(err) { // what a session that hangs holds is not ours to look at
		o.fate = s.fate(meaningOf(err).class)
	}
	p.giveBack(s, o, again)
}

// only is for jobs that are for this token and no other.
func (t *token) only(other *token) bool { return other == t }

// connect tries once to bring the token up.
func (t *token) connect() error {
	p := t.pool
	init, err := t.module.initialized(p.cfg.CallTimeout)
	if err != nil {
		return err
	}
	s := p.prepare(t, init)
	var at site // belongs to the job until that has returned
	err = s.call(&job{run: func(c *conn) (err error) {
		if at, err = t.find(c); err != nil {
			return err
		}
		c.slot = at.slot
		if at.info.MaxSessionCount == 1 && at.info.Flags&pkcs11.CKF_WRITE_PROTECTED == 0 {
			t.writes.Store(true) // there is no room for one that writes beside it
		}
		if _, err := c.open(); err != nil {
			return err
		}
		if err := t.login(c, at.info); err != nil {
			return err
		}
		return t.checkKeys(c)
	}})
	if err != nil {
		p.drop(s, err)
		return err
	}
	p.mu.Lock()
	t.slot, t.info, t.limit, t.learned = at.slot, at.info, p.limitOf(at.info), time.Time{}
	more := min(p.cfg.MinSessions, t.limit-t.count[hung]) - 1
	p.mu.Unlock()
	ready := []*session{s}
	for range more {
		s := p.prepare(t, init)
		err := s.call(&open)
		if err == nil {
			ready = append(ready, s)
			continue
		}
		p.drop(s, err)
		if isCode(err, pkcs11.CKR_SESSION_COUNT) {
			p.mu.Lock()
			p.learnLocked(t, len(ready))
			p.mu.Unlock()
			break
		}
		for _, s := range ready { // it is another that may hang
			p.drop(s, nil)
		}
		return err
	}
	p.goUp(t, ready)
	return nil
}

// bringBack brings the token back. It reports false when there is no more to do.
func (t *token) bringBack() bool {
	r := t.lost()
	for {
		pause, more := t.pauseBefore()
		if !more || !t.pool.sleep(pause) || !t.settle() {
			return false
		}
		err := t.connect()
		if err == nil {
			r.ended()
			return true
		}
		t.failed(err)
		r.inVain(err)
		if h, ok := errors.AsType[*keys.HungError](err); ok && !t.pool.wait(h.Returned) {
			return false // never is there more than one attempt that hangs
		}
	}
}

// pauseBefore is how long to wait before the next attempt, which callers are
// told, and whether there is to be one.
func (t *token) pauseBefore() (pause time.Duration, more bool) {
	t.pool.mu.Lock()
	defer t.pool.mu.Unlock()
	switch {
	case t.state == Refused && !errors.Is(t.cause, errFlags):
		return 0, false
	case t.state == Refused:
		pause = mostPause
	case t.atOnce:
		t.atOnce = false
		t.next = time.Now()
		return 0, true
	case t.pause > 0: // tokens that went down together need not come back together
		pause = t.pause - rand.N(t.pause/4)
	}
	t.pause = min(max(2*t.pause, leastPause), mostPause)
	t.next = time.Now().Add(pause)
	return pause, true
}

// settle waits until no session of before may call the device any more, and
// there is room for one. It reports false when the pool is closed.
func (t *token) settle() bool {
	for {
		t.pool.mu.Lock()
		settled := t.open() == t.count[hung] && t.count[hung] < t.limit
		t.pool.mu.Unlock()
		if settled {
			return true
		}
		if !t.pool.wait(t.wake) {
			return false
		}
	}
}

// failed takes in that an attempt was in vain.
func (t *token) failed(err error) {
	t.pool.mu.Lock()
	defer t.pool.mu.Unlock()
	t.cause = err
	t.pause = max(t.pause, leastPause)
	t.state = Down
	if errors.Is(err, ErrPIN) {
		t.state = Refused
	}
	if m := meaningOf(err); m.class != classNone {
		t.errors[m.class]++
	}
	t.pool.shrinkLocked()
}

// An absence is a token's being away, of which the log tells.
type absence struct {
	token    *token
	since    time.Time
	logged   time.Time
	attempts int // in vain
	refused  bool
}

// lost says that the token is away.
func (t *token) lost() *absence {
	t.pool.mu.Lock()
	cause, r := t.cause, &absence{token: t, since: t.since, refused: t.state == Refused}
	t.pool.mu.Unlock()
	t.pool.log.LogAttrs(context.Background(), slog.LevelError, "PKCS#11 token down", r.attrs(cause)...)
	return r
}

// attrs are those of a log line.
func (a *absence) attrs(err error) []slog.Attr {
	a.logged = time.Now()
	return []slog.Attr{slog.String("token", a.token.name), slog.String("error", err.Error())}
}

// inVain takes in that an attempt was, and has the module initialized anew if
// that may help.
func (a *absence) inVain(err error) {
	a.attempts++
	refused := errors.Is(err, ErrPIN)
	if a.attempts == 1 || refused != a.refused || time.Since(a.logged) >= logPause {
		a.token.pool.log.LogAttrs(context.Background(), slog.LevelError, "PKCS#11 token still down", a.attrs(err)...)
	}
	a.refused = refused
	uninitialized := isCode(err, pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED)
	if uninitialized || a.attempts >= restartsAfter && !permanent(err) && !isHung(err) {
		a.token.restart(uninitialized)
	}
}

// restart has the token's module initialized anew. If that was of use, the next
// attempt is at once.
func (t *token) restart(uninitialized bool) {
	p := t.pool
	p.mu.Lock()
	init := t.init
	p.mu.Unlock()
	done, err := t.module.restart(t, init, uninitialized, p.cfg.CallTimeout)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case done:
		t.reinitialized++
		t.atOnce = true
	case err == nil, errors.Is(err, errInUse), errors.Is(err, errRestartLater): // as before
	default:
		t.cause = err
	}
}

// ended says that the token is back.
func (a *absence) ended() {
	a.token.pool.log.LogAttrs(context.Background(), slog.LevelInfo, "PKCS#11 token back",
		slog.String("token", a.token.name), slog.Duration("after", time.Since(a.since)), slog.Int("attempts", a.attempts+1))
}
