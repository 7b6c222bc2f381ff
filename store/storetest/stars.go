package storetest

import (
	"errors"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/store"
)

// Stars is what both engines promise of certificates that are renewed by us.
func Stars(t *testing.T, open func(t *testing.T) *store.DB) {
	laws := map[string]func(t *testing.T, w acmeWorld){
		"RowBeginsWithItsFirstCertificate":    starBegins,
		"OneCertificateForAPeriod":            starOnce,
		"PeriodBelongsToItsIntent":            starIntent,
		"PeriodNeedsItsAuthorizations":        starProven,
		"CanceledRowIssuesNothing":            starCancels,
		"EndedRowTellsItsOrder":               starEnds,
		"OrderOfARowOutlivesItsCertificates":  starSweeps,
		"AbortedPeriodIsDueAgain":             starAborts,
		"CancellationOutlastsWhatIsUnderWay":  starCanceledUnderWay,
		"RowsThatGoOnAreCountedAndDueInOrder": starLists,
	}
	for name, law := range laws {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			law(t, acmeWorld{store.NewACME(db), db})
		})
	}
}

// starOrder makes an order with auto-renewal for four hours, of an hour each.
func (w acmeWorld) starOrder(t *testing.T, account string) (acme.Order, []acme.Authorization) {
	t.Helper()
	o, as := acmeOrder(account, "a.example")
	o.NotAfter = time.Time{}
	o.AutoRenewal = &acme.AutoRenewal{End: acmeNow.Add(4 * time.Hour).Truncate(time.Second), Lifetime: time.Hour, Adjust: 30 * time.Minute}
	must(t, w.CreateOrder(t.Context(), o, as, acme.OrderLimits{MaxOpen: 10, KeepUntil: o.AutoRenewal.End.Add(time.Hour)}))
	return o, as
}

// row makes a valid one, and returns its row.
func (w acmeWorld) row(t *testing.T, account string) (acme.Order, acme.Star) {
	t.Helper()
	ctx := t.Context()
	o, as := w.starOrder(t, account)
	w.validate(t, as[0])
	in := acmeIntent()
	in.NotAfter = acmeNow.Add(time.Hour - time.Second).Truncate(time.Second)
	must(t, w.BeginIssue(ctx, acmeClaim(o, "csr"), in))
	must(t, w.CommitIssue(ctx, o.ID, in, acmeCertificate(in), acmeNow.Add(time.Minute)))
	x, err := w.Star(ctx, o.ID)
	must(t, err)
	o, err = w.Order(ctx, o.ID)
	must(t, err)
	return o, x
}

func acmePeriod(o acme.Order, x acme.Star, lease time.Time) acme.StarClaim {
	return acme.StarClaim{OrderID: x.OrderID, Prev: x.IntentID, Lease: lease, Period: x.Period + 1, Now: acmeNow, Authzs: o.AuthzIDs}
}

func starBegins(t *testing.T, w acmeWorld) {
	o, x := w.row(t, "acct")
	begin := acmeNow.Truncate(time.Second)
	want := acme.Star{OrderID: o.ID, AccountID: "acct", Begin: begin, CertificateID: o.CertificateID, DueAt: begin.Add(29 * time.Minute)} // a minute before half of the hour is over
	if !reflect.DeepEqual(x, want) {
		t.Errorf("got %+v\nwant %+v", x, want)
	}
	if string(o.CSR) != "csr" || o.AutoRenewal == nil || o.AutoRenewal.Lifetime != time.Hour || !o.CanceledAt.IsZero() {
		t.Errorf("order is %+v", o)
	}
	r, err := w.Record(t.Context(), o.Serial)
	must(t, err)
	if !r.AutoRenewed {
		t.Error("the certificate is not known for one of a row")
	}
	_, err = w.Star(t.Context(), "none")
	wantErr(t, err, acme.ErrNotFound)
}

