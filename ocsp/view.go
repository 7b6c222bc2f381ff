package ocsp

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

// Lag is how old the knowledge may be that an answer from memory rests on. Who
// changes a status where other processes may answer, too, tells nobody that it
// is done before Lag and LagMargin have passed since its commit: by then
// every process has seen the change or answers from the store. It is no setting:
// all processes have to agree on it.
const (
	Lag = time.Second
	// LagMargin is for clocks that do not run equally fast.
	LagMargin = 100 * time.Millisecond
)

const (
	// lookEvery is how often the changes are asked for.
	lookEvery = 250 * time.Millisecond
	// lookingCalm is how long all looks must have seen everything before the
	// trouble with them is over.
	lookingCalm = 10 * time.Second
	// changesPage is how many are read at a time.
	changesPage = 1000
)

// A view follows the changes of statuses, so that an answer in memory can be
// sent without a question to the store.
type view struct {
	began atomic.Pointer[time.Time] // of the last look that saw everything; nil: none did
}

// fresh reports whether everything that was committed Lag before now is known.
// Both clocks have to say so: the monotonic one stands still while a machine is
// suspended, and the other one may be set.
func (v *view) fresh(now time.Time) bool {
	b := v.began.Load()
	return b != nil && within(now.Sub(*b)) && within(time.Duration(now.UnixNano()-b.UnixNano()))
}

// within allows a look to have begun a moment after now was read.
func within(age time.Duration) bool { return -Lag < age && age < Lag }

// Changed tells that the status of a certificate has changed. Who acknowledges a
// change in this process calls it before.
func (s *Server) Changed(issuer ca.IssuerID, serial ca.Serial) {
	for _, p := range s.posts {
		if p.issuer.ID == issuer {
			s.cache.change(subject{p.index, serial})
		}
	}
}

// following reports whether answers may come from memory.
func (s *Server) following() bool { return s.view.fresh(s.cfg.Now()) }

// Follow looks for changes until ctx ends. Without it, each answer reads the store.
func (s *Server) Follow(ctx context.Context) error {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		switch err := s.look(ctx); {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			if over, took, failures := s.looking.works(s.cfg.Now()); over {
				s.cfg.Logger.InfoContext(ctx, "changes of statuses are followed again", "after", took, "failures", failures)
			}
		case s.looking.fails(s.cfg.Now()):
			s.cfg.Logger.WarnContext(ctx, "changes of statuses can't be followed; until they can, each OCSP answer reads the database", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// look learns of all that was committed before it began. Only one runs at a time.
func (s *Server) look(ctx context.Context) error {
	began := s.cfg.Now()
	ctx, cancel := context.WithTimeout(ctx, Lag)
	defer cancel()
	heads, err := s.cfg.Source.Heads(ctx)
	if err != nil {
		return fmt.Errorf("looking for changes of statuses: %w", err)
	}
	for _, p := range s.posts {
		if err := s.catchUp(ctx, p, heads[p.issuer.ID]); err != nil {
			return fmt.Errorf("reading the changes of issuer %s: %w", p.issuer.ID, err)
		}
	}
	s.view.began.Store(&began)
	return nil
}

// catchUp forgets what has changed after the last change seen, up to head at
// least. Where it fails, the next look goes on.
func (s *Server) catchUp(ctx context.Context, p *post, head int64) error {
	if !p.followed || head < p.seen {
		// What was put before the first look may have changed since. A head goes back
		// where a database was restored, and counts anew what may be other changes.
		s.cache.clear()
		p.followed, p.seen = true, head
		return nil
	}
	for p.seen < head {
		changes, err := s.cfg.Source.Changes(ctx, p.issuer.ID, p.seen, changesPage)
		if err != nil {
			return err
		}
		for _, c := range changes {
			s.cache.change(subject{p.index, c.Serial})
			p.seen = c.Number
		}
		if len(changes) < changesPage {
			p.seen = max(p.seen, head)
		}
	}
	return nil
}
