package crl

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
)

// However long the device is away, the CRL at hand is served, no attempt to
// build another costs a number, two lines are logged, and what was revoked
// meanwhile is listed within seconds of its return.
func TestAnOutageIsOutlivedByTheCurrentCRLAndLeavesTwoLines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var logs bytes.Buffer
		s := w.prepared(func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&logs, nil)); c.Poll = 5 * time.Minute })
		defer run(t, s)()
		synctest.Wait()
		before, _ := s.Current(w.issuer.ID)
		logs.Reset()
		asked, number := w.keys.Asked(), w.reserved()
		w.keys.Away(time.Minute)
		w.revoke("05", ca.Superseded, time.Now().Add(24*time.Hour))
		s.Trigger(w.issuer.ID)
		time.Sleep(6 * time.Hour)
		synctest.Wait()
		rec := get(s, http.MethodGet, "/crl/"+string(w.issuer.ID)+".crl")
		if c, _ := s.Current(w.issuer.ID); c.Number != before.Number || rec.Code != http.StatusOK {
			t.Errorf("number %d after %d, HTTP %d", c.Number, before.Number, rec.Code)
		}
		if w.keys.Asked() != asked || w.reserved() != number {
			t.Errorf("asked %d times, number %d after %d", w.keys.Asked()-asked, w.reserved(), number)
		}
		if n := strings.Count(logs.String(), "\n"); n != 1 || !strings.Contains(logs.String(), "waits for the signing device") {
			t.Errorf("%d lines:\n%s", n, logs.String())
		}
		w.keys.Back()
		time.Sleep(mostBusy)
		synctest.Wait()
		if got := serials(w.current(s)); !slices.Equal(got, []ca.Serial{"05"}) {
			t.Errorf("%v", got)
		}
		if n := strings.Count(logs.String(), "\n"); n != 3 || !strings.Contains(logs.String(), "works again") {
			t.Errorf("%d lines, of which one should tell of the CRL:\n%s", n, logs.String())
		}
	})
}

// reserved is the number that was taken last.
func (w *world) reserved() Number {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.scopes[Scope{Issuer: w.issuer.ID}].number
}

// A start without the device serves the stored CRL; without one it fails, and
// says why.
func TestAStartWithoutTheDeviceNeedsAStoredCRL(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.keys.Away(time.Second)
	if err := w.server(nil).Prepare(t.Context()); !errors.Is(err, keys.ErrBusy) {
		t.Errorf("without any: %v", err)
	}
	w.keys.Back()
	first, _ := w.prepared(nil).Current(w.issuer.ID)
	w.keys.Away(time.Second)
	w.revoke("05", ca.Superseded, time.Now().Add(time.Hour)) // so that another is called for
	if c, _ := w.prepared(nil).Current(w.issuer.ID); c.Number != first.Number {
		t.Errorf("number %d after %d", c.Number, first.Number)
	}
}

// A builder whose signature hangs tries again when it is told so, under a number
// of its own: the one before may be on a CRL that the device has yet to sign.
func TestAHungSignatureHoldsUpNoCRLForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.prepared(nil)
		defer run(t, s)()
		synctest.Wait()
		before, _ := s.Current(w.issuer.ID)
		hang := w.keys.Hang()
		w.revoke("05", ca.Superseded, time.Now().Add(24*time.Hour))
		s.Trigger(w.issuer.ID)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		tries := w.reserved() - before.Number
		if c, _ := s.Current(w.issuer.ID); c.Number != before.Number || w.keys.Asked() > 25 {
			t.Errorf("number %d after %d, asked %d times", c.Number, before.Number, w.keys.Asked())
		}
		hang.Return()
		time.Sleep(s.cfg.Poll)
		synctest.Wait()
		if c, _ := s.Current(w.issuer.ID); c.Number <= before.Number+tries || !slices.Equal(serials(w.current(s)), []ca.Serial{"05"}) {
			t.Errorf("number %d after %d and %d tries, %v", c.Number, before.Number, tries, serials(w.current(s)))
		}
	})
}

// The same list under the same number does no harm, however often it is signed.
func TestEveryCRLMayBeSignedTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.prepared(nil)
	signed := w.keys.Signed()
	if len(signed) != 1 || !signed[0].Repeatable {
		t.Errorf("%+v", signed)
	}
}

// Each way in which updates fail is told once, until they work again.
func TestEachKindOfTroubleIsToldOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var logs bytes.Buffer
		s := w.prepared(func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&logs, nil)) })
		stop := run(t, s)
		synctest.Wait()
		logs.Reset()
		w.revoke("05", ca.Superseded, time.Now().Add(24*time.Hour))
		for range 10 {
			w.keys.Away(time.Second)
			time.Sleep(time.Minute)
			w.setHeadErr(errors.New("no database"))
			time.Sleep(time.Minute)
			w.setHeadErr(nil)
		}
		w.keys.Back()
		time.Sleep(time.Minute)
		w.setHeadErr(errors.New("no database"))
		time.Sleep(time.Minute)
		stop()
		for line, want := range map[string]int{"waits for the signing device": 1, "tried until it succeeds": 2, "works again": 1} {
			if n := strings.Count(logs.String(), line); n != want {
				t.Errorf("%d times %q, want %d:\n%s", n, line, want, logs.String())
			}
		}
	})
}
