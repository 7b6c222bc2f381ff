package peer

import "context"

// A Cred is who the kernel says is on the other end of a local socket. Nobody
// can forge it, and it needs no password.
type Cred struct {
	UID, GID uint32
	PID      int32
}

type credKey struct{}

// WithCred returns a context that carries c.
func WithCred(ctx context.Context, c Cred) context.Context {
	return context.WithValue(ctx, credKey{}, c)
}

// CredFrom returns the credentials of a caller on a local socket. It is false
// for every caller that came over a network.
func CredFrom(ctx context.Context) (Cred, bool) {
	c, ok := ctx.Value(credKey{}).(Cred)
	return c, ok
}
