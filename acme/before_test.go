package acme_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ratelimit"
	"github.com/secsy-pki/secsy-pki/store"
)

// Who sends half a body has no turn at issuance: beside 64 of them an honest
// client's certificate takes as long as it takes.
func TestHalfABodyHoldsNoTurnAtIssuance(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d := newBubble(t, func(c *acme.Config) { c.FinalizeSlots = 1 })
		w.run()
		c := w.client()
		mine := c.made("a.example")
		never, end := io.Pipe()
		var slow sync.WaitGroup
		for range 64 {
			slow.Go(func() {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url("order/"+mine.ID+"/finalize"), io.MultiReader(strings.NewReader("{"), never))
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("Content-Type", "application/jose+json")
				if resp, err := w.http.Do(r); err == nil {
					_ = resp.Body.Close()
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		if got := c.finalizes(mine).want(200).str("status"); got != "valid" || time.Since(began) != d.service {
			t.Errorf("the order is %s after %s, want valid after %s", got, time.Since(began), d.service)
		}
		_ = end.Close()
		slow.Wait()
		w.stop()
	})
}

// Turns come after proof and policy: while the only one is taken, a request
// whose signature does not hold and a CSR that is none hear so at once.
func TestWhatDoesNotHoldWaitsForNoTurn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d := newBubble(t, func(c *acme.Config) { c.FinalizeSlots = 1 })
		w.run()
		hog, c := w.client(), w.client()
		first, second, mine := hog.made("one.example"), hog.made("two.example"), c.made("a.example")
		var hogs sync.WaitGroup
		for _, o := range []acme.Order{first, second} {
			hogs.Go(func() { hog.finalizes(o).want(200) })
		}
		time.Sleep(d.service / 5)
		began, url := time.Now(), w.url("order/"+mine.ID+"/finalize")
		c.forged(url, csrBody(bubbleCSR(t))).problem(400, "malformed")
		if r := c.post(url, csrBody([]byte("no CSR"))); r.status < 400 {
			t.Errorf("no CSR: %d", r.status)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("what does not hold waited for %s", took)
		}
		hogs.Wait()
		w.stop()
	})
}

// An account that has to wait hears so before anything is looked up for it, and
// leaves nothing in the audit log by asking: so its answer tells nothing, and
// probing costs us next to nothing.
func TestASlowedDownAccountIsRefusedBeforeAnythingIsLookedUp(t *testing.T) {
	t.Parallel()
	var q *questioned
	w := limitedWorld(t, ratelimit.Config{}, func(c *acme.Config) {
		c.Budget = newBudget(t)
		q = &questioned{Store: c.Store}
		c.Store = q
	})
	c, owner := w.client(), w.client()
	_, theirs := owner.order("a.example.com")
	for range 10 { // so that the interval is longer than the test
		c.get(w.url("account/"+audit.NewID())).problem(404, "malformed")
	}
	entries := func() int {
		t.Helper()
		list, err := store.NewAudit(w.db).Pending(t.Context(), 1000)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := entries()
	q.all()
	for _, url := range []string{
		theirs.location(), theirs.strs("authorizations")[0], owner.kid + "/orders", w.url("order/" + audit.NewID()), w.url("cert/" + audit.NewID()),
	} {
		c.get(url).problem(429, "rateLimited")
		if asked := q.all(); slices.ContainsFunc(asked, func(q string) bool { return q != "Account" }) {
			t.Errorf("%s: the store was asked %q, want for who asks at most", url, asked)
		}
	}
	if n := entries() - before; n != 0 {
		t.Errorf("refusals left %d audit entries", n)
	}
}

// What limits refuse is no authorization refused: an account over its rate or
// its quota is not slowed down for it.
func TestRefusalsOfLimitsAreNoProbing(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, ratelimit.Config{PerIP: slowly(20)}, func(c *acme.Config) {
		c.Budget = newBudget(t)
		c.OrderQuota = ratelimit.Quota{Limit: 1, Window: time.Hour}
	})
	c := w.client().from("192.0.2.1")
	mine, _ := c.order("a.example.com")
	for range 10 {
		c.from("192.0.2.2").post(w.url("new-order"), dns("b.example.com")).problem(429, "rateLimited")
	}
	for spent := c.from("192.0.2.3"); ; {
		if r := spent.do("POST", w.url("order/x"), "", nil); r.status == 503 {
			break
		}
	}
	for range 10 {
		c.from("192.0.2.3").post(mine, "").problem(503, "rateLimited")
	}
	for range 3 { // at once
		c.from("192.0.2.4").get(mine).want(200)
	}
}

// Asking for an account names none, so none is charged for it, nor for a
// request that whoever has its key sends as nobody.
func TestANewAccountIsChargedToNoAccount(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, ratelimit.Config{PerAccount: slowly(1)})
	c := w.client()
	d := *c
	d.kid, d.nonce = "", ""
	for range 5 {
		d.post(w.url("new-account"), map[string]any{"termsOfServiceAgreed": true}).want(200)
	}
	c.order("a.example.com")
	c.post(w.url("new-order"), dns("b.example.com")).problem(429, "rateLimited")
}
