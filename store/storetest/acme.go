package storetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/ratelimit"
	"github.com/secsy-pki/secsy-pki/store"
)

// ACME is what both engines promise to the ACME edge.
func ACME(t *testing.T, open func(t *testing.T) *store.DB) {
	laws := map[string]func(t *testing.T, w acmeWorld){
		"AccountsComeBackAsTheyWere":           acmeAccounts,
		"OneKeyMakesOneAccount":                acmeOneKeyOneAccount,
		"TakenKeyIsRefused":                    acmeKeyTaken,
		"DeactivationEndsOpenOrders":           acmeDeactivateAccount,
		"OrdersComeBackAsTheyWere":             acmeOrders,
		"OpenOrdersAreBounded":                 acmeOpenOrders,
		"OrdersAreListedInPages":               acmeListOrders,
		"OthersObjectsAreNotFound":             acmeOthers,
		"QuotaIsDebitedWholeOrNotAtAll":        acmeQuota,
		"OrderThatFailsCostsNoQuota":           acmeQuotaUndone,
		"AllDebitsOrNone":                      acmeDebits,
		"OrdersAtOnceKeepToTheQuota":           acmeQuotaAtOnce,
		"SweepForgetsOnlyPaidQuotas":           acmeQuotaSweep,
		"SweepTakesNoDebitThatIsJustMade":      acmeQuotaSweepRace,
		"LastValidAuthorizationMakesReady":     acmeLastAuthorization,
		"AuthorizationsAtOnceMakeReady":        acmeAuthorizationsAtOnce,
		"OneFailedAuthorizationEndsTheOrder":   acmeFailedAuthorization,
		"ValidationBelongsToItsLease":          acmeLease,
		"DeactivatedAuthorizationEndsTheOrder": acmeDeactivateAuthorization,
		"HoldsWantsEveryNameAsItIs":            acmeHolds,
		"OneClaimWins":                         acmeOneClaim,
		"ParkedOrderIsClaimedForItsCSROnly":    acmeParked,
		"ExpiredOrderIsNotClaimed":             acmeExpiredClaim,
		"CommitNeedsTheIntent":                 acmeCommit,
		"BusyDoesNotCount":                     acmeAbort,
		"DueOrdersAreClaimedOnce":              acmeDue,
		"SweepExpiresThenDeletes":              acmeSweep,
		"EndedLeasesAreDueAtOnce":              acmeEndLeases,
	}
	for name, law := range laws {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			law(t, acmeWorld{store.NewACME(db), db})
		})
	}
}

type acmeWorld struct {
	*store.ACME
	db *store.DB
}

var acmeNow = time.Date(2026, 5, 1, 12, 0, 0, 123000, time.UTC)

func acmeEntry() audit.Entry { return audit.New("test", "test.done", "test/1", nil) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v; want %v", err, want)
	}
}

func (w acmeWorld) entries(t *testing.T) (n int64) {
	t.Helper()
	must(t, w.db.Read(t.Context(), func(ctx context.Context, tx store.Tx) error {
		return tx.QueryRow(ctx, `SELECT COUNT(*) FROM audit_entries`).Scan(&n)
	}))
	return n
}

func (w acmeWorld) account(t *testing.T) acme.Account {
	t.Helper()
	id := audit.NewID()
	a, created, err := w.CreateAccount(t.Context(), acme.Account{
		ID: id, Key: []byte(`{"kty":"x"}`), Thumbprint: "tp-" + id, Contacts: []string{"mailto:a@example.com"},
		TermsAgreed: true, Status: acme.AccountValid, CreatedAt: acmeNow,
	}, acmeEntry())
	must(t, err)
	if !created {
		t.Fatal("the account was there already")
	}
	return a
}

// order makes an order of names with its authorizations.
func (w acmeWorld) order(t *testing.T, accountID string, names ...string) (acme.Order, []acme.Authorization) {
	t.Helper()
	o, as := acmeOrder(accountID, names...)
	must(t, w.CreateOrder(t.Context(), o, as, acme.OrderLimits{MaxOpen: 1000}))
	return o, as
}

func acmeOrder(accountID string, names ...string) (acme.Order, []acme.Authorization) {
	o := acme.Order{
		ID: audit.NewID(), AccountID: accountID, Status: acme.OrderPending, Profile: "server",
		CreatedAt: acmeNow, Expires: acmeNow.Add(time.Hour), NotAfter: acmeNow.Add(2 * time.Hour),
	}
	var as []acme.Authorization
	for _, n := range names {
		a := acme.Authorization{
			ID: audit.NewID(), AccountID: accountID, OrderID: o.ID, Identifier: ca.Identifier{Type: ca.DNS, Value: n}, Status: acme.AuthzPending,
			Token: "token", Offered: []acme.ChallengeType{acme.HTTP01, acme.DNS01}, CreatedAt: acmeNow, Expires: o.Expires, PurgeAt: o.Expires.Add(time.Hour),
		}
		if base, ok := cutWildcard(n); ok {
			a.Identifier.Value, a.Wildcard = base, true
		}
		as = append(as, a)
		o.Identifiers = append(o.Identifiers, ca.Identifier{Type: ca.DNS, Value: n})
		o.AuthzIDs = append(o.AuthzIDs, a.ID)
	}
	return o, as
}

