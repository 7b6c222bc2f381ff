package front

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/secsy-pki/secsy-pki/peer"
)

// bind opens the socket of one listener. The error says on one line what is
// wrong and what to do: it is what an operator sees of a start that failed.
func bind(ctx context.Context, l Listener) (net.Listener, error) {
	if l.Socket != "" {
		return bindSocket(ctx, l.Socket)
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", l.Address)
	switch {
	case err == nil:
		return ln, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s is already in use: stop the program that has it (ss -ltnp shows which) or set another address: %w", l.Address, err)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%s may not be bound by this user: grant CAP_NET_BIND_SERVICE or set a port above 1023: %w", l.Address, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s is not an address of this host: set one that `ip address` shows: %w", l.Address, err)
	}
	return nil, fmt.Errorf("listening on %s: %w", l.Address, err)
}

// busyAnswer is what a client that finds all connections taken gets from a
// plain-text listener. A client of TLS sees a closed connection.
const busyAnswer = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n" +
	"Retry-After: 2\r\nConnection: close\r\nContent-Length: 5\r\n\r\nbusy\n"

// A boundListener accepts connections up to its bounds. Above them, the one that
// is silent for longest makes room for the new one; if none is, the new one is
// closed at once. It doesn't wait in the backlog of the kernel: there,
// connections time out without a word, and a load balancer can't tell overload
// from a dead host.
type boundListener struct {
	net.Listener

	plain     bool // HTTP without TLS
	max       int
	perClient int
	proxyFrom *Prefixes // nil: no PROXY protocol here
	hops      *Hops
	proxyWait time.Duration
	metrics   *listenerMetrics

	mu      sync.Mutex // guards what is below, and the fields of each conn that say so
	open    int
	silent  silent
	clients map[netip.Addr]*client // those with open connections
}

// A client is what one client has open. The mutex of its listener guards it.
type client struct {
	addr   netip.Addr
	open   int
	silent silent
}

func (b *boundListener) Accept() (net.Conn, error) {
	for {
		raw, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: raw, raw: raw, place: b}
		victim, reason := b.take(c, b.client(raw))
		if reason != "" {
			b.turnAway(raw, reason)
			continue
		}
		if victim != nil {
			b.metrics.refuse(evictedIdle)
			_ = victim.raw.Close() // whoever reads from it cleans up
		}
		if b.proxyFrom != nil {
			c.Conn = b.speakProxy(raw)
		}
		return c, nil
	}
}

// client is whom a connection counts for. A proxy carries many clients and a
// local socket belongs to us: they are bound by the listener only.
func (b *boundListener) client(raw net.Conn) netip.Addr {
	a := socketAddr(raw.RemoteAddr())
	if b.proxyFrom.Contains(a) || b.hops.trusts(a) {
		return netip.Addr{}
	}
	return peer.Network(a).Addr()
}

// take gives c a place, which victim loses if there was no other, or says why
// there is none.
func (b *boundListener) take(c *conn, from netip.Addr) (victim *conn, reason string) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	owner := b.clients[from]
	switch {
	case owner != nil && owner.open >= b.perClient:
		victim, reason = owner.silent.longest(now), refusedClient
	case b.open >= b.max:
		victim, reason = b.silent.longest(now), refusedFull
	}
	if victim != nil {
		victim.evicted = true
		b.leaveLocked(victim)
	} else if reason != "" {
		return nil, reason
	}
	b.enterLocked(c, from, now)
	return victim, ""
}

func (b *boundListener) enterLocked(c *conn, from netip.Addr, now time.Time) {
	if from.IsValid() {
		c.owner = b.clients[from]
		if c.owner == nil {
			c.owner = &client{addr: from, silent: newSilent(laneClient)}
			b.clients[from] = c.owner
		}
		c.owner.open++
	}
	b.open++
	b.metrics.connections.Set(float64(b.open))
	c.doing, c.since = mute, now
	b.listLocked(c)
}

// leaveLocked gives the place of c back.
func (b *boundListener) leaveLocked(c *conn) {
	b.unlistLocked(c)
	c.doing = gone
	b.open--
	b.metrics.connections.Set(float64(b.open))
	if c.owner == nil {
		return
	}
	if c.owner.open--; c.owner.open == 0 {
		delete(b.clients, c.owner.addr)
	}
}

// note says what c does from now on.
func (b *boundListener) note(c *conn, d doing) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.noteLocked(c, d, now)
}

