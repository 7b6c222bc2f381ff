package app

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/peer"
	"github.com/secsy-pki/secsy-pki/store"
)

// series are the names and labels of all samples whose name begins with prefix.
func (a *app) series(t *testing.T, prefix string) (out []string) {
	t.Helper()
	families, err := a.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if !strings.HasPrefix(f.GetName(), prefix) {
				continue
			}
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			out = append(out, f.GetName()+"{"+strings.Join(labels, ",")+"}")
		}
	}
	slices.Sort(out)
	return out
}

// What is counted of admission has its series from the start, and no stranger
// makes another, whatever addresses, paths, headers and accounts he sends.
func TestNoStrangerMakesASeries(t *testing.T) {
	t.Parallel()
	a := admitted(t, "per_ip: {rate: 1, burst: 3}, concurrency: {max_in_flight: 1, max_queue: 0}")
	before := a.series(t, "secsy_")
	for _, want := range []string{
		`secsy_ratelimit_throttled_total{endpoint="acme_new_order",tier="per_ip"}`,
		`secsy_ratelimit_throttled_total{endpoint="ocsp",tier="global"}`,
		`secsy_ratelimit_throttled_total{endpoint="acme",tier="per_account"}`,
		`secsy_ratelimit_admitted_total{endpoint="crl"}`,
		`secsy_hsm_guard_rejected_total{endpoint="acme",reason="queue_full"}`,
		`secsy_hsm_guard_rejected_total{endpoint="acme",reason="timeout"}`,
		`secsy_hsm_guard_rejected_total{endpoint="ocsp",reason="canceled"}`,
		`secsy_hsm_guard_in_flight{}`,
		`secsy_hsm_guard_queue_depth{}`,
		`secsy_hsm_guard_wait_seconds{class="revocation"}`,
		`secsy_ratelimit_table_pressure_total{tier="per_ip"}`,
		`secsy_refusal_budget_refused_total{}`,
	} {
		if !slices.Contains(before, want) {
			t.Errorf("there is no %s", want)
		}
	}
	release, err := a.gate.Acquire(t.Context(), gate.Issuance, "somebody")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	key, err := a.keys.Key(t.Context(), issuingLabel)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(n int) {
		from := fmt.Sprintf("203.0.113.%d", n%250)
		for _, path := range []string{"/acme/new-order", "/acme/order/" + fmt.Sprint(n), "/ocsp/" + fmt.Sprint(n), "/crl/x.crl", "/made/up/" + fmt.Sprint(n)} {
			a.ask(t, listenHTTPS, http.MethodPost, path, from)
			a.ask(t, listenHTTP, http.MethodGet, path, from)
		}
		ctx := peer.WithIdentity(peer.With(t.Context(), peer.Peer{Endpoint: fmt.Sprint("made-up-", n)}), fmt.Sprint("acme:account/", n))
		if _, err := key.Sign(ctx, make([]byte, 32), nil); err == nil {
			t.Error("signed while the only seat is taken")
		}
	}
	ask(0)
	first := a.series(t, "secsy_") // requests have their series once each kind was seen
	for n := range 500 {
		ask(n)
	}
	if after := a.series(t, "secsy_"); !slices.Equal(after, first) {
		t.Errorf("%d series became %d: %q", len(first), len(after), slices.DeleteFunc(after, func(s string) bool { return slices.Contains(first, s) }))
	}
	for _, prefix := range []string{"secsy_ratelimit_", "secsy_hsm_guard_", "secsy_gate_", "secsy_quota_", "secsy_refusal_"} {
		if all := a.series(t, prefix); len(all) == 0 || len(all) != count(before, prefix) {
			t.Errorf("%s: %d series at the start, then %d", prefix, count(before, prefix), len(all))
		}
	}
}

func count(all []string, prefix string) (n int) {
	for _, s := range all {
		if strings.HasPrefix(s, prefix) {
			n++
		}
	}
	return n
}

// Work that the guard turns away leaves two lines and two entries of whoever
// sent it, not one for each.
func TestAFloodAtTheGuardIsTwoLines(t *testing.T) {
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
	const who = "acme:account/hog"
	ctx := peer.WithIdentity(peer.With(keys.WithPurpose(t.Context(), keys.ForIssuance), peer.Peer{Endpoint: classACME}), who)
	for range 300 {
		if _, err := key.Sign(ctx, make([]byte, 32), nil); err == nil {
			t.Fatal("signed while the only seat is taken")
		}
	}
	ending, end := context.WithCancel(t.Context())
	end() // what is open is told of as the program ends
	if err := a.recorder.Run(ending); err != nil {
		t.Fatal(err)
	}
	entries, err := store.NewAudit(a.db).Pending(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		if strings.HasPrefix(e.Action, "admission.") {
			got = append(got, e.Action+" "+e.Actor+" "+e.Object)
			if e.Action == actionResumed && !strings.Contains(string(e.Detail), `"suppressed":299`) {
				t.Errorf("the last one says %s", e.Detail)
			}
		}
	}
	slices.Sort(got)
	if want := []string{actionRefusing + " " + who + " limit/guard", actionResumed + " " + who + " limit/guard"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if n := strings.Count(a.logged(), "rate limit: "); n != 2 {
		t.Errorf("%d lines:\n%s", n, a.logged())
	}
}
