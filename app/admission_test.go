package app

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/ratelimit"
	"github.com/secsy-pki/secsy-pki/store"
)

// admitted switches limits on in a CA of its own.
func admitted(t *testing.T, section string) *app {
	t.Helper()
	return admittedAt(t, newCA(t), section)
}

func admittedAt(t *testing.T, dir, section string) *app {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(dir, configFile), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString("rate_limit: {enabled: true, " + section + "}\n"); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return built(t, dir)
}

// ask is a request to a listener, as its handler sees it.
func (a *app) ask(t *testing.T, listener, method, path, from string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody)
	r.RemoteAddr = from + ":4711"
	w := httptest.NewRecorder()
	a.front.Handler(listener).ServeHTTP(w, r)
	return w
}

// A dashboard or an alert that asks for a metric which is not there is silent
// when it matters.
func TestDashboardAndAlertsAskForMetricsThatExist(t *testing.T) {
	t.Parallel()
	admitted(t, "").monitoredBy(t, "admission-dashboard.json", "admission-alerts.yaml")
}

// monitoredBy holds files of docs/monitoring against the metrics that there are.
func (a *app) monitoredBy(t *testing.T, dashboardFile, alerts string) {
	t.Helper()
	families, err := a.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]map[string]bool{}
	for _, f := range families {
		labels[f.GetName()] = map[string]bool{}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				labels[f.GetName()][l.GetName()] = true
			}
		}
	}
	name := regexp.MustCompile(`secsy_[a-z0-9_]+`)
	by := regexp.MustCompile(`by \(([a-z, ]+)\) \((?:rate|increase)?\(?(secsy_[a-z0-9_]+)`)
	for _, file := range []string{dashboardFile, alerts} {
		b, err := os.ReadFile(filepath.Join("../docs/monitoring", file))
		if err != nil {
			t.Fatal(err)
		}
		found := name.FindAllString(string(b), -1)
		if len(found) < 8 {
			t.Errorf("%s asks for %d metrics only", file, len(found))
		}
		for _, n := range found {
			if labels[strings.TrimSuffix(n, "_bucket")] == nil {
				t.Errorf("%s asks for %s, which is not there", file, n)
			}
		}
		for _, m := range by.FindAllStringSubmatch(string(b), -1) {
			for l := range strings.SplitSeq(m[1], ", ") {
				if l != "le" && l != "instance" && !labels[strings.TrimSuffix(m[2], "_bucket")][l] {
					t.Errorf("%s groups %s by %s, which it does not have", file, m[2], l)
				}
			}
		}
	}
	var dashboard any
	b, _ := os.ReadFile(filepath.Join("../docs/monitoring", dashboardFile))
	if err := json.Unmarshal(b, &dashboard); err != nil {
		t.Errorf("the dashboard: %v", err)
	}
}

// Every class of endpoints can be given a limit by its name, but for revocation,
// and no name is accepted that would limit nothing.
func TestTheClassesThatCanBeConfiguredAreThoseThereAre(t *testing.T) {
	t.Parallel()
	a := admittedAt(t, enrolling(t), "")
	var have []string
	for _, e := range a.limiter.Stat().Endpoints {
		if e.Name != classACMERevoke {
			have = append(have, e.Name)
		}
	}
	f, _ := reflect.TypeFor[config.EndpointLimit]().FieldByName("Name")
	want := strings.Split(f.Tag.Get("allow"), "|")
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("there are %v, and the configuration knows %v", have, want)
	}
}

