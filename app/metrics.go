package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// admissionMetrics reads the counters of admission control when it is asked.
type admissionMetrics struct{ a *app }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("secsy_"+name, help, labels, nil)
}

var (
	descAdmitted  = desc("ratelimit_admitted_total", "Requests let in by the tiers.", "endpoint")
	descThrottled = desc("ratelimit_throttled_total", "Requests refused, by the tier that refused.", "endpoint", "tier")
	descShadowed  = desc("ratelimit_shadowed_total", "Requests that a tier in shadow would have refused.", "endpoint", "tier")
	descFailed    = desc("ratelimit_failed_proofs_total", "Requests whose signature or account did not hold.", "endpoint")
	descSlots     = desc("ratelimit_table_slots", "Clients that a tier can tell apart.", "tier")
	descPressure  = desc("ratelimit_table_pressure_total", "Clients that owed something and had no place, or lost it.", "tier")

	descSeats    = desc("hsm_guard_seats", "Signatures that may be under way at once.")
	descInFlight = desc("hsm_guard_in_flight", "Signatures under way.")
	descHung     = desc("hsm_guard_hung", "Seats of signatures that the device has not returned from though nobody waits any more.")
	descQueue    = desc("hsm_guard_queue_depth", "Signatures that wait for a seat.")
	descGuarded  = desc("hsm_guard_admitted_total", "Signatures that got a seat, by priority class.", "class")
	descRejected = desc("hsm_guard_rejected_total", "Signatures turned away, by the endpoint that wanted them.", "endpoint", "reason")
	descWait     = desc("hsm_guard_wait_seconds", "Wait for a seat before the keys.", "class")
	descSign     = desc("hsm_guard_sign_seconds", "Time of a signature at the device.", "class")

	descGateSeats    = desc("gate_seats", "Work that may be under way at once.", "gate")
	descGateInFlight = desc("gate_in_flight", "Work under way.", "gate")
	descGateQueue    = desc("gate_queue_depth", "Work that waits.", "gate")
	descGateAdmitted = desc("gate_admitted_total", "Work that got its turn.", "gate", "class")
	descGateRejected = desc("gate_rejected_total", "Work turned away.", "gate", "class", "reason")
	descGateWait     = desc("gate_wait_seconds", "Wait for a turn.", "gate", "class")

	descQuota         = desc("quota_refused_total", "Requests refused for a quota.", "endpoint")
	descBudgetKnown   = desc("refusal_budget_identities", "Identities with refusals behind them, in memory.")
	descBudgetLimited = desc("refusal_budget_limited_identities", "Identities that are slowed down now.")
	descBudgetRefused = desc("refusal_budget_refused_total", "Attempts that came too soon after a refusal.")
	descBudgetStore   = desc("refusal_budget_store_failures_total", "Counts of refusals that could not be read or written.")
	descBursts        = desc("refusal_bursts_open", "Bursts of refusals of proven identities that are not over.")
	descRecords       = desc("refusal_records_total", "Lines about refusals.")
)

// Describe implements prometheus.Collector.
func (m *admissionMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descAdmitted, descThrottled, descShadowed, descFailed, descSlots, descPressure,
		descSeats, descInFlight, descHung, descQueue, descGuarded, descRejected, descWait, descSign,
		descGateSeats, descGateInFlight, descGateQueue, descGateAdmitted, descGateRejected, descGateWait,
		descQuota, descBudgetKnown, descBudgetLimited, descBudgetRefused, descBudgetStore, descBursts, descRecords,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *admissionMetrics) Collect(ch chan<- prometheus.Metric) {
	o := out{ch}
	o.limiter(m.a.limiter.Stat())
	o.guard(m.a)
	if m.a.acme != nil {
		o.gate("acme_issuance", m.a.acme.IssuanceGate().Stat())
		o.gate("acme_validation", m.a.acme.ValidationGate().Stat())
		o.gate("acme_revocation", m.a.acme.RevocationGate().Stat())
		refused := int64(0)
		for _, s := range m.a.acmeServers() {
			refused += s.QuotaRefused()
		}
		o.counter(descQuota, float64(refused), classACMEOrder)
	}
	b := m.a.budget.Stat()
	o.gauge(descBudgetKnown, float64(b.Identities))
	o.gauge(descBudgetLimited, float64(b.Limited))
	o.counter(descBudgetRefused, float64(b.Refused))
	o.counter(descBudgetStore, float64(b.StoreFailures))
	r := m.a.recorder.Stat()
	o.gauge(descBursts, float64(r.Open))
	o.counter(descRecords, float64(r.Records))
}

// out writes samples.
type out struct{ ch chan<- prometheus.Metric }

func (o out) counter(d *prometheus.Desc, v float64, labels ...string) {
	o.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

func (o out) gauge(d *prometheus.Desc, v float64, labels ...string) {
	o.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (o out) limiter(s ratelimit.Stat) {
	for _, e := range s.Endpoints {
		o.counter(descAdmitted, float64(e.Admitted), e.Name)
		o.counter(descFailed, float64(e.FailedProofs), e.Name)
		for t := range e.Throttled {
			if tier := ratelimit.Tier(t); tier != ratelimit.None {
				o.counter(descThrottled, float64(e.Throttled[t]), e.Name, tier.String())
				o.counter(descShadowed, float64(e.Shadowed[t]), e.Name, tier.String())
			}
		}
	}
	for _, t := range s.Tables {
		o.gauge(descSlots, float64(t.Slots), t.Tier.String())
		o.counter(descPressure, float64(t.Evicted+t.Overflowed), t.Tier.String())
	}
}

func (o out) guard(a *app) {
	g := a.gate.Stat()
	o.gauge(descSeats, float64(g.Limit))
	o.gauge(descInFlight, float64(g.InFlight))
	o.gauge(descQueue, float64(g.Queued))
	s := a.guard.Stat()
	o.gauge(descHung, float64(s.Hung))
	for c := range g.Class {
		class := gate.Class(c).String()
		o.counter(descGuarded, float64(g.Class[c].Admitted), class)
		o.times(descWait, g.Class[c].Wait, class)
		o.times(descSign, s.Calls[c], class)
	}
	for _, r := range s.Rejected {
		o.counter(descRejected, float64(r.Count), r.Endpoint, r.Reason.String())
	}
}

func (o out) gate(name string, s gate.Stat) {
	o.gauge(descGateSeats, float64(s.Limit), name)
	o.gauge(descGateInFlight, float64(s.InFlight), name)
	o.gauge(descGateQueue, float64(s.Queued), name)
	for c := range s.Class {
		class := gate.Class(c).String()
		o.counter(descGateAdmitted, float64(s.Class[c].Admitted), name, class)
		o.times(descGateWait, s.Class[c].Wait, name, class)
		for r, n := range s.Class[c].Refused {
			o.counter(descGateRejected, float64(n), name, class, gate.Reason(r).String())
		}
	}
}

func (o out) times(d *prometheus.Desc, h gate.Histogram, labels ...string) {
	buckets := make(map[float64]uint64, len(h.Buckets))
	for i, n := range h.Buckets {
		buckets[gate.Bounds[i].Seconds()] = n
	}
	o.ch <- prometheus.MustNewConstHistogram(d, h.Count, h.Sum.Seconds(), buckets, labels...)
}
