package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/bench/measure"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/front"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

const (
	listener   = "bench"
	account    = "0123456789abcdef0123456789abcdef"
	small, big = 2 << 10, 60 << 10 // octets of a request body
)

// A site is the front with the ACME edge behind it, as the program has them,
// over a store and an authority that say yes to everything at once.
type site struct {
	front *front.Front
	base  string
	key   *ecdsa.PrivateKey // of the account
}

// newSite makes a site whose tier of sources is that bucket.
func newSite(perIP ratelimit.Bucket) (*site, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	limiter, err := ratelimit.New(ratelimit.Config{PerIP: perIP, Global: ratelimit.Bucket{Rate: 1e6, Burst: 1e6}, PerAccount: ratelimit.Bucket{Rate: 1e6, Burst: 1e6}})
	if err != nil {
		return nil, err
	}
	base := &url.URL{Scheme: "http", Host: "bench.invalid"}
	srv, err := acme.New(acme.Config{
		BaseURL: base, Store: yesStore{key: publicJWK(&key.PublicKey)}, CA: yesCA{}, Validator: noValidator{},
		Logger: slog.New(slog.DiscardHandler), Limiter: limiter,
	})
	if err != nil {
		return nil, err
	}
	var routes []front.Route
	for _, r := range srv.Routes() {
		routes = append(routes, front.Route{Prefix: r.Path, Class: r.Class, Handler: srv.Handler(), Limit: r.Limit, Refuse: r.Refuse})
	}
	f, err := front.New(front.Config{Listeners: []front.Listener{{Name: listener, Address: "127.0.0.1:0", Routes: routes}}})
	if err != nil {
		return nil, err
	}
	return &site{front: f, base: base.String(), key: key}, nil
}

// spentSite lets hardly anything in.
func spentSite() (*site, error) { return newSite(ratelimit.Bucket{Rate: 1.0 / 3600, Burst: 1}) }

// openSite lets everything in that this could send, and charges for it.
func openSite() (*site, error) { return newSite(ratelimit.Bucket{Rate: 1e6, Burst: 1e6}) }

func publicJWK(k *ecdsa.PublicKey) []byte {
	point, err := k.Bytes()
	if err != nil {
		panic(err) // it was made a moment ago
	}
	b64 := base64.RawURLEncoding.EncodeToString
	return fmt.Appendf(nil, `{"kty":"EC","crv":"P-256","x":"%s","y":"%s"}`, b64(point[1:33]), b64(point[33:]))
}

// yesStore has one account and takes every order.
type yesStore struct {
	acme.Store // nothing else is asked
	key        []byte
}

func (s yesStore) Account(context.Context, string) (acme.Account, error) {
	return acme.Account{ID: account, Key: s.key, Status: acme.AccountValid}, nil
}

func (yesStore) CreateOrder(context.Context, acme.Order, []acme.Authorization, acme.OrderLimits) error {
	return nil
}

// yesCA would certify every name.
type yesCA struct{ acme.CA }

func (yesCA) CheckIdentifiers(context.Context, string, []ca.Identifier) error { return nil }
func (yesCA) CheckValidity(string, time.Time, time.Time) error                { return nil }
func (yesCA) CheckKey(context.Context, crypto.PublicKey) error                { return nil }

type noValidator struct{ acme.Validator }

// direct measures refused newOrders of that many octets through the handler of
// the listener, that is all of the program between net/http and the answer. It
// returns microseconds of processor time a request.
func (s *site) direct(size, n int) (float64, error) {
	h := s.front.Handler(listener)
	body := &untouched{}
	r, err := s.newOrder("192.0.2.1:1234", size, body)
	if err != nil {
		return 0, err
	}
	w := &sink{header: http.Header{}}
	exhaustSite(h, w, r)
	w.statuses, body.read = [6]int{}, false
	c := cost(n, 1, func(_, calls int) {
		for range calls {
			w.serve(h, r)
		}
	})
	if w.statuses[4] != n || body.read {
		return 0, fmt.Errorf("of %d requests %d were refused; a body was read: %v", n, w.statuses[4], body.read)
	}
	return c.cpu / 1000, nil
}

