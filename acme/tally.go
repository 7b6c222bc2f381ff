package acme

import (
	"context"
	"sync"
)

// A tally counts what is under way, so that somebody can wait for its end.
type tally struct {
	mu     sync.Mutex // guards what follows
	n      int
	closed bool
	idle   chan struct{} // closed when n is 0 again; nil before the first
}

// begin counts one more, unless the tally was closed.
func (t *tally) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	if t.n == 0 {
		t.idle = make(chan struct{})
	}
	t.n++
	return true
}

func (t *tally) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 {
		close(t.idle)
	}
}

// close lets nothing more begin.
func (t *tally) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

// wait returns when nothing is under way.
func (t *tally) wait(ctx context.Context) error {
	t.mu.Lock()
	n, idle := t.n, t.idle
	t.mu.Unlock()
	if n == 0 {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A crew is the goroutines that work off what waits in the database. Each waits
// for a seat by itself, so that nobody stands behind somebody else's work; their
// number is bounded, and so is that of each account.
type crew struct {
	most, each int        // goroutines in all, and of one account
	spare      int        // more for accounts that have none: to them a full crew is no wall
	width      func() int // how many of most may be under way now; nil: all
	tally      tally
	freed      chan struct{} // a hint that there is room again

	mu    sync.Mutex // guards what follows
	tasks map[string]bool
	of    map[string]int // tasks of each account that has any
	last  string         // the account of the task that started last
}

func newCrew(most, each, spare int, width func() int) *crew {
	if width == nil {
		width = func() int { return most }
	}
	return &crew{most: most, each: each, spare: spare, width: width, freed: make(chan struct{}, 1), tasks: make(map[string]bool), of: make(map[string]int)}
}

// A start is what came of asking a crew to do something.
type start int

const (
	started start = iota
	already       // it is under way
	noRoom
)

// start has f run if there is room, and the account does not have its part.
func (c *crew) start(account, task string, f func()) start {
	s := c.join(account, task)
	if s == started {
		go func() {
			defer c.leave(account, task)
			f()
		}()
	}
	return s
}

func (c *crew) join(account, task string) start {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.tasks[task]:
		return already
	case len(c.tasks) >= c.roomLocked(account), c.of[account] >= c.each, !c.tally.begin():
		return noRoom
	}
	c.tasks[task] = true
	c.of[account]++
	c.last = account
	return started
}

// roomLocked is how many may be under way for one more of account. The width is
// asked for under the lock: what a task that has left made of it is known then.
func (c *crew) roomLocked(account string) int {
	width := c.width()
	if width >= c.most && c.of[account] == 0 {
		return c.most + c.spare
	}
	return min(width, c.most)
}

// lastTurn is the account after which the turn is the next one's.
func (c *crew) lastTurn() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

func (c *crew) leave(account, task string) {
	c.mu.Lock()
	delete(c.tasks, task)
	if c.of[account]--; c.of[account] == 0 {
		delete(c.of, account)
	}
	c.mu.Unlock()
	c.tally.end()
	hint(c.freed)
}

// hint wakes whoever listens, at the latest when it does so next.
func hint(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
