package ocsp

import (
	"sync"
	"sync/atomic"
	"time"
)

// signingCalm is how long no signature must have failed before the trouble with
// them is over: while some fail and some don't, it goes on.
const signingCalm = 10 * time.Second

// A trouble is something that fails for a while, of which the log has two lines:
// one when it begins, and one when it is over.
type trouble struct {
	calm time.Duration // how long nothing must have failed before it is over

	on atomic.Bool // whether there is any; what works every time looks at nothing else

	mu       sync.Mutex // guards what follows
	since    time.Time
	last     time.Time
	failures int
}

// fails notes a failure, and reports whether the trouble begins with it.
func (t *trouble) fails(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	begins := !t.on.Load()
	if begins {
		t.since, t.failures = now, 0
		t.on.Store(true)
	}
	t.failures++
	t.last = now
	return begins
}

// works notes a success, and reports whether the trouble is over with it, how
// long it went on, and how much failed.
func (t *trouble) works(now time.Time) (over bool, took time.Duration, failures int) {
	if !t.on.Load() {
		return false, 0, 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.on.Load() || now.Sub(t.last) < t.calm {
		return false, 0, 0
	}
	t.on.Store(false)
	return true, now.Sub(t.since), t.failures
}
