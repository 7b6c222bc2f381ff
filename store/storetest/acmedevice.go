package storetest

import (
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/store"
)

// ACMEDevices is what both engines promise about attestations.
func ACMEDevices(t *testing.T, open func(t *testing.T) *store.DB) {
	for name, law := range map[string]func(t *testing.T, w acmeWorld){
		"AnswersAreKeptUntilTheyWereJudged": acmeAnswer,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			law(t, acmeWorld{store.NewACME(db), db})
		})
	}
}

// What a device says of itself is more than anybody needs to know afterwards.
func acmeAnswer(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	_, as := w.order(t, "acct", "a.example", "b.example", "c.example")
	lease := acmeNow.Add(time.Minute)
	for i, failed := range []*acme.Problem{nil, {Type: acme.BadAttestationStatement}} {
		id := as[i].ID
		must(t, w.AnswerChallenge(ctx, id, acme.DeviceAttest01, []byte(`{"attObj":"oA"}`), lease, acmeNow))
		wantErr(t, w.AnswerChallenge(ctx, id, acme.DeviceAttest01, []byte(`{}`), lease, acmeNow), acme.ErrMoved)
		a, err := w.Authorization(ctx, id)
		must(t, err)
		if string(a.Answer) != `{"attObj":"oA"}` || a.Challenge != acme.DeviceAttest01 || !a.Lease.Equal(lease) {
			t.Errorf("answered: %+v", a)
		}
		v := acmeValid(as[i], lease)
		v.Failed, v.AttestedKey = failed, "c0ffee"
		if failed != nil {
			v.AttestedKey = ""
		}
		must(t, w.FinishValidation(ctx, v, acmeEntry()))
		a, err = w.Authorization(ctx, id)
		must(t, err)
		if a.Answer != nil || a.AttestedKey != v.AttestedKey {
			t.Errorf("judged: answer %q, key %q, want none and %q", a.Answer, a.AttestedKey, v.AttestedKey)
		}
	}
	// Nobody judges what was given up meanwhile.
	must(t, w.AnswerChallenge(ctx, as[2].ID, acme.DeviceAttest01, []byte(`{}`), lease, acmeNow))
	must(t, w.DeactivateAuthorization(ctx, as[2].ID, acmeNow, acmeClosed, acmeEntry()))
	a, err := w.Authorization(ctx, as[2].ID)
	must(t, err)
	if a.Answer != nil {
		t.Errorf("given up: answer %q", a.Answer)
	}
	wantErr(t, w.AnswerChallenge(ctx, as[0].ID, acme.DeviceAttest01, nil, lease, acmeNow), acme.ErrMoved)
}
