// Package front is where requests come in: it owns the listeners, says who is
// calling, bounds what they may send, logs and counts what was answered, and
// lets requests finish before the program ends.
package front

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// Limits bound what one listener takes. A zero means the default.
type Limits struct {
	Connections          int           // open at once; 4096
	ConnectionsPerClient int           // of one IPv4 address or IPv6 /64, proxies excepted; a quarter of Connections
	Streams              int           // HTTP/2 requests at once on one connection; 100
	HeaderBytes          int           // request line and header; 16 KiB (net/http allows 4 KiB more)
	Body                 int64         // of a request, where the route has no bound of its own; 64 KiB
	ReadHeader           time.Duration // from the first byte to the end of the header, and the TLS handshake; 10 s
	Read                 time.Duration // to the end of the body; 30 s
	Write                time.Duration // from the end of the header to the end of the answer; 60 s
	Idle                 time.Duration // between requests; 90 s
	Proxy                time.Duration // for the PROXY header, at most 5 s; 3 s
}

// A Listener is one place where requests come in. Exactly one of Address and
// Socket is set.
type Listener struct {
	Name    string // "public-https"; a label in metrics and logs
	Address string // host:port; port 0 takes a free one
	Socket  string // path of a local socket, reachable by our own user only

	// Certificate makes it a TLS listener (1.2 and up, HTTP/2 offered). Nil
	// means plain HTTP.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Clients are those who may connect to a TLS listener, which is for programs
	// of ours then. Nil means everybody.
	Clients *Clients

	Routes []Route
	// Unrouted is asked about requests that no route wants, as Route.Limit is
	// about others: each leaves a line, and a stranger can make up any path.
	Unrouted *ratelimit.Endpoint
	Hops     *Hops // who may say whom a request is from; nil: nobody

	// ProxyFrom turns the PROXY protocol (v1 and v2) on: these sources must
	// begin with its header, all others must not. Nil means that nobody does.
	ProxyFrom *Prefixes

	// Operator listeners close last, so that probes can see us drain.
	Operator bool

	Limits Limits
}

// Config is what a Front is made of.
type Config struct {
	Listeners []Listener
	Readiness *Readiness // told when we serve and when we drain; may be nil

	DrainDelay   time.Duration // between "not ready" and the end of accepting, for load balancers to notice; 0
	DrainTimeout time.Duration // for requests in flight; 0 cuts them off

	Log        *slog.Logger          // nil: none
	AccessLog  *slog.Logger          // one line for each request; nil: Log
	Registerer prometheus.Registerer // nil: metrics are kept and not shown
}

// A Front serves its listeners. Call Listen, then Serve; or Close.
type Front struct {
	cfg     Config
	servers []*server
}

const maxProxyWait = 5 * time.Second

var listenerName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)

// New checks the configuration. It opens nothing.
func New(cfg Config) (*Front, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.AccessLog == nil {
		cfg.AccessLog = cfg.Log
	}
	if cfg.Registerer == nil {
		cfg.Registerer = prometheus.NewRegistry()
	}
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	f := &Front{cfg: cfg}
	names := map[string]bool{}
	for _, l := range cfg.Listeners {
		if names[l.Name] {
			return nil, fmt.Errorf("listener %q is given twice", l.Name)
		}
		names[l.Name] = true
		s, err := newServer(l, cfg, m)
		if err != nil {
			return nil, fmt.Errorf("listener %q: %w", l.Name, err)
		}
		f.servers = append(f.servers, s)
	}
	return f, nil
}

func (l Listener) validate() error {
	switch {
	case !listenerName.MatchString(l.Name):
		return errors.New("its name must be lower-case letters, digits, - and _")
	case (l.Address == "") == (l.Socket == ""):
		return errors.New("it needs an address or a socket, and not both")
	case l.Clients != nil && (l.Certificate == nil || l.Clients.Roots == nil):
		return errors.New("it wants clients' certificates and has none of its own, or no roots for theirs")
	case l.Socket != "" && (l.ProxyFrom != nil || l.Hops != nil):
		return errors.New("a local socket has no proxies before it")
	case l.Limits.Proxy > maxProxyWait:
		return fmt.Errorf("waiting %s for a PROXY header is too long: %s at most", l.Limits.Proxy, maxProxyWait)
	}
	return nil
}

func (l Limits) withDefaults() (Limits, error) {
	d := Limits{
		Connections: 4096, Streams: 100, HeaderBytes: 16 << 10, Body: 64 << 10,
		ReadHeader: 10 * time.Second, Read: 30 * time.Second, Write: time.Minute,
		Idle: 90 * time.Second, Proxy: 3 * time.Second,
	}
	ok := setDefault(&l.Connections, d.Connections)
	ok = setDefault(&l.ConnectionsPerClient, max(1, l.Connections/4)) && ok
	ok = setDefault(&l.Streams, d.Streams) && ok
	ok = setDefault(&l.HeaderBytes, d.HeaderBytes) && ok
	ok = setDefault(&l.Body, d.Body) && ok
	ok = setDefault(&l.ReadHeader, d.ReadHeader) && ok
	ok = setDefault(&l.Read, d.Read) && ok
	ok = setDefault(&l.Write, d.Write) && ok
	ok = setDefault(&l.Idle, d.Idle) && ok
	ok = setDefault(&l.Proxy, d.Proxy) && ok
	if !ok {
		return l, errors.New("a limit is negative: 0 means the default, and nothing is unbounded")
	}
	return l, nil
}

