package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ocsp"
	"github.com/secsy-pki/secsy-pki/store"
)

func statusWork(t *testing.T, db *store.DB) {
	o, now := store.NewOCSP(db), statusNow()
	claim := func(holder string, at time.Time, want bool) {
		t.Helper()
		if got, err := o.Claim(t.Context(), "w", holder, at, at.Add(time.Minute)); err != nil || got != want {
			t.Errorf("%s: %v, %v", holder, got, err)
		}
	}
	claim("a", now, true)
	claim("b", now, false)
	claim("a", now.Add(time.Second), true) // for longer
	claim("b", now.Add(time.Minute), false)
	claim("b", now.Add(time.Minute+time.Second), true)
	if err := o.Leave(t.Context(), "w", "a"); err != nil { // not its own any more
		t.Error(err)
	}
	claim("a", now.Add(time.Minute+time.Second), false)
	if err := o.Leave(t.Context(), "w", "b"); err != nil {
		t.Error(err)
	}
	var wg sync.WaitGroup
	var won atomic.Int32
	for i := range 8 {
		wg.Go(func() {
			got, err := o.Claim(t.Context(), "w", fmt.Sprint(i), now, now.Add(time.Minute))
			if err != nil {
				t.Error(err)
			}
			if got {
				won.Add(1)
			}
		})
	}
	wg.Wait()
	if n := won.Load(); n != 1 {
		t.Errorf("%d have the work", n)
	}
}

// statusSigned is a signature about a certificate, of a responder that is there.
func statusSigned(serial ca.Serial, refresh time.Time) ocsp.Ahead {
	return ocsp.Ahead{
		Serial: serial, Responder: "0f", Signature: []byte("signature " + serial), ProducedAt: refresh.Add(-2 * time.Hour),
		ThisUpdate: refresh.Add(-3 * time.Hour), NextUpdate: refresh.Add(time.Hour), RefreshAt: refresh,
	}
}

func statusKept(t *testing.T, o *store.OCSP, h ocsp.Hash, list ...ocsp.Ahead) {
	t.Helper()
	if err := o.Keep(t.Context(), h, list); err != nil {
		t.Fatal(err)
	}
}

func statusAhead(t *testing.T, db *store.DB) {
	o, now := store.NewOCSP(db), statusNow()
	statusIssue(t, db, statusIssuer, "0f", now.Add(time.Hour)) // the responder's
	var list []ocsp.Ahead
	for i := range 250 { // more than one statement
		serial := ca.Serial(fmt.Sprintf("1%05x", i))
		statusIssue(t, db, statusIssuer, serial, now.Add(time.Hour))
		list = append(list, statusSigned(serial, now.Add(time.Duration(i)*time.Second)))
	}
	statusKept(t, o, ocsp.SHA1, list...)
	for _, want := range list {
		got, err := o.Ahead(t.Context(), want.Serial, ocsp.SHA1)
		want.ResponderDER = []byte{2}
		if err != nil || !bytes.Equal(got.Signature, want.Signature) || !bytes.Equal(got.ResponderDER, want.ResponderDER) ||
			got.ProducedAt != want.ProducedAt || got.ThisUpdate != want.ThisUpdate || got.NextUpdate != want.NextUpdate || got.RefreshAt != want.RefreshAt || got.Responder != "0f" {
			t.Fatalf("%+v, %v; want %+v", got, err, want)
		}
	}
	one := list[7].Serial
	if _, err := o.Ahead(t.Context(), one, ocsp.SHA256); !errors.Is(err, ca.ErrNotFound) {
		t.Errorf("by another hash: %v", err)
	}
	again := statusSigned(one, now.Add(time.Hour))
	again.Signature = []byte("newer")
	statusKept(t, o, ocsp.SHA1, again)
	if got, err := o.Ahead(t.Context(), one, ocsp.SHA1); err != nil || string(got.Signature) != "newer" {
		t.Errorf("%+v, %v", got, err)
	}
	due, err := o.Due(t.Context(), ocsp.SHA1, now.Add(5*time.Second), 4)
	if err != nil || len(due) != 4 {
		t.Fatalf("%d due, %v", len(due), err)
	}
	for i, d := range due {
		if d.Serial != list[i].Serial || d.RefreshAt != list[i].RefreshAt || !d.Signed || d.Issuer != statusIssuer || d.Status.State != ca.Issued || d.Status.NotAfter != now.Add(time.Hour) {
			t.Errorf("due %d: %+v", i, d)
		}
	}
	if err := o.PutOff(t.Context(), ocsp.SHA1, []ca.Serial{list[0].Serial}, now.Add(time.Minute)); err != nil {
		t.Error(err)
	}
	if err := o.Drop(t.Context(), ocsp.SHA1, []ca.Serial{list[1].Serial}); err != nil {
		t.Error(err)
	}
	if due, err := o.Due(t.Context(), ocsp.SHA1, now.Add(5*time.Second), 100); err != nil || len(due) != 4 || due[0].Serial != list[2].Serial {
		t.Errorf("%+v, %v", due, err)
	}
}

