package acme_test

import (
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/ratelimit"
	"github.com/secsy-pki/secsy-pki/store"
)

// certID writes RFC 9773 §4.1 by hand.
func certID(cert *x509.Certificate) string {
	n := cert.SerialNumber.Bytes()
	if n[0]&0x80 != 0 {
		n = append([]byte{0}, n...)
	}
	return b64(cert.AuthorityKeyId) + "." + b64(n)
}

func (c *client) renewalInfo(id string) *reply {
	c.t.Helper()
	return c.do("GET", c.w.url("renewal-info/"+id), "", nil)
}

// window reads what a renewalInfo suggests.
func (r *reply) window() (start, end time.Time) {
	r.t.Helper()
	w, _ := r.json["suggestedWindow"].(map[string]any)
	for name, at := range map[string]*time.Time{"start": &start, "end": &end} {
		s, _ := w[name].(string)
		v, err := time.Parse(time.RFC3339, s)
		if err != nil || strings.Contains(s, ".") {
			r.t.Fatalf("%s of the window is %q: %s", name, s, r.body)
		}
		*at = v
	}
	if !start.Before(end) {
		r.t.Fatalf("the window ends before it begins: %s", r.body)
	}
	return start, end
}

func TestRenewalInfoTellsTheWindow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	base := c.do("GET", w.url("directory"), "", nil).want(200).str("renewalInfo")
	if base != w.url("renewal-info") {
		t.Fatalf("renewalInfo is at %q", base)
	}
	cert, _ := c.issue("a.example.com")
	r := c.do("GET", base+"/"+certID(cert), "", nil).want(200)
	start, end := r.window()
	life := cert.NotAfter.Sub(cert.NotBefore) + time.Second
	if got := start.Sub(cert.NotBefore); got != life/5*3 {
		t.Errorf("the window begins after %s of %s", got, life)
	}
	if got := cert.NotAfter.Add(time.Second).Sub(end); got < life/3 || got > life/3+time.Second {
		t.Errorf("the window ends %s before the certificate, of %s", got, life)
	}
	if r.json["explanationURL"] != nil {
		t.Errorf("there is nothing to explain: %s", r.body)
	}
	for name, want := range map[string]string{
		"Retry-After": "21600", "Cache-Control": "public, max-age=60", "Content-Type": "application/json",
		"Replay-Nonce": "", "Access-Control-Allow-Origin": "*", "Link": "<" + w.url("directory") + `>;rel="index"`,
	} {
		if got := r.header.Get(name); got != want {
			t.Errorf("%s is %q; want %q", name, got, want)
		}
	}
	// win-acme puts the two together without a slash, others add one too many.
	for _, u := range []string{base + "//" + certID(cert), base + certID(cert)} {
		if again := c.do("GET", u, "", nil).want(200); string(again.body) != string(r.body) {
			t.Errorf("%s: %s", u, again.body)
		}
	}
	head := c.do("HEAD", base+"/"+certID(cert), "", nil).want(200)
	if len(head.body) != 0 || head.header.Get("Retry-After") != "21600" {
		t.Errorf("HEAD: %v %q", head.header, head.body)
	}
	if got := c.do("POST", base+"/"+certID(cert), "application/jose+json", nil).want(405).header.Get("Allow"); got != "GET, HEAD, OPTIONS" {
		t.Errorf("Allow is %q", got)
	}
}

// Certificates under both policies name their issuer's key, which is half of
// their id.
func TestPublicCertificatesHaveRenewalInfo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *acme.Config) {
		public := catest.New(t, func(x *ca.Config) { x.Policy = ca.Public })
		c.CA = public.Authority
	})
	c := w.client()
	cert, _ := c.issue("a.example.com")
	if len(cert.AuthorityKeyId) == 0 || len(cert.SubjectKeyId) != 0 {
		t.Fatalf("not as under the policy public: %x %x", cert.AuthorityKeyId, cert.SubjectKeyId)
	}
	c.renewalInfo(certID(cert)).want(200).window()
}

