package storetest

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ratelimit"
	"github.com/secsy-pki/secsy-pki/store"
)

// ACMEReuse is what both engines promise about what is used more than once.
func ACMEReuse(t *testing.T, open func(t *testing.T) *store.DB) {
	for name, law := range map[string]func(t *testing.T, w acmeWorld){
		"ReusableIsWhatIsValidAndTheAccounts":   acmeReusable,
		"AnOrderReliesOnValidOnesOnly":          acmeRelies,
		"DeactivationEndsAllThatRelies":         acmeDeactivateRelied,
		"NothingIsClaimedWithoutItsProofs":      acmeUnproven,
		"DeactivationAndClaimAgree":             acmeDeactivateRace,
		"DeactivationAndNewOrderAgree":          acmeDeactivateOrderRace,
		"TheSameOrderIsTheOpenOneOfTheAccount":  acmeSameOrder,
		"NoOrderBesideTheSameOrForNoAccount":    acmeUnlike,
		"AuthorizationsStayWhileAnOrderIsAlive": acmeReusedPurge,
		"AuthorizationsAheadAreBounded":         acmeAhead,
		"HoldsLooksAtDomainsAbove":              acmeHoldsBelow,
		"InvalidOrdersEmptyNoPage":              acmeListInvalid,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			law(t, acmeWorld{store.NewACME(db), db})
		})
	}
}

// relying makes an order that relies on what the others have proven.
func relying(o acme.Order) acme.Order {
	n := o
	n.ID, n.Status = audit.NewID(), acme.OrderReady
	return n
}

var acmeClosed = acme.Closing{Error: acme.Problem{Type: acme.Unauthorized, Detail: "given up"}, PurgeAt: acmeNow.Add(time.Hour)}

func acmeReusable(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	first := w.ready(t, "acct", "a.example", "*.a.example", "b.example")
	w.ready(t, "other", "a.example")
	w.order(t, "acct", "a.example")
	gone := w.ready(t, "acct", "gone.example")
	must(t, w.DeactivateAuthorization(ctx, gone.AuthzIDs[0], acmeNow, acmeClosed, acmeEntry()))
	longer, as := w.order(t, "acct", "b.example")
	lease := acmeNow.Add(time.Minute)
	must(t, w.StartChallenge(ctx, as[0].ID, acme.DNS01, lease, acmeNow))
	v := acmeValid(as[0], lease)
	v.Expires = v.Expires.Add(time.Minute)
	must(t, w.FinishValidation(ctx, v, acmeEntry()))

	all := acme.ReuseQuery{
		AccountID: "acct", Names: []string{"a.example", "b.example", "gone.example", "none.example"},
		Types: []acme.ChallengeType{acme.HTTP01, acme.DNS01}, Until: acmeNow.Add(time.Hour), Since: acmeNow.Add(-time.Hour),
	}
	but := func(change func(q *acme.ReuseQuery)) acme.ReuseQuery {
		q := all
		change(&q)
		return q
	}
	for name, c := range map[string]struct {
		q    acme.ReuseQuery
		want []string
	}{
		"all":          {all, []string{first.AuthzIDs[0], first.AuthzIDs[1], longer.AuthzIDs[0]}},
		"by type":      {but(func(q *acme.ReuseQuery) { q.Types = q.Types[:1] }), first.AuthzIDs},
		"another's":    {but(func(q *acme.ReuseQuery) { q.AccountID = "third" }), nil},
		"no names":     {but(func(q *acme.ReuseQuery) { q.Names = nil }), nil},
		"directory":    {but(func(q *acme.ReuseQuery) { q.Directory = "x" }), nil},
		"profile":      {but(func(q *acme.ReuseQuery) { q.Profile = "x" }), nil},
		"long enough":  {but(func(q *acme.ReuseQuery) { q.Until = acmeNow.Add(24 * time.Hour) }), longer.AuthzIDs},
		"fresh enough": {but(func(q *acme.ReuseQuery) { q.Since = acmeNow }), nil},
	} {
		got, err := w.ReusableAuthorizations(ctx, c.q)
		must(t, err)
		ids := map[string]bool{}
		for _, a := range got {
			ids[a.ID] = true
		}
		if len(got) != len(c.want) || len(ids) != len(c.want) {
			t.Errorf("%s: %d found; want %d", name, len(got), len(c.want))
		}
		for _, id := range c.want {
			if !ids[id] {
				t.Errorf("%s: one is missing", name)
			}
		}
	}
}

