package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/secsy-pki/secsy-pki/config"
)

// Check opens what a configuration names, as Run would, and says on out what it
// found. It makes nothing, and asks neither the database nor the network. What
// is wrong comes back together; what rests on it is then not looked at.
//
// A token is asked what it is and where the keys are, and signs nothing.
func Check(ctx context.Context, cfg *config.Config, ask Prompt, out io.Writer) error {
	if err := cfg.ValidateServe(); err != nil {
		return err
	}
	a := newApp(Options{Config: cfg, Stderr: io.Discard, Prompt: ask})
	a.strict = true
	list := checklist{out: out}
	a.check(ctx, &list)
	list.add(a.close())
	return list.err()
}

func (a *app) check(ctx context.Context, list *checklist) {
	cfg := a.cfg
	if err := a.buildAdmission(ctx); err != nil {
		list.add(err)
		return
	}
	width := a.gate.Stat().Seats
	if cfg.Keys.PKCS11.Enabled() && cfg.RateLimit.Concurrency.MaxInFlight == 0 {
		width = 0 // the tokens know
	}
	list.ok(nil, "%s", admissionSummary(cfg.RateLimit, width))
	if err := a.openKeys(ctx); err != nil {
		list.add(err)
	} else {
		a.checkKeys(ctx, list)
	}
	if f := cfg.Listen.HTTPS.Files; f.CertFile != "" {
		list.ok(a.buildCertificate(ctx), "https certificate %s with key %s", f.CertFile, f.KeyFile)
	}
	if cfg.ACME.Enabled {
		v, err := a.validator()
		list.ok(err, "a resolver for ACME's validation is known")
		if err == nil {
			_, err = a.corroborated(v)
			list.ok(err, "%s", perspectiveSummary(cfg, time.Now()))
		}
		if c := cfg.ACME.DeviceAttestation; c != (config.DeviceAttestation{}) {
			_, err := withDevices(nil, c)
			list.ok(err, "roots above attestations of devices")
		}
	}
	if cfg.Store.Engine == config.EnginePostgres {
		list.ok(checkSecret("store.postgres.url", cfg.Store.Postgres.URL), "database URL from %s", source(cfg.Store.Postgres.URL))
	} else {
		dir := filepath.Dir(string(cfg.Store.SQLite.Path))
		list.ok(checkFolder("store.sqlite.path", dir), "folder of the database %s", dir)
	}
	if s := string(cfg.Listen.Operator.Socket); s != "" {
		list.ok(checkPrivateFolder("listen.operator.socket", filepath.Dir(s)), "folder of the operator socket %s", filepath.Dir(s))
	}
}

// checkKeys looks at keys that are open, and at all that rests on them.
func (a *app) checkKeys(ctx context.Context, list *checklist) {
	if a.cfg.NeedsKeyFiles() {
		list.ok(nil, "keys in %s, opened by the passphrase from %s", a.cfg.Keys.Directory, source(a.cfg.Keys.Passphrase))
	}
	if a.pool != nil {
		list.tokens(ctx, a.pool)
	}
	err := a.openIssuers(ctx)
	for _, is := range a.issuers {
		list.ok(nil, "issuer %s, %s, until %s", is.Name, activity(is.Active), moment(is.Cert.NotAfter))
	}
	if list.add(err); err != nil {
		return
	}
	if a.pool != nil {
		ring := Keyring{issuers: a.cfg.Issuers, pool: a.pool}
		ring.checkIssuers(ctx, list)
	}
	list.ok(a.checkProfiles(ctx), "profiles %s: each can be issued", strings.Join(profileNames(a.cfg), ", "))
}

