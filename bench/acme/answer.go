package main

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"path"
	"sync"
	"time"
)

// A responder answers http-01, and is the DNS that every name of the run is in.
type responder struct {
	http, dns string // addresses
	tokens    sync.Map
	server    *http.Server
	packets   net.PacketConn
}

func newResponder() (*responder, error) {
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, web.Close())
	}
	r := &responder{http: web.Addr().String(), dns: packets.LocalAddr().String(), packets: packets}
	r.server = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(r.answer)}
	go func() { _ = r.server.Serve(web) }()
	go r.resolve()
	return r, nil
}

func (r *responder) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return errors.Join(r.server.Shutdown(ctx), r.packets.Close())
}

func (r *responder) set(token, value string) { r.tokens.Store(token, value) }
func (r *responder) forget(token string)     { r.tokens.Delete(token) }

func (r *responder) answer(w http.ResponseWriter, req *http.Request) {
	v, ok := r.tokens.Load(path.Base(req.URL.Path))
	if s, is := v.(string); ok && is {
		_, _ = w.Write([]byte(s))
		return
	}
	http.NotFound(w, req)
}

// resolve answers questions for addresses with 127.0.0.1, and that there is
// nothing else.
func (r *responder) resolve() {
	buf := make([]byte, 4096)
	for {
		n, from, err := r.packets.ReadFrom(buf)
		if err != nil {
			return
		}
		if answer := answerDNS(buf[:n]); answer != nil {
			_, _ = r.packets.WriteTo(answer, from)
		}
	}
}

func answerDNS(q []byte) []byte {
	const header, typeA = 12, 1
	if len(q) < header || binary.BigEndian.Uint16(q[4:]) != 1 {
		return nil
	}
	end := header
	for end < len(q) && q[end] != 0 {
		end += 1 + int(q[end])
	}
	if end += 5; end > len(q) {
		return nil
	}
	a := append([]byte(nil), q[:end]...)
	a[2], a[3] = 0x84|q[2]&1, 0x80 // an authoritative answer, recursion as wished and to be had
	copy(a[4:], []byte{0, 1, 0, 0, 0, 0, 0, 0})
	if binary.BigEndian.Uint16(q[end-4:]) == typeA {
		a[7] = 1
		a = append(a, 0xc0, header, 0, typeA, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1)
	}
	return a
}
