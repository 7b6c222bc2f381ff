package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/secsy-pki/secsy-pki/admin/client"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/peer"
)

// A problem is an error that an operator may hear in full.
type problem struct {
	status     int
	code       string
	detail     string
	retryAfter time.Duration
}

func (p *problem) Error() string { return p.code + ": " + p.detail }

func problemf(status int, code, format string, args ...any) *problem {
	return &problem{status: status, code: code, detail: fmt.Sprintf(format, args...)}
}

var (
	errNoSuchPath = problemf(http.StatusNotFound, client.CodeNoSuchPath, "there is nothing at this path")
	errMethod     = problemf(http.StatusMethodNotAllowed, client.CodeMethod, "this path does not have that method; the Allow header lists those it has")
	errInternal   = problemf(http.StatusInternalServerError, client.CodeInternal, "something went wrong inside; the log says what, under this request's id")
	errLate       = problemf(http.StatusServiceUnavailable, client.CodeTimeout, "the server did not finish in time")
	errUnknown    = problemf(http.StatusForbidden, client.CodeUnauthenticated, "nothing proves who you are; this API is used through its local socket")
)

// answerError writes err as a problem and returns the status.
func (s *Server) answerError(w http.ResponseWriter, r *http.Request, err error) int {
	p := problemFor(err)
	id := peer.From(r.Context()).RequestID
	_, told := errors.AsType[*problem](err) // all there is to know is in the answer
	if p.status >= http.StatusInternalServerError && !told && !errors.Is(err, context.Canceled) {
		s.logger.LogAttrs(r.Context(), slog.LevelError, "operator's request failed",
			slog.String("request_id", id), slog.String("method", r.Method), slog.Any("error", err))
	}
	if p.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((p.retryAfter+time.Second-1)/time.Second), 10))
	}
	w.Header().Set("Content-Type", client.ProblemType)
	w.WriteHeader(p.status)
	_ = json.NewEncoder(w).Encode(client.Problem{ // a client that left is no news
		Title: http.StatusText(p.status), Status: p.status, Code: p.code, Detail: p.detail, RequestID: id,
	})
	return p.status
}

// problemFor is the one place where errors become answers.
func problemFor(err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	if ref, ok := errors.AsType[*ca.Refusal](err); ok {
		return refusal(ref)
	}
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return problemf(http.StatusRequestEntityTooLarge, client.CodeTooLarge, "the body is longer than %d bytes", tooLarge.Limit)
	}
	switch {
	case errors.Is(err, ErrUnauthenticated):
		return errUnknown
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return errLate
	}
	return errInternal
}

func refusal(r *ca.Refusal) *problem {
	switch r.Code {
	case ca.BadReason:
		return problemf(http.StatusBadRequest, client.CodeInvalidParameter, "%s", r.Detail)
	case ca.Busy:
		p := problemf(http.StatusServiceUnavailable, client.CodeBusy, "%s", r.Detail)
		p.retryAfter = max(r.RetryAfter, time.Second)
		return p
	}
	return problemf(http.StatusUnprocessableEntity, client.CodeRefused, "%s", r.Detail)
}

// answer writes v as JSON.
func answer(w http.ResponseWriter, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	_, _ = w.Write(b) // a client that left is no news
	return nil
}
