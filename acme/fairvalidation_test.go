package acme_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca/catest"
)

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A tarpit takes names that begin with "tar" for as long as it may.
type tarpit struct {
	mu    sync.Mutex // guards what follows
	seen  map[string]int
	now   int
	peak  int
	stuck map[string]int // by account, at the moment
	most  map[string]int
}

func (p *tarpit) Validate(ctx context.Context, q acme.Validation) (acme.ValidationRecord, *acme.Problem) {
	p.count(q, 1)
	defer p.count(q, -1)
	if strings.HasPrefix(q.Identifier.Value, "tar") {
		<-ctx.Done()
		return acme.ValidationRecord{}, &acme.Problem{Type: acme.Connection, Detail: "no answer"}
	}
	return acme.ValidationRecord{}, nil
}

func (p *tarpit) count(q acme.Validation, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > 0 {
		p.seen[q.Identifier.Value]++
	}
	p.now += n
	p.stuck[q.AccountID] += n
	p.peak = max(p.peak, p.now)
	p.most[q.AccountID] = max(p.most[q.AccountID], p.stuck[q.AccountID])
}

func newTarpit(t *testing.T, options ...func(*acme.Config)) (*world, *tarpit) {
	t.Helper()
	p := &tarpit{seen: map[string]int{}, stuck: map[string]int{}, most: map[string]int{}}
	w, _ := newBubble(t, append(options, func(c *acme.Config) { c.Validator = p })...)
	w.run()
	return w, p
}

// challenged makes an order whose only authorization is to be validated, and says so.
func (c *client) challenged(name string) (authz string) {
	c.t.Helper()
	now := c.w.clock.now().UTC().Truncate(time.Microsecond)
	o := acme.Order{
		ID: audit.NewID(), AccountID: c.account(), Status: acme.OrderPending, Profile: "server", Identifiers: catest.IDs(name),
		CreatedAt: now, Expires: now.Add(24 * time.Hour),
	}
	a := acme.Authorization{
		ID: audit.NewID(), AccountID: o.AccountID, OrderID: o.ID, Identifier: o.Identifiers[0], Status: acme.AuthzPending, Token: "token",
		Offered: []acme.ChallengeType{acme.HTTP01}, CreatedAt: now, Expires: o.Expires, PurgeAt: o.Expires.Add(24 * time.Hour),
	}
	o.AuthzIDs = []string{a.ID}
	if err := c.w.store.CreateOrder(c.t.Context(), o, []acme.Authorization{a}, acme.OrderLimits{MaxOpen: 1 << 20}); err != nil {
		c.t.Fatal(err)
	}
	c.post(c.w.url("challenge/"+a.ID+"/http-01"), map[string]any{}).want(200)
	return c.w.url("authz/" + a.ID)
}

// settled waits, in bubble time, until the authorization is no longer pending.
func (c *client) settled(authz string, most time.Duration) (status string, took time.Duration) {
	c.t.Helper()
	began := time.Now()
	for {
		if status = c.get(authz).want(200).str("status"); status != "pending" {
			return status, time.Since(began)
		}
		if time.Since(began) > most {
			c.t.Fatalf("authorization is pending after %v", most)
		}
		time.Sleep(max(100*time.Millisecond, most/1000))
	}
}

// A stranger's server that never answers holds a worker for a whole timeout. Two
// accounts with a hundred of them each can't hold all workers: a third one's
// validation does not even wait for the first timeout.
func TestTarpitsOfTwoAccountsLeaveWorkersToOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, p := newTarpit(t)
		for i := range 2 {
			hog := w.client()
			for n := range 100 {
				hog.challenged(fmt.Sprintf("tar%d-%d.example", i, n))
			}
		}
		time.Sleep(10 * time.Second)
		victim := w.client()
		status, took := victim.settled(victim.challenged("victim.example"), time.Minute)
		if status != "valid" || took > time.Second {
			t.Errorf("the victim's is %s after %v", status, took)
		}
		w.stop()
		for who, n := range p.most {
			if n > 7 {
				t.Errorf("account %s had %d of 16 workers", who, n)
			}
		}
		if p.peak < 14 {
			t.Errorf("%d validations at a time; want all that two accounts may have", p.peak)
		}
	})
}

// More accounts with tarpits can hold all workers, for one timeout. Then it is
// the turn of whoever has none, not of the hundreds that have been waiting for longer.
func TestAValidationWaitsForOneTimeoutAtTheMost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, p := newTarpit(t)
		for i := range 15 {
			hog := w.client()
			for n := range 30 {
				hog.challenged(fmt.Sprintf("tar%d-%d.example", i, n))
			}
		}
		time.Sleep(10 * time.Second)
		victim := w.client()
		status, took := victim.settled(victim.challenged("victim.example"), 10*time.Minute)
		if status != "valid" || took > time.Minute {
			t.Errorf("the victim's is %s after %v", status, took)
		}
		w.stop()
		if p.peak != 16 {
			t.Errorf("%d validations at a time; want 16", p.peak)
		}
	})
}

// However long a validation waits for its turn, in the queue or in the
// database, it is made once, and its wait is no failure.
func TestWaitingForAWorkerIsNoAttempt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, p := newTarpit(t, func(c *acme.Config) { c.ValidationWorkers = 3; c.ValidationQueue = 4 })
		var authzs []string
		c := w.client()
		for n := range 60 {
			authzs = append(authzs, c.challenged(fmt.Sprintf("tar%d.example", n)))
		}
		for _, a := range authzs {
			c.settled(a, 2*time.Hour)
			if r := c.get(a); !strings.Contains(string(r.body), "no answer") {
				t.Errorf("authorization: %s", r.body)
			}
		}
		w.stop()
		for name, n := range p.seen {
			if n != 1 {
				t.Errorf("%s was validated %d times", name, n)
			}
		}
	})
}

// Every start of the server takes over what the one before gave back. That is no
// failure of the validation, however often it happens.
func TestGivingBackAtTheEndIsNoAttempt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, p := newTarpit(t)
		c := w.client()
		authz := c.challenged("tar.example")
		for range 15 {
			time.Sleep(10 * time.Second)
			w.stop()
			w.run()
		}
		if status, _ := c.settled(authz, 10*time.Minute); status != "invalid" {
			t.Errorf("authorization is %s", status)
		}
		w.stop()
		if r := c.get(authz); !strings.Contains(string(r.body), "no answer") || p.seen["tar.example"] != 16 {
			t.Errorf("after %d times: %s", p.seen["tar.example"], r.body)
		}
	})
}
