package acme

import (
	"errors"
	"sync"

	jose "github.com/go-jose/go-jose/v4"
)

// keysCached is how many keys a keyCache remembers at least, and half of how
// many at most: some kilooctets each.
const keysCached = 2048

// A keyCache remembers the keys of accounts, parsed, by their thumbprints. It is
// right whatever becomes of an account, here or on another replica: a thumbprint is
// of one key only.
type keyCache struct{ *recent[*jose.JSONWebKey] }

func newKeyCache() *keyCache { return &keyCache{newRecent[*jose.JSONWebKey](keysCached)} }

// of returns the key of a. An account that does not exist has a decoy's, which is
// remembered like any other: who asks again and again learns nothing by the clock.
func (c *keyCache) of(a Account) (*jose.JSONWebKey, error) {
	if k, ok := c.get(a.Thumbprint); ok {
		return k, nil
	}
	k, err := parseKey(a.Key)
	if err != nil {
		// Not wrapped: the problem inside is not the client's.
		return nil, errors.New("reading key of account " + a.ID + ": " + err.Error())
	}
	c.put(a.Thumbprint, k)
	return k, nil
}

// A recent remembers what was asked for lately: the last n at least, and never
// more than twice as many.
type recent[T any] struct {
	n int

	mu  sync.Mutex // guards both
	now map[string]T
	old map[string]T // what was not asked for since now began goes with it
}

func newRecent[T any](n int) *recent[T] { return &recent[T]{n: n, now: make(map[string]T)} }

func (c *recent[T]) get(id string) (T, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.now[id]
	if ok {
		return v, true
	}
	if v, ok = c.old[id]; ok {
		c.putLocked(id, v)
	}
	return v, ok
}

func (c *recent[T]) put(id string, v T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(id, v)
}

func (c *recent[T]) putLocked(id string, v T) {
	if _, ok := c.now[id]; !ok && len(c.now) >= c.n {
		c.old, c.now = c.now, make(map[string]T, c.n)
	}
	c.now[id] = v
}
