package acme

import (
	"context"
	"math"
	"net/http"
	"sync"
	"time"
)

const (
	backlogTop   = 20 // accounts of which it is known how many orders they have in the backlog
	backlogRetry = time.Minute
)

// A backlog knows about how many orders are processing, without asking for each
// finalize: the database is counted every few seconds, what this process does
// meanwhile is added, and what other replicas do comes with the next count.
type backlog struct {
	most int

	mu       sync.Mutex // guards what follows
	counted  int
	of       map[string]int // by account, of those that have most
	change   int            // since the count
	changes  map[string]int // since the count, by account
	entering int            // have a place, and are not in the database yet
	left     int            // since the count
	at       time.Time      // of the count
	rate     float64        // orders that leave in a second
}

func newBacklog(most int) *backlog {
	return &backlog{most: most, changes: make(map[string]int)}
}

// A place in the backlog is taken before anything is promised. A nil place is
// that of an order that is in the backlog already.
type place struct {
	b       *backlog
	account string
	waiting bool
	taken   bool
}

// enter gives o a place, or refuses: the order stays ready, and the client comes
// again. The last tenth is for renewals, whose site goes down if they fail; and
// once half of it is full, no account gets more than a tenth of it all.
func (b *backlog) enter(o Order) (*place, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	limit := b.most
	if !o.Renewal {
		limit -= b.most / 10
	}
	over := b.sizeLocked() - limit
	if b.sizeLocked() >= b.most/2 {
		over = max(over, b.of[o.AccountID]+b.changes[o.AccountID]-max(1, b.most/10))
	}
	if over >= 0 {
		return nil, backlogFull(b.retryLocked(over + 1))
	}
	b.entering++
	b.changeLocked(o.AccountID, 1)
	return &place{b: b, account: o.AccountID, waiting: true}, nil
}

// Some clients wait only on a 503 of this type, none on a 429 alone, and quotas
// are not spent here.
func backlogFull(retry time.Duration) *Problem {
	return &Problem{
		Type: RateLimited, Status: http.StatusServiceUnavailable, RetryAfter: retry,
		Detail: "too many certificates wait to be issued; the order stays ready, finalize it later",
	}
}

// retryLocked is when that many orders will have left, if it goes on like that.
func (b *backlog) retryLocked(n int) time.Duration {
	if b.rate <= 0 {
		return backlogRetry
	}
	s := time.Duration(math.Ceil(min(float64(n)/b.rate, backlogRetry.Seconds())))
	return max(s, 1) * time.Second
}

func (b *backlog) sizeLocked() int { return max(0, b.counted+b.change) + b.entering }

func (b *backlog) size() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sizeLocked()
}

// durable says that the order is processing in the database. It may come more
// than once, and after leave.
func (p *place) durable() {
	if p == nil {
		return
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if !p.taken {
		p.taken = true
		p.b.change++
		p.b.changeLocked(p.account, 1)
	}
	p.leaveLocked()
}

// leave gives the place up if the order did not become durable.
func (p *place) leave() {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	p.leaveLocked()
}

func (p *place) leaveLocked() {
	if p.waiting {
		p.waiting = false
		p.b.entering--
		p.b.changeLocked(p.account, -1)
	}
}

// done says that an order of the account is no longer processing.
func (b *backlog) done(account string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.change--
	b.left++
	b.changeLocked(account, -1)
}

func (b *backlog) changeLocked(account string, n int) {
	b.changes[account] += n
	if b.changes[account] == 0 {
		delete(b.changes, account)
	}
}

// count brings the backlog to what the database says. What happens meanwhile may
// be counted twice or not at all, until the next count.
func (b *backlog) count(ctx context.Context, now func() time.Time, ask func(ctx context.Context, top int) (BacklogCount, error)) error {
	b.mu.Lock()
	before := b.change
	b.mu.Unlock()
	n, err := ask(ctx, backlogTop)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counted, b.of = n.Total, n.Of
	b.change -= before
	clear(b.changes)
	b.learnLocked(now())
	return nil
}

// learnLocked averages how fast orders leave over some counts.
func (b *backlog) learnLocked(now time.Time) {
	if d := now.Sub(b.at).Seconds(); !b.at.IsZero() && d > 0 {
		b.rate += (float64(b.left)/d - b.rate) / 4
	}
	b.left, b.at = 0, now
}

// Backlog is about how many orders are processing.
func (s *Server) Backlog() int { return s.backlog.size() }

func (s *Server) countBacklog(ctx context.Context) (bool, error) {
	return false, s.backlog.count(ctx, s.now, s.store.Backlog)
}
