// Package app is the one room where all rooms meet: it builds them in order,
// runs them, and stops them in reverse.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/store"
)

// A KeyStore finds keys and makes the missing ones.
type KeyStore interface {
	keys.Store
	keys.Generator
}

// Options say what to run.
type Options struct {
	Config     *config.Config
	ConfigPath string // read again on Reload; "" means that there is nothing to read
	Version    string
	Stdout     io.Writer // for what Ready's caller prints; the program itself logs
	Stderr     io.Writer // the log
	Reload     <-chan struct{}
	Adjust     func(*config.Config) error // applied to what Reload reads, as it was to Config; may be nil
	Ready      func(Addresses)            // called once requests are answered; may be nil
	Prompt     Prompt                     // for PINs; nil: nobody can be asked
	Wrap       Wrap
}

// A Wrap puts something in front of the keys or the database, as a guard or a
// test of crashes does. Nil fields put nothing there.
type Wrap struct {
	Keys   func(KeyStore) KeyStore
	Engine func(store.Engine) store.Engine
}

// Addresses are where a running program listens; nil for a listener that is off.
type Addresses struct{ HTTP, HTTPS, Operator net.Addr }

// Run serves until ctx ends, lets what is under way finish, and returns nil.
func Run(ctx context.Context, o Options) error {
	if err := o.Config.ValidateServe(); err != nil {
		return err
	}
	a := newApp(o)
	err := a.build(ctx)
	if err == nil {
		err = a.run(ctx)
	}
	return errors.Join(err, a.close())
}

// An app is the program being built, and then running.
type app struct {
	opts     Options
	cfg      *config.Config // of the start
	inForce  *config.Config // with what was reloaded since; watchReload's alone
	level    *slog.LevelVar
	log      *slog.Logger
	held     *held // what log keeps back until all is open
	strict   bool  // tokens that can't be reached are an error
	registry *prometheus.Registry

	rooms
	services []service      // in the order of their start
	closers  []func() error // in the order of opening
	reloads  []func(*config.Config) error
}

func newApp(o Options) *app {
	a := &app{opts: o, cfg: o.Config, inForce: o.Config, level: new(slog.LevelVar), held: new(held), registry: prometheus.NewRegistry()}
	_ = a.level.UnmarshalText([]byte(o.Config.Log.Level)) // one of four words by now
	opts := &slog.HandlerOptions{Level: a.level}
	var h slog.Handler = slog.NewTextHandler(o.Stderr, opts)
	if o.Config.Log.Format == config.LogJSON {
		h = slog.NewJSONHandler(o.Stderr, opts)
	}
	a.log = slog.New(heldHandler{h, a.held})
	info := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "secsy_build_info", Help: "1; the version is the label.", ConstLabels: prometheus.Labels{"version": o.Version},
	}, func() float64 { return 1 })
	a.registry.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return a
}

// build opens and wires everything, bottom up. It leaves nothing running; what
// it opened is closed by close, however far it came.
func (a *app) build(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		a.buildAdmission, a.openKeys, a.fitGate, a.openIssuers, a.openStore, a.openShards, a.buildAuthority, a.buildBudget,
		a.buildStatus, a.buildACME, a.buildEnrolment, a.buildAdmin, a.buildCertificate, a.buildFront,
		a.prepare, a.takeNonces,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// prepare makes what must be there before the first answer: certificates of
// responders and of the https listener, and a CRL for each issuer.
func (a *app) prepare(ctx context.Context) error {
	if err := a.recover(ctx); err != nil {
		return err
	}
	a.adopt(ctx)
	// Without the device there must be something to serve, which is the CRLs of
	// before; everything else is made when it is back.
	if err := a.crl.Prepare(ctx); err != nil {
		return fmt.Errorf("preparing CRLs: %w", err)
	}
	if a.ocsp != nil {
		if err := a.ocsp.Prepare(ctx); err != nil && !deviceAway(err) {
			return fmt.Errorf("preparing OCSP: %w", err)
		}
	}
	if a.scep != nil {
		if err := a.scep.Prepare(ctx); err != nil && !deviceAway(err) {
			return fmt.Errorf("preparing SCEP: %w", err)
		}
	}
	if a.selfCert != nil {
		if err := a.selfCert.prepare(ctx); err != nil {
			return fmt.Errorf("preparing the https certificate: %w", err)
		}
	}
	return nil
}

// run serves until ctx ends or something breaks.
func (a *app) run(ctx context.Context) error {
	a.held.release()
	stop := a.startServices()
	defer stop()
	serving, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go a.watchServices(serving, cancel)
	go a.watchReload(serving)
	a.announce()
	err := a.front.Serve(serving)
	if err == nil && ctx.Err() == nil {
		err = context.Cause(serving)
	}
	return err
}

func (a *app) announce() {
	addrs := a.front.Addresses()
	at := Addresses{HTTP: addrs[listenHTTP], HTTPS: addrs[listenHTTPS], Operator: addrs[listenOperator]}
	a.log.Info("limits", "in_force", admissionSummary(a.inForce.RateLimit, a.gate.Stat().Seats))
	a.log.Info("serving", "version", a.opts.Version, "http", text(at.HTTP), "https", text(at.HTTPS), "operator", text(at.Operator))
	if a.opts.Ready != nil {
		a.opts.Ready(at)
	}
}

func text(a net.Addr) string {
	if a == nil {
		return "off"
	}
	return a.String()
}

func (a *app) onClose(fn func() error) { a.closers = append(a.closers, fn) }

// close closes what was opened, last first.
func (a *app) close() error {
	var errs []error
	for i := len(a.closers) - 1; i >= 0; i-- {
		errs = append(errs, a.closers[i]())
	}
	return errors.Join(errs...)
}

// Listeners by their names in logs and metrics.
const (
	listenHTTP     = "http"
	listenHTTPS    = "https"
	listenOperator = "operator"
	listenSocket   = "operator-socket"
)
