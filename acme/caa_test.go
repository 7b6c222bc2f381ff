package acme_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/store"
)

// A caaChecker says of each name what the test wants.
type caaChecker struct {
	mu    sync.Mutex // guards all
	wrong map[string]*acme.Problem
	panic bool
	calls []acme.CAAQuery
}

func (c *caaChecker) CheckCAA(_ context.Context, q acme.CAAQuery) (acme.CAARecord, *acme.Problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, q)
	if c.panic {
		panic("on purpose")
	}
	return acme.CAARecord{Name: q.Name, Found: "example.com", Records: []string{`0 issue "ca.example"`}, At: time.Now()}, c.wrong[q.Name]
}

func (c *caaChecker) say(name string, p *acme.Problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong[name] = p
}

// taken returns the questions since it was called last.
func (c *caaChecker) taken() []acme.CAAQuery {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := c.calls
	c.calls = nil
	return calls
}

var (
	forbidden = &acme.Problem{Type: acme.CAA, Status: 403, Detail: "they name other CAs"}
	noAnswer  = &acme.Problem{Type: acme.DNSError, Status: 400, Detail: "no answer in time"}
)

func caaWorld(t *testing.T, options ...func(*acme.Config)) (*world, *caaChecker) {
	t.Helper()
	caa := &caaChecker{wrong: map[string]*acme.Problem{}}
	return newWorld(t, append(options, func(c *acme.Config) { c.CAA = caa })...), caa
}

