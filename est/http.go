package est

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/cms"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/peer"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// The media types of RFC 7030. That of /cacerts has no parameter, as there are
// clients (BouncyCastle) that compare all of it.
const (
	typeText       = "text/plain; charset=utf-8"
	typeRequest    = "application/pkcs10"
	typeCACerts    = "application/pkcs7-mime"
	typeCert       = "application/pkcs7-mime; smime-type=certs-only"
	typeSealedKey  = "application/pkcs7-mime; smime-type=server-generated-key"
	typeKey        = "application/pkcs8"
	typeAttributes = "application/csrattrs"
)

// cacheFor is how long the reads may be kept by caches.
const cacheFor = "max-age=300"

// A file is an answer that is made before anybody asks, in both spellings.
type file struct {
	contentType string
	lines, line []byte
	etags       [2]string
}

func newFile(contentType string, der []byte) file {
	if len(der) == 0 {
		return file{}
	}
	f := file{contentType: contentType, lines: encode(der, true), line: encode(der, false)}
	for i, b := range [][]byte{f.lines, f.line} {
		sum := sha256.Sum256(b)
		f.etags[i] = `"` + hex.EncodeToString(sum[:12]) + `"`
	}
	return f
}

// A refusal is an answer in HTTP's words. Its text is constant, or that of the CA.
type refusal struct {
	code int
	why  string // a label of metrics
	text string
}

func (r refusal) Error() string { return "est: " + r.text }

var (
	errUnknown    = refusal{http.StatusNotFound, "unknown", "there is no such EST operation"}
	errMethod     = refusal{http.StatusMethodNotAllowed, "method", "cacerts and csrattrs take GET, all others POST"}
	errFullCMC    = refusal{http.StatusNotImplemented, "unsupported", "full CMC is not implemented: use simpleenroll"}
	errNoKeys     = refusal{http.StatusNotImplemented, "unsupported", "no keys are generated here: use simpleenroll"}
	errTLS        = refusal{http.StatusForbidden, "plain", "EST is for TLS"}
	errUnproven   = refusal{http.StatusUnauthorized, "unproven", "credentials are needed"}
	errForbidden  = refusal{http.StatusForbidden, "denied", "this may not be had"}
	errMalformed  = refusal{http.StatusBadRequest, "malformed", "the body is not one PKCS #10 request in base64 whose signature holds"}
	errForwarded  = refusal{http.StatusBadRequest, "malformed", "Client-Cert is not one certificate as of RFC 9440"}
	errBinding    = refusal{http.StatusBadRequest, "binding", "the challengePassword is not the binding of this TLS connection"}
	errSealing    = refusal{http.StatusBadRequest, "sealing", "the key can't be sealed as the request says: the asymmetric identifier must be that of the RSA certificate of this connection"}
	errType       = refusal{http.StatusUnsupportedMediaType, "type", "Content-Type must be " + typeRequest}
	errTooLong    = refusal{http.StatusRequestEntityTooLarge, "long", "the request is too long"}
	errSlow       = refusal{http.StatusRequestTimeout, "slow", "the request did not come in time"}
	errBusy       = refusal{http.StatusServiceUnavailable, "busy", "busy: come back later"}
	errTooMany    = refusal{http.StatusTooManyRequests, "rate_limited", "too many requests"}
	errInternal   = refusal{http.StatusInternalServerError, "fault", "internal error"}
	errClientLeft = refusal{http.StatusServiceUnavailable, "left", "too late"}
)

func (s *Server) serve(w http.ResponseWriter, r *http.Request) error {
	label, operation, ok := s.route(r.URL.Path)
	if !ok {
		return errUnknown
	}
	e := s.endpoints[label]
	if operation == "cacerts" || operation == "csrattrs" {
		switch {
		case e == nil:
			return errUnknown
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			return errMethod
		case operation == "cacerts":
			return s.send(w, r, e.cacerts)
		case s.forwarded(r):
			return s.send(w, r, e.through)
		}
		return s.send(w, r, e.attrs)
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		return errMethod
	}
	if operation == "fullcmc" {
		return errFullCMC
	}
	return s.enrol(w, r, label, operation)
}

// route finds label and operation in a path. The label stands after the well-known
// part (RFC 7030 §3.2.2), or before it, where there are clients (strongSwan) that
// can put nothing elsewhere.
func (s *Server) route(path string) (label, operation string, ok bool) {
	before, after, found := strings.Cut(path, wellKnown+"/")
	if !found {
		return "", "", false
	}
	before = strings.Trim(before, "/")
	label, operation, found = strings.Cut(after, "/")
	switch {
	case !found:
		label, operation = before, label
	case before != "":
		return "", "", false
	}
	if label == "" {
		label = s.cfg.Default
	}
	return label, operation, isOperation(operation) && label != ""
}

func isOperation(s string) bool {
	for _, o := range operations {
		if s == o {
			return true
		}
	}
	return false
}

