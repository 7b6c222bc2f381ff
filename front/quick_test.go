package front_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/front"
	"github.com/secsy-pki/secsy-pki/peer"
)

// quickSite is a front whose route answers "/q/hit" from what is at hand.
func quickSite(t *testing.T, lines front.Lines, log *bytes.Buffer) (h *house, site http.Handler, slow *int) {
	t.Helper()
	h, slow = &house{reg: prometheus.NewRegistry()}, new(int)
	f, err := front.New(front.Config{
		Registerer: h.reg, AccessLog: slog.New(slog.NewTextHandler(log, nil)),
		Listeners: []front.Listener{{Name: "http", Address: "127.0.0.1:0", Routes: []front.Route{{
			Prefix: "/q", Class: "ocsp", Lines: lines,
			Quick: func(w http.ResponseWriter, r *http.Request) bool {
				switch r.RequestURI {
				case "/q/hit":
					w.WriteHeader(http.StatusOK)
					_, _ = w.Write([]byte("quick"))
					return true
				case "/q/panic":
					panic("quick")
				}
				return false
			},
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				*slow++
				switch r.RequestURI {
				case "/q/noted":
					peer.Annotate(r.Context(), "ocsp", "unauthorized")
				case "/q/error":
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			}),
		}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return h, f.Handler("http"), slow
}

func askQuick(s http.Handler, method, target string) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	r := httptest.NewRequest(method, target, http.NoBody)
	s.ServeHTTP(rec, r)
	return rec
}

func TestWhatIsAtHandIsAnsweredWithoutTheRest(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	h, s, slow := quickSite(t, front.Lines{OnlyErrors: true}, &log)
	rec := askQuick(s, http.MethodGet, "/q/hit")
	if rec.Body.String() != "quick" || *slow != 0 || rec.Header().Get("X-Content-Type-Options") != "nosniff" || log.Len() > 0 {
		t.Errorf("%q, %v, %d times slow, log %q", rec.Body, rec.Header(), *slow, &log)
	}
	askQuick(s, http.MethodGet, "/q/miss")
	body := httptest.NewRequest(http.MethodPost, "/q/hit", strings.NewReader("body"))
	s.ServeHTTP(httptest.NewRecorder(), body)
	if *slow != 2 {
		t.Errorf("%d of 2 were not at hand", *slow)
	}
	if n := h.metric(t, "secsy_http_requests_total", "code_class=2xx"); n != 3 {
		t.Errorf("%v of 3 are counted", n)
	}
	if n := h.metric(t, "secsy_http_requests_in_flight"); n != 0 {
		t.Errorf("%v in flight", n)
	}
}

func TestAPanicOfWhatIsAtHandIsAnswered(t *testing.T) {
	t.Parallel()
	h, s, slow := quickSite(t, front.Lines{None: true}, new(bytes.Buffer))
	if rec := askQuick(s, http.MethodGet, "/q/panic"); rec.Code != http.StatusInternalServerError || *slow != 0 {
		t.Errorf("HTTP %d, %d times slow", rec.Code, *slow)
	}
	if n := h.metric(t, "secsy_http_panics_total"); n != 1 {
		t.Errorf("%v panics", n)
	}
}

func TestARouteSaysWhichRequestsLeaveALine(t *testing.T) {
	t.Parallel()
	targets := []string{"/q/hit", "/q/miss", "/q/noted", "/q/error"}
	for name, c := range map[string]struct {
		lines front.Lines
		want  string // of each target's line
	}{
		"all":             {front.Lines{}, "hit miss noted error"},
		"errors":          {front.Lines{OnlyErrors: true}, "noted error"},
		"none":            {front.Lines{None: true}, ""},
		"errors, sampled": {front.Lines{OnlyErrors: true, Sample: 2}, "miss noted error"},
		"none, sampled":   {front.Lines{None: true, Sample: 4}, "error"},
	} {
		var log bytes.Buffer
		_, s, _ := quickSite(t, c.lines, &log)
		for _, target := range targets {
			askQuick(s, http.MethodGet, target)
		}
		var got []string
		for line := range strings.Lines(log.String()) {
			_, rest, _ := strings.Cut(line, "path=/q/")
			path, _, _ := strings.Cut(rest, " ")
			got = append(got, path)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: lines of %v, want %s", name, got, c.want)
		}
	}
}

// What a ready answer pays on its way, beside what net/http takes.
func BenchmarkQuick(b *testing.B) {
	f, err := front.New(front.Config{Listeners: []front.Listener{{Name: "http", Address: "127.0.0.1:0", Routes: []front.Route{{
		Prefix: "/q", Class: "ocsp", Lines: front.Lines{OnlyErrors: true}, Handler: http.NotFoundHandler(),
		Quick: func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusOK); return true },
	}}}}})
	if err != nil {
		b.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/q/hit", http.NoBody)
	w, site := httptest.NewRecorder(), f.Handler("http")
	b.ReportAllocs()
	for b.Loop() {
		site.ServeHTTP(w, r)
	}
}
