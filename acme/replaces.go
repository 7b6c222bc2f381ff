package acme

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

// ErrReplaced says that another order, which is not invalid, replaces the
// certificate already.
var ErrReplaced = errors.New("acme: certificate is being replaced by another order")

// exempt reports whether no quota counts the order: it renews a certificate when
// we said so, and holds no name that the certificate does not. Each certificate
// is renewed like that once.
func (o Order) exempt() bool { return o.Renewal && o.Replaces != "" }

// readReplaces takes what the client says that the order replaces (RFC 9773 §5).
func (s *Server) readReplaces(ctx context.Context, o *Order, replaces string) error {
	if replaces == "" {
		return nil
	}
	id, keyID, serial, err := parseCertID(replaces)
	if err != nil {
		return malformed("replaces is not a certificate's id (RFC 9773 §4.1)")
	}
	c, err := s.renewable(ctx, keyID, serial)
	if err != nil && !errors.Is(err, ca.ErrNotFound) {
		return err
	}
	if err != nil || c.Requester != actor(o.AccountID) {
		return malformed("replaces is not the id of a certificate that this account ordered")
	}
	if !slices.ContainsFunc(o.Identifiers, func(n ca.Identifier) bool { return slices.Contains(c.Names, n) }) {
		return malformed("the certificate to be replaced has none of the order's identifiers (RFC 9773 §5)")
	}
	if c.ReplacedBy != "" {
		return alreadyReplaced()
	}
	o.Replaces = id
	o.Renewal = s.renewalIsDue(c, *o)
	return nil
}

// renewalIsDue says whether the order is what its certificate's window asks for.
// The window that a revocation opens does not count, nor that of a certificate
// whose client asked for a short one: else an account that revokes what it gets,
// or gets what is due at once, would have no limits.
func (s *Server) renewalIsDue(c Renewable, o Order) bool {
	if slices.ContainsFunc(o.Identifiers, func(n ca.Identifier) bool { return !slices.Contains(c.Names, n) }) {
		return false
	}
	c.RevokedAt = time.Time{}
	window, incident := s.windowOf(c)
	if incident == nil && s.shortened(c) {
		return false
	}
	return !o.CreatedAt.Before(window.Start) && !o.CreatedAt.After(c.NotAfter)
}

// shortened reports whether a certificate was issued for less than half of what
// is usual by now.
func (s *Server) shortened(c Renewable) bool {
	return c.NotAfter.Sub(c.CreatedAt) < s.ca.UsualLifetime(c.Profile)/2
}

// resumeReplacing finds the open order that replaces the same certificate in the
// same way: the client's own, of which it lost track. Everything else is a
// replacement too many.
func (s *Server) resumeReplacing(ctx context.Context, o Order) (Order, error) {
	old, err := s.store.OrderReplacing(ctx, o.Replaces)
	if err != nil && !isNotFound(err) {
		return Order{}, err
	}
	old = old.At(s.now())
	open := old.Status == OrderPending || old.Status == OrderReady
	if err != nil || !open || old.AccountID != o.AccountID || old.Directory != o.Directory || !sameWish(old, o) {
		return Order{}, alreadyReplaced()
	}
	return old, nil
}

func sameWish(a, b Order) bool {
	return a.AutoRenewal == nil && b.AutoRenewal == nil && a.Profile == b.Profile && slices.Equal(a.Identifiers, b.Identifiers) && a.NotBefore.Equal(b.NotBefore) && a.NotAfter.Equal(b.NotAfter)
}

func alreadyReplaced() *Problem {
	return &Problem{
		Type: AlreadyReplaced, Status: http.StatusConflict,
		Detail: `another order replaces this certificate, or has replaced it; order without "replaces" for a further one`,
	}
}
