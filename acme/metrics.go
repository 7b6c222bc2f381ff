package acme

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics have labels from closed sets only.
type metrics struct {
	requests    *prometheus.CounterVec // by endpoint and outcome: "ok" or a problem type
	validations *prometheus.CounterVec // by challenge type and outcome: "valid" or a problem type
	orders      *prometheus.CounterVec // by outcome: created, reused, parked, turned_away, valid, invalid, retried
	renewalInfo *prometheus.CounterVec // by what the window comes from: early, due, incident, revoked

	replacements prometheus.Counter
}

// ofDirectory has all metrics say whose they are: "" is the directory that every
// server has.
func ofDirectory(r prometheus.Registerer, directory string) prometheus.Registerer {
	if r == nil {
		return nil
	}
	return prometheus.WrapRegistererWith(prometheus.Labels{"directory": directory}, r)
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_acme_requests_total", Help: "ACME requests answered, by endpoint and outcome.",
		}, []string{"endpoint", "outcome"}),
		validations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_acme_validations_total", Help: "Validations finished, by challenge type and outcome.",
		}, []string{"type", "outcome"}),
		orders: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_acme_orders_total", Help: "Orders created, and what became of their issuance.",
		}, []string{"event"}),
		renewalInfo: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_acme_renewal_info_total", Help: "Renewal windows told, by what they come from.",
		}, []string{"window"}),
		replacements: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "secsy_acme_replacements_total", Help: "Certificates issued in the place of one that their order names.",
		}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.validations, m.orders, m.renewalInfo, m.replacements} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("registering ACME metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) order(event string) { m.orders.WithLabelValues(event).Inc() }

func registerBacklog(r prometheus.Registerer, size func() int) error {
	if r == nil {
		return nil
	}
	err := r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "secsy_acme_backlog_orders", Help: "Orders that wait to be issued or are being issued, about.",
	}, func() float64 { return float64(size()) }))
	if err != nil {
		return fmt.Errorf("registering ACME metrics: %w", err)
	}
	return nil
}

func registerIncidents(r prometheus.Registerer, open func() int) error {
	if r == nil {
		return nil
	}
	err := r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "secsy_acme_incidents_open", Help: "Incidents in which certificates are to be replaced sooner.",
	}, func() float64 { return float64(open()) }))
	if err != nil {
		return fmt.Errorf("registering ACME metrics: %w", err)
	}
	return nil
}
