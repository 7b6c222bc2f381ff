package crl

import (
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

func TestOperatorSeesWhatIsServed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.revoke("05", ca.Superseded, time.Now().Add(time.Hour))
	s := w.server(nil)
	if list := s.Status(); len(list) != 1 || list[0].CRL.Number != 0 || list[0].Path != "/crl/"+string(w.issuer.ID)+".crl" {
		t.Errorf("before there is one: %+v", list)
	}
	if err := s.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, _ := s.Current(w.issuer.ID)
	st := s.Status()[0]
	if st.CRL != c || st.SHA256 != sha256.Sum256(w.der(s)) || st.Issuer != w.issuer || st.Building || st.Trouble != "" {
		t.Errorf("%+v, want %+v", st, c)
	}
	if rec := get(s, "GET", st.Path); rec.Body.Len() != int(st.CRL.Octets) {
		t.Errorf("%d octets at %s", rec.Body.Len(), st.Path)
	}
}

func TestOperatorSeesHowFarABuildIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.revoke("05", ca.Superseded, time.Now().Add(time.Hour))
	w.revoke("06", ca.Superseded, time.Now().Add(time.Hour))
	s := w.server(nil)
	hold := w.keys.Hold()
	done := make(chan error, 1)
	go func() { done <- s.Prepare(t.Context()) }()
	<-hold.Arrived
	if st := s.Status()[0]; !st.Building || st.Read != 2 || st.CRL.Number != 0 {
		t.Errorf("%+v", st)
	}
	hold.Release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if st := s.Status()[0]; st.Building {
		t.Errorf("%+v", st)
	}
}

// A CRL that an operator wants is built though nothing has changed, once, and
// does not count as scheduled: what had expired stays for one that is.
func TestOperatorHasACRLBuilt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.prepared(nil)
		defer run(t, s)()
		synctest.Wait()
		first := s.Status()[0].CRL.Number
		s.Rebuild("nobody")
		time.Sleep(time.Minute)
		if st := s.Status()[0]; st.CRL.Number != first {
			t.Errorf("number %d after %d", st.CRL.Number, first)
		}
		w.setHeadErr(errors.New("no database"))
		s.Rebuild(w.issuer.ID)
		time.Sleep(time.Minute)
		if st := s.Status()[0]; !strings.Contains(st.Trouble, "no database") || st.CRL.Number != first {
			t.Errorf("%+v", st)
		}
		w.setHeadErr(nil)
		time.Sleep(time.Minute)
		second := s.Status()[0]
		if second.CRL.Number <= first || second.Trouble != "" || w.scopeLocked(second.Scope).scheduled.Number != first {
			t.Errorf("%+v after number %d", second, first)
		}
		time.Sleep(time.Hour)
		if st := s.Status()[0]; st.CRL.Number != second.CRL.Number {
			t.Errorf("number %d after %d", st.CRL.Number, second.CRL.Number)
		}
	})
}
