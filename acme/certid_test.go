package acme

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/ca"
)

// The example of RFC 9773 §4.1: a serial whose first bit is set keeps the octet
// that says that it is positive.
func TestCertIDIsThatOfTheStandard(t *testing.T) {
	t.Parallel()
	keyID, err := hex.DecodeString("69885b6b87464041e1b37b847ba0ae2cde01c8d4")
	if err != nil {
		t.Fatal(err)
	}
	const want = "aYhba4dGQEHhs3uEe6CuLN4ByNQ.AIdlQyE"
	got, err := CertIDOf(keyID, "87654321")
	if err != nil || got != want {
		t.Errorf("%q, %v", got, err)
	}
	id, k, serial, err := parseCertID(want)
	if err != nil || id != want || string(k) != string(keyID) || serial != "87654321" || id.Serial() != "87654321" {
		t.Errorf("%q %x %q, %v", id, k, serial, err)
	}
}

func TestCertIDHasOneWayToBeWritten(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"", ".", "aYhb", "aYhb.", ".AIdl", "aYhb.AIdl.AIdl", "aYhb=.AIdl", "aYhb.AIdlQyE=", "aYhb.AIdlQyF", // stray bits
		"aY+b.AIdl", "aY/b.AIdl", "aYhb.AI\ndl", "aYhb.AIdl\r\n", " aYhb.AIdl",
		"aYhb.AA", "aYhb.AAE", "aYhb.AAAB", "aYhb.h2VDIQ", // zero, needless octets, negative
		strings.Repeat("A", 87) + ".AQ", "aYhb.AQ" + strings.Repeat("A", 28), "aYhb.f" + strings.Repeat("_", 27),
	} {
		if id, _, _, err := parseCertID(s); err == nil {
			t.Errorf("%q is taken for %q", s, id)
		}
	}
}

// FuzzParseCertID: what is taken is written again as it was, so that no two ids
// name one certificate.
func FuzzParseCertID(f *testing.F) {
	for _, s := range []string{"aYhba4dGQEHhs3uEe6CuLN4ByNQ.AIdlQyE", "AA.AQ", "AA.AIA", "AA.AAE", "A.A", "AA==.AQ", "AA.A\nQ"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, keyID, serial, err := parseCertID(s)
		if err != nil {
			return
		}
		n, err := serial.Int()
		if err != nil || n.Sign() <= 0 || ca.SerialOf(n) != serial {
			t.Fatalf("%q has the serial %q: %v", s, serial, err)
		}
		again, err := CertIDOf(keyID, serial)
		if err != nil || string(again) != s || id != again || id.Serial() != serial {
			t.Errorf("%q became %q: %v", s, again, err)
		}
		if len(s) > 120 {
			t.Errorf("%d octets are taken", len(s))
		}
	})
}
