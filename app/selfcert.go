package app

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/front"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/store"
)

const (
	selfKeyLabel = "https"
	selfKeys     = 16 // keys one after another, of which all but the last were compromised
	selfCertFile = "https.pem"
	selfRetry    = time.Minute
	// selfAway is the pause while the device of the CA is away, which costs
	// nothing: it is to be noticed soon that it is back.
	selfAway = 5 * time.Second
	selfLook = time.Hour // a clock that is set, or a machine that slept, is noticed by then
)

// buildCertificate decides where the https listener's certificate comes from:
// files that somebody else renews, or the CA itself.
func (a *app) buildCertificate(context.Context) error {
	l := a.cfg.Listen.HTTPS
	switch {
	case l.Address == "":
		return nil
	case l.Files.CertFile != "":
		f, err := front.NewFileCertificate(front.FileCertificateConfig{
			CertFile: string(l.Files.CertFile), KeyFile: string(l.Files.KeyFile), Log: a.log.With("room", "front"), Registerer: a.registry,
		})
		if err != nil {
			return fmt.Errorf("listen.https.files: %w", err)
		}
		a.https = f
		a.serve("https-certificate", func(ctx context.Context) error { f.Run(ctx); return nil })
		a.reloads = append(a.reloads, func(*config.Config) error { return f.Reload() })
	default:
		a.selfCert = &selfCert{
			ca: a.ca, ledger: store.NewCA(a.db).PlainLedger(), keys: a.listenerKeys, chain: a.chain,
			file: filepath.Join(string(a.cfg.DataDir), selfCertFile), names: selfNames(l), log: a.log.With("room", "https-certificate"),
			lost: make(chan struct{}, 1),
		}
		a.ca.OnRevoke(a.selfCert.onRevoke)
		if err := a.selfCert.register(a.registry); err != nil {
			return fmt.Errorf("registering metrics of the https certificate: %w", err)
		}
		a.serve("https-certificate", a.selfCert.run)
	}
	return nil
}

// certificate is what the https listener shows, nil if there is none.
func (a *app) certificate() func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	switch {
	case a.https != nil:
		return a.https.GetCertificate
	case a.selfCert != nil:
		return a.selfCert.get
	}
	return nil
}

// selfNames are the names of the https certificate: those configured, else the
// host of the external URL.
func selfNames(l config.HTTPS) []ca.Identifier {
	hosts := make([]string, 0, len(l.Certificate.Names)+1)
	for _, h := range l.Certificate.Names {
		hosts = append(hosts, string(h))
	}
	if len(hosts) == 0 {
		hosts = append(hosts, l.ExternalURL.Parsed().Hostname())
	}
	ids := make([]ca.Identifier, 0, len(hosts))
	for _, h := range hosts {
		if addr, err := netip.ParseAddr(h); err == nil {
			ids = append(ids, ca.Identifier{Type: ca.IP, Value: addr.String()})
		} else {
			ids = append(ids, ca.Identifier{Type: ca.DNS, Value: h})
		}
	}
	return ca.NormalizeIdentifiers(ids)
}

// A certifier is what the https certificate asks of the CA.
type certifier interface {
	Issue(ctx context.Context, req ca.Request, led ca.Ledger) (ca.Certificate, error)
	Issuer(id ca.IssuerID) (*ca.Issuer, bool)
	CheckKey(ctx context.Context, pub crypto.PublicKey) error
	Record(ctx context.Context, s ca.Serial) (ca.Record, error)
}

// A selfCert is the https listener's certificate, issued by this very CA and
// renewed when two thirds of its life are over. It is kept in a file, so that a
// restart does not need another one.
type selfCert struct {
	ca     certifier
	ledger ca.Ledger
	keys   KeyStore
	chain  func(ca.IssuerID) ([]*x509.Certificate, error)
	file   string
	names  []ca.Identifier
	log    *slog.Logger

	current  atomic.Pointer[tls.Certificate]
	lost     chan struct{} // told when the current one was revoked
	failures prometheus.Counter
}

// onRevoke has a revoked certificate replaced at once. It never blocks.
func (s *selfCert) onRevoke(r ca.Revoked) {
	c := s.current.Load()
	if c == nil || r.Reason == ca.RemoveFromCRL || ca.SerialOf(c.Leaf.SerialNumber) != r.Serial {
		return
	}
	select {
	case s.lost <- struct{}{}:
	default:
	}
}

// register makes the certificate's end, and what keeps it from being renewed, seen.
func (s *selfCert) register(reg prometheus.Registerer) error {
	s.failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "secsy_http_certificate_renewal_failures_total",
		Help: "Failed attempts to renew the certificate that the HTTPS listener has from the CA itself.",
	})
	end := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "secsy_http_certificate_not_after_seconds",
		Help: "When the certificate of the HTTPS listener ends, in Unix time.",
	}, func() float64 {
		c := s.current.Load()
		if c == nil {
			return 0
		}
		return float64(c.Leaf.NotAfter.Unix())
	})
	return errors.Join(reg.Register(s.failures), reg.Register(end))
}