func (b *boundListener) noteLocked(c *conn, d doing, now time.Time) {
	if c.doing == gone {
		return
	}
	b.unlistLocked(c)
	c.doing, c.since = d, now
	b.listLocked(c)
}

func (b *boundListener) work(c *conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.working++
	if c.doing != busy {
		b.noteLocked(c, busy, time.Time{})
	}
}

func (b *boundListener) pause(c *conn) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	c.working--
	if c.working == 0 && c.doing == busy {
		b.noteLocked(c, owing, now)
	}
}

func (b *boundListener) listLocked(c *conn) {
	if q := b.silent.of(c.doing); q != nil {
		q.push(c)
		if c.owner != nil {
			c.owner.silent.of(c.doing).push(c)
		}
	}
}

func (b *boundListener) unlistLocked(c *conn) {
	if q := b.silent.of(c.doing); q != nil {
		q.remove(c)
		if c.owner != nil {
			c.owner.silent.of(c.doing).remove(c)
		}
	}
}

func (b *boundListener) give(c *conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.doing != gone {
		b.leaveLocked(c)
	}
}

// turnAway must not hold up Accept: 130 bytes always fit the empty buffer of a
// new socket, and the deadline is for the case that they don't.
func (b *boundListener) turnAway(raw net.Conn, reason string) {
	b.metrics.refuse(reason)
	if b.plain {
		_ = raw.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		_, _ = raw.Write([]byte(busyAnswer))
	}
	_ = raw.Close()
}

// conn is a counted connection.
type conn struct {
	net.Conn // what net/http reads
	raw      net.Conn
	place    *boundListener
	toRead   deadline
	toWrite  deadline

	// The mutex of place guards what is below.
	owner   *client // whom it counts for; nil: the listener only
	doing   doing
	since   time.Time
	working int         // requests that we are at work on
	evicted bool        // it had to make room for another
	links   [lanes]link // in the queues of place and of owner
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.place.give(c)
	return err
}

// CloseWrite lets net/http end an answer before the request was read to its end,
// without a reset that would take the answer away from the client.
func (c *conn) CloseWrite() error {
	if half, ok := c.raw.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// speakProxy expects a PROXY header from the trusted sources and from nobody
// else. The header is read by the first use of the connection, which is in its
// own goroutine: nothing here may ask the result for its addresses, or a mute
// peer would hold up Accept.
func (b *boundListener) speakProxy(raw net.Conn) net.Conn {
	policy := proxyproto.REJECT
	if b.proxyFrom.Contains(socketAddr(raw.RemoteAddr())) {
		policy = proxyproto.REQUIRE
	}
	return &proxyConn{
		Conn: proxyproto.NewConn(raw,
			proxyproto.WithPolicy(policy),
			proxyproto.ValidateHeader(onlyTCP),
			proxyproto.SetReadHeaderTimeout(b.proxyWait)),
		required: policy == proxyproto.REQUIRE,
		refuse:   b.metrics.refuse,
	}
}

var errNotTCP = errors.New("PROXY header is not about TCP")

// onlyTCP refuses headers that name no address: UNIX sockets and UDP. A LOCAL
// header is the proxy speaking for itself, and the socket's peer is then right.
func onlyTCP(h *proxyproto.Header) error {
	if h.Command.IsLocal() {
		return nil
	}
	if src, _, ok := h.TCPAddrs(); !ok || !socketAddr(src).IsValid() {
		return errNotTCP
	}
	if _, err := h.TLVs(); err != nil { // we need none, but what is cut short may be the address of another
		return fmt.Errorf("reading what else is in a PROXY header: %w", err)
	}
	return nil
}

// proxyConn counts the connections that break the rules of the PROXY protocol.
// They fail at their first read and get no answer.
type proxyConn struct {
	*proxyproto.Conn
	required bool
	refuse   func(reason string)
	once     sync.Once
}

func (c *proxyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 || err == nil {
		c.once.Do(func() {})
		return n, err
	}
	c.once.Do(func() {
		switch {
		case errors.Is(err, proxyproto.ErrSuperfluousProxyHeader):
			c.refuse(refusedUntrusted)
		case errors.Is(err, proxyproto.ErrNoProxyProtocol):
			c.refuse(refusedNoHeader)
		case c.required && c.ProxyHeader() == nil:
			c.refuse(refusedMalformed)
		}
	})
	return n, err
}

// socketAddr is the address in a, and invalid for a local socket.
func socketAddr(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return plain(tcp.AddrPort().Addr())
}
