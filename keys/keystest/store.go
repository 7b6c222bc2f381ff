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
	"time"

	"github.com/secsy-pki/secsy-pki/keys"
)

// ErrDevice is what a broken device says: unlike keys.ErrBusy, nobody knows
// whether it signed.
var ErrDevice = errors.New("keystest: device error")

// A Signature is one that a Store was asked for and made.
type Signature struct {
	Label      string
	Digest     []byte
	Hash       crypto.Hash
	Repeatable bool // keys.IsRepeatable
}

// A Store is a keys.Store, keys.Generator and keys.Destroyer in memory. Its hooks may be called at any time.
type Store struct {
	mu     sync.Mutex // guards all below
	keys   map[string]keys.Key
	signed []Signature
	asked  int
	fails  []failure
	hold   *Hold
	hang   *Hang
	away   *keys.BusyError // nil: the device is there
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
	if s.away != nil {
		return nil, s.away
	}
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
	if err := s.ready(); err != nil {
		return nil, err
	}
	return s.Put(label, signer)
}

// Destroy implements keys.Destroyer.
func (s *Store) Destroy(ctx context.Context, label string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away != nil {
		return s.away
	}
	if _, ok := s.keys[label]; !ok {
		return fmt.Errorf("%w: %q", keys.ErrNotFound, label)
	}
	delete(s.keys, label)
	return nil
}

// Put takes a private key into the store; keys.ErrExists if the label is taken.
func (s *Store) Put(label string, signer crypto.Signer) (keys.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.keys[label]; ok {
		return nil, fmt.Errorf("%w: %q", keys.ErrExists, label)
	}
	inner := keys.FromSigner(signer)
	var k keys.Key = key{store: s, label: label, Key: inner}
	if d, ok := inner.(keys.Decrypter); ok {
		k = decrypter{key{store: s, label: label, Key: inner}, d}
	}
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

// Away makes the device one that is known to be away: keys are not found, nothing
// is signed, and all says at once to come again after retry.
func (s *Store) Away(retry time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = &keys.BusyError{Reason: "away", RetryAfter: retry}
}

// Back ends what Away began.
func (s *Store) Back() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = nil
}

// ready is what the store knows of its device without asking it.
func (s *Store) ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away != nil {
		return s.away
	}
	return nil
}

// A Hang is a device that does not return from calls. Nobody waits for them.
type Hang struct {
	store    *Store
	returned chan struct{}
	once     sync.Once
}

// Hang makes signatures that are asked for from now on hang: each fails at once
// with a *keys.HungError, and is never made.
func (s *Store) Hang() *Hang {
	h := &Hang{store: s, returned: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hang = h
	return h
}

// Recover makes signatures to come pass, while those that hang go on hanging.
func (h *Hang) Recover() {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	if h.store.hang == h {
		h.store.hang = nil
	}
}

// Return has all calls that hang come back, and does what Recover does.
func (h *Hang) Return() {
	h.Recover()
	h.once.Do(func() { close(h.returned) })
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

// Asked counts the signatures that were asked for, made or not.
func (s *Store) Asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
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

// Ready implements what keys.Ready asks.
func (k key) Ready() error { return k.store.ready() }

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
	k.store.signed = append(k.store.signed, Signature{k.label, slices.Clone(digest), opts.HashFunc(), keys.IsRepeatable(ctx)})
	return sig, nil
}

type decrypter struct {
	key
	inner keys.Decrypter
}

// Decrypt implements keys.Decrypter: it fails and waits as signatures do.
func (k decrypter) Decrypt(ctx context.Context, ciphertext []byte, opts crypto.DecrypterOpts) ([]byte, error) {
	if err := k.store.before(ctx, k.label); err != nil {
		return nil, err
	}
	return k.inner.Decrypt(ctx, ciphertext, opts)
}

func (s *Store) before(ctx context.Context, label string) error {
	s.mu.Lock()
	s.asked++
	h := s.hold
	s.mu.Unlock()
	if h != nil {
		if err := h.wait(ctx, label); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.away != nil:
		return s.away
	case s.hang != nil:
		return &keys.HungError{After: hungAfter, Returned: s.hang.returned}
	}
	return s.nextFailureLocked()
}

// hungAfter is how long a Hang says that it was waited for.
const hungAfter = 30 * time.Second

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
