package pkcs11pool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

// A reason says why the device is not called.
type reason uint8

const (
	queueFull reason = iota
	timedOut
	canceled
	unavailable
	deviceError
	closedPool
	reasons
)

func (r reason) String() string {
	return [...]string{"queue_full", "timeout", "canceled", "unavailable", "device_error", "closed"}[r]
}

const maxStrikes = 3 // suspicious errors in a row, after which a token is down

// A waiter is somebody in the queue.
type waiter struct {
	job        *job
	verdict    chan verdict // has room for the one that there is
	queued     bool         // guarded by the pool's mutex, as are the links
	prev, next *waiter
}

// A verdict is a session, or why there is none.
type verdict struct {
	session *session
	err     error
}

// A queue has those who wait, the first of them first.
type queue struct {
	first, last *waiter
	n           int
}

func (q *queue) add(w *waiter) {
	w.prev, w.queued = q.last, true
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
	q.n++
}

func (q *queue) remove(w *waiter) {
	if w.prev == nil {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.queued = false // the link to the next stays, for whoever walks the queue
	q.n--
}

// can reports whether a token could do j, if it were up.
func (t *token) can(j *job) bool { return j.on == nil || j.on(t) }

// borrow lends a session of a token that can do j, at best one that has not
// failed at it. Whoever has it gives it back.
func (p *Pool) borrow(ctx context.Context, j *job, failed *attempts) (*session, error) {
	gone := ctx.Err()
	p.mu.Lock()
	if gone == nil && !p.closed {
		if s := p.takeLocked(j, failed); s != nil {
			p.mu.Unlock()
			return s, nil
		}
	}
	w, err := p.joinLocked(j, gone)
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return p.awaitVerdict(ctx, w)
}

// reasonOf says in one word why a context has ended.
func reasonOf(err error) reason {
	if errors.Is(err, context.DeadlineExceeded) {
		return timedOut
	}
	return canceled
}

// takeLocked takes an idle session: of a token that has not failed at j before
// one that has, and of the least busy ones of them. A token that is less busy
// still, for want of sessions, gets one more.
func (p *Pool) takeLocked(j *job, failed *attempts) *session {
	var best *token
	p.turn++
	for i := range p.tokens {
		t := p.tokens[(p.turn+i)%len(p.tokens)]
		if len(t.idle) == 0 || t.state != Up || j.rw && t.rw || !t.can(j) {
			continue
		}
		if best == nil || failed.less(t, best) {
			best = t
		}
	}
	if best == nil {
		return nil
	}
	if len(p.tokens) > 1 {
		if t := p.roomLocked(j); t != nil && len(t.idle) == 0 && t.inFlight() < best.inFlight() {
			p.openLocked(t)
		}
	}
	s := best.idle[len(best.idle)-1]
	best.idle = best.idle[:len(best.idle)-1]
	p.lendLocked(s, j)
	return s
}

func (p *Pool) lendLocked(s *session, j *job) {
	t := s.token
	p.moveLocked(s, lent)
	t.borrows++
	if j.rw {
		s.rw, t.rw = true, true
	}
}

func (p *Pool) moveLocked(s *session, to sessionState) {
	s.token.count[s.state]--
	s.token.count[to]++
	s.state = to
}

// joinLocked queues for a session, if one can be hoped for.
func (p *Pool) joinLocked(j *job, gone error) (*waiter, error) {
	switch {
	case gone != nil:
		return nil, p.refusedLocked(reasonOf(gone), gone)
	case p.closed:
		return nil, p.refusedLocked(closedPool, errClosed)
	case !p.hopeLocked(j):
		return nil, p.countLocked(unavailable, p.unavailableLocked(j))
	case p.queue.n >= p.cfg.MaxQueue:
		return nil, p.refusedLocked(queueFull, nil)
	}
	w := &waiter{job: j, verdict: make(chan verdict, 1)}
	p.queue.add(w)
	p.waits++
	p.growLocked()
	return w, nil
}

// hopeLocked reports whether some token that can do j is up.
func (p *Pool) hopeLocked(j *job) bool {
	for _, t := range p.tokens {
		if t.state == Up && t.can(j) {
			return true
		}
	}
	return false
}

// awaitVerdict waits for the verdict, or for the end of ctx.
func (p *Pool) awaitVerdict(ctx context.Context, w *waiter) (*session, error) {
	began := p.now()
	var v verdict
	select {
	case v = <-w.verdict:
	case <-ctx.Done():
		v = p.leaveQueue(ctx, w)
	}
	p.mu.Lock()
	p.waited += p.now() - began
	p.mu.Unlock()
	return v.session, v.err
}

// leaveQueue takes somebody out of the queue. A session that has just been lent
// goes to the next.
func (p *Pool) leaveQueue(ctx context.Context, w *waiter) verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.queued {
		p.queue.remove(w)
	} else if v := <-w.verdict; v.session != nil {
		p.returnLocked(v.session)
	} else {
		return v
	}
	return verdict{err: p.refusedLocked(reasonOf(ctx.Err()), ctx.Err())}
}