func cutWildcard(n string) (string, bool) {
	if len(n) > 2 && n[:2] == "*." {
		return n[2:], true
	}
	return n, false
}

func (w acmeWorld) validate(t *testing.T, a acme.Authorization) {
	t.Helper()
	lease := acmeNow.Add(time.Minute)
	must(t, w.StartChallenge(t.Context(), a.ID, acme.HTTP01, lease, acmeNow))
	must(t, w.FinishValidation(t.Context(), acmeValid(a, lease), acmeEntry()))
}

func acmeValid(a acme.Authorization, lease time.Time) acme.Validated {
	return acme.Validated{AuthzID: a.ID, OrderID: a.OrderID, Lease: lease, At: acmeNow, Expires: acmeNow.Add(24 * time.Hour), PurgeAt: acmeNow.Add(48 * time.Hour)}
}

func (w acmeWorld) ready(t *testing.T, accountID string, names ...string) acme.Order {
	t.Helper()
	o, as := w.order(t, accountID, names...)
	for _, a := range as {
		w.validate(t, a)
	}
	return w.wantStatus(t, o.ID, acme.OrderReady)
}

func (w acmeWorld) wantStatus(t *testing.T, id string, want acme.OrderStatus) acme.Order {
	t.Helper()
	o, err := w.Order(t.Context(), id)
	must(t, err)
	if o.Status != want {
		t.Fatalf("order is %s; want %s", o.Status, want)
	}
	return o
}

func acmeIntent(names ...ca.Identifier) ca.Intent {
	id := audit.NewID()
	return ca.Intent{
		ID: id, Serial: ca.Serial("01" + audit.NewID()), Issuer: "issuer", Profile: "server", TBS: []byte{1}, SPKIHash: sha256.Sum256([]byte(id)), Names: names,
		NotBefore: acmeNow, NotAfter: acmeNow.Add(time.Hour), Requester: ca.Requester{Actor: "acme:account/x"}, CreatedAt: acmeNow, LeaseUntil: acmeNow.Add(time.Minute),
	}
}

func acmeClaim(o acme.Order, csr string) acme.Claim {
	return acme.Claim{OrderID: o.ID, CSR: []byte(csr), CSRHash: "hash of " + csr, Now: acmeNow, DueAt: acmeNow.Add(time.Minute), Authzs: o.AuthzIDs}
}

func acmeAccounts(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	a := w.account(t)
	got, err := w.Account(ctx, a.ID)
	must(t, err)
	if !reflect.DeepEqual(got, a) {
		t.Errorf("got %+v; want %+v", got, a)
	}
	must(t, w.UpdateContacts(ctx, a.ID, nil, acmeEntry()))
	got, err = w.AccountByKey(ctx, a.Thumbprint)
	must(t, err)
	if got.ID != a.ID || len(got.Contacts) != 0 {
		t.Errorf("after the update: %+v", got)
	}
	must(t, w.ChangeKey(ctx, a.ID, a.Thumbprint, []byte(`{"kty":"y"}`), "other", acmeEntry()))
	_, err = w.AccountByKey(ctx, a.Thumbprint)
	wantErr(t, err, acme.ErrNotFound)
	wantErr(t, w.ChangeKey(ctx, a.ID, a.Thumbprint, nil, "third", acmeEntry()), acme.ErrMoved)
	_, err = w.Account(ctx, "nobody")
	wantErr(t, err, acme.ErrNotFound)
	if n := w.entries(t); n != 3 {
		t.Errorf("%d audit entries; want one for each of the 3 facts", n)
	}
}

func acmeOneKeyOneAccount(t *testing.T, w acmeWorld) {
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		ids     = map[string]bool{}
		created int
	)
	for range 8 {
		wg.Go(func() {
			a, made, err := w.CreateAccount(t.Context(), acme.Account{ID: audit.NewID(), Key: []byte("{}"), Thumbprint: "same", Status: acme.AccountValid, CreatedAt: acmeNow}, acmeEntry())
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			ids[a.ID] = true
			if made {
				created++
			}
		})
	}
	wg.Wait()
	if len(ids) != 1 || created != 1 || w.entries(t) != 1 {
		t.Errorf("%d accounts, %d created, %d entries; want 1 of each", len(ids), created, w.entries(t))
	}
}

func acmeKeyTaken(t *testing.T, w acmeWorld) {
	a, b := w.account(t), w.account(t)
	wantErr(t, w.ChangeKey(t.Context(), a.ID, a.Thumbprint, []byte("{}"), b.Thumbprint, acmeEntry()), acme.ErrKeyTaken)
	if n := w.entries(t); n != 2 {
		t.Errorf("%d audit entries; want 2", n)
	}
}

