package front

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/secsy-pki/secsy-pki/peer"
)

// server is one listener with what serves it.
type server struct {
	cfg     Listener
	log     *slog.Logger
	access  *slog.Logger
	metrics *listenerMetrics
	routes  table
	http    *http.Server
	ln      net.Listener // nil before listen

	inFlight atomic.Int64
}

func newServer(l Listener, cfg Config, m *metrics) (*server, error) {
	if err := l.validate(); err != nil {
		return nil, err
	}
	var err error
	if l.Limits, err = l.Limits.withDefaults(); err != nil {
		return nil, err
	}
	s := &server{
		cfg:    l,
		log:    cfg.Log.With("listener", l.Name),
		access: cfg.AccessLog,
	}
	if s.metrics, err = m.listener(l.Name, func() float64 { return float64(s.inFlight.Load()) }); err != nil {
		return nil, err
	}
	if s.routes, err = newTable(l, s.metrics); err != nil {
		return nil, err
	}
	s.http = &http.Server{
		Handler:                      s,
		DisableGeneralOptionsHandler: true, // or "OPTIONS *" would go past the log
		ReadHeaderTimeout:            l.Limits.ReadHeader,
		ReadTimeout:                  l.Limits.Read,
		WriteTimeout:                 l.Limits.Write,
		IdleTimeout:                  l.Limits.Idle,
		MaxHeaderBytes:               l.Limits.HeaderBytes,
		ErrorLog:                     slog.NewLogLogger(quietHandler{s.log.Handler()}, slog.LevelDebug),
		ConnContext:                  connContext,
		ConnState:                    watch,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: l.Limits.Streams,
			SendPingTimeout:      30 * time.Second,
			PingTimeout:          15 * time.Second,
			WriteByteTimeout:     30 * time.Second,
		},
	}
	if l.Certificate != nil {
		s.http.TLSConfig = tlsConfig(l.Certificate)
		l.Clients.require(s.http.TLSConfig)
	}
	return s, nil
}

// tlsConfig leaves to crypto/tls what it knows best (groups, TLS 1.3 suites) and
// keeps of TLS 1.2 what has forward secrecy and AEAD.
func tlsConfig(certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: certificate,
		NextProtos:     []string{"h2", "http/1.1"},
		CipherSuites: []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
			tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		},
	}
}

// connContext runs in the accept loop. It asks the kernel, never the client.
func connContext(ctx context.Context, c net.Conn) context.Context {
	ours := counted(c)
	if ours == nil {
		return ctx
	}
	ctx = context.WithValue(ctx, connKey{}, ours)
	local, ok := ours.raw.(*net.UnixConn)
	if !ok {
		return ctx
	}
	if cred, ok := credentials(local); ok {
		return peer.WithCred(ctx, cred)
	}
	return ctx
}

func (s *server) listen(ctx context.Context) error {
	if s.ln != nil {
		return errors.New("it listens already")
	}
	ln, err := bind(ctx, s.cfg)
	if err != nil {
		return err
	}
	s.ln = s.bound(ln)
	return nil
}

// bound keeps what ln accepts within the limits.
func (s *server) bound(ln net.Listener) *boundListener {
	return &boundListener{
		Listener:  ln,
		plain:     s.cfg.Certificate == nil,
		max:       s.cfg.Limits.Connections,
		perClient: s.cfg.Limits.ConnectionsPerClient,
		proxyFrom: s.cfg.ProxyFrom,
		hops:      s.cfg.Hops,
		proxyWait: s.cfg.Limits.Proxy,
		metrics:   s.metrics,
		silent:    newSilent(laneAll),
		clients:   map[netip.Addr]*client{},
	}
}

// serve returns nil once the server was shut down or closed.
func (s *server) serve(requests context.Context) error {
	s.http.BaseContext = func(net.Listener) context.Context { return requests }
	var err error
	if s.cfg.Certificate != nil {
		err = s.http.ServeTLS(s.ln, "", "")
	} else {
		err = s.http.Serve(s.ln)
	}
	if isClosed(err) {
		return nil
	}
	return err
}

func (s *server) close() error {
	err := s.http.Close()
	if s.ln != nil {
		if e := s.ln.Close(); !isClosed(e) { // Serve may never have had it
			err = errors.Join(err, e)
		}
	}
	return err
}
