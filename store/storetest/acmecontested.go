package storetest

import (
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/store"
)

// ACMEContested is what both engines promise of validations that other
// perspectives contest.
func ACMEContested(t *testing.T, open func(t *testing.T) *store.DB) {
	t.Run("ContestedValidationsAreKept", func(t *testing.T) {
		t.Parallel()
		db := open(t)
		contestedKept(t, acmeWorld{store.NewACME(db), db})
	})
}

func contestedKept(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	o, as := w.order(t, "acct", "a.example")
	lease := acmeNow.Add(time.Minute)
	must(t, w.StartChallenge(ctx, as[0].ID, acme.HTTP01, lease, acmeNow))
	v := acmeValid(as[0], lease)
	v.Failed, v.Contested = &acme.Problem{Type: acme.Unauthorized, Detail: "2 of 4"}, true
	v.Closing = acme.Closing{Error: *v.Failed, PurgeAt: acmeNow.Add(time.Hour)}
	before := w.entries(t)
	must(t, w.FinishValidation(ctx, v, acmeEntry()))
	if n := w.entries(t) - before; n != 1 {
		t.Errorf("%d entries, want 1", n)
	}
	w.wantStatus(t, o.ID, acme.OrderInvalid)
	a, err := w.Authorization(ctx, as[0].ID)
	must(t, err)
	if a.Status != acme.AuthzInvalid {
		t.Errorf("the authorization is %s", a.Status)
	}
	// Whoever lost the lease leaves no entry either.
	wantErr(t, w.FinishValidation(ctx, v, acmeEntry()), acme.ErrMoved)
	if n := w.entries(t) - before; n != 1 {
		t.Errorf("%d entries after a second outcome, want 1", n)
	}
}
