// Package peer says who is calling: the address that trusted hops vouch for and
// the id of the request. It travels in the request's context.
package peer

import (
	"context"
	"net/netip"
)

// A Peer is the caller of one request.
type Peer struct {
	Addr      netip.Addr // the client, by trusted hops; never an unproven header
	Conn      netip.Addr // the other end of the TCP connection
	RequestID string     // ours, unguessable
	Endpoint  string     // the class of the route, one of few; a label
}

type key struct{}

// With returns a context that carries p.
func With(ctx context.Context, p Peer) context.Context { return context.WithValue(ctx, key{}, p) }

// From returns the caller, and the zero Peer where there is none.
func From(ctx context.Context) Peer {
	p, _ := ctx.Value(key{}).(Peer)
	return p
}

type identityKey struct{}

// WithIdentity returns a context whose caller is proven to be id, such as
// "acme:account/...". It is for those who have checked the proof.
func WithIdentity(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// Identity returns who the caller is proven to be, "" for nobody known.
func Identity(ctx context.Context) string {
	id, _ := ctx.Value(identityKey{}).(string)
	return id
}
