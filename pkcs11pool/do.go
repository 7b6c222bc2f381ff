package pkcs11pool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/secsy-pki/secsy-pki/keys"
)

const maxAttempts = 3

// do has some session do a job, and another if the first can't have done it, or
// if doing it twice is harmless.
func (p *Pool) do(ctx context.Context, j *job) error {
	var a attempts
	for {
		s, err := p.borrow(ctx, j, &a)
		if err != nil {
			return a.instead(err)
		}
		err = s.call(j)
		if err == nil {
			p.giveBack(s, outcome{ok: true, took: s.took, mechanism: j.mechanism, fate: s.fate(classNone), why: s.calls.why}, false)
			return nil
		}
		o := s.outcome(j, err)
		p.giveBack(s, o, a.with(s.token) > 0)
		if err := a.conclude(ctx, j, o); err != nil {
			return p.counted(err)
		}
	}
}

// An outcome is what came of a job, and what that means.
type outcome struct {
	ok        bool
	took      time.Duration // if it is ok
	mechanism string        // of the job, if it is ok

	token *token
	err   error // for its caller
	fate  class // of the session and the token
	why   error // of that fate
	// again says that another session may do better.
	again bool
	// done says that the device may have done what must not be done twice.
	done bool
}

// outcome judges an error of a job.
func (s *session) outcome(j *job, err error) outcome {
	o := outcome{token: s.token, err: s.token.named(j, err), why: err, done: true}
	if isHung(err) {
		return o // and what the session holds is not ours to look at
	}
	if j.dataFault != nil && j.dataFault(err) {
		return o
	}
	m := meaningOf(err)
	if o.fate = s.fate(m.class); o.fate > m.class && s.calls.why != nil {
		o.why = s.calls.why
	}
	o.done = s.conn.effect && !m.idle
	o.again = m.class >= classHandle && !errors.Is(err, errPanic)
	if m.class == classNone {
		o.err = err // the job's own
	}
	return o
}

// fate is what becomes of the session after a job that ended with an error of
// class c, whatever it has overcome before.
func (s *session) fate(c class) class {
	if s.calls.active { // half done: the next job would fall over it
		c = max(c, classSession)
	}
	return max(c, s.calls.worst)
}

// named says whose error it is.
func (t *token) named(j *job, err error) error {
	return fmt.Errorf("pkcs11pool: %s: token %s: %w", j.op, t.name, err)
}

// attempts are those that failed at one job.
type attempts struct {
	n      int
	tokens [maxAttempts]*token
	last   error
	unsure error // of one that may have done the job
}

// with is how many were made with t.
func (a *attempts) with(t *token) int {
	n := 0
	for _, tried := range a.tokens[:a.n] {
		if tried == t {
			n++
		}
	}
	return n
}

// less reports whether t is to be tried before u.
func (a *attempts) less(t, u *token) bool {
	if n, m := a.with(t), a.with(u); n != m {
		return n < m
	}
	return t.inFlight() < u.inFlight()
}

// conclude returns nil if the job is to be tried again, and else what its caller
// is told.
func (a *attempts) conclude(ctx context.Context, j *job, o outcome) error {
	a.tokens[a.n] = o.token
	a.n++
	a.last = o.err
	if o.done && o.again {
		a.unsure = o.err
	}
	switch {
	case !o.again && a.unsure != nil && errors.Is(o.err, errUnable):
		return a.unsure
	case !o.again:
		return o.err
	case a.unsure != nil && !j.repeatable && !keys.IsRepeatable(ctx):
		return a.unsure
	case a.n < maxAttempts:
		return nil
	case a.unsure != nil:
		return a.unsure
	default:
		return busyFor(deviceError, a.last)
	}
}

// instead is what a caller is told when there is no session for an attempt: what
// came of those before, if that was anything.
func (a *attempts) instead(err error) error {
	if a.unsure != nil {
		return a.unsure
	}
	if b, ok := errors.AsType[*keys.BusyError](err); ok && a.last != nil {
		b.Err = errors.Join(b.Err, a.last)
	}
	return err
}

// counted counts a refusal among the others.
func (p *Pool) counted(err error) error {
	if errors.Is(err, keys.ErrBusy) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.refusals[deviceError]++
	}
	return err
}
