package storetest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/store"
)

// ACMEFairness is what both engines promise to accounts that share the ACME edge.
func ACMEFairness(t *testing.T, open func(t *testing.T) *store.DB) {
	laws := map[string]func(t *testing.T, w acmeWorld){
		"DueOrdersTakeTurns":                     acmeOrderTurns,
		"RenewalsHaveABoundedLead":               acmeRenewalLead,
		"DueValidationsTakeTurns":                acmeValidationTurns,
		"BacklogCountsWhatIsProcessing":          acmeBacklog,
		"RenewalNeedsACertificateForTheSameSet":  acmeHasCertificate,
		"CertificatesBeforeTheHashAreNotRenewed": acmeOldCertificate,
		"OnlyTakingALeaseCounts":                 acmeLeaseCounts,
	}
	for name, law := range laws {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			law(t, acmeWorld{store.NewACME(db), db})
		})
	}
}

// parked makes a processing order that is due after a time.
func (w acmeWorld) parked(t *testing.T, accountID string, renewal bool, due time.Duration) acme.Order {
	t.Helper()
	o := w.ready(t, accountID, "a.example")
	c := acmeClaim(o, "csr")
	c.DueAt, c.Renewal = acmeNow.Add(due), renewal
	must(t, w.Park(t.Context(), c))
	return w.wantStatus(t, o.ID, acme.OrderProcessing)
}

// dueAccounts says whose orders are due in an hour, in their order.
func (w acmeWorld) dueAccounts(t *testing.T, after string, limit int) (out []string) {
	t.Helper()
	due, err := w.DueOrders(t.Context(), acmeNow.Add(time.Hour), after, limit)
	must(t, err)
	for _, o := range due {
		out = append(out, o.AccountID)
	}
	return out
}

func wantList(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %v; want %v", got, want)
	}
}

// soon is a time before the hour of dueAccounts, and less than a minute before.
const soon = 59*time.Minute + 30*time.Second

func acmeOrderTurns(t *testing.T, w acmeWorld) {
	for range 4 {
		w.parked(t, "a", false, soon)
	}
	oldest := w.parked(t, "a", false, soon-time.Second)
	w.parked(t, "c", false, soon)
	w.parked(t, "c", false, soon)
	w.parked(t, "b", false, soon+time.Second)
	w.parked(t, "notyet", false, 2*time.Hour)
	wantList(t, w.dueAccounts(t, "", 100), []string{"a", "b", "c", "a", "c", "a", "a", "a"})
	wantList(t, w.dueAccounts(t, "a", 4), []string{"b", "c", "a", "c"})
	wantList(t, w.dueAccounts(t, "c", 2), []string{"a", "b"})
	due, err := w.DueOrders(t.Context(), acmeNow.Add(time.Hour), "c", 1)
	must(t, err)
	if due[0].ID != oldest.ID || string(due[0].CSR) != "csr" {
		t.Errorf("the first is %+v; want the account's oldest", due[0])
	}
	// Those that somebody works on count for their account.
	must(t, w.ClaimDue(t.Context(), oldest.ID, oldest.DueAt, acmeNow.Add(2*time.Hour)))
	wantList(t, w.dueAccounts(t, "", 3), []string{"b", "c", "a"})
	wantList(t, w.dueAccounts(t, "", 6), []string{"b", "c", "a", "c", "a", "a"})
}

func acmeRenewalLead(t *testing.T, w acmeWorld) {
	w.parked(t, "a", false, soon)
	w.parked(t, "b", true, soon)
	w.parked(t, "c", true, soon)
	w.parked(t, "d", false, soon-time.Minute)
	w.parked(t, "e", false, soon)
	w.parked(t, "e", true, soon) // of one account each kind has its own turns
	wantList(t, w.dueAccounts(t, "", 100), []string{"b", "c", "d", "e", "a", "e"})
}

func acmeValidationTurns(t *testing.T, w acmeWorld) {
	start := func(account string, lease time.Duration) acme.Authorization {
		_, as := w.order(t, account, "a.example")
		must(t, w.StartChallenge(t.Context(), as[0].ID, acme.DNS01, acmeNow.Add(lease), acmeNow))
		as[0].Lease = acmeNow.Add(lease)
		return as[0]
	}
	for i := range 4 {
		start("a", time.Duration(i)*time.Second)
	}
	start("b", 20*time.Second)
	held := start("c", 0)
	start("c", time.Second)
	start("notyet", 2*time.Hour)
	due := func(after string, limit int) (out []string) {
		as, err := w.DueValidations(t.Context(), acmeNow.Add(time.Hour), after, limit)
		must(t, err)
		for _, a := range as {
			out = append(out, a.AccountID)
		}
		return out
	}
	wantList(t, due("", 100), []string{"a", "b", "c", "a", "c", "a", "a"})
	wantList(t, due("a", 2), []string{"b", "c"})
	must(t, w.TakeLease(t.Context(), held.ID, held.Lease, acmeNow.Add(2*time.Hour)))
	wantList(t, due("", 4), []string{"a", "b", "a", "c"})
}

