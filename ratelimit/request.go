package ratelimit

import (
	"net/netip"
	"time"
)

// A request goes through its buckets as one transaction. Those of its source
// are read first; one that refuses ends it, and nothing is written, nor locked.
// If all agree, their sets are locked together, in the order of the tiers, each
// tier having a table of its own. Then the shared buckets are paid, and only if
// these agree too, the others are. So a refused request leaves no trace, and a
// source that is over its limit writes to nothing that it shares.
type request struct {
	now     int64
	cost    Cost
	reserve int

	n    int
	hash uint64 // of the source or account
	verdict
	claims [3]claim
}

// A verdict is what buckets have said to a request so far.
type verdict struct {
	tier     Tier // the first that refused
	never    bool
	shadowed uint16 // tiers in shadow that would have refused
	wait     int64  // the longest
}

// A claim is what a request wants of one bucket in a table.
type claim struct {
	table *table
	set   *set
	lim   *limit
	name  uint64 // with the class
	word  uint64 // of the set, when it was read or locked
	tat   int64  // what the bucket owes, and then what it will
	place int
	tier  Tier
	pays  bool
}

// want adds the bucket of k to those that are asked.
func (r *request) want(s *settings, h *hasher, k key, tier Tier, class uint16) {
	lim := &s.schedules[tier].limits[class]
	if !lim.active {
		return
	}
	hash := h.sum(k, tier)
	if r.n == 0 {
		r.hash = hash
	}
	c := &r.claims[r.n]
	r.n++
	c.table, c.lim, c.tier = s.tables[tier], lim, tier
	c.set, c.name = c.table.at(hash)
	c.name |= uint64(class)
}

// ofSource adds the buckets of a source. One without an address, on a socket of
// this machine, has none.
func (r *request) ofSource(s *settings, h *hasher, source netip.Addr, group Group, endpoint int) {
	if !source.IsValid() {
		return
	}
	a := s.translations.apply(addressOf(source))
	ru := common
	if len(s.sources) > 0 {
		ru = s.sources.find(a)
	}
	if ru.exempt {
		return
	}
	client := clientKey(a, ru)
	client.group = group
	r.want(s, h, client, PerIP, ru.class)
	if !a.is4() && ru.bits < clientBits {
		// An override for a part of a site doesn't share with the rest of it.
		bits := max(siteBits, int(ru.bits))
		r.want(s, h, key{address: a.masked(bits), bits: uint8(bits), group: group}, PerPrefix, ru.class)
	}
	if endpoint >= 0 && s.schedules[EndpointIP].limits[endpoint].active {
		k := clientKey(a, common)
		k.endpoint = uint16(endpoint)
		r.want(s, h, k, EndpointIP, uint16(endpoint))
	}
}

// clientKey is the bucket of the client at a. An override for less than a
// client has one bucket, apart from the client's.
func clientKey(a address, ru rule) key {
	bits := 128
	if !a.is4() {
		bits = max(clientBits, int(ru.bits))
	}
	return key{address: a.masked(bits), bits: uint8(bits)}
}

// attempt decides r under s. A no means that s is not in force any more, and
// that nothing was done.
func (l *Limiter) attempt(r *request, s *settings, all, global *word) bool {
	all, global = all.orNil(), global.orNil()
	asRead := r.read(s)
	if asRead {
		r.judge()
		if r.tier != None {
			return r.look(EndpointAll, all) && r.look(Global, global)
		}
		asRead = r.lockAsRead()
	}
	if !asRead {
		r.lock()
	}
	if l.settings.Load() != s {
		r.restore()
		return false
	}
	if !asRead {
		r.bring(s)
		r.judge()
	}
	done := r.settle(all, global, l.clock)
	r.unlock(s.gen)
	return done
}

// settle asks and pays the shared buckets, and pays those of the source, whose
// sets the caller holds. A no means that nothing was taken.
func (r *request) settle(all, global *word, clock func() int64) bool {
	if r.tier != None {
		return r.look(EndpointAll, all) && r.look(Global, global)
	}
	if !r.share(all, global, clock) {
		return false
	}
	if r.tier == None {
		for i := range r.claims[:r.n] {
			r.claims[i].commit(r.now)
		}
	}
	return true
}

// read finds the buckets without a lock. A no means that somebody writes to
// them, or has to.
func (r *request) read(s *settings) bool {
	for i := range r.claims[:r.n] {
		c := &r.claims[i]
		c.word = c.set.word.Load()
		if c.word&locked != 0 || !isAt(c.word, s.gen) || !c.locate(s, r.now) || c.set.word.Load() != c.word {
			return false
		}
	}
	return true
}

// lock takes the sets. Nobody takes them in another order.
func (r *request) lock() {
	for i := range r.claims[:r.n] {
		c := &r.claims[i]
		c.word = c.set.lock()
	}
}

// lockAsRead takes the sets if they are as they were read, or none of them.
func (r *request) lockAsRead() bool {
	for i := range r.claims[:r.n] {
		if c := &r.claims[i]; !c.set.lockAt(c.word) {
			for j := range r.claims[:i] {
				r.claims[j].set.restore(r.claims[j].word)
			}
			return false
		}
	}
	return true
}

// unlock lets go of the sets, which were brought up to gen.
func (r *request) unlock(gen uint64) {
	for i := range r.claims[:r.n] {
		r.claims[i].set.unlock(r.claims[i].word, gen)
	}
}