func starOnce(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	o, x := w.row(t, "acct")
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex // guards done
		done  int
		lease = x.DueAt.Add(time.Minute)
	)
	for range 8 {
		wg.Go(func() {
			err := w.ClaimStar(ctx, o.ID, x.DueAt, lease)
			if errors.Is(err, acme.ErrMoved) {
				return
			}
			in := acmeIntent()
			if err == nil {
				err = w.BeginStar(ctx, acmePeriod(o, x, lease), in)
			}
			if err == nil {
				err = w.CommitStar(ctx, o.ID, 1, in, acmeCertificate(in), x.DueAt.Add(time.Hour))
			}
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			done++
		})
	}
	wg.Wait()
	got, err := w.Star(ctx, o.ID)
	must(t, err)
	if done != 1 || got.Period != 1 || got.CertificateID == x.CertificateID || got.IntentID != "" || !got.DueAt.Equal(x.DueAt.Add(time.Hour)) {
		t.Errorf("%d certificates: %+v", done, got)
	}
	// The period has its certificate, whatever lease somebody has.
	again := acmePeriod(o, x, got.DueAt)
	wantErr(t, w.BeginStar(ctx, again, acmeIntent()), acme.ErrMoved)
	r, err := w.CertificateOf(ctx, "acme:account/x", got.CertificateID)
	must(t, err)
	if !r.AutoRenewed {
		t.Error("the next certificate is not known for one of a row")
	}
}

// Whose process died loses the period to who comes after its lease.
func starIntent(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	o, x := w.row(t, "acct")
	lease := x.DueAt.Add(time.Minute)
	must(t, w.ClaimStar(ctx, o.ID, x.DueAt, lease))
	dead := acmeIntent()
	must(t, w.BeginStar(ctx, acmePeriod(o, x, lease), dead))
	wantErr(t, w.BeginStar(ctx, acmePeriod(o, x, lease), acmeIntent()), acme.ErrMoved)
	x, err := w.Star(ctx, o.ID)
	must(t, err)
	next := lease.Add(time.Minute)
	must(t, w.ClaimStar(ctx, o.ID, lease, next))
	in := acmeIntent()
	must(t, w.BeginStar(ctx, acmePeriod(o, x, next), in))
	wantErr(t, w.CommitStar(ctx, o.ID, 1, dead, acmeCertificate(dead), next), ca.ErrLeaseLost)
	must(t, w.CommitStar(ctx, o.ID, 1, in, acmeCertificate(in), time.Time{}))
	wantErr(t, w.CommitStar(ctx, o.ID, 1, in, acmeCertificate(in), next), ca.ErrLeaseLost)
	due, err := w.DueStars(ctx, acmeNow.Add(1000*time.Hour), 10)
	must(t, err)
	if len(due) != 0 {
		t.Errorf("a row that is over is due: %+v", due)
	}
}

func starProven(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	o, x := w.row(t, "acct")
	claim := acmePeriod(o, x, x.DueAt)
	claim.Now = acmeNow.Add(25 * time.Hour) // they expired
	wantErr(t, w.BeginStar(ctx, claim, acmeIntent()), acme.ErrUnproven)
	claim.Now, claim.Since = acmeNow, acmeNow.Add(time.Second) // the rules changed
	wantErr(t, w.BeginStar(ctx, claim, acmeIntent()), acme.ErrUnproven)
	got, err := w.Star(ctx, o.ID)
	must(t, err)
	if got.IntentID != "" {
		t.Errorf("%+v", got)
	}
	claim.Since = time.Time{}
	must(t, w.BeginStar(ctx, claim, acmeIntent()))
}

func starCancels(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	o, x := w.row(t, "acct")
	before := w.entries(t)
	must(t, w.CancelStar(ctx, o.ID, acmeNow, acmeEntry()))
	wantErr(t, w.CancelStar(ctx, o.ID, acmeNow, acmeEntry()), acme.ErrMoved)
	wantErr(t, w.CancelStar(ctx, "none", acmeNow, acmeEntry()), acme.ErrMoved)
	wantErr(t, w.ClaimStar(ctx, o.ID, x.DueAt, x.DueAt.Add(time.Minute)), acme.ErrMoved)
	wantErr(t, w.BeginStar(ctx, acmePeriod(o, x, x.DueAt), acmeIntent()), acme.ErrMoved)
	wantErr(t, w.PutOffStar(ctx, o.ID, x.DueAt, acmeNow), acme.ErrMoved)
	if n := w.entries(t) - before; n != 1 {
		t.Errorf("%d audit entries", n)
	}
	o, err := w.Order(ctx, o.ID)
	must(t, err)
	if !o.CanceledAt.Equal(acmeNow) || o.Status != acme.OrderValid {
		t.Errorf("order is %+v", o)
	}
}

