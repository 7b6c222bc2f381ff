package challenge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"
)

// eyesDelay is how long IPv6 is ahead of IPv4 (RFC 8305 §5): enough for a
// connection that works, and little of an attempt's time for one that does not.
const eyesDelay = 250 * time.Millisecond

// A dialError says why an address was not connected to.
type dialError struct {
	to  netip.AddrPort
	err error
}

func (e *dialError) Error() string { return fmt.Sprintf("connecting to %s: %s", e.to, cause(e.err)) }
func (e *dialError) Unwrap() error { return e.err }

// connect dials addresses that were judged, and no name: what the DNS says a
// moment later does not matter. IPv6 goes first; the first IPv4 address joins
// when that failed or took a while, and whoever connects first wins (RFC 8305).
// The error is a *dialError of the address that failed last.
func (a *attempt) connect(ctx context.Context, addrs []netip.Addr, port uint16) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, a.v.cfg.StepTimeout)
	defer cancel()
	type outcome struct {
		conn net.Conn
		err  error
	}
	list := firstOfEach(addrs)
	done := make(chan outcome, len(list))
	running, next := 0, 0
	begin := func() {
		to := netip.AddrPortFrom(list[next], port)
		next++
		running++
		a.rec.Addrs = append(a.rec.Addrs, to.Addr())
		go func() {
			conn, err := a.v.dial(ctx, to)
			if err != nil {
				err = &dialError{to, err}
			}
			done <- outcome{conn, err}
		}()
	}
	begin()
	head := time.NewTimer(eyesDelay)
	defer head.Stop()
	var won net.Conn
	var err error
	for running > 0 {
		select {
		case o := <-done:
			running--
			switch {
			case o.err != nil:
				err = o.err
				if won == nil && next < len(list) {
					begin()
				}
			case won == nil:
				won = o.conn
				cancel() // which does no harm to a connection that stands
			default:
				_ = o.conn.Close() // it lost
			}
		case <-head.C:
			if won == nil && next < len(list) {
				begin()
			}
		}
	}
	if won != nil {
		return won, nil
	}
	return nil, err
}

// firstOfEach takes one address of each family, IPv6 first: addresses has them
// in that order.
func firstOfEach(addrs []netip.Addr) []netip.Addr {
	var six, four []netip.Addr
	for _, addr := range addrs {
		if addr.Is4() {
			four = append(four, addr)
		} else {
			six = append(six, addr)
		}
	}
	return append(six[:min(len(six), 1)], four[:min(len(four), 1)]...)
}

// dial is the last of two gates.
func (v *Validator) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	if !v.policy.allowed(to.Addr()) {
		return nil, fmt.Errorf("%s is a forbidden address", to) // not reached
	}
	// What is kept for an attempt's time needs no probes.
	conn, err := (&net.Dialer{KeepAlive: -1}).DialTCP(ctx, "tcp", netip.AddrPort{}, to)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// cause puts an error of the network into one of a few words. The error itself
// is ours alone.
func cause(err error) string {
	network, isNetwork := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		isNetwork && network.Timeout():
		return "timeout (is there a firewall in between?)"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection was closed early"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "no route to the host"
	case errors.Is(err, context.Canceled):
		return "given up"
	}
	return "not a proper answer"
}

// tlsCause is cause for a handshake: what the other side or its certificate is
// refused for.
func tlsCause(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		return `the server sent the alert "` + strings.TrimPrefix(op.Err.Error(), "tls: ") + `"`
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "the server does not speak TLS"
	}
	// What crypto/tls says holds nothing of ours; it may hold something of the
	// server's certificate.
	if text, ok := strings.CutPrefix(err.Error(), "tls: "); ok {
		return printable([]byte(text), 128)
	}
	return cause(err)
}
