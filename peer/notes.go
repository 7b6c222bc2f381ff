package peer

import (
	"context"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

const (
	maxNotes     = 8   // notes of one request; later ones are dropped
	maxNoteBytes = 256 // of one value; the rest is cut off
)

// A Note is one thing that a handler knows about its request and the log of
// requests should say: the account whose signature held, the profile asked for.
type Note struct{ Key, Value string }

// Notes collects what is noted about one request, and whether its line is
// wanted at all. It is safe for concurrent use.
type Notes struct {
	mu    sync.Mutex // guards what is below
	list  []Note
	quiet bool
}

type notesKey struct{}

// WithNotes returns a context on which Annotate and Quiet take effect, and the
// notes that they will be written to.
func WithNotes(ctx context.Context) (context.Context, *Notes) {
	n := &Notes{}
	return context.WithValue(ctx, notesKey{}, n), n
}

// Annotate adds a note to the line that is logged for the request. The same key
// again replaces the value. Without notes in ctx it does nothing, so that a
// handler can be tested by itself. Never note a secret.
func Annotate(ctx context.Context, key, value string) {
	if n, ok := ctx.Value(notesKey{}).(*Notes); ok {
		n.add(Note{Key: key, Value: cut(value)})
	}
}

// Quiet asks that no line be logged for the request. It is for those who keep a
// better account of it: a limiter that sums up a burst of refusals in two
// lines, a probe that comes every second. The request is still counted.
func Quiet(ctx context.Context) {
	if n, ok := ctx.Value(notesKey{}).(*Notes); ok {
		n.mu.Lock()
		n.quiet = true
		n.mu.Unlock()
	}
}

// All returns the notes in the order in which they were made.
func (n *Notes) All() []Note {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.list)
}

// Quiet reports whether somebody asked for silence.
func (n *Notes) Quiet() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.quiet
}

func (n *Notes) add(note Note) {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := slices.IndexFunc(n.list, func(o Note) bool { return o.Key == note.Key })
	switch {
	case i >= 0:
		n.list[i] = note
	case len(n.list) < maxNotes:
		n.list = append(n.list, note)
	}
}

// cut bounds s without leaving half a character behind.
func cut(s string) string {
	if len(s) <= maxNoteBytes {
		return s
	}
	end := maxNoteBytes
	for end > maxNoteBytes-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return strings.Clone(s[:end]) // do not keep the rest of a stranger's bytes alive
}
