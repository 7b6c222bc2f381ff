package front

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// countedDeadlines counts what a deadline costs.
type countedDeadlines struct {
	net.Conn
	set atomic.Int32
}

func (c *countedDeadlines) SetReadDeadline(t time.Time) error {
	c.set.Add(1)
	return c.Conn.SetReadDeadline(t)
}

func TestADeadlineHoldsForWhoReadsAndWhoeverReadsNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		far, near := net.Pipe()
		defer far.Close()
		inner := &countedDeadlines{Conn: near}
		c := &conn{Conn: inner, raw: near}
		read := func() (time.Duration, error) {
			start := time.Now()
			_, err := c.Read(make([]byte, 1))
			return time.Since(start), err
		}
		// The last one set before a read is the one that counts.
		for _, d := range []time.Time{time.Now().Add(time.Hour), {}, time.Unix(1, 0), time.Now().Add(time.Second)} {
			if err := c.SetReadDeadline(d); err != nil {
				t.Fatal(err)
			}
		}
		if took, err := read(); !errors.Is(err, os.ErrDeadlineExceeded) || took != time.Second || inner.set.Load() != 1 {
			t.Errorf("%v after %v, set %d times", err, took, inner.set.Load())
		}
		// It stays in force for the next.
		if took, err := read(); !errors.Is(err, os.ErrDeadlineExceeded) || took != 0 {
			t.Errorf("%v after %v", err, took)
		}
		// One that is set meanwhile has a reader return.
		if err := c.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Minute, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
		if took, err := read(); !errors.Is(err, os.ErrDeadlineExceeded) || took != time.Minute {
			t.Errorf("%v after %v", err, took)
		}
		// And one that lies in the past is lifted for what comes then.
		if err := c.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		go func() { time.Sleep(time.Hour); _, _ = far.Write([]byte("x")) }()
		if took, err := read(); err != nil || took != time.Hour {
			t.Errorf("%v after %v", err, took)
		}
	})
}

func TestADeadlineThatComesEarlierIsPutOffOnlyWhenItIsMet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		far, near := net.Pipe()
		defer far.Close()
		inner := &countedDeadlines{Conn: near}
		c := &conn{Conn: inner, raw: near}
		start := time.Now()
		for range 10 { // each a second after the other
			if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			go func() { time.Sleep(time.Second); _, _ = far.Write([]byte("x")) }()
			if _, err := c.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if n := inner.set.Load(); n != 1 {
			t.Errorf("set %d times", n)
		}
		_, err := c.Read(make([]byte, 1))
		if took := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || took != 29*time.Second || inner.set.Load() != 2 {
			t.Errorf("read: %v after %v, set %d times", err, took, inner.set.Load())
		}
		// A write that was begun goes on where it was.
		write := func() (int, error) { return c.Write([]byte("abc")) }
		if n, err := write(); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write: %d octets, %v", n, err)
		}
		for _, d := range []time.Duration{10 * time.Second, 30 * time.Second} {
			if err := c.SetWriteDeadline(time.Now().Add(d)); err != nil {
				t.Fatal(err)
			}
			if d == 10*time.Second {
				go func() { _, _ = far.Read(make([]byte, 3)) }()
				if n, err := write(); n != 3 || err != nil {
					t.Errorf("write: %d octets, %v", n, err)
				}
			}
		}
		got := make(chan string)
		go func() {
			b := make([]byte, 3)
			_, _ = far.Read(b[:1])
			time.Sleep(25 * time.Second)
			_, _ = far.Read(b[1:])
			got <- string(b)
		}()
		if n, err := write(); n != 3 || err != nil {
			t.Errorf("write: %d octets, %v", n, err)
		}
		if s := <-got; s != "abc" {
			t.Errorf("%q arrived", s)
		}
	})
}
