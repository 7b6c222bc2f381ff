package acme

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/secsy-pki/secsy-pki/peer"
)

type handler func(w http.ResponseWriter, r *http.Request) error

// An endpoint is one resource: what it does for each method.
type endpoint struct {
	name    string // for metrics
	pattern string
	methods map[string]handler
	// open is for what anybody may read and caches may keep: it has no nonce,
	// which would be another's from the cache.
	open bool
}

func (s *Server) endpoints() []endpoint {
	post := func(name, pattern string, h handler) endpoint {
		return endpoint{name: name, pattern: pattern, methods: map[string]handler{http.MethodPost: h}}
	}
	get := func(name, pattern string, h handler) endpoint {
		return endpoint{name: name, pattern: pattern, methods: map[string]handler{http.MethodGet: h, http.MethodHead: h}}
	}
	either := func(name, pattern string, h handler) endpoint {
		e := get(name, pattern, h)
		e.methods[http.MethodPost] = s.postAsGET(h)
		return e
	}
	open := func(e endpoint) endpoint { e.open = true; return e }
	star := open(get("starCertificate", "/star/{id}", s.openStarCertificate))
	star.methods[http.MethodPost] = s.starCertificate
	out := []endpoint{
		either("directory", "/directory", s.directory),
		either("newNonce", "/new-nonce", s.newNonce),
		get("help", "/"+helpPath, s.help),
		s.unpauseEndpoint(),
		open(get("renewalInfo", "/"+renewalInfoPath+"*", s.renewalInfo)),
		post("newAccount", "/new-account", s.newAccount),
		post("newOrder", "/new-order", s.newOrder),
		post("revokeCert", "/revoke-cert", s.revokeCert),
		post("keyChange", "/key-change", s.keyChange),
		post("account", "/account/{id}", s.account),
		post("orders", "/account/{id}/orders", s.listOrders),
		post("order", "/order/{id}", s.order),
		post("finalize", "/order/{id}/finalize", s.finalize),
		post("authorization", "/authz/{id}", s.authorization),
		post("challenge", "/challenge/{id}/{type}", s.challenge),
		post("certificate", "/cert/{id}", s.certificate),
		post("certificate", "/cert/{id}/{chain}", s.certificate),
		star,
	}
	if s.cfg.PreAuthorization {
		out = append(out, post("newAuthz", "/new-authz", s.newAuthz))
	}
	return out
}

// postAsGET answers what anybody may read to an account that signs for it, too:
// RFC 8555 §6.3 wants that of the directory and of newNonce.
func (s *Server) postAsGET(h handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if _, err := s.readRequest(r); err != nil {
			return err
		}
		return h(w, r)
	}
}

// Handler answers everything below BaseURL's path and Path.
func (s *Server) Handler() http.Handler {
	r := chi.NewRouter()
	for _, e := range s.endpoints() {
		r.Handle(s.root+e.pattern, s.serve(e))
	}
	none := endpoint{name: "none"}
	missing := s.serve(none)
	r.NotFound(missing)
	r.MethodNotAllowed(missing)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// Whatever router we are mounted in, our patterns are whole paths.
		r.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), chi.RouteCtxKey, nil)))
	})
}

// serve is what every answer has in common, and the one door for errors.
func (s *Server) serve(e endpoint) http.HandlerFunc {
	allow := allowed(e.methods)
	return func(w http.ResponseWriter, r *http.Request) {
		out := &answer{ResponseWriter: w}
		defer s.recovered(out, r, e.name)
		err := s.common(w.Header(), e.open && r.Method != http.MethodPost)
		if err == nil {
			err = s.dispatch(out, r, e, allow)
		}
		outcome := "ok"
		if err != nil {
			outcome = s.fail(out, r, err)
		}
		s.metrics.requests.WithLabelValues(e.name, outcome).Inc()
	}
}

func (s *Server) dispatch(w http.ResponseWriter, r *http.Request, e endpoint, allow string) error {
	if e.methods == nil {
		return &Problem{Type: Malformed, Status: http.StatusNotFound, Detail: "there is no such resource"}
	}
	if r.Method == http.MethodOptions {
		return preflight(w, allow)
	}
	h := e.methods[r.Method]
	if h == nil {
		w.Header().Set("Allow", allow)
		return &Problem{Type: Malformed, Status: http.StatusMethodNotAllowed, Detail: "this resource answers " + allow + " only"}
	}
	r.Body = http.MaxBytesReader(w, r.Body, s.cfg.MaxBody)
	return h(w, r)
}

