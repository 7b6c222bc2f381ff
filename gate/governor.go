package gate

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

// GovernorConfig says how much password verification goes on. Zeros, and what
// is less, mean the defaults: no setting is without a bound.
type GovernorConfig struct {
	Ceiling    int           // verifications at a time; half of GOMAXPROCS, at least 1
	PerClient  int           // of one client; 1, and never more than Ceiling
	MaxWaiters int           // that may wait for each place of the ceiling; 8
	MaxWait    time.Duration // 1 s
	// Memory is how much weight all verifications may have at a time, in units of
	// the caller's, KiB say, for hashes that are made to need memory. 0: weights
	// do not count.
	Memory int64
}

func (c GovernorConfig) withDefaults() GovernorConfig {
	if c.Ceiling <= 0 {
		c.Ceiling = max(1, runtime.GOMAXPROCS(0)/2)
	}
	if c.PerClient <= 0 {
		c.PerClient = 1
	}
	c.PerClient = min(c.PerClient, c.Ceiling)
	if c.MaxWaiters <= 0 {
		c.MaxWaiters = 8
	}
	if c.MaxWait <= 0 {
		c.MaxWait = time.Second
	}
	c.Memory = max(0, c.Memory)
	return c
}

// A GovernorReason is why a verification was turned away: a closed set, as each
// is a label.
type GovernorReason uint8

// The reasons.
const (
	GovernorPerClient GovernorReason = iota // the client's own verifications are in the way
	GovernorQueueFull                       // too many wait
	GovernorTimeout                         // it waited as long as it may
	GovernorReasons
)

// String is the reason's name in metrics.
func (r GovernorReason) String() string { return [...]string{"per_client", "queue_full", "timeout"}[r] }

// A GovernorRefused is the error of a verification that was turned away. It says
// nothing about whether the password is right, and is to be treated as if it
// were not.
type GovernorRefused struct {
	Reason     GovernorReason
	RetryAfter time.Duration
}

func (r *GovernorRefused) Error() string {
	return "gate: password verification turned away: " + r.Reason.String()
}

// A Governor bounds how much of the processors goes into verifying passwords,
// which is made to be slow: whoever sends wrong ones could have all of them. It
// is safe for concurrent use.
//
// A client that is at its cap waits for its own predecessor rather than being
// refused, as programs open several connections with one password. With the
// defaults and a hash of 80 ms the wait of a second is room for about twelve of
// one client, in turn; on a ceiling of one the queue of eight lets nine come at
// once, from two on all twelve and more. Who waits holds no place. Nobody's turn
// depends on who sends most: a client's next request stands behind some of the
// others', and in a full queue it is the longest row that gives way.
//
// It is asked before anything is compared:
//
//  1. a Verdicts that knows the credentials ends it here: what was verified a
//     moment ago needs no place;
//  2. Acquire; an error is a refusal, the same for every name and password;
//  3. the name is looked up. For one that does not exist there is a hash of the
//     same cost that no password fits, so that both take the same time;
//  4. the hash is computed to its end, then release is called: also when whoever
//     asked has left, as the processor is busy all the same;
//  5. what was right is told to Verdicts.
//
// What is verified elsewhere, by a directory say, does not need a Governor.
type Governor struct {
	config GovernorConfig

	mu       sync.Mutex // guards what follows
	clients  map[string]*governed
	queue    []*verification // in the order they came
	arrivals int64
	memory   int64
	episode  episode
	stat     GovernorStat
}

// GovernorStat counts what a Governor did.
type GovernorStat struct {
	InFlight, Queued         int
	PeakInFlight, PeakQueued int
	Clients                  int   // that have something in flight or waiting
	Admitted                 int64 // with or without waiting
	Waited                   int64 // of these, after waiting
	Canceled                 int64 // whoever asked left while waiting, or before
	Refused                  [GovernorReasons]int64
	Episode                  GovernorEpisode
}

// governed is a client that has something in flight or waiting.
type governed struct {
	key               string
	inFlight, waiting int
	lastTurn          int64
}

