package acme

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

// Reuse finds what an account has already.
type Reuse interface {
	// ReusableAuthorizations returns the valid authorizations that q is about,
	// of several that differ in nothing but their times the one that expires last.
	ReusableAuthorizations(ctx context.Context, q ReuseQuery) ([]Authorization, error)
	// SameOrder returns the pending or ready order that q is about, of several
	// the one that expires last, and ErrNotFound for none.
	SameOrder(ctx context.Context, q SameOrderQuery) (Order, error)
}

// A ReuseQuery asks for valid authorizations.
type ReuseQuery struct {
	AccountID string
	Directory string
	Profile   string
	Names     []string        // without "*."
	Types     []ChallengeType // by which they were proven
	Until     time.Time       // they expire later
	Since     time.Time       // they were proven later
}

// A SameOrderQuery asks for an open order.
type SameOrderQuery struct {
	AccountID string
	SetHash   string
	Until     time.Time // it expires later
}

// maxMargin is the most that must be left of what is used again, and purgeSlack
// for how long an authorization stays after the orders that rely on it.
const (
	maxMargin  = 24 * time.Hour
	purgeSlack = time.Hour
)

// margin is how much must be left of something that lives so long: a client
// needs time to go on with it.
func margin(life time.Duration) time.Duration { return min(life/2, maxMargin) }

// authzLife is how long an authorization that is proven at t is valid.
func (s *Server) authzLife(t time.Time) time.Duration {
	if s.cfg.MaxReuse == nil {
		return s.cfg.AuthzLifetime
	}
	return min(s.cfg.AuthzLifetime, s.cfg.MaxReuse(t))
}

// provenSince is when, at the earliest, a name was proven that is certified at t.
func (s *Server) provenSince(t time.Time) time.Time {
	if s.cfg.MaxReuse == nil {
		return time.Time{}
	}
	return t.Add(-s.cfg.MaxReuse(t))
}

// setHash is the same for two orders for the same.
func (s *Server) setHash(o Order, by ancestry) string {
	var names []string
	for _, id := range o.Identifiers {
		names = append(names, string(id.Type)+" "+id.Value+" "+by[id])
	}
	slices.Sort(names)
	h := sha256.New()
	// What may be proven how is part of it: an order offers what there was when it was made.
	_, _ = fmt.Fprintf(h, "%s\n%s\n%d %d\n%s\n%v\n%s", o.Directory, o.Profile, o.NotBefore.Unix(), o.NotAfter.Unix(), o.Replaces, s.cfg.Challenges, strings.Join(names, "\n"))
	return hex.EncodeToString(h.Sum(nil))
}

// placeOrFind stores an order, or finds the one that the account has open for the same.
func (s *Server) placeOrFind(ctx context.Context, o Order, by ancestry, signer Signer) (placed Order, found bool, err error) {
	const tries = 3
	for range tries {
		if placed, err = s.place(ctx, o, by, signer); !errors.Is(err, ErrSame) {
			return placed, false, err
		}
		placed, err = s.store.SameOrder(ctx, SameOrderQuery{AccountID: o.AccountID, SetHash: o.SetHash, Until: s.sameUntil(o)})
		if !isNotFound(err) {
			return placed, true, err
		}
	}
	return o, false, ErrMoved
}

// sameUntil is when an open order must expire later to be given instead of o, zero
// for none.
func (s *Server) sameUntil(o Order) time.Time {
	if !s.cfg.ReuseOrders || o.SetHash == "" {
		return time.Time{}
	}
	return o.CreatedAt.Add(margin(s.cfg.OrderLifetime))
}

// held are valid authorizations of an account, to be relied on again.
type held []Authorization

// held finds what the account has proven of the order's names. Until it is used
// it may be gone, which CreateOrder sees.
func (s *Server) held(ctx context.Context, o Order, by ancestry) (held, error) {
	// Certificates that are renewed rely on their authorizations for long.
	if !s.cfg.ReuseAuthorizations || o.AutoRenewal != nil {
		return nil, nil
	}
	var names []string
	for _, id := range o.Identifiers {
		names = append(names, s.provers(id, o.Profile)...)
		if above := by[id]; above != "" {
			names = append(names, above) // however far above it is
		}
	}
	slices.Sort(names)
	life := s.authzLife(o.CreatedAt)
	left := o.CreatedAt.Add(margin(life))
	return s.store.ReusableAuthorizations(ctx, ReuseQuery{
		AccountID: o.AccountID, Directory: o.Directory, Profile: o.Profile, Names: slices.Compact(names), Types: reusableTypes(s.cfg.Challenges),
		Until: left, Since: left.Add(-life),
	})
}

