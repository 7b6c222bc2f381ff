package front_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/front"
)

func readiness(t *testing.T, log *logbook, checks ...front.Check) *front.Readiness {
	t.Helper()
	r, err := front.NewReadiness(front.ReadinessConfig{Checks: checks, Log: log.logger()})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

type verdict struct {
	code   int
	Status string
	Checks map[string]string
}

func probe(t *testing.T, h http.Handler) (verdict, string) {
	t.Helper()
	return probeAt(t, h, "/readyz")
}

func probeAt(t *testing.T, h http.Handler, target string) (verdict, string) {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil))
	v := verdict{code: rec.Code}
	if err := json.Unmarshal(rec.Body.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	return v, rec.Body.String()
}

func TestNotReadyBeforeServing(t *testing.T) {
	t.Parallel()
	r := readiness(t, newLogbook())
	if v, _ := probe(t, r); v.code != 503 || v.Status != "starting" {
		t.Errorf("verdict %+v, want 503 starting", v)
	}
}

func TestAFailedCheckIsNamedAndItsReasonIsNot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newLogbook()
		var broken atomic.Bool
		broken.Store(true)
		r := readiness(t, log,
			front.Check{Name: "store", Run: func(context.Context) error { return nil }},
			front.Check{Name: "signer", Run: func(context.Context) error {
				if broken.Load() {
					return errors.New("pin of slot 7 is wrong")
				}
				return nil
			}})
		front.SetServingForTest(r)
		for range 3 {
			v, text := probe(t, r)
			if v.code != 503 || v.Checks["store"] != "ok" || v.Checks["signer"] != "failed" || strings.Contains(text, "slot") {
				t.Errorf("verdict %s", text)
			}
			time.Sleep(2 * time.Second)
		}
		if n := strings.Count(log.text(), "slot 7"); n != 1 {
			t.Errorf("the reason is logged %d times, want once", n)
		}
		broken.Store(false)
		if v, text := probe(t, r); v.code != 200 || v.Status != "ready" {
			t.Errorf("verdict %s", text)
		}
		if !strings.Contains(log.text(), "passes again") {
			t.Error("recovery is not logged")
		}
	})
}

// A probe that has use for us without the keys says so; it is told the truth all
// the same, and nobody else is told anything else for it.
func TestAProbeMayDoWithoutSomeChecks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := map[string]bool{}
		var checks []front.Check
		for _, name := range []string{"crl", "database", "keys"} {
			checks = append(checks, front.Check{Name: name, Run: func(context.Context) error {
				if broken[name] {
					return errors.New("broken")
				}
				return nil
			}})
		}
		r := readiness(t, newLogbook(), checks...)
		front.SetServingForTest(r)
		for _, c := range []struct {
			broken, target string
			code           int
			status         string
		}{
			{"", "/readyz?exclude=keys", 200, "ready"},
			{"keys", "/readyz", 503, "failed"},
			{"keys", "/readyz?exclude=keys", 200, "degraded"},
			{"keys", "/readyz?exclude=absent", 503, "failed"},
			{"keys", "/readyz?exclude=", 503, "failed"},
			{"crl", "/readyz?exclude=keys", 503, "failed"},
			{"crl", "/readyz?exclude=keys,crl", 200, "degraded"},
			{"crl", "/readyz?exclude=keys&exclude=crl", 200, "degraded"},
		} {
			time.Sleep(2 * time.Second) // longer than a result is kept
			clear(broken)
			broken[c.broken] = true
			v, text := probeAt(t, r, c.target)
			if v.code != c.code || v.Status != c.status || c.broken != "" && v.Checks[c.broken] != "failed" {
				t.Errorf("%s while %q is broken: %d %s", c.target, c.broken, v.code, text)
			}
		}
	})
}

func TestAHangingCheckFailsInTimeAndIsStartedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var started atomic.Int32
		hang := make(chan struct{})
		r := readiness(t, newLogbook(),
			front.Check{Name: "deaf", Run: func(context.Context) error {
				started.Add(1)
				<-hang
				return nil
			}})
		front.SetServingForTest(r)
		for range 5 {
			start := time.Now()
			if v, text := probe(t, r); v.code != 503 || v.Checks["deaf"] != "failed" {
				t.Errorf("verdict %s", text)
			}
			if took := time.Since(start); took > 2*time.Second {
				t.Errorf("the probe took %s", took)
			}
			time.Sleep(2 * time.Second)
		}
		if n := started.Load(); n != 1 {
			t.Errorf("the hanging check was started %d times", n)
		}
		close(hang)
		synctest.Wait()
		if v, text := probe(t, r); v.code != 200 {
			t.Errorf("after it came back: %s", text)
		}
	})
}

func TestProbesShareOneRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		r := readiness(t, newLogbook(), front.Check{Name: "store", Run: func(context.Context) error {
			runs.Add(1)
			time.Sleep(500 * time.Millisecond)
			return nil
		}})
		front.SetServingForTest(r)
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if v, text := probe(t, r); v.code != 200 {
					t.Errorf("verdict %s", text)
				}
			})
		}
		wg.Wait()
		if n := runs.Load(); n != 1 {
			t.Errorf("%d runs for 100 probes at once, want 1", n)
		}
	})
}

func TestAPanickingCheckIsAFailedOne(t *testing.T) {
	t.Parallel()
	r := readiness(t, newLogbook(), front.Check{Name: "bug", Run: func(context.Context) error { panic("x") }})
	front.SetServingForTest(r)
	if v, text := probe(t, r); v.code != 503 || v.Checks["bug"] != "failed" {
		t.Errorf("verdict %s", text)
	}
}

func TestChecksNeedNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	ok := func(context.Context) error { return nil }
	for _, checks := range [][]front.Check{
		{{Name: "", Run: ok}}, {{Name: "A b", Run: ok}}, {{Name: "a"}}, {{Name: "a", Run: ok}, {Name: "a", Run: ok}},
	} {
		if _, err := front.NewReadiness(front.ReadinessConfig{Checks: checks}); err == nil {
			t.Errorf("checks %v were taken", checks)
		}
	}
}

func TestOperatorRoutesAnswerProbesWithoutALine(t *testing.T) {
	t.Parallel()
	ready := readiness(t, newLogbook())
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "secsy_test_total"}))
	h := open(t, front.Config{Readiness: ready, Listeners: []front.Listener{{Operator: true, Routes: front.OperatorRoutes(ready, reg, nil)}}})
	h.log.next(t, "listening")
	// Serve says "ready" when all listeners run, which is a moment later.
	for {
		if res, _ := ask(t, h.address(), "/readyz"); res.StatusCode == 200 {
			break
		}
	}
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": `{"status":"ready"}` + "\n", "/metrics": "secsy_test_total 0"} {
		if res, got := ask(t, h.address(), path); res.StatusCode != 200 || !strings.Contains(got, want) {
			t.Errorf("%s: %d %q, want %q", path, res.StatusCode, got, want)
		}
	}
	if res, _ := ask(t, h.address(), "/healthz/x"); res.StatusCode != 404 {
		t.Errorf("/healthz/x: %d, want 404", res.StatusCode)
	}
	if line := h.log.next(t, "request"); line["path"] != "/healthz/x" {
		t.Errorf("a probe is logged: %v", line)
	}
	got := say(t, h.address(), "POST /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 405") || !strings.Contains(got, "Allow: GET, HEAD") {
		t.Errorf("POST: %q, want 405", got)
	}
}
