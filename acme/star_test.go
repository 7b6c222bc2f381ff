package acme_test

import (
	"context"
	"crypto/x509"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
)

func starred(c *acme.Config) {
	c.Star = acme.StarConfig{Enabled: true, AllowGet: true}
	c.AuthzLifetime = 60 * day
}

// rowOf asks for certificates of that lifetime, until end.
func (w *world) rowOf(life, end time.Duration, more map[string]any, names ...string) map[string]any {
	o, a := dns(names...), map[string]any{"end-date": w.clock.now().Add(end).UTC().Format(time.RFC3339), "lifetime": int(life / time.Second)}
	maps.Copy(a, more)
	o["auto-renewal"] = a
	return o
}

// row makes an order with auto-renewal, and has its first certificate issued.
func (c *client) row(wish map[string]any, names ...string) *reply {
	c.t.Helper()
	r := c.post(c.w.url("new-order"), wish).want(201)
	for _, a := range r.strs("authorizations") {
		c.prove(a, "dns-01")
	}
	return c.post(r.str("finalize"), csrBody(catest.CSR(c.t, newKey(c.t), names...))).want(200)
}

func (c *client) newest(star string) *x509.Certificate {
	c.t.Helper()
	return leaf(c.t, c.get(star).want(200).body)
}

func (w *world) renewStars() {
	w.t.Helper()
	if err := w.server.RenewStars(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func TestRowOfCertificatesIsIssuedAheadOfTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, starred)
	c := w.client()
	meta, _ := c.do("GET", w.url("directory"), "", nil).want(200).json["meta"].(map[string]any)
	if got, _ := meta["auto-renewal"].(map[string]any); got["min-lifetime"] != 86400.0 || got["max-duration"] != float64(60*86400) || got["allow-certificate-get"] != true {
		t.Errorf("meta: %v", meta)
	}
	r := c.row(w.rowOf(4*day, 10*day, nil, "a.example.com"), "a.example.com")
	auto, _ := r.json["auto-renewal"].(map[string]any)
	if r.str("status") != "valid" || r.json["certificate"] != nil || auto["lifetime"] != float64(4*86400) || auto["lifetime-adjust"] != float64(2*86400) || auto["end-date"] == "" {
		t.Fatalf("order: %s", r.body)
	}
	star := r.str("star-certificate")
	end, _ := time.Parse(time.RFC3339, auto["end-date"].(string))
	first := c.get(star).want(200)
	cert := leaf(t, first.body)
	for name, want := range map[string]time.Time{"Cert-Not-Before": cert.NotBefore, "Cert-Not-After": cert.NotAfter} {
		if got := first.header.Get(name); got != want.UTC().Format(http.TimeFormat) {
			t.Errorf("%s is %q; want %s", name, got, want)
		}
	}
	begin := cert.NotAfter.Add(time.Second - 4*day)
	if d := time.Since(begin); d < 0 || d > time.Minute {
		t.Errorf("the first certificate ends at %s", cert.NotAfter)
	}
	w.renewStars()
	if again := c.newest(star); again.SerialNumber.Cmp(cert.SerialNumber) != 0 {
		t.Error("renewed too early")
	}
	// Half of a life before each end the next one is there, and valid.
	for i, want := range []time.Time{begin.Add(8*day - time.Second), end.Add(-time.Second)} {
		if i == 0 {
			w.clock.advance(2*day + time.Minute)
		} else {
			w.clock.advance(4 * day)
		}
		for range 3 {
			w.renewStars()
		}
		next := c.newest(star)
		if !next.NotAfter.Equal(want.Truncate(time.Second)) || next.NotBefore.After(w.clock.now()) || next.SerialNumber.Cmp(cert.SerialNumber) == 0 {
			t.Errorf("certificate %d is valid from %s to %s; want until %s", i+1, next.NotBefore, next.NotAfter, want)
		}
		if got := w.certificates(ca.Issued); got != i+2 {
			t.Errorf("%d certificates after period %d", got, i+1)
		}
		cert = next
	}
	w.clock.advance(3 * day)
	w.renewStars()
	if w.certificates(ca.Issued) != 3 {
		t.Error("issued for after the end")
	}
	w.clock.advance(2 * day)
	c.get(star).problem(403, "autoRenewalExpired")
}