// refusedLocked counts a refusal and puts it into words.
func (p *Pool) refusedLocked(why reason, err error) error {
	return p.countLocked(why, busyFor(why, err))
}

func (p *Pool) countLocked(why reason, err error) error {
	p.refusals[why]++
	return err
}

// unavailableLocked says that no token that can do j is up, and when the next
// attempt is to bring one back.
func (p *Pool) unavailableLocked(j *job) *keys.BusyError {
	e := busyFor(unavailable, nil)
	var soonest time.Time
	for _, t := range p.tokens {
		if !t.can(j) {
			continue
		}
		e.Err = t.cause
		if isHung(e.Err) { // that hung for another; this one's device was not called
			e.Err = errors.New(e.Err.Error())
		}
		if t.state == Down && (soonest.IsZero() || t.next.Before(soonest)) {
			soonest = t.next
		}
	}
	switch {
	case soonest.IsZero():
		e.RetryAfter = mostPause
	default:
		e.RetryAfter = min(max(time.Until(soonest), time.Second), mostPause)
	}
	return e
}

// returnLocked takes back a session that is as it should be: for the first who
// waits for such a one, or to be idle.
func (p *Pool) returnLocked(s *session) {
	t := s.token
	if s.rw {
		s.rw, t.rw = false, false
	}
	if t.state != Up || s.conn.epoch != t.epoch.Load() || p.drained {
		p.endLocked(s)
		return
	}
	for w := p.queue.first; w != nil; w = w.next {
		if w.job.rw && t.rw || !t.can(w.job) {
			continue
		}
		p.queue.remove(w)
		p.lendLocked(s, w.job)
		w.verdict <- verdict{session: s} // never waits
		return
	}
	p.moveLocked(s, idle)
	t.idle = append(t.idle, s)
	p.shrinkLocked() // what the last job has found out may leave others without hope
	p.backLocked()
}

// backLocked tells Close that it may have what it waits for.
func (p *Pool) backLocked() {
	if !p.closed {
		return
	}
	select {
	case p.back <- struct{}{}:
	default:
	}
}

// endLocked has a session's goroutine close it.
func (p *Pool) endLocked(s *session) {
	p.moveLocked(s, closing)
	go func() {
		if err := s.call(&closeJob); !isHung(err) {
			p.ended(s)
		}
	}()
}

func (p *Pool) endIdleLocked(t *token) {
	for _, s := range t.idle {
		p.endLocked(s)
	}
	t.idle = t.idle[:0]
}

// ended takes in that a session's goroutine has made its last call, and left.
func (p *Pool) ended(s *session) {
	s.timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	t := s.token
	t.count[s.state]--
	if s.returned != nil {
		close(s.returned)
	}
	t.nudge()
	p.backLocked()
	p.balanceLocked()
}