// send writes what was made before. To a GET the lines are those of the client's
// habit: the one that can't have any (strongSwan) tells no name.
func (s *Server) send(w http.ResponseWriter, r *http.Request, f file) error {
	h := w.Header()
	h.Set("Cache-Control", cacheFor)
	h.Set("Vary", "User-Agent")
	if f.line == nil {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	body, etag := f.lines, f.etags[0]
	if r.UserAgent() == "" {
		body, etag = f.line, f.etags[1]
	}
	h.Set("ETag", etag)
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	writeBase64(w, f.contentType, body)
	return nil
}

// writeBase64 says how the body is encoded: there are clients that insist, though
// RFC 8951 has nobody look.
func writeBase64(w http.ResponseWriter, contentType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Transfer-Encoding", "base64")
	write(w, http.StatusOK, body)
}

// write sends a body in one piece with its length, whatever the answer is: there
// are clients (strongSwan, old BouncyCastle) that read nothing else.
func write(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	_, _ = w.Write(body) // a client that left is no news
}

// read returns the body of a request.
func read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if t := r.Header.Get("Content-Type"); t != "" {
		if media, _, err := mime.ParseMediaType(t); (err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter)) || media != typeRequest {
			return nil, errType
		}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		return body, nil
	}
	if _, long := errors.AsType[*http.MaxBytesError](err); long {
		return nil, errTooLong
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, errSlow
	}
	return nil, fmt.Errorf("%w: reading it: %w", errMalformed, err)
}

// answer sends a certificate, or when to come back.
func (s *Server) answer(w http.ResponseWriter, res Result, lines bool) error {
	w.Header().Set("Cache-Control", "no-store")
	if res.Certificate == nil {
		s.pending(w, res)
		return nil
	}
	der, err := cms.CertsOnly([][]byte{res.Certificate}, nil)
	if err != nil {
		return fmt.Errorf("wrapping a certificate: %w", err)
	}
	writeBase64(w, typeCert, encode(der, lines))
	return nil
}

// pending is RFC 7030 §4.2.3: in seconds, as there are clients that read no date.
func (s *Server) pending(w http.ResponseWriter, res Result) {
	h := w.Header()
	h.Set("Retry-After", seconds(res.RetryAfter))
	h.Set("Content-Type", typeText)
	write(w, http.StatusAccepted, []byte("the request waits: send it again later\n"))
}

// refuse turns an error into an answer.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	said := s.said(r.Context(), err)
	h := w.Header()
	switch said.code {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Basic realm="EST", charset="UTF-8"`)
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		h.Set("Retry-After", seconds(retryAfter(err)))
	}
	s.metrics.refusals.WithLabelValues(said.why).Inc()
	peer.Annotate(r.Context(), "est", said.why)
	h.Set("Content-Type", typeText)
	h.Set("Cache-Control", "no-store")
	write(w, said.code, []byte(said.text+"\n"))
}

func (s *Server) said(ctx context.Context, err error) refusal {
	if known, ok := errors.AsType[refusal](err); ok {
		return known
	}
	if errors.Is(err, ErrDenied) {
		return errForbidden
	}
	if g, ok := errors.AsType[*gate.GovernorRefused](err); ok && g.Reason == gate.GovernorPerClient {
		return errTooMany
	}
	if _, ok := errors.AsType[*limited](err); ok {
		return errTooMany
	}
	if passing(err) {
		return errBusy
	}
	if r, ok := errors.AsType[*ca.Refusal](err); ok {
		if r.Code == ca.Forbidden {
			return errForbidden
		}
		return refusal{http.StatusBadRequest, "refused", r.Detail}
	}
	if ctx.Err() != nil { // a client that left is no fault of ours
		return errClientLeft
	}
	s.faults.report(ctx, err)
	return errInternal
}

// passing reports whether err will be over soon.
func passing(err error) bool {
	if _, ok := errors.AsType[*BusyError](err); ok {
		return true
	}
	if r, ok := errors.AsType[*ca.Refusal](err); ok {
		return r.Code == ca.Busy
	}
	if _, ok := errors.AsType[*gate.Refused](err); ok {
		return true
	}
	if _, ok := errors.AsType[*gate.GovernorRefused](err); ok {
		return true
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// retryAfter is when to come back.
func retryAfter(err error) time.Duration {
	if busy, ok := errors.AsType[*BusyError](err); ok {
		return busy.RetryAfter
	}
	if r, ok := errors.AsType[*ca.Refusal](err); ok {
		return r.RetryAfter
	}
	if g, ok := errors.AsType[*gate.Refused](err); ok {
		return g.RetryAfter
	}
	if g, ok := errors.AsType[*gate.GovernorRefused](err); ok {
		return g.RetryAfter
	}
	if l, ok := errors.AsType[*limited](err); ok {
		return time.Duration(l.Seconds()) * time.Second
	}
	return busyRetry
}

// seconds rounds up, to one at least.
func seconds(d time.Duration) string {
	return strconv.FormatInt(max(1, int64((d+time.Second-1)/time.Second)), 10)
}

// limited is the error of a request whose source or principal has sent too many.
type limited struct{ ratelimit.Decision }

func (l *limited) Error() string { return "est: requests are over the limit of " + l.Tier.String() }

// Refuse tells a client that is over its limit when to come back, and reads nothing.
func (s *Server) Refuse(w http.ResponseWriter, r *http.Request, d ratelimit.Decision) {
	s.refuse(w, r, &limited{d})
}

// faultEvery is how often faults of ours are logged.
const faultEvery = 5 * time.Second

// faults writes at most one line every faultEvery, with the count of those left out.
type faults struct {
	log *slog.Logger

	mu     sync.Mutex // guards what follows
	last   time.Time
	missed int
}

func (f *faults) report(ctx context.Context, err error) {
	f.mu.Lock()
	now, missed := time.Now(), f.missed
	if now.Sub(f.last) < faultEvery {
		f.missed++
		f.mu.Unlock()
		return
	}
	f.missed, f.last = 0, now
	f.mu.Unlock()
	f.log.ErrorContext(ctx, "serving EST", "error", err, "unlogged_before", missed)
}
