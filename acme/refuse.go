package acme

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/secsy-pki/secsy-pki/ratelimit"
)

const (
	typeProblem = "application/problem+json"

	// maxRetryAfter is in seconds. Some clients give up on more.
	maxRetryAfter = 600

	// Refusals give out so many nonces a second, and at once. A client that
	// hears a problem without a nonce may never show it, nginx-acme for one;
	// but a flood of refusals must not push everybody's nonces out of the window.
	refusalNonces      = 100
	refusalNoncesBurst = 200
)

// A headerLine is one header. Its values are shared by all answers, and nobody
// changes them.
type headerLine struct {
	name   string
	values []string
}

// canned are the answers to requests that are refused for their number alone.
// All of them is made beforehand: a flood is to be cheaper to refuse than to send.
type canned struct {
	header  []headerLine
	seconds []string // "0", "1", … for Retry-After
	digits  [][]byte // the same for the body
	nonces  *nonces
	trickle *trickle
}

func newCanned(n *nonces, common []headerLine, help string) *canned {
	c := &canned{nonces: n, trickle: newTrickle(refusalNonces, refusalNoncesBurst)}
	for _, l := range common {
		if l.name == "Link" {
			l.values = append(slices.Clone(l.values), help)
		}
		c.header = append(c.header, l)
	}
	c.header = append(c.header, headerLine{"Content-Type", []string{typeProblem}})
	for i := range maxRetryAfter + 1 {
		c.seconds = append(c.seconds, strconv.Itoa(i))
		c.digits = append(c.digits, []byte(c.seconds[i]))
	}
	return c
}

// A cannedBody is a problem but for the seconds to wait, which go between begin
// and end.
type cannedBody struct {
	begin, end []byte
	length     [4][]string // by the digits of the seconds
}

func newCannedBody(status int, whose string) cannedBody {
	b := cannedBody{
		begin: fmt.Appendf(nil, `{"type":"%s%s","detail":"too many requests%s; try again in `, urn, RateLimited, whose),
		end:   fmt.Appendf(nil, ` seconds","status":%d}`, status),
	}
	for digits := range b.length {
		b.length[digits] = []string{strconv.Itoa(len(b.begin) + digits + len(b.end))}
	}
	return b
}

// whose says which limit refused, to a person who sees only what a client
// prints: some show the detail, and not the header.
func whose(t ratelimit.Tier) string {
	switch t {
	case ratelimit.PerIP:
		return " from your address"
	case ratelimit.PerPrefix:
		return " from your network"
	case ratelimit.EndpointIP:
		return " of this kind from your address"
	case ratelimit.EndpointAll:
		return " of this kind from all clients together"
	case ratelimit.Global:
		return " from all clients together"
	default: // the others are not asked before the body is read
		return ""
	}
}

// refuser makes what answers refused requests with that status.
func (c *canned) refuser(status int) func(http.ResponseWriter, *http.Request, ratelimit.Decision) {
	var bodies [ratelimit.Global + 1]cannedBody
	for t := range bodies {
		bodies[t] = newCannedBody(status, whose(ratelimit.Tier(t)))
	}
	return func(w http.ResponseWriter, r *http.Request, d ratelimit.Decision) {
		h := w.Header()
		for _, l := range c.header {
			h[l.name] = l.values
		}
		body, i := &bodies[d.Tier], min(max(d.Seconds(), 1), maxRetryAfter)
		h["Content-Length"] = body.length[len(c.digits[i])]
		h["Retry-After"] = c.seconds[i : i+1 : i+1]
		if c.trickle.take() {
			if n, err := c.nonces.issue(); err == nil {
				h["Replay-Nonce"] = []string{n}
			}
		}
		w.WriteHeader(status)
		if r.Method != http.MethodHead {
			_, _ = w.Write(body.begin)
			_, _ = w.Write(c.digits[i])
			_, _ = w.Write(body.end)
		}
	}
}

// A trickle lets so much through a second, and so much at once.
type trickle struct {
	began time.Time
	every time.Duration
	depth time.Duration
	full  atomic.Int64 // when all that was taken will have come back, since began
}

func newTrickle(rate, burst int) *trickle {
	every := time.Second / time.Duration(rate)
	return &trickle{began: time.Now(), every: every, depth: time.Duration(burst) * every}
}

func (t *trickle) take() bool {
	const tries = 4 // a no costs little, waiting in line for a yes might
	now := int64(time.Since(t.began))
	for range tries {
		full := t.full.Load()
		next := max(full, now) + int64(t.every)
		if next-now > int64(t.depth) {
			return false
		}
		if t.full.CompareAndSwap(full, next) {
			return true
		}
	}
	return false
}