// hungLocked takes in that a call of s has taken too long.
func (p *Pool) hungLocked(s *session, err error) {
	t := s.token
	if s.rw {
		s.rw, t.rw = false, false
	}
	vain := s.state == opening
	p.moveLocked(s, hung)
	t.hangs++
	if t.state == Up && s.conn.epoch == t.epoch.Load() && (t.count[hung] >= t.maxHung() || vain && t.alive() == 0) {
		p.downLocked(t, err)
	}
	t.nudge()
	p.backLocked()
	p.balanceLocked()
}

// giveBack takes back a session after a job, and draws the conclusions from how
// that went. What is said again by a job that has failed before counts for less.
func (p *Pool) giveBack(s *session, o outcome, again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.state == hung {
		return // it is its goroutine's
	}
	t := s.token
	if o.fate != classNone {
		t.errors[o.fate]++
	}
	if o.ok {
		t.latency.observe(o.mechanism, o.took)
	}
	if t.state == Up && s.conn.epoch == t.epoch.Load() {
		p.concludeLocked(t, o, again)
	}
	if o.fate < classSession {
		p.returnLocked(s)
		return
	}
	if s.rw {
		s.rw, t.rw = false, false
	}
	t.wanting++
	p.endLocked(s)
	p.balanceLocked()
}

// concludeLocked is what the fate of one session means for its token.
func (p *Pool) concludeLocked(t *token, o outcome, again bool) {
	if o.ok {
		t.strikes, t.worked = 0, true
	}
	switch o.fate {
	case classLimit:
		p.endIdleLocked(t) // whoever wants one that writes needs room for it
	case classSession:
		// One that the module does not know any more is seldom the only one:
		// devices close what was idle for long, and those were so for longer.
		if isCode(o.why, pkcs11.CKR_SESSION_HANDLE_INVALID) || isCode(o.why, pkcs11.CKR_SESSION_CLOSED) {
			t.wanting += len(t.idle)
			p.endIdleLocked(t)
			t.shaken.Add(1) // it may have been restarted
		}
	case classSuspect:
		if !again { // a job that the device can't do is not the end of the device
			p.strikeLocked(t, o.why)
		}
	case classToken:
		p.downLocked(t, o.why)
	case classPIN:
		p.refuseLocked(t, o.why)
	default: // of no consequence
	}
}

// strikeLocked counts one more suspicious error.
func (p *Pool) strikeLocked(t *token, err error) {
	if t.strikes++; t.strikes >= maxStrikes {
		p.downLocked(t, err)
	}
}

// downLocked takes a token out of use, and has its keeper bring it back. Whoever
// waits in vain now is told at once.
func (p *Pool) downLocked(t *token, cause error) {
	t.state, t.cause, t.since, t.next = Down, cause, time.Now(), time.Now()
	t.epoch.Add(1)
	t.strikes, t.wanting = 0, 0
	if t.worked {
		t.pause = 0
	}
	p.endIdleLocked(t)
	p.shrinkLocked()
	t.nudge()
}

// refuseLocked takes a token out of use whose PIN must not be tried again.
func (p *Pool) refuseLocked(t *token, cause error) {
	if !errors.Is(cause, ErrPIN) {
		cause = fmt.Errorf("%w: %w", ErrPIN, cause)
	}
	p.downLocked(t, cause)
	t.state = Refused
}

// shrinkLocked turns those away for whom no token is up any more.
func (p *Pool) shrinkLocked() {
	for w := p.queue.first; w != nil; w = w.next {
		if !p.hopeLocked(w.job) {
			p.queue.remove(w)
			w.verdict <- verdict{err: p.countLocked(unavailable, p.unavailableLocked(w.job))} // never waits
		}
	}
}

// refuseAllLocked turns everybody away.
func (p *Pool) refuseAllLocked(why reason, err error) {
	for w := p.queue.first; w != nil; w = w.next {
		p.queue.remove(w)
		w.verdict <- verdict{err: p.refusedLocked(why, err)} // never waits
	}
}

