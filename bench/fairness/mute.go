package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/secsy-pki/secsy-pki/bench/openloop"
	"github.com/secsy-pki/secsy-pki/front"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/peer"
)

const (
	mutes      = 64
	honestRate = 20 // a second
	enrolment  = 1000
)

// A slow is a scenario of connections: honest requests to a real listener, whose
// handler reads the body and has it signed, beside others that send their
// header, one byte, and no more.
type slow struct {
	name   string
	early  bool // takes the seat before the body is read, as handlers often do
	mutes  int
	weight float64
}

const (
	honestAlone = "honest client alone"
	honestMuted = "honest client beside 64 mute connections"
)

func slowPlan() []slow {
	return []slow{
		{honestAlone, false, 0, 6},
		{honestMuted, false, mutes, 6},
		{honestMuted, true, mutes, 3},
	}
}

func (s slow) by() string {
	if s.early {
		return fifo.name
	}
	return ours.name
}

// run plays the scenario, and returns what became of the honest requests.
func (s slow) run(ctx context.Context, length time.Duration, seed uint64) (rs []openloop.Result, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	handler, err := s.handler(ctx, newDevice(seed))
	if err != nil {
		return nil, err
	}
	address, served, err := serve(ctx, handler)
	if err != nil {
		return nil, err
	}
	var others sync.WaitGroup
	defer func() { // the mute before the listener that they hang on
		stop()
		others.Wait()
		err = errors.Join(err, <-served)
	}()
	hanging := make(chan struct{}, s.mutes)
	for range s.mutes {
		others.Go(func() { beMute(ctx, address, hanging) })
	}
	for range s.mutes {
		select {
		case <-hanging:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: honestRate}, Timeout: 2 * wait}
	defer client.CloseIdleConnections()
	due := openloop.Schedule(honestRate, warmUp+length, seed)
	return openloop.Run(ctx, time.Now(), due, func(ctx context.Context, _ int) error { return enrol(ctx, client, address) }), nil
}

// handler is a route that signs what it was sent.
func (s slow) handler(ctx context.Context, d *device) (http.Handler, error) {
	if s.early {
		return earlyHandler(d), nil
	}
	store, err := ours.protect(d)
	if err != nil {
		return nil, err
	}
	key, err := store.Key(ctx, "ca")
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			http.Error(w, "body", http.StatusBadRequest)
			return
		}
		answer(w, sign(peer.WithIdentity(keys.WithPurpose(r.Context(), keys.ForIssuance), r.Header.Get("From")), key))
	}), nil
}

// earlyHandler holds one of the seats while the body comes.
func earlyHandler(d *device) http.Handler {
	guard := &fifoStore{inner: d, seats: make(chan struct{}, seats)}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := guard.acquire(r.Context()); err != nil {
			answer(w, err)
			return
		}
		defer guard.release()
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			http.Error(w, "body", http.StatusBadRequest)
			return
		}
		answer(w, sign(r.Context(), d))
	})
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// serve opens a listener of the program on loopback. Its end is sent once ctx has ended.
func serve(ctx context.Context, h http.Handler) (address string, served <-chan error, err error) {
	f, err := front.New(front.Config{Listeners: []front.Listener{{
		Name: "bench", Address: "127.0.0.1:0",
		Routes: []front.Route{{Prefix: "/enrol", Class: "bench", Handler: h}},
	}}})
	if err != nil {
		return "", nil, err
	}
	if err := f.Listen(ctx); err != nil {
		return "", nil, err
	}
	end := make(chan error, 1)
	go func() { end <- f.Serve(ctx) }() // ends with ctx; who reads the channel waits for it
	return f.Addresses()["bench"].String(), end, nil
}

// beMute begins requests and never ends one. When the server has had enough of
// it, it begins another.
func beMute(ctx context.Context, address string, hanging chan<- struct{}) {
	first := true
	for ctx.Err() == nil {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return
		}
		stop := context.AfterFunc(ctx, func() { _ = c.Close() })
		_, _ = fmt.Fprintf(c, "POST /enrol HTTP/1.1\r\nHost: bench\r\nFrom: mute\r\nContent-Length: %d\r\n\r\nx", enrolment)
		if first {
			first = false
			hanging <- struct{}{}
		}
		_, _ = bufio.NewReader(c).ReadByte() // until it is answered or closed
		stop()
		_ = c.Close()
	}
}

// enrol is one honest request.
func enrol(ctx context.Context, client *http.Client, address string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/enrol", strings.NewReader(strings.Repeat("x", enrolment)))
	if err != nil {
		return err
	}
	r.Header.Set("From", "honest")
	a, err := client.Do(r)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, a.Body)
	if err := errors.Join(err, a.Body.Close()); err != nil {
		return err
	}
	if a.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", a.StatusCode)
	}
	return nil
}
