// Package lint has zlint look at certificates before they are signed.
package lint

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"

	zx509 "github.com/zmap/zcrypto/x509"
	_ "github.com/zmap/zlint/v3" // registers the lints
	zl "github.com/zmap/zlint/v3/lint"

	"github.com/secsy-pki/secsy-pki/ca"
)

// Config is what a Linter is made of.
type Config struct {
	Policy  ca.Policy     // "" means ca.Internal
	Ignore  []string      // names of lints that do not block, beside those of the preset
	Timeout time.Duration // for one certificate; 0 means 5s
	Running int           // lints at the same time; 0 means four for each CPU
}

const defaultTimeout = 5 * time.Second

// A Linter is a ca.Linter. It is safe for concurrent use.
type Linter struct {
	lints    map[ca.LintKind][]*zl.CertificateLint
	blocking zl.LintStatus
	timeout  time.Duration
	slots    chan struct{}
}

var _ ca.Linter = (*Linter)(nil)

// errPanic says that a lint could not take what it was shown.
var errPanic = errors.New("a lint panicked")

// New filters the lints once for each kind of certificate.
func New(cfg Config) (*Linter, error) {
	if cfg.Policy == "" {
		cfg.Policy = ca.Internal
	}
	p, ok := presets[cfg.Policy]
	if !ok {
		return nil, fmt.Errorf("no lints for policy %q", cfg.Policy)
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Running <= 0 {
		cfg.Running = 4 * runtime.GOMAXPROCS(0)
	}
	l := &Linter{
		lints: map[ca.LintKind][]*zl.CertificateLint{}, blocking: p.blocking, timeout: cfg.Timeout,
		slots: make(chan struct{}, cfg.Running),
	}
	for _, kind := range []ca.LintKind{ca.LintServer, ca.LintResponder, ca.LintRoot, ca.LintIssuing} {
		opts := zl.FilterOptions{IncludeSources: p.sources, ExcludeNames: cfg.Ignore}
		for _, i := range p.ignore {
			if i.kind == "" || i.kind == kind {
				opts.ExcludeNames = append(slices.Clone(opts.ExcludeNames), i.name)
			}
		}
		reg, err := zl.GlobalRegistry().Filter(opts)
		if err != nil {
			return nil, fmt.Errorf("choosing lints: %w", err)
		}
		for _, one := range reg.CertificateLints().Lints() {
			l.lints[kind] = append(l.lints[kind], configured(one))
		}
	}
	return l, nil
}

// unconfigured is what every lint gets: we have no file for them.
var unconfigured = zl.NewEmptyConfig()

// configured spares a lint being configured for each certificate, which takes
// reflection, if that changes nothing.
func configured(l *zl.CertificateLint) *zl.CertificateLint {
	before, after := l.Lint(), l.Lint()
	if _, ok := after.(zl.Configurable); !ok || unconfigured.MaybeConfigure(after, l.Name) != nil || !reflect.DeepEqual(before, after) {
		return l
	}
	quick, construct := *l, l.Lint
	quick.Lint = func() zl.CertificateLintInterface { return settled{construct()} }
	return &quick
}

// settled hides that a lint can be configured.
type settled struct{ zl.CertificateLintInterface }

// Lint returns the faults of d that forbid signing it.
//
// A lint can't be interrupted: one that overruns its time keeps its slot until
// it returns, so that runaways are bounded and end in refusals.
func (l *Linter) Lint(ctx context.Context, d ca.Draft) ([]ca.Finding, error) {
	lints := l.lints[d.Kind]
	if lints == nil {
		return nil, fmt.Errorf("no lints for certificates of kind %q", d.Kind)
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting to lint: %w", ctx.Err())
	}
	type result struct {
		found []ca.Finding
		err   error
	}
	done := make(chan result, 1)
	go func() {
		defer func() { <-l.slots }()
		found, err := look(lints, l.blocking, d)
		done <- result{found, err}
	}()
	select {
	case r := <-done:
		return r.found, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("linting: %w", ctx.Err())
	}
}

func look(lints []*zl.CertificateLint, blocking zl.LintStatus, d ca.Draft) (found []ca.Finding, err error) {
	defer func() {
		if r := recover(); r != nil {
			found, err = nil, fmt.Errorf("%w: %v", errPanic, r)
		}
	}()
	found, err = lookOurselves(d)
	if err != nil {
		return nil, err
	}
	cert, err := zx509.ParseCertificate(d.DER)
	if err != nil {
		return nil, fmt.Errorf("reading draft: %w", err)
	}
	for _, l := range lints {
		if r := l.Execute(cert, unconfigured); r.Status >= blocking {
			found = append(found, ca.Finding{Lint: l.Name, Status: r.Status.String(), Detail: r.Details})
		}
	}
	slices.SortFunc(found, func(a, b ca.Finding) int { return strings.Compare(a.Lint, b.Lint) })
	return found, nil
}
