package app

import (
	"context"
	"log/slog"
	"sync"
)

// maxHeld bounds what a held holds; a start says far less.
const maxHeld = 1000

// A held keeps back what is logged below warnings until release, or until a
// warning shows that it was worth saying. So a start that fails says on one line
// what failed, and not how far it came.
type held struct {
	mu      sync.Mutex // guards what follows
	open    bool
	records []func()
}

// release says what was kept back; nothing is kept back from then on.
func (h *held) release() {
	h.mu.Lock()
	h.open = true
	h.mu.Unlock()
	h.flush()
}

// keep takes a record, or reports that it is to be written at once.
func (h *held) keep(write func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open || len(h.records) == maxHeld {
		return false
	}
	h.records = append(h.records, write)
	return true
}

func (h *held) flush() {
	h.mu.Lock()
	records := h.records
	h.records = nil
	h.mu.Unlock()
	for _, write := range records {
		write()
	}
}

// A heldHandler is a handler behind a held.
type heldHandler struct {
	slog.Handler
	held *held
}

// Handle implements slog.Handler.
func (h heldHandler) Handle(ctx context.Context, r slog.Record) error {
	later := r.Clone()
	if r.Level < slog.LevelWarn && h.held.keep(func() { _ = h.Handler.Handle(context.WithoutCancel(ctx), later) }) {
		return nil
	}
	h.held.flush()
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h heldHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return heldHandler{h.Handler.WithAttrs(attrs), h.held}
}

// WithGroup implements slog.Handler.
func (h heldHandler) WithGroup(name string) slog.Handler {
	return heldHandler{h.Handler.WithGroup(name), h.held}
}