func statusAheadDue(t *testing.T, db *store.DB) {
	o, now := store.NewOCSP(db), statusNow()
	const leaf ca.Serial = "0a"
	statusIssue(t, db, statusIssuer, leaf, now.Add(time.Hour))
	due := func() []ocsp.Assigned {
		t.Helper()
		list, err := o.Due(t.Context(), ocsp.SHA256, now, 10)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	statusKept(t, o, ocsp.SHA256, statusSigned(leaf, now.Add(time.Hour)))
	if list := due(); len(list) != 0 {
		t.Errorf("due at once: %+v", list)
	}
	statusRevoke(t, db, leaf, now, ca.Superseded)
	list := due()
	if len(list) != 1 || list[0].Serial != leaf || !list[0].Status.RevokedAt.Equal(now) || list[0].Status.Reason != ca.Superseded || list[0].StatusSeq == 0 {
		t.Fatalf("after a revocation: %+v", list)
	}
	seq := list[0].StatusSeq
	made := statusSigned(leaf, now.Add(time.Hour))
	made.StatusSeq = seq
	// Meanwhile it changes once more.
	statusRevoke(t, db, leaf, now, ca.KeyCompromise)
	statusKept(t, o, ocsp.SHA256, made)
	list = due()
	if len(list) != 1 || list[0].StatusSeq <= seq || list[0].Status.Reason != ca.KeyCompromise {
		t.Fatalf("what was signed before a change is not due: %+v", list)
	}
	made.StatusSeq = list[0].StatusSeq
	statusKept(t, o, ocsp.SHA256, made)
	if list := due(); len(list) != 0 {
		t.Errorf("still due: %+v", list)
	}
}

func statusAheadWalk(t *testing.T, db *store.DB) {
	o, now := store.NewOCSP(db), statusNow()
	want := map[ca.Serial]bool{}
	for i := range 25 {
		issuer := statusIssuer
		if i%3 == 0 {
			issuer = statusSibling
		}
		serial := ca.Serial(fmt.Sprintf("2%03x", i*37%25))
		statusIssue(t, db, issuer, serial, now.Add(time.Hour))
		want[serial] = true
	}
	statusBegin(t, db, statusIssuer, "2fff", now.Add(time.Hour))
	want["2fff"] = true
	statusKept(t, o, ocsp.SHA1, statusSigned("2004", now))
	var at ocsp.Place
	for {
		page, err := o.Assigned(t.Context(), ocsp.SHA1, at, 4)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page {
			if !want[c.Serial] {
				t.Errorf("%s twice, or out of nowhere", c.Serial)
			}
			delete(want, c.Serial)
			if c.Signed != (c.Serial == "2004") || (c.Status.State == ca.Pending) != (c.Serial == "2fff") {
				t.Errorf("%+v", c)
			}
			if c.CreatedAt.Before(at.CreatedAt) {
				t.Errorf("%v after %v", c.CreatedAt, at.CreatedAt)
			}
			at = c.Place
		}
		if len(page) < 4 {
			break
		}
	}
	if len(want) != 0 {
		t.Errorf("left out: %v", want)
	}
}
