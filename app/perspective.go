package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/secsy-pki/secsy-pki/acme/challenge"
	"github.com/secsy-pki/secsy-pki/acme/challenge/perspective"
	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/front"
	"github.com/secsy-pki/secsy-pki/gate"
)

// PerspectiveOptions say what remote perspective to run.
type PerspectiveOptions struct {
	Config     *config.PerspectiveServer
	ConfigPath string // read again on Reload; "" means that there is nothing to read
	Version    string
	Stderr     io.Writer       // the log
	Reload     <-chan struct{} // file and certificate are to be read again
	Ready      func(questions, operator net.Addr)
}

// A remotePerspective is a small program of its own, without keys of a CA and
// without a database.
type remotePerspective struct {
	opts     PerspectiveOptions
	cfg      *config.PerspectiveServer
	level    *slog.LevelVar
	log      *slog.Logger
	registry *prometheus.Registry
	cert     *front.FileCertificate
	gate     *gate.Gate
	front    *front.Front
}

// RunPerspective serves a remote perspective until ctx ends, lets what is under
// way finish, and returns nil.
func RunPerspective(ctx context.Context, o PerspectiveOptions) error {
	p := newPerspective(o)
	if err := p.build(); err != nil {
		return err
	}
	if err := p.front.Listen(ctx); err != nil {
		return errors.Join(err, p.front.Close())
	}
	return p.run(ctx)
}

// CheckPerspective opens what a configuration names, and says on out what it found.
func CheckPerspective(cfg *config.PerspectiveServer, out io.Writer) error {
	p := newPerspective(PerspectiveOptions{Config: cfg, Stderr: io.Discard})
	if err := p.build(); err != nil {
		return err
	}
	c, err := p.cert.ClientCertificate()
	if err != nil {
		return err
	}
	if time.Now().After(c.Leaf.NotAfter) {
		return fmt.Errorf("listen.certificate: %s has expired at %s", cfg.Listen.Certificate, moment(c.Leaf.NotAfter))
	}
	_, err = fmt.Fprintf(out, "  ok  certificate %s, until %s\n  ok  clients of %s\n  ok  a resolver is known\n",
		cfg.Listen.Certificate, moment(c.Leaf.NotAfter), cfg.Clients.CABundle)
	return err
}

func newPerspective(o PerspectiveOptions) *remotePerspective {
	level := new(slog.LevelVar)
	_ = level.UnmarshalText([]byte(o.Config.Log.Level)) // one of four words by now
	opts := &slog.HandlerOptions{Level: level}
	var h slog.Handler = slog.NewTextHandler(o.Stderr, opts)
	if o.Config.Log.Format == config.LogJSON {
		h = slog.NewJSONHandler(o.Stderr, opts)
	}
	p := &remotePerspective{opts: o, cfg: o.Config, level: level, log: slog.New(h), registry: prometheus.NewRegistry()}
	info := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "secsy_build_info", Help: "1; the version is the label.", ConstLabels: prometheus.Labels{"version": o.Version},
	}, func() float64 { return 1 })
	p.registry.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), &perspectiveMetrics{p})
	return p
}

func (p *remotePerspective) build() error {
	c := p.cfg
	looker, err := p.validator()
	if err != nil {
		return err
	}
	// There is one class of work here, so no seat is kept for another.
	p.gate, err = gate.New(gate.Config{
		Seats: c.Limits.Looks, MaxQueue: c.Limits.Queue, MaxWait: c.Limits.QueueTimeout.Std(), Reserve: &[gate.Classes]int{},
	})
	if err != nil {
		return fmt.Errorf("limits: %w", err)
	}
	server, err := perspective.NewServer(perspective.ServerConfig{
		Name: string(c.Name), Region: perspective.Region(c.Region), Validator: looker, CAA: looker,
		Timeout: c.Limits.QueueTimeout.Std() + c.Validation.Timeout.Std(), Gate: p.gate,
		Logger: p.log.With("room", "perspective"), Registerer: p.registry,
	})
	if err != nil {
		return err
	}
	p.cert, err = front.NewFileCertificate(front.FileCertificateConfig{
		CertFile: string(c.Listen.Certificate), KeyFile: string(c.Listen.Key), Log: p.log.With("room", "front"), Registerer: p.registry,
	})
	if err != nil {
		return fmt.Errorf("listen.certificate: %w", err)
	}
	return p.buildFront(server)
}

func (p *remotePerspective) validator() (*challenge.Validator, error) {
	c := p.cfg.Validation
	cfg := challenge.Config{
		Resolver: string(c.Resolver), HTTPPort: c.HTTP01Port, HTTPSPort: c.HTTPSPort, TLSPort: c.TLSALPN01Port,
		RequireDNSSEC: c.DNSSEC == config.DNSSECAD, CAAIdentities: domains(p.cfg.CAAIdentities),
		AllowPrivate: c.AllowPrivateAddresses, Allow: prefixes(c.Allow), Timeout: c.Timeout.Std(),
		Logger: p.log.With("room", "challenge"), Registerer: p.registry,
	}
	v, err := challenge.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("validation: %w; set validation.resolver to host and port of one", err)
	}
	return v, nil
}

