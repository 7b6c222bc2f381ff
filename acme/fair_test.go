package acme_test

import (
	"context"
	"crypto"
	"crypto/x509"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/peer"
	"github.com/secsy-pki/secsy-pki/store"
)

// newBubble is a world inside of a bubble, with an authority whose device takes
// its time. Run is the test's to call.
func newBubble(t *testing.T, options ...func(*acme.Config)) (*world, *device) {
	t.Helper()
	d := &device{service: 50 * time.Millisecond}
	w := makeWorld(t, "https://acme.example", append([]func(*acme.Config){func(c *acme.Config) { c.CA = d }}, options...)...)
	d.clock = w.clock.now
	w.http = &http.Client{Transport: direct{w.server.Handler()}}
	return w, d
}

// A device is an authority that takes a fixed time for each certificate.
type device struct {
	acme.CA                  // nil: what is not below is not called
	clock   func() time.Time // the server's: leases are held against it
	mu      sync.Mutex       // guards what follows
	service time.Duration
	busy    error // what it says instead of signing
	away    error // what it says before anything is recorded
	tries   []try
	now     int
	peak    int
}

// A try is one request that came as far as the device.
type try struct {
	at       time.Time
	identity string
	renewal  bool
	name     string
}

func (d *device) Issue(ctx context.Context, req ca.Request, led ca.Ledger) (ca.Certificate, error) {
	if err := d.Ready(req.Profile); err != nil {
		return ca.Certificate{}, err
	}
	id := audit.NewID()
	now := d.clock()
	in := ca.Intent{
		ID: id, Serial: ca.Serial("01" + audit.NewID()), Issuer: "issuer", Profile: "server", TBS: []byte{1}, Names: ca.NormalizeIdentifiers(req.Identifiers),
		NotBefore: now, NotAfter: now.Add(90 * 24 * time.Hour), Requester: req.Requester, CreatedAt: now, LeaseUntil: now.Add(time.Minute),
	}
	if err := led.Begin(ctx, in); err != nil {
		return ca.Certificate{}, err
	}
	ctx = context.WithoutCancel(ctx)
	took, err := d.enter(try{time.Now(), peer.Identity(ctx), req.Renewal, req.Identifiers[0].Value})
	if err != nil {
		if aborted := led.Abort(ctx, in, err); aborted != nil {
			return ca.Certificate{}, aborted
		}
		if !ca.NeverSigned(err) {
			return ca.Certificate{}, err
		}
		return ca.Certificate{}, &ca.Refusal{Code: ca.Busy, Detail: "busy", RetryAfter: ca.RetryAfter(err), Err: err}
	}
	defer d.leave()
	time.Sleep(took)
	c := ca.Certificate{ID: id, Serial: in.Serial, Issuer: in.Issuer, Profile: in.Profile, DER: []byte("der"), NotBefore: in.NotBefore, NotAfter: in.NotAfter}
	return c, led.Commit(ctx, in, c)
}

func (d *device) enter(x try) (took time.Duration, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tries = append(d.tries, x)
	if d.busy != nil {
		return 0, d.busy
	}
	d.now++
	d.peak = max(d.peak, d.now)
	return d.service, nil
}

func (d *device) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now--
}

func (d *device) setBusy(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.busy = err
}

// setAway has the authority know that its device is away for retry, 0 ends it.
func (d *device) setAway(retry time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.away = nil
	if retry > 0 {
		d.away = &ca.Refusal{Code: ca.Busy, Detail: "away", RetryAfter: retry, Err: keys.ErrBusy}
	}
}

func (d *device) Ready(string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.away
}

func (d *device) setService(t time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.service = t
}

func (d *device) tried() []try {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.tries)
}

func (d *device) CheckCSR(_ context.Context, _ string, der []byte, _ []ca.Identifier) (crypto.PublicKey, error) {
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, err
	}
	return r.PublicKey, nil
}

func (d *device) CheckKey(context.Context, crypto.PublicKey) error { return nil }