func acmeDeactivateAccount(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	a, other := w.account(t), w.account(t)
	pending, _ := w.order(t, a.ID, "a.example")
	foreign, _ := w.order(t, other.ID, "a.example")
	busy := w.ready(t, a.ID, "b.example")
	must(t, w.Park(ctx, acmeClaim(busy, "csr")))
	closed := acme.Closing{Error: acme.Problem{Type: acme.Unauthorized, Detail: "gone"}, PurgeAt: acmeNow.Add(time.Hour)}
	must(t, w.DeactivateAccount(ctx, a.ID, closed, acmeEntry()))
	o := w.wantStatus(t, pending.ID, acme.OrderInvalid)
	if o.Error == nil || o.Error.Detail != "gone" {
		t.Errorf("order's error is %v", o.Error)
	}
	w.wantStatus(t, busy.ID, acme.OrderProcessing)
	w.wantStatus(t, foreign.ID, acme.OrderPending)
	wantErr(t, w.DeactivateAccount(ctx, a.ID, closed, acmeEntry()), acme.ErrMoved)
	wantErr(t, w.UpdateContacts(ctx, a.ID, nil, acmeEntry()), acme.ErrMoved)
	wantErr(t, w.ChangeKey(ctx, a.ID, a.Thumbprint, nil, "new", acmeEntry()), acme.ErrMoved)
}

func acmeOrders(t *testing.T, w acmeWorld) {
	names := make([]string, 0, 120) // more than one statement inserts
	for i := range 119 {
		names = append(names, fmt.Sprintf("n%d.example", i))
	}
	names = append(names, "*.example")
	o, as := w.order(t, "acct", names...)
	got, err := w.Order(t.Context(), o.ID)
	must(t, err)
	if !reflect.DeepEqual(got, o) {
		t.Errorf("got %+v\nwant %+v", got, o)
	}
	for _, a := range as {
		got, err := w.Authorization(t.Context(), a.ID)
		must(t, err)
		if !reflect.DeepEqual(got, a) {
			t.Fatalf("got %+v\nwant %+v", got, a)
		}
	}
	_, err = w.Order(t.Context(), "none")
	wantErr(t, err, acme.ErrNotFound)
	_, err = w.Authorization(t.Context(), "none")
	wantErr(t, err, acme.ErrNotFound)
}

func acmeOpenOrders(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	for range 3 {
		o, as := acmeOrder("acct", "a.example")
		must(t, w.CreateOrder(ctx, o, as, acme.OrderLimits{MaxOpen: 3}))
	}
	o, as := acmeOrder("acct", "a.example")
	wantErr(t, w.CreateOrder(ctx, o, as, acme.OrderLimits{MaxOpen: 3}), acme.ErrTooManyOpen)
	_, err := w.Authorization(ctx, as[0].ID)
	wantErr(t, err, acme.ErrNotFound)
	o, as = acmeOrder("other", "a.example")
	must(t, w.CreateOrder(ctx, o, as, acme.OrderLimits{MaxOpen: 3}))
}

func acmeOthers(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	his, other := w.account(t), w.account(t)
	o, as := w.order(t, his.ID, "a.example")
	in := acmeIntent()
	in.Requester.Actor = "acme:account/" + his.ID
	l := store.NewCA(w.db).PlainLedger()
	must(t, l.Begin(ctx, in))
	must(t, l.Commit(ctx, in, ca.Certificate{ID: in.ID, Serial: in.Serial, DER: []byte("der")}))
	by := acme.Signer{AccountID: his.ID, Thumbprint: his.Thumbprint}
	got, err := w.OrderOf(ctx, by, o.ID)
	must(t, err)
	if got.ID != o.ID || got.AccountID != his.ID {
		t.Errorf("order is %+v", got)
	}
	a, err := w.AuthorizationOf(ctx, by, as[0].ID)
	must(t, err)
	if !reflect.DeepEqual(a, as[0]) {
		t.Errorf("authorization is %+v; want %+v", a, as[0])
	}
	rec, err := w.CertificateBy(ctx, by, in.ID)
	must(t, err)
	if string(rec.DER) != "der" {
		t.Errorf("certificate is %+v", rec)
	}
	none := func(by acme.Signer, order, authz, certificate string) {
		t.Helper()
		_, err = w.OrderOf(ctx, by, order)
		wantErr(t, err, acme.ErrNotFound)
		_, err = w.AuthorizationOf(ctx, by, authz)
		wantErr(t, err, acme.ErrNotFound)
		_, err = w.CertificateBy(ctx, by, certificate)
		wantErr(t, err, ca.ErrNotFound)
	}
	none(by, "none", "none", "none")
	none(acme.Signer{AccountID: other.ID, Thumbprint: other.Thumbprint}, o.ID, as[0].ID, in.ID)
	none(acme.Signer{AccountID: his.ID, Thumbprint: other.Thumbprint}, o.ID, as[0].ID, in.ID)
	none(acme.Signer{AccountID: his.ID}, o.ID, as[0].ID, in.ID)
	none(acme.Signer{}, o.ID, as[0].ID, in.ID)
	// What the account signed with the key that it has no more, or before it ended.
	must(t, w.ChangeKey(ctx, his.ID, his.Thumbprint, []byte("{}"), "new", acmeEntry()))
	none(by, o.ID, as[0].ID, in.ID)
	by.Thumbprint = "new"
	_, err = w.OrderOf(ctx, by, o.ID)
	must(t, err)
	must(t, w.DeactivateAccount(ctx, his.ID, acme.Closing{}, acmeEntry()))
	none(by, o.ID, as[0].ID, in.ID)
}