// RFC 8739 §3.5: no certificate is valid before start-date, not even one that is
// backdated elsewhere, and an overlap of more than a lifetime is one of a lifetime.
func TestRowKeepsToItsDates(t *testing.T) {
	t.Parallel()
	w := newWorld(t, starred)
	c := w.client()
	plain := c.newest(c.row(w.rowOf(4*day, 10*day, nil, "plain.example.com"), "plain.example.com").str("star-certificate"))
	if !plain.NotBefore.Before(w.clock.now().Add(-30 * time.Second)) {
		t.Fatal("certificates are not backdated here, so that this shows nothing")
	}
	start := w.clock.now().Add(-time.Second).UTC().Truncate(time.Second)
	wish := w.rowOf(4*day, 10*day, map[string]any{"start-date": start.Format(time.RFC3339), "lifetime-adjust": 400 * 86400}, "a.example.com")
	r := c.row(wish, "a.example.com")
	if got := c.newest(r.str("star-certificate")); got.NotBefore.Before(start) {
		t.Errorf("valid from %s; start-date was %s", got.NotBefore, start)
	}
	auto, _ := r.json["auto-renewal"].(map[string]any)
	if auto["start-date"] != start.Format(time.RFC3339) || auto["lifetime-adjust"] != float64(4*86400) || r.str("expires") != auto["end-date"] {
		t.Errorf("order: %s", r.body)
	}
	w.renewStars()
	if n := w.certificates(ca.Issued); n != 3 {
		t.Errorf("%d certificates; want the next one at once", n)
	}
}

func TestMissedPeriodsAreLeftOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, starred)
	c := w.client()
	star := c.row(w.rowOf(2*day, 30*day, nil, "a.example.com"), "a.example.com").str("star-certificate")
	first := c.newest(star)
	w.clock.advance(11*day + time.Hour)
	for range 3 {
		w.renewStars()
	}
	if got := c.newest(star); !got.NotAfter.Equal(first.NotAfter.Add(12*day)) && !got.NotAfter.Equal(first.NotAfter.Add(10*day)) {
		t.Errorf("the certificate ends at %s, the first at %s", got.NotAfter, first.NotAfter)
	} else if got.NotAfter.Before(w.clock.now()) || w.certificates(ca.Issued) != 2 {
		t.Errorf("%d certificates, the newest until %s", w.certificates(ca.Issued), got.NotAfter)
	}
}

func TestCanceledRowIsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, starred)
	c, other := w.client(), w.client()
	open := c.post(w.url("new-order"), w.rowOf(4*day, 10*day, nil, "b.example.com")).want(201)
	cancel := map[string]string{"status": "canceled"}
	c.post(open.location(), cancel).problem(400, "autoRenewalCancellationInvalid")
	r := c.row(w.rowOf(4*day, 10*day, nil, "a.example.com"), "a.example.com")
	order, star := r.location(), r.str("star-certificate")
	other.post(order, cancel).problem(404, "malformed")
	c.post(order, map[string]string{"status": "valid"}).problem(400, "malformed")
	w.clock.advance(time.Hour)
	at := w.clock.now()
	r = c.post(order, cancel).want(200)
	if over, err := time.Parse(time.RFC3339, r.str("expires")); err != nil || over.Sub(at).Abs() > time.Minute || r.str("status") != "canceled" || r.json["star-certificate"] != nil {
		t.Errorf("canceled: %s", r.body)
	}
	c.get(star).problem(403, "autoRenewalCanceled")
	c.post(order, cancel).problem(400, "autoRenewalCancellationInvalid")
	w.clock.advance(3 * day)
	w.renewStars()
	if n := w.certificates(ca.Issued); n != 1 {
		t.Errorf("%d certificates", n)
	}
	plain, _ := c.order("c.example.com")
	c.post(plain, cancel).problem(400, "malformed")
}