// bubble runs a law in a bubble, in which time passes when nothing else happens.
func bubble(t *testing.T, law func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, law)
}

// account is the id of the client's account.
func (c *client) account() string { return c.kid[strings.LastIndex(c.kid, "/")+1:] }

// made makes an order that is ready.
func (c *client) made(names ...string) acme.Order {
	c.t.Helper()
	now := c.w.clock.now().UTC().Truncate(time.Microsecond)
	o := acme.Order{
		ID: audit.NewID(), AccountID: c.account(), Status: acme.OrderReady, Profile: "server", Identifiers: catest.IDs(names...),
		CreatedAt: now, Expires: now.Add(24 * time.Hour),
	}
	var as []acme.Authorization
	for _, id := range o.Identifiers {
		a := acme.Authorization{
			ID: audit.NewID(), AccountID: o.AccountID, OrderID: o.ID, Profile: o.Profile, Identifier: id, Status: acme.AuthzValid, Token: "token",
			Offered: []acme.ChallengeType{acme.HTTP01}, Challenge: acme.HTTP01, CreatedAt: now, Validated: now, Expires: o.Expires, PurgeAt: o.Expires,
		}
		as, o.AuthzIDs = append(as, a), append(o.AuthzIDs, a.ID)
	}
	if err := c.w.store.CreateOrder(c.t.Context(), o, as, acme.OrderLimits{MaxOpen: 1 << 20}); err != nil {
		c.t.Fatal(err)
	}
	return o
}

// parks puts an order into the backlog behind the server's back, as another replica would.
func (c *client) parks(names ...string) acme.Order {
	c.t.Helper()
	o := c.made(names...)
	now := c.w.clock.now().UTC().Truncate(time.Microsecond)
	err := c.w.store.Park(c.t.Context(), acme.Claim{OrderID: o.ID, CSR: bubbleCSR(c.t), CSRHash: "hash", Now: now, DueAt: now})
	if err != nil {
		c.t.Fatal(err)
	}
	return o
}

var oneCSR = sync.OnceValue(func() []byte {
	t := &testing.T{}
	return catest.CSR(t, newKey(t), "a.example")
})

func bubbleCSR(testing.TB) []byte { return oneCSR() }

// finalizes sends the CSR, as one of many connections that the client may have.
func (c *client) finalizes(o acme.Order) *reply {
	c.t.Helper()
	one := *c
	one.nonce = ""
	return one.post(c.w.url("order/"+o.ID+"/finalize"), csrBody(bubbleCSR(c.t)))
}

func (c *client) status(o acme.Order) string {
	c.t.Helper()
	return c.get(c.w.url("order/" + o.ID)).want(200).str("status")
}

// eventually waits, in bubble time, until the order has the status.
func (c *client) eventually(o acme.Order, status string, most time.Duration) time.Duration {
	c.t.Helper()
	began := time.Now()
	for c.status(o) != status {
		if time.Since(began) > most {
			c.t.Fatalf("order of %v is %s after %v; want %s", o.Identifiers, c.status(o), most, status)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(began)
}

// One account that wants 500 certificates at once has all seats, the queue and
// the backlog. Another's waits for the next seat, not for its 500.
func TestAHogDoesNotHoldUpAnotherAccountsCertificate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d := newBubble(t)
		w.run()
		hog, victim := w.client(), w.client()
		var hogs sync.WaitGroup
		for i := range 500 {
			o := hog.made(fmt.Sprintf("h%d.example", i))
			hogs.Go(func() {
				if r := hog.finalizes(o); r.status != 200 {
					t.Errorf("the hog's finalize: %d %s", r.status, r.body)
				}
			})
		}
		mine := victim.made("victim.example")
		time.Sleep(2*d.service + d.service/3)
		began := time.Now()
		r := victim.finalizes(mine).want(200)
		took := time.Since(began)
		if r.str("status") != "valid" || took > 2*d.service {
			t.Errorf("the victim's order is %s after %v; want valid within a wait and its own time, %v each at the most", r.str("status"), took, d.service)
		}
		hogs.Wait()
		w.finished(501)
		if d.peak > 16 {
			t.Errorf("%d certificates at a time; want 16 at the most", d.peak)
		}
		if left := w.server.IssuanceGate().Stat(); left.InFlight != 0 || left.Queued != 0 {
			t.Errorf("after all: %+v", left)
		}
	})
}