// reusableTypes leaves out those whose proof is for one key: the next
// certificate has another.
func reusableTypes(offered []ChallengeType) []ChallengeType {
	return slices.DeleteFunc(slices.Clone(offered), func(t ChallengeType) bool { return t == DeviceAttest01 })
}

// provers are the names whose authorization may prove id.
func (s *Server) provers(id ca.Identifier, profile string) []string {
	name := id.Value
	if base, ok := wildcardBase(id); ok {
		name = base
	}
	if id.Type != ca.DNS || !s.subdomains(profile) {
		return []string{name}
	}
	return append(Ancestors(name), name)
}

// of returns the authorization that proves id, of several the one that expires last.
func (h held) of(want Authorization) (Authorization, bool) {
	var best Authorization
	for _, a := range h {
		if a.covers(want) && slices.Contains(want.Offered, a.Challenge) && a.Expires.After(best.Expires) {
			best = a
		}
	}
	return best, best.ID != ""
}

// until is when an authorization may no longer be relied on.
func (s *Server) until(a Authorization, now time.Time) time.Time {
	if end := a.Validated.Add(s.authzLife(now)); end.Before(a.Expires) {
		return end
	}
	return a.Expires
}

// cover gives the order its authorizations: those of h that prove its names, and
// new ones, which are returned, for the others. An order that needs none is ready.
func (s *Server) cover(o *Order, by ancestry, h held) ([]Authorization, error) {
	var made []Authorization
	o.AuthzIDs, o.Expires = nil, o.CreatedAt.Add(s.cfg.OrderLifetime)
	for _, id := range o.Identifiers {
		a := s.newAuthorization(*o, id, "")
		old, ok := h.of(a)
		if ok {
			if end := s.until(old, o.CreatedAt); end.Before(o.Expires) {
				o.Expires = end
			}
			if !slices.Contains(o.AuthzIDs, old.ID) { // one may prove several
				o.AuthzIDs = append(o.AuthzIDs, old.ID)
			}
			continue
		}
		if above := by[id]; above != "" {
			a = s.newAuthorization(*o, id, above)
			if slices.ContainsFunc(made, func(b Authorization) bool { return b.Subdomains && b.Identifier == a.Identifier }) {
				continue
			}
		}
		if len(a.Offered) == 0 {
			return nil, aboutNameErr(RejectedIdentifier, "none of the challenges that are offered here can prove it", id)
		}
		made = append(made, a)
		o.AuthzIDs = append(o.AuthzIDs, a.ID)
	}
	for i := range made {
		made[i].Expires, made[i].PurgeAt = o.Expires, o.Expires.Add(s.cfg.Retention+purgeSlack)
	}
	if o.Status = OrderPending; len(made) == 0 {
		o.Status = OrderReady
	}
	return made, nil
}

// place stores an order with what it needs.
func (s *Server) place(ctx context.Context, o Order, by ancestry, signer Signer) (Order, error) {
	h, err := s.held(ctx, o, by)
	if err != nil {
		return o, err
	}
	limits := s.orderLimits(o)
	limits.By, limits.Unlike = signer, s.sameUntil(o)
	for {
		made, err := s.cover(&o, by, h)
		if err != nil {
			return o, err
		}
		err = s.store.CreateOrder(ctx, o, made, limits)
		if !isMoved(err) || h == nil {
			return o, err
		}
		h = nil // one was deactivated meanwhile: all is to be proven anew
	}
}

// unproven is what becomes of an order whose authorizations no longer hold.
func (s *Server) unproven(now time.Time) Closing {
	return Closing{
		Error: Problem{
			Type: Unauthorized, Status: 403,
			Detail: "an authorization of the order no longer holds: it was deactivated, has expired, or is too old by the rules of today; order again",
		},
		PurgeAt: now.Add(s.cfg.Retention),
	}
}

func isUnproven(err error) bool { return errors.Is(err, ErrUnproven) }
