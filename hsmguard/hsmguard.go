// Package hsmguard puts a gate around a key store, so that nothing is asked of
// a device but through it.
//
// A seat of the gate belongs to the call of the device: it is taken right
// before, and given back when the call returns, however long ago whoever wanted
// it has left, or was told that nobody waits any more for a call that hangs.
// Finding a key takes none, as labels are no stranger's choice.
package hsmguard

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/peer"
)

// Background is the endpoint of work that no request of a listed one asked for.
const Background = "background"

// A Config says which gate a Guard is.
type Config struct {
	Gate *gate.Gate // needed
	// Endpoints are those that rejections are counted by; all others count as
	// Background.
	Endpoints []string
	// Rejected is told of each rejection: its endpoint, the proven identity, ""
	// for none, and the address. It must return without waiting for anything.
	// Nil: nobody is told.
	Rejected func(endpoint, identity string, source netip.Addr)
	// Hung is told whenever another call hangs, or one that did has returned. It
	// must return without waiting for anything. Nil: nobody is told.
	Hung func()
}

// A Guard lets work through to devices as its gate allows. It is safe for
// concurrent use.
type Guard struct {
	gate     *gate.Gate
	rejected map[string]*rejections // never changed after New
	tell     func(endpoint, identity string, source netip.Addr)
	tellHung func()
	hung     atomic.Int64 // seats of calls that hang
}

// New returns a Guard.
func New(cfg Config) *Guard {
	g := &Guard{gate: cfg.Gate, tell: cfg.Rejected, tellHung: cfg.Hung, rejected: map[string]*rejections{Background: {}}}
	for _, e := range cfg.Endpoints {
		g.rejected[e] = &rejections{}
	}
	return g
}

// Keys returns s behind the gate. It is a keys.Generator or a keys.Destroyer if
// s is one, and its keys are keys.Decrypters if those of s are. What the gate
// turns away is a *keys.BusyError.
func (g *Guard) Keys(s keys.Store) keys.Store {
	guarded := store{guard: g, inner: s}
	maker, makes := s.(keys.Generator)
	unmaker, destroys := s.(keys.Destroyer)
	switch made, unmade := (generator{g, maker}), (destroyer{g, unmaker}); {
	case makes && destroys:
		return struct {
			store
			generator
			destroyer
		}{guarded, made, unmade}
	case makes:
		return struct {
			store
			generator
		}{guarded, made}
	case destroys:
		return struct {
			store
			destroyer
		}{guarded, unmade}
	}
	return guarded
}

type store struct {
	guard *Guard
	inner keys.Store
}

// Key implements keys.Store.
func (s store) Key(ctx context.Context, label string) (keys.Key, error) {
	k, err := s.inner.Key(ctx, label)
	if err != nil {
		return nil, err
	}
	return s.guard.wrap(k, label), nil
}

type generator struct {
	guard *Guard
	maker keys.Generator
}

