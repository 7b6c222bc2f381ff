package storetest

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/store"
)

// Renewals is what both engines promise of renewals and incidents.
func Renewals(t *testing.T, open func(t *testing.T) *store.DB) {
	laws := map[string]func(t *testing.T, w acmeWorld){
		"RenewableIsWhatWasIssued":              renewable,
		"OneOrderReplacesACertificate":          replacedOnce,
		"ReplacementOutlivesItsOrder":           replacedForGood,
		"InvalidAndExpiredOrdersReplaceNothing": replacedByNone,
		"IncidentsComeBackAsTheyWere":           incidents,
		"OpenIncidentsAreBounded":               incidentsBounded,
		"OnlyIssuedSerialsAreListed":            incidentSerials,
		"EndedIncidentListsNothing":             incidentEnds,
		"SelectedCertificatesAreCounted":        incidentCounts,
	}
	for name, law := range laws {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			law(t, acmeWorld{store.NewACME(db), db})
		})
	}
}

func acmeCertID(t *testing.T, s ca.Serial) acme.CertID {
	t.Helper()
	id, err := acme.CertIDOf([]byte("key id"), s)
	must(t, err)
	return id
}

// issued makes a certificate outside of any order.
func (w acmeWorld) issued(t *testing.T, change func(*ca.Intent)) ca.Intent {
	t.Helper()
	in := acmeIntent(ca.Identifier{Type: ca.DNS, Value: "a.example"})
	if change != nil {
		change(&in)
	}
	led := store.NewCA(w.db).PlainLedger()
	must(t, led.Begin(t.Context(), in))
	must(t, led.Commit(t.Context(), in, acmeCertificate(in)))
	return in
}

func acmeCertificate(in ca.Intent) ca.Certificate {
	return ca.Certificate{ID: in.ID, Serial: in.Serial, Issuer: in.Issuer, Profile: in.Profile, DER: []byte(in.ID), NotBefore: in.NotBefore, NotAfter: in.NotAfter}
}

// replaces makes an order in the place of a certificate.
func (w acmeWorld) replaces(t *testing.T, s ca.Serial, at time.Time) (acme.Order, error) {
	t.Helper()
	o, as := acmeOrder("acct", "a.example")
	o.Replaces, o.Renewal, o.CreatedAt, o.Expires = acmeCertID(t, s), true, at, at.Add(time.Hour)
	return o, w.CreateOrder(t.Context(), o, as, acme.OrderLimits{MaxOpen: 1000})
}

func renewable(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	in := w.issued(t, nil)
	got, err := w.Renewable(ctx, in.Serial, true)
	must(t, err)
	want, err := w.Record(ctx, in.Serial)
	must(t, err)
	want.ID, want.DER = "", nil // which are not read
	if !reflect.DeepEqual(got, acme.Renewable{Record: want}) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	pending := acmeIntent()
	must(t, store.NewCA(w.db).PlainLedger().Begin(ctx, pending))
	for _, s := range []ca.Serial{"none", pending.Serial} {
		_, err = w.Renewable(ctx, s, true)
		wantErr(t, err, ca.ErrNotFound)
	}
}

func replacedOnce(t *testing.T, w acmeWorld) {
	in := w.issued(t, nil)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex // guards wins
		wins []acme.Order
	)
	for range 8 {
		wg.Go(func() {
			o, err := w.replaces(t, in.Serial, acmeNow)
			if err != nil {
				if !errors.Is(err, acme.ErrReplaced) {
					t.Error(err)
				}
				return
			}
			mu.Lock()
			defer mu.Unlock()
			wins = append(wins, o)
		})
	}
	wg.Wait()
	if len(wins) != 1 {
		t.Fatalf("%d orders replace one certificate", len(wins))
	}
	got, err := w.OrderReplacing(t.Context(), acmeCertID(t, in.Serial))
	must(t, err)
	if !reflect.DeepEqual(got, wins[0]) {
		t.Errorf("got %+v\nwant %+v", got, wins[0])
	}
	other := w.issued(t, nil)
	_, err = w.replaces(t, other.Serial, acmeNow)
	must(t, err)
}

