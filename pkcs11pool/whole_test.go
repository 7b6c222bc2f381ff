package pkcs11pool

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"errors"
	"testing"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

// A client library may hand on to the device every question for the length of a
// signature, so none is asked.
func TestASignatureIsOneWayToTheDevice(t *testing.T) {
	t.Parallel()
	p, fault := behindFaults(t, 1)
	for _, c := range []struct {
		alg  keys.Algorithm
		opts crypto.SignerOpts
	}{
		{keys.ECDSAP256, crypto.SHA256},
		{keys.ECDSAP384, crypto.SHA256}, // the digest is shorter than the key
		{keys.RSA2048, crypto.SHA256},
		{keys.RSA2048, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA256}},
		{keys.Ed25519, crypto.Hash(0)},
	} {
		k, err := p.Key(t.Context(), string(c.alg))
		if errors.Is(err, keys.ErrNotFound) {
			k, err = mustGenerate(t, p, string(c.alg), c.alg), nil
		}
		if err != nil {
			t.Fatal(err)
		}
		before := fault.Book(t)
		if err := signs(t.Context(), k, c.opts); err != nil {
			t.Fatalf("%s: %v", c.alg, err)
		}
		after := fault.Book(t)
		for call, want := range map[string]int{"C_SignInit": 1, "C_Sign?length": 0, "C_Sign": 1} {
			if n := after.Functions[call].Calls - before.Functions[call].Calls; n != want {
				t.Errorf("%s: %d calls of %s, want %d", c.alg, n, call, want)
			}
		}
	}
}

// What failed at its beginning was not done: all is as before, and the next
// attempt is free. What failed at its end may have been done.
func TestOnlyASignatureThatBeganMayHaveBeenMade(t *testing.T) {
	t.Parallel()
	p, fault := behindFaults(t, 1)
	k := mustGenerate(t, p, "k", keys.ECDSAP256)
	sign := func() error { return signs(t.Context(), k, crypto.SHA256) }
	fault.Script(t, "C_SignInit 1 return 0x30")
	if err := sign(); err != nil {
		t.Errorf("after a beginning that failed: %v", err)
	}
	fault.Script(t, "C_SignInit 1-3 return 0x30")
	if err := sign(); !errors.Is(err, keys.ErrBusy) {
		t.Errorf("three beginnings failed: %v, want a *keys.BusyError", err)
	}
	fault.Script(t, "C_Sign 1 return 0x30")
	if err := sign(); errors.Is(err, keys.ErrBusy) || !isCode(err, pkcs11.CKR_DEVICE_ERROR) {
		t.Errorf("the end failed: %v, want the device's error", err)
	}
}

// Nobody waits for a call any more that has taken too long, and the handle may be
// another session's: nothing more is done with it.
func TestNothingIsSignedAfterABeginningThatHung(t *testing.T) {
	t.Parallel()
	fault, tokens := hsm.Fault(t, 1)
	p := openPool(t, Config{CallTimeout: 2 * time.Second}, tokens...) // which nothing takes but the call that hangs
	k := mustGenerate(t, p, "k", keys.ECDSAP256)
	before := fault.Book(t).Functions["C_Sign"].Calls
	fault.Script(t, "C_SignInit 1 hang")
	err := signs(t.Context(), k, crypto.SHA256)
	hung, ok := errors.AsType[*keys.HungError](err)
	if !ok {
		t.Fatalf("%v, want a *keys.HungError", err)
	}
	fault.Script(t)
	<-hung.Returned
	if n := fault.Book(t).Functions["C_Sign"].Calls; n != before {
		t.Errorf("%d signatures were made for nobody", n-before)
	}
}

func TestASignatureThatIsLongerThanItsRoomIsNonsense(t *testing.T) {
	t.Parallel()
	p, fault := behindFaults(t, 1)
	k := mustGenerate(t, p, "k", keys.ECDSAP256)
	fault.Script(t, "C_Sign 1 overlong")
	if err := signs(t.Context(), k, crypto.SHA256); !errors.Is(err, errNonsense) || errors.Is(err, keys.ErrBusy) {
		t.Errorf("got %v", err)
	}
	if err := signs(t.Context(), k, crypto.SHA256); err != nil {
		t.Error(err)
	}
}

// That error alone leaves an operation half done: the next job would fall over it.
func TestASessionWithASignatureThatDidNotFitIsNotLentAgain(t *testing.T) {
	t.Parallel()
	p, _ := behindFaults(t, 1)
	k := mustGenerate(t, p, "k", keys.ECDSAP256)
	digest := sha256.Sum256([]byte("message"))
	err := p.do(t.Context(), &job{op: "signing", run: func(c *conn) error {
		at, err := keyOf(k).at(c)
		if err != nil {
			return err
		}
		_, begin, end := c.cryptoki.(*calls).SignWhole(c.session, mechECDSA[0], at.handle, digest[:], make([]byte, 63))
		c.effect = true
		return errors.Join(begin, end)
	}})
	if !isCode(err, pkcs11.CKR_BUFFER_TOO_SMALL) {
		t.Fatal(err)
	}
	for range 2 * p.Capacity() { // each session, whichever comes first
		if err := signs(t.Context(), k, crypto.SHA256); err != nil {
			t.Error(err)
		}
	}
	if s := p.Stat().Tokens[0]; s.Errors["session"] != 0 || s.Errors["suspect"] != 1 {
		t.Errorf("errors by class: %v, want the one", s.Errors)
	}
}
