package crl

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

const (
	typeCRL  = "application/pkix-crl"
	typeCert = "application/pkix-cert"
	// certMaxAge is how long caches may keep a CA certificate.
	certMaxAge = 24 * time.Hour
	// slowest is how many octets a second a client must take to get all of a
	// large file, and large is what needs more time than any other answer.
	slowest = 32 << 10
	large   = 1 << 20
)

// A file is a whole body with what HTTP says about it.
type file struct {
	contentType string
	body        *Body
	etag        string
	modified    time.Time
}

func newFile(contentType string, body *Body, sum [sha256.Size]byte, modified time.Time) file {
	return file{contentType: contentType, body: body, etag: `"` + hex.EncodeToString(sum[:16]) + `"`, modified: modified}
}

// A refusal is what a stranger gets instead of a file.
type refusal struct {
	code int
	text string
}

func (r refusal) Error() string { return r.text }

var (
	errMethod  = refusal{http.StatusMethodNotAllowed, "method not allowed"}
	errUnknown = refusal{http.StatusNotFound, "not found"}
	errNotYet  = refusal{http.StatusServiceUnavailable, "not there yet"}
)

// Handler serves GET and HEAD of /crl/SCOPE.crl, /crl/SCOPE/delta.crl and
// /aia/ISSUER.cer, as
// RFC 5280 §4.2.1.13 and §4.2.2.1 have them: DER, whole. There is no compressed
// form: serials are random, so that it would save a half at most, and a download
// that is resumed has to find the same octets (docs/adr/0026).
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.serve(w, r); err != nil {
			refuse(w, err)
		}
	})
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return errMethod
	}
	f, maxAge, err := s.find(r.URL.Path)
	if err != nil {
		return err
	}
	defer s.giveBack(r.Context(), f.body)
	age := int64(max(maxAge, 0) / time.Second)
	h := w.Header()
	h.Set("Content-Type", f.contentType)
	h.Set("ETag", f.etag)
	h.Set("Cache-Control", "max-age="+strconv.FormatInt(age, 10)+", public, no-transform, must-revalidate")
	h.Set("Expires", s.cfg.Now().Add(time.Duration(age)*time.Second).UTC().Format(http.TimeFormat))
	if !oneRange(r.Header) {
		r.Header.Del("Range") // RFC 9110 §14.2: a server may ignore it
	}
	if n := f.body.Size(); n > large {
		enough := time.Minute + time.Duration(n/slowest)*time.Second
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(enough)) // best effort
	}
	http.ServeContent(w, r, "", f.modified, f.body.Open())
	return nil
}

// oneRange reports whether no more than one range is asked for, which is all
// that it takes to resume a download. Each of many small ones would bring a
// header of its own, twenty times as long as the asking.
func oneRange(h http.Header) bool {
	return len(h["Range"]) <= 1 && !strings.Contains(h.Get("Range"), ",")
}

// giveBack releases a body that was read.
func (s *Server) giveBack(ctx context.Context, b *Body) {
	if err := b.Release(); err != nil {
		s.cfg.Logger.WarnContext(ctx, "closing the temporary file of a CRL", "error", err)
	}
}

// find returns the file at path, whose body is to be released, and how long
// caches may keep it.
func (s *Server) find(path string) (file, time.Duration, error) {
	if name, ok := cutBoth(path, "/crl/", ".crl"); ok {
		return s.findList(name)
	}
	if id, ok := cutBoth(path, "/aia/", ".cer"); ok {
		if cert, ok := s.certs[ca.IssuerID(id)]; ok && cert.body.Hold() {
			return cert, certMaxAge, nil
		}
	}
	return file{}, 0, errUnknown
}

// findList finds the complete list of a scope by its name, or the delta to it by
// the name of a file below that.
func (s *Server) findList(name string) (file, time.Duration, error) {
	scope, delta := strings.CutSuffix(name, "/delta")
	sh := s.shelfNamed(scope)
	if sh == nil || delta && sh.plan.Delta == 0 {
		return file{}, 0, errUnknown
	}
	l, ok := sh.slot(delta).take()
	if !ok {
		return file{}, 0, errNotYet
	}
	// A CRL past its nextUpdate is still the best there is; only caches must not keep it.
	return l.file, min(s.cfg.MaxAge, l.NextUpdate.Sub(s.cfg.Now())), nil
}

func cutBoth(s, prefix, suffix string) (string, bool) {
	s, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return "", false
	}
	return strings.CutSuffix(s, suffix)
}

func refuse(w http.ResponseWriter, err error) {
	known, ok := errors.AsType[refusal](err)
	if !ok {
		known = refusal{http.StatusInternalServerError, "internal error"}
	}
	h := w.Header()
	switch known.code {
	case http.StatusMethodNotAllowed:
		h.Set("Allow", "GET, HEAD")
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", "10")
	}
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(known.text)+1))
	w.WriteHeader(known.code)
	_, _ = io.WriteString(w, known.text+"\n")
}
