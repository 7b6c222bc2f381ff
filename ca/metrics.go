package ca

import (
	"github.com/prometheus/client_golang/prometheus"
)

// The results of an issuance, as metrics name them.
const (
	resultIssued  = "issued"
	resultRefused = "refused"
	resultLint    = "lint"
	resultBusy    = "busy"
	resultFailed  = "failed"
)

type metrics struct {
	issuances   *prometheus.CounterVec
	revocations *prometheus.CounterVec
	abandoned   prometheus.Counter
	signSeconds prometheus.Histogram
	lintSeconds prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		issuances: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_ca_issuances_total", Help: "Issuances asked for, by profile and result.",
		}, []string{"profile", "result"}),
		revocations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_ca_revocations_total", Help: "Certificates revoked, by reason.",
		}, []string{"reason"}),
		abandoned: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "secsy_ca_abandoned_total", Help: "Issuances that ended without anybody knowing whether the certificate was signed.",
		}),
		signSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "secsy_ca_sign_seconds", Help: "Time to a certificate's signature, its queue included.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9),
		}),
		lintSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "secsy_ca_lint_seconds", Help: "Time to lint a certificate before it is signed.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 7),
		}),
	}
	if reg != nil {
		reg.MustRegister(m.issuances, m.revocations, m.abandoned, m.signSeconds, m.lintSeconds)
	}
	return m
}