// acmeTen is a quota of ten identifiers; each comes back after a minute.
var acmeTen = acme.OrderLimits{MaxOpen: 1000, Quota: ratelimit.Quota{Limit: 10, Window: 10 * time.Minute}}

// spend orders n names at a time after acmeNow.
func (w acmeWorld) spend(t *testing.T, account string, n int, at time.Duration, l acme.OrderLimits) (acme.Order, error) {
	t.Helper()
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%d.example", i)
	}
	o, as := acmeOrder(account, names...)
	o.CreatedAt = acmeNow.Add(at)
	return o, w.CreateOrder(t.Context(), o, as, l)
}

// wantQuota wants the quota's no, and nothing stored.
func (w acmeWorld) wantQuota(t *testing.T, o acme.Order, err error, wait time.Duration) {
	t.Helper()
	q, ok := errors.AsType[*acme.QuotaError](err)
	if !ok || q.Decision.OK || q.Decision.RetryAfter != wait || q.Decision.Never != (wait == 0) {
		t.Fatalf("got %v (%+v); want a wait of %s", err, q, wait)
	}
	_, err = w.Order(t.Context(), o.ID)
	wantErr(t, err, acme.ErrNotFound)
}

func acmeQuota(t *testing.T, w acmeWorld) {
	spend := func(account string, n int, at time.Duration) (acme.Order, error) {
		return w.spend(t, account, n, at, acmeTen)
	}
	ok := func(account string, n int, at time.Duration) {
		t.Helper()
		_, err := spend(account, n, at)
		must(t, err)
	}
	ok("acct", 4, 0)
	o, err := spend("acct", 8, 0) // of which six would fit
	w.wantQuota(t, o, err, 2*time.Minute)
	ok("acct", 6, 0)
	o, err = spend("acct", 1, 0)
	w.wantQuota(t, o, err, time.Minute)
	o, err = spend("acct", 11, 24*time.Hour) // and never will
	w.wantQuota(t, o, err, 0)
	ok("other", 10, 0)
	ok("acct", 1, time.Minute) // exactly when it was said
	// Off, it neither asks nor counts.
	for range 3 {
		_, err := w.spend(t, "acct", 10, time.Minute, acme.OrderLimits{MaxOpen: 1000})
		must(t, err)
	}
	o, err = spend("acct", 1, time.Minute)
	w.wantQuota(t, o, err, time.Minute)
}

func acmeQuotaUndone(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	few := acmeTen
	few.MaxOpen = 1
	_, err := w.spend(t, "acct", 1, 0, few)
	must(t, err)
	for range 5 {
		_, err := w.spend(t, "acct", 9, 0, few)
		wantErr(t, err, acme.ErrTooManyOpen)
	}
	o, as := acmeOrder("acct", "a.example", "b.example")
	as[1].ID = as[0].ID // which the database refuses
	if err := w.CreateOrder(ctx, o, as, acmeTen); err == nil {
		t.Fatal("an order was stored with two authorizations of one id")
	}
	_, err = w.spend(t, "acct", 9, 0, acmeTen) // all that is left
	must(t, err)
}

// An order is debited to all its quotas, and to none if one of them says no.
func acmeDebits(t *testing.T, w acmeWorld) {
	q := ratelimit.Quota{Limit: 2, Window: time.Hour}
	debit := func(subjects ...string) error {
		l := acme.OrderLimits{MaxOpen: 100, Quota: ratelimit.Quota{Limit: 3, Window: time.Hour}}
		for _, s := range subjects {
			l.Debits = append(l.Debits, acme.Debit{Kind: "kind", Subject: s, Quota: q, Cost: 1})
		}
		o, as := acmeOrder("acct", "a.example")
		return w.CreateOrder(t.Context(), o, as, l)
	}
	must(t, debit("a"))
	must(t, debit("a", "b"))
	for range 3 {
		var e *acme.QuotaError
		if err := debit("a", "b"); !errors.As(err, &e) || e.Debit.Subject != "a" || e.Decision.OK {
			t.Errorf("%v", err)
		}
		if err := debit("c", "a"); !errors.As(err, &e) || e.Debit.Subject != "a" {
			t.Errorf("%v", err)
		}
	}
	must(t, debit("b", "c")) // the last identifier, too
	wantQuota := debit()
	var e *acme.QuotaError
	if !errors.As(wantQuota, &e) || e.Debit != (acme.Debit{}) {
		t.Errorf("%v", wantQuota)
	}
}

