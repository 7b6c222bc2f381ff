package front

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Why a connection was closed by our own choice. A closed set, as each is a label.
const (
	refusedFull      = "full"            // the listener has all the connections it may have
	refusedClient    = "client_full"     // this client has
	refusedNoHeader  = "proxy_missing"   // a trusted source sent no PROXY header in time
	refusedUntrusted = "proxy_untrusted" // a source that isn't trusted sent one
	refusedMalformed = "proxy_malformed" // a trusted source sent a bad one
	evictedIdle      = "evicted_idle"    // it had no request under way, and a new one needed its place
)

type metrics struct {
	requests    *prometheus.CounterVec
	durations   *prometheus.HistogramVec
	registerer  prometheus.Registerer
	connections *prometheus.GaugeVec
	refused     *prometheus.CounterVec
	panics      prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_http_requests_total",
			Help: "Requests answered, by listener, class of route and class of status.",
		}, []string{"listener", "class", "code_class"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "secsy_http_request_duration_seconds",
			Help:    "Time from the end of the request's header to the end of the answer.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"listener", "class"}),
		registerer: reg,
		connections: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "secsy_http_connections",
			Help: "Connections open now.",
		}, []string{"listener"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "secsy_http_connections_refused_total",
			Help: "Connections closed before a request was read from them, or while they were idle, in favour of others.",
		}, []string{"listener", "reason"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "secsy_http_panics_total",
			Help: "Handlers that panicked. Anything but 0 is a bug to report.",
		}),
	}
	for _, c := range []prometheus.Collector{m.requests, m.durations, m.connections, m.refused, m.panics} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics of the listeners: %w", err)
		}
	}
	return m, nil
}

// listenerMetrics are looked up once, so that a request costs no map access.
type listenerMetrics struct {
	all         *metrics
	name        string
	connections prometheus.Gauge
}

// listener has inFlight read when it is asked for.
func (m *metrics) listener(name string, inFlight func() float64) (*listenerMetrics, error) {
	g := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "secsy_http_requests_in_flight",
		Help:        "Requests being answered now.",
		ConstLabels: prometheus.Labels{"listener": name},
	}, inFlight)
	if err := m.registerer.Register(g); err != nil {
		return nil, fmt.Errorf("registering metrics of the listener: %w", err)
	}
	return &listenerMetrics{all: m, name: name, connections: m.connections.WithLabelValues(name)}, nil
}

func (m *listenerMetrics) refuse(reason string) {
	m.all.refused.WithLabelValues(m.name, reason).Inc()
}

type classMetrics struct {
	name     string
	codes    [6]prometheus.Counter // by the first digit of the status
	duration prometheus.Observer
}

func (m *listenerMetrics) class(name string) *classMetrics {
	c := &classMetrics{name: name, duration: m.all.durations.WithLabelValues(m.name, name)}
	for i := range c.codes {
		label := "other"
		if i > 0 {
			label = fmt.Sprintf("%dxx", i)
		}
		c.codes[i] = m.all.requests.WithLabelValues(m.name, name, label)
	}
	return c
}

func (c *classMetrics) observe(status int, took time.Duration) {
	i := status / 100
	if i < 0 || i >= len(c.codes) {
		i = 0
	}
	c.codes[i].Inc()
	c.duration.Observe(took.Seconds())
}