// newOrder is a request as net/http hands it to a handler.
func (s *site) newOrder(from string, size int, body io.Reader) (*http.Request, error) {
	r, err := http.NewRequest(http.MethodPost, s.base+"/acme/new-order", body) //nolint:noctx // a server's request
	if err != nil {
		return nil, err
	}
	r.ContentLength = int64(size)
	r.RemoteAddr = from
	r.Header.Set("Content-Type", "application/jose+json")
	return r, nil
}

// exhaustSite asks until it hears a no.
func exhaustSite(h http.Handler, w *sink, r *http.Request) {
	for !w.refused {
		w.serve(h, r)
	}
}

// untouched is a body that tells if somebody wants to see it.
type untouched struct{ read bool }

func (u *untouched) Read([]byte) (int, error) {
	u.read = true
	return 0, io.EOF
}
func (u *untouched) Close() error { return nil }

// A sink is a http.ResponseWriter, used again and again.
type sink struct {
	header   http.Header
	statuses [6]int // by their first digit
	refused  bool
}

func (s *sink) serve(h http.Handler, r *http.Request) {
	clear(s.header)
	h.ServeHTTP(s, r)
}

func (s *sink) Header() http.Header             { return s.header }
func (s *sink) Write(p []byte) (int, error)     { return len(p), nil }
func (s *sink) SetReadDeadline(time.Time) error { return nil }

func (s *sink) WriteHeader(status int) {
	s.statuses[status/100]++
	s.refused = status == http.StatusTooManyRequests
}

// A wire is what requests over a connection are measured with.
type wire struct {
	name     string
	site     *site
	size     int
	admitted bool
	us       measure.Sample // microseconds of processor time of the server
}

// round has another process make n requests over loopback, and counts what this
// one spends on them.
func (x *wire) round(ctx context.Context, address string, n int) error {
	if x.admitted {
		n = max(n/20, 1) // they cost more
	}
	orders := errand{
		Address: address, Base: x.site.base, Kid: x.site.base + "/acme/account/" + account,
		Size: x.size, Requests: n, Admitted: x.admitted,
	}
	if x.admitted {
		der, err := x.site.key.Bytes()
		if err != nil {
			return err
		}
		orders.Key = der
	}
	before := measure.CPU()
	got, err := send(ctx, orders)
	took := measure.CPU() - before
	if err != nil {
		return fmt.Errorf("%s: %w", x.name, err)
	}
	if want := map[bool]int{true: http.StatusCreated, false: http.StatusTooManyRequests}[x.admitted]; got[want] != n {
		return fmt.Errorf("%s: of %d requests the answers were %v", x.name, n, got)
	}
	x.us = append(x.us, float64(took)/float64(time.Microsecond)/float64(n))
	return nil
}

// newWires opens the sites on loopback. Stop ends them.
func newWires(ctx context.Context, spent, open *site) (wires []*wire, addresses map[*site]string, stop func() error, err error) {
	addresses = make(map[*site]string)
	ctx, cancel := context.WithCancel(ctx)
	ends := make(chan error, 2)
	serving := 0
	stop = func() error {
		cancel()
		var err error
		for range serving {
			if e := <-ends; e != nil {
				err = e
			}
		}
		return err
	}
	for _, s := range []*site{spent, open} {
		if err := s.front.Listen(ctx); err != nil {
			return nil, nil, stop, err
		}
		addresses[s] = s.front.Addresses()[listener].String()
		serving++
		go func() { ends <- s.front.Serve(ctx) }() // stop waits for it
	}
	r, err := spent.newOrder("127.0.0.1:1234", small, &untouched{})
	if err != nil {
		return nil, nil, stop, err
	}
	exhaustSite(spent.front.Handler(listener), &sink{header: http.Header{}}, r)
	return []*wire{
		{name: "refused, 2 KiB", site: spent, size: small},
		{name: "admitted, 2 KiB", site: open, size: small, admitted: true},
		{name: "refused, 60 KiB", site: spent, size: big},
		{name: "admitted, 60 KiB", site: open, size: big, admitted: true},
	}, addresses, stop, nil
}
