package ratelimit

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// ways is how many keys a set holds, so that it fills two cache lines.
const ways = 7

// overflow is the place of a set's bucket for newcomers, in a strict table.
const overflow = ways

// classBits is how many bits of an entry's name say which limit its debt is
// measured by. The rest are of the key's hash.
const classBits = 16

// A set is where the keys live whose hashes fall on it: 7 of them in 128 bytes.
//
// Who reads it needs no lock: what was read is true if word is the same before
// and after, and was not locked. Who writes locks it, if need be on condition
// that nothing has changed since it was read.
type set struct {
	// word is the lock (bit 0), a version that changes with each lock, and the
	// generation of the settings that the entries were last brought up to.
	word  atomic.Uint64
	names [ways]atomic.Uint64    // hash and class; 0 is nobody
	tats  [ways + 1]atomic.Int64 // the last is the overflow
}

const (
	locked          = 1
	generationShift = 40
	generationMask  = 1<<(64-generationShift) - 1
	classMask       = 1<<classBits - 1
)

// isAt reports whether a set whose word is w was brought up to gen. One that is
// behind is so by one generation.
func isAt(w, gen uint64) bool { return w>>generationShift == gen&generationMask }

// A table is a fixed number of buckets by key.
//
// A set that is full forgets the key that owes least, so that what is lost is
// exactly that debt, and nothing at all with a key that owes nothing. A flood of
// keys that are used once drives out its own like, never a key that has used up
// its bucket. Recency, by which caches choose, would do the opposite.
//
// A strict table forgets no key that owes more than half of its burst. If all
// of a set do, the newcomer is charged to a bucket that it shares with the
// other newcomers of the set: then it is they who are turned away.
type table struct {
	sets   []set
	strict bool

	evicted    striped // keys that were forgotten with a debt
	overflowed striped // newcomers charged to an overflow
}

func newTable(keys int, strict bool) *table {
	return &table{sets: make([]set, (keys+ways-1)/ways), strict: strict}
}

// slots is how many keys fit.
func (t *table) slots() int { return len(t.sets) * ways }

// bytes is the memory of the sets.
func (t *table) bytes() int { return len(t.sets) * int(unsafe.Sizeof(set{})) }

// at returns the set of a hash, and how its entries begin with the name of it.
func (t *table) at(hash uint64) (s *set, name uint64) {
	// The upper bits choose the set, the lower ones tell keys within it apart.
	i, _ := bits.Mul64(hash, uint64(len(t.sets)))
	name = hash << classBits
	if name == 0 {
		name = 1 << classBits // no hash is nobody's
	}
	return &t.sets[i], name
}

// lock waits for the set, and returns its word. It is held for some tens of
// nanoseconds, unless the holder's thread is taken off its processor meanwhile.
func (s *set) lock() uint64 {
	for i := 1; ; i++ {
		if w := s.word.Load(); s.lockAt(w) {
			return w
		}
		if i%16 == 0 {
			runtime.Gosched()
		}
	}
}

// lockAt locks the set if its word is still w.
func (s *set) lockAt(w uint64) bool {
	return w&locked == 0 && s.word.CompareAndSwap(w, w|locked)
}

// unlock lets go of the set, whose word was w, and which was brought up to gen.
func (s *set) unlock(w, gen uint64) {
	const versionMask = 1<<generationShift - 1
	s.word.Store(gen<<generationShift | (w+2)&versionMask)
}

// restore lets go of the set, in which nothing was written.
func (s *set) restore(w uint64) { s.word.Store(w) }

// find returns the place of name, whatever its class, or ways if it has none.
func (s *set) find(name uint64) int {
	for i := range s.names {
		if (s.names[i].Load()^name)>>classBits == 0 {
			return i
		}
	}
	return ways
}

// soonest returns the place of whoever owes least: it is free again first.
func (s *set) soonest() int {
	place, soonest := 0, s.tats[0].Load()
	for i := 1; i < ways; i++ {
		if tat := s.tats[i].Load(); tat < soonest {
			place, soonest = i, tat
		}
	}
	return place
}

// catchUp brings the entries, which are a generation behind, up to sc. The
// caller holds the lock.
func (s *set) catchUp(sc *schedule, at int64) {
	for i := range s.names {
		n := s.names[i].Load()
		if n == 0 {
			continue
		}
		m := &sc.moves[n&classMask]
		s.tats[i].Store(convert(s.tats[i].Load(), &m.from, &sc.limits[m.to], at))
		s.names[i].Store(n&^classMask | uint64(m.to))
	}
	if tat := s.tats[overflow].Load(); tat != 0 {
		m := &sc.moves[0]
		s.tats[overflow].Store(convert(tat, &m.from, &sc.limits[m.to], at))
	}
}

// sweep brings the whole table up to gen, one set at a time. Nobody waits for
// it: who comes to a set before it does the same for that set.
func (t *table) sweep(sc *schedule, gen uint64, at int64) {
	for i := range t.sets {
		s := &t.sets[i]
		if s.word.Load() == 0 {
			// Never used. Whoever uses it from now on sees the new settings.
			continue
		}
		w := s.lock()
		if !isAt(w, gen) {
			s.catchUp(sc, at)
		}
		s.unlock(w, gen)
	}
}

// striped is a counter whose parts live in cache lines of their own.
type striped [stripes]struct {
	n atomic.Int64
	_ [56]byte
}

func (c *striped) add() { c[stripeOf()].n.Add(1) }

func (c *striped) sum() int64 {
	var n int64
	for i := range c {
		n += c[i].n.Load()
	}
	return n
}