// finished waits until so many certificates are issued and nothing is left over.
func (w *world) finished(n int) {
	w.t.Helper()
	for range 10_000 {
		if w.issued() == n {
			w.stop()
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.t.Fatalf("%d certificates; want %d", w.issued(), n)
}

func (w *world) issued() (n int) { return w.serials(`issued`) }

func (w *world) serials(state string) (n int) {
	w.t.Helper()
	err := w.db.Read(context.Background(), func(ctx context.Context, tx store.Tx) error {
		var x int64
		err := tx.QueryRow(ctx, `SELECT COUNT(*) FROM certificates WHERE state = $1`, state).Scan(&x)
		n = int(x)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// A site whose certificate runs out goes down; one that has none yet waits.
// That it is a renewal is known from the certificate, when the order is long gone.
func TestARenewalGoesBeforeIssuance(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d := newBubble(t, func(c *acme.Config) { c.FinalizeSlots = 1 })
		w.run()
		old, fresh := w.client(), w.client()
		first := old.made("a.example", "B.example")
		old.finalizes(first).want(200)
		w.clock.advance(60 * 24 * time.Hour)
		if err := w.server.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		old.get(w.url("order/" + first.ID)).want(404)
		var all sync.WaitGroup
		ask := func(c *client, names ...string) {
			o := c.made(names...)
			all.Go(func() { c.finalizes(o).want(200) })
			time.Sleep(time.Millisecond)
		}
		ask(fresh, "one.example")
		ask(fresh, "two.example")
		ask(fresh, "a.example", "b.example") // another's, so a new one
		ask(old, "a.example")                // not the same set
		ask(old, "b.example", "a.example")   // which is renewed
		all.Wait()
		var got []string
		for _, x := range d.tried()[1:] {
			got = append(got, fmt.Sprint(x.name, " ", x.renewal))
		}
		want := []string{"one.example false", "b.example true", "a.example false", "two.example false", "a.example false"}
		if !slices.Equal(got, want) {
			t.Errorf("issued %q; want %q", got, want)
		}
		w.stop()
	})
}

// Whose turn it is at the device is decided by who asked, and whether it renews,
// no less when the order comes out of the backlog.
func TestTheDeviceIsToldWhoAsksAndWhetherItRenews(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d := newBubble(t)
		c := w.client()
		c.finalizes(c.made("a.example")).want(200)
		d.setBusy(&keys.BusyError{Reason: "full", RetryAfter: time.Second})
		c.finalizes(c.made("a.example")).want(200)
		d.setBusy(nil)
		time.Sleep(2 * time.Second)
		if err := w.server.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		who := "acme:account/" + c.account()
		for i, renewal := range []bool{false, true, true} {
			if x := d.tried()[i]; x.identity != who || x.renewal != renewal {
				t.Errorf("try %d: by %q, renewal %v; want %q, %v", i, x.identity, x.renewal, who, renewal)
			}
		}
		if w.issued() != 2 {
			t.Errorf("%d certificates; want 2", w.issued())
		}
	})
}

// What is put off is worked off by turns: a hundred orders of one account, put
// off before another's few, take every second turn.
func TestParkedOrdersOfTwoAccountsAlternate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d := newBubble(t, func(c *acme.Config) { c.FinalizeSlots = 1 })
		hog, victim := w.client(), w.client()
		for i := range 100 {
			hog.parks(fmt.Sprintf("h%d.example", i))
		}
		time.Sleep(time.Second)
		for i := range 5 {
			victim.parks(fmt.Sprintf("v%d.example", i))
		}
		w.run()
		w.finished(105)
		var served []int
		for i, x := range d.tried() {
			if strings.HasPrefix(x.name, "v") {
				served = append(served, i)
			}
		}
		if len(served) != 5 || served[4] > 2*5 {
			t.Errorf("the victim's were served as numbers %v; want each second one", served)
		}
	})
}

