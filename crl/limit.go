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
)

// Refuse tells a client that is over its limit when to come back. It reads
// nothing and allocates nothing.
func (s *Server) Refuse(w http.ResponseWriter, _ *http.Request, d ratelimit.Decision) {
	h := w.Header()
	h["Content-Type"] = textValue
	h["Content-Length"] = lengthValue
	h["Cache-Control"] = noStoreValue
	h["Retry-After"] = ratelimit.SecondsHeader(d.Seconds())
	w.WriteHeader(http.StatusTooManyRequests)
	_, _ = w.Write(limitedText) // a client that left is no news
}