func acmeBacklog(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	count := func(top int) acme.BacklogCount {
		n, err := w.Backlog(ctx, top)
		must(t, err)
		return n
	}
	if n := count(3); n.Total != 0 || len(n.Of) != 0 {
		t.Errorf("backlog of nothing: %+v", n)
	}
	w.ready(t, "hog", "a.example")
	for range 3 {
		w.parked(t, "hog", false, 0)
	}
	w.parked(t, "other", true, time.Hour)
	w.parked(t, "other", true, time.Hour)
	o := w.ready(t, "third", "a.example")
	must(t, w.BeginIssue(ctx, acmeClaim(o, "csr"), acmeIntent(o.Identifiers...)))
	if n := count(2); n.Total != 6 || len(n.Of) != 2 || n.Of["hog"] != 3 || n.Of["other"] != 2 {
		t.Errorf("backlog: %+v", n)
	}
}

func acmeHasCertificate(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	issue := func(who string, names ...string) ca.Intent {
		in := acmeIntent(catest.IDs(names...)...)
		in.Requester.Actor = who
		l := store.NewCA(w.db).PlainLedger()
		must(t, l.Begin(ctx, in))
		must(t, l.Commit(ctx, in, ca.Certificate{ID: in.ID, Serial: in.Serial, DER: []byte("der")}))
		return in
	}
	wantHeld := func(want bool, who string, at time.Time, names ...string) {
		t.Helper()
		got, err := w.Facts(ctx, acme.FactsQuery{Requester: who, Names: catest.IDs(names...), Now: at})
		must(t, err)
		if got.Held != want {
			t.Errorf("%s holds one for %v: %v; want %v", who, names, got.Held, want)
		}
	}
	in := issue("me", "a.example", "b.example", "192.0.2.7")
	wantHeld(true, "me", acmeNow, "192.0.2.7", "B.example", "a.example", "a.EXAMPLE")
	wantHeld(false, "me", acmeNow, "a.example", "b.example")
	wantHeld(false, "me", acmeNow, "a.example", "b.example", "192.0.2.7", "c.example")
	wantHeld(false, "you", acmeNow, "a.example", "b.example", "192.0.2.7")
	wantHeld(false, "me", in.NotAfter, "a.example", "b.example", "192.0.2.7")

	pending := acmeIntent(catest.IDs("p.example")...)
	pending.Requester.Actor = "me"
	must(t, store.NewCA(w.db).PlainLedger().Begin(ctx, pending))
	wantHeld(false, "me", acmeNow, "p.example")
	must(t, store.NewCA(w.db).PlainLedger().Abort(ctx, pending, keys.ErrBusy))
	wantHeld(false, "me", acmeNow, "p.example")

	revoked := issue("me", "r.example")
	wantHeld(true, "me", acmeNow, "r.example")
	must(t, store.NewCA(w.db).Revoke(ctx, ca.Revocation{Serial: revoked.Serial, Reason: ca.Superseded, At: acmeNow}, acmeEntry()))
	wantHeld(false, "me", acmeNow, "r.example")
	issue("me", "r.example") // after which there is one to renew again
	wantHeld(true, "me", acmeNow, "r.example")
}

// A certificate that was issued before names were hashed has none, and the
// hash of no names finds nothing either.
func acmeOldCertificate(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	in := acmeIntent(catest.IDs("a.example")...)
	l := store.NewCA(w.db).PlainLedger()
	must(t, l.Begin(ctx, in))
	must(t, l.Commit(ctx, in, ca.Certificate{ID: in.ID, Serial: in.Serial, DER: []byte("der")}))
	must(t, w.db.Write(ctx, func(ctx context.Context, tx store.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE certificates SET names_hash = ''`)
		return err
	}))
	for _, names := range [][]ca.Identifier{catest.IDs("a.example"), nil} {
		got, err := w.Facts(ctx, acme.FactsQuery{Requester: in.Requester.Actor, Names: names, Now: acmeNow})
		must(t, err)
		if got.Held {
			t.Errorf("an old certificate counts as one for %v", names)
		}
	}
}

func acmeLeaseCounts(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	_, as := w.order(t, "acct", "a.example")
	id, lease := as[0].ID, acmeNow.Add(time.Minute)
	must(t, w.StartChallenge(ctx, id, acme.HTTP01, lease, acmeNow))
	attempts := func(want int) {
		t.Helper()
		a, err := w.Authorization(ctx, id)
		must(t, err)
		if a.Attempts != want {
			t.Errorf("%d attempts; want %d", a.Attempts, want)
		}
	}
	move := func(f func() error, want int) {
		t.Helper()
		must(t, f())
		attempts(want)
	}
	next := lease.Add(time.Minute)
	move(func() error { return w.ExtendLease(ctx, id, lease, next) }, 0)
	// Given back and taken any number of times, it was not begun once more.
	for range 20 {
		move(func() error { return w.GiveBackLease(ctx, id, next, acmeNow) }, -1)
		move(func() error { return w.TakeLease(ctx, id, acmeNow, next) }, 0)
	}
	// Taken from one who never came back, it was.
	move(func() error { return w.TakeLease(ctx, id, next, lease) }, 1)
	wantErr(t, w.TakeLease(ctx, id, next, lease), acme.ErrMoved)
	wantErr(t, w.GiveBackLease(ctx, id, next, lease), acme.ErrMoved)
	attempts(1)
}
