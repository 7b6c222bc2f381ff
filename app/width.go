package app

import (
	"context"
	"sync"

	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/pkcs11pool"
)

// A width keeps the gate before the keys as wide as the tokens are behind it.
type width struct {
	hint chan struct{} // something has changed

	mu       sync.Mutex // guards what follows, and that the gate is told one thing after the other
	limits   config.RateLimit
	sessions int // of the tokens that were up last; 0: none were yet
}

// changed says that the tokens are more or fewer, or hang. It never blocks.
func (w *width) changed() {
	select {
	case w.hint <- struct{}{}:
	default:
	}
}

// set puts limits into force.
func (w *width) set(a *app, limits config.RateLimit) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limits = limits
	return w.fitLocked(a)
}

// fit has the gate be as wide as the tokens are now.
func (w *width) fit(a *app) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fitLocked(a)
}

func (w *width) fitLocked(a *app) error {
	cfg := seats(w.limits)
	if a.pool != nil {
		cfg = w.overTokensLocked(cfg, a.pool.Stat().Tokens)
	}
	return a.gate.Reconfigure(cfg)
}

// overTokensLocked is cfg for these tokens. Unless the configuration says how
// many seats there are, they are as many as the sessions of the tokens that are
// up, or were last. The calls that hang on a token that is not up have seats
// beside these, or else nothing of another token could be used.
func (w *width) overTokensLocked(cfg gate.Config, tokens []pkcs11pool.TokenStat) gate.Config {
	up, hung := 0, 0
	for _, t := range tokens {
		if t.State == pkcs11pool.Up {
			up += t.Limit
		} else {
			hung += t.Hung
		}
	}
	if up > 0 {
		w.sessions = up
	}
	if k := w.limits.Concurrency; w.limits.Enabled && k.Enabled && k.MaxInFlight == 0 && w.sessions > 0 {
		cfg.Seats = w.sessions
	}
	cfg.Seats += hung
	return cfg
}

// resized is told by the pool how many sessions there are.
func (a *app) resized(int) { a.width.changed() }

// fitGate comes after the keys are open.
func (a *app) fitGate(context.Context) error {
	if a.pool == nil {
		return nil
	}
	a.serve("width", func(ctx context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-a.width.hint:
				if err := a.width.fit(a); err != nil {
					a.log.ErrorContext(ctx, "fitting the gate before the keys to the tokens", "error", err)
				}
			}
		}
	})
	return a.width.fit(a)
}
