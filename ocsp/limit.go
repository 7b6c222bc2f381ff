package ocsp

import (
	"context"
	"net/http"
	"net/netip"
	"strconv"

	"github.com/secsy-pki/secsy-pki/peer"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

const (
	// answerCost is what every request pays, and all that one pays whose answer
	// is there; signCost is the rest of a whole token, for one that has to be signed.
	answerCost = ratelimit.Token / 100
	signCost   = ratelimit.Token - answerCost
)

// Limit is what requests are charged to before they are read.
func (s *Server) Limit() *ratelimit.Endpoint { return s.limit }

// An asker is who a signature would be made for.
type asker struct {
	limit  *ratelimit.Endpoint
	source netip.Addr
	paid   bool
}

func (s *Server) asker(ctx context.Context, limit *ratelimit.Endpoint) *asker {
	return &asker{limit: limit, source: peer.From(ctx).Addr}
}

// pay charges one signature, however often it is tried to make it. The error is
// a *limited.
func (a *asker) pay() error {
	if a.paid {
		return nil
	}
	if d := a.limit.Admit(a.source); !d.OK {
		return &limited{d}
	}
	a.paid = true
	return nil
}

// limited is the error of a request whose source may have nothing signed now.
type limited struct{ ratelimit.Decision }

func (l *limited) Error() string {
	return "ocsp: signatures for this source are over the limit of " + l.Tier.String()
}

// Headers of answers, made once. Nobody changes them: who appends makes a copy.
var (
	typeValue    = []string{responseType}
	noStoreValue = []string{"no-store"}
	tryLaterDER  = tryLater.der()
	lengthValue  = []string{strconv.Itoa(len(tryLaterDER))}
)

// Refuse tells a client that is over its limit when to come back: HTTP's word
// for it, and OCSP's tryLater for those that look at the body alone. It reads
// nothing and allocates nothing.
func (s *Server) Refuse(w http.ResponseWriter, _ *http.Request, d ratelimit.Decision) {
	s.metrics.limited.Inc()
	tellLater(w, http.StatusTooManyRequests, d.Seconds())
}

// tellLater writes a tryLater that is worth repeating after n seconds.
func tellLater(w http.ResponseWriter, code int, n int64) {
	h := w.Header()
	h["Content-Type"] = typeValue
	h["Content-Length"] = lengthValue
	h["Cache-Control"] = noStoreValue
	h["Retry-After"] = ratelimit.SecondsHeader(n)
	w.WriteHeader(code)
	_, _ = w.Write(tryLaterDER) // a client that left is no news
}