func TestUnknownAndForeignCertificatesLookTheSame(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	cert, _ := c.issue("a.example.com")
	other := newWorld(t)
	foreign, _ := other.client().issue("a.example.com")
	keyID, serial, _ := strings.Cut(certID(cert), ".")
	foreignKey, foreignSerial, _ := strings.Cut(certID(foreign), ".")
	want := `{"type":"urn:ietf:params:acme:error:malformed","detail":"no certificate of this id was issued here","status":404}`
	var header http.Header
	for _, id := range []string{foreignKey + "." + foreignSerial, keyID + "." + foreignSerial, foreignKey + "." + serial, keyID + ".AQ"} {
		r := c.renewalInfo(id).want(404)
		r.header.Del("Date")
		if header == nil {
			header = r.header
		}
		if string(r.body) != want || !maps.EqualFunc(header, r.header, slices.Equal) {
			t.Errorf("%s: %s %v", id, r.body, r.header)
		}
		if r.header.Get("Replay-Nonce") != "" || r.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", id, r.header)
		}
	}
	for _, id := range []string{"", "x", keyID, keyID + "." + serial + "=", keyID + "." + serial + "/", "..", keyID + "%2E" + serial + "%00"} {
		if r := c.renewalInfo(id); r.status != 400 || r.str("type") != "urn:ietf:params:acme:error:malformed" {
			t.Errorf("%q: %d %s", id, r.status, r.body)
		}
	}
}

func TestRevokedCertificateIsRenewedNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	cert, _ := c.issue("a.example.com")
	c.post(w.url("revoke-cert"), map[string]any{"certificate": b64(cert.Raw), "reason": 4}).want(200)
	if _, end := c.renewalInfo(certID(cert)).want(200).window(); end.After(time.Now()) {
		t.Errorf("the window ends at %s", end)
	}
}

// Who comes back a quarter of a day later would miss the window of a
// certificate that lives for one.
func TestShortLivedCertificatesAreAskedForMoreOften(t *testing.T) {
	t.Parallel()
	for life, want := range map[time.Duration]int{
		90 * 24 * time.Hour: 21600, 6 * 24 * time.Hour: 17280, 24 * time.Hour: 2880, time.Hour: 120, 5 * time.Minute: 60,
	} {
		w := newWorld(t, func(c *acme.Config) {
			short := catest.New(t, func(x *ca.Config) { x.Profiles[0].Validity, x.Profiles[0].Backdate = life, time.Second })
			c.CA = short.Authority
		})
		c := w.client()
		cert, _ := c.issue("a.example.com")
		got, err := strconv.Atoi(c.renewalInfo(certID(cert)).want(200).header.Get("Retry-After"))
		if err != nil || got != want {
			t.Errorf("%s: Retry-After is %d; want %d (%v)", life, got, want, err)
		}
	}
}

func replacing(id string, names ...string) map[string]any {
	o := dns(names...)
	o["replaces"] = id
	return o
}

func TestReplacementIsEchoedAndKeptForGood(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	cert, _ := c.issue("a.example.com", "b.example.com")
	id := certID(cert)
	r := c.post(w.url("new-order"), replacing(id, "b.example.com", "new.example.com")).want(201)
	if r.str("replaces") != id {
		t.Fatalf("newOrder: %s", r.body)
	}
	order := r.location()
	if r = c.get(order).want(200); r.str("replaces") != id {
		t.Fatalf("order: %s", r.body)
	}
	for _, a := range r.strs("authorizations") {
		c.prove(a, "dns-01")
	}
	csr := csrBody(catest.CSR(t, newKey(t), "b.example.com", "new.example.com"))
	if r = c.post(r.str("finalize"), csr).want(200); r.str("status") != "valid" || r.str("replaces") != id {
		t.Fatalf("finalized: %s", r.body)
	}
	next := leaf(t, c.get(r.str("certificate")).want(200).body)
	c.post(w.url("new-order"), replacing(id, "a.example.com")).problem(409, "alreadyReplaced")
	rec, err := w.store.Record(t.Context(), ca.SerialOf(cert.SerialNumber))
	if err != nil || rec.ReplacedBy != ca.SerialOf(next.SerialNumber) {
		t.Errorf("replaced by %q: %v", rec.ReplacedBy, err)
	}

	w.clock.advance(40 * 24 * time.Hour) // the order is deleted
	if err := w.server.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.get(order).problem(404, "malformed")
	c.post(w.url("new-order"), replacing(id, "a.example.com")).problem(409, "alreadyReplaced")
}

func TestOnlyOwnCertificatesAreReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, other := w.client(), w.client()
	cert, _ := other.issue("a.example.com")
	foreign, _ := newWorld(t).client().issue("a.example.com")
	keyID, _, _ := strings.Cut(certID(cert), ".")
	var bodies []string
	for _, id := range []string{certID(cert), certID(foreign), keyID + ".AQ"} {
		r := c.post(w.url("new-order"), replacing(id, "a.example.com")).problem(400, "malformed")
		bodies = append(bodies, string(r.body))
	}
	if bodies[0] != bodies[1] || bodies[0] != bodies[2] {
		t.Errorf("another's and nobody's can be told apart: %q", bodies)
	}
	mine, _ := c.issue("a.example.com")
	c.post(w.url("new-order"), replacing(certID(mine), "b.example.com")).problem(400, "malformed")
	for _, bad := range []any{"x", certID(mine) + "=", certID(mine) + ".AQ", 5, []string{certID(mine)}} {
		o := dns("a.example.com")
		o["replaces"] = bad
		c.post(w.url("new-order"), o).problem(400, "malformed")
	}
	c.post(w.url("new-order"), replacing(certID(mine), "a.example.com")).want(201)
}

// An order that is under way stands in the way of others, but not of a client
// that lost track of it, nor once it is invalid or ran out.
func TestOpenReplacementIsTakenUpAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	cert, _ := c.issue("a.example.com", "b.example.com")
	id := certID(cert)
	first := c.post(w.url("new-order"), replacing(id, "a.example.com")).want(201)
	if again := c.post(w.url("new-order"), replacing(id, "a.example.com")).want(201); again.location() != first.location() {
		t.Errorf("the same wish made another order")
	}
	c.post(w.url("new-order"), replacing(id, "b.example.com")).problem(409, "alreadyReplaced")

	c.post(first.strs("authorizations")[0], map[string]string{"status": "deactivated"}).want(200)
	second := c.post(w.url("new-order"), replacing(id, "b.example.com")).want(201)
	w.clock.advance(8 * 24 * time.Hour) // it ran out; the sweeper did not come by
	third := c.post(w.url("new-order"), replacing(id, "a.example.com")).want(201)
	if third.location() == second.location() {
		t.Error("an order that ran out is taken up again")
	}
	if got := c.get(second.location()).want(200).str("status"); got != "invalid" {
		t.Errorf("the order that ran out is %s", got)
	}
}

func TestOfTwoReplacementsAtOnceOneWins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	cert, _ := c.issue("a.example.com", "b.example.com")
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex // guards got
		got = map[int]int{}
	)
	for i := range 8 {
		twin := &client{t: t, w: w, key: c.key, kid: c.kid}
		names := []string{"a.example.com", fmt.Sprintf("n%d.example.com", i)}
		wg.Go(func() {
			r := twin.post(w.url("new-order"), replacing(certID(cert), names...))
			mu.Lock()
			defer mu.Unlock()
			got[r.status]++
		})
	}
	wg.Wait()
	if got[201] != 1 || got[409] != 7 {
		t.Errorf("answers: %v", got)
	}
}

