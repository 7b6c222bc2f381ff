package front

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// A Check asks one thing that we need in order to serve: the database, the
// device with the keys. It must end when its context does.
type Check struct {
	Name string // shown to probes: lower-case letters, digits, - and _
	Run  func(context.Context) error
}

// ReadinessConfig is what a Readiness is made of.
type ReadinessConfig struct {
	Checks  []Check
	Timeout time.Duration // for each check; 2 s
	Keep    time.Duration // how long a result answers further probes; 1 s
	Log     *slog.Logger  // nil: none. Told when a check changes its mind, and why
}

type phase int32

const (
	starting phase = iota
	serving
	draining
)

// A Readiness says whether requests should be sent to us: we serve, and all
// checks pass. Probes share one run of the checks, however many there are.
type Readiness struct {
	cfg    ReadinessConfig
	phase  atomic.Int32
	checks []*checkState

	turn chan struct{} // holds one token; who has it may use what is below
	last map[string]string
	at   time.Time
}

type checkState struct {
	Check
	running atomic.Bool // a check that hangs is not started again
	failed  bool        // last time; belongs to who has the turn
}

var (
	errCheckHangs = errors.New("the check of an earlier probe has not come back")
	checkName     = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)
)

// NewReadiness returns a Readiness that is not ready until a Front serves.
func NewReadiness(cfg ReadinessConfig) (*Readiness, error) {
	if cfg.Timeout <= 0 {
		cfg.Timeout = 2 * time.Second
	}
	if cfg.Keep <= 0 {
		cfg.Keep = time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	r := &Readiness{cfg: cfg, turn: make(chan struct{}, 1)}
	r.turn <- struct{}{}
	names := map[string]bool{}
	for _, c := range cfg.Checks {
		if !checkName.MatchString(c.Name) || c.Run == nil || names[c.Name] {
			return nil, fmt.Errorf("check %q needs a name of its own and a function", c.Name)
		}
		names[c.Name] = true
		r.checks = append(r.checks, &checkState{Check: c})
	}
	return r, nil
}

func (r *Readiness) set(p phase) {
	if r != nil {
		r.phase.Store(int32(p))
	}
}

// report is all that a probe is told. Why a check failed is in our log.
type report struct {
	Status string            `json:"status"` // ready, degraded, starting, draining or failed
	Checks map[string]string `json:"checks,omitempty"`
}

// ServeHTTP answers 200 if we are ready and 503 if not. Checks that the query
// excludes ("?exclude=keys", as often as needed) may fail: whoever asks has use
// for us without what they ask for.
func (r *Readiness) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	rep, ready := r.report(req.Context(), excluded(req.URL.Query()))
	text, err := json.Marshal(rep)
	if err != nil {
		plainAnswer(w, http.StatusInternalServerError, "internal error\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write(append(text, '\n')) // a probe that left is no news
}

// excluded are the checks that a query excludes. One that is not there excludes
// nothing, so that all replicas can be asked the same.
func excluded(q url.Values) []string {
	var names []string
	for _, list := range q["exclude"] {
		names = append(names, strings.Split(list, ",")...)
	}
	return names
}

func (r *Readiness) report(ctx context.Context, without []string) (rep report, ready bool) {
	switch phase(r.phase.Load()) {
	case starting:
		return report{Status: "starting"}, false
	case draining:
		return report{Status: "draining"}, false
	}
	select {
	case <-r.turn:
		defer func() { r.turn <- struct{}{} }()
	case <-ctx.Done():
		return report{Status: "failed"}, false
	}
	if r.last == nil || time.Since(r.at) >= r.cfg.Keep {
		r.run(ctx)
	}
	rep = report{Status: "ready", Checks: r.last}
	for name, result := range r.last {
		switch {
		case result == "ok":
		case !slices.Contains(without, name):
			return report{Status: "failed", Checks: r.last}, false
		default:
			rep.Status = "degraded"
		}
	}
	return rep, true
}

// run runs all checks at once and stores what they say. Its caller has the turn.
func (r *Readiness) run(ctx context.Context) {
	// The result is for others too: it must not fail because this probe hung up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Timeout)
	defer cancel()
	results := make([]<-chan error, len(r.checks))
	for i, c := range r.checks {
		results[i] = c.start(ctx)
	}
	last := make(map[string]string, len(r.checks))
	for i, c := range r.checks {
		var err error
		select {
		case err = <-results[i]:
		case <-ctx.Done():
			err = ctx.Err()
		}
		last[c.Name] = "ok"
		if err != nil {
			last[c.Name] = "failed"
		}
		r.tell(ctx, c, err)
	}
	r.last, r.at = last, time.Now()
}

// start runs the check by itself, so that one which ignores its context holds up
// nobody.
func (c *checkState) start(ctx context.Context) <-chan error {
	result := make(chan error, 1)
	if !c.running.CompareAndSwap(false, true) {
		result <- errCheckHangs
		return result
	}
	go func() {
		defer c.running.Store(false)
		result <- c.guarded(ctx)
	}()
	return result
}

// guarded keeps a check that panics from ending the process.
func (c *checkState) guarded(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("check panicked: %v", p)
		}
	}()
	return c.Run(ctx)
}

// tell logs a change, not each probe.
func (r *Readiness) tell(ctx context.Context, c *checkState, err error) {
	switch failed := err != nil; {
	case failed && !c.failed:
		r.cfg.Log.ErrorContext(ctx, "readiness check failed", "check", c.Name, "error", err)
	case !failed && c.failed:
		r.cfg.Log.InfoContext(ctx, "readiness check passes again", "check", c.Name)
	}
	c.failed = err != nil
}
