package gate

import (
	"container/heap"
	"time"
)

// maxLag is more than the turns of all seats ever set a flow back whose work
// takes as long as that of others.
const maxLag = 8

// A lane is one class: who is seated and who waits, by identity.
type lane struct {
	// Of every seat.
	flows      map[string]*flow // of those who are seated or wait, and some that are gone
	identities int              // that are seated or wait
	inFlight   int
	waiting    int
	virtual    int           // the latest virtual time at which a request has begun
	passed     int           // seats that went to more urgent classes since this one got any
	service    time.Duration // how long its work takes
	atOnce     uint64        // seats for which nobody waited
	held       times         // how long seats were taken

	// Of those who wait.
	backlog  backlog       // those of flows that have somebody waiting
	lengths  []int         // how many flows have so many waiting; of no use at 0
	most     int           // the greatest of these lengths
	standing time.Duration // since when somebody has been waiting, if waiting > 0

	gone     [maxGone]*flow // of flows, those that had nothing here, the oldest at nextGone
	nextGone int
}

// maxGone is how many identities a lane remembers that have nothing there any
// more: those that come back soon are found, where others are put into the table
// and taken out again.
const maxGone = 16

// A flow is one identity within a class.
//
// Virtual time makes equal shares of one seat: a request takes one unit of its
// flow's time, and the flow whose next unit begins first goes first. Who comes
// anew begins at the lane's time, and so gains nothing by having been away. Who
// has waited all along and lags, because it holds seats for longer than others
// do, is owed maxLag requests at most.
type flow struct {
	identity string
	class    Class
	inFlight int
	waiting  int
	begin    int // virtual time at which its next request begins
	head     *waiter
	tail     *waiter
	index    int    // in the backlog
	gone     bool   // it is among those of the lane that had nothing at some time
	first    permit // of its first seat
}

// flowLocked is the flow of identity, a new one if there is none. Something is to be
// put into it.
func (g *Gate) flowLocked(c Class, identity string) *flow {
	l, s := &g.lanes[c], &g.spare
	f := l.flows[identity]
	if f == nil {
		f = s.flow(g)
		f.identity, f.class = identity, c
		l.flows[identity] = f
	}
	if f.idle() {
		l.identities++
	}
	return f
}

func (f *flow) idle() bool { return f.inFlight == 0 && f.waiting == 0 }

// forget drops a flow that has nothing here, and soon the memory of it. Whoever
// comes back is like one who was never there.
func (l *lane) forget(f *flow, s *spares) {
	if !f.idle() {
		return
	}
	l.identities--
	f.begin = 0
	if f.gone {
		return
	}
	before := l.gone[l.nextGone]
	l.gone[l.nextGone], f.gone = f, true
	l.nextGone = (l.nextGone + 1) % maxGone
	if before == nil {
		return
	}
	before.gone = false
	if before.idle() {
		delete(l.flows, before.identity)
		s.keepFlow(before)
	}
}

func (l *lane) seat(f *flow) {
	f.begin = max(f.begin, l.virtual-maxLag)
	l.virtual = max(l.virtual, f.begin)
	f.begin++
	f.inFlight++
	l.inFlight++
	l.passed = 0
	l.reorder(f)
}

func (l *lane) unseat(f *flow, s *spares) {
	f.inFlight--
	l.inFlight--
	l.reorder(f)
	l.forget(f, s)
}

func (l *lane) reorder(f *flow) {
	if f.waiting > 0 {
		heap.Fix(&l.backlog, f.index)
	}
}

// push puts w at the end of its flow.
func (l *lane) push(w *waiter, now time.Duration) {
	f := w.flow
	if l.waiting == 0 {
		l.standing = now
	}
	w.prev = f.tail
	if f.tail == nil {
		f.head = w
	} else {
		f.tail.next = w
	}
	f.tail = w
	l.resize(f, f.waiting+1)
	if f.waiting == 1 {
		f.begin = max(f.begin, l.virtual)
		heap.Push(&l.backlog, f)
	}
}

// remove takes w out of the queue, from wherever it stands.
func (l *lane) remove(w *waiter) {
	f := w.flow
	if w.prev == nil {
		f.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		f.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
	l.resize(f, f.waiting-1)
	if f.waiting == 0 {
		heap.Remove(&l.backlog, f.index)
	} else {
		l.reorder(f) // its head may be another, which decides between equals
	}
}

// resize notes that n of f wait, one more or one less than before.
func (l *lane) resize(f *flow, n int) {
	for len(l.lengths) <= n {
		l.lengths = append(l.lengths, 0)
	}
	l.lengths[f.waiting]--
	l.lengths[n]++
	l.most = max(l.most, n)
	for l.most > 0 && l.lengths[l.most] == 0 {
		l.most--
	}
	l.waiting += n - f.waiting
	f.waiting = n
}

// first is who of the lane is next. Somebody must wait.
func (l *lane) first() *waiter { return l.backlog[0].head }

// longest is the flow with the most waiting; of equals the one whose last came last.
func (l *lane) longest() *flow {
	var long *flow
	for _, f := range l.backlog {
		if long == nil || f.waiting > long.waiting || f.waiting == long.waiting && f.tail.ticket > long.tail.ticket {
			long = f
		}
	}
	return long
}

// A backlog is a heap: the flow with the fewest seats first, then the one whose
// turn in virtual time is first, then whose head came first.
type backlog []*flow

func (b backlog) Len() int { return len(b) }

func (b backlog) Less(i, j int) bool {
	x, y := b[i], b[j]
	if x.inFlight != y.inFlight {
		return x.inFlight < y.inFlight
	}
	if x.begin != y.begin {
		return x.begin < y.begin
	}
	return x.head.ticket < y.head.ticket
}

func (b backlog) Swap(i, j int) {
	b[i], b[j] = b[j], b[i]
	b[i].index, b[j].index = i, j
}

// Push is for package heap.
func (b *backlog) Push(x any) {
	f := x.(*flow)
	f.index = len(*b)
	*b = append(*b, f)
}

// Pop is for package heap.
func (b *backlog) Pop() any {
	last := len(*b) - 1
	f := (*b)[last]
	(*b)[last] = nil
	*b = (*b)[:last]
	return f
}
