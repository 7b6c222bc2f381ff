package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/store"
)

// ACMEPauses is what both engines promise of names that are paused.
func ACMEPauses(t *testing.T, open func(t *testing.T) *store.DB) {
	laws := map[string]func(t *testing.T, w acmeWorld){
		"FailuresInARowPause":                pauseInARow,
		"FailuresFarApartAreNotInARow":       pauseFarApart,
		"AProofEndsRowAndPause":              pauseProof,
		"OnlyOrdersThatNeedThePausedAreHeld": pauseOrders,
		"UnpausingIsBoundedAndCounted":       pauseUnpause,
		"PausesAreSweptAtTheirEnd":           pauseSweep,
		"TheFirstSecretIsKept":               pauseSecret,
	}
	for name, law := range laws {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			law(t, acmeWorld{store.NewACME(db), db})
		})
	}
}

const pauseLimit = 3

// failAt lets the validation of a name fail, of an order of its own.
func (w acmeWorld) failAt(t *testing.T, accountID, name string, at time.Time) {
	t.Helper()
	_, as := w.order(t, accountID, name)
	lease := at.Add(time.Minute)
	must(t, w.StartChallenge(t.Context(), as[0].ID, acme.HTTP01, lease, acmeNow))
	p := &acme.Problem{Type: acme.Connection, Detail: "refused"}
	must(t, w.FinishValidation(t.Context(), acme.Validated{
		AuthzID: as[0].ID, OrderID: as[0].OrderID, Lease: lease, At: at, Failed: p, Expires: as[0].Expires, PurgeAt: as[0].PurgeAt,
		Closing: acme.Closing{Error: *p, PurgeAt: acmeNow.Add(time.Hour)},
		Failure: &acme.Failure{
			AccountID: accountID, Identifier: ca.Identifier{Type: ca.DNS, Value: name}, At: at, Limit: pauseLimit, Period: 24 * time.Hour, Lasts: 48 * time.Hour,
			Paused: audit.New("system", "identifier.paused", "account/"+accountID, nil),
		},
	}, acmeEntry()))
}

func (w acmeWorld) wantPaused(t *testing.T, accountID string, names ...string) {
	t.Helper()
	list, err := w.ListPaused(t.Context(), accountID, 100)
	must(t, err)
	got := []string{}
	for _, p := range list {
		got = append(got, p.Identifier.Value)
	}
	wantList(t, got, append([]string{}, names...))
}

func dnsName(name string) []ca.Identifier { return []ca.Identifier{{Type: ca.DNS, Value: name}} }

func pauseInARow(t *testing.T, w acmeWorld) {
	for i := range pauseLimit {
		w.wantPaused(t, "account1")
		w.failAt(t, "account1", "a.example", acmeNow.Add(time.Duration(i)*time.Minute))
	}
	w.wantPaused(t, "account1", "a.example")
	w.wantPaused(t, "account2")
	w.failAt(t, "account2", "a.example", acmeNow)
	w.failAt(t, "account1", "b.example", acmeNow)
	w.wantPaused(t, "account1", "a.example")
	got, err := w.Paused(t.Context(), "account1", append(dnsName("a.example"), dnsName("b.example")...))
	must(t, err)
	if len(got) != 1 || got[0].Failures != pauseLimit || !got[0].At.Equal(acmeNow.Add(2*time.Minute)) {
		t.Errorf("paused: %+v", got)
	}
	if other, err := w.Paused(t.Context(), "account1", []ca.Identifier{{Type: ca.IP, Value: "a.example"}}); err != nil || len(other) != 0 {
		t.Errorf("of another type: %+v, %v", other, err)
	}
}

func pauseFarApart(t *testing.T, w acmeWorld) {
	for i := range 3 * pauseLimit {
		w.failAt(t, "account1", "a.example", acmeNow.Add(time.Duration(i)*25*time.Hour))
	}
	w.wantPaused(t, "account1")
}

// proveAt proves a name for an account, at a time.
func (w acmeWorld) proveAt(t *testing.T, accountID, name string, at time.Time) {
	t.Helper()
	_, as := w.order(t, accountID, name)
	lease := at.Add(time.Minute)
	must(t, w.StartChallenge(t.Context(), as[0].ID, acme.HTTP01, lease, acmeNow))
	must(t, w.FinishValidation(t.Context(), acme.Validated{
		AuthzID: as[0].ID, OrderID: as[0].OrderID, Lease: lease, At: at, Expires: at.Add(time.Hour), PurgeAt: at.Add(2 * time.Hour),
	}, acmeEntry()))
}

