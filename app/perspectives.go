package app

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/acme/challenge"
	"github.com/secsy-pki/secsy-pki/acme/challenge/perspective"
	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/front"
)

// Whoever validates also checks CAA.
type validator interface {
	acme.Validator
	acme.CAAChecker
}

// corroborated has what local sees seen from elsewhere, too, if that is
// configured or the policy wants it.
func (a *app) corroborated(local *challenge.Validator) (validator, error) {
	c := a.cfg.ACME.Validation
	public := a.cfg.Policy == config.PolicyPublic
	if len(c.Perspectives) == 0 && !public {
		return local, nil
	}
	remotes, err := a.remotes()
	if err != nil {
		return nil, err
	}
	p, err := perspective.New(perspective.Config{
		Remotes: remotes, Rule: perspective.Rule{Public: public, Quorum: c.Quorum},
		Validator: local, CAA: local, Timeout: c.PerspectiveTimeout.Std(),
		Logger: a.log.With("room", "perspective"), Registerer: a.registry,
	})
	if err != nil {
		return nil, fmt.Errorf("acme.validation.perspectives: %w", err)
	}
	a.onClose(func() error { p.Close(); return nil })
	a.serve("perspectives", p.Run)
	return p, nil
}

// remotes are the perspectives of the configuration, and our certificates for
// them. Where one is for all, it is one.
func (a *app) remotes() ([]*perspective.Remote, error) {
	c := a.cfg.ACME.Validation
	certs, pools := map[config.PerspectiveTLS]*front.FileCertificate{}, map[config.Path]*x509.CertPool{}
	var out []*perspective.Remote
	for i, p := range c.Perspectives {
		key := fmt.Sprintf("acme.validation.perspectives[%d]", i)
		files := c.TLSOf(p)
		pair := config.PerspectiveTLS{Certificate: files.Certificate, Key: files.Key}
		if certs[pair] == nil {
			cert, err := a.clientCertificate(files)
			if err != nil {
				return nil, fmt.Errorf("%s.tls: %w", key, err)
			}
			certs[pair] = cert
		}
		if pools[files.CABundle] == nil {
			pool, err := readRoots(string(files.CABundle))
			if err != nil {
				return nil, fmt.Errorf("%s.tls.ca_bundle: %w", key, err)
			}
			pools[files.CABundle] = pool
		}
		if err := a.watchExpiry(string(p.Name), certs[pair]); err != nil {
			return nil, err
		}
		r, err := perspective.NewRemote(perspective.RemoteConfig{
			Name: string(p.Name), Region: perspective.Region(p.Region), URL: p.URL.Parsed(),
			Roots: pools[files.CABundle], Certificate: certs[pair].ClientCertificate,
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		out = append(out, r)
	}
	return out, nil
}

func (a *app) clientCertificate(files config.PerspectiveTLS) (*front.FileCertificate, error) {
	f, err := front.NewFileCertificate(front.FileCertificateConfig{
		CertFile: string(files.Certificate), KeyFile: string(files.Key), Of: "connections to perspectives", Log: a.log.With("room", "perspective"),
	})
	if err != nil {
		return nil, err
	}
	a.serve("perspective-certificate", func(ctx context.Context) error { f.Run(ctx); return nil })
	a.reloads = append(a.reloads, func(*config.Config) error { return f.Reload() })
	return f, nil
}

// watchExpiry shows when our certificate ends: without it nothing is corroborated.
func (a *app) watchExpiry(name string, f *front.FileCertificate) error {
	err := a.registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "secsy_perspective_certificate_not_after_seconds", ConstLabels: prometheus.Labels{"perspective": name},
		Help: "When our certificate for connections to a perspective ends, in Unix time.",
	}, func() float64 {
		c, err := f.ClientCertificate()
		if err != nil {
			return 0
		}
		return float64(c.Leaf.NotAfter.Unix())
	}))
	if err != nil {
		return fmt.Errorf("registering metrics of perspectives: %w", err)
	}
	return nil
}

// validationTimeout leaves time for our own looks, at the name and at its CAA
// records, and for those of the perspectives.
func validationTimeout(c config.Validation) time.Duration {
	const usual = time.Minute
	return max(usual, 2*(c.Timeout.Std()+c.PerspectiveTimeout.Std())+10*time.Second)
}

// perspectiveSummary says what corroborates validations, and until when that is
// enough: the rules for public CAs want more by date.
func perspectiveSummary(cfg *config.Config, now time.Time) string {
	c := cfg.ACME.Validation
	if len(c.Perspectives) == 0 {
		return "validation from here alone: no remote perspectives"
	}
	in := map[string]bool{}
	var regions []perspective.Region
	for _, p := range c.Perspectives {
		in[p.Region] = true
		regions = append(regions, perspective.Region(p.Region))
	}
	s := fmt.Sprintf("remote perspectives: %d, in regions: %d", len(c.Perspectives), len(in))
	rule := perspective.Rule{Public: cfg.Policy == config.PolicyPublic, Quorum: c.Quorum}
	if until, err := rule.Shortfall(now, regions); err != nil && until.After(now) {
		s += fmt.Sprintf("; too few from %s on: %s", until.Format(time.DateOnly), err)
	}
	return s
}
