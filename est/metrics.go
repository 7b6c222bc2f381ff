package est

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	enrolments *prometheus.CounterVec // by operation and outcome
	refusals   *prometheus.CounterVec // by why
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		enrolments: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_est_enrolments_total",
			Help: "EST requests that got a certificate or wait for one, by operation and outcome.",
		}, []string{"operation", "outcome"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_est_refusals_total",
			Help: "EST requests that were refused, by why.",
		}, []string{"why"}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.enrolments, m.refusals} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering EST metrics: %w", err)
		}
	}
	return m, nil
}
