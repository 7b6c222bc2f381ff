package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/store"
)

// SCEP is the suite of the tables of SCEP.
func SCEP(t *testing.T, open func(t *testing.T) *store.DB) {
	t.Run("LaterEndingRegistrationWins", func(t *testing.T) {
		t.Parallel()
		scepRegistration(t, open(t))
	})
}

func scepRegistration(t *testing.T, db *store.DB) {
	s, end := store.NewSCEP(db), statusNow()
	key, other := [32]byte{1}, [32]byte{2}
	save := func(spki [32]byte, der string, notAfter time.Time) {
		t.Helper()
		if err := s.SaveRegistration(t.Context(), statusIssuer, spki, []byte(der), notAfter); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(spki [32]byte, want string) {
		t.Helper()
		if der, err := s.Registration(t.Context(), statusIssuer, spki); err != nil || string(der) != want {
			t.Errorf("%q, %v; want %q", der, err, want)
		}
	}
	if _, err := s.Registration(t.Context(), statusIssuer, key); !errors.Is(err, ca.ErrNotFound) {
		t.Errorf("before the first: %v", err)
	}
	save(key, "first", end)
	save(other, "other", end)
	expect(key, "first")
	save(key, "second", end.Add(time.Hour))
	save(key, "late", end.Add(time.Minute)) // a slow replica's
	expect(key, "second")
	expect(other, "other")
	if _, err := s.Registration(t.Context(), statusSibling, key); !errors.Is(err, ca.ErrNotFound) {
		t.Errorf("another issuer's: %v", err)
	}
}
