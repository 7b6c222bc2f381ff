package app

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/front"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/hsmguard"
	"github.com/secsy-pki/secsy-pki/ratelimit"
	"github.com/secsy-pki/secsy-pki/store"
)

// admission decides what is let in. All of it is there whether it is switched on
// or not, so that SIGHUP can do that.
type admission struct {
	recorder *ratelimit.Recorder
	limiter  *ratelimit.Limiter
	budget   *ratelimit.Budget // nil: off
	gate     *gate.Gate        // before the keys
	guard    *hsmguard.Guard
	width    width
}

// fileSeats are the signatures at once by keys in files, where the processors
// are the device: enough to keep them busy, few enough to tell who goes first.
const fileSeats = 8

// seats is how wide the gate before the keys is. Switched off it still has an
// end, as everything has: nobody who is served well gets to it.
func seats(c config.RateLimit) gate.Config {
	k := c.Concurrency
	if !c.Enabled || !k.Enabled {
		return gate.Config{Seats: 64, MaxQueue: 4096, MaxWait: 30 * time.Second}
	}
	n := k.MaxInFlight
	if n == 0 {
		n = fileSeats
	}
	return gate.Config{
		Seats: n, MaxQueue: k.MaxQueue, MaxWait: time.Duration(k.AcquireTimeoutMS) * time.Millisecond, Adaptive: k.Adaptive,
	}
}

// limits are the tiers in the limiter's words. Switched off they are all inert.
func limits(c config.RateLimit) ratelimit.Config {
	out := ratelimit.Config{MaxKeys: c.MaxKeys, Jitter: true}
	if !c.Enabled {
		return out
	}
	out.Global, out.PerIP, out.PerAccount = bucket(c.Global), bucket(c.PerIP), bucket(c.PerAccount)
	out.PrefixFactor, out.NAT64, out.Shadow = c.IPv6PrefixFactor, prefixes(c.NAT64), c.Shadow
	out.Endpoints = map[string]ratelimit.EndpointLimit{}
	for _, e := range c.Endpoints {
		out.Endpoints[e.Name] = ratelimit.EndpointLimit{PerIP: bucket(e.PerIP), All: bucket(e.Total)}
	}
	for _, o := range c.Overrides {
		out.Overrides = append(out.Overrides, ratelimit.Override{
			Source: o.Source.Prefix, Account: string(o.Account),
			Bucket: ratelimit.Bucket{Rate: float64(o.Rate), Burst: o.Burst}, Exempt: o.Exempt,
		})
	}
	return out
}

func bucket(b config.Bucket) ratelimit.Bucket {
	return ratelimit.Bucket{Rate: float64(b.Rate), Burst: b.Burst, Shadow: b.Shadow}
}

// endpoints are the classes by which rejections of the guard are counted.
var endpoints = []string{classACME, classACMEDirectory, classACMENonce, classACMERenewal, classACMEAccount, classACMEOrder, classACMERevoke, classSCEP, classOCSP, classCRL, classAIA}

// The classes of endpoints, as the protocols name them.
const (
	classACME          = "acme"
	classACMEDirectory = "acme_directory"
	classACMENonce     = "acme_new_nonce"
	classACMERenewal   = "acme_renewal_info"
	classACMEAccount   = "acme_new_account"
	classACMEOrder     = "acme_new_order"
	classACMERevoke    = "acme_revoke"
	classSCEP          = "scep"
	classOCSP          = "ocsp"
	classCRL           = "crl"
	classAIA           = "aia"
	classNone          = "none" // paths that no route wants
)

// buildAdmission comes first: nothing signs but through the guard.
func (a *app) buildAdmission(context.Context) error {
	c := a.cfg.RateLimit
	a.recorder = ratelimit.NewRecorder(a.tellOfRefusals)
	cfg := limits(c)
	cfg.Recorder = a.recorder
	var err error
	if a.limiter, err = ratelimit.New(cfg); err != nil {
		return fmt.Errorf("rate_limit.%w", err) // it begins with the key
	}
	if a.gate, err = gate.New(seats(c)); err != nil {
		return fmt.Errorf("rate_limit.concurrency: %w", err)
	}
	a.width.hint, a.width.limits = make(chan struct{}, 1), c
	a.guard = hsmguard.New(hsmguard.Config{
		Gate: a.gate, Endpoints: endpoints,
		Rejected: func(endpoint, identity string, source netip.Addr) {
			a.recorder.Refused("guard", endpoint, identity, source)
		},
		Hung: a.width.changed,
	})
	a.reloads = append(a.reloads, func(next *config.Config) error {
		if err := a.limiter.Reconfigure(limits(next.RateLimit)); err != nil {
			return fmt.Errorf("rate_limit.%w", err)
		}
		return a.width.set(a, next.RateLimit)
	})
	return nil
}

