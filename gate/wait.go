package gate

import (
	"context"
	"math"
	"time"
)

// A waiter is somebody in the queue. It holds no seat.
type waiter struct {
	class    Class
	ticket   uint64
	since    time.Duration
	deadline time.Duration   // of its context; never, if that has none
	done     <-chan struct{} // of its context

	// Guarded by the gate's mutex.
	flow   *flow // only while it is queued
	queued bool
	timer  *time.Timer // ends the wait even if nothing else ever happens
	prev   *waiter
	next   *waiter // in its flow; when it has left that, among those to be told

	// The verdict is written under the mutex, before what is sent on told. Neither
	// seat nor refusal means that its context has ended.
	told    chan struct{} // gets one value
	seat    Seat
	waited  time.Duration
	refusal *Refused
}

const never = time.Duration(math.MaxInt64)

// wait queues for a seat, if there is a point in it, until there is a verdict.
func (g *Gate) wait(ctx context.Context, c Class, identity string) (Seat, error) {
	w := waiter{class: c, deadline: g.deadlineOf(ctx), done: ctx.Done()}
	now := g.now()
	g.mu.Lock()
	if g.total < g.limit { // one came free just now
		s := g.seatAtOnceLocked(c, identity, now)
		g.mu.Unlock()
		return s, nil
	}
	g.adapt.wanted = true
	queued, evicted, refusal := g.joinLocked(w, identity, now)
	g.mu.Unlock()
	evicted.wake()
	if refusal != nil {
		return Seat{}, refusal
	}
	defer queued.timer.Stop()
	return g.await(ctx, queued)
}

// deadlineOf is when ctx ends, in the gate's time.
func (g *Gate) deadlineOf(ctx context.Context) time.Duration {
	d, ok := ctx.Deadline()
	if !ok {
		return never
	}
	return d.Sub(g.epoch)
}

// joinLocked queues w, perhaps in the place of another, or turns it away.
func (g *Gate) joinLocked(w waiter, identity string, now time.Duration) (*waiter, tell, *Refused) {
	ahead := g.lanes[w.class].flows[identity] // nil, if it is the first of its identity
	if reason, ok := g.mayWaitLocked(w, ahead, now); !ok {
		return nil, tell{}, g.turnAwayLocked(w.class, reason)
	}
	var evicted tell
	if g.queued >= g.cfg.MaxQueue {
		victim := g.victimLocked(w.class, ahead)
		if victim == nil {
			return nil, tell{}, g.turnAwayLocked(w.class, QueueFull)
		}
		g.refuseLocked(victim, QueueFull, &evicted)
	}
	return g.enqueueLocked(w, identity, now), evicted, nil
}

func (g *Gate) enqueueLocked(w waiter, identity string, now time.Duration) *waiter {
	g.tickets++
	w.ticket, w.since, w.queued = g.tickets, now, true
	w.flow = g.flowLocked(w.class, identity)
	w.timer = time.NewTimer(g.cfg.MaxWait)
	w.told = make(chan struct{}, 1)
	g.lanes[w.class].push(&w, now)
	g.queued++
	g.peaks.queued = max(g.peaks.queued, g.queued)
	return &w
}

// await returns when there is a verdict on w.
func (g *Gate) await(ctx context.Context, w *waiter) (Seat, error) {
	for {
		select {
		case <-w.told:
			return g.collect(ctx, w)
		case <-w.done:
			g.cancel(w)
			<-w.told
			return g.collect(ctx, w)
		case <-w.timer.C:
			g.expire(w) // and is told, unless it has been given more time
		}
	}
}

// collect takes w its verdict. Who has left meanwhile gives its seat to the next.
func (g *Gate) collect(ctx context.Context, w *waiter) (Seat, error) {
	if w.refusal != nil {
		return Seat{}, w.refusal
	}
	if err := ctx.Err(); err != nil {
		g.decline(w.seat)
		return Seat{}, g.left(w.class, err)
	}
	g.waited[w.class].Observe(w.waited)
	return w.seat, nil
}

// cancel takes w, whose context has ended, out of the queue.
func (g *Gate) cancel(w *waiter) {
	var told tell
	g.mu.Lock()
	if w.queued {
		g.dropLocked(w, &told)
		g.dispatchLocked(g.now(), &told)
	}
	g.mu.Unlock()
	told.wake()
}

// expire turns w away if it has waited for as long as it may by now.
func (g *Gate) expire(w *waiter) {
	var told tell
	g.mu.Lock()
	if w.queued {
		now := g.now()
		g.judgeWaitLocked(w, now, &told)
		g.dispatchLocked(now, &told)
	}
	g.mu.Unlock()
	told.wake()
}

// judgeWaitLocked turns w away if its time is over, and else sets its timer.
func (g *Gate) judgeWaitLocked(w *waiter, now time.Duration, told *tell) {
	left := w.since + g.cfg.MaxWait - now
	if left <= 0 {
		g.refuseLocked(w, Timeout, told)
		return
	}
	w.timer.Reset(left)
}

// decline gives back a seat on which nobody has sat.
func (g *Gate) decline(s Seat) {
	if s.permit == nil {
		return
	}
	var told tell
	g.mu.Lock()
	g.unseatLocked(s.permit)
	g.dispatchLocked(g.now(), &told)
	g.mu.Unlock()
	told.wake()
}

// dequeueLocked takes w out of the queue. Its flow may be left with nothing.
func (g *Gate) dequeueLocked(w *waiter) *flow {
	f := w.flow
	g.lanes[w.class].remove(w)
	g.queued--
	w.queued, w.flow = false, nil
	return f
}

// dropLocked takes w out of the queue, without a verdict of the gate's.
func (g *Gate) dropLocked(w *waiter, told *tell) {
	f := g.dequeueLocked(w)
	g.lanes[w.class].forget(f, &g.spare)
	told.add(w)
}

func (g *Gate) refuseLocked(w *waiter, reason Reason, told *tell) {
	w.refusal = g.turnAwayLocked(w.class, reason)
	g.dropLocked(w, told)
}

// A tell is a list of those on whom there is a verdict. They are told when the
// mutex is free again.
type tell struct{ first *waiter }

func (t *tell) add(w *waiter) { w.next, t.first = t.first, w }

func (t tell) wake() {
	for w := t.first; w != nil; {
		next := w.next
		w.told <- struct{}{}
		w = next
	}
}
