package app

import (
	"context"
	"fmt"

	"github.com/secsy-pki/secsy-pki/config"
)

// watchReload reads the configuration again whenever it is told to.
func (a *app) watchReload(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.opts.Reload:
			if err := a.reload(); err != nil {
				a.log.ErrorContext(ctx, "reloading: everything stays as it was", "error", err)
			}
		}
	}
}

// reload puts into force what can change while requests are answered, and says
// what cannot. A file that is wrong changes nothing.
func (a *app) reload() error {
	next := a.inForce
	if a.opts.ConfigPath != "" {
		var err error
		if next, err = config.Load(a.opts.ConfigPath); err != nil {
			return err
		}
		if a.opts.Adjust != nil {
			if err := a.opts.Adjust(next); err != nil {
				return err
			}
		}
		if err := next.ValidateServe(); err != nil {
			return fmt.Errorf("%s: %w", a.opts.ConfigPath, err)
		}
	}
	live, restart := config.Diff(a.inForce, next)
	for _, fn := range a.reloads {
		if err := fn(next); err != nil {
			return err
		}
	}
	_ = a.level.UnmarshalText([]byte(next.Log.Level)) // one of four words by now
	for _, c := range live {
		a.log.Info("reloaded", "key", c.Key, "from", c.Old, "to", c.New)
	}
	for _, c := range restart {
		a.log.Warn("changed in the file, but needs a restart", "key", c.Key, "from", c.Old, "to", c.New)
	}
	a.tellOfSwitch(next)
	if len(live)+len(restart) == 0 {
		a.log.Info("reloaded: nothing in the configuration has changed")
	}
	// What needs a restart is told again next time.
	merged := *a.inForce
	merged.Log.Level = next.Log.Level
	merged.TrustedProxies = next.TrustedProxies
	merged.RateLimit = next.RateLimit
	merged.RateLimit.MaxKeys = a.inForce.RateLimit.MaxKeys
	merged.RateLimit.Quotas = a.inForce.RateLimit.Quotas
	merged.RateLimit.RefusalBudget = a.inForce.RateLimit.RefusalBudget
	a.inForce = &merged
	return nil
}

// tellOfSwitch says what the switch of admission control does not turn: what
// keeps its counts in the database was built, or not, at the start.
func (a *app) tellOfSwitch(next *config.Config) {
	was := a.cfg.RateLimit
	if next.RateLimit.Enabled == was.Enabled {
		return
	}
	for _, c := range []struct {
		key   string
		built bool
	}{
		{"rate_limit.quotas", was.Quotas.Active()},
		{"rate_limit.refusal_budget", was.RefusalBudget.Enabled},
	} {
		if c.built {
			a.log.Warn("follows rate_limit.enabled at the next start only", "key", c.key, "enabled_until_then", was.Enabled)
		}
	}
}