// Listeners by their names in logs and metrics.
const listenPerspective = "perspective"

func (p *remotePerspective) buildFront(server *perspective.Server) error {
	c := p.cfg
	roots, err := readRoots(string(c.Clients.CABundle))
	if err != nil {
		return fmt.Errorf("clients.ca_bundle: %w", err)
	}
	who := &front.Clients{Roots: roots}
	for _, n := range c.Clients.Names {
		who.Names = append(who.Names, string(n))
	}
	ready, err := front.NewReadiness(front.ReadinessConfig{Checks: []front.Check{{Name: "certificate", Run: p.certificateReady}}, Log: p.log.With("room", "front")})
	if err != nil {
		return fmt.Errorf("building readiness: %w", err)
	}
	answer := c.Limits.QueueTimeout.Std() + c.Validation.Timeout.Std() + 10*time.Second
	limits := front.Limits{
		// All connections may be of one client: there are few of those.
		Connections: c.Limits.MaxConnections, ConnectionsPerClient: c.Limits.MaxConnections,
		Streams: 1000, Write: answer, Idle: 5 * time.Minute,
	}
	listeners := []front.Listener{{
		Name: listenPerspective, Address: string(c.Listen.Address), Certificate: p.cert.GetCertificate, Clients: who, Limits: limits,
		Routes: []front.Route{{Prefix: "/v1", Class: "perspective", Handler: server}},
	}}
	if c.Listen.Operator != "" {
		listeners = append(listeners, front.Listener{
			Name: listenOperator, Address: string(c.Listen.Operator), Operator: true,
			Routes: front.OperatorRoutes(ready, p.registry, p.log.With("room", "front")),
		})
	}
	p.front, err = front.New(front.Config{
		Listeners: listeners, Readiness: ready, DrainTimeout: c.Limits.DrainTimeout.Std(),
		Log: p.log.With("room", "front"), Registerer: p.registry,
	})
	if err != nil {
		return fmt.Errorf("building listeners: %w", err)
	}
	return nil
}

// certificateReady fails once the listener's certificate is of no use.
func (p *remotePerspective) certificateReady(context.Context) error {
	c, err := p.cert.ClientCertificate()
	if err == nil && time.Now().After(c.Leaf.NotAfter) {
		err = fmt.Errorf("it has expired at %s", moment(c.Leaf.NotAfter))
	}
	return err
}

func (p *remotePerspective) run(ctx context.Context) error {
	side, stop := context.WithCancel(ctx)
	watching := make(chan struct{})
	go func() { defer close(watching); p.cert.Run(side) }()
	reloading := make(chan struct{})
	go func() { defer close(reloading); p.reload(side) }()
	defer func() { stop(); <-watching; <-reloading }()
	at := p.front.Addresses()
	p.log.InfoContext(ctx, "serving", "version", p.opts.Version, "perspective", string(p.cfg.Name), "region", p.cfg.Region,
		"questions", text(at[listenPerspective]), "operator", text(at[listenOperator]))
	if p.opts.Ready != nil {
		p.opts.Ready(at[listenPerspective], at[listenOperator])
	}
	return p.front.Serve(ctx)
}

// reload reads file and certificate again. What needs a restart is told, which
// takes no longer than the looks under way.
func (p *remotePerspective) reload(ctx context.Context) {
	inForce := p.cfg
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.opts.Reload:
			if err := p.cert.Reload(); err != nil {
				p.log.ErrorContext(ctx, "reloading: the certificate stays as it was", "error", err)
			}
			next, err := p.reloadFile(ctx, inForce)
			if err != nil {
				p.log.ErrorContext(ctx, "reloading: everything stays as it was", "error", err)
				continue
			}
			inForce = next
		}
	}
}

// reloadFile returns what is in force then.
func (p *remotePerspective) reloadFile(ctx context.Context, before *config.PerspectiveServer) (*config.PerspectiveServer, error) {
	if p.opts.ConfigPath == "" {
		return before, nil
	}
	next, err := config.LoadPerspectiveServer(p.opts.ConfigPath)
	if err != nil {
		return nil, err
	}
	live, restart := config.DiffPerspectiveServer(before, next)
	_ = p.level.UnmarshalText([]byte(next.Log.Level)) // one of four words by now
	for _, c := range live {
		p.log.InfoContext(ctx, "reloaded", "key", c.Key, "from", c.Old, "to", c.New)
	}
	for _, c := range restart {
		p.log.WarnContext(ctx, "changed in the file, but needs a restart", "key", c.Key, "from", c.Old, "to", c.New)
	}
	merged := *before // what needs a restart is told again next time
	merged.Log.Level = next.Log.Level
	return &merged, nil
}

// perspectiveMetrics reads the counters of the gate when it is asked.
type perspectiveMetrics struct{ p *remotePerspective }

// Describe implements prometheus.Collector.
func (m *perspectiveMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descGateSeats, descGateInFlight, descGateQueue, descGateAdmitted, descGateRejected, descGateWait} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *perspectiveMetrics) Collect(ch chan<- prometheus.Metric) {
	if m.p.gate != nil {
		out{ch}.gate("perspective", m.p.gate.Stat())
	}
}