// setDefault replaces a zero and reports whether the value is one to have.
func setDefault[T int | int64 | time.Duration](v *T, d T) bool {
	if *v == 0 {
		*v = d
	}
	return *v > 0
}

// Listen opens all listeners, or none and returns an error for the operator.
func (f *Front) Listen(ctx context.Context) error {
	for _, s := range f.servers {
		if err := s.listen(ctx); err != nil {
			_ = f.Close()
			return fmt.Errorf("listener %q: %w", s.cfg.Name, err)
		}
	}
	return nil
}

// Addresses returns where each listener listens, by name. It is for after
// Listen.
func (f *Front) Addresses() map[string]net.Addr {
	all := map[string]net.Addr{}
	for _, s := range f.servers {
		if s.ln != nil {
			all[s.cfg.Name] = s.ln.Addr()
		}
	}
	return all
}

// Handler is what the listener of that name serves, without its sockets: for
// those who measure or try out all that is before a handler. Nil: there is no
// such listener.
func (f *Front) Handler(listener string) http.Handler {
	for _, s := range f.servers {
		if s.cfg.Name == listener {
			return s
		}
	}
	return nil
}

// Close cuts everything off at once. It is for a start that failed after Listen;
// Serve closes what it serves.
func (f *Front) Close() error {
	var errs []error
	for _, s := range f.servers {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}

// Serve answers requests until ctx ends, then drains: it says "not ready", stops
// accepting, lets requests in flight finish for as long as DrainTimeout, and
// cuts off the rest. It returns an error only if a listener broke; all are
// closed then. Requests don't see ctx end: they see their own connection end, or
// the cut.
func (f *Front) Serve(ctx context.Context) error {
	for _, s := range f.servers {
		if s.ln == nil {
			return fmt.Errorf("listener %q: it doesn't listen yet", s.cfg.Name)
		}
	}
	requests, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	broken := make(chan error, len(f.servers))
	var running sync.WaitGroup
	for _, s := range f.servers {
		running.Go(func() {
			if err := s.serve(requests); err != nil {
				broken <- fmt.Errorf("listener %q: %w", s.cfg.Name, err)
			}
		})
		f.cfg.Log.InfoContext(ctx, "listening", "listener", s.cfg.Name, "address", s.ln.Addr().String(), "tls", s.cfg.Certificate != nil)
	}
	f.cfg.Readiness.set(serving)

	var err error
	select {
	case <-ctx.Done():
	case err = <-broken:
	}
	f.drain(context.WithoutCancel(ctx), broken)
	cut()
	_ = f.Close()
	running.Wait()
	return err
}

// drain ends the public listeners and then the operator's.
func (f *Front) drain(ctx context.Context, broken <-chan error) {
	f.cfg.Readiness.set(draining)
	f.cfg.Log.InfoContext(ctx, "draining", "delay", f.cfg.DrainDelay, "timeout", f.cfg.DrainTimeout)
	if f.cfg.DrainDelay > 0 {
		t := time.NewTimer(f.cfg.DrainDelay)
		defer t.Stop()
		select {
		case <-t.C:
		case err := <-broken: // there is less to wait for now
			f.cfg.Log.ErrorContext(ctx, "listener broke while draining", "error", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.DrainTimeout)
	defer cancel()
	f.shutdown(ctx, false)
	f.shutdown(ctx, true)
}

func (f *Front) shutdown(ctx context.Context, operator bool) {
	var wg sync.WaitGroup
	for _, s := range f.servers {
		if s.cfg.Operator != operator {
			continue
		}
		wg.Go(func() {
			if err := s.http.Shutdown(ctx); err != nil {
				f.cfg.Log.WarnContext(ctx, "drain timed out, cutting requests off",
					"listener", s.cfg.Name, "in_flight", s.inFlight.Load(), "error", err)
			}
		})
	}
	wg.Wait()
}

// quietHandler sorts what net/http has to say. Most of it is about strangers who
// break off a handshake, and they must not fill the log.
type quietHandler struct{ slog.Handler }

func (q quietHandler) Enabled(context.Context, slog.Level) bool { return true }

func (q quietHandler) Handle(ctx context.Context, r slog.Record) error {
	level := slog.LevelDebug
	for _, ours := range []string{"http: Accept error", "http: panic", "http: superfluous", "http2: panic"} {
		if strings.HasPrefix(r.Message, ours) {
			level = slog.LevelWarn
		}
	}
	if !q.Handler.Enabled(ctx, level) {
		return nil
	}
	out := slog.NewRecord(r.Time, level, "http server", 0)
	out.AddAttrs(slog.String("text", printable(r.Message, 512)))
	return q.Handler.Handle(ctx, out)
}

func isClosed(err error) bool {
	return err == nil || errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed)
}
