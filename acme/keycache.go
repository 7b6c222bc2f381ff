package acme

import (
	"errors"
	"sync"

	jose "github.com/go-jose/go-jose/v4"
)

// keysCached is how many keys a keyCache remembers at least, and half of how
// many at most: some kilooctets each.
const keysCached = 2048

// A keyCache remembers the keys of accounts, parsed. It goes by what the account's
// row says that its key is now, so it is right whatever becomes of the account, here
// or on another replica: a thumbprint is of one key only.
type keyCache struct {
	mu  sync.Mutex // guards both
	now map[string]*jose.JSONWebKey
	old map[string]*jose.JSONWebKey // what was not asked for since now began goes with it
}

func newKeyCache() *keyCache { return &keyCache{now: make(map[string]*jose.JSONWebKey)} }

// of returns the key of a. An account that does not exist has a decoy's, which is
// remembered like any other: who asks again and again learns nothing by the clock.
func (c *keyCache) of(a Account) (*jose.JSONWebKey, error) {
	if k := c.get(a.Thumbprint); k != nil {
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

func (c *keyCache) get(thumbprint string) *jose.JSONWebKey {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.now[thumbprint]; k != nil {
		return k
	}
	k := c.old[thumbprint]
	if k != nil {
		c.putLocked(thumbprint, k)
	}
	return k
}

func (c *keyCache) put(thumbprint string, k *jose.JSONWebKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(thumbprint, k)
}

func (c *keyCache) putLocked(thumbprint string, k *jose.JSONWebKey) {
	if len(c.now) >= keysCached {
		c.old, c.now = c.now, make(map[string]*jose.JSONWebKey, keysCached)
	}
	c.now[thumbprint] = k
}
