package admin_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/admin/client"
	"github.com/secsy-pki/secsy-pki/ca"
)

func TestACompromiseIsDatedBackAndSaysSinceWhen(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	past := time.Now().Add(-48 * time.Hour).UTC().Truncate(time.Second)
	r := client.Revocation{Reason: "keyCompromise", RevokedAt: past.Format(time.RFC3339), InvalidSince: past.Add(-time.Hour).Format(time.RFC3339)}
	c, err := h.client.RevokeCertificate(t.Context(), "01a0", r)
	if err != nil || !c.RevokedAt.Equal(past) || c.InvalidSince == nil || !c.InvalidSince.Equal(past.Add(-time.Hour)) {
		t.Fatalf("%+v, %v", c, err)
	}
	for name, r := range map[string]client.Revocation{
		"another reason": {Reason: "superseded", RevokedAt: r.RevokedAt},
		"the future":     {Reason: "keyCompromise", RevokedAt: time.Now().Add(time.Hour).Format(time.RFC3339)},
		"no time":        {Reason: "keyCompromise", RevokedAt: "yesterday"},
		"no time at all": {Reason: "keyCompromise", InvalidSince: "1"},
	} {
		_, err := h.client.RevokeCertificate(t.Context(), "02a0", r)
		if d := wantCode(t, err, http.StatusBadRequest, client.CodeInvalidParameter); d == "" {
			t.Error(name)
		}
	}
}

func TestAHoldIsReleasedOnce(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	c, err := h.client.RevokeCertificate(t.Context(), "01a0", client.Revocation{Reason: client.Hold})
	if err != nil || c.Status != "held" || h.vault.asked[0].BlockKey {
		t.Fatalf("%+v, %v", c, err)
	}
	c, err = h.client.ReleaseCertificate(t.Context(), "01:A0")
	if err != nil || c.Status != "valid" || c.RevokedAt != nil || h.vault.asked[1].Requester.Actor != "operator:uid/1000" {
		t.Fatalf("%+v, %v", c, err)
	}
	_, err = h.client.ReleaseCertificate(t.Context(), "01a0")
	wantCode(t, err, http.StatusConflict, client.CodeNotHeld)
	_, err = h.client.ReleaseCertificate(t.Context(), "ffff")
	wantCode(t, err, http.StatusNotFound, client.CodeNotFound)
}

