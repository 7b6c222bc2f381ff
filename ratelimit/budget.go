package ratelimit

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A BudgetStore keeps how many authorization refusals identities have behind
// them, and nothing else: no time, which a restart would make wrong. It is safe
// for concurrent use; what SaveRefusals wrote is durable on return.
type BudgetStore interface {
	// Refusals returns 0 for an identity that has none.
	Refusals(ctx context.Context, identity string) (int, error)
	// SaveRefusals replaces the count; 0 forgets the identity.
	SaveRefusals(ctx context.Context, identity string, n int) error
}

// BudgetConfig says how patient a Budget is. Zeros mean the defaults.
type BudgetConfig struct {
	Free          int           // refusals without a delay; 4
	MaxDelay      time.Duration // between attempts; 1 minute
	Decay         time.Duration // of quiet, for one refusal to be forgotten; 10 minutes
	MaxIdentities int           // in memory; 10,000
	Store         BudgetStore   // nil: counts end with the process
	Recorder      *Recorder     // told of what is refused; may be nil
}

const (
	// firstDelay is the interval after the first refusal that is not free; each
	// further one doubles it.
	firstDelay = time.Second
	// What is asked of the store outlives the request that it is for, or hanging
	// up would be a way not to be counted; so it has a deadline of its own.
	budgetDeadline = 2 * time.Second
	// After the store failed it is left alone for budgetRest.
	budgetRest = 5 * time.Second
	// Run keeps what was forgotten in batches: 20 writes a second, which is more
	// than 10,000 identities can make due.
	sweepInterval = 10 * time.Second
	sweepBatch    = 200
	lastBatch     = 1000 // as the program ends, which it must
	maxFree       = 1000
	maxDelay      = 24 * time.Hour // more would be a lock
	// maxIdentity is the longest name that is kept as it is.
	maxIdentity  = 128
	digestPrefix = "sha256:"
)

// withDefaults fills in zeros, and says what is wrong with the rest.
func (c BudgetConfig) withDefaults() (BudgetConfig, error) {
	if c.Free < 0 || c.MaxDelay < 0 || c.Decay < 0 || c.MaxIdentities < 0 {
		return c, fmt.Errorf("ratelimit: a refusal budget with a negative setting: free %d, max delay %s, decay %s, max identities %d",
			c.Free, c.MaxDelay, c.Decay, c.MaxIdentities)
	}
	if c.Free == 0 {
		c.Free = 4
	}
	if c.MaxDelay == 0 {
		c.MaxDelay = time.Minute
	}
	if c.Decay == 0 {
		c.Decay = 10 * time.Minute
	}
	if c.MaxIdentities == 0 {
		c.MaxIdentities = 10_000
	}
	if c.Free > maxFree || c.MaxDelay > maxDelay {
		return c, fmt.Errorf("ratelimit: a refusal budget of %d free refusals, max delay %s; %d and %s are the most", c.Free, c.MaxDelay, maxFree, maxDelay)
	}
	return c, nil
}

// delay is the interval between attempts of one with n refusals behind it.
func (c BudgetConfig) delay(n int) time.Duration {
	over := n - c.Free
	if over <= 0 {
		return 0
	}
	d := firstDelay
	for ; over > 1 && d < c.MaxDelay; over-- {
		d *= 2
	}
	return min(d, c.MaxDelay)
}

// most is the count that further refusals do not raise: twice as far over the
// allowance as the longest delay begins. Forgiveness is some hours away, then,
// but never weeks, and the store is not written to for ever.
func (c BudgetConfig) most() int {
	n := c.Free + 1
	for c.delay(n) < c.MaxDelay {
		n++
	}
	return n + n - c.Free
}

// A standing is what is known of one identity.
type standing struct {
	identity string
	count    int           // refusals
	since    time.Time     // the last refusal, or when one was forgotten since
	last     time.Time     // the last attempt that was let through
	saved    int           // what the store has
	unread   bool          // nobody knows what the store has
	saving   bool          // somebody is at the store with it
	in       *list.List    // that of its count
	at       *list.Element // in it
}

// BudgetStat counts what a Budget did.
type BudgetStat struct {
	Identities    int   // in memory
	Limited       int   // of these, held to an interval now
	Refused       int64 // attempts turned away
	StoreFailures int64 // counts are in memory only until the store is back
	Evicted       int64 // identities with refusals that gave way to others
}