func pauseProof(t *testing.T, w acmeWorld) {
	w.failAt(t, "account1", "a.example", acmeNow)
	w.failAt(t, "account1", "a.example", acmeNow.Add(time.Minute))
	w.proveAt(t, "account1", "a.example", acmeNow.Add(2*time.Minute))
	w.failAt(t, "account1", "a.example", acmeNow.Add(3*time.Minute))
	w.failAt(t, "account1", "a.example", acmeNow.Add(4*time.Minute))
	w.wantPaused(t, "account1")
	w.proveAt(t, "account2", "a.example", acmeNow.Add(5*time.Minute)) // which is another's
	w.failAt(t, "account1", "a.example", acmeNow.Add(6*time.Minute))
	w.wantPaused(t, "account1", "a.example")
	w.proveAt(t, "account1", "a.example", acmeNow.Add(7*time.Minute)) // by an order from before
	w.wantPaused(t, "account1")
	w.failAt(t, "account1", "a.example", acmeNow.Add(8*time.Minute))
	w.wantPaused(t, "account1")
}

func pauseOrders(t *testing.T, w acmeWorld) {
	for i := range pauseLimit {
		w.failAt(t, "account1", "a.example", acmeNow.Add(time.Duration(i)*time.Minute))
	}
	limits := acme.OrderLimits{MaxOpen: 2, Pausing: true}
	create := func(l acme.OrderLimits, accountID string, names ...string) error {
		o, as := acmeOrder(accountID, names...)
		return w.CreateOrder(t.Context(), o, as, l)
	}
	err := create(limits, "account1", "b.example", "a.example")
	var paused *acme.PausedError
	if !errors.As(err, &paused) || len(paused.Pauses) != 1 || paused.Pauses[0].Identifier != dnsName("a.example")[0] {
		t.Fatalf("%v", err)
	}
	names := make([]string, 0, 150)
	for i := range 150 {
		names = append(names, fmt.Sprintf("n%d.example", i))
	}
	if err := create(limits, "account1", append(names[:149:149], "a.example")...); !errors.As(err, &paused) {
		t.Errorf("among many: %v", err)
	}
	must(t, create(limits, "account2", "a.example"))
	must(t, create(limits, "account1", names...))
	must(t, create(acme.OrderLimits{MaxOpen: 2}, "account1", "a.example"))
	wantErr(t, create(limits, "account1", "b.example"), acme.ErrTooManyOpen)
	must(t, create(limits, "account2", "b.example"))
	wantErr(t, create(limits, "account2", "b.example"), acme.ErrTooManyOpen)
}

func pauseUnpause(t *testing.T, w acmeWorld) {
	for _, name := range []string{"a.example", "b.example", "c.example"} {
		for i := range pauseLimit {
			w.failAt(t, "account1", name, acmeNow.Add(time.Duration(i)*time.Minute))
		}
	}
	w.failAt(t, "account1", "d.example", acmeNow)
	for _, want := range []int{2, 1, 0} {
		n, err := w.Unpause(t.Context(), acme.Unpausing{AccountID: "account1", Limit: 2, Entry: func(n int) audit.Entry {
			return audit.New("test", "identifier.unpaused", "account/account1", map[string]int{"count": n})
		}})
		if err != nil || n != want {
			t.Errorf("%d were ended, %v; want %d", n, err, want)
		}
	}
	w.wantPaused(t, "account1")
	w.failAt(t, "account1", "a.example", acmeNow.Add(time.Hour)) // the first of a new row
	w.wantPaused(t, "account1")
	w.failAt(t, "account1", "d.example", acmeNow.Add(time.Hour))
	w.failAt(t, "account1", "d.example", acmeNow.Add(2*time.Hour)) // not forgotten
	w.wantPaused(t, "account1", "d.example")
}

func pauseSweep(t *testing.T, w acmeWorld) {
	for i := range pauseLimit {
		w.failAt(t, "account1", "a.example", acmeNow.Add(time.Duration(i)*time.Minute))
	}
	w.failAt(t, "account1", "b.example", acmeNow)
	count := func() (n int64) {
		must(t, w.db.Read(t.Context(), func(ctx context.Context, tx store.Tx) error {
			return tx.QueryRow(ctx, `SELECT COUNT(*) FROM acme_failures`).Scan(&n)
		}))
		return n
	}
	for _, c := range []struct {
		at   time.Duration
		left int64
	}{{23 * time.Hour, 2}, {24 * time.Hour, 1}, {48 * time.Hour, 1}, {49 * time.Hour, 0}} {
		_, err := w.Sweep(t.Context(), acme.Sweep{Now: acmeNow.Add(c.at), Limit: 100})
		must(t, err)
		if n := count(); n != c.left {
			t.Errorf("%d rows after %s; want %d", n, c.at, c.left)
		}
	}
}

func pauseSecret(t *testing.T, w acmeWorld) {
	for _, fresh := range [][]byte{{1, 0xff}, {2}} {
		got, err := w.Secret(t.Context(), "a", fresh)
		must(t, err)
		if !bytes.Equal(got, []byte{1, 0xff}) {
			t.Errorf("got %x", got)
		}
	}
	if got, err := w.Secret(t.Context(), "b", []byte{3}); err != nil || !bytes.Equal(got, []byte{3}) {
		t.Errorf("got %x, %v", got, err)
	}
}