func TestStarCertificatesAreReadWithoutAnAccountIfAgreed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, starred)
	c := w.client()
	agreed := c.row(w.rowOf(4*day, 10*day, map[string]any{"allow-certificate-get": true}, "a.example.com"), "a.example.com")
	private := c.row(w.rowOf(4*day, 10*day, nil, "b.example.com"), "b.example.com")
	r := c.do("GET", agreed.str("star-certificate"), "", nil).want(200)
	cert := leaf(t, r.body)
	if c.newest(agreed.str("star-certificate")).SerialNumber.Cmp(cert.SerialNumber) != 0 {
		t.Error("POST-as-GET and GET differ")
	}
	if r.header.Get("Cache-Control") != "public, max-age=3600" || r.header.Get("Expires") == "" || r.header.Get("Replay-Nonce") != "" || r.header.Get("Cert-Not-After") == "" {
		t.Errorf("%v", r.header)
	}
	if h := c.do("HEAD", agreed.str("star-certificate"), "", nil).want(200); len(h.body) != 0 || h.header.Get("Cert-Not-After") != r.header.Get("Cert-Not-After") {
		t.Errorf("%v", h.header)
	}
	plain, _ := c.order("c.example.com")
	var bodies []string
	for _, u := range []string{private.str("star-certificate"), w.url("star/" + strings.Repeat("0", 32)), w.url("star/x"), w.url("star/" + plain[strings.LastIndexByte(plain, '/')+1:])} {
		bodies = append(bodies, string(c.do("GET", u, "", nil).want(404).body))
	}
	for _, b := range bodies {
		if b != bodies[0] {
			t.Errorf("can be told apart: %q", bodies)
		}
	}
}

func TestStarCertificatesAreNotRevoked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, starred)
	c := w.client()
	star := c.row(w.rowOf(4*day, 10*day, nil, "a.example.com"), "a.example.com").str("star-certificate")
	first := c.newest(star)
	w.clock.advance(3 * day)
	w.renewStars()
	for _, cert := range []*x509.Certificate{first, c.newest(star)} {
		body := map[string]any{"certificate": b64(cert.Raw), "reason": 4}
		c.post(w.url("revoke-cert"), body).problem(403, "autoRenewalRevocationNotSupported")
		w.client().post(w.url("revoke-cert"), body).problem(403, "unauthorized")
	}
}

func TestBadAutoRenewalsAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, starred, func(c *acme.Config) { c.Star.AllowGet = false })
	c := w.client()
	at := func(d time.Duration) string { return w.clock.now().Add(d).UTC().Format(time.RFC3339) }
	for name, more := range map[string]map[string]any{
		"no end":               {"end-date": nil},
		"end in the past":      {"end-date": at(-day)},
		"end before start":     {"start-date": at(9 * day), "end-date": at(8 * day)},
		"end too far away":     {"end-date": at(61 * day)},
		"no time":              {"end-date": "tomorrow"},
		"lifetime too short":   {"lifetime": 3600},
		"lifetime too long":    {"lifetime": 1 << 53},
		"negative":             {"lifetime": -86400},
		"half a second":        {"lifetime": 86400.5},
		"in words":             {"lifetime": "86400"},
		"adjust negative":      {"lifetime-adjust": -1},
		"GET is not offered":   {"allow-certificate-get": true},
		"start beyond 30 days": {"start-date": at(40 * day), "end-date": at(59 * day)},
	} {
		wish := w.rowOf(4*day, 10*day, more, "a.example.com")
		if r := c.post(w.url("new-order"), wish); r.status != 400 || r.str("type") != "urn:ietf:params:acme:error:malformed" {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
	}
	wish := w.rowOf(4*day, 10*day, nil, "a.example.com")
	wish["notAfter"] = at(9 * day)
	c.post(w.url("new-order"), wish).problem(400, "malformed")
}

func TestAutoRenewalIsOffByDefault(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	if meta, _ := c.do("GET", w.url("directory"), "", nil).json["meta"].(map[string]any); meta["auto-renewal"] != nil {
		t.Errorf("meta: %v", meta)
	}
	c.post(w.url("new-order"), w.rowOf(4*day, 10*day, nil, "a.example.com")).problem(400, "malformed")
}

// What is not proven any more is not certified any more.
func TestRowEndsWithItsAuthorizations(t *testing.T) {
	t.Parallel()
	w := newWorld(t, starred)
	c := w.client()
	r := c.row(w.rowOf(4*day, 10*day, nil, "a.example.com"), "a.example.com")
	c.post(r.strs("authorizations")[0], map[string]string{"status": "deactivated"}).want(200)
	w.clock.advance(3 * day)
	w.renewStars()
	c.get(r.str("star-certificate")).problem(403, "autoRenewalCanceled")
	o := c.get(r.location()).want(200)
	if e, _ := o.json["error"].(map[string]any); o.str("status") != "canceled" || e["type"] != "urn:ietf:params:acme:error:unauthorized" {
		t.Errorf("order: %s", o.body)
	}
	if n := w.certificates(ca.Issued) + w.certificates(ca.Pending); n != 1 {
		t.Errorf("%d certificates", n)
	}
}