// An order that is put off behind hundreds of another account waits for a turn or two.
func TestALatePlaceInTheBacklogIsNoLateTurn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d := newBubble(t)
		hog, victim := w.client(), w.client()
		for i := range 900 {
			hog.parks(fmt.Sprintf("h%d.example", i))
		}
		w.run()
		time.Sleep(200 * time.Millisecond)
		mine := victim.parks("victim.example")
		if took := victim.eventually(mine, "valid", 10*time.Second); took > pollEvery+2*d.service {
			t.Errorf("took %v with %v a certificate", took, d.service)
		}
		if n := w.issued(); n > 850 {
			t.Errorf("%d were issued before: that was no test", n)
		}
		w.stop()
	})
}

// An account whose orders wait for their turn waits for itself: they don't stand
// in the way of what another account has put off.
func TestAnAccountsOwnQueueIsNoOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d := newBubble(t, func(c *acme.Config) { c.FinalizeSlots = 2 })
		const service = 5 * time.Second
		d.setService(service)
		hog, victim := w.client(), w.client()
		for i := range 20 {
			hog.parks(fmt.Sprintf("p%d.example", i))
		}
		w.run()
		time.Sleep(time.Second)
		var clients sync.WaitGroup
		for i := range 3 {
			o := hog.made(fmt.Sprintf("c%d.example", i))
			clients.Go(func() { hog.finalizes(o).want(200) })
		}
		time.Sleep(service)
		mine := victim.parks("victim.example")
		if took := victim.eventually(mine, "valid", time.Minute); took > pollEvery+2*service {
			t.Errorf("took %v with %v a certificate", took, service)
		}
		clients.Wait()
		w.stop()
	})
}

// A gate that turns everything away is not asked in a loop, nor is the database.
func TestATurnedAwayBacklogComesAgainLater(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var asked countingStore
		w, d := newBubble(t, func(c *acme.Config) {
			asked.Store = c.Store
			c.Store = &asked
			c.FinalizeSlots = 1
			c.FinalizeWait = time.Millisecond
		})
		d.setService(5 * time.Minute)
		for range 10 {
			c := w.client()
			for i := range 30 {
				c.parks(fmt.Sprintf("%d.example", i))
			}
		}
		w.run()
		time.Sleep(time.Minute)
		if n := asked.due.Load(); n < 20 || n > 100 {
			t.Errorf("asked %d times in a minute what is due", n)
		}
		st := w.server.IssuanceGate().Stat().Class[gate.Issuance]
		if n := st.Refused[gate.Timeout]; st.InFlight != 1 || n < 20 || n > 100 {
			t.Errorf("at the gate %d are in, and %d were turned away in a minute", st.InFlight, n)
		}
		d.setService(0)
		w.finished(300)
	})
}

type countingStore struct {
	acme.Store
	due atomic.Int64
}

func (s *countingStore) DueOrders(ctx context.Context, now time.Time, after string, limit int) ([]acme.Order, error) {
	s.due.Add(1)
	return s.Store.DueOrders(ctx, now, after, limit)
}