func allowed(methods map[string]handler) string {
	names := []string{http.MethodOptions}
	for m := range methods {
		names = append(names, m)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// commonHeader are the headers of every answer (RFC 8555 §7.1), without the nonce.
func commonHeader(directory string) []headerLine {
	return []headerLine{
		{"Cache-Control", []string{"no-store"}},
		{"X-Content-Type-Options", []string{"nosniff"}},
		{"Access-Control-Allow-Origin", []string{"*"}},
		{"Access-Control-Expose-Headers", []string{"Link, Location, Replay-Nonce, Retry-After"}},
		{"Link", []string{link(directory, "index")}},
	}
}

// common sets the headers of every answer, errors included (RFC 8555 §6.5).
// They are set before the status line is written.
func (s *Server) common(h http.Header, open bool) error {
	for _, l := range s.header {
		h[l.name] = l.values
	}
	if open {
		return nil
	}
	n, err := s.nonces.issue()
	if err != nil {
		return fmt.Errorf("issuing nonce: %w", err)
	}
	h.Set("Replay-Nonce", n)
	return nil
}

// preflight lets browsers send application/jose+json from other origins.
func preflight(w http.ResponseWriter, allow string) error {
	h := w.Header()
	h.Set("Allow", allow)
	h.Set("Access-Control-Allow-Methods", allow)
	h.Set("Access-Control-Allow-Headers", "Content-Type")
	h.Set("Access-Control-Max-Age", "86400")
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// link writes one Link header: some clients read one link per line only.
func link(url, rel string) string { return "<" + url + ">;rel=\"" + rel + "\"" }

// An answer knows whether its header is out.
type answer struct {
	http.ResponseWriter
	begun bool
}

func (a *answer) WriteHeader(status int) {
	a.begun = true
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(b []byte) (int, error) {
	a.begun = true
	return a.ResponseWriter.Write(b)
}

func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// recovered turns a panic into the answer of any other fault of ours.
func (s *Server) recovered(w *answer, r *http.Request, endpoint string) {
	v := recover()
	if v == nil {
		return
	}
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(v)
	}
	s.log.ErrorContext(r.Context(), "panic in ACME handler", slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
	s.metrics.requests.WithLabelValues(endpoint, s.fail(w, r, fmt.Errorf("panic: %v", v))).Inc()
}

// fail is the one place where errors become answers (RFC 8555 §6.7). It
// returns the type of the problem.
func (s *Server) fail(w *answer, r *http.Request, err error) string {
	p := translate(err)
	s.logProblem(r, p, err)
	peer.Annotate(r.Context(), "problem", string(p.Type))
	if w.begun {
		return string(p.Type)
	}
	h := w.Header()
	if p.RetryAfter > 0 {
		h.Set("Retry-After", seconds(p.RetryAfter))
	}
	if p.Type == RateLimited {
		h.Add("Link", s.helpLink())
	}
	if p.Location != "" {
		h.Set("Location", p.Location)
	}
	body, err := json.Marshal(wireProblemOf(p, true))
	if err != nil {
		s.log.ErrorContext(r.Context(), "encoding problem", slog.Any("error", err))
	}
	h.Set("Content-Type", typeProblem)
	w.WriteHeader(p.status())
	_, _ = w.Write(body)
	return string(p.Type)
}

func (s *Server) logProblem(r *http.Request, p *Problem, err error) {
	level := slog.LevelDebug
	gone := r.Context().Err() != nil // the client left; that is no fault of ours
	if p.status() >= http.StatusInternalServerError && p.Type != RateLimited && !gone {
		level = slog.LevelError
	}
	s.log.LogAttrs(r.Context(), level, "ACME request refused",
		slog.String("path", r.URL.Path), slog.String("type", string(p.Type)), slog.Any("error", err),
		slog.String("request", peer.From(r.Context()).RequestID))
}

// seconds writes a Retry-After. RFC 9110 has dates, too, which clients get wrong.
func seconds(d time.Duration) string {
	return fmt.Sprint(min(max(int64((d+time.Second-1)/time.Second), 1), maxRetryAfter))
}

func pathValue(r *http.Request, name string) string { return chi.URLParam(r, name) }
