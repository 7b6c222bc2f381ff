package perspective

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics have labels from closed sets: the names are those of the configuration.
type metrics struct {
	results *prometheus.CounterVec
	took    *prometheus.HistogramVec
	total   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, c *Corroborator) (*metrics, error) {
	m := &metrics{
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_perspective_results_total",
			Help: "What remote perspectives came back with: agreed, dissented, or what kept them from saying anything.",
		}, []string{"perspective", "kind", "outcome"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "secsy_perspective_seconds",
			Help:    "How long a remote perspective took to answer.",
			Buckets: []float64{.03, .1, .3, .5, 1, 2, 5, 10, 30},
		}, []string{"perspective"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_perspective_corroborations_total",
			Help: "What we saw ourselves and had remote perspectives look at, by whether enough of them agreed.",
		}, []string{"kind", "outcome"}),
	}
	if reg == nil {
		return m, nil
	}
	for _, one := range append([]prometheus.Collector{m.results, m.took, m.total}, c.gauges()...) {
		if err := reg.Register(one); err != nil {
			return nil, fmt.Errorf("registering metrics of perspectives: %w", err)
		}
	}
	return m, nil
}

func (c *Corroborator) gauges() []prometheus.Collector {
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "secsy_perspective_" + name, Help: help}, f)
	}
	return []prometheus.Collector{
		gauge("remotes", "Remote perspectives in the configuration.", func() float64 { return float64(len(c.regions)) }),
		gauge("remotes_silent", "Remote perspectives that gave no answer when they were last asked.", func() float64 {
			n := 0
			for i := range c.down {
				if c.down[i].Load() {
					n++
				}
			}
			return float64(n)
		}),
		gauge("shortfall_seconds", "Until the rules want more remote perspectives than there are, and validation stops; +Inf: no such date is known.", func() float64 {
			now := c.cfg.Clock()
			at, err := c.cfg.Rule.Shortfall(now, c.regions)
			if err == nil {
				return math.Inf(1)
			}
			return at.Sub(now).Seconds()
		}),
	}
}

func (m *metrics) result(name, kind, outcome string, took time.Duration) {
	m.results.WithLabelValues(name, kind, outcome).Inc()
	m.took.WithLabelValues(name).Observe(took.Seconds())
}

func (m *metrics) corroborated(kind string, ok bool) {
	outcome := "refused"
	if ok {
		outcome = "corroborated"
	}
	m.total.WithLabelValues(kind, outcome).Inc()
}

func resultOf(r report) string {
	for _, e := range []struct {
		err  error
		name string
	}{{errLate, "late"}, {errBusy, "busy"}, {errTimeout, "timeout"}, {errInvalid, "invalid"}, {errUnreachable, "unreachable"}} {
		if errors.Is(r.err, e.err) {
			return e.name
		}
	}
	if r.answer.OK {
		return "agreed"
	}
	return "dissented"
}