// Clients who wait don't starve what was put off, nor the other way round.
func TestTheBacklogMovesWhileClientsKeepTheGateFull(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d := newBubble(t, func(c *acme.Config) { c.FinalizeSlots = 2 })
		w.run()
		most := pollEvery + 7*d.service
		stop := make(chan struct{})
		var clients sync.WaitGroup
		for i := range 6 {
			c := w.client()
			clients.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					// While the queue stands the gate has less patience, and may put off
					// a client, too: it is no worse off than the others in the backlog.
					o := c.made(fmt.Sprintf("c%d-%d.example", i, n))
					if c.finalizes(o).want(200).str("status") == "valid" {
						continue
					}
					if took := c.eventually(o, "valid", time.Minute); took > most {
						t.Errorf("a client that was put off waited %v; want %v at the most", took, most)
					}
				}
			})
		}
		time.Sleep(d.service)
		late := w.client()
		took := late.eventually(late.parks("late.example"), "valid", time.Minute)
		close(stop)
		clients.Wait()
		if took > most {
			t.Errorf("the order that was put off took %v; want %v at the most", took, most)
		}
		w.stop()
	})
}

const pollEvery = 2 * time.Second

// The backlog is the last thing that gives: then the client hears when to come
// again, in the form that clients wait for, and its order is as it was.
func TestAFullBacklogLeavesTheOrderReady(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d := newBubble(t, func(c *acme.Config) { c.MaxBacklog = 2 })
		d.setBusy(keys.ErrBusy)
		c := w.client()
		for i := range 2 {
			one := w.client()
			if got := one.finalizes(one.made(fmt.Sprintf("%d.example", i))).want(200).str("status"); got != "processing" {
				t.Fatalf("order is %s", got)
			}
		}
		tries := len(d.tried())
		mine := c.made("mine.example")
		r := c.finalizes(mine).problem(503, "rateLimited")
		if got := r.header.Get("Retry-After"); got != "60" { // nothing has ever left
			t.Errorf("Retry-After: %q", got)
		}
		if got := c.status(mine); got != "ready" {
			t.Errorf("order is %s; want ready", got)
		}
		if n := len(d.tried()); n != tries || w.server.Backlog() != 2 {
			t.Errorf("%d tries at the device, %d in the backlog", n-tries, w.server.Backlog())
		}
		d.setBusy(nil)
		w.run()
		time.Sleep(20 * time.Second)
		if n := w.server.Backlog(); n != 0 {
			t.Errorf("%d in the backlog after it was worked off", n)
		}
		if got := c.finalizes(mine).want(200).str("status"); got != "valid" {
			t.Errorf("order is %s", got)
		}
		w.stop()
	})
}

// When to come again follows from how fast orders leave the backlog.
func TestAFullBacklogSaysWhenThereWillBeRoom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d := newBubble(t, func(c *acme.Config) { c.MaxBacklog = 2 })
		count := func() {
			t.Helper()
			if err := w.server.CountBacklog(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		c := w.client()
		count()
		began := time.Now()
		for i := range 4 {
			c.finalizes(c.made(fmt.Sprintf("%d.example", i))).want(200)
		}
		time.Sleep(10*time.Second - time.Since(began))
		count() // 0.4 a second, of which a quarter is believed at once
		d.setBusy(keys.ErrBusy)
		for i := range 2 {
			one := w.client()
			one.finalizes(one.made(fmt.Sprintf("b%d.example", i))).want(200)
		}
		r := c.finalizes(c.made("mine.example")).problem(503, "rateLimited")
		if got := r.header.Get("Retry-After"); got != "10" {
			t.Errorf("Retry-After: %q; want one order's time at 0.1 a second", got)
		}
	})
}

// Of what other replicas put off this one hears by counting.
func TestTheBacklogIsCountedOverAllReplicas(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, _ := newBubble(t, func(c *acme.Config) { c.MaxBacklog = 3 })
		c := w.client()
		for i := range 3 {
			w.client().parks(fmt.Sprintf("%d.example", i))
		}
		if err := w.server.CountBacklog(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.finalizes(c.made("a.example")).problem(503, "rateLimited")
	})
}

