package front

import (
	"errors"
	"os"
	"sync"
	"time"
)

// A deadline puts off what one costs until somebody reads or writes, and then
// leaves the one in force that there is, if it comes no later: who meets it sets
// the one that is wanted, and goes on. net/http sets seven for each request, most
// of which are replaced before they matter, and all of which a connection that is
// in use keeps to.
type deadline struct {
	mu     sync.Mutex // guards what follows
	users  int        // how many read, or write
	wanted time.Time
	set    time.Time // which the connection has
}

// want takes effect at once on those who read or write, as it must: it is how
// net/http has them return.
func (d *deadline) want(t time.Time, apply func(time.Time) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wanted = t
	if d.users == 0 || d.servesLocked() {
		return nil
	}
	return d.applyLocked(apply)
}

// begin is called before each read or write.
func (d *deadline) begin(apply func(time.Time) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if toReturn(d.wanted) {
		return os.ErrDeadlineExceeded
	}
	if !d.servesLocked() {
		if err := d.applyLocked(apply); err != nil {
			return err
		}
	}
	d.users++
	return nil
}

// end is called after each that began, and reports whether it met a deadline
// that is not the one wanted, and is to go on.
func (d *deadline) end(err error, apply func(time.Time) error) (again bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.users--
	if err == nil || d.set.Equal(d.wanted) || toReturn(d.wanted) || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	return d.applyLocked(apply) == nil
}

// servesLocked reports whether the connection stops in time.
func (d *deadline) servesLocked() bool {
	return d.set.Equal(d.wanted) || !d.set.IsZero() && (d.wanted.IsZero() || d.set.Before(d.wanted))
}

func (d *deadline) applyLocked(apply func(time.Time) error) error {
	if err := apply(d.wanted); err != nil {
		return err
	}
	d.set = d.wanted
	return nil
}

// toReturn reports whether t is no time, but net/http's word for those who read
// to return: one before 1987.
func toReturn(t time.Time) bool { return !t.IsZero() && t.Unix() < 1<<29 }

// SetReadDeadline is for those who read, and for whoever reads next.
func (c *conn) SetReadDeadline(t time.Time) error {
	return c.toRead.want(t, c.Conn.SetReadDeadline)
}

// SetWriteDeadline is for those who write, and for whoever writes next.
func (c *conn) SetWriteDeadline(t time.Time) error {
	return c.toWrite.want(t, c.Conn.SetWriteDeadline)
}

// SetDeadline is both.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) Read(p []byte) (n int, err error) {
	for {
		if err := c.toRead.begin(c.Conn.SetReadDeadline); err != nil {
			return 0, err
		}
		n, err = c.Conn.Read(p)
		if !c.toRead.end(err, c.Conn.SetReadDeadline) {
			return n, err
		}
		if n > 0 {
			return n, nil
		}
	}
}

func (c *conn) Write(p []byte) (n int, err error) {
	for {
		if err := c.toWrite.begin(c.Conn.SetWriteDeadline); err != nil {
			return n, err
		}
		m, err := c.Conn.Write(p[n:])
		n += m
		if !c.toWrite.end(err, c.Conn.SetWriteDeadline) {
			return n, err
		}
	}
}