func acmeQuotaAtOnce(t *testing.T, w acmeWorld) {
	const orders, names = 24, 3
	var (
		wg       sync.WaitGroup
		mu       sync.Mutex
		admitted int
	)
	for i := range orders {
		wg.Go(func() {
			_, err := w.spend(t, "acct", names, time.Duration(i)*time.Millisecond, acmeTen)
			if _, refused := errors.AsType[*acme.QuotaError](err); err != nil && !refused {
				t.Errorf("order: %v", err)
			}
			if err == nil {
				mu.Lock()
				admitted++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if admitted != acmeTen.Quota.Limit/names {
		t.Errorf("%d orders of %d names were admitted at once; want %d", admitted, names, acmeTen.Quota.Limit/names)
	}
}

func acmeQuotaSweep(t *testing.T, w acmeWorld) {
	_, err := w.spend(t, "paid", 1, 0, acmeTen)
	must(t, err)
	_, err = w.spend(t, "owes", 10, 0, acmeTen)
	must(t, err)
	_, err = w.Sweep(t.Context(), acme.Sweep{Now: acmeNow.Add(time.Minute), Limit: 10})
	must(t, err)
	var left []string
	must(t, w.db.Read(t.Context(), func(ctx context.Context, tx store.Tx) error {
		left = nil
		rows, err := tx.Query(ctx, `SELECT subject FROM quotas`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var s string
			if err := rows.Scan(&s); err != nil {
				return err
			}
			left = append(left, s)
		}
		return rows.Err()
	}))
	if !slices.Equal(left, []string{"owes"}) {
		t.Errorf("rows left are of %q", left)
	}
}

func acmeQuotaSweepRace(t *testing.T, w acmeWorld) {
	const accounts = 12
	later := 10 * time.Minute
	for i := range accounts {
		_, err := w.spend(t, fmt.Sprint("acct", i), 1, 0, acmeTen)
		must(t, err)
	}
	var wg sync.WaitGroup
	for i := range accounts {
		wg.Go(func() {
			if _, err := w.spend(t, fmt.Sprint("acct", i), acmeTen.Quota.Limit, later, acmeTen); err != nil {
				t.Errorf("order: %v", err)
			}
		})
		wg.Go(func() {
			if _, err := w.Sweep(t.Context(), acme.Sweep{Now: acmeNow.Add(later), Limit: accounts}); err != nil {
				t.Errorf("sweep: %v", err)
			}
		})
	}
	wg.Wait()
	for i := range accounts {
		o, err := w.spend(t, fmt.Sprint("acct", i), 1, later, acmeTen)
		w.wantQuota(t, o, err, time.Minute)
	}
}

func acmeListOrders(t *testing.T, w acmeWorld) {
	var want []string
	for range 7 {
		o, _ := w.order(t, "acct", "a.example")
		want = append(want, o.ID)
	}
	w.order(t, "other", "a.example")
	slices.Sort(want)
	var got []string
	for after := ""; ; {
		page, err := w.ListOrders(t.Context(), "acct", after, 3)
		must(t, err)
		if len(page) == 0 {
			break
		}
		for _, r := range page {
			got = append(got, r.ID)
		}
		after = page[len(page)-1].ID
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v; want %v", got, want)
	}
}

func acmeLastAuthorization(t *testing.T, w acmeWorld) {
	o, as := w.order(t, "acct", "a.example", "b.example")
	w.validate(t, as[0])
	w.wantStatus(t, o.ID, acme.OrderPending)
	w.validate(t, as[1])
	w.wantStatus(t, o.ID, acme.OrderReady)
	a, err := w.Authorization(t.Context(), as[0].ID)
	must(t, err)
	if a.Status != acme.AuthzValid || !a.Validated.Equal(acmeNow) || !a.Lease.IsZero() || a.Challenge != acme.HTTP01 {
		t.Errorf("authorization is %+v", a)
	}
	// An order outlives none of its authorizations.
	short, as := w.order(t, "acct", "c.example")
	lease := acmeNow.Add(time.Minute)
	must(t, w.StartChallenge(t.Context(), as[0].ID, acme.HTTP01, lease, acmeNow))
	v := acmeValid(as[0], lease)
	v.Expires = acmeNow.Add(time.Minute)
	must(t, w.FinishValidation(t.Context(), v, acmeEntry()))
	if got := w.wantStatus(t, short.ID, acme.OrderReady); !got.Expires.Equal(v.Expires) {
		t.Errorf("order expires at %s; want %s", got.Expires, v.Expires)
	}
}

func acmeAuthorizationsAtOnce(t *testing.T, w acmeWorld) {
	names := []string{"a.example", "b.example", "c.example", "d.example", "e.example", "f.example"}
	o, as := w.order(t, "acct", names...)
	lease := acmeNow.Add(time.Minute)
	var wg sync.WaitGroup
	for _, a := range as {
		must(t, w.StartChallenge(t.Context(), a.ID, acme.HTTP01, lease, acmeNow))
		wg.Go(func() {
			if err := w.FinishValidation(t.Context(), acmeValid(a, lease), acmeEntry()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	w.wantStatus(t, o.ID, acme.OrderReady)
}

func acmeFailedAuthorization(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	o, as := w.order(t, "acct", "a.example", "b.example")
	lease := acmeNow.Add(time.Minute)
	must(t, w.StartChallenge(ctx, as[0].ID, acme.DNS01, lease, acmeNow))
	v := acmeValid(as[0], lease)
	v.Failed = &acme.Problem{Type: acme.DNSError, Detail: "no TXT", Status: 400}
	v.Closing = acme.Closing{Error: acme.Problem{Type: acme.DNSError, Subproblems: []acme.Problem{*v.Failed}}, PurgeAt: acmeNow.Add(time.Hour)}
	before := w.entries(t)
	must(t, w.FinishValidation(ctx, v, acmeEntry()))
	if w.entries(t) != before {
		t.Error("a failed validation left an audit entry")
	}
	got := w.wantStatus(t, o.ID, acme.OrderInvalid)
	if !reflect.DeepEqual(got.Error, &v.Closing.Error) {
		t.Errorf("order's error is %+v", got.Error)
	}
	a, err := w.Authorization(ctx, as[0].ID)
	must(t, err)
	if a.Status != acme.AuthzInvalid || !a.Validated.IsZero() || !reflect.DeepEqual(a.Error, v.Failed) {
		t.Errorf("authorization is %+v", a)
	}
	w.validate(t, as[1])
	w.wantStatus(t, o.ID, acme.OrderInvalid)
}

func acmeLease(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	_, as := w.order(t, "acct", "a.example")
	id, lease := as[0].ID, acmeNow.Add(time.Minute)
	must(t, w.StartChallenge(ctx, id, acme.HTTP01, lease, acmeNow))
	wantErr(t, w.StartChallenge(ctx, id, acme.DNS01, lease, acmeNow), acme.ErrMoved)
	due, err := w.DueValidations(ctx, acmeNow, "", 10)
	must(t, err)
	if len(due) != 0 {
		t.Fatalf("%d validations are due before the lease ends", len(due))
	}
	due, err = w.DueValidations(ctx, lease, "", 10)
	must(t, err)
	if len(due) != 1 || due[0].ID != id {
		t.Fatalf("due: %+v", due)
	}
	next := lease.Add(time.Minute)
	must(t, w.ExtendLease(ctx, id, lease, next))
	wantErr(t, w.ExtendLease(ctx, id, lease, next), acme.ErrMoved)
	before := w.entries(t)
	wantErr(t, w.FinishValidation(ctx, acmeValid(as[0], lease), acmeEntry()), acme.ErrMoved)
	if w.entries(t) != before {
		t.Error("a validation that lost its lease left an audit entry")
	}
	must(t, w.FinishValidation(ctx, acmeValid(as[0], next), acmeEntry()))
	wantErr(t, w.FinishValidation(ctx, acmeValid(as[0], next), acmeEntry()), acme.ErrMoved)
	wantErr(t, w.StartChallenge(ctx, "none", acme.HTTP01, lease, acmeNow), acme.ErrMoved)
}

func acmeDeactivateAuthorization(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	closed := acme.Closing{Error: acme.Problem{Type: acme.Unauthorized}, PurgeAt: acmeNow.Add(time.Hour)}
	o, as := w.order(t, "acct", "a.example")
	before := w.entries(t)
	must(t, w.DeactivateAuthorization(ctx, as[0].ID, acmeNow, closed, acmeEntry()))
	if w.entries(t) != before {
		t.Error("giving up what was not proven left an audit entry")
	}
	w.wantStatus(t, o.ID, acme.OrderInvalid)
	wantErr(t, w.DeactivateAuthorization(ctx, as[0].ID, acmeNow, closed, acmeEntry()), acme.ErrMoved)

	busy := w.ready(t, "acct", "b.example")
	must(t, w.Park(ctx, acmeClaim(busy, "csr")))
	before = w.entries(t)
	must(t, w.DeactivateAuthorization(ctx, busy.AuthzIDs[0], acmeNow, closed, acmeEntry()))
	if w.entries(t) != before+1 {
		t.Error("giving up what was proven left no audit entry")
	}
	w.wantStatus(t, busy.ID, acme.OrderProcessing)

	_, as = w.order(t, "acct", "c.example")
	wantErr(t, w.DeactivateAuthorization(ctx, as[0].ID, as[0].Expires, closed, acmeEntry()), acme.ErrMoved)
}

func acmeHolds(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	w.ready(t, "acct", "a.example", "*.b.example")
	w.order(t, "acct", "pending.example")
	ids := func(names ...string) (out []ca.Identifier) {
		for _, n := range names {
			out = append(out, ca.Identifier{Type: ca.DNS, Value: n})
		}
		return out
	}
	for _, c := range []struct {
		account string
		ids     []ca.Identifier
		at      time.Time
		want    bool
	}{
		{"acct", ids("a.example", "*.b.example"), acmeNow, true},
		{"acct", ids("a.example"), acmeNow, true},
		{"acct", ids("a.example", "b.example"), acmeNow, false},
		{"acct", ids("*.a.example"), acmeNow, false},
		{"acct", ids("pending.example"), acmeNow, false},
		{"acct", ids("a.example"), acmeNow.Add(25 * time.Hour), false},
		{"acct", nil, acmeNow, false},
		{"other", ids("a.example"), acmeNow, false},
	} {
		got, err := w.Holds(ctx, c.account, c.ids, c.at)
		must(t, err)
		if got != c.want {
			t.Errorf("%s holds %v at %s: %v; want %v", c.account, c.ids, c.at, got, c.want)
		}
	}
}

func acmeOneClaim(t *testing.T, w acmeWorld) {
	o := w.ready(t, "acct", "a.example")
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		won int
	)
	for i := range 8 {
		wg.Go(func() {
			err := w.BeginIssue(t.Context(), acmeClaim(o, fmt.Sprint("csr", i%2)), acmeIntent(o.Identifiers...))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won++
			case !errors.Is(err, acme.ErrMoved):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won != 1 {
		t.Fatalf("%d claims won; want 1", won)
	}
	w.wantStatus(t, o.ID, acme.OrderProcessing)
	var n int64
	must(t, w.db.Read(t.Context(), func(ctx context.Context, tx store.Tx) error {
		return tx.QueryRow(ctx, `SELECT COUNT(*) FROM certificates`).Scan(&n)
	}))
	if n != 1 {
		t.Errorf("%d intents; want 1", n)
	}
}

func acmeParked(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	o := w.ready(t, "acct", "a.example")
	must(t, w.Park(ctx, acmeClaim(o, "csr")))
	wantErr(t, w.Park(ctx, acmeClaim(o, "csr")), acme.ErrMoved)
	wantErr(t, w.BeginIssue(ctx, acmeClaim(o, "another"), acmeIntent(o.Identifiers...)), acme.ErrMoved)
	must(t, w.BeginIssue(ctx, acmeClaim(o, "csr"), acmeIntent(o.Identifiers...)))
	got := w.wantStatus(t, o.ID, acme.OrderProcessing)
	if string(got.CSR) != "csr" || got.CSRHash != "hash of csr" || got.Attempts != 1 {
		t.Errorf("order is %+v", got)
	}
}

func acmeExpiredClaim(t *testing.T, w acmeWorld) {
	o := w.ready(t, "acct", "a.example")
	c := acmeClaim(o, "csr")
	c.Now = o.Expires
	wantErr(t, w.BeginIssue(t.Context(), c, acmeIntent(o.Identifiers...)), acme.ErrMoved)
	wantErr(t, w.Park(t.Context(), c), acme.ErrMoved)
	w.wantStatus(t, o.ID, acme.OrderReady)
}

func acmeCommit(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	o := w.ready(t, "acct", "a.example")
	first, second := acmeIntent(o.Identifiers...), acmeIntent(o.Identifiers...)
	must(t, w.BeginIssue(ctx, acmeClaim(o, "csr"), first))
	c := acmeClaim(o, "csr")
	c.Prev = first.ID
	must(t, w.BeginIssue(ctx, c, second))
	certOf := func(in ca.Intent) ca.Certificate {
		return ca.Certificate{ID: in.ID, Serial: in.Serial, Issuer: in.Issuer, Profile: in.Profile, DER: []byte("der"), NotBefore: in.NotBefore, NotAfter: in.NotAfter}
	}
	wantErr(t, w.CommitIssue(ctx, o.ID, first, certOf(first), acmeNow.Add(time.Hour)), ca.ErrLeaseLost)
	rec, err := w.Record(ctx, first.Serial)
	must(t, err)
	if rec.State != ca.Pending {
		t.Errorf("the loser's intent is %s; want pending, for recovery to abandon", rec.State)
	}
	must(t, w.CommitIssue(ctx, o.ID, second, certOf(second), acmeNow.Add(time.Hour)))
	got := w.wantStatus(t, o.ID, acme.OrderValid)
	if got.CertificateID != second.ID || got.Serial != second.Serial || got.CSR != nil || got.CSRHash == "" {
		t.Errorf("order is %+v", got)
	}
	rec, err = w.CertificateOf(ctx, "acme:account/x", second.ID)
	must(t, err)
	if string(rec.DER) != "der" || rec.Requester != "acme:account/x" {
		t.Errorf("certificate is %+v", rec)
	}
	for _, not := range [][2]string{{"acme:account/x", first.ID}, {"acme:account/y", second.ID}, {"acme:account/x", "none"}} {
		_, err = w.CertificateOf(ctx, not[0], not[1])
		wantErr(t, err, ca.ErrNotFound)
	}
}

func acmeAbort(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	o := w.ready(t, "acct", "a.example")
	in := acmeIntent(o.Identifiers...)
	must(t, w.BeginIssue(ctx, acmeClaim(o, "csr"), in))
	must(t, w.AbortIssue(ctx, o.ID, in, keys.ErrBusy, acme.Verdict{DueAt: acmeNow.Add(time.Second)}))
	got := w.wantStatus(t, o.ID, acme.OrderProcessing)
	if got.Attempts != 0 || got.IntentID != "" || !got.DueAt.Equal(acmeNow.Add(time.Second)) {
		t.Errorf("order is %+v", got)
	}
	must(t, w.Settle(ctx, o.ID, "", acme.Verdict{Counts: true, DueAt: acmeNow}, nil))
	in = acmeIntent(o.Identifiers...)
	must(t, w.BeginIssue(ctx, acmeClaim(o, "csr"), in))
	if got := w.wantStatus(t, o.ID, acme.OrderProcessing); got.Attempts != 2 {
		t.Errorf("%d attempts; want 2", got.Attempts)
	}
	wantErr(t, w.Settle(ctx, o.ID, "", acme.Verdict{Failed: &acme.Problem{}}, nil), acme.ErrMoved)
	must(t, w.AbortIssue(ctx, o.ID, in, errors.New("broken"), acme.Verdict{Failed: &acme.Problem{Type: acme.ServerInternal}, Counts: true}))
	got = w.wantStatus(t, o.ID, acme.OrderInvalid)
	if got.Error == nil || got.Error.Type != acme.ServerInternal || got.CSR != nil {
		t.Errorf("order is %+v", got)
	}
}

func acmeDue(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	o := w.ready(t, "acct", "a.example")
	c := acmeClaim(o, "csr")
	must(t, w.Park(ctx, c))
	due, err := w.DueOrders(ctx, acmeNow, "", 10)
	must(t, err)
	if len(due) != 0 {
		t.Fatal("an order is due too early")
	}
	due, err = w.DueOrders(ctx, c.DueAt, "", 10)
	must(t, err)
	if len(due) != 1 || due[0].ID != o.ID || string(due[0].CSR) != "csr" {
		t.Fatalf("due: %+v", due)
	}
	must(t, w.ClaimDue(ctx, o.ID, due[0].DueAt, c.DueAt.Add(time.Minute)))
	wantErr(t, w.ClaimDue(ctx, o.ID, due[0].DueAt, c.DueAt.Add(time.Minute)), acme.ErrMoved)
	// An attempt that ended with its process is no failure of the order.
	in := acmeIntent(o.Identifiers...)
	c.Now, c.DueAt = acmeNow, c.DueAt.Add(time.Hour)
	must(t, w.BeginIssue(ctx, c, in))
	before, err := w.Order(ctx, o.ID)
	must(t, err)
	must(t, w.ClaimDue(ctx, o.ID, c.DueAt, c.DueAt.Add(time.Minute)))
	after, err := w.Order(ctx, o.ID)
	must(t, err)
	if before.Attempts != 1 || before.Deaths != 0 || after.Attempts != 0 || after.Deaths != 1 {
		t.Errorf("attempts and deaths: %d, %d, then %d, %d", before.Attempts, before.Deaths, after.Attempts, after.Deaths)
	}
	// It waits a little longer at each start from then on.
	must(t, w.EndLeases(ctx, acmeNow))
	due, err = w.DueOrders(ctx, acmeNow, "", 10)
	must(t, err)
	if len(due) != 0 {
		t.Error("an order that has seen its process die is the first thing that the next start does")
	}
	due, err = w.DueOrders(ctx, acmeNow.Add(time.Minute), "", 10)
	must(t, err)
	if len(due) != 1 {
		t.Errorf("%d orders are due in a minute", len(due))
	}
}

func acmeEndLeases(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	parked := w.ready(t, "acct", "a.example")
	must(t, w.Park(ctx, acmeClaim(parked, "csr")))
	_, as := w.order(t, "acct", "b.example")
	must(t, w.StartChallenge(ctx, as[0].ID, acme.HTTP01, acmeNow.Add(time.Minute), acmeNow))
	waiting, idle := w.order(t, "acct", "c.example")
	must(t, w.EndLeases(ctx, acmeNow))
	orders, err := w.DueOrders(ctx, acmeNow, "", 10)
	must(t, err)
	if len(orders) != 1 || orders[0].ID != parked.ID {
		t.Errorf("due orders: %+v", orders)
	}
	validations, err := w.DueValidations(ctx, acmeNow, "", 10)
	must(t, err)
	if len(validations) != 1 || validations[0].ID != as[0].ID {
		t.Errorf("due validations: %+v; those not started are %s", validations, idle[0].ID)
	}
	w.wantStatus(t, waiting.ID, acme.OrderPending)
	// The old owner's outcome comes too late once somebody else has the lease.
	must(t, w.TakeLease(ctx, as[0].ID, acmeNow, acmeNow.Add(time.Hour)))
	wantErr(t, w.FinishValidation(ctx, acmeValid(as[0], acmeNow.Add(time.Minute)), acmeEntry()), acme.ErrMoved)
}

func acmeSweep(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	pending, as := w.order(t, "acct", "a.example")
	busy := w.ready(t, "acct", "b.example")
	must(t, w.Park(ctx, acmeClaim(busy, "csr")))
	s := acme.Sweep{Now: acmeNow, Closing: acme.Closing{Error: acme.Problem{Type: acme.Malformed}, PurgeAt: pending.Expires.Add(time.Hour)}, Limit: 10}
	n, err := w.Sweep(ctx, s)
	must(t, err)
	if n != 0 {
		t.Errorf("swept %d before anything expired", n)
	}
	s.Now = pending.Expires
	_, err = w.Sweep(ctx, s)
	must(t, err)
	if o := w.wantStatus(t, pending.ID, acme.OrderInvalid); o.Error == nil {
		t.Error("the expired order has no error")
	}
	w.wantStatus(t, busy.ID, acme.OrderProcessing)
	s.Now = s.Closing.PurgeAt
	_, err = w.Sweep(ctx, s)
	must(t, err)
	_, err = w.Order(ctx, pending.ID)
	wantErr(t, err, acme.ErrNotFound)
	_, err = w.Authorization(ctx, as[0].ID)
	wantErr(t, err, acme.ErrNotFound)
	s.Now = s.Now.Add(1000 * time.Hour)
	_, err = w.Sweep(ctx, s)
	must(t, err)
	w.wantStatus(t, busy.ID, acme.OrderProcessing)
}
