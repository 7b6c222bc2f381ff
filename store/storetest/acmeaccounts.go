package storetest

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/admin"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/store"
)

// ACMEAccounts is what both engines promise about the keys that bind accounts,
// about directories, and to the operator who looks after them.
func ACMEAccounts(t *testing.T, open func(t *testing.T) *store.DB) {
	laws := map[string]func(t *testing.T, w operatorWorld){
		"ExternalKeysComeBackWithoutTheirMAC":     externalKeys,
		"LastUseOfAKeyIsHadByOne":                 externalKeyAtOnce,
		"AccountThatIsThereUsesNoKey":             externalKeyExisting,
		"SpentKeyMakesNoAccount":                  externalKeySpent,
		"RevokedKeyForgetsItsMAC":                 externalKeyRevoked,
		"ListsAreNewestFirstInPages":              operatorPages,
		"AccountsAreFoundByWhatTheyAre":           operatorFilters,
		"RevokedAccountStaysOutAndItsOrdersEnd":   operatorRevokes,
		"DirectoriesHaveAccountsOfTheirOwn":       directoriesAccounts,
		"DirectoriesWorkOffTheirOwn":              directoriesWork,
		"KeyOfAnAccountIsKnownInEveryDirectory":   directoriesKeys,
		"KeyOfOneDirectoryBindsNobodyInAnother":   directoriesExternalKeys,
		"RevocationOfAnAccountIsOfOneAccountOnly": operatorRevokesOne,
	}
	for name, law := range laws {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			law(t, operatorWorld{acmeWorld{store.NewACME(db), db}, store.NewACMEOperator(db)})
		})
	}
}

type operatorWorld struct {
	acmeWorld
	op *store.ACMEOperator
}

// key stores a key that binds most accounts.
func (w operatorWorld) key(t *testing.T, most int, change ...func(*admin.ExternalKey)) admin.ExternalKey {
	t.Helper()
	k := admin.ExternalKey{KID: audit.NewID(), MAC: []byte("secret"), CreatedBy: "operator:uid/0", CreatedAt: acmeNow, MaxUses: most}
	for _, c := range change {
		c(&k)
	}
	must(t, w.op.CreateExternalKey(t.Context(), k, acmeEntry()))
	return k
}

// bound is a new account that is bound by a key.
func bound(kid string) acme.Account {
	id := audit.NewID()
	return acme.Account{ID: id, Key: []byte("{}"), Thumbprint: "tp-" + id, Status: acme.AccountValid, CreatedAt: acmeNow, EAB: kid}
}

func externalKeys(t *testing.T, w operatorWorld) {
	k := w.key(t, 3, func(k *admin.ExternalKey) {
		k.Comment, k.Expires = "for web", acmeNow.Add(time.Hour)
		k.DNS, k.IP, k.Profiles = []string{"example.org"}, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, []string{"server"}
	})
	list, next, err := w.op.ListExternalKeys(t.Context(), admin.KeyQuery{Limit: 10})
	must(t, err)
	want := k
	want.MAC = nil
	if next != "" || len(list) != 1 || !reflect.DeepEqual(list[0], want) {
		t.Errorf("got %+v, %q; want %+v", list, next, want)
	}
	got, err := w.BindingKey(t.Context(), k.KID)
	must(t, err)
	wantKey := acme.BindingKey{KID: k.KID, MAC: k.MAC, Scope: acme.Scope{DNS: k.DNS, IP: k.IP, Profiles: k.Profiles}, Expires: k.Expires, MaxUses: 3}
	if !reflect.DeepEqual(got, wantKey) {
		t.Errorf("got %+v; want %+v", got, wantKey)
	}
	a := bound(k.KID)
	a.Scope = got.Scope
	_, _, err = w.CreateAccount(t.Context(), a, acmeEntry())
	must(t, err)
	back, err := w.Account(t.Context(), a.ID)
	must(t, err)
	if back.EAB != k.KID || !reflect.DeepEqual(back.Scope, a.Scope) {
		t.Errorf("the account came back as %+v", back)
	}
	if got, err = w.BindingKey(t.Context(), k.KID); err != nil || got.Uses != 1 || len(got.MAC) == 0 {
		t.Errorf("after one of three uses: %+v, %v", got, err)
	}
	_, err = w.BindingKey(t.Context(), "nobody")
	wantErr(t, err, acme.ErrNotFound)
	if n := w.entries(t); n != 2 {
		t.Errorf("%d audit entries; want 2", n)
	}
}