func (s *selfCert) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := s.current.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("no https certificate yet")
}

// prepare loads the certificate, or has one issued. While the device of the CA
// is away the one on file has to do, however old; run makes up for that.
func (s *selfCert) prepare(ctx context.Context) error {
	key, err := s.key(ctx)
	if err != nil {
		return err
	}
	c, unfit := s.load(ctx, key)
	if unfit == nil {
		s.current.Store(c)
		return nil
	}
	if err = s.renew(ctx, key); err != nil && deviceAway(err) {
		s.failed()
		s.makeDo(ctx, c, key, unfit, err)
		return nil
	}
	if !errors.Is(unfit, fs.ErrNotExist) {
		s.log.InfoContext(ctx, "the https certificate on file is not used", "reason", unfit)
	}
	return err
}

// makeDo shows c, nil for none, though it is unfit, if that is better than
// nothing. Without any certificate the listener is there and handshakes fail.
func (s *selfCert) makeDo(ctx context.Context, c *tls.Certificate, key keys.Key, unfit, err error) {
	if c == nil || c.Leaf == nil || !isOf(c, key) || s.revoked(ctx, c) {
		s.log.ErrorContext(ctx, "there is no https certificate to be shown until one can be issued", "reason", unfit, "error", err)
		return
	}
	s.current.Store(c)
	s.log.ErrorContext(ctx, "the https certificate on file is shown until another one can be issued", "reason", unfit, "not_after", c.Leaf.NotAfter, "error", err)
}

// key returns the first key of ours that may be certified: one that was given
// up as compromised has a successor.
func (s *selfCert) key(ctx context.Context) (keys.Key, error) {
	for n := 1; ; n++ {
		label := selfKeyLabel
		if n > 1 {
			label = fmt.Sprintf("%s-%d", selfKeyLabel, n)
		}
		k, err := s.keyOf(ctx, label)
		if err != nil {
			return nil, err
		}
		err = s.ca.CheckKey(ctx, k.Public())
		if _, refused := errors.AsType[*ca.Refusal](err); !refused || n == selfKeys {
			return k, err
		}
	}
}

// keyOf finds the key of that label, or makes it.
func (s *selfCert) keyOf(ctx context.Context, label string) (keys.Key, error) {
	k, err := s.keys.Key(ctx, label)
	if errors.Is(err, keys.ErrNotFound) {
		k, err = s.keys.Generate(ctx, label, keys.ECDSAP256)
		if errors.Is(err, keys.ErrExists) { // somebody was faster
			k, err = s.keys.Key(ctx, label)
		}
	}
	return k, err
}

// load reads the file and says why its certificate will not do, if so.
func (s *selfCert) load(ctx context.Context, key keys.Key) (*tls.Certificate, error) {
	b, err := os.ReadFile(s.file)
	if err != nil {
		return nil, err
	}
	c := &tls.Certificate{PrivateKey: keys.Signer(context.Background(), key)}
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		c.Certificate = append(c.Certificate, block.Bytes)
	}
	if len(c.Certificate) < 2 {
		return nil, errors.New("no certificate with its chain in " + s.file)
	}
	if c.Leaf, err = x509.ParseCertificate(c.Certificate[0]); err != nil {
		return nil, err
	}
	return c, s.fits(ctx, c, key)
}

func (s *selfCert) fits(ctx context.Context, c *tls.Certificate, key keys.Key) error {
	issuer, err := x509.ParseCertificate(c.Certificate[1])
	if err != nil {
		return err
	}
	is, ok := s.ca.Issuer(ca.IDOf(issuer))
	switch {
	case !isOf(c, key):
		return errors.New("it is for another key")
	case !ok || !is.Active || !bytes.Equal(is.Cert.Raw, issuer.Raw):
		return errors.New("its issuer is no longer active")
	case !slices.Equal(sorted(namesOf(c.Leaf)), sorted(s.names)):
		return errors.New("it is for other names")
	case time.Now().After(renewAt(c.Leaf)):
		return errors.New("it is due for renewal")
	case s.revoked(ctx, c):
		return errors.New("it was revoked")
	}
	return nil
}

// isOf reports whether c is for key.
func isOf(c *tls.Certificate, key keys.Key) bool {
	pub, comparable := key.Public().(interface{ Equal(x crypto.PublicKey) bool })
	return comparable && pub.Equal(c.Leaf.PublicKey)
}