// guarded puts the guard before the keys.
func (a *app) guarded(k KeyStore) (KeyStore, error) {
	g, ok := a.guard.Keys(k).(KeyStore)
	if !ok {
		return nil, fmt.Errorf("the guard hides that %T makes keys", k)
	}
	return g, nil
}

// buildBudget needs the database.
func (a *app) buildBudget(context.Context) error {
	a.serve("admission", a.recorder.Run)
	c := a.cfg.RateLimit
	if !c.Enabled || !c.RefusalBudget.Enabled {
		return a.registry.Register(&admissionMetrics{a: a})
	}
	var err error
	a.budget, err = ratelimit.NewBudget(ratelimit.BudgetConfig{
		Free: c.RefusalBudget.Free, MaxDelay: c.RefusalBudget.MaxDelay.Std(), Decay: c.RefusalBudget.Decay.Std(),
		Store: store.NewBudget(a.db), Recorder: a.recorder,
	})
	if err != nil {
		return fmt.Errorf("rate_limit.refusal_budget: %w", err)
	}
	a.serve("budget", a.budget.Run)
	return a.registry.Register(&admissionMetrics{a: a})
}

// quota is one in the words of the limiter, off if all of admission control is.
func (a *app) quota(q config.Quota) ratelimit.Quota {
	if !a.cfg.RateLimit.Enabled || q.Limit == 0 {
		return ratelimit.Quota{}
	}
	return ratelimit.Quota{Limit: q.Limit, Window: q.Window.Std()}
}

// Audit actions of admission control.
const (
	actionRefusing = "admission.refusing"
	actionResumed  = "admission.resumed"
)

// tellOfRefusals writes the few lines that a flood leaves: to the log, and to the
// audit log.
func (a *app) tellOfRefusals(ctx context.Context, r ratelimit.Record) {
	attrs := []slog.Attr{slog.String("limit", r.What), slog.String("endpoint", r.Endpoint)}
	detail := map[string]any{"limit": r.What, "endpoint": r.Endpoint}
	add := func(key string, v any) {
		attrs, detail[key] = append(attrs, slog.Any(key, v)), v
	}
	if r.Identity != "" {
		attrs = append(attrs, slog.String("identity", r.Identity))
	}
	if r.Source.IsValid() {
		attrs = append(attrs, slog.String("source", r.Source.String()))
	}
	action := actionRefusing
	if r.Refusals > 0 {
		add("refusals", r.Refusals)
		add("delay_s", r.Delay.Seconds())
	}
	if r.Closed {
		action = actionResumed
		add("suppressed", r.Suppressed)
		add("window_s", r.Window.Seconds())
		a.log.LogAttrs(ctx, slog.LevelWarn, "rate limit: no more refusals", attrs...)
	} else {
		a.log.LogAttrs(ctx, slog.LevelWarn, "rate limit: refusing, further refusals are counted", attrs...)
	}
	actor := r.Identity
	if actor == "" {
		actor = "strangers"
	}
	e := audit.New(actor, action, "limit/"+r.What, detail)
	if r.Source.IsValid() {
		e.Remote = r.Source.String()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := store.NewAudit(a.db).Append(ctx, e); err != nil {
		a.log.WarnContext(ctx, "recording refusals", "error", err)
	}
}

// acmeRoutes are ACME's classes of endpoints, each with its limit.
func (a *app) acmeRoutes() []front.Route {
	var out []front.Route
	for _, s := range a.acmeServers() {
		handler := s.Handler()
		for _, r := range s.Routes() {
			out = append(out, front.Route{Prefix: r.Path, Class: r.Class, Handler: handler, Limit: r.Limit, Refuse: r.Refuse})
		}
	}
	return out
}
