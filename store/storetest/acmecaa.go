package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/store"
)

// ACMECAA is what both engines promise about checks of CAA records.
func ACMECAA(t *testing.T, open func(t *testing.T) *store.DB) {
	for name, law := range map[string]func(t *testing.T, w acmeWorld){
		"CAAIsNotedWithItsProof":    acmeCAAWithProof,
		"CAAIsNotedWithItsEvidence": acmeCAANoted,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			law(t, acmeWorld{store.NewACME(db), db})
		})
	}
}

// acmeCAAWithProof has the time of the check in the transaction of the outcome.
func acmeCAAWithProof(t *testing.T, w acmeWorld) {
	_, as := w.order(t, "acct", "a.example", "b.example")
	lease := acmeNow.Add(time.Minute)
	for i, at := range []time.Time{acmeNow.Add(-time.Second), {}} {
		must(t, w.StartChallenge(t.Context(), as[i].ID, acme.DNS01, lease, acmeNow))
		v := acmeValid(as[i], lease)
		v.CAAAt = at
		must(t, w.FinishValidation(t.Context(), v, acmeEntry()))
		got, err := w.Authorization(t.Context(), as[i].ID)
		must(t, err)
		if !got.CAAChecked.Equal(at) {
			t.Errorf("checked at %v; want %v", got.CAAChecked, at)
		}
	}
}

func acmeCAANoted(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	o := w.ready(t, "acct", "a.example", "b.example", "c.example")
	before := w.entries(t)
	later := acmeNow.Add(7 * time.Hour)
	must(t, w.NoteCAA(ctx, o.AuthzIDs[:2], later, []audit.Entry{acmeEntry(), acmeEntry()}))
	// A check that began earlier and ended later takes nothing back.
	must(t, w.NoteCAA(ctx, o.AuthzIDs[1:2], acmeNow, []audit.Entry{acmeEntry()}))
	must(t, w.NoteCAA(ctx, nil, later, []audit.Entry{acmeEntry()}))
	if n := w.entries(t) - before; n != 4 {
		t.Errorf("%d entries; want 4", n)
	}
	got, err := w.AuthorizationsIn(ctx, append(slices.Clone(o.AuthzIDs), "none"))
	must(t, err)
	if len(got) != 3 {
		t.Fatalf("%d authorizations; want 3", len(got))
	}
	for _, a := range got {
		want := later
		if a.ID == o.AuthzIDs[2] {
			want = time.Time{}
		}
		if !a.CAAChecked.Equal(want) {
			t.Errorf("%s was checked at %v; want %v", a.Identifier.Value, a.CAAChecked, want)
		}
	}
	none, err := w.AuthorizationsIn(ctx, nil)
	must(t, err)
	if len(none) > 0 {
		t.Errorf("of none there are %d", len(none))
	}
}
