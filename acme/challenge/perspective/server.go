package perspective

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/gate"
)

// ServerConfig is what a Server is made of.
type ServerConfig struct {
	Name   string // as the callers know it
	Region Region

	// Validator and CAA look from here. They have bounds and policies of their
	// own: nothing that a caller sends says where to connect but the name.
	Validator acme.Validator
	CAA       acme.CAAChecker // nil: questions about CAA are not answered

	Timeout time.Duration // of one look, if the caller does not want it sooner; 15 s
	Gate    *gate.Gate    // turns to look, shared by callers by the name in their certificate

	Logger     *slog.Logger          // nil: silent
	Registerer prometheus.Registerer // nil: no metrics
}

// A Server answers those who ask what can be seen from here. It is to be served
// over TLS with clients' certificates, and answers nobody else.
type Server struct {
	cfg     ServerConfig
	answers *prometheus.CounterVec
	log     *slog.Logger
}

// NewServer makes a Server.
func NewServer(c ServerConfig) (*Server, error) {
	switch {
	case c.Name == "" || plain(c.Name, maxName) != c.Name:
		return nil, errors.New("perspective: it needs a name of plain characters")
	case !c.Region.known():
		return nil, fmt.Errorf("perspective: %q is no region", c.Region)
	case c.Validator == nil || c.Gate == nil:
		return nil, errors.New("perspective: it needs a validator and a gate")
	}
	if c.Timeout <= 0 {
		c.Timeout = 15 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: c, log: c.Logger, answers: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "secsy_perspective_answers_total",
		Help: "What callers were told, by kind of question: yes, no, malformed or busy.",
	}, []string{"kind", "outcome"})}
	if c.Registerer != nil {
		if err := c.Registerer.Register(s.answers); err != nil {
			return nil, fmt.Errorf("registering metrics of a perspective: %w", err)
		}
	}
	return s, nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	kind := ""
	switch r.URL.Path {
	case pathValidation:
		kind = "validation"
	case pathCAA:
		kind = "caa"
	default:
		refuse(w, http.StatusNotFound, "not found")
		return
	}
	// The listener sees to it; but this is what everything here rests on.
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || time.Now().After(r.TLS.PeerCertificates[0].NotAfter) {
		refuse(w, http.StatusForbidden, "a client's certificate is needed")
		return
	}
	outcome := s.serve(w, r, kind)
	s.answers.WithLabelValues(kind, outcome).Inc()
}

// serve answers one question, and says how that ended.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, kind string) string {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		refuse(w, http.StatusMethodNotAllowed, "method not allowed")
		return "malformed"
	}
	a, err := readAsk(w, r)
	if err == nil && (a.CAA != nil) != (kind == "caa") {
		err = errors.New("another question than the path says")
	}
	if err != nil {
		s.log.WarnContext(r.Context(), "a question that is none", "client", caller(r), "error", err)
		refuse(w, http.StatusBadRequest, "malformed: "+plain(err.Error(), maxDetail))
		return "malformed"
	}
	if kind == "caa" && s.cfg.CAA == nil {
		refuse(w, http.StatusNotImplemented, "CAA is not looked at here")
		return "malformed"
	}
	ctx, cancel := context.WithTimeout(r.Context(), min(s.cfg.Timeout, time.Duration(a.TimeoutMS)*time.Millisecond))
	defer cancel()
	release, err := s.cfg.Gate.Acquire(ctx, gate.Issuance, caller(r))
	if err != nil {
		wait := time.Second
		if g, ok := errors.AsType[*gate.Refused](err); ok {
			wait = max(wait, g.RetryAfter)
		}
		w.Header().Set("Retry-After", strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10))
		refuse(w, http.StatusServiceUnavailable, "busy")
		return "busy"
	}
	defer release()
	out := s.look(ctx, a)
	text, err := encode(out)
	if err != nil {
		s.log.ErrorContext(r.Context(), "encoding an answer", "id", a.ID, "error", err)
		refuse(w, http.StatusInternalServerError, "internal error")
		return "no"
	}
	w.Header().Set("Content-Type", jsonType)
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text) // a caller that left is no news
	if out.OK {
		return "yes"
	}
	return "no"
}

func readAsk(w http.ResponseWriter, r *http.Request) (ask, error) {
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != jsonType {
		return ask{}, errors.New("the content type is not " + jsonType)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	if err != nil {
		return ask{}, fmt.Errorf("reading: %w", err)
	}
	return decodeAsk(body)
}

// look goes and sees. Whatever happens there, it is an answer.
func (s *Server) look(ctx context.Context, a ask) (out answer) {
	begin := time.Now()
	out = answer{Version: version, ID: a.ID, Name: s.cfg.Name, Region: s.cfg.Region}
	var p *acme.Problem
	defer func() {
		if v := recover(); v != nil {
			s.log.ErrorContext(ctx, "panic while looking", "id", a.ID, "panic", v, "stack", string(debug.Stack()))
			p = &acme.Problem{Type: acme.ServerInternal, Detail: "the perspective failed inside"}
		}
		out.OK, out.Problem, out.TookMS = p == nil, told(p), time.Since(begin).Milliseconds()
		s.tell(ctx, a, out)
	}()
	if a.CAA != nil {
		q := *a.CAA
		_, p = s.cfg.CAA.CheckCAA(ctx, acme.CAAQuery{Name: q.Name, Wildcard: q.Wildcard, Method: q.Method, AccountURL: q.AccountURL})
		return out
	}
	v := *a.Validation
	rec, p2 := s.cfg.Validator.Validate(ctx, acme.Validation{
		Type: v.Type, Identifier: v.Identifier, Wildcard: v.Wildcard, Token: v.Token,
		KeyAuthorization: v.KeyAuthorization, AccountURL: v.AccountURL,
	})
	out.Addrs, p = seen(rec.Addrs), p2
	return out
}

func (s *Server) tell(ctx context.Context, a ask, out answer) {
	what, name, how := "validation", "", ""
	if a.CAA != nil {
		what, name, how = "caa", a.CAA.Name, string(a.CAA.Method)
	} else {
		name, how = a.Validation.Identifier.Value, string(a.Validation.Type)
	}
	attrs := []any{"kind", what, "id", a.ID, "name", name, "type", how, "ok", out.OK, "took_ms", out.TookMS}
	if out.Problem != nil {
		attrs = append(attrs, "problem", string(out.Problem.Type), "detail", out.Problem.Detail)
	}
	s.log.InfoContext(ctx, "looked", attrs...)
}

// caller is the name in the client's certificate, or its number if it has none.
func caller(r *http.Request) string {
	leaf := r.TLS.PeerCertificates[0]
	switch {
	case len(leaf.DNSNames) > 0:
		return plain(leaf.DNSNames[0], maxName)
	case leaf.Subject.CommonName != "":
		return plain(leaf.Subject.CommonName, maxName)
	}
	return hex.EncodeToString(leaf.SerialNumber.Bytes())
}

func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n")
}
