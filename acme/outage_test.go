package acme_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
)

// A writes counts what is written about orders that wait.
type writes struct {
	acme.Store
	n atomic.Int64
}

func (w *writes) BeginIssue(ctx context.Context, c acme.Claim, in ca.Intent) error {
	w.n.Add(1)
	return w.Store.BeginIssue(ctx, c, in)
}

func (w *writes) ClaimDue(ctx context.Context, id string, old, until time.Time) error {
	w.n.Add(1)
	return w.Store.ClaimDue(ctx, id, old, until)
}

func (w *writes) Settle(ctx context.Context, id, intent string, v acme.Verdict, e *audit.Entry) error {
	w.n.Add(1)
	return w.Store.Settle(ctx, id, intent, v, e)
}

// An outage of hours: whoever finalizes is told that the order is processing and
// gets the certificate by nothing but polling; no order is lost, nothing is
// written about those that wait, and the log has two lines.
func TestAnOutageOfHoursLosesNoOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var logs safeBuffer
		var written *writes
		w, d := newBubble(t, func(c *acme.Config) {
			c.Logger = slog.New(slog.NewTextHandler(&logs, nil))
			written = &writes{Store: c.Store}
			c.Store = written
		})
		w.run()
		d.setAway(time.Hour)
		type waiting struct {
			c *client
			o acme.Order
		}
		var all []waiting
		for i := range 10 {
			c := w.client()
			for j := range 4 {
				o := c.made(fmt.Sprintf("%d.%d.example", j, i))
				r := c.finalizes(o).want(200)
				if r.str("status") != "processing" || r.header.Get("Retry-After") == "" {
					t.Errorf("finalized while the device is away: %v %s", r.header, r.body)
				}
				all = append(all, waiting{c, o})
			}
		}
		w.hours(6)
		if n := len(d.tried()); n != 0 || written.n.Load() != 0 || w.serials("void")+w.serials("abandoned") != 0 {
			t.Errorf("the outage cost %d tries and %d writes", n, written.n.Load())
		}
		for _, x := range all {
			if got := x.c.status(x.o); got != "processing" {
				t.Errorf("an order is %s", got)
			}
		}
		d.setAway(0)
		began := time.Now()
		for _, x := range all {
			x.c.eventually(x.o, "valid", time.Minute)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("they are issued %v after the device was back", took)
		}
		one := w.client()
		time.Sleep(20 * time.Second)
		one.finalizes(one.made("last.example")).want(200)
		for _, line := range []string{"waits for the signing device", "are issued again"} {
			if n := strings.Count(logs.String(), line); n != 1 {
				t.Errorf("%q is said %d times", line, n)
			}
		}
		if n := strings.Count(logs.String(), "\n"); n != 2 {
			t.Errorf("%d lines:\n%s", n, logs.String())
		}
	})
}

// hours lets them pass, of each the first minute as slowly as time does.
func (w *world) hours(n int) {
	for range n {
		time.Sleep(time.Minute)
		w.clock.advance(59 * time.Minute)
	}
}

// The device's own idea of when to come again is followed, but not for hours: it
// may be back before.
func TestTheBacklogNoticesWithinSecondsThatTheDeviceIsBack(t *testing.T) {
	for name, stop := range map[string]func(d *device, on bool){
		"away": func(d *device, on bool) {
			d.setAway(0)
			if on {
				d.setAway(time.Hour)
			}
		},
		"busy": func(d *device, on bool) {
			d.setBusy(nil)
			if on {
				d.setBusy(&keys.BusyError{Reason: "away", RetryAfter: time.Hour})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w, d := newBubble(t)
				w.run()
				c := w.client()
				stop(d, true)
				o := c.made("a.example")
				c.finalizes(o).want(200)
				time.Sleep(10*time.Minute + 17*time.Second)
				stop(d, false)
				c.eventually(o, "valid", 35*time.Second)
			})
		})
	}
}

// When the backlog is full as well, the client is told so, keeps its order, and
// has it issued when it comes again.
func TestAnOutageThatFillsTheBacklogLeavesOrdersReady(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d := newBubble(t, func(c *acme.Config) { c.MaxBacklog = 20 })
		w.run()
		d.setAway(time.Minute)
		var refused []acme.Order
		c := w.client()
		for i := range 40 {
			if i%2 == 0 {
				c = w.client()
			}
			o := c.made(fmt.Sprintf("%d.example", i))
			switch r := c.finalizes(o); r.status {
			case 200:
			case 503:
				refused = append(refused, o)
				if r.header.Get("Retry-After") == "" || c.status(o) != "ready" {
					t.Errorf("turned away: %v, and the order is %s", r.header, c.status(o))
				}
			default:
				t.Errorf("%d %s", r.status, r.body)
			}
		}
		if n := len(refused); n < 20 || n == 40 {
			t.Errorf("%d of 40 were turned away; there is room for 20", n)
		}
		w.hours(1)
		d.setAway(0)
		time.Sleep(2 * time.Minute)
		if n := w.issued(); n != 40-len(refused) {
			t.Errorf("%d issued", n)
		}
		if got := c.finalizes(refused[len(refused)-1]).want(200).str("status"); got != "valid" {
			t.Errorf("who comes again has an order that is %s", got)
		}
	})
}

// A device that hangs costs a serial each time, so it is asked seldom. It is no
// order's fault, so none ends by it.
func TestAHungDeviceCostsFewSerialsAndNoOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d := newBubble(t)
		d.setBusy(&keys.HungError{After: 30 * time.Second})
		var orders []acme.Order
		c := w.client()
		for i := range 3 {
			orders = append(orders, c.parks(fmt.Sprintf("%d.example", i)))
		}
		w.run()
		time.Sleep(20 * time.Minute)
		tries := len(d.tried())
		if n := w.serials("abandoned"); n != tries || tries < 20 || tries > 70 {
			t.Errorf("%d serials abandoned in %d tries in 20 minutes", n, tries)
		}
		d.setBusy(nil)
		for _, o := range orders {
			c.eventually(o, "valid", time.Minute)
		}
	})
}

// What an outage has heaped up is worked off by turns, however much of it is one
// account's.
func TestAfterAnOutageTheBacklogIsSharedOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d := newBubble(t)
		w.run()
		d.setAway(10 * time.Second)
		hog, victim := w.client(), w.client()
		for i := range 300 {
			hog.finalizes(hog.made(fmt.Sprintf("h%d.example", i))).want(200)
		}
		mine := victim.made("v.example")
		victim.finalizes(mine).want(200)
		w.hours(1)
		d.setAway(0)
		victim.eventually(mine, "valid", time.Minute)
		if n := w.issued(); n > 40 {
			t.Errorf("%d certificates of a hog went before", n-1)
		}
		w.finished(301)
	})
}

// An order that expires while the device is away ends, rather than being issued
// for somebody who has long given up.
func TestAnOrderThatExpiresInAnOutageEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, d := newBubble(t)
		w.run()
		d.setAway(10 * time.Second)
		c := w.client()
		o := c.made("a.example")
		c.finalizes(o).want(200)
		w.hours(23)
		if got := c.status(o); got != "processing" {
			t.Errorf("it is %s before it expired", got)
		}
		w.hours(1)
		time.Sleep(2 * time.Minute)
		if got := c.status(o); got != "invalid" {
			t.Errorf("it is %s", got)
		}
	})
}
