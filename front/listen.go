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

// A boundListener accepts connections up to its bounds and closes what is above
// them at once. It doesn't let them wait in the backlog of the kernel: there,
// they time out without a word, and a load balancer can't tell overload from a
// dead host.
type boundListener struct {
	net.Listener

	plain     bool // HTTP without TLS
	max       int
	perClient int
	proxyFrom *Prefixes // nil: no PROXY protocol here
	hops      *Hops
	proxyWait time.Duration
	metrics   *listenerMetrics

	mu      sync.Mutex // guards what is below
	open    int
	clients map[netip.Addr]int // open connections of each client; gone at zero
}

func (b *boundListener) Accept() (net.Conn, error) {
	for {
		raw, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := b.client(raw)
		if reason := b.take(client); reason != "" {
			b.turnAway(raw, reason)
			continue
		}
		return b.wrap(raw, client), nil
	}
}

// client is whom a connection counts for. A proxy carries many clients and a
// local socket belongs to us: they are bound by the listener only.
func (b *boundListener) client(raw net.Conn) netip.Addr {
	a := socketAddr(raw.RemoteAddr())
	if b.proxyFrom.Contains(a) || b.hops.trusts(a) {
		return netip.Addr{}
	}
	return clientKey(a)
}

// take counts a connection in, or says why not.
func (b *boundListener) take(client netip.Addr) (reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.open >= b.max:
		return refusedFull
	case client.IsValid() && b.clients[client] >= b.perClient:
		return refusedClient
	}
	b.open++
	if client.IsValid() {
		b.clients[client]++
	}
	b.metrics.connections.Set(float64(b.open))
	return ""
}

func (b *boundListener) give(client netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open--
	if client.IsValid() {
		if b.clients[client]--; b.clients[client] == 0 {
			delete(b.clients, client)
		}
	}
	b.metrics.connections.Set(float64(b.open))
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

func (b *boundListener) wrap(raw net.Conn, client netip.Addr) net.Conn {
	c := &conn{Conn: raw, raw: raw, release: func() { b.give(client) }}
	if b.proxyFrom != nil {
		c.Conn = b.speakProxy(raw)
	}
	return c
}

// conn is a counted connection.
type conn struct {
	net.Conn // what net/http reads
	raw      net.Conn

	once    sync.Once
	release func()
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.release)
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

// clientKey is the unit that one client is sure to hold: whoever has one IPv6
// address has a /64.
func clientKey(a netip.Addr) netip.Addr {
	if !a.Is6() {
		return a
	}
	p, err := a.Prefix(64)
	if err != nil {
		return a
	}
	return p.Addr()
}
