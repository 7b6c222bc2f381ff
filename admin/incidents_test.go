package admin_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/admin"
	"github.com/secsy-pki/secsy-pki/admin/client"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/storetest"
)

// incidentHouse is a house whose incidents are in a database, with a certificate.
func incidentHouse(t *testing.T) (*house, *store.DB, ca.Intent) {
	t.Helper()
	db := storetest.SQLite(t)
	h := open(t, func(c *admin.Config) { c.Incidents = store.NewIncidents(db) })
	in := catest.Intent(1)
	in.Issuer, in.NotAfter = h.issuer.ID, time.Now().Add(time.Hour)
	led := store.NewCA(db).PlainLedger()
	if err := led.Begin(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if err := led.Commit(t.Context(), in, catest.Signed(in)); err != nil {
		t.Fatal(err)
	}
	return h, db, in
}

func refused(t *testing.T, err error, status int, code, part string) {
	t.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Status != status || e.Code != code || !strings.Contains(e.Detail, part) {
		t.Errorf("got %v; want %d %s with %q", err, status, code, part)
	}
}

func TestIncidentsAreCreatedOnceHoweverOftenAsked(t *testing.T) {
	t.Parallel()
	h, db, in := incidentHouse(t)
	ctx := t.Context()
	req := client.IncidentRequest{Name: "lost-key", SPKIHash: strings.ToUpper(fmt.Sprintf("%x", in.SPKIHash)), Issuer: "main", Within: 3600, URL: "https://ca.example/1", Note: "why"}
	dry := req
	dry.DryRun = true
	i, err := h.client.CreateIncident(ctx, dry)
	if err != nil || i.Status != "dryRun" || i.Selected == nil || i.Selected.Certificates != 1 {
		t.Fatalf("%+v, %v", i, err)
	}
	if list, err := h.client.ListIncidents(ctx); err != nil || len(list) != 0 {
		t.Fatalf("a dry run made %v, %v", list, err)
	}
	i, err = h.client.CreateIncident(ctx, req)
	if err != nil || i.Existed || i.Status != "open" || i.CreatedBy != "operator:uid/1000" || i.WindowEnd.Sub(i.WindowStart) != time.Hour ||
		i.Issuer != string(h.issuer.ID) || *i.Selected != (client.Selected{Certificates: 1}) {
		t.Fatalf("%+v, %v", i, err)
	}
	again, err := h.client.CreateIncident(ctx, req)
	if err != nil || !again.Existed || !again.WindowEnd.Equal(i.WindowEnd) {
		t.Errorf("%+v, %v", again, err)
	}
	exact := req
	exact.Within, exact.WindowStart, exact.WindowEnd = 0, i.WindowStart.Format(time.RFC3339), i.WindowEnd.Format(time.RFC3339)
	if again, err = h.client.CreateIncident(ctx, exact); err != nil || !again.Existed {
		t.Errorf("%+v, %v", again, err)
	}
	for name, change := range map[string]func(*client.IncidentRequest){
		"other certificates": func(r *client.IncidentRequest) { r.Profile = "x" },
		"another note":       func(r *client.IncidentRequest) { r.Note = "x" },
		"another window":     func(r *client.IncidentRequest) { r.Within = 60 },
	} {
		other := req
		change(&other)
		_, err := h.client.CreateIncident(ctx, other)
		refused(t, err, 409, client.CodeConflict, name)
	}
	for range 2 {
		if i, err = h.client.EndIncident(ctx, "lost-key"); err != nil || i.Status != "ended" || i.EndedAt == nil {
			t.Errorf("%+v, %v", i, err)
		}
	}
	_, err = h.client.CreateIncident(ctx, req)
	refused(t, err, 409, client.CodeConflict, "ended")
	if got := actions(t, db); !slices.Equal(got, []string{"incident.created", "incident.ended"}) {
		t.Errorf("audit log: %v", got)
	}
}

// actions are those of incidents in the audit log.
func actions(t *testing.T, db *store.DB) (out []string) {
	t.Helper()
	err := db.Read(t.Context(), func(ctx context.Context, tx store.Tx) error {
		out = nil
		rows, err := tx.Query(ctx, `SELECT action FROM audit_entries WHERE action LIKE 'incident.%' AND actor = 'operator:uid/1000' AND request = $1 ORDER BY at`, requestID)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var s string
			if err := rows.Scan(&s); err != nil {
				return err
			}
			out = append(out, s)
		}
		return rows.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestIncidentsListSerials(t *testing.T) {
	t.Parallel()
	h, db, in := incidentHouse(t)
	ctx := t.Context()
	if _, err := h.client.CreateIncident(ctx, client.IncidentRequest{Name: "list", Listed: true, Within: 60}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		out, err := h.client.AddIncidentSerials(ctx, "list", []string{strings.ToUpper(string(in.Serial)), "ff:00"})
		if err != nil || out.Listed != 1 || !slices.Equal(out.Unknown, []string{"ff00"}) {
			t.Fatalf("%+v, %v", out, err)
		}
	}
	i, err := h.client.Incident(ctx, "list")
	if err != nil || i.Serials != 1 || i.Selected.Certificates != 1 {
		t.Errorf("%+v, %v", i, err)
	}
	_, err = h.client.AddIncidentSerials(ctx, "list", make([]string, client.MaxSerials+1))
	refused(t, err, 400, client.CodeInvalidParameter, "1 to 300")
	_, err = h.client.AddIncidentSerials(ctx, "list", []string{"x"})
	refused(t, err, 400, client.CodeInvalidParameter, "serial number")
	_, err = h.client.AddIncidentSerials(ctx, "none", []string{"01"})
	refused(t, err, 404, client.CodeNotFound, "none")
	_, err = h.client.Incident(ctx, "none")
	refused(t, err, 404, client.CodeNotFound, "none")
	if got := actions(t, db); !slices.Equal(got, []string{"incident.created", "incident.serials-added"}) {
		t.Errorf("audit log: %v", got)
	}
}

func TestBadIncidentsAreNamed(t *testing.T) {
	t.Parallel()
	h, _, _ := incidentHouse(t)
	good := client.IncidentRequest{Name: "a", Profile: "p", Within: 60}
	for part, change := range map[string]func(*client.IncidentRequest){
		"name":            func(r *client.IncidentRequest) { r.Name = "A b" },
		"note":            func(r *client.IncidentRequest) { r.Note = strings.Repeat("x", 513) },
		"explanation_url": func(r *client.IncidentRequest) { r.URL = "javascript:alert(1)" },
		"condition":       func(r *client.IncidentRequest) { r.Profile = "" },
		"issuer":          func(r *client.IncidentRequest) { r.Issuer = "none" },
		"spki_sha256":     func(r *client.IncidentRequest) { r.SPKIHash = "ab" },
		"account":         func(r *client.IncidentRequest) { r.Account = "me" },
		"issued_after":    func(r *client.IncidentRequest) { r.IssuedAfter = "yesterday" },
		"issued_before":   func(r *client.IncidentRequest) { r.IssuedBefore = "2026" },
		"window_end":      func(r *client.IncidentRequest) { r.Within = 0 },
		"not after":       func(r *client.IncidentRequest) { r.Within, r.WindowEnd = 0, "2020-01-01T00:00:00Z" },
		"within_seconds":  func(r *client.IncidentRequest) { r.Within = 1 << 40 },
	} {
		r := good
		change(&r)
		_, err := h.client.CreateIncident(t.Context(), r)
		refused(t, err, 400, client.CodeInvalidParameter, part)
	}
	if _, err := h.client.CreateIncident(t.Context(), good); err != nil {
		t.Error(err)
	}
}
