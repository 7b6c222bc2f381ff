package ocsp

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	answers    *prometheus.CounterVec // by result
	limited    prometheus.Counter     // one of answers, at hand for floods
	signatures *prometheus.CounterVec // by outcome
	renewals   *prometheus.CounterVec // by issuer and outcome
	notAfter   *prometheus.GaugeVec   // by issuer
}

func newMetrics(reg prometheus.Registerer, c *cache) (*metrics, error) {
	m := &metrics{
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_ocsp_answers_total",
			Help: "OCSP answers sent, by what they said.",
		}, []string{"result"}),
		signatures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_ocsp_signatures_total",
			Help: "OCSP responses that were to be signed, by outcome.",
		}, []string{"outcome"}),
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_ocsp_responder_renewals_total",
			Help: "Attempts to get a new certificate for a delegated responder, by outcome.",
		}, []string{"issuer", "outcome"}),
		notAfter: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "secsy_ocsp_responder_not_after_seconds",
			Help: "When the delegated responder's certificate ends, in seconds since 1970.",
		}, []string{"issuer"}),
	}
	m.limited = m.answers.WithLabelValues("rate_limited")
	if reg == nil {
		return m, nil
	}
	entries := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "secsy_ocsp_cached_responses",
		Help: "Signed OCSP responses kept in memory.",
	}, func() float64 { return float64(c.len()) })
	for _, col := range []prometheus.Collector{m.answers, m.signatures, m.renewals, m.notAfter, entries} {
		if err := reg.Register(col); err != nil {
			return nil, fmt.Errorf("registering OCSP metrics: %w", err)
		}
	}
	return m, nil
}
