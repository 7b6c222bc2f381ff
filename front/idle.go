package front

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// mutePatience is how long a new connection may be silent, or a body may stop,
// before the place is given to another, if places are short: a handshake and a
// header take less.
const mutePatience = time.Second

// doing is what a connection is at, as far as its place is concerned.
type doing uint8

const (
	mute  doing = iota // its first request has not come, or not all of its header
	idle               // it waits for its next request
	owing              // the next step of its request is the client's: to send its body, or to take the answer
	busy               // we are at work on a request of its, and it keeps its place
	gone               // it has given its place away
)

// A link is the place of a connection in one queue.
type link struct{ before, after *conn }

// A queue holds connections in the order in which they fell silent. It allocates
// nothing: a connection is in one queue of each lane at most, and brings its
// links with it.
type queue struct {
	lane        int
	first, last *conn
}

func (q *queue) push(c *conn) {
	c.links[q.lane] = link{before: q.last}
	if q.last == nil {
		q.first = c
	} else {
		q.last.links[q.lane].after = c
	}
	q.last = c
}

func (q *queue) remove(c *conn) {
	l := c.links[q.lane]
	if l.before == nil {
		q.first = l.after
	} else {
		l.before.links[q.lane].after = l.after
	}
	if l.after == nil {
		q.last = l.before
	} else {
		l.after.links[q.lane].before = l.before
	}
	c.links[q.lane] = link{}
}

// The lanes: a connection waits among all of its listener and among those of its
// client.
const (
	laneAll = iota
	laneClient
	lanes
)

// silent are the connections that wait for their clients. Those that owe us
// something are among the mute.
type silent struct{ mute, idle queue }

func newSilent(lane int) silent {
	return silent{mute: queue{lane: lane}, idle: queue{lane: lane}}
}

// of is the queue for d; nil: those who do it are in none.
func (s *silent) of(d doing) *queue {
	switch d {
	case mute, owing:
		return &s.mute
	case idle:
		return &s.idle
	}
	return nil
}

// longest is the connection that is silent for longest, of those that may be
// closed for it; nil: there is none.
func (s *silent) longest(now time.Time) *conn {
	m, i := s.mute.first, s.idle.first
	if m != nil && now.Sub(m.since) < mutePatience {
		m = nil
	}
	if m == nil || i != nil && i.since.Before(m.since) {
		return i
	}
	return m
}

// watch follows what net/http says that a connection is doing. A request begins
// for it at the end of its header, and ends with its answer; whether we are at
// work on it in between, work and pause say.
func watch(c net.Conn, state http.ConnState) {
	ours := counted(c)
	if ours == nil {
		return
	}
	switch state {
	case http.StateActive:
		ours.place.note(ours, owing)
	case http.StateIdle:
		ours.place.note(ours, idle)
	}
}

type connKey struct{}

// connOf is the connection of ours that a request came on; nil: none. What may
// be done to a connection may be done to none.
func connOf(ctx context.Context) *conn {
	c, _ := ctx.Value(connKey{}).(*conn)
	return c
}

// work says that we are at work on one more request of c.
func (c *conn) work() {
	if c != nil {
		c.place.work(c)
	}
}

// pause takes back one work: the request is done, or waits for its client. A
// connection that can't be taken away while its body doesn't come, or its answer
// isn't read, is one that strangers keep from others for nothing.
func (c *conn) pause() {
	if c != nil {
		c.place.pause(c)
	}
}

// counted is the connection of ours that net/http means; nil: none.
func counted(c net.Conn) *conn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	ours, _ := c.(*conn)
	return ours
}

// madeRoom reports whether c was closed in favour of another.
func (c *conn) madeRoom() bool {
	if c == nil {
		return false
	}
	c.place.mu.Lock()
	defer c.place.mu.Unlock()
	return c.evicted
}