// A verification is somebody's password.
type verification struct {
	client *governed // nil: unknown
	weight int64
	turn   int64
	state  verificationState
	reason GovernorReason // if refused
	told   chan struct{}  // closed when it no longer waits
}

type verificationState uint8

const (
	waits verificationState = iota
	goesOn
	turnedAway
	ended
)

// NewGovernor returns a Governor.
func NewGovernor(c GovernorConfig) *Governor {
	return &Governor{config: c.withDefaults(), clients: make(map[string]*governed)}
}

// Acquire waits for a place for one verification. client names who asks, such
// as the network of its address; "" is
// held to the ceiling only. release is to be called when the hash is computed;
// calling it again does nothing. The error is a *GovernorRefused, or that of ctx.
func (g *Governor) Acquire(ctx context.Context, client string) (release func(), err error) {
	return g.AcquireWeight(ctx, client, 0)
}

// AcquireWeight is Acquire for a hash that needs memory. One that needs more
// than there is has it all for itself.
func (g *Governor) AcquireWeight(ctx context.Context, client string, weight int64) (release func(), err error) {
	if ctx.Err() != nil {
		return nil, g.left(ctx)
	}
	v := g.enter(client, weight)
	if err := g.await(ctx, v); err != nil {
		return nil, err
	}
	return func() { g.release(v) }, nil
}

// enter has a verification begin if there is a place, or else stand in the queue.
func (g *Governor) enter(client string, weight int64) *verification {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := &verification{client: g.clientLocked(client), weight: min(max(0, weight), g.config.Memory), told: make(chan struct{})}
	g.queueLocked(v)
	g.dispatchLocked()
	if v.state == goesOn {
		g.episode.fastPath()
		return v
	}
	if len(g.queue) > g.config.Ceiling*g.config.MaxWaiters {
		victim := g.victimLocked(v)
		g.refuseLocked(victim, fullReason(victim, v))
	}
	if v.state == waits {
		g.stat.PeakQueued = max(g.stat.PeakQueued, len(g.queue))
	}
	return v
}

func (g *Governor) clientLocked(key string) *governed {
	if key == "" {
		return nil
	}
	c := g.clients[key]
	if c == nil {
		c = &governed{key: key}
		g.clients[key] = c
	}
	return c
}

// queueLocked gives v its turn: as if it had come later, the more of the same
// client are before it. So one that sends many is overtaken by those that send
// few, but not for ever.
func (g *Governor) queueLocked(v *verification) {
	g.arrivals++
	v.turn = g.arrivals
	if c := v.client; c != nil {
		v.turn = max(v.turn+int64((c.inFlight+c.waiting)*g.config.MaxWaiters), c.lastTurn+1)
		c.lastTurn = v.turn
		c.waiting++
	}
	g.queue = append(g.queue, v)
}

// dispatchLocked begins whatever can begin.
func (g *Governor) dispatchLocked() {
	for v := g.nextLocked(); v != nil; v = g.nextLocked() {
		g.dequeueLocked(v)
		g.memory += v.weight
		g.stat.InFlight++
		g.stat.PeakInFlight = max(g.stat.PeakInFlight, g.stat.InFlight)
		g.stat.Admitted++
		if v.client != nil {
			v.client.inFlight++
		}
		v.state = goesOn
		close(v.told)
	}
}

// nextLocked is the one whose turn it is, among those that do not wait for one
// of their own client. If there is not enough memory for it, it is waited for:
// light ones would otherwise go before a heavy one for ever.
func (g *Governor) nextLocked() *verification {
	if g.stat.InFlight >= g.config.Ceiling {
		return nil
	}
	var next *verification
	for _, v := range g.queue {
		if !g.atCap(v.client) && (next == nil || v.turn < next.turn) {
			next = v
		}
	}
	if next != nil && g.memory+next.weight > g.config.Memory {
		return nil
	}
	return next
}

func (g *Governor) atCap(c *governed) bool { return c != nil && c.inFlight >= g.config.PerClient }

// dequeueLocked takes v out of the queue.
func (g *Governor) dequeueLocked(v *verification) {
	g.queue = slices.DeleteFunc(g.queue, func(q *verification) bool { return q == v })
	if v.client != nil {
		v.client.waiting--
	}
}