// balanceLocked opens the sessions that are wanted: for those who wait, and up to
// the least.
func (p *Pool) balanceLocked() {
	p.growLocked()
	for _, t := range p.tokens {
		for t.alive() < p.cfg.MinSessions && p.mayOpenLocked(t) {
			p.openLocked(t)
		}
	}
}

// growLocked opens one more session for each who waits and for whom none is being
// opened, where there is room.
func (p *Pool) growLocked() {
	coming := 0
	for _, t := range p.tokens {
		if t.state == Up {
			coming += t.count[opening]
		}
	}
	for w := p.queue.first; w != nil && coming < p.queue.n; w = w.next {
		if t := p.roomLocked(w.job); t != nil {
			p.openLocked(t)
			coming++
		}
	}
}

// mayOpenLocked reports whether a token may have one more session now.
func (p *Pool) mayOpenLocked(t *token) bool {
	return t.state == Up && !p.closed && !t.isFirstComing() && t.open() < t.limit &&
		(t.alive() == 0 || !time.Now().Before(t.opening.next))
}

// roomLocked is the least busy token that can do j and may have one more session.
func (p *Pool) roomLocked(j *job) *token {
	var best *token
	for _, t := range p.tokens {
		if !p.mayOpenLocked(t) || j.rw && t.rw || !t.can(j) {
			continue
		}
		if best == nil || t.inFlight() < best.inFlight() {
			best = t
		}
	}
	return best
}

// openLocked opens one more session.
func (p *Pool) openLocked(t *token) {
	s := p.newSessionLocked(t, t.init)
	go func() { p.openedSession(s, s.call(&open)) }()
}

// openedSession takes in what came of opening a session.
func (p *Pool) openedSession(s *session, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := s.token
	if err == nil {
		t.opening = retries{}
		if t.wanting > 0 {
			t.wanting--
			t.reopened++
		}
		t.limit = max(t.limit, t.certain()+1) // there was room for one more than was learnt
		p.returnLocked(s)
		p.balanceLocked()
		t.nudge() // it may be one too many some day
		return
	}
	if s.state == hung {
		return
	}
	p.endLocked(s)
	if t.state != Up || s.conn.epoch != t.epoch.Load() {
		return
	}
	switch c := meaningOf(err).class; c {
	case classLimit:
		p.learnLocked(t, t.certain())
	case classPIN:
		t.errors[c]++
		p.refuseLocked(t, err)
	case classToken:
		t.errors[c]++
		p.downLocked(t, err)
	default: // none of the others is an answer to that
		t.opening.inVain() // as long as others work, nobody is in a hurry
		t.nudge()
		t.errors[classSuspect]++
		p.strikeLocked(t, err)
	}
	if t.state == Up && t.alive() == 0 {
		p.downLocked(t, err) // there is none that those who wait could hope for
	}
}

// prepare makes a session of a token that is not up yet.
func (p *Pool) prepare(t *token, init uint32) *session {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.init = init
	return p.newSessionLocked(t, init)
}

// drop ends a session that nobody has, unless a call hangs.
func (p *Pool) drop(s *session, err error) {
	if isHung(err) {
		return // it is its goroutine's
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLocked(s)
}

// goUp puts a token with its first sessions into use.
func (p *Pool) goUp(t *token, ready []*session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.everUp {
		t.recovered++
	}
	t.state, t.cause, t.everUp, t.worked = Up, nil, true, false
	t.strikes, t.wanting, t.opening = 0, 0, retries{}
	for _, s := range ready {
		p.returnLocked(s)
	}
	p.balanceLocked()
}

// restarted takes in that the module of t was initialized anew: all sessions of
// before are gone.
func (p *Pool) restarted(t *token) {
	now := t.module.init()
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.state == Up && t.init != now {
		p.downLocked(t, errStale)
	}
}

// learnLocked takes in that the token has no more than n sessions for us.
func (p *Pool) learnLocked(t *token, n int) {
	t.limit, t.learned = max(1, n), time.Now()
	t.errors[classLimit]++
	t.nudge()
}
