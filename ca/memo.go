package ca

import (
	"crypto/sha256"
	"sync"
)

// memoSize is how many verified CSRs are remembered at least, and half of how many
// at most.
const memoSize = 1024

// A memo remembers which octets were verified lately. A CSR comes twice within a
// moment: before its edge accepts it, and to be issued for; its signature is as
// right the second time.
type memo struct {
	mu       sync.Mutex // guards both
	now, old map[[sha256.Size]byte]bool
}

// once calls verify, unless the same octets passed it lately.
func (m *memo) once(octets []byte, verify func() error) error {
	sum := sha256.Sum256(octets)
	if m.has(sum) {
		return nil
	}
	if err := verify(); err != nil {
		return err
	}
	m.add(sum)
	return nil
}

func (m *memo) has(sum [sha256.Size]byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now[sum] || m.old[sum]
}

func (m *memo) add(sum [sha256.Size]byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.now == nil || len(m.now) >= memoSize {
		m.old, m.now = m.now, make(map[[sha256.Size]byte]bool, memoSize)
	}
	m.now[sum] = true
}
