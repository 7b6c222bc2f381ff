package scep

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/peer"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// class is the name of SCEP's requests among the classes of endpoints.
const class = "scep"

const (
	// readCost is what every request pays: what is read is at hand.
	readCost = ratelimit.Token / 20
	// messageCost is the rest of what a message pays: a decryption and a signature.
	messageCost = 2*ratelimit.Token - readCost
)

// Limit is what requests are charged to before they are read.
func (s *Server) Limit() *ratelimit.Endpoint { return s.limit }

// charge has a message paid for by where it comes from.
func (s *Server) charge(ctx context.Context) error {
	if d := s.limit.Charge(peer.From(ctx).Addr, messageCost); !d.OK {
		return &limited{d}
	}
	return nil
}

// limited is the error of a message whose source has sent too many.
type limited struct{ ratelimit.Decision }

func (l *limited) Error() string {
	return "scep: messages of this source are over the limit of " + l.Tier.String()
}

// Headers of refusals, made once. Nobody changes them: who appends makes a copy.
var (
	limitedBody   = []byte("too many requests\n")
	limitedLength = []string{strconv.Itoa(len(limitedBody))}
	textValue     = []string{typeText}
	noStoreValue  = []string{"no-store"}
)

// Refuse tells a client that is over its limit when to come back. It reads nothing
// and allocates nothing.
func (s *Server) Refuse(w http.ResponseWriter, _ *http.Request, d ratelimit.Decision) {
	s.metrics.limited.Inc()
	h := w.Header()
	h["Content-Type"] = textValue
	h["Content-Length"] = limitedLength
	h["Cache-Control"] = noStoreValue
	h["Retry-After"] = ratelimit.SecondsHeader(d.Seconds())
	w.WriteHeader(http.StatusTooManyRequests)
	_, _ = w.Write(limitedBody) // a client that left is no news
}

const (
	// alarmAt is how many messages that are wrong inside come in alarmWindow before
	// somebody should look: to decrypt by asking takes ten thousands of them.
	alarmAt     = 100
	alarmWindow = time.Hour
)

// An alarm rings once in each window.
type alarm struct {
	log *slog.Logger
	now func() time.Time

	mu    sync.Mutex // guards what follows
	since time.Time
	count int
}

func (a *alarm) rings(ctx context.Context, issuer ca.IssuerID) {
	a.mu.Lock()
	now := a.now()
	if now.Sub(a.since) >= alarmWindow || now.Before(a.since) {
		a.since, a.count = now, 0
	}
	a.count++
	rings := a.count == alarmAt
	a.mu.Unlock()
	if rings {
		a.log.WarnContext(ctx, "many SCEP messages are wrong inside: somebody may be trying to decrypt another's by what is answered",
			"issuer", string(issuer), "messages", alarmAt, "within", alarmWindow)
	}
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
	f.log.ErrorContext(ctx, "serving SCEP", "error", err, "unlogged_before", missed)
}
