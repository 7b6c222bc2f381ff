package pkcs11pool

import (
	"bytes"
	"crypto/elliptic"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

func mustMaking(tb testing.TB, text string, alg keys.Algorithm, o GenerateOptions) making {
	tb.Helper()
	m, err := newMaking(text, alg, o)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

func valueOf(t []*pkcs11.Attribute, attribute uint) []byte {
	for _, a := range t {
		if a.Type == attribute {
			return a.Value
		}
	}
	return nil
}

// Whatever a token does not understand is left out, but never what keeps the key
// on it.
func TestNoWordsMakeAKeyThatCanLeave(t *testing.T) {
	t.Parallel()
	for _, words := range []verbosity{everything, common, least} {
		for _, alg := range algorithms {
			m := mustMaking(t, "k", alg, GenerateOptions{})
			private := m.privateTemplate([]byte{1}, words)
			for attribute, want := range map[uint][]byte{
				pkcs11.CKA_TOKEN: bit(true), pkcs11.CKA_PRIVATE: bit(true), pkcs11.CKA_SENSITIVE: bit(true), pkcs11.CKA_EXTRACTABLE: bit(false),
				pkcs11.CKA_SIGN: bit(true), pkcs11.CKA_LABEL: []byte("k"), pkcs11.CKA_ID: {1},
			} {
				if got := valueOf(private, attribute); !bytes.Equal(got, want) {
					t.Errorf("%s, verbosity %d: attribute %#x is %x, want %x", alg, words, attribute, got, want)
				}
			}
			if d := valueOf(private, pkcs11.CKA_DECRYPT); yes(d) || words < least && d == nil {
				t.Errorf("%s, verbosity %d: may decrypt: %x", alg, words, d)
			}
		}
		m := mustMaking(t, "k", keys.RSA2048, GenerateOptions{Decrypt: true})
		if !yes(valueOf(m.privateTemplate(nil, words), pkcs11.CKA_DECRYPT)) {
			t.Errorf("verbosity %d: a key to decrypt with can't", words)
		}
	}
}

func TestATokenThatKnowsFewWordsIsAskedInFewer(t *testing.T) {
	t.Parallel()
	for _, code := range []uint{pkcs11.CKR_ATTRIBUTE_TYPE_INVALID, pkcs11.CKR_ATTRIBUTE_VALUE_INVALID, pkcs11.CKR_TEMPLATE_INCONSISTENT, pkcs11.CKR_ATTRIBUTE_READ_ONLY} {
		for refused, calls := range map[uint]int{pkcs11.CKA_COPYABLE: 2, pkcs11.CKA_DERIVE: 3} {
			p, _ := loggingPool()
			s := newShelf()
			s.refuse = func(private []*pkcs11.Attribute) error {
				if valueOf(private, refused) != nil {
					return pkcs11.Error(code)
				}
				return nil
			}
			c := s.conn()
			got, err := p.create(c, mustMaking(t, "k", keys.ECDSAP256, GenerateOptions{}), []byte{1})
			if err != nil || got.fault != nil || got.at.handle == 0 || s.calls["GenerateKeyPair"] != calls {
				t.Errorf("attribute %#x refused by %#x: %+v, %v after %d calls, want %d", refused, code, got, err, s.calls["GenerateKeyPair"], calls)
			}
		}
	}
	s := newShelf()
	s.refuse = func([]*pkcs11.Attribute) error { return pkcs11.Error(pkcs11.CKR_TEMPLATE_INCONSISTENT) }
	p, _ := loggingPool()
	c := s.conn()
	if got, err := p.create(c, mustMaking(t, "k", keys.Ed25519, GenerateOptions{}), []byte{1}); err == nil || c.effect || s.calls["GenerateKeyPair"] != 9 {
		t.Errorf("a token that refuses all words: %+v, %v, effect %v, %d calls", got, err, c.effect, s.calls["GenerateKeyPair"])
	}
}

// An error that leaves open whether there is a key now is not met by making another.
func TestADeviceErrorMakesNoSecondKey(t *testing.T) {
	t.Parallel()
	for _, code := range []uint{pkcs11.CKR_DEVICE_ERROR, pkcs11.CKR_GENERAL_ERROR, pkcs11.CKR_FUNCTION_FAILED, pkcs11.CKR_SESSION_HANDLE_INVALID} {
		s := newShelf()
		s.fails["GenerateKeyPair"] = pkcs11.Error(code)
		p, _ := loggingPool()
		c := s.conn()
		if got, err := p.create(c, mustMaking(t, "k", keys.ECDSAP256, GenerateOptions{}), []byte{1}); !errors.Is(err, pkcs11.Error(code)) || !c.effect || s.calls["GenerateKeyPair"] != 1 {
			t.Errorf("%#x: %+v, %v, effect %v, %d calls", code, got, err, c.effect, s.calls["GenerateKeyPair"])
		}
	}
}

// A code that says that nothing was done is of the call after.
func TestAKeyThatWasMadeIsNotSaidNotToBe(t *testing.T) {
	t.Parallel()
	s := newShelf()
	s.fails["GetAttributeValue"] = pkcs11.Error(pkcs11.CKR_SESSION_HANDLE_INVALID)
	s.fails["DestroyObject"] = s.fails["GetAttributeValue"]
	p, _ := loggingPool()
	c := s.conn()
	_, err := p.create(c, mustMaking(t, "k", keys.ECDSAP256, GenerateOptions{}), []byte{1})
	if err == nil || meaningOf(err).idle || !c.effect || !strings.Contains(err.Error(), "a key was made") {
		t.Errorf("got %v", err)
	}
}

func TestAKeyThatCanNotBeLookedAtIsDestroyed(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"GetAttributeValue", "FindObjects"} {
		s := newShelf()
		s.fails[call] = pkcs11.Error(pkcs11.CKR_DEVICE_ERROR)
		p, _ := loggingPool()
		c := s.conn()
		_, err := p.create(c, mustMaking(t, "k", keys.ECDSAP256, GenerateOptions{}), []byte{1})
		if !errors.Is(err, s.fails[call]) || c.effect || slices.ContainsFunc(s.objects, func(v values) bool { return v != nil }) {
			t.Errorf("%s: %v, effect %v, left %v", call, err, c.effect, s.objects)
		}
	}
}

func TestAKeyThatIsNotWhatWasAskedForIsDestroyed(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(public, private values){
		"not sensitive":        func(_, v values) { v[pkcs11.CKA_SENSITIVE] = bit(false) },
		"extractable":          func(_, v values) { v[pkcs11.CKA_EXTRACTABLE] = bit(true) },
		"extractable, untold":  func(_, v values) { delete(v, pkcs11.CKA_EXTRACTABLE) },
		"once extractable":     func(_, v values) { v[pkcs11.CKA_NEVER_EXTRACTABLE] = bit(false) },
		"of another curve":     func(v, _ values) { maps.Copy(v, publicValues(newPrivate(elliptic.P521()).Public())) },
		"not for signing":      func(_, v values) { v[pkcs11.CKA_SIGN] = bit(false) },
		"without a public key": func(v, _ values) { delete(v, pkcs11.CKA_EC_POINT) },
	} {
		s := newShelf()
		s.made = change
		p, _ := loggingPool()
		got, err := p.create(s.conn(), mustMaking(t, "k", keys.ECDSAP256, GenerateOptions{}), []byte{1})
		if err != nil || got.fault == nil || got.at != nil || errors.Is(got.fault, keys.ErrExists) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if slices.ContainsFunc(s.objects, func(v values) bool { return v != nil }) {
			t.Errorf("%s: it is still there", name)
		}
		s = newShelf()
		s.made, s.fails["DestroyObject"] = change, pkcs11.Error(pkcs11.CKR_DEVICE_ERROR)
		if got, err := p.create(s.conn(), mustMaking(t, "k", keys.ECDSAP256, GenerateOptions{}), []byte{1}); !errors.Is(err, s.fails["DestroyObject"]) {
			t.Errorf("%s, and can't be destroyed: %+v, %v", name, got, err)
		}
	}
}

// Another process may make a key of the label between looking and making. Whoever
// sees it gives way, whichever ID is smaller: the other may have seen nobody, and
// have certified its key since.
func TestWhoSeesAnotherKeyOfTheLabelGivesWay(t *testing.T) {
	t.Parallel()
	for _, other := range [][]byte{{0}, {9}} {
		p, _ := loggingPool()
		s := newShelf()
		theirs := s.put(privateValues(pkcs11.CKK_EC, "k", other))
		got, err := p.create(s.conn(), mustMaking(t, "k", keys.ECDSAP256, GenerateOptions{}), []byte{5})
		if err != nil || !errors.Is(got.fault, errContested) {
			t.Errorf("%+v, %v", got, err)
		}
		for i, v := range s.objects {
			if (v != nil) != (i+1 == int(theirs)) {
				t.Errorf("object %d: %v", i+1, v)
			}
		}
	}
}

func TestNoKeyIsMadeOfWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		alg  keys.Algorithm
		o    GenerateOptions
	}{
		{"k", "rot-13", GenerateOptions{}},
		{"k", keys.ECDSAP256, GenerateOptions{Decrypt: true}},
		{"k", keys.Ed25519, GenerateOptions{Decrypt: true}},
		{"pkcs11:id=%01", keys.ECDSAP256, GenerateOptions{}},
		{"", keys.ECDSAP256, GenerateOptions{}},
		{"a\x00b", keys.ECDSAP256, GenerateOptions{}},
		{"pkcs11:object=k;type=public", keys.ECDSAP256, GenerateOptions{}},
	} {
		if m, err := newMaking(c.text, c.alg, c.o); err == nil {
			t.Errorf("%+v", m)
		}
	}
}

func TestALabelOrIDThatIsTakenIsNotVacant(t *testing.T) {
	t.Parallel()
	for text, taken := range map[string]bool{
		"k": true, "pkcs11:object=k;id=%02": true, "pkcs11:object=other;id=%01": true, "other": false, "pkcs11:object=other;id=%02": false,
	} {
		p, _ := loggingPool()
		s := newShelf()
		s.put(privateValues(pkcs11.CKK_EC, "k", []byte{1}))
		why, err := p.isVacant(s.conn(), mustMaking(t, text, keys.ECDSAP256, GenerateOptions{}))
		if err != nil || errors.Is(why, keys.ErrExists) != taken || !taken && why != nil {
			t.Errorf("%s: %v, %v", text, why, err)
		}
	}
}
