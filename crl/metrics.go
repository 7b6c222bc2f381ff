package crl

import (
	"fmt"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts builds, and reads the shelves at scrape time.
type metrics struct {
	builds  *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	shelves *Server
	gauges  []gauge
}

// A gauge is one number of a CRL that is being served.
type gauge struct {
	desc  *prometheus.Desc
	value func(CRL) float64
}

// kindOf names a series in metrics.
func kindOf(delta bool) string {
	if delta {
		return "delta"
	}
	return "complete"
}

func newMetrics(reg prometheus.Registerer, s *Server) (*metrics, error) {
	m := &metrics{
		shelves: s,
		builds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_crl_builds_total",
			Help: "CRLs that were to be built here, by outcome; busy says that the device had no time, error of no kind counts failures to see whether one is due.",
		}, []string{"issuer", "shard", "kind", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "secsy_crl_build_seconds", Help: "How long building a CRL took, from taking its number to its publication.",
			Buckets: prometheus.ExponentialBuckets(0.01, 4, 8),
		}, []string{"issuer", "kind"}),
	}
	for _, g := range []struct {
		name, help string
		value      func(CRL) float64
	}{
		{"number", "Number of the CRL being served.", func(c CRL) float64 { return float64(c.Number) }},
		{"this_update_seconds", "thisUpdate of the CRL being served, in seconds since 1970.", func(c CRL) float64 { return float64(c.ThisUpdate.Unix()) }},
		{"next_update_seconds", "nextUpdate of the CRL being served, in seconds since 1970.", func(c CRL) float64 { return float64(c.NextUpdate.Unix()) }},
		{"entries", "Entries of the CRL being served.", func(c CRL) float64 { return float64(c.Entries) }},
		{"octets", "Size of the CRL being served.", func(c CRL) float64 { return float64(c.Octets) }},
	} {
		m.gauges = append(m.gauges, gauge{prometheus.NewDesc("secsy_crl_"+g.name, g.help, []string{"issuer", "shard", "kind"}, nil), g.value})
	}
	if reg == nil {
		return m, nil
	}
	if err := reg.Register(m); err != nil {
		return nil, fmt.Errorf("registering CRL metrics: %w", err)
	}
	return m, nil
}

// shard is empty for the list of all.
func (s Scope) shard() string {
	if s.Shard == 0 {
		return ""
	}
	return strconv.Itoa(s.Shard)
}

func (m *metrics) count(sh *shelf, kind string, err error) {
	m.builds.WithLabelValues(string(sh.issuer.ID), sh.scope.shard(), kind, outcome(err)).Inc()
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	m.builds.Describe(ch)
	m.seconds.Describe(ch)
	for _, g := range m.gauges {
		ch <- g.desc
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.builds.Collect(ch)
	m.seconds.Collect(ch)
	for _, sh := range m.shelves.all() {
		for _, delta := range []bool{false, true} {
			l := sh.slot(delta).Load()
			if l == nil {
				continue
			}
			for _, g := range m.gauges {
				ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, g.value(l.CRL), string(sh.scope.Issuer), sh.scope.shard(), kindOf(delta))
			}
		}
	}
}