// admissionSummary says what is let in, where a person looks before a start.
// Seats before the keys are 0 if there will be as many as sessions of the tokens.
func admissionSummary(c config.RateLimit, seats int) string {
	if !c.Enabled {
		off := "admission control is off: rate_limit.enabled is false, nobody is refused for asking often"
		if q := c.Quotas; q.ACMEIdentifiers.Limit > 0 || q.ACMEDuplicates.Limit > 0 || q.ACMERegisteredDomain.Limit > 0 {
			off += ", and rate_limit.quotas rest, too"
		}
		return off
	}
	tier := func(name string, b config.Bucket) string {
		if b.Rate <= 0 || b.Burst <= 0 {
			return name + " without a limit"
		}
		if b.Shadow {
			name += " (in shadow)"
		}
		return fmt.Sprintf("%s %g/s, burst %d", name, float64(b.Rate), b.Burst)
	}
	parts := []string{tier("global", c.Global), tier("per_ip", c.PerIP), tier("per_account", c.PerAccount)}
	for _, e := range c.Endpoints {
		parts = append(parts, "a limit of "+e.Name)
	}
	if n := len(c.Overrides); n > 0 {
		parts = append(parts, fmt.Sprintf("overrides: %d", n))
	}
	if q := c.Quotas.ACMEIdentifiers; q.Limit > 0 {
		parts = append(parts, fmt.Sprintf("%d identifiers of an account in %s", q.Limit, q.Window))
	}
	if q := c.Quotas.ACMEDuplicates; q.Limit > 0 {
		parts = append(parts, fmt.Sprintf("%d orders of an account for the same names in %s", q.Limit, q.Window))
	}
	if q := c.Quotas.ACMERegisteredDomain; q.Limit > 0 {
		parts = append(parts, fmt.Sprintf("%d orders for a registered domain in %s", q.Limit, q.Window))
	}
	switch {
	case !c.Concurrency.Enabled:
		parts = append(parts, "no guard before the keys")
	case seats == 0:
		parts = append(parts, "as many seats before the keys as their tokens have sessions")
	default:
		parts = append(parts, fmt.Sprintf("%d seats before the keys", seats))
	}
	if c.Shadow {
		parts = append(parts, "all tiers in shadow: refusals are counted, not made")
	}
	return "admission control: " + strings.Join(parts, "; ")
}

func activity(active bool) string {
	if active {
		return "active"
	}
	return "not active"
}

// checkSecret reads a secret and forgets it.
func checkSecret(key string, s config.Secret) error {
	if _, err := s.Read(); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// checkFolder wants a folder, which serving doesn't make.
func checkFolder(key, dir string) error {
	switch fi, err := os.Stat(dir); {
	case err != nil:
		return fmt.Errorf("%s: its folder must be there: %w", key, err)
	case !fi.IsDir():
		return fmt.Errorf("%s: %s is not a folder", key, dir)
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("%s: this user can't write in %s: %w", key, dir, err)
	}
	return nil
}

// checkPrivateFolder wants a folder that nobody else can look into, as the front
// does of the one that the operator's socket is in.
func checkPrivateFolder(key, dir string) error {
	if err := checkFolder(key, dir); err != nil {
		return err
	}
	fi, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	if fi.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s: its folder %s is open to others: run chmod 700 %s", key, dir, dir)
	}
	return nil
}

// checkProfiles holds the profiles against the CA's rules, and has one
// certificate of each drafted and linted.
func (a *app) checkProfiles(ctx context.Context) error {
	if err := a.newAuthority(); err != nil {
		return err
	}
	return a.rehearse(ctx)
}

// source says where a secret comes from.
func source(s config.Secret) string {
	switch {
	case s.Env != "":
		return "environment variable " + string(s.Env)
	case s.Credential != "":
		return "systemd credential " + string(s.Credential)
	}
	return string(s.File)
}

func profileNames(cfg *config.Config) []string {
	var names []string
	for _, p := range cfg.Profiles {
		names = append(names, string(p.Name))
	}
	return names
}

// underProfiles puts the key of the configuration before each of the errors that
// err joins, so that every line names it; the order is always the same.
func underProfiles(err error) error {
	var errs []error
	for _, one := range joined(err) {
		errs = append(errs, fmt.Errorf("profiles: %w", one))
	}
	slices.SortStableFunc(errs, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// joined takes apart what errors.Join joined, and nothing that says more.
func joined(err error) []error {
	if err == nil {
		return nil
	}
	j, ok := err.(interface{ Unwrap() []error })
	if !ok || errors.Join(j.Unwrap()...).Error() != err.Error() {
		return []error{err}
	}
	var all []error
	for _, one := range j.Unwrap() {
		all = append(all, joined(one)...)
	}
	return all
}

// moment is a time as people are told it.
func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }
