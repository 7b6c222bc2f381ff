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
// bitmap remembers which of the last nonceWindow counters are still out.
// Restarting, or asking another instance, costs a client one badNonce.
type nonces struct {
	prefix [noncePrefix]byte
	window uint64
	rekey  uint64

	mu    sync.Mutex // guards all below
	next  uint64     // the counter of the next nonce
	out   []uint64   // bit i: the counter that is i modulo window is out
	seals [2]cipher.AEAD
}

func newNonces(window, rekey uint64) (*nonces, error) {
	if window == 0 || window%64 != 0 || rekey < window {
		return nil, fmt.Errorf("nonce window of %d, new key after %d", window, rekey)
	}
	n := &nonces{window: window, rekey: rekey, out: make([]uint64, window/64)}
	_, _ = rand.Read(n.prefix[:]) // never fails
	var err error
	if n.seals[0], err = newSeal(); err != nil {
		return nil, err
	}
	n.seals[1] = n.seals[0]
	return n, nil
}

func newSeal() (cipher.AEAD, error) {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	b, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, fmt.Errorf("making nonce cipher: %w", err)
	}
	a, err := cipher.NewGCMWithRandomNonce(b)
	if err != nil {
		return nil, fmt.Errorf("making nonce cipher: %w", err)
	}
	return a, nil
}

// issue returns a new nonce. It forgets the one issued a window ago.
func (n *nonces) issue() (string, error) {
	c, seal, err := n.draw()
	if err != nil {
		return "", err
	}
	var plain [8]byte
	binary.BigEndian.PutUint64(plain[:], c)
	b := make([]byte, noncePrefix, noncePrefix+nonceSealed)
	copy(b, n.prefix[:])
	b = seal.Seal(b, nil, plain[:], n.prefix[:])
	return base64.RawURLEncoding.EncodeToString(b), nil
}

func (n *nonces) draw() (uint64, cipher.AEAD, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next > 0 && n.next%n.rekey == 0 {
		seal, err := newSeal()
		if err != nil {
			return 0, nil, err
		}
		// The key before opens what is still in the window.
		n.seals = [2]cipher.AEAD{seal, n.seals[0]}
	}
	c := n.next
	n.next++
	i := c % n.window
	n.out[i/64] |= 1 << (i % 64)
	return c, n.seals[0], nil
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
	if c >= n.next || n.next-c > n.window {
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
	if err != nil || len(b) != noncePrefix+nonceSealed || [noncePrefix]byte(b) != n.prefix {
		return 0, errNonce
	}
	n.mu.Lock()
	seals := n.seals
	n.mu.Unlock()
	for _, s := range seals {
		plain, err := s.Open(nil, nil, b[noncePrefix:], n.prefix[:])
		if err == nil && len(plain) == 8 {
			return binary.BigEndian.Uint64(plain), nil
		}
	}
	return 0, errNonce
}
