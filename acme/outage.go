package acme

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// calm is how long the device must not have been busy before an outage is over.
const calm = 10 * time.Second

// An outage is a time in which the device is busy, away, or hangs. The log has a
// line when it begins and one when it is over, however many orders wait for it.
type outage struct {
	mu    sync.Mutex // guards what follows
	on    bool
	since time.Time
	last  time.Time
	tries int
}

// noteIssuance notes what came of asking the authority for a certificate.
func (s *Server) noteIssuance(ctx context.Context, err error) {
	switch {
	case err == nil:
		if took, tries, over := s.outage.works(s.now()); over {
			s.log.InfoContext(ctx, "certificates are issued again", slog.Duration("after", took), slog.Int("tries", tries))
		}
	case passing(err) && s.outage.fails(s.now()):
		s.log.WarnContext(ctx, "issuance waits for the signing device; orders are put off until it can be asked", slog.Any("error", err))
	}
}

func (o *outage) fails(now time.Time) (begins bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	begins = !o.on
	if begins {
		o.on, o.since, o.tries = true, now, 0
	}
	o.tries++
	o.last = now
	return begins
}

func (o *outage) works(now time.Time) (took time.Duration, tries int, over bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.on || now.Sub(o.last) < calm {
		return 0, 0, false
	}
	o.on = false
	return now.Sub(o.since), o.tries, true
}

// levelOf is how loud to be about one order: of an outage it is said that it is.
func levelOf(err error) slog.Level {
	if busy(err) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}