// victimLocked is who gives way in a queue that is too long by v: the newest of
// the client that has most waiting, if it is more than v's own client has.
func (g *Governor) victimLocked(v *verification) *verification {
	victim, most := v, 1
	if v.client != nil {
		most = v.client.waiting
	}
	for _, q := range slices.Backward(g.queue) {
		if q.client != nil && q.client.waiting > most {
			victim, most = q, q.client.waiting
		}
	}
	return victim
}

// fullReason is why victim has no place in a queue that v has come to.
func fullReason(victim, v *verification) GovernorReason {
	if victim != v || (v.client != nil && v.client.waiting > 1) {
		return GovernorPerClient
	}
	return GovernorQueueFull
}

// refuseLocked turns away one that waits.
func (g *Governor) refuseLocked(v *verification, reason GovernorReason) {
	g.stat.Refused[reason]++
	g.episode.refusal(time.Now())
	v.reason = reason
	g.dropLocked(v)
}

// dropLocked takes one that waits out of the queue for good. It may have been
// what others had to wait for.
func (g *Governor) dropLocked(v *verification) {
	g.dequeueLocked(v)
	g.forgetLocked(v.client)
	v.state = turnedAway
	close(v.told)
	g.dispatchLocked()
}

// forgetLocked drops a client that has nothing here any more.
func (g *Governor) forgetLocked(c *governed) {
	if c != nil && c.inFlight == 0 && c.waiting == 0 {
		delete(g.clients, c.key)
	}
}

// await returns once v may begin, or never will.
func (g *Governor) await(ctx context.Context, v *verification) error {
	select {
	case <-v.told:
		return g.outcome(ctx, v, false)
	default:
	}
	patience := time.NewTimer(g.config.MaxWait)
	defer patience.Stop()
	select {
	case <-v.told:
	case <-ctx.Done():
	case <-patience.C:
		g.expire(v)
	}
	return g.outcome(ctx, v, true)
}

// expire turns v away, unless its turn has come at the same moment.
func (g *Governor) expire(v *verification) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if v.state != waits {
		return
	}
	reason := GovernorTimeout
	if g.atCap(v.client) {
		reason = GovernorPerClient
	}
	g.refuseLocked(v, reason)
}

// outcome says what became of v. Whoever has left gets nothing, and what it had
// goes to others.
func (g *Governor) outcome(ctx context.Context, v *verification, waited bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if v.state == turnedAway {
		return &GovernorRefused{Reason: v.reason, RetryAfter: time.Second}
	}
	if waited && ctx.Err() != nil {
		if v.state == waits {
			g.dropLocked(v)
		} else {
			g.stat.Admitted--
			g.releaseLocked(v)
		}
		return g.leftLocked(ctx)
	}
	if waited {
		g.stat.Waited++
	}
	return nil
}

func (g *Governor) left(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.leftLocked(ctx)
}

func (g *Governor) leftLocked(ctx context.Context) error {
	g.stat.Canceled++
	return fmt.Errorf("waiting to verify a password: %w", ctx.Err())
}

func (g *Governor) release(v *verification) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.releaseLocked(v)
}

// releaseLocked gives the place of v to whose turn it is.
func (g *Governor) releaseLocked(v *verification) {
	if v.state != goesOn {
		return
	}
	v.state = ended
	g.memory -= v.weight
	g.stat.InFlight--
	if v.client != nil {
		v.client.inFlight--
		g.forgetLocked(v.client)
	}
	g.dispatchLocked()
}

// Stat returns the counts as they are now.
func (g *Governor) Stat() GovernorStat {
	g.mu.Lock()
	defer g.mu.Unlock()
	st := g.stat
	st.Queued, st.Clients = len(g.queue), len(g.clients)
	st.Episode = g.episode.now(time.Now())
	return st
}

// Notice returns what there is to tell of refusals, if anything: see
// GovernorEvent. One caller is to ask about once a second.
func (g *Governor) Notice() (GovernorNotice, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.episode.notice(time.Now())
}