func acmeRelies(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	limits := acme.OrderLimits{MaxOpen: 1000, Quota: acmeTen.Quota}
	old := w.ready(t, "acct", "a.example")
	good := relying(old)
	must(t, w.CreateOrder(ctx, good, nil, limits))
	w.wantStatus(t, good.ID, acme.OrderReady)

	// Together with new ones: ready with the last new one.
	mixed, as := acmeOrder("acct", "b.example")
	mixed.AuthzIDs = append(mixed.AuthzIDs, old.AuthzIDs...)
	must(t, w.CreateOrder(ctx, mixed, as, limits))
	w.wantStatus(t, mixed.ID, acme.OrderPending)
	w.validate(t, as[0])
	w.wantStatus(t, mixed.ID, acme.OrderReady)

	pending, pas := w.order(t, "acct", "c.example")
	foreign := w.ready(t, "other", "a.example")
	for name, change := range map[string]func(o *acme.Order){
		"pending":            func(o *acme.Order) { o.AuthzIDs = pending.AuthzIDs },
		"another's":          func(o *acme.Order) { o.AuthzIDs = foreign.AuthzIDs },
		"one too many":       func(o *acme.Order) { o.AuthzIDs = append([]string{pas[0].ID}, old.AuthzIDs...) },
		"another directory":  func(o *acme.Order) { o.Directory = "x" },
		"expires before it":  func(o *acme.Order) { o.Expires = acmeNow.Add(25 * time.Hour) },
		"one that is not":    func(o *acme.Order) { o.AuthzIDs = []string{"none"} },
		"spent on the quota": func(o *acme.Order) { o.AuthzIDs, o.AccountID = []string{"none"}, "fresh" },
	} {
		o := relying(old)
		change(&o)
		err := w.CreateOrder(ctx, o, nil, limits)
		if !errors.Is(err, acme.ErrMoved) {
			t.Errorf("%s: %v; want %v", name, err, acme.ErrMoved)
		}
		_, err = w.Order(ctx, o.ID)
		wantErr(t, err, acme.ErrNotFound)
	}
	bare := relying(old)
	bare.AuthzIDs = nil
	if err := w.CreateOrder(ctx, bare, nil, limits); err == nil {
		t.Error("an order without authorizations was made")
	}
}

func acmeDeactivateRelied(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	limits := acme.OrderLimits{MaxOpen: 1000}
	first := w.ready(t, "acct", "a.example")
	second := relying(first)
	must(t, w.CreateOrder(ctx, second, nil, limits))
	third, as := acmeOrder("acct", "b.example")
	third.AuthzIDs = append(third.AuthzIDs, first.AuthzIDs...)
	must(t, w.CreateOrder(ctx, third, as, limits))
	fourth := relying(first)
	must(t, w.CreateOrder(ctx, fourth, nil, limits))
	must(t, w.BeginIssue(ctx, acmeClaim(fourth, "csr"), acmeIntent(fourth.Identifiers...)))
	apart, _ := w.order(t, "acct", "c.example")

	must(t, w.DeactivateAuthorization(ctx, first.AuthzIDs[0], acmeNow, acmeClosed, acmeEntry()))
	for _, o := range []acme.Order{first, second, third} {
		if got := w.wantStatus(t, o.ID, acme.OrderInvalid); got.Error == nil || got.Error.Detail != "given up" {
			t.Errorf("order's error is %v", got.Error)
		}
	}
	w.wantStatus(t, fourth.ID, acme.OrderProcessing)
	w.wantStatus(t, apart.ID, acme.OrderPending)
}

