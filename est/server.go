package est

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/cms"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// A Meaning is what a challengePassword in a request means: RFC 7030 and older
// habits disagree.
type Meaning uint8

// The meanings. By RFC 7030 §3.5 it binds the request to the TLS connection.
const (
	Binding  Meaning = iota // if there is one, it has to be that of the connection
	Required                // the same, and there has to be one
	Code                    // it is an enrolment code, for the desk
)

// An Endpoint is a CA by EST, at a label of its own.
type Endpoint struct {
	Label  string // lower-case letters, digits, "-" and "_"; none of the operations
	Issuer *ca.Issuer
	// Root ends the issuer's chain where /cacerts tells it, as devices that know
	// nothing yet take it for their anchor. Nil: it is left out.
	Root *x509.Certificate
	// Others are sent by /cacerts besides: of before and after a change of the root.
	Others []*x509.Certificate

	Challenge  Meaning
	Attributes Attributes // that requests should have
	// KeyGeneration makes keys for devices that can't. It is not for endpoints where
	// requests wait: the key is gone once it is answered.
	KeyGeneration KeyGeneration
}

// A KeyGeneration says which keys /serverkeygen makes.
type KeyGeneration struct {
	Algorithm KeyAlgorithm // "": there is no such operation
	// Signer signs keys that are sealed for a device. Nil: none are sealed, and a
	// device that asks for that gets no key at all.
	Signer *cms.Signer
}

// A Config says for whom to answer, and by whom.
type Config struct {
	Endpoints []Endpoint // at least one
	// Default is the label of the endpoint without a label; "" for none.
	Default string
	Desk    Desk
	// Forwarders are the hops that end TLS in front of us. They, and nobody else, are
	// believed what they say of the client's certificate (RFC 9440); they have to
	// take the header from whoever else sends it. None: there is no such hop.
	Forwarders []netip.Prefix
	Limiter    *ratelimit.Limiter // nil: nobody is limited

	Logger     *slog.Logger          // nil: discarded
	Registerer prometheus.Registerer // nil: no metrics
}

const (
	wellKnown = "/.well-known/est"
	// busyRetry is when to come back to something busy that doesn't say.
	busyRetry = 5 * time.Second
	// class is the name of EST's requests among the classes of endpoints.
	class = "est"
	// readCost is what every request pays: what is read is at hand.
	readCost = ratelimit.Token / 20
	// enrolCost is the rest of what one pays that may get a certificate.
	enrolCost = ratelimit.Token - readCost
)

var (
	labelForm  = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)
	operations = []string{"cacerts", "csrattrs", "fullcmc", "serverkeygen", "simpleenroll", "simplereenroll"}
)

// A Server answers EST. It is safe for concurrent use.
type Server struct {
	cfg       Config
	endpoints map[string]*endpoint
	limit     *ratelimit.Endpoint
	making    *gate.Gate // of keys
	metrics   *metrics
	faults    faults
}

// An endpoint is one that is served.
type endpoint struct {
	Endpoint
	cacerts file
	// attrs is what /csrattrs says, through are those without what a hop that ends
	// TLS makes impossible. Without a body there is nothing to say.
	attrs, through file
}

// New checks cfg and returns a Server.
func New(cfg Config) (*Server, error) {
	if len(cfg.Endpoints) == 0 || cfg.Desk == nil {
		return nil, errors.New("est: endpoints and a desk are needed")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, endpoints: map[string]*endpoint{}}
	s.faults.log = cfg.Logger
	for _, e := range cfg.Endpoints {
		if err := s.add(e); err != nil {
			return nil, err
		}
	}
	if cfg.Default != "" && s.endpoints[cfg.Default] == nil {
		return nil, fmt.Errorf("est: default endpoint %q is not one of %q", cfg.Default, slices.Sorted(maps.Keys(s.endpoints)))
	}
	s.limit = cfg.Limiter.Endpoint(class, ratelimit.EndpointOptions{Cost: readCost})
	var err error
	seats := max(1, runtime.GOMAXPROCS(0)/2)
	if s.making, err = gate.New(gate.Config{Seats: seats, MaxQueue: 16 * seats, MaxWait: 2 * time.Second}); err != nil {
		return nil, err
	}
	s.metrics, err = newMetrics(cfg.Registerer)
	return s, err
}

func (s *Server) add(e Endpoint) error {
	switch {
	case !labelForm.MatchString(e.Label) || slices.Contains(operations, e.Label):
		return fmt.Errorf("est: label %q must be 1 to 64 lower-case letters, digits, '-' and '_', and no operation", e.Label)
	case s.endpoints[e.Label] != nil:
		return fmt.Errorf("est: label %q is there twice", e.Label)
	case e.Issuer == nil:
		return fmt.Errorf("est: endpoint %q has no issuer", e.Label)
	case e.Challenge > Code:
		return fmt.Errorf("est: endpoint %q gives the challengePassword no known meaning", e.Label)
	}
	if err := e.KeyGeneration.check(); err != nil {
		return fmt.Errorf("est: endpoint %q: %w", e.Label, err)
	}
	served := &endpoint{Endpoint: e}
	certs := [][]byte{e.Issuer.Cert.Raw}
	for _, c := range slices.Concat(e.Issuer.Chain, []*x509.Certificate{e.Root}, e.Others) {
		if c != nil && !slices.ContainsFunc(certs, func(der []byte) bool { return string(der) == string(c.Raw) }) {
			certs = append(certs, c.Raw)
		}
	}
	der, err := cms.CertsOnly(certs, nil)
	if err != nil {
		return fmt.Errorf("est: certificates of endpoint %q: %w", e.Label, err)
	}
	served.cacerts = newFile(typeCACerts, der)
	for at, bound := range map[*file]bool{&served.attrs: e.Challenge == Required, &served.through: false} {
		if der, err = e.Attributes.encode(bound || e.Challenge == Code); err != nil {
			return fmt.Errorf("est: attributes of endpoint %q: %w", e.Label, err)
		}
		*at = newFile(typeAttributes, der)
	}
	s.endpoints[e.Label] = served
	return nil
}

// Limit is what requests are charged to before they are read.
func (s *Server) Limit() *ratelimit.Endpoint { return s.limit }

// Handler serves EST at /.well-known/est, with the label of an endpoint after or
// before it.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.serve(w, r); err != nil {
			s.refuse(w, r, err)
		}
	})
}