// restore lets go of the sets, in which nothing was written.
func (r *request) restore() {
	for i := range r.claims[:r.n] {
		r.claims[i].set.restore(r.claims[i].word)
	}
}

// bring finds the buckets, whose sets the caller holds, and brings them up to
// the settings in force.
func (r *request) bring(s *settings) {
	for i := range r.claims[:r.n] {
		c := &r.claims[i]
		sc := &s.schedules[c.tier]
		if !isAt(c.word, s.gen) {
			c.set.catchUp(sc, s.at)
		}
		for !c.locate(s, r.now) {
			// A reload has given the key another class, and could not know that it is this key.
			old := &sc.limits[c.set.names[c.place].Load()&classMask]
			c.set.tats[c.place].Store(convert(c.set.tats[c.place].Load(), old, c.lim, r.now))
			c.set.names[c.place].Store(c.name)
		}
	}
}

// locate finds the claim's bucket. A no means that it is of another class.
func (c *claim) locate(s *settings, now int64) bool {
	if c.place = c.set.find(c.name); c.place < ways {
		c.tat = c.set.tats[c.place].Load()
		return c.set.names[c.place].Load() == c.name
	}
	c.newcomer(s, now)
	return true
}

// newcomer finds a place for a bucket that has none yet, and is full.
func (c *claim) newcomer(s *settings, now int64) {
	c.place, c.tat = c.set.soonest(), 0
	if !c.table.strict {
		return
	}
	class := c.set.names[c.place].Load() & classMask
	if c.set.tats[c.place].Load()-now > s.schedules[c.tier].limits[class].capacity/2 {
		c.place, c.tat = overflow, c.set.tats[overflow].Load()
	}
}

// judge asks the buckets of the source or account.
func (r *request) judge() {
	r.verdict = verdict{}
	for i := range r.claims[:r.n] {
		c := &r.claims[i]
		reserve := r.reserve
		if c.tier != PerIP && c.tier != PerPrefix {
			reserve = 0
		}
		a := c.lim.ask(c.tat, r.now, r.cost, reserve)
		if c.pays = a.ok(); c.pays {
			c.tat = a.tat
		} else {
			r.refuse(c.tier, a, c.lim.shadow)
		}
	}
}

// covers reports whether a bucket of l has nothing to add to a refusal: it makes
// nobody wait for longer than it takes to bring back what he wants.
func (v *verdict) covers(l *limit, c Cost) bool {
	return l.fits(c) && l.price(c) <= max(v.wait, int64(time.Second))
}

// refuse takes note of a no. In shadow it counts, if the request got that far,
// and does nothing else.
func (r *verdict) refuse(t Tier, a answer, shadow bool) {
	switch {
	case shadow:
		if r.tier == None {
			r.shadowed |= 1 << t
		}
	case a.never && !r.never:
		r.tier, r.never = t, true
	default:
		if r.tier == None {
			r.tier = t
		}
		r.wait = max(r.wait, a.wait)
	}
}

// commit writes what the bucket owes now. The caller holds the set.
func (c *claim) commit(now int64) {
	if !c.pays {
		return
	}
	if c.place == overflow {
		c.table.overflowed.add()
	} else if c.set.names[c.place].Load() != c.name {
		if c.set.tats[c.place].Load() > now {
			c.table.evicted.add()
		}
		c.set.names[c.place].Store(c.name)
	}
	c.set.tats[c.place].Store(c.tat)
}

// look asks a shared bucket how long it would refuse, if that can be longer than
// the others do: mostly it is left alone. A no means that it is sealed.
func (r *request) look(t Tier, w *word) bool {
	if w == nil || w.limit.shadow || r.covers(&w.limit, r.cost) {
		return true
	}
	a, ok := w.look(r.now, r.cost)
	if ok && !a.ok() {
		r.refuse(t, a, false)
	}
	return ok
}

// share takes from the shared buckets, from both or none. A no means that one
// is sealed, and that nothing was taken.
func (r *request) share(all, global *word, clock func() int64) bool {
	p, ok := r.take(EndpointAll, all)
	if !ok {
		return false
	}
	if r.tier != None {
		return r.look(Global, global)
	}
	_, ok = r.take(Global, global)
	if p.price > 0 && (!ok || r.tier != None) {
		all.giveBack(p, clock)
	}
	return ok
}

// take takes from a shared bucket, or notes its no.
func (r *request) take(t Tier, w *word) (payment, bool) {
	if w == nil {
		return payment{}, true
	}
	p, a, ok := w.take(r.now, r.cost)
	if ok && !a.ok() {
		r.refuse(t, a, w.limit.shadow)
	}
	return p, ok
}

// decision is the answer for the caller.
func (r *request) decision(jitter bool) Decision {
	switch {
	case r.tier == None:
		return Decision{OK: true}
	case r.never:
		return Decision{Never: true, Tier: r.tier}
	}
	seconds := (r.wait-1)/int64(time.Second) + 1
	if jitter && seconds > 10 {
		// Each client has its own, so that not all come back at once, and the same every time.
		seconds += int64(r.hash % uint64(seconds/10+1))
	}
	return Decision{Tier: r.tier, RetryAfter: time.Duration(seconds) * time.Second}
}
