package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/admin/client"
)

func TestIncidentTakesSerialsAsOtherToolsListThem(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	i := client.Incident{
		Name: "bad", Status: "open", Listed: true, Serials: 301, WindowStart: start, WindowEnd: start.Add(time.Hour), CreatedAt: start,
		CreatedBy: "operator:uid/0", Selected: &client.Selected{Certificates: 300, Replaced: 20},
	}
	o := newOperator(t, map[string]any{
		"POST /acme/incidents":             i,
		"POST /acme/incidents/bad/serials": client.AddedSerials{Listed: 301, Unknown: []string{"ff"}},
		"GET /acme/incidents/bad":          i,
	})
	var b strings.Builder
	b.WriteString("# serials\n\n01:AB, www.example.org\n\"0x2\"\n")
	for n := range client.MaxSerials - 1 {
		_, _ = fmt.Fprintf(&b, "01%04x\r\n", n)
	}
	file := filepath.Join(t.TempDir(), "serials.txt")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := o.do(t, "acme", "incident", "create", "bad", "--serials", file, "--within", "1h")
	if code != exitOK || !strings.Contains(out, "300: 20 replaced, 280 not") || strings.Count(errs, "ff is not the serial number") != 2 {
		t.Fatalf("got %d\n%s\n%s", code, out, errs)
	}
	close(o.asked)
	var asked []string
	for a := range o.asked {
		asked = append(asked, a)
	}
	if len(asked) != 4 || asked[0] != `POST /acme/incidents {"name":"bad","listed":true,"within_seconds":3600}` ||
		!strings.HasPrefix(asked[1], `POST /acme/incidents/bad/serials {"serials":["01ab","02","010000",`) ||
		asked[2] != `POST /acme/incidents/bad/serials {"serials":["01012a"]}` || asked[3] != "GET /acme/incidents/bad" {
		t.Errorf("asked: %.300q", asked)
	}
}

func TestNothingIsDoneForAListWithAMistake(t *testing.T) {
	t.Parallel()
	o := newOperator(t, nil)
	dir := t.TempDir()
	for name, text := range map[string]string{"wrong": "01ab\nnonsense\n", "empty": "# nothing\n"} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, _, errs := o.do(t, "acme", "incident", "create", "bad", "--serials", file, "--within", "1h"); code != exitError || !strings.Contains(errs, name) {
			t.Errorf("got %d\n%s", code, errs)
		}
	}
	for _, args := range [][]string{
		{"acme", "incident", "create", "bad", "--profile", "p"},
		{"acme", "incident", "create", "bad", "--profile", "p", "--within", "1h", "--end", "2026-05-01T12:00:00Z"},
		{"acme", "incident", "create", "bad", "--profile", "p", "--within", "1"},
		{"acme", "incident", "create", "bad", "--profile", "p", "--within", "0s"},
		{"acme", "incident", "create", "--within", "1h"},
		{"acme", "incident", "end"},
	} {
		if code, _, errs := o.do(t, args...); code != exitUsage {
			t.Errorf("%v: got %d\n%s", args, code, errs)
		}
	}
	if len(o.asked) != 0 {
		t.Errorf("asked: %s", <-o.asked)
	}
}

func TestAnIncidentThatSelectsNothingSaysSo(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	i := client.Incident{
		Name: "bad", Status: client.DryRun, Profile: "wbe", WindowStart: start, WindowEnd: start.Add(time.Hour), CreatedAt: start,
		CreatedBy: "operator:uid/0", Selected: &client.Selected{},
	}
	o := newOperator(t, map[string]any{"POST /acme/incidents": i})
	code, out, errs := o.do(t, "acme", "incident", "create", "bad", "--profile", "wbe", "--within", "5d", "--dry-run")
	if code != exitOK || strings.Contains(out, "Created") || !strings.Contains(errs, "no certificate that could be replaced is selected") {
		t.Errorf("got %d\n%s\n%s", code, out, errs)
	}
	if want := `POST /acme/incidents {"name":"bad","profile":"wbe","within_seconds":432000,"dry_run":true}`; <-o.asked != want {
		t.Errorf("it did not ask %s", want)
	}
}

func TestIncidentsAreListedShownAndEnded(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	i := client.Incident{Name: "bad", Status: "open", Profile: "web", IssuedAfter: &start, WindowStart: start, WindowEnd: start.Add(time.Hour), CreatedAt: start, CreatedBy: "operator:uid/0"}
	ended := i
	ended.Status, ended.EndedAt = "ended", &start
	o := newOperator(t, map[string]any{
		"GET /acme/incidents":          client.IncidentList{Incidents: []client.Incident{i}},
		"GET /acme/incidents/bad":      i,
		"POST /acme/incidents/bad/end": ended,
	})
	code, out, errs := o.do(t, "acme", "incident", "list")
	want := `NAME  STATUS  WINDOW START          WINDOW END            SELECTS
bad   open    2026-05-01 12:00:00Z  2026-05-01 13:00:00Z  profile web, issued from 2026-05-01 12:00:00Z
`
	if code != exitOK || out != want || errs != "" {
		t.Errorf("got %d\n%s\n%s", code, out, errs)
	}
	if code, out, errs = o.do(t, "acme", "incident", "show", "bad", "--json"); code != exitOK || !strings.HasPrefix(out, `{"name":"bad","status":"open",`) {
		t.Errorf("got %d\n%s\n%s", code, out, errs)
	}
	if code, out, errs = o.do(t, "acme", "incident", "end", "bad"); code != exitOK || !strings.Contains(out, "Ended:") {
		t.Errorf("got %d\n%s\n%s", code, out, errs)
	}
}
