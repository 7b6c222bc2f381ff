package scep

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/gate"
)

type metrics struct {
	messages *prometheus.CounterVec // by type and outcome
	refusals *prometheus.CounterVec // by why
	limited  prometheus.Counter     // one of refusals, at hand for floods
	wrong    prometheus.Counter
	notAfter *prometheus.GaugeVec // by issuer
}

func newMetrics(reg prometheus.Registerer, share *gate.Gate) (*metrics, error) {
	m := &metrics{
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_scep_messages_total",
			Help: "SCEP messages that were answered with a CertRep, by type and by what it said.",
		}, []string{"type", "outcome"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_scep_refusals_total",
			Help: "SCEP requests that were refused by HTTP alone, by why.",
		}, []string{"why"}),
		wrong: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "secsy_scep_wrong_inside_total",
			Help: "SCEP messages that could not be decrypted, or held no request. Very many may be an attempt to decrypt others.",
		}),
		notAfter: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "secsy_scep_registration_not_after_seconds",
			Help: "When the certificate of the SCEP registration authority ends, in seconds since 1970.",
		}, []string{"issuer"}),
	}
	m.limited = m.refusals.WithLabelValues("rate_limited")
	if reg == nil {
		return m, nil
	}
	gauge := func(name, help string, value func(s gate.Stat) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(share.Stat()) })
	}
	for _, c := range []prometheus.Collector{
		m.messages, m.refusals, m.wrong, m.notAfter,
		gauge("secsy_scep_at_device", "SCEP messages that are at the device.", func(s gate.Stat) float64 { return float64(s.InFlight) }),
		gauge("secsy_scep_waiting", "SCEP messages that wait for the device.", func(s gate.Stat) float64 { return float64(s.Queued) }),
	} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering SCEP metrics: %w", err)
		}
	}
	return m, nil
}
