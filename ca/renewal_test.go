package ca_test

import (
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

func TestWindowsEndAfterTheyBegin(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for life := time.Second; life < 400*24*time.Hour; life = life*3/2 + time.Second {
		life = life.Truncate(time.Second)
		notAfter := begin.Add(life - time.Second)
		w := ca.SuggestedWindow(begin, notAfter)
		if !w.Start.Before(w.End) || w.Start.Before(begin) || w.Start.Nanosecond() != 0 || w.End.Nanosecond() != 0 {
			t.Errorf("%s: %s to %s", life, w.Start, w.End)
		}
		if life > time.Minute && (w.End.After(begin.Add(life*2/3)) || w.Start.Before(begin.Add(life*3/5-time.Second))) {
			t.Errorf("%s: from %s to %s after its begin", life, w.Start.Sub(begin), w.End.Sub(begin))
		}
		r := ca.Record{Certificate: ca.Certificate{NotBefore: begin, NotAfter: notAfter}, RevokedAt: begin.Add(time.Millisecond)}
		if w := r.RenewalWindow(); !w.Start.Before(w.End) || w.End.After(r.RevokedAt) {
			t.Errorf("revoked: %s to %s", w.Start, w.End)
		}
	}
}

func TestIncidentsSelectByAllThatTheySay(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	r := ca.Record{Certificate: ca.Certificate{Issuer: "i", Profile: "p"}, Requester: "r", CreatedAt: at}
	zero := "0000000000000000000000000000000000000000000000000000000000000000"
	for name, c := range map[string]struct {
		sel    ca.Selector
		listed bool
		want   bool
	}{
		"nothing":      {want: false, listed: true},
		"all":          {ca.Selector{Listed: true, Issuer: "i", Profile: "p", SPKIHash: zero, Requester: "r", IssuedAfter: at, IssuedBefore: at.Add(1)}, true, true},
		"not listed":   {ca.Selector{Listed: true, Issuer: "i"}, false, false},
		"issuer":       {ca.Selector{Issuer: "x", Profile: "p"}, false, false},
		"profile":      {ca.Selector{Issuer: "i", Profile: "x"}, false, false},
		"key":          {ca.Selector{Issuer: "i", SPKIHash: "ff"}, false, false},
		"requester":    {ca.Selector{Issuer: "i", Requester: "x"}, false, false},
		"too early":    {ca.Selector{IssuedAfter: at.Add(1)}, false, false},
		"just in time": {ca.Selector{IssuedAfter: at}, false, true},
		"too late":     {ca.Selector{IssuedBefore: at}, false, false},
	} {
		if got := c.sel.Selects(r, c.listed); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
