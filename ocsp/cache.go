package ocsp

import (
	"sync"
	"time"
)

// An answer is a signed response with what HTTP says about it.
type answer struct {
	body       []byte
	etag       string
	producedAt time.Time
	nextUpdate time.Time
	refreshAt  time.Time // from here on it is signed anew when asked for
	status     Status    // of the one certificate it is about
	by         *delegate
}

// tells reports whether a may still be sent about a certificate that is in state st.
func (a *answer) tells(st Status, now time.Time) bool {
	return a.status.same(st) && now.Before(a.nextUpdate) && !a.by.revoked.Load()
}

// A cacheKey names a response: the CertID is the requester's, hash algorithm
// and all, since the response repeats it.
type cacheKey struct {
	issuer int
	certID string
}

// A cache keeps the answers that were asked for last: between size and twice
// size of them, in two generations, the older of which goes when the younger
// is full.
type cache struct {
	size int

	mu  sync.Mutex // guards both maps
	new map[cacheKey]*answer
	old map[cacheKey]*answer
}

func newCache(size int) *cache {
	return &cache{size: size, new: make(map[cacheKey]*answer)}
}

func (c *cache) get(k cacheKey) *answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a, ok := c.new[k]; ok {
		return a
	}
	a, ok := c.old[k]
	if ok {
		c.putLocked(k, a)
	}
	return a
}

func (c *cache) put(k cacheKey, a *answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(k, a)
}

func (c *cache) putLocked(k cacheKey, a *answer) {
	if _, there := c.new[k]; !there && len(c.new) >= c.size {
		c.old, c.new = c.new, make(map[cacheKey]*answer)
	}
	c.new[k] = a
}

func (c *cache) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.new) + len(c.old)
}
