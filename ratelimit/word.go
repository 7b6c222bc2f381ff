package ratelimit

import (
	"math"
	"sync/atomic"
)

// A word is a bucket that all callers share: one TAT in a cache line of its own.
//
// It has one limit for life. A new limit comes with a new word, to which the old
// one is bequeathed: it is sealed, so that what is spent from it is counted
// before or refused, and whoever comes to the new one first reads the will. The
// seal is the sign bit, as no TAT is negative.
type word struct {
	_     [64]byte
	state atomic.Int64
	_     [56]byte

	limit limit
	at    int64                // when the limit came into force
	prev  atomic.Pointer[word] // until its will was read
	next  atomic.Pointer[word] // to which it was bequeathed
}

const (
	seal = math.MinInt64
	// unread is the state of a word that has yet to read its predecessor's will.
	unread = -1
)

// succeed makes w the successor of prev, before anybody has seen w.
func (w *word) succeed(prev *word, at int64) {
	w.at = at
	w.state.Store(unread)
	w.prev.Store(prev)
	prev.next.Store(w)
}

// orNil is nil for a word that limits nothing.
func (w *word) orNil() *word {
	if w == nil || !w.limit.active {
		return nil
	}
	return w
}

// load returns the TAT, and false if the word is sealed.
func (w *word) load() (int64, bool) {
	v := w.state.Load()
	for v == unread {
		v = w.inherit()
	}
	return v, v >= 0
}

// inherit reads the will, if nobody else has, and returns the state.
func (w *word) inherit() int64 {
	if prev := w.prev.Load(); prev != nil {
		tat := prev.state.Or(seal) &^ seal
		w.state.CompareAndSwap(unread, convert(tat, &prev.limit, &w.limit, w.at))
	}
	return w.state.Load()
}

// settle ends the inheritance: the predecessor can be forgotten.
func (w *word) settle() {
	w.inherit()
	w.prev.Store(nil)
}

// A payment is what was taken from a word, so that it can be given back.
type payment struct{ before, after, price int64 }

// take takes c from the bucket. Not ok means that the word is sealed, and that
// the settings in force are others.
func (w *word) take(now int64, c Cost) (p payment, a answer, ok bool) {
	for {
		tat, ok := w.load()
		if !ok {
			return payment{}, answer{}, false
		}
		a := w.limit.ask(tat, now, c, 0)
		if !a.ok() {
			return payment{}, a, true
		}
		if w.state.CompareAndSwap(tat, a.tat) {
			return payment{before: tat, after: a.tat, price: a.tat - max(tat, now)}, a, true
		}
	}
}

// look asks like take, and takes nothing.
func (w *word) look(now int64, c Cost) (a answer, ok bool) {
	tat, ok := w.load()
	if !ok {
		return answer{}, false
	}
	return w.limit.ask(tat, now, c, 0), true
}

// giveBack undoes a payment: to the bit, if nobody has paid since.
//
// If somebody has, what time has meanwhile given back is not given back again:
// others may have found the bucket full. A payment moved the TAT over the
// stretch from after-price to after, and what lies behind us of it is repaid.
func (w *word) giveBack(p payment, clock func() int64) {
	if w.state.CompareAndSwap(p.after, p.before) {
		return
	}
	back := min(p.price, p.after-clock())
	for back > 0 {
		v := w.state.Load()
		if v >= 0 {
			if w.state.CompareAndSwap(v, v-back) {
				return
			}
			continue
		}
		// Sealed meanwhile. The heir got the debt along with the rest.
		heir := w.next.Load()
		_, _ = heir.load() // so that it has its own state
		tat := v &^ seal
		back = convert(tat, &w.limit, &heir.limit, heir.at) - convert(tat-back, &w.limit, &heir.limit, heir.at)
		w = heir
	}
}