// A Budget slows down a proven identity that keeps asking for what it may not
// have, and never locks it out: beyond its free refusals there is an interval
// between attempts, 1, 2, 4 … 60 seconds, in which one is let through. It is
// safe for concurrent use. A nil Budget lets everybody through.
//
// Only the count is stored, when it grows beyond the allowance, and by Run when
// a stored one has decayed. So a restart, or giving way to others in memory,
// pauses decay, and begins no interval. Nothing resets a count: not a success,
// and not a store that fails, without which the counts in memory go on.
//
// Each replica counts for itself, and what is stored is what one of them wrote
// last.
type Budget struct {
	config BudgetConfig
	most   int

	refused, failures, evicted atomic.Int64

	mu        sync.Mutex // guards what follows
	standings map[string]*standing
	byCount   []*list.List // of *standing; the one longest unseen in front
	rest      time.Time    // the store is left alone until then
}

// NewBudget returns a Budget, or says what is wrong with c.
func NewBudget(c BudgetConfig) (*Budget, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Budget{config: c, most: c.most(), standings: make(map[string]*standing)}
	for range b.most + 1 {
		b.byCount = append(b.byCount, list.New())
	}
	return b, nil
}

// Check says whether identity may make another attempt now. It is asked before
// anything is decided or written. A no moves nothing.
func (b *Budget) Check(ctx context.Context, identity string) Decision {
	if b == nil || identity == "" {
		return Decision{OK: true}
	}
	name := budgetName(identity)
	b.recall(ctx, name)
	d, count := b.attempt(name, time.Now())
	if !d.OK {
		b.refused.Add(1)
		b.config.Recorder.limited(identity, count, b.config.delay(count))
	}
	return d
}

// attempt begins the interval, unless the last one is not over.
func (b *Budget) attempt(name string, now time.Time) (Decision, int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.standingLocked(name, now)
	if wait := b.waitLocked(s, now); wait > 0 {
		return Decision{RetryAfter: wholeSeconds(wait)}, s.count
	}
	if now.After(s.last) {
		s.last = now
	}
	b.placeLocked(s)
	b.trimLocked(nil)
	return Decision{OK: true}, s.count
}

// waitLocked is how long the interval of s has still to go.
func (b *Budget) waitLocked(s *standing, now time.Time) time.Duration {
	if s.last.IsZero() {
		return 0
	}
	// Of two at once the one that read the clock first may come here second.
	return b.config.delay(s.count) - max(now.Sub(s.last), 0)
}

// Refused counts that identity was refused what is not its own, or not there.
// Requests that make no sense are not to be counted, nor are the refusals of any
// limit. What exceeds the allowance is stored on return, if the store works.
func (b *Budget) Refused(ctx context.Context, identity string) {
	if b == nil || identity == "" {
		return
	}
	name := budgetName(identity)
	b.recall(ctx, name)
	s, count, crossed := b.count(name, time.Now())
	if crossed {
		b.config.Recorder.limited(identity, count, b.config.delay(count))
	}
	b.save(ctx, s)
}

// count adds a refusal, and reports whether it was the first that is not free.
func (b *Budget) count(name string, now time.Time) (s *standing, count int, crossed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s = b.standingLocked(name, now)
	s.count = min(s.count+1, b.most)
	s.since = now
	if s.last.IsZero() {
		s.last = now
	}
	b.placeLocked(s)
	b.trimLocked(s)
	return s, s.count, s.count == b.config.Free+1
}

// standingLocked returns what is known of name, as of now.
func (b *Budget) standingLocked(name string, now time.Time) *standing {
	s := b.standings[name]
	if s == nil {
		s = &standing{identity: name, since: now, unread: b.config.Store != nil}
		b.standings[name] = s
		b.placeLocked(s)
	}
	b.decayLocked(s, now)
	return s
}

// decayLocked forgets one refusal for each quiet stretch.
func (b *Budget) decayLocked(s *standing, now time.Time) {
	stretches := now.Sub(s.since) / b.config.Decay
	if s.count == 0 || stretches <= 0 {
		return
	}
	s.since = s.since.Add(stretches * b.config.Decay)
	s.count -= int(min(stretches, time.Duration(s.count)))
	b.placeLocked(s)
}

// placeLocked makes s the one seen last of its count.
func (b *Budget) placeLocked(s *standing) {
	to := b.byCount[s.count]
	if s.in == to {
		to.MoveToBack(s.at)
		return
	}
	if s.in != nil {
		s.in.Remove(s.at)
	}
	s.in, s.at = to, to.PushBack(s)
}

