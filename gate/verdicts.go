package gate

import (
	"container/list"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"sync"
	"time"
)

// VerdictsConfig says how much is remembered. Zeros, and what is less, mean the
// defaults.
type VerdictsConfig struct {
	Max int           // credentials in all; 4096
	TTL time.Duration // after which they are to be verified again; 5 minutes
}

// maxSecret is how long a name or password can be to be remembered: what is
// longer is verified each time, if at all.
const maxSecret = 1024

// Credentials are what somebody logs in with.
type Credentials struct {
	Client       string // as for the Governor; what one client got right is not known of another
	User, Secret string
	// Version changes whenever a password does: of the whole list of users, so
	// that no name need be looked up to ask.
	Version string
}

// Verdicts remembers credentials that were found right, so that they need not be
// verified again for a while, nor wait for a Governor. What was wrong is not
// remembered. It is safe for concurrent use.
//
// No name and no password is kept, only a digest under a key that ends with the
// process. When it is full the client with most entries gives up its oldest; so
// nobody's entries can be washed out by another who has fewer.
type Verdicts struct {
	config VerdictsConfig
	key    []byte

	mu      sync.Mutex // guards what follows
	entries map[verdictKey]*verdict
	clients map[string]*list.List // of *verdict, the oldest in front
	ages    *list.List            // of *verdict, the oldest in front
	stat    VerdictsStat
}

type verdictKey [sha256.Size]byte

type verdict struct {
	key     verdictKey
	client  string
	expires time.Time
	seq     int64 // grows from verdict to verdict
	own     *list.Element
	age     *list.Element
}

// VerdictsStat counts what Verdicts did.
type VerdictsStat struct {
	Entries, Clients int
	Hits, Misses     int64
	Evicted          int64 // for want of room
}

// NewVerdicts returns empty Verdicts.
func NewVerdicts(c VerdictsConfig) *Verdicts {
	if c.Max <= 0 {
		c.Max = 4096
	}
	if c.TTL <= 0 {
		c.TTL = 5 * time.Minute
	}
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // never fails: it ends the program instead
	return &Verdicts{
		config: c, key: key,
		entries: make(map[verdictKey]*verdict), clients: make(map[string]*list.List), ages: list.New(),
	}
}

// Known reports whether exactly c was found right not long ago.
func (v *Verdicts) Known(c Credentials) bool {
	if !c.short() {
		return false
	}
	key, now := v.keyOf(c), time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.expireLocked(now)
	if v.entries[key] == nil {
		v.stat.Misses++
		return false
	}
	v.stat.Hits++
	return true
}

// Learn remembers that c was found right.
func (v *Verdicts) Learn(c Credentials) {
	if !c.short() {
		return
	}
	key, now := v.keyOf(c), time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.expireLocked(now)
	if old := v.entries[key]; old != nil {
		v.dropLocked(old)
	}
	v.addLocked(&verdict{key: key, client: c.Client, expires: now.Add(v.config.TTL)})
	if len(v.entries) > v.config.Max {
		v.dropLocked(v.victimLocked())
		v.stat.Evicted++
	}
}

// Stat returns the counts as they are now.
func (v *Verdicts) Stat() VerdictsStat {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.expireLocked(time.Now())
	st := v.stat
	st.Entries, st.Clients = len(v.entries), len(v.clients)
	return st
}

func (c Credentials) short() bool { return len(c.User) <= maxSecret && len(c.Secret) <= maxSecret }

// keyOf is the digest of c. Each part is written with its length before it: no
// two credentials are the same octets, as "admin" with "a:b" and "admin:a" with
// "b" would be if they were only joined.
func (v *Verdicts) keyOf(c Credentials) (key verdictKey) {
	mac := hmac.New(sha256.New, v.key)
	for _, part := range []string{c.Client, c.User, c.Secret, c.Version} {
		writePart(mac, part)
	}
	mac.Sum(key[:0])
	return key
}

func writePart(h hash.Hash, part string) {
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(part)))
	h.Write(length[:])
	h.Write([]byte(part))
}

// expireLocked drops what is too old. All live equally long, so that the oldest
// go first.
func (v *Verdicts) expireLocked(now time.Time) {
	for e := v.ages.Front(); e != nil; e = v.ages.Front() {
		oldest := e.Value.(*verdict)
		if now.Before(oldest.expires) {
			return
		}
		v.dropLocked(oldest)
	}
}

func (v *Verdicts) addLocked(one *verdict) {
	own := v.clients[one.client]
	if own == nil {
		own = list.New()
		v.clients[one.client] = own
	}
	if last := v.ages.Back(); last != nil {
		one.seq = last.Value.(*verdict).seq + 1
	}
	one.own, one.age = own.PushBack(one), v.ages.PushBack(one)
	v.entries[one.key] = one
}

func (v *Verdicts) dropLocked(one *verdict) {
	own := v.clients[one.client]
	own.Remove(one.own)
	if own.Len() == 0 {
		delete(v.clients, one.client)
	}
	v.ages.Remove(one.age)
	delete(v.entries, one.key)
}

// victimLocked is the oldest entry of the client that has most; of several such
// clients, that whose oldest is the oldest. Looking at all of them is little
// beside the verification that led here.
func (v *Verdicts) victimLocked() *verdict {
	var victim *verdict
	most := 0
	for _, own := range v.clients {
		oldest := own.Front().Value.(*verdict)
		if own.Len() > most || (own.Len() == most && oldest.seq < victim.seq) {
			victim, most = oldest, own.Len()
		}
	}
	return victim
}
