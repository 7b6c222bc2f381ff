package crl

import (
	"fmt"
	"io"
	"sync/atomic"
)

// A Body is the DER of a list. It is safe for concurrent use, and it is gone
// once whoever holds it has released it.
type Body struct {
	spool   spool
	start   int64 // in the spool, of the first octet
	holders atomic.Int64
}

func newBody() *Body {
	b := &Body{}
	b.holders.Store(1)
	return b
}

// bodyOf returns a body of that content.
func bodyOf(content []byte) *Body {
	b := newBody()
	b.spool = spool{mem: content, size: int64(len(content))}
	return b
}

// Write appends to a body that nobody reads yet.
func (b *Body) Write(p []byte) (int, error) {
	n, err := b.spool.Write(p)
	if err != nil {
		return n, fmt.Errorf("writing a list: %w", err)
	}
	return n, nil
}

// Size is how many octets the body has.
func (b *Body) Size() int64 { return b.spool.size - b.start }

// Open returns a reader of the body, for as long as it is held.
func (b *Body) Open() *io.SectionReader { return io.NewSectionReader(&b.spool, b.start, b.Size()) }

// Hold keeps the body until one more Release, and reports whether it was still there.
func (b *Body) Hold() bool {
	for {
		n := b.holders.Load()
		if n == 0 {
			return false
		}
		if b.holders.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Release gives the body back: with the last holder it goes.
func (b *Body) Release() error {
	if b.holders.Add(-1) > 0 {
		return nil
	}
	return b.spool.close()
}

func (b *Body) overwrite(p []byte, off int64) error {
	if err := b.spool.overwrite(p, off); err != nil {
		return fmt.Errorf("writing a list: %w", err)
	}
	return nil
}