func externalKeyAtOnce(t *testing.T, w operatorWorld) {
	k := w.key(t, 2)
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		created int
	)
	for range 8 {
		wg.Go(func() {
			a, made, err := w.CreateAccount(t.Context(), bound(k.KID), acmeEntry())
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && made:
				created++
			case err == nil:
				t.Errorf("account %s was there already", a.ID)
			case !errors.Is(err, acme.ErrBindingSpent):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := number(t, w.db, `SELECT COUNT(*) FROM acme_accounts`); created != 2 || n != 2 {
		t.Errorf("%d accounts were bound and %d stored; want 2", created, n)
	}
	if n := w.entries(t); n != 3 {
		t.Errorf("%d audit entries; want one for the key and one for each account", n)
	}
	got, err := w.BindingKey(t.Context(), k.KID)
	must(t, err)
	if got.Uses != 2 || len(got.MAC) != 0 {
		t.Errorf("the key is %+v; want it used up and its MAC forgotten", got)
	}
}

func externalKeyExisting(t *testing.T, w operatorWorld) {
	k := w.key(t, 1)
	a := w.account(t)
	again := bound(k.KID)
	again.Thumbprint = a.Thumbprint
	got, made, err := w.CreateAccount(t.Context(), again, acmeEntry())
	must(t, err)
	if made || got.ID != a.ID || got.EAB != "" {
		t.Errorf("got %+v, %t", got, made)
	}
	if k, err := w.BindingKey(t.Context(), k.KID); err != nil || k.Uses != 0 {
		t.Errorf("the key was used: %+v, %v", k, err)
	}
}

func externalKeySpent(t *testing.T, w operatorWorld) {
	for name, k := range map[string]admin.ExternalKey{
		"expired": w.key(t, 1, func(k *admin.ExternalKey) { k.Expires = acmeNow }),
		"none":    {KID: audit.NewID()},
	} {
		_, _, err := w.CreateAccount(t.Context(), bound(k.KID), acmeEntry())
		if err == nil {
			t.Errorf("%s: the account was made", name)
			continue
		}
		wantErr(t, err, acme.ErrBindingSpent)
	}
	if n := number(t, w.db, `SELECT COUNT(*) FROM acme_accounts`); n != 0 {
		t.Errorf("%d accounts are there", n)
	}
}

func externalKeyRevoked(t *testing.T, w operatorWorld) {
	k := w.key(t, 0)
	at := acmeNow.Add(time.Minute)
	got, err := w.op.RevokeExternalKey(t.Context(), k.KID, at, acmeEntry())
	must(t, err)
	if !got.RevokedAt.Equal(at) {
		t.Errorf("got %+v", got)
	}
	key, err := w.BindingKey(t.Context(), k.KID)
	must(t, err)
	if len(key.MAC) != 0 || !key.RevokedAt.Equal(at) {
		t.Errorf("the key is still %+v", key)
	}
	_, _, err = w.CreateAccount(t.Context(), bound(k.KID), acmeEntry())
	wantErr(t, err, acme.ErrBindingSpent)
	got, err = w.op.RevokeExternalKey(t.Context(), k.KID, at.Add(time.Hour), acmeEntry())
	wantErr(t, err, admin.ErrEnded)
	if !got.RevokedAt.Equal(at) {
		t.Errorf("revoked again: %+v", got)
	}
	_, err = w.op.RevokeExternalKey(t.Context(), "nobody", at, acmeEntry())
	wantErr(t, err, admin.ErrNotFound)
	if n := w.entries(t); n != 2 {
		t.Errorf("%d audit entries; want one for each of the 2 facts", n)
	}
}

func operatorPages(t *testing.T, w operatorWorld) {
	var keys, accounts []string
	for i := range 7 {
		at := acmeNow.Add(time.Duration(i/3) * time.Second) // some at the same moment
		k := w.key(t, 0, func(k *admin.ExternalKey) { k.CreatedAt = at })
		a := bound("")
		a.CreatedAt = at
		_, _, err := w.CreateAccount(t.Context(), a, acmeEntry())
		must(t, err)
		keys, accounts = append(keys, k.KID), append(accounts, a.ID)
	}
	var gotKeys, gotAccounts []string
	var last time.Time
	for cursor := ""; ; {
		page, next, err := w.op.ListExternalKeys(t.Context(), admin.KeyQuery{Before: cursor, Limit: 2})
		must(t, err)
		for _, k := range page {
			if !last.IsZero() && k.CreatedAt.After(last) {
				t.Errorf("%s comes after %s", k.CreatedAt, last)
			}
			last = k.CreatedAt
			gotKeys = append(gotKeys, k.KID)
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	for cursor := ""; ; {
		page, next, err := w.op.ListAccounts(t.Context(), admin.AccountQuery{Before: cursor, Limit: 3})
		must(t, err)
		for _, a := range page {
			gotAccounts = append(gotAccounts, a.ID)
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	for _, l := range [][]string{keys, gotKeys, accounts, gotAccounts} {
		slices.Sort(l)
	}
	if !slices.Equal(keys, gotKeys) || !slices.Equal(accounts, gotAccounts) {
		t.Errorf("keys %v, want %v; accounts %v, want %v", gotKeys, keys, gotAccounts, accounts)
	}
	for _, bad := range []string{"x", "1", "1.", "x.ab", "1.' OR 1=1"} {
		_, _, err := w.op.ListAccounts(t.Context(), admin.AccountQuery{Before: bad, Limit: 3})
		wantErr(t, err, admin.ErrNotFound)
	}
}

func operatorFilters(t *testing.T, w operatorWorld) {
	ctx := t.Context()
	k := w.key(t, 0)
	b := bound(k.KID)
	_, _, err := w.CreateAccount(ctx, b, acmeEntry())
	must(t, err)
	valid, left, revoked := w.account(t), w.account(t), w.account(t)
	elsewhere := bound("")
	_, _, err = w.Directory("other").CreateAccount(ctx, elsewhere, acmeEntry())
	must(t, err)
	must(t, w.DeactivateAccount(ctx, left.ID, acme.Closing{}, acmeEntry()))
	must(t, w.op.RevokeAccount(ctx, revoked.ID, acmeNow, acmeEntry()))
	other, own := "other", ""
	for name, row := range map[string]struct {
		q    admin.AccountQuery
		want []string
	}{
		"all":         {admin.AccountQuery{}, []string{b.ID, valid.ID, left.ID, revoked.ID, elsewhere.ID}},
		"valid":       {admin.AccountQuery{Status: "valid", Directory: &own}, []string{b.ID, valid.ID}},
		"deactivated": {admin.AccountQuery{Status: "deactivated"}, []string{left.ID}},
		"revoked":     {admin.AccountQuery{Status: "revoked"}, []string{revoked.ID}},
		"other":       {admin.AccountQuery{Directory: &other}, []string{elsewhere.ID}},
		"bound":       {admin.AccountQuery{ExternalKey: k.KID}, []string{b.ID}},
	} {
		row.q.Limit = 100
		list, _, err := w.op.ListAccounts(ctx, row.q)
		must(t, err)
		var got []string
		for _, a := range list {
			got = append(got, a.ID)
		}
		slices.Sort(got)
		slices.Sort(row.want)
		if !slices.Equal(got, row.want) {
			t.Errorf("%s: got %v; want %v", name, got, row.want)
		}
	}
	a, err := w.op.Account(ctx, revoked.ID)
	must(t, err)
	if a.Status != "revoked" || !a.RevokedAt.Equal(acmeNow) || !slices.Equal(a.Contacts, revoked.Contacts) {
		t.Errorf("got %+v", a)
	}
	_, err = w.op.Account(ctx, "nobody")
	wantErr(t, err, admin.ErrNotFound)
}

func operatorRevokes(t *testing.T, w operatorWorld) {
	ctx := t.Context()
	a := w.account(t)
	pending, _ := w.order(t, a.ID, "a.example")
	ready := w.ready(t, a.ID, "b.example")
	parked := w.ready(t, a.ID, "c.example")
	must(t, w.Park(ctx, acmeClaim(parked, "csr")))
	begun := w.ready(t, a.ID, "d.example")
	must(t, w.BeginIssue(ctx, acmeClaim(begun, "csr"), acmeIntent(begun.Identifiers...)))
	if got, err := w.op.Account(ctx, a.ID); err != nil || got.OpenOrders != 2 {
		t.Errorf("%d open orders, %v; want 2", got.OpenOrders, err)
	}
	before := w.entries(t)
	must(t, w.op.RevokeAccount(ctx, a.ID, acmeNow, acmeEntry()))
	got, err := w.Account(ctx, a.ID)
	must(t, err)
	if got.Status != acme.AccountRevoked {
		t.Errorf("the account is %s", got.Status)
	}
	for _, o := range []acme.Order{pending, ready, parked} {
		if o = w.wantStatus(t, o.ID, acme.OrderInvalid); o.Error == nil || o.Error.Type != acme.Unauthorized || len(o.CSR) != 0 {
			t.Errorf("the order keeps %+v", o)
		}
	}
	w.wantStatus(t, begun.ID, acme.OrderProcessing) // a key may have signed
	wantErr(t, w.op.RevokeAccount(ctx, a.ID, acmeNow, acmeEntry()), admin.ErrEnded)
	wantErr(t, w.op.RevokeAccount(ctx, "nobody", acmeNow, acmeEntry()), admin.ErrNotFound)
	wantErr(t, w.UpdateContacts(ctx, a.ID, nil, acmeEntry()), acme.ErrMoved)
	wantErr(t, w.ChangeKey(ctx, a.ID, a.Thumbprint, []byte("{}"), "new", acmeEntry()), acme.ErrMoved)
	wantErr(t, w.DeactivateAccount(ctx, a.ID, acme.Closing{}, acmeEntry()), acme.ErrMoved)
	if n := w.entries(t); n != before+1 {
		t.Errorf("%d more audit entries; want 1", n-before)
	}
}

func operatorRevokesOne(t *testing.T, w operatorWorld) {
	a, other := w.account(t), w.account(t)
	foreign, _ := w.order(t, other.ID, "a.example")
	must(t, w.op.RevokeAccount(t.Context(), a.ID, acmeNow, acmeEntry()))
	w.wantStatus(t, foreign.ID, acme.OrderPending)
	got, err := w.Account(t.Context(), other.ID)
	must(t, err)
	if got.Status != acme.AccountValid {
		t.Errorf("the other account is %s", got.Status)
	}
}

func directoriesAccounts(t *testing.T, w operatorWorld) {
	ctx := t.Context()
	other := w.Directory("other")
	a := w.account(t)
	b := bound("")
	b.Thumbprint = a.Thumbprint
	got, made, err := other.CreateAccount(ctx, b, acmeEntry())
	must(t, err)
	if !made || got.Directory != "other" {
		t.Errorf("the same key elsewhere: %+v, %t", got, made)
	}
	for _, s := range []struct {
		view *store.ACME
		own  string
		not  string
	}{{w.ACME, a.ID, b.ID}, {other, b.ID, a.ID}} {
		if _, err := s.view.Account(ctx, s.own); err != nil {
			t.Error(err)
		}
		_, err := s.view.Account(ctx, s.not)
		wantErr(t, err, acme.ErrNotFound)
		if got, err := s.view.AccountByKey(ctx, a.Thumbprint); err != nil || got.ID != s.own {
			t.Errorf("found %s by its key, %v; want %s", got.ID, err, s.own)
		}
	}
	// Made twice, it is found where it was made.
	b.ID = audit.NewID()
	if got, made, err = other.CreateAccount(ctx, b, acmeEntry()); err != nil || made || got.Directory != "other" {
		t.Errorf("again: %+v, %t, %v", got, made, err)
	}
}

func directoriesWork(t *testing.T, w operatorWorld) {
	ctx := t.Context()
	other := operatorWorld{acmeWorld{w.Directory("other"), w.db}, w.op}
	due := map[string]string{}
	for name, w := range map[string]operatorWorld{"": w, "other": other} {
		a := w.account(t)
		o, done := acmeOrder(a.ID, "a.example")
		open, as := acmeOrder(a.ID, "b.example")
		o.Directory, open.Directory, done[0].Directory, as[0].Directory = a.Directory, a.Directory, a.Directory, a.Directory
		must(t, w.CreateOrder(ctx, o, done, acme.OrderLimits{MaxOpen: 10}))
		must(t, w.CreateOrder(ctx, open, as, acme.OrderLimits{MaxOpen: 10}))
		w.validate(t, done[0])
		must(t, w.Park(ctx, acmeClaim(o, "csr")))
		must(t, w.StartChallenge(ctx, as[0].ID, acme.HTTP01, acmeNow, acmeNow))
		due[name] = o.ID + " " + as[0].ID
		if o, err := w.Order(ctx, o.ID); err != nil || o.Directory != name {
			t.Errorf("the order is of directory %q, %v", o.Directory, err)
		}
		if z, err := w.Authorization(ctx, as[0].ID); err != nil || z.Directory != name {
			t.Errorf("the authorization is of directory %q, %v", z.Directory, err)
		}
	}
	if n, err := w.ProcessingOrders(ctx); err != nil || !maps.Equal(n, map[string]int{"": 1, "other": 1}) {
		t.Errorf("processing: %v, %v", n, err)
	}
	later := acmeNow.Add(time.Hour)
	for name, w := range map[string]operatorWorld{"": w, "other": other} {
		os, err := w.DueOrders(ctx, later, "", 10)
		must(t, err)
		zs, err := w.DueValidations(ctx, later, "", 10)
		must(t, err)
		if len(os) != 1 || len(zs) != 1 || os[0].ID+" "+zs[0].ID != due[name] {
			t.Errorf("directory %q: %d orders and %d validations are due", name, len(os), len(zs))
		}
	}
}

func directoriesKeys(t *testing.T, w operatorWorld) {
	a := w.account(t)
	for _, view := range []*store.ACME{w.ACME, w.Directory("other")} {
		if f, err := view.Facts(t.Context(), acme.FactsQuery{Thumbprint: a.Thumbprint}); err != nil || !f.AccountKey {
			t.Errorf("%+v, %v", f, err)
		}
	}
	if f, err := w.Facts(t.Context(), acme.FactsQuery{Thumbprint: "other"}); err != nil || f.AccountKey {
		t.Errorf("%+v, %v", f, err)
	}
}

func directoriesExternalKeys(t *testing.T, w operatorWorld) {
	k := w.key(t, 1, func(k *admin.ExternalKey) { k.Directory = "other" })
	_, err := w.BindingKey(t.Context(), k.KID)
	wantErr(t, err, acme.ErrNotFound)
	_, _, err = w.CreateAccount(t.Context(), bound(k.KID), acmeEntry())
	wantErr(t, err, acme.ErrBindingSpent)
	_, made, err := w.Directory("other").CreateAccount(context.WithoutCancel(t.Context()), bound(k.KID), acmeEntry())
	if err != nil || !made {
		t.Errorf("in its own: %t, %v", made, err)
	}
}
