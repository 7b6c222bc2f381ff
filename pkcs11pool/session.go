package pkcs11pool

import (
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

// A job is something to be done with one session of a token.
type job struct {
	op        string // what it is, in errors: "signing with key issuing"
	mechanism string // the label of its time in metrics; "": not measured
	// on says which tokens can do it; nil: all. It is asked under the pool's
	// mutex: it must neither wait nor call the pool.
	on         func(*token) bool
	rw         bool // it needs a read-write session
	repeatable bool // doing it twice is harmless
	// dataFault reports that an error is the fault of the data that a stranger
	// sent: it counts for nothing, and the session stays in use. Nil: none is.
	dataFault func(error) bool
	// run calls the device. It runs in the session's goroutine, and may still be
	// running when do has returned with a *keys.HungError: what it writes to must
	// then be read by nobody, and what it reads be changed by nobody.
	run     func(c *conn) error
	signing *signing // to be run instead: what is done most often needs no closure
}

func (j *job) do(c *conn) error {
	if j.signing != nil {
		return j.signing.run(c)
	}
	return j.run(c)
}

// A conn is a session in the hands of a job.
type conn struct {
	cryptoki
	session pkcs11.SessionHandle
	token   *token
	slot    uint // in which the token is for as long as the session lasts
	// epoch changes whenever the token has been away: object handles of another
	// epoch may mean other objects.
	epoch  uint64
	writes bool // it is a read-write one
	// effect is set by the job once it has come to the call that must not happen
	// twice. An error from before means that the device did nothing.
	effect bool
}

// A session is a session of a token and the goroutine that alone calls the
// device with it. Whoever has it may hand over one job after the other. A call
// that takes too long takes the session from its owner: then it belongs to its
// goroutine, which ends it when the call returns.
//
// That goroutine is a coroutine of iter.Pull, as nothing is to be done by two at
// a time: whoever hands over a job stands still while it is done, and Go changes
// from one to the other on the thread that they have, with no scheduler and no
// other thread to be woken. Standing still is all that ties him to it. So when a
// call hangs, the goroutine of the timer yields in its place, stands still for
// him, and he goes on. ADR 11 has what this rests on.
//
// The runtime ends the program if a goroutine that is locked to its thread
// switches to a coroutine that was made by one that is not. So nobody uses a pool
// who has called runtime.LockOSThread.
type session struct {
	token *token
	init  uint32 // which initialization of the module it is of
	conn  conn   // in the hands of the goroutine, between call and its return
	calls calls
	timer *time.Timer
	took  time.Duration // by the newest job
	last  time.Duration // when that ended, in the pool's time

	job   *job                 // what the goroutine is to do
	next  func() (error, bool) // has it do the job; nil before the first
	yield func(error) bool     // goes on with whoever called next
	gone  chan struct{}        // closed once whoever had a call that hangs is back from next

	began   atomic.Int64  // when the newest call began, in the pool's time
	phase   atomic.Uint64 // number of the job, and what is with it
	watched atomic.Bool   // the timer will have a look, be it too early
	// halt is not zero once no call must be made any more: one has taken too long,
	// or the module has given the handle to another session. C reads it, too.
	halt atomic.Uint32

	// Guarded by the pool's mutex.
	state    sessionState
	rw       bool          // lent for a read-write job
	returned chan struct{} // closed when a hung call has returned
}

type sessionState uint8

// Opening, of those that are not lent; closing and hung, of those that will
// never be.
const (
	opening sessionState = iota
	idle
	lent
	closing
	hung
	sessionStates
)

// The lowest bits of a phase.
const (
	running = 1 << iota
	overdue
	nextJob
)

// newSessionLocked makes a session whose first job is to open it.
func (p *Pool) newSessionLocked(t *token, init uint32) *session {
	s := &session{token: t, init: init, gone: make(chan struct{})}
	s.calls = calls{lib: t.module.lib, s: s}
	s.calls.whole, _ = t.module.lib.(wholeSigner)
	s.conn = conn{cryptoki: &s.calls, token: t, slot: t.slot, epoch: t.epoch.Load()}
	s.watched.Store(true)
	s.timer = time.AfterFunc(p.cfg.CallTimeout, s.look)
	t.count[opening]++
	return s
}

// call has the session's goroutine do a job, and waits for it, or until it hangs.
func (s *session) call(j *job) error {
	if s.next == nil { // here, as the first who calls is a goroutine of the pool's
		s.next, _ = iter.Pull(s.work) // it ends by itself, after closeJob or a call that hung
	}
	s.job = j
	err, _ := s.next()
	if s.phase.Load()&overdue != 0 {
		close(s.gone)
	}
	return err
}

// work is the session's goroutine.
func (s *session) work(yield func(error) bool) {
	s.yield = yield
	for {
		err, inTime := s.attempt(s.job)
		switch {
		case !inTime:
			<-s.gone // as leaving writes what next reads
			return
		case s.job == &closeJob:
			return
		}
		yield(err)
	}
}

var closeJob = job{run: func(*conn) error { return nil }}

// attempt does one job, under the watch of the timer. It reports false if it took
// too long, after which there is nobody left to tell.
func (s *session) attempt(j *job) (err error, inTime bool) {
	m := s.token.module
	s.conn.effect, s.calls.active, s.calls.worst, s.calls.why = false, false, classNone, nil
	if !m.enter(s.init) {
		if j == &closeJob && s.conn.session != 0 {
			s.token.there.Add(-1) // the module has closed it
		}
		return errStale, true
	}
	began := s.touch()
	s.calls.touched = j.signing != nil          // what else is done may wait before it calls
	phase := s.phase.Load() + nextJob | running // between jobs it is ours alone
	s.phase.Store(phase)
	if !s.watched.Load() {
		s.watch(s.token.pool.cfg.CallTimeout)
	}
	if j == &closeJob {
		s.close()
	} else {
		err = s.run(j)
	}
	if s.phase.CompareAndSwap(phase, phase&^running) {
		s.last = s.token.pool.now()
		s.took = s.last - began
		m.exit()
		return err, true
	}
	s.close()
	m.exit()
	return nil, false
}

// run runs a job. A panic in it is its own fault, and not the end of the program.
func (s *session) run(j *job) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errPanic, r)
		}
	}()
	if j.rw {
		return s.runReadWrite(j)
	}
	return j.do(&s.conn)
}