func TestManyAreRevokedAndEachHasItsOutcome(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	sum := sha256.Sum256(h.issuer.Cert.Raw)
	list := client.Revocations{
		Revocation: client.Revocation{Reason: "superseded"},
		Certificates: []client.Revoke{
			{Serial: "01:A0", SHA256: strings.ToUpper(hex.EncodeToString(sum[:]))},
			{Serial: "ffff"},
			{Serial: "02a0", Reason: "keyCompromise"},
			{Serial: "03a0", SHA256: strings.Repeat("00", 31) + "01"},
			{Serial: "04a0"},
		},
	}
	want := []string{client.OutcomeRevoked, client.OutcomeUnknown, client.OutcomeRevoked, client.OutcomeUnknown, client.OutcomeNotIssued}
	outcomes := func(rs []client.Result, err error) (out []string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rs {
			if r.Outcome != client.OutcomeRevoked && r.Detail == "" {
				t.Errorf("no reason given: %+v", r)
			}
			out = append(out, r.Outcome)
		}
		return out
	}
	list.DryRun = true
	if got := outcomes(h.client.RevokeMany(t.Context(), list)); !slices.Equal(got, want) || len(h.vault.asked) != 0 {
		t.Errorf("rehearsed %q and did %v", got, h.vault.asked)
	}
	list.DryRun = false
	// The fake has no eye for sums: that is the authority's, and tested there.
	list.Certificates[3].Serial, want[3] = "ffee", client.OutcomeUnknown
	if got := outcomes(h.client.RevokeMany(t.Context(), list)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if a := h.vault.asked; len(a) != 2 || a[0].Reason != ca.Superseded || a[0].BlockKey || a[0].SHA256 != sum || a[1].Reason != ca.KeyCompromise || !a[1].BlockKey {
		t.Errorf("asked for %+v", a)
	}
	want[0], want[2] = client.OutcomeAlready, client.OutcomeAlready
	if got := outcomes(h.client.RevokeMany(t.Context(), list)); !slices.Equal(got, want) || len(h.vault.asked) != 2 {
		t.Errorf("again: %q", got)
	}
}

func TestAMistakeInOneOfManyStopsAll(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	good := `{"serial":"01a0"}`
	for body, part := range map[string]string{
		`{"reason":"superseded","certificates":[` + good + `,{"serial":"x"}]}`:                         `certificates[1]: "x" is not a serial`,
		`{"reason":"superseded","certificates":[` + good + `,{"serial":"02a0","reasn":"superseded"}]}`: `certificates[1]: the field "reasn" is not known`,
		`{"reason":"superseded","certificates":[` + good + `,{"serial":"02a0","reason":"boredom"}]}`:   `certificates[1]: reason is not one of`,
		`{"reason":"superseded","certificates":[` + good + `,{"serial":"02a0","sha256":"00"}]}`:        `certificates[1]: sha256 is not`,
		`{"reason":"superseded","certificates":[]}`:                                                    `certificates has 0 of them`,
		`{"reason":"superseded","revoked_at":"2026-01-01T00:00:00Z","certificates":[` + good + `]}`:    `revoked_at is for keyCompromise only`,
		`{"certificates":[` + strings.Repeat(good+",", client.MaxRevocations) + good + `]}`:            `has 201 of them`,
		`{"reason":"superseded","certificates":[` + good + `],"dry_run":"no"}`:                         `"dry_run" does not have the right kind`,
		`{"reason":"superseded","certificates":[1]}`:                                                   `certificates[0]: the body is not a JSON object`,
	} {
		status, _, p := h.raw(t, http.MethodPost, "/api/v1/certificates/revoke", "application/json", body)
		if status != http.StatusBadRequest || !strings.Contains(p.Detail, part) {
			t.Errorf("%.100s: %d %s, want %q", body, status, p.Detail, part)
		}
	}
	if len(h.vault.asked) != 0 {
		t.Errorf("asked for %v", h.vault.asked)
	}
	full := fmt.Sprintf(`{"serial":"%s","reason":"cessationOfOperation","sha256":"%s"}`, strings.Repeat("7f", 20), strings.Repeat("ab", 32))
	status, _, _ := h.raw(t, http.MethodPost, "/api/v1/certificates/revoke", "application/json",
		`{"certificates":[`+full+strings.Repeat(","+full, client.MaxRevocations-1)+`]}`)
	if status != http.StatusOK {
		t.Errorf("the most and the longest: %d", status)
	}
}

func TestCertificatesAreFoundByWhatIsToBeRevoked(t *testing.T) {
	t.Parallel()
	h, _, in := incidentHouse(t)
	account := strings.Repeat("0a", 16)
	f := client.CertificateFilter{
		Profile: "p", Account: "https://pki.test/acme/account/" + account, SPKIHash: strings.Repeat("AB", 32), State: "unexpired",
		IssuedAfter: "2026-05-01T00:00:00Z", IssuedBefore: "2026-06-01T00:00:00Z", NotBeforeFrom: "2026-05-02T00:00:00Z", NotBeforeTo: "2026-05-03T00:00:00Z",
	}
	if _, err := h.client.ListCertificates(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	day := func(month time.Month, d int) time.Time { return time.Date(2026, month, d, 0, 0, 0, 0, time.UTC) }
	q := h.vault.query
	if q.Profile != "p" || q.Requester != "acme:account/"+account || q.SPKIHash != strings.Repeat("ab", 32) || q.State != ca.Issued || q.Unrevoked || q.Revoked ||
		time.Since(q.NotAfterFrom).Abs() > time.Minute || !q.IssuedAfter.Equal(day(time.May, 1)) || !q.IssuedBefore.Equal(day(time.June, 1)) ||
		!q.NotBeforeFrom.Equal(day(time.May, 2)) || !q.NotBeforeTo.Equal(day(time.May, 3)) {
		t.Errorf("asked for %+v", q)
	}
	for state, want := range map[string]ca.ListQuery{
		"held": {State: ca.Issued, Reason: ca.CertificateHold}, "revoked": {State: ca.Issued, Revoked: true}, "issued": {State: ca.Issued, Unrevoked: true},
	} {
		if _, err := h.client.ListCertificates(t.Context(), client.CertificateFilter{State: state}); err != nil {
			t.Fatal(err)
		}
		if want.Limit = 50; h.vault.query != want {
			t.Errorf("%s asks for %+v", state, h.vault.query)
		}
	}
	create := func(r client.IncidentRequest) {
		t.Helper()
		r.Within = 60
		if _, err := h.client.CreateIncident(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	create(client.IncidentRequest{Name: "listed", Listed: true})
	create(client.IncidentRequest{Name: "key", SPKIHash: fmt.Sprintf("%x", in.SPKIHash), Issuer: "main"})
	for name, want := range map[string]ca.ListQuery{
		"listed": {ListedBy: "listed"}, "key": {SPKIHash: fmt.Sprintf("%x", in.SPKIHash), Issuer: h.issuer.ID},
	} {
		if _, err := h.client.ListCertificates(t.Context(), client.CertificateFilter{Incident: name}); err != nil {
			t.Fatal(err)
		}
		if want.Limit = 50; h.vault.query != want {
			t.Errorf("incident %s asks for %+v", name, h.vault.query)
		}
	}
	_, err := h.client.ListCertificates(t.Context(), client.CertificateFilter{Incident: "key", Profile: "p"})
	wantCode(t, err, http.StatusBadRequest, client.CodeInvalidParameter)
	_, err = h.client.ListCertificates(t.Context(), client.CertificateFilter{Incident: "none"})
	wantCode(t, err, http.StatusNotFound, client.CodeNotFound)
	if _, err := h.client.EndIncident(t.Context(), "listed"); err != nil {
		t.Fatal(err)
	}
	_, err = h.client.ListCertificates(t.Context(), client.CertificateFilter{Incident: "listed"})
	wantCode(t, err, http.StatusConflict, client.CodeConflict)
}
