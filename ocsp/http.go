package ocsp

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/peer"
)

const (
	requestType  = "application/ocsp-request"
	responseType = "application/ocsp-response"
	// maxPath bounds a GET's path: maxRequest in base64, every character escaped twice.
	maxPath = maxRequest * 4 / 3 * 5
)

// Handler serves GET, HEAD and POST below Config.Path. It reads the request
// line as sent and must stand before anything that cleans or redirects paths,
// for base64 holds slashes of its own.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.Quick(w, r) {
			return
		}
		if err := s.serve(w, r); err != nil {
			s.refuse(w, r, err)
		}
	})
}

// Quick answers a GET or HEAD of which every octet is known, from memory, or does
// nothing and reports false. It reads no body, waits for nobody and needs nothing
// of the request's context.
func (s *Server) Quick(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	now := s.cfg.Now()
	a := s.spelled(r.RequestURI, now)
	if a == nil {
		return false
	}
	s.sendShared(w, r, a, now)
	return true
}

// spelled returns the answer to a request that was answered before; nil: it has
// to be read.
func (s *Server) spelled(spelling string, now time.Time) *answer {
	if !s.view.fresh(now) {
		return nil
	}
	a := s.cache.bySpelling(spelling)
	if a == nil || !a.valid(now) || a.due(now) {
		return nil
	}
	s.metrics.fromMemory.Inc()
	return a
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) error {
	spelling, der, err := s.read(w, r)
	if err != nil {
		return err
	}
	if r.Method == http.MethodPost {
		if a := s.spelled(spelling, s.cfg.Now()); a != nil {
			s.sendShared(w, r, a, s.cfg.Now())
			return nil
		}
	}
	req, err := parseRequest(der)
	if err != nil {
		return err
	}
	a, cacheable, err := s.answer(r.Context(), req)
	if err != nil {
		return err
	}
	if cacheable {
		s.cache.spell(a, strings.Clone(spelling))
	}
	return s.send(w, r, a, cacheable)
}

// errMethod and errMediaType are the refusals that HTTP has its own words for.
var (
	errMethod    = errors.New("ocsp: method not allowed")
	errMediaType = errors.New("ocsp: not " + requestType)
)

// read returns the DER request, by whichever method it came, and how it was
// spelled. No path is spelled like a body, which begins with a SEQUENCE.
func (s *Server) read(w http.ResponseWriter, r *http.Request) (spelling string, der []byte, err error) {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		der, err = decodePath(s.encoded(r.RequestURI))
		return r.RequestURI, der, err
	case http.MethodPost:
		der, err = readBody(w, r)
		return string(der), der, err
	default:
		return "", nil, errMethod
	}
}

// encoded cuts the request out of a request target: what follows Config.Path,
// without query, in origin or absolute form (RFC 9112 §3.2).
func (s *Server) encoded(target string) string {
	target, _, _ = strings.Cut(target, "?")
	if _, rest, absolute := strings.Cut(target, "://"); absolute && !strings.HasPrefix(target, "/") {
		_, path, _ := strings.Cut(rest, "/")
		target = "/" + path
	}
	return strings.TrimPrefix(target, s.cfg.Path)
}

// decodePath reads base64 in any spelling that clients are known to send: with
// more than one slash before it, "+", "/" and "=" bare or escaped, once or
// twice, the URL alphabet, without padding.
func decodePath(path string) ([]byte, error) {
	if len(path) > maxPath {
		return nil, malformed("path too long")
	}
	for range 2 {
		unescaped, err := url.PathUnescape(path) // leaves "+" alone
		if err != nil {
			return nil, malformed("escapes")
		}
		if der, err := decodeBase64(unescaped); err == nil {
			return der, nil
		}
		path = unescaped
	}
	return nil, malformed("base64")
}

var toStd = strings.NewReplacer("-", "+", "_", "/", " ", "+")

func decodeBase64(s string) ([]byte, error) {
	s = strings.TrimRight(strings.TrimLeft(s, "/"), "=")
	if strings.ContainsAny(s, "\r\n") { // which the decoder would skip
		return nil, base64.CorruptInputError(0)
	}
	return base64.RawStdEncoding.DecodeString(toStd.Replace(s))
}

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if ct := r.Header.Get("Content-Type"); ct != "" && ct != requestType {
		if t, _, err := mime.ParseMediaType(ct); err != nil || t != requestType {
			return nil, errMediaType
		}
	}
	body, err := readAll(w, r)
	if err != nil {
		return nil, fmt.Errorf("%w: reading body: %w", malformedRequest, err)
	}
	return body, nil
}

