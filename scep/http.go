package scep

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/cms"
	"github.com/secsy-pki/secsy-pki/enrol"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/peer"
)

// The media types of RFC 8894.
const (
	typeText    = "text/plain; charset=utf-8"
	typeCACerts = "application/x-x509-ca-ra-cert"
	typeNextCA  = "application/x-x509-next-ca-cert"
	typeMessage = "application/x-pki-message"
)

// cacheFor is how long the reads may be kept by caches: not long, as a registration
// authority may have to be replaced at once.
const cacheFor = "max-age=300"

// A file is an answer that is made before anybody asks.
type file struct {
	contentType, etag string
	body              []byte
}

func newFile(contentType string, body []byte) file {
	sum := sha256.Sum256(body)
	return file{contentType, `"` + hex.EncodeToString(sum[:12]) + `"`, body}
}

// A refusal is what HTTP has its own words for. Its text is constant.
type refusal struct {
	code int
	text string
}

func (r refusal) Error() string { return "scep: " + r.text }

var (
	errUnknown   = refusal{http.StatusNotFound, "there is no such SCEP endpoint"}
	errOperation = refusal{http.StatusBadRequest, "operation must be GetCACaps, GetCACert, GetNextCACert or PKIOperation"}
	errNoNext    = refusal{http.StatusNotFound, "there is no next CA"}
	errMethod    = refusal{http.StatusMethodNotAllowed, "GET and POST are the methods of SCEP"}
	errMalformed = refusal{http.StatusBadRequest, "this is no pkiMessage"}
	errTooLong   = refusal{http.StatusRequestEntityTooLarge, "the message is too long"}
	errSlow      = refusal{http.StatusRequestTimeout, "the message did not come in time"}
)

// Handler serves GET, HEAD and POST at and below Config.Path. It reads the request
// line as sent, as a message in it is base64, whose "+" and "/" come in any spelling.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.serve(w, r); err != nil {
			s.refuse(w, r, err)
		}
	})
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) error {
	e := s.endpoint(r.URL.EscapedPath())
	if e == nil {
		return errUnknown
	}
	get := r.Method == http.MethodGet || r.Method == http.MethodHead
	if !get && r.Method != http.MethodPost {
		return errMethod
	}
	operation, message := query(r.URL.RawQuery)
	if operation == "PKIOperation" {
		return s.pkiOperation(w, r, e, message)
	}
	if !get {
		return errOperation
	}
	switch operation {
	case "GetCACaps":
		return s.send(w, r, e.caps)
	case "GetCACert":
		ra, err := e.ready()
		if err != nil {
			return err
		}
		return s.send(w, r, ra.caCert[e])
	case "GetNextCACert":
		if len(e.Next) == 0 {
			return errNoNext
		}
		ra, err := e.ready()
		if err != nil {
			return err
		}
		return s.send(w, r, ra.next[e])
	}
	return errOperation
}

// endpoint finds who is meant by a path: the first part after Config.Path, whatever
// follows, as clients put "/pkiclient.exe" and the like there.
func (s *Server) endpoint(path string) *endpoint {
	rest := strings.TrimPrefix(strings.TrimPrefix(path, s.cfg.Path), "/")
	label, _, _ := strings.Cut(rest, "/")
	if e := s.endpoints[label]; e != nil {
		return e
	}
	// Nobody's label with nobody below it may be such a suffix of the default's.
	if label == "" || strings.Contains(label, ".") || label == "cgi-bin" {
		return s.endpoints[s.cfg.Default]
	}
	return nil
}

// ready returns the registrar, or says when to come back.
func (e *endpoint) ready() (*registrar, error) {
	if r := e.office.registrar.Load(); r != nil {
		return r, nil
	}
	return nil, &enrol.BusyError{RetryAfter: busyRetry, Err: errors.New("the registration authority has no certificate yet")}
}

// query takes the two parameters that count out of a raw query, and leaves the
// message as it came.
func query(raw string) (operation, message string) {
	for part := range strings.SplitSeq(raw, "&") {
		name, value, _ := strings.Cut(part, "=")
		switch name {
		case "operation":
			operation = value
		case "message":
			message = value
		}
	}
	return operation, message
}

