package crl

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts builds, and reads the shelves at scrape time.
type metrics struct {
	builds     *prometheus.CounterVec
	shelves    *Server
	number     *prometheus.Desc
	nextUpdate *prometheus.Desc
	entries    *prometheus.Desc
}

func newMetrics(reg prometheus.Registerer, s *Server) (*metrics, error) {
	issuer := []string{"issuer"}
	m := &metrics{
		shelves: s,
		builds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_crl_builds_total",
			Help: "CRLs that were to be built here, by outcome; busy says that the device had no time, error counts failures to see whether one is due, too.",
		}, []string{"issuer", "outcome"}),
		number:     prometheus.NewDesc("secsy_crl_number", "Number of the CRL being served.", issuer, nil),
		nextUpdate: prometheus.NewDesc("secsy_crl_next_update_seconds", "nextUpdate of the CRL being served, in seconds since 1970.", issuer, nil),
		entries:    prometheus.NewDesc("secsy_crl_entries", "Entries of the CRL being served.", issuer, nil),
	}
	if reg == nil {
		return m, nil
	}
	if err := reg.Register(m); err != nil {
		return nil, fmt.Errorf("registering CRL metrics: %w", err)
	}
	return m, nil
}

func (m *metrics) count(sh *shelf, err error) {
	m.builds.WithLabelValues(string(sh.issuer.ID), outcome(err)).Inc()
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	m.builds.Describe(ch)
	ch <- m.number
	ch <- m.nextUpdate
	ch <- m.entries
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.builds.Collect(ch)
	for id := range m.shelves.shelves {
		c, ok := m.shelves.Current(id)
		if !ok {
			continue
		}
		for desc, v := range map[*prometheus.Desc]float64{
			m.number:     float64(c.Number),
			m.nextUpdate: float64(c.NextUpdate.Unix()),
			m.entries:    float64(c.Entries),
		} {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, string(id))
		}
	}
}