// trimLocked lets go of those with the fewest refusals, of these the longest
// unseen: who has none costs nothing to forget, and of who has exceeded its
// allowance the store knows. keep is about to be stored.
func (b *Budget) trimLocked(keep *standing) {
	if len(b.standings) <= b.config.MaxIdentities {
		return
	}
	for _, l := range b.byCount {
		for e := l.Front(); e != nil && len(b.standings) > b.config.MaxIdentities; {
			s := e.Value.(*standing)
			e = e.Next()
			if s == keep {
				continue
			}
			l.Remove(s.at)
			delete(b.standings, s.identity)
			if s.count > 0 {
				b.evicted.Add(1)
			}
		}
	}
}

// recall reads what the store has of name, unless that is in memory. If it can't
// be read the identity begins with nothing, and what is there is added later.
func (b *Budget) recall(ctx context.Context, name string) {
	if !b.mustRead(name, time.Now()) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), budgetDeadline)
	defer cancel()
	stored, err := b.config.Store.Refusals(ctx, name)
	b.recalled(name, stored, err)
}

func (b *Budget) mustRead(name string, now time.Time) bool {
	if b.config.Store == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.standings[name]
	return (s == nil || s.unread) && !now.Before(b.rest)
}

func (b *Budget) recalled(name string, stored int, err error) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.failedLocked(now)
		return
	}
	s := b.standingLocked(name, now)
	if !s.unread {
		return // somebody else was faster
	}
	s.unread, s.saved = false, stored
	s.count = min(s.count+max(stored, 0), b.most)
	b.placeLocked(s)
	b.trimLocked(nil)
}

// failedLocked notes that the store failed. It is for metrics to tell: a line
// for each request would be worse than the failure.
func (b *Budget) failedLocked(now time.Time) {
	b.failures.Add(1)
	b.rest = now.Add(budgetRest)
}

// save brings the store to what it should have of s. One at a time is at it for
// each identity, and stays until nothing newer has come, so that the store never
// ends with an older count.
func (b *Budget) save(ctx context.Context, s *standing) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), budgetDeadline)
	defer cancel()
	for {
		count, due := b.takeSave(s, time.Now())
		if !due {
			return
		}
		b.saved(s, count, b.config.Store.SaveRefusals(ctx, s.identity, count))
	}
}

func (b *Budget) takeSave(s *standing, now time.Time) (count int, due bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.saving || now.Before(b.rest) || !b.dueLocked(s) {
		return 0, false
	}
	s.saving = true
	return s.count, true
}

// dueLocked reports whether the store should have another count: one beyond the
// allowance, or a lower one than it has.
func (b *Budget) dueLocked(s *standing) bool {
	return b.config.Store != nil && !s.unread && s.count != s.saved && (s.count > b.config.Free || s.count < s.saved)
}

func (b *Budget) saved(s *standing, count int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.saving = false
	if err != nil {
		b.failedLocked(time.Now())
		return
	}
	s.saved = count
}

// Run stores what has decayed, and what a failing store did not take, until ctx
// ends; then what is left of that.
func (b *Budget) Run(ctx context.Context) error {
	if b == nil || b.config.Store == nil {
		return nil
	}
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			b.sweep(ctx, lastBatch)
			return nil
		case <-tick.C:
			b.sweep(ctx, sweepBatch)
		}
	}
}

// sweep stores what is due, most counts at a time.
func (b *Budget) sweep(ctx context.Context, most int) {
	for _, s := range b.due(time.Now(), most) {
		b.save(ctx, s)
	}
}

// due lets everybody's count decay, and returns some that are to be stored.
func (b *Budget) due(now time.Time, most int) []*standing {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []*standing
	for _, s := range b.standings {
		b.decayLocked(s, now)
		if b.dueLocked(s) && len(out) < most {
			out = append(out, s)
		}
	}
	return out
}

// Stat returns the counts as they are now.
func (b *Budget) Stat() BudgetStat {
	if b == nil {
		return BudgetStat{}
	}
	st := BudgetStat{Refused: b.refused.Load(), StoreFailures: b.failures.Load(), Evicted: b.evicted.Load()}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	st.Identities = len(b.standings)
	for _, l := range b.byCount[b.config.Free+1:] {
		for e := l.Front(); e != nil; e = e.Next() {
			if s := e.Value.(*standing); b.waitLocked(s, now) > 0 {
				st.Limited++
			}
		}
	}
	return st
}

// budgetName is what identity is known by in memory and in the store: a long
// one, as the subject of a certificate may be, by its digest.
func budgetName(identity string) string {
	if len(identity) <= maxIdentity && !strings.HasPrefix(identity, digestPrefix) {
		return identity
	}
	sum := sha256.Sum256([]byte(identity))
	return digestPrefix + hex.EncodeToString(sum[:])
}