func TestRowEndsWithItsAccount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, starred)
	c := w.client()
	c.row(w.rowOf(4*day, 10*day, nil, "a.example.com"), "a.example.com")
	c.post(c.kid, map[string]string{"status": "deactivated"}).want(200)
	w.clock.advance(3 * day)
	w.renewStars()
	if n := w.certificates(ca.Issued); n != 1 {
		t.Errorf("%d certificates", n)
	}
}

// A process that ends while it renews leaves an intent behind. Whoever comes
// next makes the period's one certificate.
func TestRenewalThatDiedIsMadeOnce(t *testing.T) {
	t.Parallel()
	crash := &crashing{}
	w := newWorld(t, starred, func(c *acme.Config) { crash.CA, c.CA = c.CA, crash })
	c := w.client()
	star := c.row(w.rowOf(4*day, 10*day, nil, "a.example.com"), "a.example.com").str("star-certificate")
	first := c.newest(star)
	w.clock.advance(3 * day)
	crash.mu.Lock()
	crash.times = 1
	crash.mu.Unlock()
	w.renewStars()
	if got := c.newest(star); got.SerialNumber.Cmp(first.SerialNumber) != 0 || w.certificates(ca.Pending) != 1 {
		t.Fatalf("%d are pending", w.certificates(ca.Pending))
	}
	w.clock.advance(2 * time.Minute) // the lease
	for range 3 {
		w.renewStars()
	}
	if got := c.newest(star); !got.NotAfter.Equal(first.NotAfter.Add(4*day)) || w.certificates(ca.Issued) != 2 {
		t.Errorf("%d certificates, the newest until %s", w.certificates(ca.Issued), got.NotAfter)
	}
}

func TestRowsOfAnAccountAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, starred, func(c *acme.Config) { c.Star.MaxRows = 2 })
	c := w.client()
	var first *reply
	for n := range 2 {
		name := "n" + strconv.Itoa(n) + ".example.com"
		first = c.row(w.rowOf(4*day, 10*day, nil, name), name)
	}
	more := w.rowOf(4*day, 10*day, nil, "more.example.com")
	c.post(w.url("new-order"), more).problem(429, "rateLimited")
	w.client().post(w.url("new-order"), more).want(201)
	c.post(first.location(), map[string]string{"status": "canceled"}).want(200)
	c.post(w.url("new-order"), more).want(201)
}

// CAA records that forbid what they allowed end a row; a DNS that fails puts it
// off, and the certificate that is there goes on.
func TestRowKeepsToCAARecords(t *testing.T) {
	t.Parallel()
	w, caa := caaWorld(t, starred)
	c := w.client()
	r := c.row(w.rowOf(4*day, 10*day, nil, "a.example.com"), "a.example.com")
	star := r.str("star-certificate")
	first := c.newest(star)
	w.clock.advance(3 * day)
	caa.say("a.example.com", noAnswer)
	w.renewStars()
	if got := c.newest(star); got.SerialNumber.Cmp(first.SerialNumber) != 0 {
		t.Error("renewed though CAA records are not known")
	}
	caa.say("a.example.com", nil)
	caa.taken()
	w.clock.advance(time.Minute)
	w.renewStars()
	second := c.newest(star)
	if second.SerialNumber.Cmp(first.SerialNumber) == 0 || len(caa.taken()) != 1 {
		t.Error("not renewed, or without a look at CAA records")
	}
	caa.say("a.example.com", forbidden)
	w.clock.advance(4 * day)
	w.renewStars()
	c.get(star).problem(403, "autoRenewalCanceled")
	if e, _ := c.get(r.location()).want(200).json["error"].(map[string]any); e["type"] != "urn:ietf:params:acme:error:caa" {
		t.Errorf("order's error is %v", e)
	}
}

