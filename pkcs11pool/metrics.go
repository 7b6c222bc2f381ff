package pkcs11pool

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics reads the pool's Stat at scrape time.
type metrics struct {
	pool *Pool

	sessions, limit, up                 *prometheus.Desc
	borrows, errors, reopened           *prometheus.Desc
	recovered, restarted, seconds       *prometheus.Desc
	queue, waits, waitSeconds, refusals *prometheus.Desc
}

func newMetrics(p *Pool) *metrics {
	token := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("secsy_pkcs11_"+name, help, append([]string{"token"}, more...), nil)
	}
	all := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("secsy_pkcs11_"+name, help, labels, nil)
	}
	return &metrics{
		pool:        p,
		sessions:    token("sessions", "Sessions by state; a hung one is in a call that has taken longer than the call timeout.", "state"),
		limit:       token("sessions_limit", "Sessions that the token may have."),
		up:          token("token_up", "1 if the token can be used, 0 if it is being brought back, -1 if it does not accept the PIN."),
		borrows:     token("borrows_total", "How often a session was lent."),
		errors:      token("errors_total", "Errors of the token by class; hung counts calls that took longer than the call timeout.", "class"),
		reopened:    token("reopened_sessions_total", "Sessions opened in place of those that were discarded after an error."),
		recovered:   token("recoveries_total", "How often the token came back after it had been down."),
		restarted:   token("module_restarts_total", "How often the token's module was initialized anew to bring it back."),
		seconds:     token("call_seconds", "How long the token took for what succeeded, by mechanism.", "mechanism"),
		queue:       all("queue", "Those who wait for a session."),
		waits:       all("waits_total", "How often no session was idle."),
		waitSeconds: all("wait_seconds_total", "How long sessions were waited for, all together."),
		refusals:    all("refusals_total", "Work that was not done, and can be asked for again, by reason.", "reason"),
	}
}

// register makes the metrics known, if that is wanted.
func (p *Pool) register() error {
	if p.cfg.Registerer == nil {
		return nil
	}
	m := newMetrics(p)
	if err := p.cfg.Registerer.Register(m); err != nil {
		return fmt.Errorf("pkcs11pool: registering metrics: %w", err)
	}
	p.metrics = m
	return nil
}

func (p *Pool) unregister() {
	if p.metrics != nil {
		p.cfg.Registerer.Unregister(p.metrics)
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		m.sessions, m.limit, m.up, m.borrows, m.errors, m.reopened, m.recovered, m.restarted, m.seconds,
		m.queue, m.waits, m.waitSeconds, m.refusals,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	s := m.pool.Stat()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge(m.queue, float64(s.Queued))
	counter(m.waits, float64(s.Waits))
	counter(m.waitSeconds, s.WaitTime.Seconds())
	for why, n := range s.Refused {
		counter(m.refusals, float64(n), why)
	}
	for _, t := range s.Tokens {
		gauge(m.sessions, float64(t.Idle), t.Name, "idle")
		gauge(m.sessions, float64(t.Busy), t.Name, "busy")
		gauge(m.sessions, float64(t.Opening), t.Name, "opening")
		gauge(m.sessions, float64(t.Closing), t.Name, "closing")
		gauge(m.sessions, float64(t.Hung), t.Name, "hung")
		gauge(m.limit, float64(t.Limit), t.Name)
		gauge(m.up, map[State]float64{Up: 1, Refused: -1}[t.State], t.Name)
		counter(m.borrows, float64(t.Borrows), t.Name)
		counter(m.reopened, float64(t.Reopened), t.Name)
		counter(m.recovered, float64(t.Recovered), t.Name)
		counter(m.restarted, float64(t.Restarted), t.Name)
		for class, n := range t.Errors {
			counter(m.errors, float64(n), t.Name, class)
		}
		for _, l := range t.Latency {
			ch <- prometheus.MustNewConstHistogram(m.seconds, l.Count, l.Sum.Seconds(), l.buckets(), t.Name, l.Mechanism)
		}
	}
}

func (l Latency) buckets() map[float64]uint64 {
	b := make(map[float64]uint64, len(l.Buckets))
	for i, n := range l.Buckets {
		b[Bounds[i].Seconds()] = n
	}
	return b
}
