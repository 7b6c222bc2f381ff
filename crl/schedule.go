package crl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

// never is after every time.
var never = time.Date(9999, time.December, 31, 0, 0, 0, 0, time.UTC)

// dueAt is when the next complete CRL of sh is due. Shards, which began
// together, are told apart by as much as a tenth of the period, in which every
// replica agrees.
func (s *Server) dueAt(sh *shelf, h Head) time.Time {
	if h.Published == 0 || sh.plan.Delta > 0 && h.Base == (Base{}) {
		return time.Time{} // deltas need one to be based on
	}
	at := h.ScheduledAt.Add(s.cfg.Period)
	if sh.scope.Shard == 0 {
		return at
	}
	return at.Add(-spread(sh.scope, h.ScheduledAt, s.cfg.Period/10))
}

// spread is a time below most that only scope and at decide.
func spread(scope Scope, at time.Time, most time.Duration) time.Duration {
	h := fnv.New64a()
	_, _ = h.Write([]byte(scope.String())) // never fails
	_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(at.UnixMicro())))
	return time.Duration(h.Sum64() % uint64(max(most, 1)))
}

// deltaDueAt is when the next delta of sh is due: when something changed, when
// there is another complete CRL to be based on, or in its time. The zero time is
// now.
func (s *Server) deltaDueAt(sh *shelf, h Head) time.Time {
	switch {
	case sh.plan.Delta == 0 || h.Base == (Base{}) || !h.Base.NextUpdate.After(s.cfg.Now().Add(backdate)):
		return never // a delta does not outlive what it is based on
	case h.Delta == 0, h.DeltaBase != h.Base.Number, h.DeltaChanged:
		return time.Time{}
	}
	return h.DeltaAt.Add(sh.plan.Delta)
}

func (s *Server) untilNext(sh *shelf, h Head) time.Duration {
	now := s.cfg.Now()
	return max(0, min(s.cfg.Poll, s.dueAt(sh, h).Sub(now), s.deltaDueAt(sh, h).Sub(now)))
}

// look reads the head, and what was published since.
func (s *Server) look(ctx context.Context, sh *shelf) (Head, error) {
	head, err := s.cfg.Store.Head(ctx, sh.scope)
	if err != nil {
		return head, err
	}
	err = s.fetch(ctx, sh, Series{sh.scope, false}, head.Published)
	if err != nil || sh.plan.Delta == 0 {
		return head, err
	}
	err = s.fetch(ctx, sh, Series{sh.scope, true}, head.Delta)
	if errors.Is(err, errUnusable) {
		// The next one takes its place, as if there had been none.
		s.cfg.Logger.WarnContext(ctx, "replacing the stored delta CRL", "scope", sh.scope.String(), "number", int64(head.Delta), "cause", err)
		head.Delta, err = 0, nil
	}
	return head, err
}

// errUnusable says that what is stored is not a CRL of the issuer: another one
// is to take its place.
var errUnusable = errors.New("crl: the stored one cannot be used")

// fetch puts the published CRL on the shelf unless that one is there.
func (s *Server) fetch(ctx context.Context, sh *shelf, of Series, published Number) error {
	to := sh.slot(of.Delta)
	if have := to.Load(); published == 0 || have != nil && have.Number >= published {
		return nil
	}
	c, err := s.cfg.Store.Latest(ctx, of)
	if err != nil {
		return err
	}
	body := newBody()
	if err := s.cfg.Store.Get(ctx, c.Body, body); err != nil {
		return errors.Join(err, body.Release())
	}
	info, err := Verify(body, sh.issuer)
	if err != nil {
		return errors.Join(fmt.Errorf("%w: %w", errUnusable, err), body.Release())
	}
	s.put(ctx, to, c, body, info)
	return nil
}

// lookForShards says which shards certificates are put into, as long before it
// has to be as an hour, and makes room for those that there are. A shard that no
// certificate names any more which is valid goes after one more period, in which
// it was on a scheduled CRL past its expiry.
func (s *Server) lookForShards(ctx context.Context) error {
	now := s.cfg.Now()
	for _, is := range s.cfg.Issuers {
		if err := s.needShards(ctx, is, now); err != nil {
			return fmt.Errorf("keeping the CRL shards of issuer %s: %w", is.ID, err)
		}
		list, err := s.cfg.Store.Shards(ctx, is.ID)
		if err != nil {
			return err
		}
		for _, shard := range list {
			scope := Scope{is.ID, shard.ID}
			switch have, needed := s.shelf(scope), now.Before(shard.NeededUntil.Add(maxPeriod)); {
			case needed && have == nil:
				s.addShelf(is, scope, shard.URL)
			case !needed && have != nil:
				s.dropShelf(ctx, have)
			}
		}
	}
	return nil
}

func (s *Server) needShards(ctx context.Context, is *ca.Issuer, now time.Time) error {
	if len(is.CRLShards) == 0 || now.Before(s.said[is.ID].Add(shardEvery)) {
		return nil
	}
	err := s.cfg.Store.NeedShards(ctx, is.ID, is.CRLShards, NeededUntil(now, s.cfg.Life))
	if err == nil {
		s.said[is.ID] = now
	}
	return err
}

// dropShelf takes a scope off the addresses. Who reads it may do so to its end.
func (s *Server) dropShelf(ctx context.Context, sh *shelf) {
	s.mu.Lock()
	delete(s.shelves, sh.scope.String())
	s.mu.Unlock()
	s.cfg.Logger.InfoContext(ctx, "a CRL shard is needed no more", "scope", sh.scope.String())
	for _, sl := range []*slot{&sh.list, &sh.delta} {
		if was := sl.Swap(nil); was != nil {
			s.giveBack(ctx, was.file.body)
		}
	}
}
