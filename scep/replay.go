package scep

import (
	"crypto/sha256"
	"sync"
	"time"
)

const (
	// maxReplays bounds the answers that are remembered, and maxReplay one of them.
	maxReplays = 256
	maxReplay  = 16 << 10
	// replayFor is for how long.
	replayFor = time.Minute
)

// replays remembers answers to the very same bytes, as a client sends them that
// heard nothing, and one that wants to see whether the answer takes equally long.
// Neither costs the device anything.
type replays struct {
	mu    sync.Mutex // guards what follows
	known map[[32]byte]remembered
	order [][32]byte // the oldest first
}

type remembered struct {
	der   []byte
	until time.Time
}

func replayID(e *endpoint, raw []byte) [32]byte {
	h := sha256.New()
	h.Write([]byte(e.Label))
	h.Write([]byte{0})
	h.Write(raw)
	return [32]byte(h.Sum(nil))
}

func (r *replays) get(id [32]byte, now time.Time) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, ok := r.known[id]
	if !ok || now.After(k.until) {
		return nil
	}
	return k.der
}

func (r *replays) put(id [32]byte, der []byte, now time.Time) {
	if len(der) > maxReplay {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil {
		r.known = make(map[[32]byte]remembered, maxReplays)
	}
	if _, there := r.known[id]; !there {
		if len(r.order) == maxReplays {
			delete(r.known, r.order[0])
			r.order = append(r.order[:0], r.order[1:]...)
		}
		r.order = append(r.order, id)
	}
	r.known[id] = remembered{der, now.Add(replayFor)}
}

// final reports whether the same message will never be answered otherwise.
func (r reply) final() bool {
	return r.status == statusSuccess || r.status == statusFailure && r.fail == badMessageCheck
}

func (r reply) word() string {
	switch r.status {
	case statusSuccess:
		return "success"
	case statusPending:
		return "pending"
	}
	return r.fail.word()
}