// revoked reports whether it is known that c was revoked, by whatever replica.
func (s *selfCert) revoked(ctx context.Context, c *tls.Certificate) bool {
	r, err := s.ca.Record(ctx, ca.SerialOf(c.Leaf.SerialNumber))
	return err == nil && r.Revoked()
}

func namesOf(cert *x509.Certificate) []ca.Identifier {
	var ids []ca.Identifier
	for _, n := range cert.DNSNames {
		ids = append(ids, ca.Identifier{Type: ca.DNS, Value: n})
	}
	for _, ip := range cert.IPAddresses {
		ids = append(ids, ca.Identifier{Type: ca.IP, Value: ipText(ip)})
	}
	return ids
}

func ipText(ip net.IP) string {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap().String()
}

func sorted(ids []ca.Identifier) []string {
	out := make([]string, 0, len(ids))
	for _, id := range ids {
		out = append(out, string(id.Type)+":"+id.Value)
	}
	slices.Sort(out)
	return out
}

func renewAt(leaf *x509.Certificate) time.Time {
	return leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) * 2 / 3)
}

// renew has a new certificate issued and shows it from now on.
func (s *selfCert) renew(ctx context.Context, key keys.Key) error {
	cert, err := s.ca.Issue(ctx, ca.Request{
		Profile: ca.ProfileSelf, PublicKey: key.Public(), Identifiers: s.names, Requester: ca.Requester{Actor: "system"},
	}, s.ledger)
	if err != nil {
		return fmt.Errorf("issuing it for %v: %w", sorted(s.names), err)
	}
	chain, err := s.chain(cert.Issuer)
	if err != nil {
		return err
	}
	c := &tls.Certificate{Certificate: [][]byte{cert.DER}, PrivateKey: keys.Signer(context.Background(), key)}
	if c.Leaf, err = x509.ParseCertificate(cert.DER); err != nil {
		return err
	}
	for _, above := range chain {
		c.Certificate = append(c.Certificate, above.Raw)
	}
	s.current.Store(c)
	if err := s.save(c); err != nil {
		// It serves from memory; the next start only has to ask for another.
		s.log.ErrorContext(ctx, "keeping the https certificate", "error", err)
	}
	s.log.InfoContext(ctx, "https certificate issued", "serial", string(cert.Serial), "names", sorted(s.names), "not_after", cert.NotAfter)
	return nil
}

func (s *selfCert) save(c *tls.Certificate) error {
	var b bytes.Buffer
	for _, der := range c.Certificate {
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: der}) // a Buffer takes all
	}
	return replaceFile(s.file, b.Bytes(), 0o644)
}

// run renews in time, and what was revoked or is missing at once, until ctx
// ends. A failure is tried again, with the old certificate shown meanwhile; of a
// row of them the first is told.
func (s *selfCert) run(ctx context.Context) error {
	failed := false
	for {
		var err error
		if !s.fine(ctx, s.current.Load()) {
			err = s.renewWithKey(ctx)
		}
		if err != nil && !failed && ctx.Err() == nil {
			s.log.ErrorContext(ctx, "renewing the https certificate, which is tried until it succeeds", "error", err, "not_after", s.notAfter())
		}
		failed = err != nil
		if !s.pause(ctx, s.untilNext(err)) {
			return nil
		}
	}
}

func (s *selfCert) renewWithKey(ctx context.Context) error {
	key, err := s.key(ctx)
	if err == nil {
		err = s.renew(ctx, key)
	}
	if err != nil {
		s.failed()
	}
	return err
}

// failed counts a failed attempt to renew.
func (s *selfCert) failed() {
	if s.failures != nil {
		s.failures.Inc()
	}
}

// fine reports whether c need not be replaced.
func (s *selfCert) fine(ctx context.Context, c *tls.Certificate) bool {
	return c != nil && time.Now().Before(renewAt(c.Leaf)) && !s.revoked(ctx, c)
}

// untilNext is how long to wait after an attempt that came to err, or none. When
// it is due is left to chance a little, so that replicas mostly take turns.
func (s *selfCert) untilNext(err error) time.Duration {
	switch {
	case err != nil && ca.NeverSigned(err):
		return selfAway
	case err != nil:
		return selfRetry
	}
	wait := min(time.Until(renewAt(s.current.Load().Leaf)), selfLook) + time.Duration(rand.Int64N(int64(selfRetry)))
	return max(wait, time.Second)
}

// notAfter is when the certificate that is shown ends, zero if there is none.
func (s *selfCert) notAfter() time.Time {
	if c := s.current.Load(); c != nil {
		return c.Leaf.NotAfter
	}
	return time.Time{}
}

// pause waits for d or a revocation, and reports whether to go on.
func (s *selfCert) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-s.lost:
	case <-t.C:
	}
	return true
}
