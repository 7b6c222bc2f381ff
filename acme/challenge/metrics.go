package challenge

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/acme"
)

type metrics struct {
	queries *prometheus.CounterVec
	took    *prometheus.HistogramVec
	checks  *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		queries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_challenge_dns_queries_total",
			Help: "Tries of DNS queries for validations, by record type and outcome.",
		}, []string{"type", "outcome"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "secsy_challenge_validation_seconds",
			Help:    "How long attempts at validation took, by challenge type.",
			Buckets: []float64{.01, .03, .1, .3, 1, 3, 10, 30},
		}, []string{"type"}),
		checks: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "secsy_challenge_caa_seconds",
			Help:    "How long checks of CAA records took, by outcome.",
			Buckets: []float64{.001, .003, .01, .03, .1, .3, 1, 3, 10},
		}, []string{"outcome"}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.queries, m.took, m.checks} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering validation metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) observe(r acme.ValidationRecord) {
	switch r.Type { // a closed set
	case acme.HTTP01, acme.DNS01, acme.TLSALPN01, acme.DNSAccount01, acme.DNSPersist01:
		m.took.WithLabelValues(string(r.Type)).Observe(r.Took.Seconds())
	}
}

func (m *metrics) caa(p *acme.Problem, took time.Duration) {
	outcome := "allowed"
	if p != nil {
		outcome = string(p.Type) // one of few
	}
	m.checks.WithLabelValues(outcome).Observe(took.Seconds())
}