func starCanceledUnderWay(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	for _, end := range []func(o acme.Order, in ca.Intent) error{
		func(o acme.Order, in ca.Intent) error {
			return w.CommitStar(ctx, o.ID, 1, in, acmeCertificate(in), acmeNow)
		},
		func(o acme.Order, in ca.Intent) error {
			return w.AbortStar(ctx, o.ID, in, errors.New("lost"), acmeNow)
		},
	} {
		o, x := w.row(t, "acct")
		in := acmeIntent()
		must(t, w.BeginStar(ctx, acmePeriod(o, x, x.DueAt), in))
		must(t, w.CancelStar(ctx, o.ID, acmeNow, acmeEntry()))
		must(t, end(o, in))
		due, err := w.DueStars(ctx, acmeNow.Add(1000*time.Hour), 10)
		must(t, err)
		if len(due) != 0 {
			t.Errorf("it goes on: %+v", due)
		}
	}
}

func starEnds(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	o, x := w.row(t, "acct")
	p := acme.Problem{Type: acme.Unauthorized, Detail: "gone"}
	wantErr(t, w.EndStar(ctx, o.ID, x.DueAt.Add(time.Second), acmeNow, p, acmeEntry()), acme.ErrMoved)
	must(t, w.EndStar(ctx, o.ID, x.DueAt, acmeNow, p, acmeEntry()))
	o, err := w.Order(ctx, o.ID)
	must(t, err)
	if o.CanceledAt.IsZero() || o.Error == nil || o.Error.Detail != "gone" {
		t.Errorf("order is %+v", o)
	}
}

func starAborts(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	o, x := w.row(t, "acct")
	in := acmeIntent()
	must(t, w.BeginStar(ctx, acmePeriod(o, x, x.DueAt), in))
	must(t, w.AbortStar(ctx, o.ID, in, errors.New("lost"), acmeNow.Add(time.Second)))
	got, err := w.Star(ctx, o.ID)
	must(t, err)
	if got.IntentID != "" || got.Failures != 1 || got.Period != 0 || !got.DueAt.Equal(acmeNow.Add(time.Second)) {
		t.Errorf("%+v", got)
	}
	must(t, w.PutOffStar(ctx, o.ID, got.DueAt, acmeNow.Add(time.Minute)))
	if got, err = w.Star(ctx, o.ID); err != nil || got.Failures != 2 || !got.DueAt.Equal(acmeNow.Add(time.Minute)) {
		t.Errorf("%+v, %v", got, err)
	}
}

func starSweeps(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	o, _ := w.row(t, "acct")
	keep := o.AutoRenewal.End.Add(time.Hour)
	for _, c := range []struct {
		at   time.Time
		want error
	}{{keep.Add(-time.Second), nil}, {keep.Add(time.Second), acme.ErrNotFound}} {
		_, err := w.Sweep(ctx, acme.Sweep{Now: c.at, Limit: 10})
		must(t, err)
		_, err = w.SweepStars(ctx, c.at, 10)
		must(t, err)
		_, err = w.Order(ctx, o.ID)
		if !errors.Is(err, c.want) {
			t.Errorf("at %s the order is %v", c.at, err)
		}
		if _, err = w.Star(ctx, o.ID); !errors.Is(err, c.want) {
			t.Errorf("at %s the row is %v", c.at, err)
		}
	}
}

func starLists(t *testing.T, w acmeWorld) {
	ctx := t.Context()
	a, _ := w.row(t, "acct")
	b, x := w.row(t, "acct")
	c, _ := w.row(t, "other")
	must(t, w.ClaimStar(ctx, b.ID, x.DueAt, x.DueAt.Add(-time.Minute)))
	must(t, w.CancelStar(ctx, c.ID, acmeNow, acmeEntry()))
	n, err := w.OpenStars(ctx, "acct", acmeNow)
	must(t, err)
	m, err := w.OpenStars(ctx, "other", acmeNow)
	must(t, err)
	due, err := w.DueStars(ctx, x.DueAt, 10)
	must(t, err)
	open, _ := w.starOrder(t, "acct")
	for at, want := range map[time.Time]int{acmeNow: 3, open.Expires: 2} {
		if got, err := w.OpenStars(ctx, "acct", at); got != want || err != nil {
			t.Errorf("at %s %d go on or may begin, %v; want %d", at, got, err, want)
		}
	}
	if n != 2 || m != 0 || len(due) != 2 || due[0].OrderID != b.ID || due[1].OrderID != a.ID {
		t.Errorf("%d and %d go on; due are %+v", n, m, due)
	}
	due, err = w.DueStars(ctx, x.DueAt.Add(-time.Minute-time.Second), 10)
	must(t, err)
	if len(due) != 0 {
		t.Errorf("due too early: %+v", due)
	}
}
