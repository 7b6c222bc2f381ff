package scep

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// An Endpoint is a CA by SCEP, at a label of its own.
type Endpoint struct {
	Label  string // lower-case letters, digits, "-" and "_"
	Issuer *ca.Issuer
	// Legacy lets clients of before RFC 8894 sign with SHA-1 and encrypt with triple
	// DES, and has the capabilities say so. Single DES and MD5 nobody may.
	Legacy bool
	// Next are the certificates of the CA that will follow on the issuer, for clients
	// to trust ahead (RFC 8894 §4.7). Empty: there is none.
	Next []*x509.Certificate
}

// A Config says for whom to answer, and by whom.
type Config struct {
	Endpoints []Endpoint // at least one
	// Default is the label of the endpoint at Path itself; "" for none.
	Default string
	Desk    Desk

	CA            Issuer    // issues the registration authorities' certificates
	Ledger        ca.Ledger // records them
	Certificates  Certificates
	Registrations Registrations
	CRLs          CRLs // nil: GetCRL finds none
	// Keys are behind a guard, which bounds how much is decrypted and signed at a time.
	Keys         KeyStore
	KeyAlgorithm keys.Algorithm     // RSA, of keys yet to be made; "" means RSA-2048
	Limiter      *ratelimit.Limiter // nil: no source is limited

	Path string // where the handler is mounted; "" means "/scep"
	// Share is how many messages of strangers are at the device at a time; 0 means 2.
	// So many times 32 wait for at most Patience; 0 means 2 seconds.
	Share    int
	Patience time.Duration

	Logger     *slog.Logger          // nil: discarded
	Registerer prometheus.Registerer // nil: no metrics
	Now        func() time.Time      // nil: time.Now
}

const (
	shareQueue = 32
	// busyRetry is when to come back to something busy that doesn't say.
	busyRetry = 5 * time.Second
)

var labelForm = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

func (c Config) withDefaults() (Config, error) {
	if len(c.Endpoints) == 0 || c.Desk == nil || c.CA == nil || c.Ledger == nil || c.Certificates == nil || c.Registrations == nil || c.Keys == nil {
		return c, errors.New("scep: endpoints, desk, CA, ledger, certificates, registrations and keys are all needed")
	}
	if c.Path == "" {
		c.Path = "/scep"
	}
	c.Path = strings.TrimRight(c.Path, "/")
	if c.KeyAlgorithm == "" {
		c.KeyAlgorithm = keys.RSA2048
	}
	if !slices.Contains([]keys.Algorithm{keys.RSA2048, keys.RSA3072, keys.RSA4096}, c.KeyAlgorithm) {
		return c, fmt.Errorf("scep: keys of algorithm %q can't decrypt: rsa-2048, rsa-3072 and rsa-4096 can", c.KeyAlgorithm)
	}
	if c.Share == 0 {
		c.Share = 2
	}
	if c.Patience == 0 {
		c.Patience = 2 * time.Second
	}
	if c.Share < 0 || c.Patience < 0 {
		return c, fmt.Errorf("scep: a share of %d and a patience of %v must not be negative", c.Share, c.Patience)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c, nil
}

// A Server answers SCEP. It is safe for concurrent use.
type Server struct {
	cfg       Config
	endpoints map[string]*endpoint
	offices   []*office
	share     *gate.Gate
	limit     *ratelimit.Endpoint
	metrics   *metrics
	faults    faults
	alarm     alarm
	replays   replays
}

// An endpoint is one that is served.
type endpoint struct {
	Endpoint
	office *office
	caps   file
}

// New checks cfg and returns a Server. Prepare or Run gives it its registration
// authorities.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, endpoints: map[string]*endpoint{}}
	s.faults.log = cfg.Logger
	s.alarm.log, s.alarm.now = cfg.Logger, cfg.Now
	for _, e := range cfg.Endpoints {
		if err := s.add(e); err != nil {
			return nil, err
		}
	}
	if cfg.Default != "" && s.endpoints[cfg.Default] == nil {
		return nil, fmt.Errorf("scep: default endpoint %q is not one of %q", cfg.Default, slices.Sorted(maps.Keys(s.endpoints)))
	}
	if s.share, err = gate.New(gate.Config{Seats: cfg.Share, MaxQueue: cfg.Share * shareQueue, MaxWait: cfg.Patience}); err != nil {
		return nil, err
	}
	s.limit = cfg.Limiter.Endpoint(class, ratelimit.EndpointOptions{Cost: readCost})
	s.metrics, err = newMetrics(cfg.Registerer, s.share)
	return s, err
}

func (s *Server) add(e Endpoint) error {
	switch {
	case !labelForm.MatchString(e.Label):
		return fmt.Errorf("scep: label %q must be 1 to 64 lower-case letters, digits, '-' and '_'", e.Label)
	case s.endpoints[e.Label] != nil:
		return fmt.Errorf("scep: label %q is there twice", e.Label)
	case e.Issuer == nil:
		return fmt.Errorf("scep: endpoint %q has no issuer", e.Label)
	}
	at := slices.IndexFunc(s.offices, func(o *office) bool { return o.issuer.ID == e.Issuer.ID })
	if at < 0 {
		at = len(s.offices)
		s.offices = append(s.offices, &office{issuer: e.Issuer})
	}
	served := &endpoint{Endpoint: e, office: s.offices[at]}
	served.caps = newFile(typeText, []byte(strings.Join(served.capabilities(), "\n")+"\n"))
	s.endpoints[e.Label] = served
	return nil
}

// capabilities are those of RFC 8894 §3.5.2. SHA-384 is none of them, but there
// are clients (strongSwan before 5.9.11) that know AES by it alone; whoever does
// not know a word has to pass over it.
func (e *endpoint) capabilities() []string {
	caps := []string{"AES", "POSTPKIOperation", "Renewal", "SCEPStandard", "SHA-256", "SHA-384", "SHA-512"}
	if e.Legacy {
		caps = append(caps, "DES3", "SHA-1")
	}
	if len(e.Next) > 0 {
		caps = append(caps, "GetNextCACert")
	}
	return caps
}
