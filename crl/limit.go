package crl

import (
	"net/http"
	"strconv"

	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// fileCost is what a request pays: a list can be long, but is there.
const fileCost = ratelimit.Token / 10

// Limit is what requests are charged to.
func (s *Server) Limit() *ratelimit.Endpoint { return s.limit }

// The refusal of who is over the limit, made once. Nobody changes the headers:
// who appends makes a copy.
var (
	limitedText  = []byte("too many requests\n")
	textValue    = []string{typeText}
	noStoreValue = []string{"no-store"}
	lengthValue  = []string{strconv.Itoa(len(limitedText))}
	secondsValue = secondsTable(600)
)

func secondsTable(n int) [][]string {
	t := make([][]string, n+1)
	for i := range t {
		t[i] = []string{strconv.Itoa(i)}
	}
	return t
}

// seconds is n as the value of Retry-After, at least one.
func seconds(n int64) []string {
	n = max(n, 1)
	if n < int64(len(secondsValue)) {
		return secondsValue[n]
	}
	return []string{strconv.FormatInt(n, 10)}
}

// Refuse tells a client that is over its limit when to come back. It reads
// nothing and allocates nothing.
func (s *Server) Refuse(w http.ResponseWriter, _ *http.Request, d ratelimit.Decision) {
	h := w.Header()
	h["Content-Type"] = textValue
	h["Content-Length"] = lengthValue
	h["Cache-Control"] = noStoreValue
	h["Retry-After"] = seconds(d.Seconds())
	w.WriteHeader(http.StatusTooManyRequests)
	_, _ = w.Write(limitedText) // a client that left is no news
}