// The same address is refused at what it used up, in that protocol's own form,
// and at nothing else; others are not. The operator is never refused.
func TestARefusalIsOfOneClientInOneProtocol(t *testing.T) {
	t.Parallel()
	a := admitted(t, "per_ip: {rate: 1, burst: 2}, ")
	const client = "192.0.2.1"
	spend := func(listener, path string) *httptest.ResponseRecorder {
		for range 1000 {
			if w := a.ask(t, listener, http.MethodGet, path, client); w.Header().Get("Retry-After") != "" {
				return w
			}
		}
		t.Fatalf("%s is never refused", path)
		return nil
	}
	for _, c := range []struct{ listener, path, contentType string }{
		{listenHTTPS, "/acme/new-order", "application/problem+json"},
		{listenHTTP, "/ocsp/x", "application/ocsp-response"},
		{listenHTTPS, "/nobody/has/this", "text/plain; charset=utf-8"},
	} {
		w := spend(c.listener, c.path)
		if w.Code != http.StatusTooManyRequests || w.Header().Get("Content-Type") != c.contentType || w.Header().Get("Retry-After") != "1" {
			t.Errorf("%s: %d %q", c.path, w.Code, w.Header())
		}
		if w := a.ask(t, c.listener, http.MethodGet, c.path, "192.0.2.2"); w.Header().Get("Retry-After") != "" {
			t.Errorf("%s: another client is refused: %d", c.path, w.Code)
		}
	}
	for range 200 {
		if w := a.ask(t, listenOperator, http.MethodGet, "/healthz", client); w.Code != http.StatusOK {
			t.Fatalf("the operator's health check: %d", w.Code)
		}
	}
	if w := a.ask(t, listenHTTPS, http.MethodPost, "/acme/revoke-cert", client); w.Code == http.StatusTooManyRequests {
		t.Error("a revocation is refused by a tier")
	}
}

// Whoever has used up his orders can still ask for status, for the directory and
// for a nonce, each as often as its own bucket holds.
func TestOneKindOfRequestIsNotPaidWithAnother(t *testing.T) {
	t.Parallel()
	a := admitted(t, "per_ip: {rate: 1/h, burst: 2}, idle_ttl_seconds: 100000")
	const client = "192.0.2.1"
	refused := func(listener, path string) bool {
		return a.ask(t, listener, http.MethodGet, path, client).Header().Get("Retry-After") != ""
	}
	n := 0
	for ; !refused(listenHTTPS, "/acme/order/x"); n++ { // a quarter of a token each, so less than that is left
		if n > 8 {
			t.Fatal("steps of orders are not limited")
		}
	}
	if n != 8 {
		t.Errorf("two tokens were %d steps, want 8", n)
	}
	for _, x := range []struct {
		listener, path string
		times          int // together more than a quarter of a token, and less than two
	}{
		{listenHTTPS, "/acme/directory", 5},
		{listenHTTPS, "/acme/new-nonce", 5},
		{listenHTTP, "/ocsp/x", 30},
		{listenHTTP, "/crl/x", 5},
		{listenHTTP, "/aia/x", 30},
		{listenHTTP, "/x", 2},
	} {
		for i := range x.times {
			if refused(x.listener, x.path) {
				t.Errorf("%s is paid with orders: refused at the %d. time", x.path, i+1)
				break
			}
		}
	}
	if !refused(listenHTTP, "/x") {
		t.Error("a third path that nobody has is not refused")
	}
}

// Many addresses that empty what all share of one kind of request keep nobody
// from the others, whatever their number: not from status, nor from what a
// revocation needs first.
func TestAFloodOfManyLeavesOtherKindsOfRequestsAlone(t *testing.T) {
	t.Parallel()
	a := admitted(t, "global: {rate: 1/h, burst: 3}, per_ip: {rate: 0}, idle_ttl_seconds: 100000")
	n := 0
	from := func() string { // each request has an address of its own
		n++
		return fmt.Sprintf("10.0.%d.%d", n/200, n%200+1)
	}
	refused := func(listener, path string) bool {
		return a.ask(t, listener, http.MethodGet, path, from()).Code == http.StatusTooManyRequests
	}
	flood := func(listener, path string) {
		for range 5 {
			refused(listener, path)
		}
		if !refused(listener, path) {
			t.Errorf("%s is not limited by what all share", path)
		}
	}
	flood(listenHTTPS, "/acme/new-order")
	if refused(listenHTTP, "/nobody") || refused(listenHTTPS, "/nobody") {
		t.Error("paths that are not there are refused with orders")
	}
	flood(listenHTTP, "/nobody")
	for range 400 { // more than three tokens would hold of each
		for _, x := range []struct{ listener, path string }{
			{listenHTTPS, "/acme/directory"},
			{listenHTTPS, "/acme/new-nonce"},
			{listenHTTP, "/crl/none.crl"},
			{listenHTTP, "/aia/none.cer"},
			{listenHTTP, "/ocsp/x"},
		} {
			if w := a.ask(t, x.listener, http.MethodGet, x.path, from()); w.Header().Get("Retry-After") != "" {
				t.Fatalf("%s is refused: %d", x.path, w.Code)
			}
		}
	}
}

