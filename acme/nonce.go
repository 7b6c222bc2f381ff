package acme

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
)

const (
	noncePrefix  = 8                                 // octets that name the instance
	nonceSealed  = 12 + 8 + 16                       // GCM nonce, counter, tag
	nonceLength  = (noncePrefix+nonceSealed)*8/6 + 1 // base64url characters
	nonceWindow  = 1 << 22                           // how many nonces may be out at a time
	nonceRekeyAt = 1 << 31                           // seals under one key: half of what GCM allows with random nonces
)

// nonces gives out anti-replay nonces and takes each back at most once, in
// constant memory and without a database: a nonce is a sealed counter, and a
// bitmap remembers which of the last nonceWindow counters are still out. What it
// remembers outlives a graceful stop (noncestate.go); a crash, or asking another
// instance, costs a client one badNonce.
type nonces struct {
	window uint64
	rekey  uint64

	mu     sync.RWMutex // guards all below
	prefix [noncePrefix]byte
	next   uint64   // the counter of the next nonce
	out    []uint64 // bit i: the counter that is i modulo window is out
	seals  []seal   // newest first, at most maxSeals
	frozen bool     // what is out was handed on: nothing is taken back any more
}

// maxSeals is how many keys may have nonces out: one more with each restart.
const maxSeals = 8

// A seal is one key, for the counters from there to where the next one begins.
type seal struct {
	aead cipher.AEAD
	key  [32]byte
	from uint64
}

func newNonces(window, rekey uint64) (*nonces, error) {
	if window == 0 || window%64 != 0 || rekey < window {
		return nil, fmt.Errorf("nonce window of %d, new key after %d", window, rekey)
	}
	n := &nonces{window: window, rekey: rekey, out: make([]uint64, window/64)}
	_, _ = rand.Read(n.prefix[:]) // never fails
	return n, n.changeKeyLocked()
}

// changeKeyLocked seals what comes next with a new key. Those before open what is
// still in the window.
func (n *nonces) changeKeyLocked() error {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	s, err := newSeal(key, n.next)
	if err != nil {
		return err
	}
	keep := []seal{s}
	for _, old := range n.seals {
		end := keep[len(keep)-1].from
		if len(keep) == maxSeals || end+n.window <= n.next {
			break // from here on there are too many, or none of theirs can be good
		}
		if old.from < end { // it has sealed something
			keep = append(keep, old)
		}
	}
	n.seals = keep // a new slice: open reads the one before without the lock
	return nil
}

func newSeal(key [32]byte, from uint64) (seal, error) {
	b, err := aes.NewCipher(key[:])
	if err != nil {
		return seal{}, fmt.Errorf("making nonce cipher: %w", err)
	}
	a, err := cipher.NewGCMWithRandomNonce(b)
	if err != nil {
		return seal{}, fmt.Errorf("making nonce cipher: %w", err)
	}
	return seal{a, key, from}, nil
}

// issue returns a new nonce. It forgets the one issued a window ago.
func (n *nonces) issue() (string, error) {
	c, prefix, aead, err := n.draw()
	if err != nil {
		return "", err
	}
	var plain [8]byte
	binary.BigEndian.PutUint64(plain[:], c)
	b := make([]byte, noncePrefix, noncePrefix+nonceSealed)
	copy(b, prefix[:])
	b = aead.Seal(b, nil, plain[:], prefix[:])
	return base64.RawURLEncoding.EncodeToString(b), nil
}

func (n *nonces) draw() (uint64, [noncePrefix]byte, cipher.AEAD, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next-n.seals[0].from >= n.rekey {
		if err := n.changeKeyLocked(); err != nil {
			return 0, n.prefix, nil, err
		}
	}
	c := n.next
	n.next++
	i := c % n.window
	n.out[i/64] |= 1 << (i % 64)
	return c, n.prefix, n.seals[0].aead, nil
}

var errNonce = errors.New("acme: nonce is not one of ours, too old, or used")

// redeem takes a nonce back. It succeeds at most once for each.
func (n *nonces) redeem(nonce string) error {
	c, err := n.open(nonce)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.frozen || c >= n.next || n.next-c > n.window {
		return errNonce
	}
	i := c % n.window
	bit := uint64(1) << (i % 64)
	if n.out[i/64]&bit == 0 {
		return errNonce
	}
	n.out[i/64] &^= bit
	return nil
}

func (n *nonces) open(nonce string) (uint64, error) {
	if len(nonce) != nonceLength {
		return 0, errNonce
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(nonce)
	if err != nil || len(b) != noncePrefix+nonceSealed {
		return 0, errNonce
	}
	n.mu.RLock()
	prefix, seals := n.prefix, n.seals
	n.mu.RUnlock()
	if [noncePrefix]byte(b) != prefix {
		return 0, errNonce
	}
	for i, s := range seals {
		plain, err := s.aead.Open(nil, nil, b[noncePrefix:], prefix[:])
		if err != nil || len(plain) != 8 {
			continue
		}
		// A key seals its own counters only. One that was given out after the
		// state was handed on is none of those.
		c := binary.BigEndian.Uint64(plain)
		if c < s.from || i > 0 && c >= seals[i-1].from {
			return 0, errNonce
		}
		return c, nil
	}
	return 0, errNonce
}
