package front

import (
	"sync"
	"time"
)

// A readDeadline puts off what a deadline costs until somebody reads. net/http sets
// five for each request, most of which are replaced before anything is read.
type readDeadline struct {
	mu      sync.Mutex // guards what follows
	reading int        // how many do
	wanted  time.Time
	unset   bool // wanted has not been handed on
}

// SetReadDeadline takes effect at once on those who read, as it must: it is how
// net/http has them return.
func (c *conn) SetReadDeadline(t time.Time) error {
	d := &c.deadline
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reading == 0 {
		d.wanted, d.unset = t, true
		return nil
	}
	d.unset = false
	return c.Conn.SetReadDeadline(t)
}

// SetDeadline is both.
func (c *conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

func (c *conn) Read(p []byte) (int, error) {
	if err := c.beginRead(); err != nil {
		return 0, err
	}
	defer c.endRead()
	return c.Conn.Read(p)
}

func (c *conn) beginRead() error {
	d := &c.deadline
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.unset {
		if err := c.Conn.SetReadDeadline(d.wanted); err != nil {
			return err
		}
		d.unset = false
	}
	d.reading++
	return nil
}

func (c *conn) endRead() {
	c.deadline.mu.Lock()
	defer c.deadline.mu.Unlock()
	c.deadline.reading--
}
