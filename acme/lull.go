package acme

import (
	"sync"
	"time"
)

// maxLull is the longest wait, unless the device asks for more.
const maxLull = 10 * time.Second

// A lull keeps the background from hammering at a busy device: every try spends
// a serial. At each busy answer half as many orders are tried at a time, down to
// one, after a wait; each success doubles them again. Clients who wait for an
// answer are not held up by it: what is busy for one account need not be so for
// another.
type lull struct {
	full int

	mu    sync.Mutex // guards what follows
	width int        // orders at a time
	busy  int        // busy answers since the last success
	until time.Time
}

func newLull(full int) *lull { return &lull{full: full, width: full} }

// room is how many orders may be tried at a time now.
func (l *lull) room(now time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Before(l.until) {
		return 0
	}
	return l.width
}

func (l *lull) refused(now time.Time, retry time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wait := max(retry, min(retry<<min(l.busy, 5), maxLull))
	if until := now.Add(wait); until.After(l.until) {
		l.until = until
	}
	l.busy++
	l.width = max(1, l.width/2)
}

func (l *lull) served() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy, l.until, l.width = 0, time.Time{}, min(l.full, 2*l.width)
}