// Each directory renews its own, and shows nobody else's.
func TestDirectoriesRenewTheirOwn(t *testing.T) {
	t.Parallel()
	one, two := newBeside(t, starred)
	c := two.client()
	star := c.row(two.rowOf(4*day, 10*day, map[string]any{"allow-certificate-get": true}, "a.example.com"), "a.example.com").str("star-certificate")
	first := c.newest(star)
	two.clock.advance(3 * day)
	one.renewStars()
	if got := c.newest(star); got.SerialNumber.Cmp(first.SerialNumber) != 0 {
		t.Error("another directory renewed it")
	}
	two.renewStars()
	if got := c.newest(star); got.SerialNumber.Cmp(first.SerialNumber) == 0 {
		t.Error("not renewed")
	}
	c.do("GET", star, "", nil).want(200)
	c.do("GET", one.url("star/"+star[strings.LastIndexByte(star, '/')+1:]), "", nil).want(404)
}

func TestAPlainOrderIsNotARowForTheSameNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t, starred, reusingOrders)
	c := w.client()
	row := c.post(w.url("new-order"), w.rowOf(4*day, 10*day, nil, "a.example.com")).want(201)
	plain := c.post(w.url("new-order"), dns("a.example.com")).want(201)
	if plain.location() == row.location() || plain.json["auto-renewal"] != nil {
		t.Errorf("an order without auto-renewal is %s", plain.body)
	}
}

func TestRowsThatHaveNotBegunAreCountedToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, starred, func(c *acme.Config) { c.Star.MaxRows = 2 })
	c := w.client()
	c.row(w.rowOf(4*day, 10*day, nil, "a.example.com"), "a.example.com")
	c.post(w.url("new-order"), w.rowOf(4*day, 10*day, nil, "b.example.com")).want(201)
	c.post(w.url("new-order"), w.rowOf(4*day, 10*day, nil, "c.example.com")).problem(429, "rateLimited")
	w.clock.advance(8 * day) // one ran out and was never proven
	c.post(w.url("new-order"), w.rowOf(4*day, 10*day, nil, "c.example.com")).want(201)
}

func TestWhatADirectoryAllowsNoMoreIsNotIssued(t *testing.T) {
	t.Parallel()
	w := newWorld(t, starred)
	c := w.client()
	star := c.row(w.rowOf(4*day, 10*day, nil, "a.example.com"), "a.example.com").str("star-certificate")
	order, r := c.ready("a.example.com")
	for name, scope := range map[string]acme.Scope{"rejectedIdentifier": {DNS: []string{"b.example.com"}}, "invalidProfile": {Profiles: []string{"another"}}} {
		w.server.Narrow(scope)
		c.finalize(r, "a.example.com").problem(400, name)
	}
	w.server.Narrow(acme.Scope{DNS: []string{"b.example.com"}})
	if got := c.get(order).str("status"); got != "ready" {
		t.Errorf("the order is %s", got)
	}
	w.clock.advance(3 * day)
	w.renewStars()
	if n := w.certificates(ca.Issued); n != 1 {
		t.Errorf("%d certificates", n)
	}
	c.get(star).problem(403, "autoRenewalCanceled")
}

// A mire answers nothing about one name until it is let go.
type mire struct {
	name  string
	armed atomic.Bool
	asked chan struct{}
	done  chan struct{}
}

func (p *mire) CheckCAA(_ context.Context, q acme.CAAQuery) (acme.CAARecord, *acme.Problem) {
	if q.Name == p.name && p.armed.Load() {
		p.asked <- struct{}{}
		<-p.done
	}
	return acme.CAARecord{Name: q.Name}, nil
}

func TestNobodyWaitsForTheNameServerOfARow(t *testing.T) {
	t.Parallel()
	p := &mire{name: "a.example.com", asked: make(chan struct{}, 1), done: make(chan struct{})}
	w := newWorld(t, starred, func(c *acme.Config) { c.CAA, c.FinalizeSlots, c.FinalizeWait = p, 1, time.Second })
	c := w.client()
	star := c.row(w.rowOf(4*day, 10*day, nil, p.name), p.name).str("star-certificate")
	first := c.newest(star)
	w.clock.advance(3 * day)
	p.armed.Store(true)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		w.renewStars()
	}()
	<-p.asked
	other := w.client()
	_, r := other.ready("b.example.com")
	if got := other.finalize(r, "b.example.com").want(200).str("status"); got != "valid" {
		t.Errorf("the order of somebody else is %s", got)
	}
	close(p.done)
	<-renewed
	if next := c.newest(star); next.SerialNumber.Cmp(first.SerialNumber) == 0 {
		t.Error("not renewed in the end")
	}
}