// read returns the message and how it is to be spoken of to caches of replies.
func read(w http.ResponseWriter, r *http.Request, inQuery string) (*message, []byte, error) {
	if r.Method != http.MethodPost {
		return decodeQuery(inQuery)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, cms.MaxSize))
	if err != nil {
		if _, long := errors.AsType[*http.MaxBytesError](err); long {
			return nil, nil, errTooLong
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, nil, errSlow
		}
		return nil, nil, fmt.Errorf("%w: reading it: %w", errMessage, err)
	}
	m, err := parseMessage(body)
	return m, body, err
}

// decodeQuery reads a message in base64, in any spelling that clients are known to
// send: either alphabet, with padding or without, in lines, escaped once or twice
// or not at all, with "+" turned into a space on its way.
func decodeQuery(text string) (*message, []byte, error) {
	err := errMessage
	for range 2 {
		unescaped, wrong := url.PathUnescape(text) // leaves "+" alone
		if wrong != nil {
			return nil, nil, notMessage(wrong)
		}
		for _, space := range []string{"+", ""} {
			der, wrong := decodeBase64(unescaped, space)
			if wrong != nil {
				continue
			}
			m, parsing := parseMessage(der)
			if parsing == nil {
				return m, der, nil
			}
			err = parsing
			if !strings.Contains(unescaped, " ") {
				break
			}
		}
		if unescaped == text {
			break
		}
		text = unescaped
	}
	return nil, nil, err
}

func decodeBase64(s, space string) ([]byte, error) {
	s = strings.NewReplacer("-", "+", "_", "/", "\r", "", "\n", "", "\t", "", " ", space).Replace(s)
	return base64.RawStdEncoding.DecodeString(strings.TrimRight(s, "="))
}

// send writes what was made before.
func (s *Server) send(w http.ResponseWriter, r *http.Request, f file) error {
	h := w.Header()
	h.Set("ETag", f.etag)
	h.Set("Cache-Control", cacheFor)
	if r.Header.Get("If-None-Match") == f.etag {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	h.Set("Content-Type", f.contentType)
	write(w, http.StatusOK, f.body)
	return nil
}

// refuse turns an error into HTTP's own words. Whatever a CertRep can say does not
// come here.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if over, ok := errors.AsType[*limited](err); ok {
		s.Refuse(w, r, over.Decision)
		return
	}
	outcome, said := "malformed", errMalformed
	switch known, ok := errors.AsType[refusal](err); {
	case ok:
		said = known
		if known == errMethod {
			w.Header().Set("Allow", "GET, HEAD, POST")
		}
	case passing(err):
		outcome, said = "busy", refusal{http.StatusServiceUnavailable, "busy: come back later"}
		w.Header().Set("Retry-After", strconv.FormatInt(wholeSeconds(retryAfter(err)), 10))
	case errors.Is(err, errMessage):
	case r.Context().Err() != nil: // a client that left is no fault of ours
		outcome, said = "left", refusal{http.StatusServiceUnavailable, "too late"}
	default:
		outcome, said = "fault", refusal{http.StatusInternalServerError, "internal error"}
		s.faults.report(r.Context(), err)
	}
	s.metrics.refusals.WithLabelValues(outcome).Inc()
	peer.Annotate(r.Context(), "scep", outcome)
	h := w.Header()
	h.Set("Content-Type", typeText)
	h.Set("Cache-Control", "no-store")
	write(w, said.code, []byte(said.text+"\n"))
}

// passing reports whether err will be over soon.
func passing(err error) bool {
	if _, ok := errors.AsType[*enrol.BusyError](err); ok {
		return true
	}
	if r, ok := errors.AsType[*ca.Refusal](err); ok {
		return r.Code == ca.Busy
	}
	if _, ok := errors.AsType[*gate.Refused](err); ok {
		return true
	}
	return errors.Is(err, keys.ErrBusy) || errors.Is(err, context.DeadlineExceeded)
}

// retryAfter is when to come back.
func retryAfter(err error) time.Duration {
	d := busyRetry
	if busy, ok := errors.AsType[*enrol.BusyError](err); ok {
		d = busy.RetryAfter
	} else if r, ok := errors.AsType[*ca.Refusal](err); ok {
		d = r.RetryAfter
	} else if g, ok := errors.AsType[*gate.Refused](err); ok {
		d = g.RetryAfter
	} else if k, ok := errors.AsType[*keys.BusyError](err); ok {
		d = k.RetryAfter
	}
	return max(d, time.Second)
}

// wholeSeconds rounds up.
func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// write sends a whole body. A client that left in between is not an error.
func write(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	_, _ = w.Write(body)
}