// A renewal in its window is what we asked for: no quota stands in its way. But
// a name that is new, a certificate that is not due, and one that was revoked to
// make it due, pay as all do.
func TestDueRenewalCostsNoQuota(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *acme.Config) { c.OrderQuota = ratelimit.Quota{Limit: 6, Window: 365 * 24 * time.Hour} })
	c := w.client()
	early, _ := c.issue("a.example.com")
	due, _ := c.issue("a.example.com", "b.example.com")
	revoked, _ := c.issue("c.example.com", "d.example.com")
	c.post(w.url("revoke-cert"), map[string]any{"certificate": b64(revoked.Raw), "reason": 4}).want(200)
	c.order("last.example.com")
	c.post(w.url("new-order"), dns("more.example.com")).problem(429, "rateLimited")

	c.post(w.url("new-order"), replacing(certID(early), "a.example.com")).problem(429, "rateLimited")
	c.post(w.url("new-order"), replacing(certID(revoked), "c.example.com")).problem(429, "rateLimited")
	start, _ := c.renewalInfo(certID(due)).want(200).window()
	w.clock.advance(time.Until(start) + time.Minute)
	big := make([]string, 0, 9)
	for i := range 9 {
		big = append(big, fmt.Sprintf("n%d.example.com", i))
	}
	c.post(w.url("new-order"), replacing(certID(due), append(big, "a.example.com")...)).problem(400, "rejectedIdentifier")
	r := c.post(w.url("new-order"), replacing(certID(due), "b.example.com", "a.example.com")).want(201)
	o, err := w.store.Order(context.Background(), r.location()[strings.LastIndexByte(r.location(), '/')+1:])
	if err != nil || !o.Renewal {
		t.Errorf("a due renewal has no priority: %+v, %v", o, err)
	}
}

func (w *world) incident(i ca.Incident) {
	w.t.Helper()
	i.CreatedAt = w.clock.now()
	s, ctx := store.NewIncidents(w.db), context.Background()
	if _, _, err := s.CreateIncident(ctx, i, audit.New("test", "test.done", "test/1", nil)); err != nil {
		w.t.Fatal(err)
	}
	if err := w.server.PollIncidents(ctx); err != nil {
		w.t.Fatal(err)
	}
}

func TestIncidentForcesItsWindow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	cert, _ := c.issue("a.example.com")
	other, _ := c.issue("b.example.com")
	normal := c.renewalInfo(certID(other)).want(200)
	now := time.Now().UTC().Truncate(time.Second)
	soon := ca.Window{Start: now, End: now.Add(time.Hour)}
	w.incident(ca.Incident{Name: "one", Selector: ca.Selector{Listed: true, Profile: catest.ProfileName}, Window: soon, URL: "https://ca.example/why"})
	if r := c.renewalInfo(certID(cert)).want(200); string(r.body) != string(normal.body) && r.json["explanationURL"] != nil {
		t.Errorf("it is not listed yet: %s", r.body)
	} else if r.header.Get("Retry-After") != "3600" {
		t.Errorf("Retry-After is %q while an incident is open", r.header.Get("Retry-After"))
	}
	s := store.NewIncidents(w.db)
	if _, _, err := s.AddIncidentSerials(t.Context(), "one", []ca.Serial{ca.SerialOf(cert.SerialNumber)}, audit.New("test", "test.done", "test/1", nil)); err != nil {
		t.Fatal(err)
	}
	r := c.renewalInfo(certID(cert)).want(200)
	if start, end := r.window(); !start.Equal(soon.Start) || !end.Equal(soon.End) || r.str("explanationURL") != "https://ca.example/why" {
		t.Errorf("the incident's window is not told: %s", r.body)
	}
	if r = c.renewalInfo(certID(other)).want(200); string(r.body) != string(normal.body) {
		t.Errorf("another certificate's window changed: %s", r.body)
	}
	if n := w.server.OpenIncidents(); n != 1 {
		t.Errorf("%d incidents are open", n)
	}
	if _, err := s.EndIncident(t.Context(), "one", audit.New("test", "test.done", "test/1", nil)); err != nil {
		t.Fatal(err)
	}
	if err := w.server.PollIncidents(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r = c.renewalInfo(certID(cert)).want(200); r.json["explanationURL"] != nil || r.header.Get("Retry-After") != "21600" {
		t.Errorf("the incident goes on: %s %v", r.body, r.header)
	}
}