// Generate implements keys.Generator. Keys are made for the program itself, and
// seldom: without them there is no status at all, so they go with it.
func (s generator) Generate(ctx context.Context, label string, alg keys.Algorithm) (keys.Key, error) {
	var k keys.Key
	err := s.guard.do(ctx, gate.Status, label, func() (err error) {
		k, err = s.maker.Generate(ctx, label, alg)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.guard.wrap(k, label), nil
}

type destroyer struct {
	guard *Guard
	inner keys.Destroyer
}

// Destroy implements keys.Destroyer. It is as seldom as Generate, and goes where
// that goes.
func (s destroyer) Destroy(ctx context.Context, label string) error {
	return s.guard.do(ctx, gate.Status, label, func() error { return s.inner.Destroy(ctx, label) })
}

func (g *Guard) wrap(k keys.Key, label string) keys.Key {
	guarded := key{Key: k, guard: g, label: label}
	if d, ok := k.(keys.Decrypter); ok {
		return decrypter{key: guarded, inner: d}
	}
	return guarded
}

type key struct {
	keys.Key
	guard *Guard
	label string
}

// Ready is what the device says of itself. It takes no seat, as nothing is called.
func (k key) Ready() error { return keys.Ready(k.Key) }

// Sign implements keys.Key.
func (k key) Sign(ctx context.Context, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	var sig []byte
	err := k.guard.do(ctx, classOf(ctx), k.label, func() (err error) {
		sig, err = k.Key.Sign(ctx, digest, opts)
		return err
	})
	return sig, err
}

type decrypter struct {
	key
	inner keys.Decrypter
}

// Decrypt implements keys.Decrypter.
func (k decrypter) Decrypt(ctx context.Context, ciphertext []byte, opts crypto.DecrypterOpts) ([]byte, error) {
	var plain []byte
	err := k.guard.do(ctx, classOf(ctx), k.label, func() (err error) {
		plain, err = k.inner.Decrypt(ctx, ciphertext, opts)
		return err
	})
	return plain, err
}

// do has the device do something once there is a seat for it, with the key of
// that label.
func (g *Guard) do(ctx context.Context, c gate.Class, label string, call func() error) error {
	seat, err := g.gate.AcquireSeat(ctx, c, flowOf(ctx, label))
	if err != nil {
		return g.turnedAway(ctx, err)
	}
	returned := false
	defer func() {
		if !returned { // but panicked
			seat.Fail()
			return
		}
		g.giveBack(seat, err)
	}()
	err = call()
	returned = true
	return err
}

// giveBack ends a call that came to err. What the device did not do is no
// measure of how long it takes to do it; neither is a call that hangs, and that
// one keeps its seat, for the device may still be at work.
func (g *Guard) giveBack(seat gate.Seat, err error) {
	if err == nil {
		seat.Release()
		return
	}
	hung, hangs := errors.AsType[*keys.HungError](err)
	switch {
	case hangs && hung.Returned != nil:
		g.countHung(1)
		go func() { // as many as there are seats at most
			<-hung.Returned
			seat.Hung()
			g.countHung(-1)
		}()
	case hangs:
		seat.Hung()
	case errors.Is(err, keys.ErrBusy):
		seat.Void()
	default:
		seat.Fail()
	}
}

func (g *Guard) countHung(n int64) {
	g.hung.Add(n)
	if g.tellHung != nil {
		g.tellHung()
	}
}

// turnedAway says in the words of package keys why there is no seat.
func (g *Guard) turnedAway(ctx context.Context, err error) error {
	refused, ok := errors.AsType[*gate.Refused](err)
	if !ok {
		return fmt.Errorf("taking a seat at the device: %w", err)
	}
	g.reject(ctx, refused.Reason)
	return &keys.BusyError{Reason: refused.Reason.String(), RetryAfter: max(refused.RetryAfter, time.Second), Err: refused.Err}
}

func (g *Guard) reject(ctx context.Context, why gate.Reason) {
	p := peer.From(ctx)
	endpoint := p.Endpoint
	counts, listed := g.rejected[endpoint]
	if !listed {
		endpoint = Background
		counts = g.rejected[endpoint]
	}
	counts[why].Add(1)
	if g.tell != nil {
		g.tell(endpoint, peer.Identity(ctx), p.Addr)
	}
}

// classOf is how urgent a signature of ctx is.
func classOf(ctx context.Context) gate.Class {
	switch keys.PurposeOf(ctx) {
	case keys.ForRevocation:
		return gate.Revocation
	case keys.ForStatus:
		return gate.Status
	case keys.ForRenewal:
		return gate.Renewal
	case keys.ForOne:
		return gate.Anonymous
	case keys.ForAhead:
		return gate.Ahead
	default:
		return gate.Issuance
	}
}

// flowOf is who shares with others what the gate gives to a class: a proven
// identity, else the network that one customer has, else the key that the
// program itself is at work with.
func flowOf(ctx context.Context, label string) string {
	if id := peer.Identity(ctx); id != "" {
		return id
	}
	if n := peer.NetworkName(peer.From(ctx).Addr); n != "" {
		return n
	}
	return "key:" + label
}
