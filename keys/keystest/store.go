// Package keystest is a key store in memory that tests can make fail, wait and
// tell what it signed, beside the suite that every key store must pass.
package keystest

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/secsy-pki/secsy-pki/keys"
)

// ErrDevice is what a broken device says: unlike keys.ErrBusy, nobody knows
// whether it signed.
var ErrDevice = errors.New("keystest: device error")

// A Signature is one that a Store was asked for and made.
type Signature struct {
	Label  string
	Digest []byte
	Hash   crypto.Hash
}

// A Store is a keys.Store and keys.Generator in memory. Its hooks may be called at any time.
type Store struct {
	mu     sync.Mutex // guards all below
	keys   map[string]keys.Key
	signed []Signature
	fails  []failure
	hold   *Hold
}

type failure struct {
	err  error
	left int // negative: for ever
}

// New makes an empty store.
func New() *Store { return &Store{keys: make(map[string]keys.Key)} }

// Key implements keys.Store.
func (s *Store) Key(ctx context.Context, label string) (keys.Key, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.keys[label]
	if !ok {
		return nil, fmt.Errorf("%w: %q", keys.ErrNotFound, label)
	}
	return k, nil
}

// Generate implements keys.Generator.
func (s *Store) Generate(ctx context.Context, label string, alg keys.Algorithm) (keys.Key, error) {
	signer, err := keys.NewPrivateKey(alg)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return s.Put(label, signer)
}

// Put takes a private key into the store; keys.ErrExists if the label is taken.
func (s *Store) Put(label string, signer crypto.Signer) (keys.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.keys[label]; ok {
		return nil, fmt.Errorf("%w: %q", keys.ErrExists, label)
	}
	k := key{store: s, label: label, Key: keys.FromSigner(signer)}
	s.keys[label] = k
	return k, nil
}

// Fail makes every further signature fail with err, keys.ErrBusy or ErrDevice
// say, without signing. A nil err ends that, and what FailNext began.
func (s *Store) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = nil
	if err != nil {
		s.fails = []failure{{err, -1}}
	}
}

// FailNext makes the next n signatures fail with err. Calls add up, in order.
func (s *Store) FailNext(n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = append(s.fails, failure{err, n})
}

// Signed lists the signatures made, in order.
func (s *Store) Signed() []Signature {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.signed)
}

// Signatures counts the signatures made.
func (s *Store) Signatures() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.signed)
}

// A Hold keeps signatures waiting, as a busy device does, until they are
// released or their context ends.
type Hold struct {
	// Arrived gets a label for each signature that begins to wait; the test
	// receives as many as it expects.
	Arrived  <-chan string
	arrived  chan string
	released chan struct{}
	once     sync.Once
}

// Hold makes signatures that are asked for from now on wait. A later Hold takes
// the place of an earlier one for those asked for after it.
func (s *Store) Hold() *Hold {
	arrived := make(chan string, 1<<10)
	h := &Hold{Arrived: arrived, arrived: arrived, released: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold = h
	return h
}

// Release lets all that wait go on, and those to come pass.
func (h *Hold) Release() { h.once.Do(func() { close(h.released) }) }

func (h *Hold) wait(ctx context.Context, label string) error {
	select {
	case <-h.released:
		return nil
	default:
	}
	select {
	case h.arrived <- label:
	default: // a test that holds more than it counts
	}
	select {
	case <-h.released:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type key struct {
	keys.Key
	store *Store
	label string
}

func (k key) Sign(ctx context.Context, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if err := k.store.before(ctx, k.label); err != nil {
		return nil, err
	}
	sig, err := k.Key.Sign(ctx, digest, opts)
	if err != nil {
		return nil, err
	}
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	k.store.signed = append(k.store.signed, Signature{k.label, slices.Clone(digest), opts.HashFunc()})
	return sig, nil
}

func (s *Store) before(ctx context.Context, label string) error {
	s.mu.Lock()
	h := s.hold
	s.mu.Unlock()
	if h != nil {
		if err := h.wait(ctx, label); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nextFailureLocked()
}

func (s *Store) nextFailureLocked() error {
	for len(s.fails) > 0 {
		f := &s.fails[0]
		switch {
		case f.left < 0:
			return f.err
		case f.left > 0:
			f.left--
			return f.err
		}
		s.fails = s.fails[1:]
	}
	return nil
}