func acmeUnproven(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	limits := acme.OrderLimits{MaxOpen: 1000}
	proof := w.ready(t, "acct", "a.example")
	for name, c := range map[string]struct {
		change func(c *acme.Claim)
		ok     bool
	}{
		"as it is":        {func(*acme.Claim) {}, true},
		"just old enough": {func(c *acme.Claim) { c.Since = acmeNow }, true},
		"too old":         {func(c *acme.Claim) { c.Since = acmeNow.Add(time.Microsecond) }, false},
		"one is not":      {func(c *acme.Claim) { c.Authzs = []string{proof.AuthzIDs[0], "none"} }, false},
		"none":            {func(c *acme.Claim) { c.Authzs = nil }, false},
	} {
		o := relying(proof)
		must(t, w.CreateOrder(ctx, o, nil, limits))
		claim := acmeClaim(o, "csr")
		claim.Unproven = acmeClosed
		c.change(&claim)
		err := w.BeginIssue(ctx, claim, acmeIntent(o.Identifiers...))
		if c.ok {
			must(t, err)
			w.wantStatus(t, o.ID, acme.OrderProcessing)
			continue
		}
		if !errors.Is(err, acme.ErrUnproven) {
			t.Errorf("%s: %v; want %v", name, err, acme.ErrUnproven)
		}
		if got := w.wantStatus(t, o.ID, acme.OrderInvalid); got.Error == nil || got.Error.Detail != "given up" {
			t.Errorf("%s: order's error is %v", name, got.Error)
		}
	}

	// One that was accepted for later.
	parked := relying(proof)
	must(t, w.CreateOrder(ctx, parked, nil, limits))
	claim := acmeClaim(parked, "csr")
	must(t, w.Park(ctx, claim))
	must(t, w.DeactivateAuthorization(ctx, proof.AuthzIDs[0], acmeNow, acmeClosed, acmeEntry()))
	w.wantStatus(t, parked.ID, acme.OrderProcessing)
	other := claim
	other.CSRHash = "another"
	wantErr(t, w.BeginIssue(ctx, other, acmeIntent()), acme.ErrMoved)
	w.wantStatus(t, parked.ID, acme.OrderProcessing)
	wantErr(t, w.BeginIssue(ctx, claim, acmeIntent()), acme.ErrUnproven)
	if got := w.wantStatus(t, parked.ID, acme.OrderInvalid); got.CSR != nil {
		t.Error("an order that ended keeps its CSR")
	}
	wantErr(t, w.BeginIssue(ctx, claim, acmeIntent()), acme.ErrMoved)
}

// Whichever comes first wins: a claim before the deactivation goes on, one after
// it finds nothing to claim.
func acmeDeactivateRace(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	for range 8 {
		o := w.ready(t, "acct", "a.example")
		claim := acmeClaim(o, "csr")
		var (
			wg           sync.WaitGroup
			begun, ended error
		)
		wg.Go(func() { begun = w.BeginIssue(ctx, claim, acmeIntent(o.Identifiers...)) })
		wg.Go(func() { ended = w.DeactivateAuthorization(ctx, o.AuthzIDs[0], acmeNow, acmeClosed, acmeEntry()) })
		wg.Wait()
		must(t, ended)
		switch {
		case begun == nil:
			w.wantStatus(t, o.ID, acme.OrderProcessing)
		case errors.Is(begun, acme.ErrMoved), errors.Is(begun, acme.ErrUnproven):
			w.wantStatus(t, o.ID, acme.OrderInvalid)
		default:
			t.Fatal(begun)
		}
	}
}

