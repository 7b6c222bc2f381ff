package keys

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// laterRetry is when to come back to a key that is not found yet.
const laterRetry = 5 * time.Second

// A LateKey is a key whose public half is known, from its certificate say, while
// the device that has it is away. Whoever made it calls Find until that
// succeeds; a signature looks for the key too.
type LateKey struct {
	store  Store
	label  string
	public crypto.PublicKey
	found  atomic.Pointer[late]

	mu   sync.Mutex // guards last
	last error      // of looking for it
}

// late is what was found: the key, or that it is another one.
type late struct {
	key Key
	err error
}

// Later returns the key of that label in s, which will be looked for, as it
// could not be found so far for the reason why. It must turn out to be the
// private half of public.
func Later(s Store, label string, public crypto.PublicKey, why error) *LateKey {
	return &LateKey{store: s, label: label, public: public, last: why}
}

// Public implements Key.
func (k *LateKey) Public() crypto.PublicKey { return k.public }

// Find looks for the key if it isn't found yet. That the store has another key
// under the label is final; every other error may pass.
func (k *LateKey) Find(ctx context.Context) error {
	_, err := k.find(ctx)
	return err
}

func (k *LateKey) find(ctx context.Context) (Key, error) {
	if f := k.found.Load(); f != nil {
		return f.key, f.err
	}
	key, err := k.store.Key(ctx, k.label)
	if err != nil {
		k.mu.Lock()
		k.last = err
		k.mu.Unlock()
		return nil, err
	}
	f := &late{key: key}
	if pub, ok := k.public.(interface{ Equal(x crypto.PublicKey) bool }); !ok || !pub.Equal(key.Public()) {
		f = &late{err: fmt.Errorf("%w: %q", ErrOtherKey, k.label)}
	}
	k.found.Store(f)
	return f.key, f.err
}

// Sign implements Key. What can't be found is not signed with, so its error is a
// *BusyError unless it is final.
func (k *LateKey) Sign(ctx context.Context, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	key, err := k.find(ctx)
	if err != nil {
		return nil, notFoundYet(err)
	}
	return key.Sign(ctx, digest, opts)
}

// Ready is what keys.Ready asks: until the key is found, it is not.
func (k *LateKey) Ready() error {
	if f := k.found.Load(); f != nil {
		if f.err != nil {
			return f.err
		}
		return Ready(f.key)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return notFoundYet(k.last)
}

func notFoundYet(err error) error {
	if errors.Is(err, ErrBusy) || errors.Is(err, ErrOtherKey) {
		return err
	}
	return &BusyError{Reason: "not found yet", RetryAfter: laterRetry, Err: err}
}
