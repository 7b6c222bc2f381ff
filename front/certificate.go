package front

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// FileCertificateConfig names the files of a listener's certificate.
type FileCertificateConfig struct {
	CertFile   string        // PEM, leaf first
	KeyFile    string        // PEM
	Of         string        // what it is the certificate of, in the log; "the listener"
	Poll       time.Duration // how often Run looks for new files; 1 min
	Log        *slog.Logger  // nil: none
	Registerer prometheus.Registerer
}

// A FileCertificate is a certificate that follows its files: whatever renews
// them, the next handshake has the new one. Files that don't fit together, as in
// the middle of a renewal, leave the old one in place.
type FileCertificate struct {
	cfg     FileCertificateConfig
	current atomic.Pointer[tls.Certificate]

	mu    sync.Mutex // lets one reload run at a time, and guards what is below
	files pair
	seen  stamp // the files of the last attempt, good or bad
	bad   bool  // that attempt failed
}

type pair struct{ cert, key string }

// stamp tells whether files were replaced.
type stamp struct {
	cert, key         time.Time
	certSize, keySize int64
}

// NewFileCertificate loads the files; they must be good.
func NewFileCertificate(cfg FileCertificateConfig) (*FileCertificate, error) {
	if cfg.Poll <= 0 {
		cfg.Poll = time.Minute
	}
	if cfg.Of == "" {
		cfg.Of = "the listener"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	f := &FileCertificate{cfg: cfg, files: pair{cfg.CertFile, cfg.KeyFile}}
	if err := f.Reload(); err != nil {
		return nil, err
	}
	if cfg.Registerer != nil {
		err := cfg.Registerer.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "secsy_http_certificate_not_after_seconds",
			Help: "When the certificate of the HTTPS listener ends, in Unix time.",
		}, f.notAfter))
		if err != nil {
			return nil, fmt.Errorf("registering metrics of a certificate: %w", err)
		}
	}
	return f, nil
}

// GetCertificate is for Listener.Certificate.
func (f *FileCertificate) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return f.current.Load(), nil
}

// ClientCertificate is for connections that we begin.
func (f *FileCertificate) ClientCertificate() (*tls.Certificate, error) {
	return f.current.Load(), nil
}

// Reload reads the files now. If they are bad, the old certificate stays and the
// error says why.
func (f *FileCertificate) Reload() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reloadLocked(f.files.stamp())
}

// Use is Reload from other files. If they are bad, it goes on following the old
// ones.
func (f *FileCertificate) Use(certFile, keyFile string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.files
	f.files = pair{certFile, keyFile}
	err := f.reloadLocked(f.files.stamp())
	if err != nil {
		f.files = old
		f.seen, f.bad = old.stamp(), false
	}
	return err
}

// Run reloads whenever the files change, until ctx ends.
func (f *FileCertificate) Run(ctx context.Context) {
	t := time.NewTicker(f.cfg.Poll)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			f.poll(ctx)
		}
	}
}

// poll tries bad files again each time, as a file may be read half written, but
// complains only once about the same ones.
func (f *FileCertificate) poll(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, wasBad := f.files.stamp(), f.bad
	same := now == f.seen
	if same && !wasBad {
		return
	}
	if err := f.reloadLocked(now); err != nil && (!same || !wasBad) {
		f.cfg.Log.ErrorContext(ctx, "new certificate is bad, keeping the old one", "of", f.cfg.Of, "error", err)
	}
}

func (f *FileCertificate) reloadLocked(now stamp) error {
	f.seen, f.bad = now, true
	c, err := tls.LoadX509KeyPair(f.files.cert, f.files.key)
	if err != nil {
		return fmt.Errorf("loading certificate %s with key %s: %w", f.files.cert, f.files.key, reason(err))
	}
	f.current.Store(&c)
	f.bad = false
	log := f.cfg.Log.With("of", f.cfg.Of, "file", f.files.cert, "subject", c.Leaf.Subject.String(), "not_after", c.Leaf.NotAfter)
	if time.Now().After(c.Leaf.NotAfter) {
		log.Warn("certificate has expired: the other side will refuse it")
		return nil
	}
	log.Info("certificate loaded")
	return nil
}

// reason drops the path from a file error, which the caller names already.
func reason(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

func (p pair) stamp() stamp {
	var s stamp
	if i, err := os.Stat(p.cert); err == nil {
		s.cert, s.certSize = i.ModTime(), i.Size()
	}
	if i, err := os.Stat(p.key); err == nil {
		s.key, s.keySize = i.ModTime(), i.Size()
	}
	return s
}

func (f *FileCertificate) notAfter() float64 {
	return float64(f.current.Load().Leaf.NotAfter.Unix())
}
