package front

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/secsy-pki/secsy-pki/peer"
)

// OperatorRoutes are what probes and collectors ask: /healthz (the process
// lives), /readyz (requests should be sent here) and /metrics. They need no
// login and have no rate limit, so they belong on a listener that strangers
// don't reach. Put no limiter before them: it is during a flood that they are
// needed.
func OperatorRoutes(ready *Readiness, metrics prometheus.Gatherer, log *slog.Logger) []Route {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	scrape := promhttp.HandlerFor(metrics, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.ContinueOnError, // one broken collector must not hide the others
		ErrorLog:            slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		MaxRequestsInFlight: 8,
		Timeout:             10 * time.Second,
	})
	return []Route{
		{Prefix: "/healthz", Class: "health", Handler: probe("/healthz", http.HandlerFunc(alive))},
		{Prefix: "/readyz", Class: "ready", Handler: probe("/readyz", ready)},
		{Prefix: "/metrics", Class: "metrics", Handler: probe("/metrics", scrape)},
	}
}

func alive(w http.ResponseWriter, _ *http.Request) {
	plainAnswer(w, http.StatusOK, "ok\n")
}

// probe serves one path to GET and HEAD, without a line in the log: what comes
// every second for years says nothing there.
func probe(path string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != path:
			notFound(w, r)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			plainAnswer(w, http.StatusMethodNotAllowed, "method not allowed\n")
		default:
			peer.Quiet(r.Context())
			h.ServeHTTP(w, r)
		}
	})
}