// Nothing that signs is outside the guard, but for the key of the https listener.
func TestTheKeysOfTheCAAreBehindTheGuard(t *testing.T) {
	t.Parallel()
	a := admitted(t, "concurrency: {max_in_flight: 3}")
	before := signatures(a)
	if before == 0 {
		t.Error("the certificates and CRLs of the start were signed outside the guard")
	}
	key, err := a.keys.Key(t.Context(), issuingLabel)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := key.Sign(keys.WithPurpose(t.Context(), keys.ForStatus), make([]byte, 32), nil); err == nil {
		t.Error("a digest without its hash was signed")
	}
	if n := signatures(a); n != before+1 {
		t.Errorf("%d seats were taken, want 1", n-before)
	}
	own, err := a.certificate()(&tls.ClientHelloInfo{ServerName: "localhost"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := own.PrivateKey.(crypto.Signer).Sign(rand.Reader, make([]byte, 32), crypto.SHA256); err != nil {
		t.Fatal(err)
	}
	if n := signatures(a); n != before+1 {
		t.Error("a stranger's handshake takes a seat before the device")
	}
	if n := a.gate.Stat().Seats; n != 3 {
		t.Errorf("%d seats, want those of the configuration", n)
	}
}

func signatures(a *app) (n uint64) {
	s := a.gate.Stat()
	for c := range s.Class {
		n += s.Class[c].Admitted
	}
	return n
}

// SIGHUP raises, lowers, switches off and on, and gives nobody a full bucket.
func TestReloadChangesLimitsAndForgivesNothing(t *testing.T) {
	t.Parallel()
	a := admitted(t, "per_ip: {rate: 1/h, burst: 2}, idle_ttl_seconds: 100000")
	const client = "192.0.2.1"
	refused := func() bool {
		w := a.ask(t, listenHTTP, http.MethodGet, "/crl/none.crl", client)
		return w.Code == http.StatusTooManyRequests
	}
	for range 20 { // a tenth of a token each
		if refused() {
			t.Fatal("refused within the burst")
		}
	}
	if !refused() {
		t.Fatal("admitted beyond the burst")
	}
	set := func(from, to string) {
		edit(t, filepath.Dir(a.opts.ConfigPath), from, to)
		if err := a.reload(); err != nil {
			t.Fatal(err)
		}
	}
	set("enabled: true", "enabled: true") // nothing changes
	if !refused() {
		t.Error("a reload filled the bucket")
	}
	set("burst: 2}", "burst: 3}")
	if refused() {
		t.Error("a raised limit does not act")
	}
	set("enabled: true", "enabled: false")
	for range 100 {
		if refused() {
			t.Fatal("refused though switched off")
		}
	}
	if n := a.gate.Stat().Seats; n <= fileSeats {
		t.Errorf("%d seats though switched off", n)
	}
	set("enabled: false, per_ip: {rate: 1/h, burst: 3}", "enabled: true, per_ip: {rate: 1/h, burst: 1}")
	if n := a.gate.Stat().Seats; n != fileSeats {
		t.Errorf("%d seats after it was switched on again, want %d", n, fileSeats)
	}
	set("enabled: true, ", "enabled: true, shadow: true, ")
	for range 100 {
		if refused() {
			t.Fatal("refused in shadow")
		}
	}
	if !shadowed(a) {
		t.Error("what a shadow would refuse is not counted")
	}
}

func shadowed(a *app) bool {
	for _, e := range a.limiter.Stat().Endpoints {
		if e.Name == classCRL {
			return e.Shadowed[ratelimit.PerIP] > 0
		}
	}
	return false
}

// Each record is one line and one entry, whatever it is about.
func TestARecordOfRefusalsIsALineAndAnEntry(t *testing.T) {
	t.Parallel()
	a := admitted(t, "")
	source := netip.MustParseAddr("192.0.2.7")
	a.tellOfRefusals(t.Context(), ratelimit.Record{What: "per_ip", Endpoint: "acme", Source: source})
	a.tellOfRefusals(t.Context(), ratelimit.Record{What: "refusal_budget", Identity: "acme:account/2", Refusals: 5, Delay: time.Second})
	a.tellOfRefusals(t.Context(), ratelimit.Record{What: "quota", Endpoint: "acme_new_order", Identity: "acme:account/1", Closed: true, Suppressed: 41, Window: 3 * time.Second})
	entries, err := store.NewAudit(a.db).Pending(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		if strings.HasPrefix(e.Action, "admission.") {
			got = append(got, fmt.Sprintf("%s %s %s %s %s", e.Action, e.Actor, e.Object, e.Remote, e.Detail))
		}
	}
	want := []string{
		`admission.refusing acme:account/2 limit/refusal_budget  {"delay_s":1,"endpoint":"","limit":"refusal_budget","refusals":5}`,
		`admission.refusing strangers limit/per_ip 192.0.2.7 {"endpoint":"acme","limit":"per_ip"}`,
		`admission.resumed acme:account/1 limit/quota  {"endpoint":"acme_new_order","limit":"quota","suppressed":41,"window_s":3}`,
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if n := strings.Count(a.logged(), "rate limit: "); n != 3 {
		t.Errorf("%d lines:\n%s", n, a.logged())
	}
}

// Switched off, there is still an end to what waits for a key.
func TestWithoutLimitsTheQueueBeforeTheKeysHasAnEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []config.RateLimit{{}, {Enabled: true}, config.Default().RateLimit} {
		g := seats(c)
		if _, err := gate.New(g); err != nil || g.Seats <= 0 || g.MaxWait <= 0 {
			t.Errorf("%+v: %+v, %v", c, g, err)
		}
	}
	k := config.Default().RateLimit
	k.Enabled = true
	if g := seats(k); g.Seats != 8 || g.MaxQueue != 64 || g.MaxWait != 5*time.Second {
		t.Errorf("the defaults are %+v", g)
	}
}

// A stopped device says so in the terms of the keys, and nothing was called.
func TestABusyGuardIsAnErrBusy(t *testing.T) {
	t.Parallel()
	a := admitted(t, "concurrency: {max_in_flight: 1, max_queue: 0}")
	release, err := a.gate.Acquire(t.Context(), gate.Issuance, "somebody")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	key, err := a.keys.Key(t.Context(), issuingLabel)
	if err != nil {
		t.Fatal(err)
	}
	_, err = key.Sign(context.WithoutCancel(t.Context()), make([]byte, 32), nil)
	busy, ok := errors.AsType[*keys.BusyError](err)
	if !ok || !errors.Is(err, keys.ErrBusy) || busy.RetryAfter < time.Second {
		t.Fatalf("got %v", err)
	}
	if busy.Reason != gate.QueueFull.String() { // a queue of 0 has no place: it is no word for the default
		t.Errorf("turned away for %s, want %s", busy.Reason, gate.QueueFull)
	}
}

func TestCheckTellsOfQuotasThatRest(t *testing.T) {
	t.Parallel()
	c := config.Default().RateLimit
	c.Enabled = false
	if s := admissionSummary(c, 0); strings.Contains(s, "quotas") {
		t.Error(s)
	}
	c.Quotas.ACMEDuplicates.Limit = 5
	if s := admissionSummary(c, 0); !strings.HasSuffix(s, "rate_limit.quotas rest, too") {
		t.Error(s)
	}
}
