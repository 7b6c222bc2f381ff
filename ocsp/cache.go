package ocsp

import (
	"hash/maphash"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

// A subject is a certificate that is asked about.
type subject struct {
	issuer int
	serial ca.Serial
}

// An answer is a signed response with what HTTP says about it. What many read at
// once does not change once it is made, but for the atomics.
type answer struct {
	body       []byte
	etag       string
	producedAt time.Time
	nextUpdate time.Time
	ends       time.Time // from here on it is not sent: its own time is over, or that of the record
	status     Status    // of the one certificate it is about
	by         *delegate
	shared     bool // with all who ask the same, and not with one alone
	header     sharedHeader

	refreshAt atomic.Int64 // in Unix nanoseconds; from here on it is signed anew when asked for
	asked     atomic.Bool  // by somebody, after it was made
	gone      atomic.Bool  // it left the cache: its place was needed, or it is not true any more

	// The mutex of the place's shard guards what is below.
	place     *place // nil: it was never in the cache
	certID    string
	spellings []string // of requests for it, for which it is found without reading them
}

// A sharedHeader are the values of an answer's header, made once. Nobody changes
// them: who appends makes a copy.
type sharedHeader struct {
	length, etag, lastModified, expires []string

	control atomic.Pointer[cacheControl]
}

// A cacheControl is what Cache-Control says during one second.
type cacheControl struct {
	age   int64
	value []string
}

// lengths are values of Content-Length, made when first needed.
var lengths [4 << 10]atomic.Pointer[[]string]

// lengthOf is Content-Length for n octets. Nobody changes it.
func lengthOf(n int) []string {
	if n >= len(lengths) {
		return []string{strconv.Itoa(n)}
	}
	if v := lengths[n].Load(); v != nil {
		return *v
	}
	v := []string{strconv.Itoa(n)}
	lengths[n].Store(&v)
	return v
}

// prepare makes the header's values, but for the length.
func (a *answer) prepare() {
	a.header.etag = []string{a.etag}
	a.header.lastModified = []string{a.producedAt.Format(http.TimeFormat)}
	a.header.expires = []string{a.nextUpdate.Format(http.TimeFormat)}
}

// maxAge is Cache-Control for so many seconds.
func (h *sharedHeader) maxAge(age int64) []string {
	if c := h.control.Load(); c != nil && c.age == age {
		return c.value
	}
	c := &cacheControl{age: age, value: []string{"max-age=" + strconv.FormatInt(age, 10) + ", public, no-transform, must-revalidate"}}
	h.control.Store(c)
	return c.value
}

// valid reports whether a's time has not passed, and its signer is trusted still.
func (a *answer) valid(now time.Time) bool { return now.Before(a.ends) && !a.by.revoked.Load() }

// due reports whether a is to be signed anew.
func (a *answer) due(now time.Time) bool { return now.UnixNano() >= a.refreshAt.Load() }

// tells reports whether a may still be sent about a certificate that is in state st.
func (a *answer) tells(st Status, now time.Time) bool { return a.status.same(st) && a.valid(now) }

const (
	shards = 64
	// maxForms bounds the answers about one certificate: four hashes, each with
	// parameters and without.
	maxForms = 8
	// maxSpellings bounds the requests by which one answer is found unread; the
	// oldest gives way. A client that thinks up ever more of them drives out no
	// answer, and no more than these.
	maxSpellings = 4
	// maxSpelling is the longest of them. It takes a CertID by SHA-512, with every
	// third character escaped.
	maxSpelling = 512
)

// A cache keeps the answers that were asked for, by the certificate that they
// are about, and finds them by the very request that was answered with them
// before. When it is full, those go that nobody asked for since their turn came
// last.
type cache struct {
	seed    maphash.Seed
	certs   [shards]certShard
	spelled [shards]spellShard
	answers atomic.Int64
}

type certShard struct {
	mu      sync.RWMutex // guards what follows; it is taken before that of a spellShard
	size    int
	places  map[subject]*place
	ring    []*place
	hand    int
	changes uint64 // of statuses of certificates in this shard, so far
}

// A place is what is kept about one certificate.
type place struct {
	subject subject
	answers []*answer
	index   int // in the ring
	used    atomic.Bool
}

type spellShard struct {
	mu      sync.RWMutex
	answers map[string]*answer
}

func newCache(size int) *cache {
	c := &cache{seed: maphash.MakeSeed()}
	for i := range shards {
		c.certs[i].size = max(1, (size+shards-1)/shards)
		c.certs[i].places = make(map[subject]*place)
		c.spelled[i].answers = make(map[string]*answer)
	}
	return c
}

func (c *cache) shard(s subject) *certShard {
	return &c.certs[(maphash.String(c.seed, string(s.serial))+uint64(s.issuer))%shards]
}

func (c *cache) spellShard(spelling string) *spellShard {
	return &c.spelled[maphash.String(c.seed, spelling)%shards]
}

// changes is how often a status of a certificate like s has changed so far. Who
// asks the store reads it before, and gives it to put.
func (c *cache) changes(s subject) uint64 {
	sh := c.shard(s)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	return sh.changes
}

// get returns the answer to a CertID; nil: there is none.
func (c *cache) get(s subject, certID []byte) *answer {
	sh := c.shard(s)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	p := sh.places[s]
	if p == nil {
		return nil
	}
	for _, a := range p.answers {
		if a.certID == string(certID) {
			a.use()
			return a
		}
	}
	return nil
}

// use is written by many at once, and so only if it says something new.
func (a *answer) use() {
	if !a.place.used.Load() {
		a.place.used.Store(true)
	}
	if !a.asked.Load() {
		a.asked.Store(true)
	}
}

// bySpelling returns the answer to a request that is octet for octet one that
// was answered with it before; nil: there is none.
func (c *cache) bySpelling(spelling string) *answer {
	sh := c.spellShard(spelling)
	sh.mu.RLock()
	a := sh.answers[spelling]
	sh.mu.RUnlock()
	if a == nil || a.gone.Load() {
		return nil
	}
	a.use()
	return a
}

// put keeps a, unless a status may have changed since changes was what it is
// given as: then a may say what is not true any more.
func (c *cache) put(s subject, certID []byte, changes uint64, a *answer) bool {
	sh := c.shard(s)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.changes != changes {
		return false
	}
	p := sh.places[s]
	if p == nil {
		p = &place{subject: s}
		c.enterLocked(sh, p)
	}
	a.place, a.certID = p, string(certID)
	for i, old := range p.answers {
		if old.certID == a.certID {
			if old != a {
				c.dropLocked(old)
				c.answers.Add(1)
				p.answers[i] = a
			}
			return true
		}
	}
	if len(p.answers) == maxForms {
		c.dropLocked(p.answers[0])
		p.answers = append(p.answers[:0], p.answers[1:]...)
	}
	p.answers = append(p.answers, a)
	c.answers.Add(1)
	return true
}

// enterLocked gives p a place, which the first one loses that was not used since
// the hand came by.
func (c *cache) enterLocked(sh *certShard, p *place) {
	for len(sh.ring) >= sh.size {
		sh.hand %= len(sh.ring)
		if victim := sh.ring[sh.hand]; !victim.used.Swap(false) {
			c.leaveLocked(sh, victim)
			break
		}
		sh.hand++
	}
	p.index = len(sh.ring)
	sh.ring = append(sh.ring, p)
	sh.places[p.subject] = p
}

// leaveLocked takes all away that is known of a certificate.
func (c *cache) leaveLocked(sh *certShard, p *place) {
	for _, a := range p.answers {
		c.dropLocked(a)
	}
	last := len(sh.ring) - 1
	sh.ring[p.index] = sh.ring[last]
	sh.ring[p.index].index = p.index
	sh.ring[last] = nil
	sh.ring = sh.ring[:last]
	delete(sh.places, p.subject)
}

// dropLocked has a never found again.
func (c *cache) dropLocked(a *answer) {
	a.gone.Store(true)
	c.answers.Add(-1)
	for _, s := range a.spellings {
		c.unspell(a, s)
	}
	a.spellings = nil
}

func (c *cache) unspell(a *answer, spelling string) {
	sh := c.spellShard(spelling)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.answers[spelling] == a {
		delete(sh.answers, spelling)
	}
}

// spell has a found by a request that was answered with it.
func (c *cache) spell(a *answer, spelling string) {
	if len(spelling) > maxSpelling || a.place == nil {
		return
	}
	sh := c.shard(a.place.subject)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if a.gone.Load() {
		return
	}
	for _, s := range a.spellings {
		if s == spelling {
			return
		}
	}
	if len(a.spellings) == maxSpellings {
		c.unspell(a, a.spellings[0])
		a.spellings = append(a.spellings[:0], a.spellings[1:]...)
	}
	a.spellings = append(a.spellings, spelling)
	to := c.spellShard(spelling)
	to.mu.Lock()
	defer to.mu.Unlock()
	to.answers[spelling] = a
}

// change forgets a certificate whose status has changed, and has nothing put that
// is from before.
func (c *cache) change(s subject) {
	sh := c.shard(s)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.changes++
	if p := sh.places[s]; p != nil {
		c.leaveLocked(sh, p)
	}
}

// clear is a change of all.
func (c *cache) clear() {
	for i := range c.certs {
		sh := &c.certs[i]
		sh.mu.Lock()
		sh.changes++
		for len(sh.ring) > 0 {
			c.leaveLocked(sh, sh.ring[len(sh.ring)-1])
		}
		sh.mu.Unlock()
	}
}

func (c *cache) len() int { return int(c.answers.Load()) }