// readAll reads a body of at most maxRequest octets, at once if it says how long
// it is: the server lets nobody read more than that.
func readAll(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if n := r.ContentLength; n > 0 && n <= maxRequest {
		body := make([]byte, n)
		_, err := io.ReadFull(r.Body, body)
		return body, err
	}
	return io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
}

// send writes a signed response, unless its time has passed meanwhile.
func (s *Server) send(w http.ResponseWriter, r *http.Request, a *answer, cacheable bool) error {
	now := s.cfg.Now()
	if !a.valid(now) {
		return fmt.Errorf("%w: the response ended at %v", tryLater, a.ends)
	}
	if cacheable {
		s.sendShared(w, r, a, now)
		return nil
	}
	s.told(a).Inc()
	h := w.Header()
	h["Content-Type"] = typeValue
	h["Content-Length"] = a.header.length
	h["Cache-Control"] = noStoreValue
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(a.body) // a client that left is no news
	return nil
}

// sendShared writes a response that is valid now and that caches may keep, as
// RFC 9919 §7.2 has it.
func (s *Server) sendShared(w http.ResponseWriter, r *http.Request, a *answer, now time.Time) {
	h := w.Header()
	h["Etag"] = a.header.etag
	h["Last-Modified"] = a.header.lastModified
	h["Expires"] = a.header.expires
	h["Cache-Control"] = a.header.maxAge(int64(min(a.nextUpdate.Sub(now), s.cfg.MaxAge) / time.Second))
	if r.Method != http.MethodPost && unchanged(r.Header, a) {
		s.metrics.unchanged.Inc()
		w.WriteHeader(http.StatusNotModified)
		return
	}
	s.told(a).Inc()
	h["Content-Type"] = typeValue
	h["Content-Length"] = a.header.length
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(a.body) // as above
}

// told counts answers that say what a says.
func (s *Server) told(a *answer) prometheus.Counter {
	if a.status.revoked() {
		return s.metrics.revoked
	}
	return s.metrics.good
}

// unchanged evaluates RFC 9110 §13.2.2: If-None-Match, and only without it
// If-Modified-Since.
func unchanged(h http.Header, a *answer) bool {
	if tags, ok := h["If-None-Match"]; ok {
		return matches(strings.Join(tags, ","), a.etag)
	}
	date := h["If-Modified-Since"]
	if len(date) == 0 {
		return false
	}
	since, err := http.ParseTime(date[0])
	return err == nil && !a.producedAt.After(since)
}

// matches compares weakly (RFC 9110 §8.8.3.2). Our tags hold no comma.
func matches(list, etag string) bool {
	for tag := range strings.SplitSeq(list, ",") {
		tag = strings.TrimSpace(tag)
		if tag == "*" || strings.TrimPrefix(tag, "W/") == etag {
			return true
		}
	}
	return false
}

// busyRetry is when to come back to a busy device that doesn't say.
const busyRetry = 2 * time.Second

// refuse turns an error into its answer. To clients anything but 200 is a
// network failure, so OCSP's own refusals are 200, and never kept. Only what
// would be answered a little later has HTTP's own word, which says when.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if over, ok := errors.AsType[*limited](err); ok {
		s.Refuse(w, r, over.Decision)
		return
	}
	if passing(err) {
		s.count(tryLater.String())
		tellLater(w, http.StatusServiceUnavailable, wholeSeconds(retryAfter(err)))
		return
	}
	code, status := http.StatusOK, internalError
	switch known, ok := errors.AsType[responseStatus](err); {
	case errors.Is(err, errMethod):
		w.Header().Set("Allow", "GET, HEAD, POST")
		code, status = http.StatusMethodNotAllowed, malformedRequest
	case errors.Is(err, errMediaType):
		code, status = http.StatusUnsupportedMediaType, malformedRequest
	case ok:
		status = known
	case errors.Is(err, context.DeadlineExceeded):
		status = tryLater
		s.faults.report(r.Context(), "waiting for the store or a signature", err)
	case errors.Is(err, errUnsigned):
	case r.Context().Err() == nil: // a client that left is no fault of ours
		s.faults.report(r.Context(), "answering a request", err)
	}
	s.count(status.String())
	peer.Annotate(r.Context(), "ocsp", status.String())
	h := w.Header()
	h.Set("Content-Type", responseType)
	h.Set("Cache-Control", "no-store")
	write(w, code, status.der())
}

// retryAfter is when to come back to a device that err calls busy.
func retryAfter(err error) time.Duration {
	if busy, ok := errors.AsType[*keys.BusyError](err); ok {
		return busy.RetryAfter
	}
	return busyRetry
}

// wholeSeconds rounds up.
func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

func (s *Server) count(result string) { s.metrics.answers.WithLabelValues(result).Inc() }

// write sends a whole body. A client that left in between is not an error.
func write(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	_, _ = w.Write(body)
}