func replacedForGood(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	old := w.issued(t, nil)
	o, err := w.replaces(t, old.Serial, acmeNow)
	must(t, err)
	a, err := w.Authorization(ctx, o.AuthzIDs[0])
	must(t, err)
	w.validate(t, a)
	in := acmeIntent()
	must(t, w.BeginIssue(ctx, acmeClaim(o, "csr"), in))
	r, err := w.Renewable(ctx, old.Serial, false)
	must(t, err)
	if r.ReplacedBy != "" {
		t.Errorf("replaced by %s, which is not there yet", r.ReplacedBy)
	}
	must(t, w.CommitIssue(ctx, o.ID, in, acmeCertificate(in), acmeNow.Add(time.Hour)))
	_, err = w.replaces(t, old.Serial, acmeNow)
	wantErr(t, err, acme.ErrReplaced)
	_, err = w.Sweep(ctx, acme.Sweep{Now: acmeNow.Add(2 * time.Hour), Limit: 10})
	must(t, err)
	_, err = w.Order(ctx, o.ID)
	wantErr(t, err, acme.ErrNotFound)
	r, err = w.Renewable(ctx, old.Serial, false)
	must(t, err)
	if r.ReplacedBy != in.Serial {
		t.Errorf("replaced by %q; want %s", r.ReplacedBy, in.Serial)
	}
}

func replacedByNone(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	in := w.issued(t, nil)
	first, err := w.replaces(t, in.Serial, acmeNow)
	must(t, err)
	closed := acme.Closing{Error: acme.Problem{Type: acme.Unauthorized}, PurgeAt: acmeNow.Add(time.Hour)}
	must(t, w.DeactivateAuthorization(ctx, first.AuthzIDs[0], acmeNow, closed, acmeEntry()))
	_, err = w.OrderReplacing(ctx, first.Replaces)
	wantErr(t, err, acme.ErrNotFound)

	second, err := w.replaces(t, in.Serial, acmeNow)
	must(t, err)
	_, err = w.replaces(t, in.Serial, acmeNow.Add(time.Hour-time.Second))
	wantErr(t, err, acme.ErrReplaced)
	w.wantStatus(t, second.ID, acme.OrderPending)
	_, err = w.replaces(t, in.Serial, acmeNow.Add(time.Hour))
	must(t, err)
	if o := w.wantStatus(t, second.ID, acme.OrderInvalid); o.Error == nil || o.Error.Type != acme.Malformed {
		t.Errorf("the order that ran out has the error %v", o.Error)
	}
}

func acmeIncident(name string) ca.Incident {
	return ca.Incident{
		Name: name, Note: "why", URL: "https://ca.example/why", CreatedAt: acmeNow, CreatedBy: "operator:uid/0",
		Selector: ca.Selector{
			Listed: true, Issuer: "issuer", Profile: "server", SPKIHash: "ab", Requester: "acme:account/x",
			IssuedAfter: acmeNow.Add(-time.Hour), IssuedBefore: acmeNow.Add(time.Hour),
		},
		Window: ca.Window{Start: acmeNow.Add(time.Minute), End: acmeNow.Add(2 * time.Minute)},
	}
}

func incidents(t *testing.T, w acmeWorld) {
	ctx, s := t.Context(), store.NewIncidents(w.db)
	i := acmeIncident("first")
	got, created, err := s.CreateIncident(ctx, i, acmeEntry())
	must(t, err)
	if !created || !reflect.DeepEqual(got, i) {
		t.Errorf("created %t: %+v\nwant %+v", created, got, i)
	}
	again := acmeIncident("first")
	again.Note = "another"
	got, created, err = s.CreateIncident(ctx, again, acmeEntry())
	must(t, err)
	if created || !reflect.DeepEqual(got, i) || w.entries(t) != 1 {
		t.Errorf("created twice %t: %+v; %d entries", created, got, w.entries(t))
	}
	second := acmeIncident("second")
	second.CreatedAt = second.CreatedAt.Add(time.Second)
	_, _, err = s.CreateIncident(ctx, second, acmeEntry())
	must(t, err)
	open, err := w.OpenIncidents(ctx)
	must(t, err)
	if !reflect.DeepEqual(open, []ca.Incident{i, second}) {
		t.Errorf("open are %+v", open)
	}
	list, err := s.ListIncidents(ctx, 10)
	must(t, err)
	if len(list) != 2 || list[0].Name != "second" {
		t.Errorf("listed are %+v", list)
	}
	_, err = s.Incident(ctx, "none")
	wantErr(t, err, ca.ErrNotFound)
	_, err = s.EndIncident(ctx, "none", acmeEntry())
	wantErr(t, err, ca.ErrNotFound)
}

