package perspective

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/front"
	"github.com/secsy-pki/secsy-pki/gate"
)

// A pki is one CA for the connections between server and perspectives.
type pki struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newPKI(t *testing.T) *pki {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "perspectives"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &pki{cert, key}
}

func (p *pki) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(p.cert)
	return pool
}

// issue makes a certificate for one use and one name, which may be an address.
func (p *pki) issue(t *testing.T, name string, use x509.ExtKeyUsage, change ...func(*x509.Certificate)) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{use},
	}
	if ip := net.ParseIP(name); ip != nil {
		tmpl.IPAddresses = []net.IP{ip}
	} else {
		tmpl.DNSNames = []string{name}
	}
	for _, fn := range change {
		fn(tmpl)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, p.cert, key.Public(), p.key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func (p *pki) client(t *testing.T) *tls.Certificate {
	return p.issue(t, "primary.example", x509.ExtKeyUsageClientAuth)
}

func (p *pki) server(t *testing.T) *tls.Certificate {
	return p.issue(t, "127.0.0.1", x509.ExtKeyUsageServerAuth)
}

// A look is a validator and a CAA checker that a test says what to see.
type look struct {
	mu      sync.Mutex
	problem *acme.Problem
	hold    chan struct{} // waited for, or for the context
	began   chan struct{} // gets one for each look; nil: nobody waits for it
	panics  bool
	asked   []acme.Validation
	caa     []acme.CAAQuery
}

func (l *look) set(p *acme.Problem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.problem = p
}

func (l *look) see(ctx context.Context) *acme.Problem {
	l.mu.Lock()
	p, hold, panics := l.problem, l.hold, l.panics
	l.mu.Unlock()
	if panics {
		panic("inside")
	}
	if l.began != nil {
		l.began <- struct{}{}
	}
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return &acme.Problem{Type: acme.Connection, Detail: "timeout"}
		}
	}
	return p
}

func (l *look) Validate(ctx context.Context, v acme.Validation) (acme.ValidationRecord, *acme.Problem) {
	l.mu.Lock()
	l.asked = append(l.asked, v)
	l.mu.Unlock()
	return acme.ValidationRecord{Type: v.Type, Name: v.Identifier.Value, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.7")}}, l.see(ctx)
}

func (l *look) CheckCAA(ctx context.Context, q acme.CAAQuery) (acme.CAARecord, *acme.Problem) {
	l.mu.Lock()
	l.caa = append(l.caa, q)
	l.mu.Unlock()
	return acme.CAARecord{Name: q.Name}, l.see(ctx)
}

func (l *look) times() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.asked) + len(l.caa)
}

// A world is one CA, what its server sees, and perspectives.
type world struct {
	t       *testing.T
	pki     *pki
	local   *look
	remotes []*Remote
	log     *syncBuffer
	logger  *slog.Logger
	reg     *prometheus.Registry
	now     atomic.Pointer[time.Time]
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, pki: newPKI(t), local: &look{}, log: &syncBuffer{}, reg: prometheus.NewRegistry()}
	w.logger = slog.New(slog.NewTextHandler(w.log, nil))
	w.at(day(2026, time.November, 30))
	return w
}

func (w *world) at(now time.Time) { w.now.Store(&now) }

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// honest starts a perspective as it is served, and adds it to the world.
func (w *world) honest(name string, region Region, change ...func(*ServerConfig, *front.Listener)) *look {
	w.t.Helper()
	l := &look{}
	addr := w.serve(name, region, l, change...)
	w.add(name, region, addr)
	return l
}

func (w *world) serve(name string, region Region, l *look, change ...func(*ServerConfig, *front.Listener)) string {
	w.t.Helper()
	g, err := gate.New(gate.Config{Seats: 8, MaxQueue: 8, MaxWait: time.Second, Reserve: &[gate.Classes]int{}})
	if err != nil {
		w.t.Fatal(err)
	}
	cfg := ServerConfig{Name: name, Region: region, Validator: l, CAA: l, Gate: g, Logger: w.logger}
	cert := w.pki.server(w.t)
	lis := front.Listener{
		Name: "perspective", Address: "127.0.0.1:0",
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil },
		Clients:     &front.Clients{Roots: w.pki.pool(), Names: []string{"primary.example"}},
	}
	for _, fn := range change {
		fn(&cfg, &lis)
	}
	s, err := NewServer(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	lis.Routes = []front.Route{{Prefix: "/", Class: "perspective", Handler: s}}
	f, err := front.New(front.Config{Listeners: []front.Listener{lis}, DrainTimeout: time.Second})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := f.Listen(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f.Serve(ctx); err != nil {
			w.t.Error(err)
		}
	}()
	w.t.Cleanup(func() {
		for _, r := range w.remotes {
			r.Close()
		}
		cancel()
		<-done
	})
	return f.Addresses()["perspective"].String()
}

// rogue starts a server that answers as the test says.
func (w *world) rogue(name string, region Region, h http.HandlerFunc) {
	w.t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{*w.pki.server(w.t)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: w.pki.pool()}
	srv.EnableHTTP2 = true
	srv.StartTLS()
	w.t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	w.add(name, region, srv.Listener.Addr().String())
}

func (w *world) add(name string, region Region, addr string, change ...func(*RemoteConfig)) *Remote {
	w.t.Helper()
	cert := w.pki.client(w.t)
	cfg := RemoteConfig{
		Name: name, Region: region, URL: &url.URL{Scheme: "https", Host: addr}, Roots: w.pki.pool(),
		Certificate: func() (*tls.Certificate, error) { return cert, nil },
	}
	for _, fn := range change {
		fn(&cfg)
	}
	r, err := NewRemote(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(r.Close)
	w.remotes = append(w.remotes, r)
	return r
}

func (w *world) corroborator(change ...func(*Config)) *Corroborator {
	w.t.Helper()
	cfg := Config{
		Remotes: w.remotes, Validator: w.local, CAA: w.local, Timeout: 10 * time.Second, Grace: 5 * time.Second,
		Logger: w.logger, Registerer: w.reg, Clock: func() time.Time { return *w.now.Load() },
	}
	for _, fn := range change {
		fn(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// metric is the value of one sample, 0 if there is none.
func (w *world) metric(name string, labels map[string]string) float64 {
	w.t.Helper()
	all, err := w.reg.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() != name {
			continue
		}
	next:
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if want, ok := labels[l.GetName()]; ok && want != l.GetValue() {
					continue next
				}
			}
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return 0
}

func (w *world) outcome(remote, outcome string) float64 {
	return w.metric("secsy_perspective_results_total", map[string]string{"perspective": remote, "outcome": outcome})
}

var (
	someValidation = acme.Validation{
		Type: acme.HTTP01, Identifier: ca.Identifier{Type: ca.DNS, Value: "www.example.org"}, Wildcard: true,
		Token: "tok", KeyAuthorization: "tok.thumb", AccountID: "1", AccountURL: "https://ca.example/acme/account/1",
	}
	someQuery = acme.CAAQuery{Name: "example.org", Wildcard: true, Method: acme.DNS01, AccountURL: "https://ca.example/acme/account/1"}
	wrong     = &acme.Problem{Type: acme.Unauthorized, Detail: `the server answered "hijacked"`, Err: errors.New("internal")}
)