// No order that relies on what was given up stays open.
func acmeDeactivateOrderRace(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	for range 8 {
		proof := w.ready(t, "acct", "a.example", "b.example")
		var (
			wg   sync.WaitGroup
			made [4]acme.Order
			errs [4]error
		)
		for i := range made {
			made[i] = relying(proof)
			if i%2 == 1 {
				made[i].AuthzIDs = []string{proof.AuthzIDs[1], proof.AuthzIDs[0]}
			}
			wg.Go(func() { errs[i] = w.CreateOrder(ctx, made[i], nil, acme.OrderLimits{MaxOpen: 1000}) })
		}
		wg.Go(func() {
			if err := w.DeactivateAuthorization(ctx, proof.AuthzIDs[0], acmeNow, acmeClosed, acmeEntry()); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		for i, o := range made {
			if errs[i] == nil {
				w.wantStatus(t, o.ID, acme.OrderInvalid)
			} else {
				wantErr(t, errs[i], acme.ErrMoved)
			}
		}
	}
}

func acmeUnlike(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	a := w.account(t)
	place := func(hash, thumbprint string, change func(*acme.OrderLimits)) error {
		o, as := acmeOrder(a.ID, "a.example")
		o.SetHash = hash
		l := acme.OrderLimits{MaxOpen: 3, Unlike: acmeNow, By: acme.Signer{AccountID: a.ID, Thumbprint: thumbprint}}
		if change != nil {
			change(&l)
		}
		return w.CreateOrder(ctx, o, as, l)
	}
	must(t, place("one", a.Thumbprint, nil))
	wantErr(t, place("one", a.Thumbprint, nil), acme.ErrSame)
	wantErr(t, place("two", "another", nil), acme.ErrUnsigned)
	wantErr(t, place("one", "another", nil), acme.ErrUnsigned)
	must(t, place("two", a.Thumbprint, nil))
	// It is no order of its own, so nothing that orders are refused for matters.
	for _, change := range []func(*acme.OrderLimits){
		func(l *acme.OrderLimits) { l.MaxOpen = 1 },
		func(l *acme.OrderLimits) { l.Quota = ratelimit.Quota{Limit: 1, Window: time.Hour} },
		func(l *acme.OrderLimits) { l.Pausing = true },
	} {
		wantErr(t, place("one", a.Thumbprint, change), acme.ErrSame)
	}
	var over *acme.QuotaError
	quota := func(l *acme.OrderLimits) { l.Quota = acmeTen.Quota; l.Quota.Limit = 1; l.Unlike = time.Time{} }
	for range 3 {
		if err := place("one", a.Thumbprint, quota); errors.As(err, &over) {
			break
		}
	}
	if over == nil {
		t.Error("the quota was never used up")
	}
	late := func(l *acme.OrderLimits) { l.MaxOpen, l.Unlike = 10, acmeNow.Add(1000*time.Hour) }
	must(t, place("one", a.Thumbprint, late))
	must(t, place("", a.Thumbprint, func(l *acme.OrderLimits) { l.MaxOpen = 10 }))
	must(t, place("", a.Thumbprint, func(l *acme.OrderLimits) { l.MaxOpen = 10 }))
	must(t, w.DeactivateAccount(ctx, a.ID, acme.Closing{}, acmeEntry()))
	wantErr(t, place("three", a.Thumbprint, nil), acme.ErrUnsigned)
}

func acmeSameOrder(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	make := func(account, hash string, life time.Duration) acme.Order {
		o, as := acmeOrder(account, "a.example")
		o.SetHash, o.Expires = hash, acmeNow.Add(life)
		must(t, w.CreateOrder(ctx, o, as, acme.OrderLimits{MaxOpen: 1000}))
		return o
	}
	make("acct", "", time.Hour)
	make("other", "wish", 3*time.Hour)
	make("acct", "another", 3*time.Hour)
	short, long := make("acct", "wish", time.Hour), make("acct", "wish", 2*time.Hour)
	find := func(account, hash string, until time.Duration, want string) {
		t.Helper()
		o, err := w.SameOrder(ctx, acme.SameOrderQuery{AccountID: account, SetHash: hash, Until: acmeNow.Add(until)})
		if want == "" {
			wantErr(t, err, acme.ErrNotFound)
			return
		}
		must(t, err)
		if o.ID != want {
			t.Errorf("found another order")
		}
	}
	find("acct", "wish", 0, long.ID)
	find("acct", "wish", 2*time.Hour, "")
	find("acct", "", 0, "")
	find("third", "wish", 0, "")
	must(t, w.DeactivateAuthorization(ctx, long.AuthzIDs[0], acmeNow, acmeClosed, acmeEntry()))
	find("acct", "wish", 0, short.ID)
	w.validate(t, acme.Authorization{ID: short.AuthzIDs[0], OrderID: short.ID})
	find("acct", "wish", 0, short.ID)
	ready := w.wantStatus(t, short.ID, acme.OrderReady)
	must(t, w.Park(ctx, acmeClaim(ready, "csr")))
	find("acct", "wish", 0, "")
}

func acmeReusedPurge(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	proof := w.ready(t, "acct", "a.example")
	must(t, w.db.Write(ctx, func(ctx context.Context, tx store.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE acme_authzs SET purge_at = 1`)
		return err
	}))
	o := relying(proof)
	must(t, w.CreateOrder(ctx, o, nil, acme.OrderLimits{MaxOpen: 1000}))
	_, err := w.Sweep(ctx, acme.Sweep{Now: o.Expires.Add(-time.Microsecond), Closing: acmeClosed, Limit: 10})
	must(t, err)
	_, err = w.Authorization(ctx, proof.AuthzIDs[0])
	must(t, err)
	must(t, w.BeginIssue(ctx, acmeClaim(o, "csr"), acmeIntent(o.Identifiers...)))
}

func acmeAheadAuthz(account, name string) acme.Authorization {
	_, as := acmeOrder(account, name)
	a := as[0]
	a.OrderID, a.Subdomains, a.Directory, a.Profile = "", true, "tenant", "server"
	return a
}

func acmeAhead(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	w.order(t, "acct", "of-an-order.example")
	var made []acme.Authorization
	for _, n := range []string{"a.example", "b.example", "c.example"} {
		a := acmeAheadAuthz("acct", n)
		must(t, w.CreateAuthorization(ctx, a, 3))
		made = append(made, a)
	}
	got, err := w.Authorization(ctx, made[0].ID)
	must(t, err)
	if !reflect.DeepEqual(got, made[0]) {
		t.Errorf("got %+v\nwant %+v", got, made[0])
	}
	list := func(account string, until time.Time, limit, want int) {
		t.Helper()
		as, err := w.PendingAuthorizations(ctx, account, until, limit)
		must(t, err)
		if len(as) != want {
			t.Errorf("%d are pending; want %d", len(as), want)
		}
	}
	wantErr(t, w.CreateAuthorization(ctx, acmeAheadAuthz("acct", "d.example"), 3), acme.ErrTooManyOpen)
	must(t, w.CreateAuthorization(ctx, acmeAheadAuthz("other", "a.example"), 3))
	list("acct", acmeNow, 10, 3)
	list("acct", acmeNow, 2, 2)
	list("acct", made[0].Expires, 10, 0)

	// One that is proven, given up or over makes room.
	w.validate(t, made[0])
	must(t, w.CreateAuthorization(ctx, acmeAheadAuthz("acct", "d.example"), 3))
	must(t, w.DeactivateAuthorization(ctx, made[1].ID, acmeNow, acmeClosed, acmeEntry()))
	must(t, w.CreateAuthorization(ctx, acmeAheadAuthz("acct", "e.example"), 3))
	late := acmeAheadAuthz("acct", "f.example")
	wantErr(t, w.CreateAuthorization(ctx, late, 3), acme.ErrTooManyOpen)
	late.CreatedAt = made[0].Expires
	must(t, w.CreateAuthorization(ctx, late, 3))
}

// What holds for all names below a domain counts for whoever revokes.
func acmeHoldsBelow(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	a := acmeAheadAuthz("acct", "a.example")
	must(t, w.CreateAuthorization(ctx, a, 3))
	w.validate(t, a)
	for name, want := range map[string]bool{
		"a.example": true, "x.a.example": true, "*.a.example": true, "y.x.a.example": true, "example": false, "b.example": false, "xa.example": false,
	} {
		got, err := w.Holds(ctx, "acct", []ca.Identifier{{Type: ca.DNS, Value: name}}, acmeNow)
		must(t, err)
		if got != want {
			t.Errorf("%s: %v; want %v", name, got, want)
		}
	}
}

// However many orders are invalid, a page of the list is full while there are others.
func acmeListInvalid(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	good := map[string]bool{}
	for i := range 12 {
		o, as := w.order(t, "acct", "a.example")
		if i%4 != 3 {
			must(t, w.DeactivateAuthorization(ctx, as[0].ID, acmeNow, acmeClosed, acmeEntry()))
			continue
		}
		good[o.ID] = true
	}
	refs, err := w.ListOrders(ctx, "acct", "", 3)
	must(t, err)
	last := ""
	for _, r := range refs {
		if !good[r.ID] || r.ID <= last {
			t.Errorf("listed %v", refs)
		}
		last = r.ID
	}
	if len(refs) != len(good) {
		t.Errorf("%d listed; want %d", len(refs), len(good))
	}
}
