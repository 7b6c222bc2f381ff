package crl

import (
	"bytes"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

func TestTheOctetsOfAListAreThoseThatAreServed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.revoke("05", ca.Superseded, time.Now())
	s := w.prepared(nil)
	want := w.der(s)
	if got, err := s.DER(t.Context(), w.issuer.ID, len(want)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d octets, %v; want %d", len(got), err, len(want))
	}
	for name, got := range map[string]func() ([]byte, error){
		"a long one":       func() ([]byte, error) { return s.DER(t.Context(), w.issuer.ID, len(want)-1) },
		"another issuer's": func() ([]byte, error) { return s.DER(t.Context(), "nobody", len(want)) },
		"not built yet":    func() ([]byte, error) { return w.server(nil).DER(t.Context(), w.issuer.ID, len(want)) },
	} {
		if der, err := got(); der != nil || err != nil {
			t.Errorf("%s: %d octets, %v", name, len(der), err)
		}
	}
}
