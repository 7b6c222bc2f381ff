package ocsp

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// faultEvery is how often faults of requests are logged.
const faultEvery = 5 * time.Second

// A faultLog writes at most one line every faultEvery, with the count of those
// left out: when the database is away, every request has the same to say.
type faultLog struct {
	log *slog.Logger
	now func() time.Time

	mu     sync.Mutex // guards what follows
	last   time.Time
	missed int
}

// report logs that while doing something err happened.
func (f *faultLog) report(ctx context.Context, doing string, err error) {
	if missed, ok := f.turn(); ok {
		f.log.ErrorContext(ctx, "serving OCSP", "while", doing, "error", err, "unlogged_before", missed)
	}
}

func (f *faultLog) turn() (missed int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if since := now.Sub(f.last); since >= 0 && since < faultEvery {
		f.missed++
		return 0, false
	}
	missed, f.missed, f.last = f.missed, 0, now
	return missed, true
}