// runReadWrite runs a job with a session of its own, which alone may change
// things, if the token knows the difference.
func (s *session) runReadWrite(j *job) error {
	if s.conn.writes {
		return j.do(&s.conn)
	}
	rw, err := s.calls.OpenSession(s.conn.slot, pkcs11.CKF_SERIAL_SESSION|pkcs11.CKF_RW_SESSION)
	if err != nil {
		return err
	}
	ro := s.conn.session
	s.conn.session = rw
	defer func() {
		s.conn.session = ro
		_ = s.calls.CloseSession(rw) // a failure is remembered in calls
		s.calls.active = false
	}()
	return j.do(&s.conn)
}

// open is the job that opens a further session of a token. With the last one of
// before its login has ended, too.
var open = job{op: "opening a session", run: func(c *conn) error {
	alone, err := c.open()
	if err != nil {
		return err
	}
	if !alone {
		return c.token.stillLoggedIn(c)
	}
	info, err := c.GetTokenInfo(c.slot)
	if err != nil {
		return err
	}
	if !c.token.fits(site{c.slot, info}) { // and must not get this one's PIN
		return fmt.Errorf("%w: slot %d has another", errNoToken, c.slot)
	}
	return c.token.login(c, info)
}}

// open opens the session at the device, and reports whether it is the only one
// of the token there.
func (c *conn) open() (alone bool, err error) {
	c.session, err = c.openAsCan()
	if alone = err == nil && c.token.there.Add(1) == 1; alone {
		c.token.shaken.Add(1)
	}
	return alone, err
}

// openAsCan opens a read-only session, as it can do no harm, or a read-write one if
// the token knows no other.
func (c *conn) openAsCan() (pkcs11.SessionHandle, error) {
	if !c.token.writes.Load() {
		h, err := c.OpenSession(c.slot, pkcs11.CKF_SERIAL_SESSION)
		if !isReadOnlyRefused(err) {
			return h, err
		}
	}
	h, err := c.OpenSession(c.slot, pkcs11.CKF_SERIAL_SESSION|pkcs11.CKF_RW_SESSION)
	if err == nil {
		c.writes = true
		c.token.writes.Store(true)
	}
	return h, err
}

// isReadOnlyRefused reports whether an error may mean that a token has no read-only
// sessions, for which there is no code.
func isReadOnlyRefused(err error) bool {
	return isCode(err, pkcs11.CKR_SESSION_PARALLEL_NOT_SUPPORTED) || isCode(err, pkcs11.CKR_SESSION_READ_WRITE_SO_EXISTS) ||
		meaningOf(err).class == classData
}

// close closes the session at the device, if it was ever opened.
func (s *session) close() {
	if s.conn.session != 0 {
		s.token.there.Add(-1)
		_ = s.calls.CloseSession(s.conn.session)
	}
}

// touch says that a call begins now.
func (s *session) touch() time.Duration {
	now := s.token.pool.now()
	s.began.Store(int64(now))
	return now
}

// abandoned reports whether no call must be made any more.
func (s *session) abandoned() bool { return s.halt.Load() != 0 || s.phase.Load()&overdue != 0 }

// watch has the timer have a look after d.
func (s *session) watch(d time.Duration) {
	s.watched.Store(true)
	s.timer.Reset(d)
}

// look is called by the timer: has the newest call taken too long?
func (s *session) look() {
	if err := s.takeAway(); err != nil {
		s.yield(err) // until the call has returned and the session's goroutine is no more
		s.token.pool.ended(s)
	}
}

// takeAway takes the session from its owner if the newest call has taken too
// long, and returns what he is to be told.
func (s *session) takeAway() error {
	p := s.token.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	s.watched.Store(false) // before the phase is read: a job that it says nothing of sees this
	phase := s.phase.Load()
	if phase&(running|overdue) != running {
		return nil
	}
	if left := p.cfg.CallTimeout - (p.now() - time.Duration(s.began.Load())); left > 0 {
		s.watch(left)
		return nil
	}
	if !s.phase.CompareAndSwap(phase, phase|overdue) {
		return nil
	}
	s.halt.Store(1)
	s.returned = make(chan struct{})
	err := &keys.HungError{After: p.cfg.CallTimeout, Returned: s.returned}
	p.hungLocked(s, err)
	return err
}
