// Package hsmguard puts a gate around a key store, so that nothing is asked of
// a device but through it.
//
// A seat of the gate belongs to the call of the device: it is taken right
// before, and given back when the call returns, however long ago whoever wanted
// it has left. Finding a key takes none, as labels are no stranger's choice.
package hsmguard

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"net/netip"
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
}

// A Guard lets work through to devices as its gate allows. It is safe for
// concurrent use.
type Guard struct {
	gate     *gate.Gate
	rejected map[string]*rejections // never changed after New
	tell     func(endpoint, identity string, source netip.Addr)
	calls    [gate.Classes]gate.Times
}

// New returns a Guard.
func New(cfg Config) *Guard {
	g := &Guard{gate: cfg.Gate, tell: cfg.Rejected, rejected: map[string]*rejections{Background: {}}}
	for _, e := range cfg.Endpoints {
		g.rejected[e] = &rejections{}
	}
	return g
}

// Keys returns s behind the gate. It is a keys.Generator if s is one, and its
// keys are keys.Decrypters if those of s are. What the gate turns away is a
// *keys.BusyError.
func (g *Guard) Keys(s keys.Store) keys.Store {
	guarded := store{guard: g, inner: s}
	if maker, ok := s.(keys.Generator); ok {
		return generator{store: guarded, maker: maker}
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
	store
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
	worked, began := false, time.Now()
	defer func() { // also when the call panics
		g.calls[c].Observe(time.Since(began))
		if worked {
			seat.Release()
		} else {
			seat.Fail()
		}
	}()
	err = call()
	worked = err == nil
	return err
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