// Incidents hurry, and never put off.
func TestIncidentThatEndsLaterChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	cert, _ := c.issue("a.example.com")
	before := c.renewalInfo(certID(cert)).want(200)
	w.incident(ca.Incident{Name: "late", Selector: ca.Selector{Profile: catest.ProfileName}, Window: ca.Window{Start: cert.NotBefore, End: cert.NotAfter}, URL: "https://ca.example/why"})
	if r := c.renewalInfo(certID(cert)).want(200); string(r.body) != string(before.body) {
		t.Errorf("%s became %s", before.body, r.body)
	}
}

// In an incident a fleet comes at once, and may not find its quota used up.
func TestIncidentMakesRenewalsDue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *acme.Config) { c.OrderQuota = ratelimit.Quota{Limit: 1, Window: 365 * 24 * time.Hour} })
	c := w.client()
	cert, _ := c.issue("a.example.com")
	c.post(w.url("revoke-cert"), map[string]any{"certificate": b64(cert.Raw), "reason": 4}).want(200)
	c.post(w.url("new-order"), replacing(certID(cert), "a.example.com")).problem(429, "rateLimited")
	now := time.Now().UTC().Truncate(time.Second)
	w.incident(ca.Incident{Name: "all", Selector: ca.Selector{Profile: catest.ProfileName}, Window: ca.Window{Start: now, End: now.Add(time.Hour)}, URL: "https://ca.example/why"})
	r := c.renewalInfo(certID(cert)).want(200)
	if _, end := r.window(); end.After(time.Now()) || r.str("explanationURL") != "https://ca.example/why" {
		t.Errorf("a revoked one of an incident: %s", r.body)
	}
	c.post(w.url("new-order"), replacing(certID(cert), "a.example.com")).want(201)
}

// What takes the place of a certificate is not to be replaced itself, without end and without a quota.
func TestAnIncidentIsOverForWhatWasIssuedSince(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *acme.Config) { c.OrderQuota = ratelimit.Quota{Limit: 1, Window: 365 * 24 * time.Hour} })
	c := w.client()
	cert, _ := c.issue("a.example.com")
	now := time.Now().UTC().Truncate(time.Second)
	w.incident(ca.Incident{Name: "all", Selector: ca.Selector{Profile: catest.ProfileName}, Window: ca.Window{Start: now, End: now.Add(time.Hour)}, URL: "https://ca.example/why"})
	r := c.post(w.url("new-order"), replacing(certID(cert), "a.example.com")).want(201)
	for _, a := range r.strs("authorizations") {
		c.prove(a, "dns-01")
	}
	r = c.finalize(c.get(r.location()), "a.example.com").want(200)
	next := leaf(t, c.get(r.str("certificate")).want(200).body)
	if info := c.renewalInfo(certID(next)).want(200); info.json["explanationURL"] != nil {
		t.Errorf("the new certificate is to be replaced as well: %s", info.body)
	}
	c.post(w.url("new-order"), replacing(certID(next), "a.example.com")).problem(429, "rateLimited")
}

// A certificate is not due because its client wanted it to be, or whoever asks
// for short ones has no quota.
func TestACertificateMadeToBeDueIsNoFreeRenewal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *acme.Config) { c.OrderQuota = ratelimit.Quota{Limit: 2, Window: 365 * 24 * time.Hour} })
	c := w.client()
	now := w.clock.now()
	wish := dns("a.example.com")
	wish["notBefore"], wish["notAfter"] = now.Add(-50*time.Minute).Format(time.RFC3339), now.Add(10*time.Minute).Format(time.RFC3339)
	r := c.post(w.url("new-order"), wish).want(201)
	for _, a := range r.strs("authorizations") {
		c.prove(a, "dns-01")
	}
	r = c.finalize(c.get(r.location()), "a.example.com").want(200)
	cert := leaf(t, c.get(r.str("certificate")).want(200).body)
	c.order("b.example.com")
	c.post(w.url("new-order"), replacing(certID(cert), "a.example.com")).problem(429, "rateLimited")
}