func TestTheLastTenthOfTheBacklogIsForRenewals(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d := newBubble(t, func(c *acme.Config) { c.MaxBacklog = 10 })
		old := w.client()
		old.finalizes(old.made("old.example")).want(200)
		d.setBusy(keys.ErrBusy)
		for i := range 9 {
			c := w.client()
			c.finalizes(c.made(fmt.Sprintf("%d.example", i))).want(200)
		}
		fresh := w.client()
		fresh.finalizes(fresh.made("new.example")).problem(503, "rateLimited")
		if got := old.finalizes(old.made("old.example")).want(200).str("status"); got != "processing" {
			t.Errorf("the renewal is %s", got)
		}
		again := w.client()
		again.finalizes(again.made("new.example")).problem(503, "rateLimited")
	})
}

// One account can't fill the backlog for all.
func TestOneAccountHasAPartOfTheBacklogOnly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d := newBubble(t, func(c *acme.Config) { c.MaxBacklog = 40 })
		d.setBusy(keys.ErrBusy)
		hog, victim := w.client(), w.client()
		taken := 0
		for i := range 40 {
			if i%7 == 3 { // the count takes over from what was added to the one before
				if err := w.server.CountBacklog(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if hog.finalizes(hog.made(fmt.Sprintf("h%d.example", i))).status == 200 {
				taken++
			}
		}
		if taken != 20 {
			t.Errorf("the hog has %d of 40 places; want half", taken)
		}
		if got := victim.finalizes(victim.made("v.example")).want(200).str("status"); got != "processing" {
			t.Errorf("the victim's is %s", got)
		}
	})
}

// A device that is busy for minutes is tried now and then, not for each order
// every few seconds: a try spends a serial for ever. No order ends by it.
func TestABusyDeviceCostsFewSerialsAndNoOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d := newBubble(t)
		d.setBusy(&keys.BusyError{Reason: "full", RetryAfter: 3 * time.Second})
		for range 30 {
			c := w.client()
			for i := range 10 {
				c.parks(fmt.Sprintf("%d.example", i))
			}
		}
		w.run()
		time.Sleep(10 * time.Minute)
		tries := d.tried()
		if n := len(tries); n < 30 || n > 100 {
			t.Errorf("%d tries in 10 minutes", n)
		}
		if n := w.serials("void"); n != len(tries) {
			t.Errorf("%d serials void after %d tries", n, len(tries))
		}
		last := tries[len(tries)-10:]
		for i := 1; i < len(last); i++ {
			if gap := last[i].at.Sub(last[i-1].at); gap < 3*time.Second || gap > 15*time.Second {
				t.Errorf("%v between two tries; want at least what the device asks for, and not much more", gap)
			}
		}
		who := map[string]bool{}
		for _, x := range tries {
			who[x.identity] = true
		}
		if len(who) != 30 {
			t.Errorf("of 30 accounts %d had a try", len(who))
		}
		d.setBusy(nil)
		w.finished(300)
	})
}

// A seat is kept by the work, however its client leaves.
func TestClientsWhoLeaveDoNotMakeRoomAtTheDevice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d := newBubble(t, func(c *acme.Config) { c.FinalizeSlots = 3 })
		w.run()
		c := w.client()
		var all sync.WaitGroup
		for i := range 40 {
			o := c.made(fmt.Sprintf("%d.example", i))
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), d.service/4)
				defer cancel()
				one := *c
				one.nonce = ""
				u := w.url("order/" + o.ID + "/finalize")
				body := strings.NewReader(asJSON(t, jws(t, one.key, one.header(u, nil), csrBody(bubbleCSR(t)))))
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, u, body)
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Content-Type", "application/jose+json")
				if resp, err := w.http.Do(req); err == nil {
					_ = resp.Body.Close()
				}
			})
			time.Sleep(time.Millisecond)
		}
		all.Wait()
		w.stop() // which waits for what was begun
		if d.peak != 3 || w.serials("pending") != 0 {
			t.Errorf("%d at a time, want 3; %d left unfinished", d.peak, w.serials("pending"))
		}
		if w.issued() == 0 || w.issued() == 40 {
			t.Errorf("%d of 40 were issued: that was no test", w.issued())
		}
	})
}
