package ocsp

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	answers    *prometheus.CounterVec // by result
	good       prometheus.Counter     // these are some of answers, at hand for floods
	revoked    prometheus.Counter
	unchanged  prometheus.Counter
	limited    prometheus.Counter
	fromMemory prometheus.Counter
	signatures *prometheus.CounterVec // by outcome
	signedWell prometheus.Counter     // these are some of signatures
	renewals   *prometheus.CounterVec // by issuer and outcome
	notAfter   *prometheus.GaugeVec   // by issuer
	ahead      *prometheus.CounterVec // by hash and outcome
	overdueFor *prometheus.GaugeVec   // by hash
	shelved    prometheus.Counter
}

// overdue notes for how long the oldest of what is due has been so.
func (m *metrics) overdue(h Hash, due []Assigned, now time.Time) {
	var late time.Duration
	for _, c := range due {
		if !c.RefreshAt.IsZero() {
			late = max(late, now.Sub(c.RefreshAt))
		}
	}
	m.overdueFor.WithLabelValues(h.String()).Set(late.Seconds())
}

// signed counts a signature that came to err.
func (m *metrics) signed(err error) {
	if err == nil {
		m.signedWell.Inc()
		return
	}
	m.signatures.WithLabelValues(outcome(err)).Inc()
}

func newMetrics(reg prometheus.Registerer, c *cache, following func() bool) (*metrics, error) {
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
	m.ahead = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "secsy_ocsp_ahead_signatures_total",
		Help: "Signatures of OCSP responses to be made before anybody asks, by outcome.",
	}, []string{"hash", "outcome"})
	m.overdueFor = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "secsy_ocsp_ahead_overdue_seconds",
		Help: "For how long the oldest signature that is to be made ahead has been due.",
	}, []string{"hash"})
	m.shelved = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "secsy_ocsp_ahead_used_total",
		Help: "OCSP responses put together from a signature made ahead.",
	})
	m.fromMemory = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "secsy_ocsp_answers_from_memory_total",
		Help: "OCSP answers sent without a question to the database.",
	})
	m.signedWell = m.signatures.WithLabelValues(outcome(nil))
	m.good, m.revoked = m.answers.WithLabelValues("good"), m.answers.WithLabelValues("revoked")
	m.unchanged, m.limited = m.answers.WithLabelValues("not_modified"), m.answers.WithLabelValues("rate_limited")
	if reg == nil {
		return m, nil
	}
	entries := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "secsy_ocsp_cached_responses",
		Help: "Signed OCSP responses kept in memory.",
	}, func() float64 { return float64(c.len()) })
	follows := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "secsy_ocsp_follows_changes",
		Help: "1 while changes of statuses are followed. At 0 each OCSP answer reads the database.",
	}, func() float64 {
		if following() {
			return 1
		}
		return 0
	})
	for _, col := range []prometheus.Collector{m.fromMemory, follows, m.answers, m.signatures, m.renewals, m.notAfter, m.ahead, m.overdueFor, m.shelved, entries} {
		if err := reg.Register(col); err != nil {
			return nil, fmt.Errorf("registering OCSP metrics: %w", err)
		}
	}
	return m, nil
}