func incidentsBounded(t *testing.T, w acmeWorld) {
	ctx, s := t.Context(), store.NewIncidents(w.db)
	for n := range ca.MaxIncidents {
		_, _, err := s.CreateIncident(ctx, acmeIncident(fmt.Sprint("i", n)), acmeEntry())
		must(t, err)
	}
	_, _, err := s.CreateIncident(ctx, acmeIncident("more"), acmeEntry())
	wantErr(t, err, ca.ErrTooManyIncidents)
	_, created, err := s.CreateIncident(ctx, acmeIncident("i0"), acmeEntry()) // is there
	if err != nil || created {
		t.Errorf("created %t, %v", created, err)
	}
	_, err = s.EndIncident(ctx, "i0", acmeEntry())
	must(t, err)
	_, _, err = s.CreateIncident(ctx, acmeIncident("more"), acmeEntry())
	must(t, err)
}

func incidentSerials(t *testing.T, w acmeWorld) {
	ctx, s := t.Context(), store.NewIncidents(w.db)
	_, _, err := s.CreateIncident(ctx, acmeIncident("i"), acmeEntry())
	must(t, err)
	plain := acmeIncident("plain")
	plain.Listed = false
	_, _, err = s.CreateIncident(ctx, plain, acmeEntry())
	must(t, err)
	a, b := w.issued(t, nil), w.issued(t, nil)
	entries := w.entries(t)
	got, unknown, err := s.AddIncidentSerials(ctx, "i", []ca.Serial{a.Serial, "ff"}, acmeEntry())
	must(t, err)
	if got.Serials != 1 || !reflect.DeepEqual(unknown, []ca.Serial{"ff"}) {
		t.Errorf("%d listed, unknown %v", got.Serials, unknown)
	}
	for range 2 { // the second time changes nothing
		got, unknown, err = s.AddIncidentSerials(ctx, "i", []ca.Serial{b.Serial, a.Serial, b.Serial}, acmeEntry())
		must(t, err)
		if got.Serials != 2 || len(unknown) != 0 {
			t.Errorf("%d listed, unknown %v", got.Serials, unknown)
		}
	}
	if n := w.entries(t) - entries; n != 2 {
		t.Errorf("%d audit entries for 2 changes", n)
	}
	r, err := w.Renewable(ctx, a.Serial, true)
	must(t, err)
	if !reflect.DeepEqual(r.ListedBy, []string{"i"}) {
		t.Errorf("listed by %v", r.ListedBy)
	}
	_, _, err = s.AddIncidentSerials(ctx, "plain", []ca.Serial{a.Serial}, acmeEntry())
	wantErr(t, err, ca.ErrIncidentEnded)
	_, _, err = s.AddIncidentSerials(ctx, "none", []ca.Serial{a.Serial}, acmeEntry())
	wantErr(t, err, ca.ErrNotFound)
}

