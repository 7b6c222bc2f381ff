package ocsp

import (
	"context"
	"errors"
	"time"

	"golang.org/x/crypto/cryptobyte"

	"github.com/secsy-pki/secsy-pki/keys"
)

const (
	// refreshEvery is how often it is looked which answers are to be made anew.
	refreshEvery = 20 * time.Second
	// refreshAhead is how long before a request would find them so.
	refreshAhead = 2 * refreshEvery
)

// refresh makes answers anew before they come due, if anybody has asked for them
// since they were made: so that whoever asks next need not wait.
func (s *Server) refresh(ctx context.Context) {
	t := time.NewTicker(refreshEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for _, d := range s.cache.askedAndDue(s.cfg.Now().Add(refreshAhead)) {
			if err := s.renew(ctx, d); err != nil {
				if ctx.Err() == nil && !passing(err) && !errors.Is(err, errUnsigned) {
					s.faults.report(ctx, "making a response anew before it comes due", err)
				}
				break // it is tried again, at the latest when one is asked for
			}
		}
	}
}

// renew makes one answer anew. What is not answered for any more is left to
// whoever asks.
func (s *Server) renew(ctx context.Context, d dueAnswer) error {
	id, err := readCertID(cryptobyte.String(d.certID))
	if err != nil {
		return err
	}
	p := s.posts[d.subject.issuer]
	told, err := s.statuses(ctx, p, &request{certIDs: []certID{id}})
	if errors.Is(err, unauthorized) || errors.Is(err, tryLater) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = s.inTime(keys.WithPurpose(ctx, keys.ForStatus), s.cfg.SignTimeout, func(ctx context.Context) (*answer, error) {
		return s.signShared(ctx, &asker{paid: true}, p, id, told[0])
	})
	return err
}

// A dueAnswer is one that is to be made anew.
type dueAnswer struct {
	subject subject
	certID  []byte
}

// askedAndDue lists the answers that come due before a time, and that were asked
// for after they were made.
func (c *cache) askedAndDue(before time.Time) []dueAnswer {
	var out []dueAnswer
	for i := range c.certs {
		sh := &c.certs[i]
		sh.mu.RLock()
		for _, p := range sh.ring {
			for _, a := range p.answers {
				if a.due(before) && a.asked.Load() {
					out = append(out, dueAnswer{p.subject, []byte(a.certID)})
				}
			}
		}
		sh.mu.RUnlock()
	}
	return out
}