// entries are those of the audit log that have the action.
func (w *world) entries(action string) (details []string) {
	w.t.Helper()
	list, err := store.NewAudit(w.db).Pending(context.Background(), 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range list {
		if e.Action == action {
			details = append(details, string(e.Detail))
		}
	}
	return details
}

// finalize sends a CSR for the names of an order.
func (c *client) finalize(r *reply, names ...string) *reply {
	c.t.Helper()
	return c.post(r.str("finalize"), csrBody(catest.CSR(c.t, newKey(c.t), names...)))
}

// TestCAAIsCheckedWithTheValidation, for each name, after it was proven, with all
// that RFC 8657 needs, and not for addresses.
func TestCAAIsCheckedWithTheValidation(t *testing.T) {
	t.Parallel()
	w, caa := caaWorld(t)
	c := w.client()
	r := c.post(w.url("new-order"), idsBody("a.example.com", "*.example.com", "198.51.100.7")).want(201)
	for i, a := range r.strs("authorizations") {
		if got := c.prove(a, []string{"http-01", "dns-01", "tls-alpn-01"}[i]).str("status"); got != "valid" {
			t.Fatalf("authorization %d is %s", i, got)
		}
	}
	calls := caa.taken()
	if len(calls) != 2 {
		t.Fatalf("%d checks; want 2: %+v", len(calls), calls)
	}
	want := []acme.CAAQuery{
		{Name: "a.example.com", Method: acme.HTTP01, AccountURL: c.kid},
		{Name: "example.com", Wildcard: true, Method: acme.DNS01, AccountURL: c.kid},
	}
	for i := range want {
		if calls[i] != want[i] {
			t.Errorf("asked %+v; want %+v", calls[i], want[i])
		}
	}
	evidence := strings.Join(w.entries("authorization.validated"), "\n")
	if strings.Count(evidence, `"caa":{`) != 2 || !strings.Contains(evidence, `ca.example`) {
		t.Errorf("the evidence is %s", evidence)
	}
	// What is fresh is not asked for again.
	if got := c.finalize(c.get(r.location()), "a.example.com", "*.example.com", "198.51.100.7").want(200).str("status"); got != "valid" {
		t.Errorf("order is %s", got)
	}
	if calls := caa.taken(); len(calls) > 0 {
		t.Errorf("asked again: %+v", calls)
	}
}

func TestCAAFailsTheChallenge(t *testing.T) {
	t.Parallel()
	w, caa := caaWorld(t)
	c := w.client()
	for name, p := range map[string]*acme.Problem{"caa.example.com": forbidden, "dns.example.com": noAnswer} {
		caa.say(name, p)
		_, r := c.order(name)
		a := c.prove(r.strs("authorizations")[0], "dns-01")
		ch, _ := a.json["challenges"].([]any)[0].(map[string]any)
		e, _ := ch["error"].(map[string]any)
		if a.str("status") != "invalid" || e["type"] != "urn:ietf:params:acme:error:"+string(p.Type) || e["detail"] != p.Detail {
			t.Errorf("%s: %s", name, a.body)
		}
		if got := c.get(r.location()).str("status"); got != "invalid" {
			t.Errorf("order is %s", got)
		}
	}
	// Where nothing was proven, nothing is asked for.
	caa.taken()
	w.validator.fail("wrong.example.com", &acme.Problem{Type: acme.Unauthorized, Detail: "no"})
	_, r := c.order("wrong.example.com")
	c.prove(r.strs("authorizations")[0], "dns-01")
	if calls := caa.taken(); len(calls) > 0 {
		t.Errorf("asked for a name that was not proven: %+v", calls)
	}
}

// TestStaleCAAIsAskedForBeforeTheSignature waits seven hours with finalize, by
// when eight may pass before the certificate is signed.
func TestStaleCAAIsAskedForBeforeTheSignature(t *testing.T) {
	t.Parallel()
	w, caa := caaWorld(t)
	c := w.client()
	u, r := c.ready("a.example.com", "*.example.com")
	young, _ := c.ready("young.example.com")
	caa.taken()
	w.clock.advance(7*time.Hour - time.Minute)
	if got := c.finalize(c.get(young), "young.example.com").want(200).str("status"); got != "valid" {
		t.Errorf("an order with fresh checks is %s", got)
	}
	if calls := caa.taken(); len(calls) > 0 {
		t.Errorf("asked too early: %+v", calls)
	}
	w.clock.advance(time.Minute)
	if got := c.finalize(r, "a.example.com", "*.example.com").want(200).str("status"); got != "processing" && got != "valid" {
		t.Errorf("order is %s", got)
	}
	c.await(u, "valid")
	calls := caa.taken()
	if len(calls) != 2 || calls[0].Method != acme.DNS01 || calls[0].AccountURL != c.kid || calls[0].Wildcard == calls[1].Wildcard {
		t.Errorf("asked %+v", calls)
	}
	evidence := w.entries("caa.checked")
	if len(evidence) != 2 || !strings.Contains(evidence[0], `ca.example`) {
		t.Errorf("the evidence is %q", evidence)
	}
	for _, id := range authzIDs(r) {
		a, err := w.store.Authorization(t.Context(), id)
		if err != nil || w.clock.now().Sub(a.CAAChecked) > time.Hour {
			t.Errorf("checked at %v, %v", a.CAAChecked, err)
		}
	}
}

func authzIDs(r *reply) (ids []string) {
	for _, u := range r.strs("authorizations") {
		ids = append(ids, u[strings.LastIndexByte(u, '/')+1:])
	}
	return ids
}

// TestCAAThatForbidsByNowEndsTheOrder, with a subproblem for each name, and with
// no certificate.
func TestCAAThatForbidsByNowEndsTheOrder(t *testing.T) {
	t.Parallel()
	w, caa := caaWorld(t)
	c := w.client()
	u, r := c.ready("a.example.com", "b.example.com", "c.example.com")
	caa.say("b.example.com", forbidden)
	caa.say("c.example.com", noAnswer)
	w.clock.advance(7 * time.Hour)
	c.finalize(r, "a.example.com", "b.example.com", "c.example.com").want(200)
	o := c.await(u, "invalid", "valid")
	var got struct {
		Error struct {
			Type        string
			Status      int
			Subproblems []struct {
				Type, Detail string
				Identifier   ca.Identifier
			}
		}
	}
	if err := json.Unmarshal(o.body, &got); err != nil {
		t.Fatal(err)
	}
	subs := got.Error.Subproblems
	if got.Error.Type != "urn:ietf:params:acme:error:caa" || got.Error.Status != 403 || len(subs) != 2 {
		t.Fatalf("order %s", o.body)
	}
	if subs[0].Identifier.Value != "b.example.com" || !strings.HasSuffix(subs[0].Type, ":caa") || subs[1].Identifier.Value != "c.example.com" || !strings.HasSuffix(subs[1].Type, ":dns") {
		t.Errorf("subproblems %+v", subs)
	}
	for _, state := range []ca.State{ca.Issued, ca.Pending} {
		if n := w.certificates(state); n != 0 {
			t.Errorf("%d certificates are %s", n, state)
		}
	}
	if n := len(w.entries("order.failed")); n != 1 {
		t.Errorf("%d entries of the end", n)
	}
}

// TestCAAWithoutAnAnswerPutsTheOrderOff: that is no yes, and no no.
func TestCAAWithoutAnAnswerPutsTheOrderOff(t *testing.T) {
	t.Parallel()
	w, caa := caaWorld(t)
	c := w.client()
	u, r := c.ready("a.example.com", "b.example.com")
	caa.say("b.example.com", noAnswer)
	w.clock.advance(7 * time.Hour)
	caa.taken()
	moved := w.watched.next()
	c.finalize(r, "a.example.com", "b.example.com").want(200)
	<-moved // put off
	if got := c.get(u).str("status"); got != "processing" {
		t.Fatalf("order is %s", got)
	}
	if n := w.certificates(ca.Issued); n != 0 {
		t.Fatalf("%d certificates were issued", n)
	}
	if n := len(caa.taken()); n != 2 {
		t.Errorf("%d checks; want 2", n)
	}
	// Too early, nothing is asked; then only for what is not known yet.
	if err := w.server.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(caa.taken()); n != 0 {
		t.Errorf("%d checks before the time", n)
	}
	caa.say("b.example.com", nil)
	w.clock.advance(31 * time.Second)
	if err := w.server.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.await(u, "valid")
	if calls := caa.taken(); len(calls) != 1 || calls[0].Name != "b.example.com" {
		t.Errorf("asked %+v", calls)
	}
}

// TestCAAOfAnOrderThatExpiredIsNotAskedFor: the order ends anyhow.
func TestCAAOfAnOrderThatExpiredIsNotAskedFor(t *testing.T) {
	t.Parallel()
	w, caa := caaWorld(t, func(c *acme.Config) { c.OrderLifetime = 8 * time.Hour })
	c := w.client()
	u, r := c.ready("a.example.com")
	caa.say("a.example.com", noAnswer)
	w.clock.advance(7 * time.Hour)
	moved := w.watched.next()
	c.finalize(r, "a.example.com").want(200)
	<-moved
	caa.taken()
	w.clock.advance(2 * time.Hour)
	if err := w.server.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.await(u, "invalid")
	if n := len(caa.taken()); n != 0 {
		t.Errorf("%d checks", n)
	}
}

// TestAPanicInACAACheckIsNoYes, neither with a validation nor before a signature.
func TestAPanicInACAACheckIsNoYes(t *testing.T) {
	t.Parallel()
	w, caa := caaWorld(t)
	c := w.client()
	u, r := c.ready("a.example.com")
	caa.mu.Lock()
	caa.panic = true
	caa.mu.Unlock()
	_, other := c.order("b.example.com")
	if got := c.prove(other.strs("authorizations")[0], "dns-01").str("status"); got != "invalid" {
		t.Errorf("authorization is %s", got)
	}
	w.clock.advance(7 * time.Hour)
	moved := w.watched.next()
	c.finalize(r, "a.example.com").want(200)
	<-moved
	if got := c.get(u).str("status"); got != "processing" {
		t.Errorf("order is %s", got)
	}
}

// TestWhatWasProvenBeforeIsCheckedAnew covers an order that was ready at once,
// with checks of long ago.
func TestWhatWasProvenBeforeIsCheckedAnew(t *testing.T) {
	t.Parallel()
	w, caa := caaWorld(t, func(c *acme.Config) { c.ReuseAuthorizations = true })
	c := w.client()
	c.ready("a.example.com")
	w.clock.advance(24 * time.Hour)
	caa.taken()
	u, r := c.order("a.example.com")
	if r.str("status") != "ready" {
		t.Fatalf("order is %s", r.str("status"))
	}
	caa.say("a.example.com", forbidden)
	c.finalize(r, "a.example.com").want(200)
	c.await(u, "invalid")
	if n := w.certificates(ca.Issued); n != 0 {
		t.Errorf("%d certificates", n)
	}
}

// TestNothingIsSignedOnOldCAA holds the last gate by itself.
func TestNothingIsSignedOnOldCAA(t *testing.T) {
	t.Parallel()
	w, _ := caaWorld(t)
	now := w.clock.now()
	for age, holds := range map[time.Duration]bool{0: true, 7 * time.Hour: true, 8*time.Hour + time.Minute: false} {
		if err := w.server.CAAHolds(now.Add(-age)); (err == nil) != holds {
			t.Errorf("after %v: %v", age, err)
		}
	}
	if err := w.server.CAAHolds(time.Time{}); err == nil {
		t.Error("what was never checked holds")
	}
	if err := newWorld(t).server.CAAHolds(time.Time{}); err != nil {
		t.Errorf("without CAA: %v", err)
	}
}

// TestCAAOfWhatLiesBelowIsOfEachName: a domain's records say nothing of names
// below it that have records of their own.
func TestCAAOfWhatLiesBelowIsOfEachName(t *testing.T) {
	t.Parallel()
	w, caa := caaWorld(t, below)
	c := w.client()
	caa.say("example.com", forbidden)
	r := c.post(w.url("new-order"), ancestor("a.example.com", "example.com", "b.example.com", "example.com")).want(201)
	for _, a := range r.strs("authorizations") {
		if got := c.prove(a, "dns-01").str("status"); got != "valid" {
			t.Fatalf("authorization is %s", got)
		}
	}
	if calls := caa.taken(); len(calls) > 0 {
		t.Errorf("asked for a name that is not to be certified: %+v", calls)
	}
	u := r.location()
	c.finalize(c.get(u), "a.example.com", "b.example.com").want(200)
	c.await(u, "valid")
	calls := caa.taken()
	if len(calls) != 2 || calls[0].Method != acme.DNS01 || calls[1].Method != acme.DNS01 {
		t.Errorf("asked %+v", calls)
	}
	caa.say("b.example.com", forbidden)
	r = c.post(w.url("new-order"), ancestor("b.example.com", "example.com")).want(201)
	u = r.location()
	if r.str("status") != "ready" {
		for _, a := range r.strs("authorizations") {
			c.prove(a, "dns-01")
		}
	}
	c.finalize(c.get(u), "b.example.com").want(200)
	c.await(u, "invalid")
}

func TestWhatCAAAllowedIsKeptOnce(t *testing.T) {
	t.Parallel()
	w, caa := caaWorld(t, below)
	c := w.client()
	r := c.post(w.url("new-order"), ancestor("a.example.com", "example.com", "b.example.com", "example.com")).want(201)
	for _, a := range r.strs("authorizations") {
		c.prove(a, "dns-01")
	}
	u := r.location()
	caa.say("b.example.com", noAnswer)
	moved := w.watched.next()
	c.finalize(c.get(u), "a.example.com", "b.example.com").want(200)
	<-moved // put off
	for range 3 {
		w.clock.advance(31 * time.Second)
		if err := w.server.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.entries("caa.checked"); len(got) != 0 {
		t.Errorf("an order that waits for one name left %d entries of the other", len(got))
	}
	caa.say("b.example.com", nil)
	w.clock.advance(31 * time.Second)
	if err := w.server.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.await(u, "valid")
	if got := w.entries("caa.checked"); len(got) != 2 {
		t.Errorf("the certificate has %d entries of two checks", len(got))
	}
}