func incidentEnds(t *testing.T, w acmeWorld) {
	ctx, s := t.Context(), store.NewIncidents(w.db)
	_, _, err := s.CreateIncident(ctx, acmeIncident("i"), acmeEntry())
	must(t, err)
	a := w.issued(t, nil)
	_, _, err = s.AddIncidentSerials(ctx, "i", []ca.Serial{a.Serial}, acmeEntry())
	must(t, err)
	before := w.entries(t)
	for range 2 {
		got, err := s.EndIncident(ctx, "i", acmeEntry())
		must(t, err)
		if got.EndedAt.IsZero() {
			t.Error("it goes on")
		}
	}
	if n := w.entries(t) - before; n != 1 {
		t.Errorf("%d audit entries for 1 end", n)
	}
	open, err := w.OpenIncidents(ctx)
	must(t, err)
	r, err := w.Renewable(ctx, a.Serial, true)
	must(t, err)
	if len(open) != 0 || len(r.ListedBy) != 0 {
		t.Errorf("open %v, listed by %v", open, r.ListedBy)
	}
	var left int64
	must(t, w.db.Read(ctx, func(ctx context.Context, tx store.Tx) error {
		return tx.QueryRow(ctx, `SELECT COUNT(*) FROM acme_incident_serials`).Scan(&left)
	}))
	if left != 0 {
		t.Errorf("%d serials are kept", left)
	}
	_, _, err = s.AddIncidentSerials(ctx, "i", []ca.Serial{a.Serial}, acmeEntry())
	wantErr(t, err, ca.ErrIncidentEnded)
}

func incidentCounts(t *testing.T, w acmeWorld) {
	ctx, s := t.Context(), store.NewIncidents(w.db)
	a := w.issued(t, nil)
	w.issued(t, func(in *ca.Intent) { in.Issuer = "other" })
	w.issued(t, func(in *ca.Intent) { in.Profile, in.CreatedAt = "other", acmeNow.Add(time.Minute) })
	w.issued(t, func(in *ca.Intent) { in.Requester.Actor = "acme:account/y" })
	revoked := w.issued(t, nil)
	must(t, store.NewCA(w.db).Revoke(ctx, ca.Revocation{Serial: revoked.Serial, Reason: ca.Superseded, At: acmeNow}, audit.Entry{ID: audit.NewID(), At: acmeNow, Actor: "x", Action: "x.y", Object: "x"}))
	expired := w.issued(t, func(in *ca.Intent) { in.NotAfter = acmeNow })
	o, err := w.replaces(t, a.Serial, acmeNow)
	must(t, err)
	z, err := w.Authorization(ctx, o.AuthzIDs[0])
	must(t, err)
	w.validate(t, z)
	in := acmeIntent()
	in.Requester.Actor = "acme:account/z"
	must(t, w.BeginIssue(ctx, acmeClaim(o, "csr"), in))
	must(t, w.CommitIssue(ctx, o.ID, in, acmeCertificate(in), acmeNow.Add(time.Hour)))
	list := acmeIncident("list")
	_, _, err = s.CreateIncident(ctx, list, acmeEntry())
	must(t, err)
	_, _, err = s.AddIncidentSerials(ctx, "list", []ca.Serial{a.Serial, revoked.Serial, expired.Serial}, acmeEntry())
	must(t, err)
	for name, c := range map[string]struct {
		sel            ca.Selector
		want, replaced int
	}{
		"issuer":    {ca.Selector{Issuer: "issuer"}, 4, 1},
		"profile":   {ca.Selector{Profile: "other"}, 1, 0},
		"key":       {ca.Selector{SPKIHash: hex.EncodeToString(a.SPKIHash[:])}, 1, 1},
		"requester": {ca.Selector{Requester: "acme:account/y"}, 1, 0},
		"list":      {ca.Selector{Listed: true}, 1, 1},
		"after":     {ca.Selector{IssuedAfter: acmeNow.Add(time.Minute)}, 1, 0},
		"before":    {ca.Selector{IssuedBefore: acmeNow.Add(time.Minute)}, 4, 1},
		"both":      {ca.Selector{Issuer: "other", Profile: "other"}, 0, 0},
	} {
		got, err := s.CountSelected(ctx, "list", c.sel, acmeNow)
		must(t, err)
		if got != (ca.Selected{Certificates: c.want, Replaced: c.replaced}) {
			t.Errorf("%s: %+v; want %d, of them %d replaced", name, got, c.want, c.replaced)
		}
	}
}
