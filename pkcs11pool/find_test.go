package pkcs11pool

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

func mustRef(tb testing.TB, text string) ref {
	tb.Helper()
	r, err := parseRef(text)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func TestAReferenceIsALabelOrAURI(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text, label string
		id          []byte
	}{
		{"issuing", "issuing", nil},
		{"Ausgabe 2026 (ä)", "Ausgabe 2026 (ä)", nil},
		{"pkcs11:object=issuing", "issuing", nil},
		{"PKCS11:object=issuing;type=private;id=%01%ff", "issuing", []byte{1, 0xff}},
		{"pkcs11:id=%01", "", []byte{1}},
		{strings.Repeat("x", 64), strings.Repeat("x", 64), nil},
	} {
		if r, err := parseRef(c.text); err != nil || r.label != c.label || !bytes.Equal(r.id, c.id) || r.text != c.text {
			t.Errorf("%q: label %q, id %x, %v", c.text, r.label, r.id, err)
		}
	}
	for _, text := range []string{
		"", strings.Repeat("x", 65), "a\nb", "\xff", "pkcs11:", "pkcs11:token=a", "pkcs11:object=a;type=cert", "pkcs11:object=a%0a",
		"pkcs11:id=" + strings.Repeat("%01", 65), "pkcs11:object=" + strings.Repeat("x", 65),
	} {
		if r, err := parseRef(text); err == nil {
			t.Errorf("%q was read as %+v", text, r)
		}
	}
}

func TestASearchIsEndedAlsoAfterAnError(t *testing.T) {
	t.Parallel()
	lost := pkcs11.Error(pkcs11.CKR_DEVICE_ERROR)
	s := newShelf()
	for range maxMatches + 1 {
		s.put(privateValues(pkcs11.CKK_EC, "many", nil))
	}
	template := ref{label: "many"}.template()
	if found, err := find(s.conn(), template, maxMatches); !errors.Is(err, errTooMany) || found != nil || s.searching {
		t.Errorf("more than the limit: %v, %v, search open %v", found, err, s.searching)
	}
	if found, err := find(s.conn(), template, maxMatches+1); err != nil || len(found) != maxMatches+1 || s.searching {
		t.Errorf("as many as the limit: %v, %v, search open %v", found, err, s.searching)
	}
	s.fails["FindObjects"] = lost
	if found, err := find(s.conn(), template, maxMatches); !errors.Is(err, lost) || found != nil || s.searching {
		t.Errorf("an error while searching: %v, %v, search open %v", found, err, s.searching)
	}
	delete(s.fails, "FindObjects")
	s.fails["FindObjectsFinal"] = lost
	if found, err := find(s.conn(), template, maxMatches+1); !errors.Is(err, lost) || found != nil {
		t.Errorf("a search that can't be ended: %v, %v", found, err)
	}
}

func TestOneMissingAttributeHidesNoOther(t *testing.T) {
	t.Parallel()
	s := newShelf()
	o := s.put(values{pkcs11.CKA_LABEL: []byte("a"), pkcs11.CKA_ID: {1}, pkcs11.CKA_VALUE: make([]byte, maxAttribute+1), pkcs11.CKA_SUBJECT: nil})
	a, err := attributes(s.conn(), o, pkcs11.CKA_LABEL, pkcs11.CKA_COPYABLE, pkcs11.CKA_ID, pkcs11.CKA_VALUE, pkcs11.CKA_SUBJECT)
	if err != nil || len(a) != 2 || string(a[pkcs11.CKA_LABEL]) != "a" || !bytes.Equal(a[pkcs11.CKA_ID], []byte{1}) {
		t.Errorf("%v, %v", a, err)
	}
	s.fails["GetAttributeValue"] = pkcs11.Error(pkcs11.CKR_SESSION_HANDLE_INVALID)
	if a, err := attributes(s.conn(), o, pkcs11.CKA_LABEL, pkcs11.CKA_ID); err == nil {
		t.Errorf("a dead session has attributes: %v", a)
	}
}

// Whatever order a token lists them in, as replicas must agree.
func TestOfSeveralKeysTheSmallestIDIsTaken(t *testing.T) {
	t.Parallel()
	ids := [][]byte{{2}, {1, 0}, {1}, {1, 0, 0}}
	pubs := map[string]crypto.PublicKey{}
	for _, id := range ids {
		pubs[string(id)] = newPrivate(elliptic.P256()).Public()
	}
	for range len(ids) {
		ids = append(ids[1:], ids[0])
		p, log := loggingPool()
		s := newShelf()
		for _, id := range ids {
			s.put(privateValues(pkcs11.CKK_EC, "k", id))
			s.put(publicValues(pubs[string(id)]).with(values{pkcs11.CKA_ID: id}))
		}
		at, err := p.lookUp(s.conn(), mustRef(t, "k"))
		if err != nil || at.why != nil || !bytes.Equal(at.id, []byte{1}) || !samePublic(at.public, pubs["\x01"]) {
			t.Fatalf("%x first: %+v, %v", ids[0], at, err)
		}
		if !strings.Contains(log.String(), "ids=\"[01 0100 010000 02]\"") {
			t.Errorf("the warning does not name the IDs: %s", log)
		}
		if at, err := p.lookUp(s.conn(), mustRef(t, "pkcs11:object=k;id=%02")); err != nil || !samePublic(at.public, pubs["\x02"]) {
			t.Errorf("by its ID: %+v, %v", at, err)
		}
	}
	p, _ := loggingPool()
	s := newShelf()
	for range 2 {
		s.put(publicValues(newPrivate(elliptic.P256()).Public()).with(privateValues(pkcs11.CKK_EC, "k", []byte{1})))
	}
	if at, err := p.lookUp(s.conn(), mustRef(t, "k")); err != nil || at.why == nil || errors.Is(at.why, keys.ErrNotFound) {
		t.Errorf("two keys that can't be told apart: %+v, %v", at, err)
	}
	for range maxMatches {
		s.put(privateValues(pkcs11.CKK_EC, "k", []byte{2}))
	}
	if at, err := p.lookUp(s.conn(), mustRef(t, "k")); err != nil || at.why == nil || errors.Is(at.why, keys.ErrNotFound) {
		t.Errorf("more keys than are looked at: %+v, %v", at, err)
	}
}

func TestAURIThatNamesAnotherTokenFindsNothing(t *testing.T) {
	t.Parallel()
	p, _ := loggingPool()
	s := newShelf()
	s.info = pkcs11.TokenInfo{Label: "hsm", SerialNumber: "42", ManufacturerID: "ACME", Model: "M1"}
	pub := newPrivate(elliptic.P256()).Public()
	s.put(privateValues(pkcs11.CKK_EC, "k", nil).with(values{pkcs11.CKA_EC_PARAMS: paramsP256, pkcs11.CKA_EC_POINT: octets(pointOf(pub.(*ecdsa.PublicKey)))}))
	for text, there := range map[string]bool{
		"pkcs11:object=k;token=hsm;serial=42;manufacturer=ACME;model=M1": true,
		"pkcs11:object=k;token=other":                                    false,
		"pkcs11:object=k;serial=4":                                       false,
		"pkcs11:object=k;manufacturer=A":                                 false,
		"pkcs11:object=k;model=M2":                                       false,
	} {
		at, err := p.lookUp(s.conn(), mustRef(t, text))
		if err != nil || (at.why == nil) != there || !there && !errors.Is(at.why, keys.ErrNotFound) {
			t.Errorf("%s: %+v, %v", text, at, err)
		}
	}
}

func TestThePublicKeyIsFoundWhereverTheTokenHasIt(t *testing.T) {
	t.Parallel()
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, signer := range []crypto.Signer{newPrivate(elliptic.P256()), newPrivate(elliptic.P384()), newPrivate(elliptic.P521()), rsaKey(), ed} {
		pub := signer.Public()
		kind, id := kindOf(pub), []byte{7}
		spki, err := x509.MarshalPKIXPublicKey(pub)
		if err != nil {
			t.Fatal(err)
		}
		own := publicValues(pub)
		delete(own, pkcs11.CKA_CLASS)
		cert := values{pkcs11.CKA_CLASS: ulong(pkcs11.CKO_CERTIFICATE), pkcs11.CKA_TOKEN: bit(true), pkcs11.CKA_ID: id, pkcs11.CKA_VALUE: newCertificate(t, signer, "k").Raw}
		stranger := publicValues(newPrivate(elliptic.P256()).Public()).with(values{pkcs11.CKA_ID: {8}, pkcs11.CKA_LABEL: []byte("k")})
		for name, objects := range map[string][]values{
			"its own attributes":           {privateValues(kind, "k", id).with(own)},
			"its own attributes first":     {privateValues(kind, "k", id).with(own), stranger.with(values{pkcs11.CKA_ID: id})},
			"its own SubjectPublicKeyInfo": {privateValues(kind, "k", id).with(values{pkcs11.CKA_PUBLIC_KEY_INFO: spki})},
			"an object of its ID":          {privateValues(kind, "k", id), publicValues(pub).with(values{pkcs11.CKA_ID: id}), stranger},
			"the object's SPKI": {privateValues(kind, "k", id), {
				pkcs11.CKA_CLASS: ulong(pkcs11.CKO_PUBLIC_KEY), pkcs11.CKA_TOKEN: bit(true), pkcs11.CKA_KEY_TYPE: ulong(kind),
				pkcs11.CKA_ID: id, pkcs11.CKA_PUBLIC_KEY_INFO: spki,
			}},
			"two objects that agree":       {privateValues(kind, "k", id), publicValues(pub).with(values{pkcs11.CKA_ID: id}), publicValues(pub).with(values{pkcs11.CKA_ID: id})},
			"an object of its label":       {privateValues(kind, "k", nil), publicValues(pub).with(values{pkcs11.CKA_LABEL: []byte("k")})},
			"a certificate":                {privateValues(kind, "k", id), cert},
			"a certificate after a broken": {privateValues(kind, "k", id), publicValues(pub).with(values{pkcs11.CKA_ID: id, pkcs11.CKA_MODULUS: {1}, pkcs11.CKA_EC_POINT: {4}}), cert},
		} {
			p, _ := loggingPool()
			s := newShelf()
			for _, v := range objects {
				s.put(v)
			}
			at, err := p.lookUp(s.conn(), mustRef(t, "k"))
			if err != nil || at.why != nil || !samePublic(at.public, pub) {
				t.Errorf("%s in %s: %+v, %v", nameOf(pub), name, at, err)
			}
		}
	}
}

func TestWithoutOnePublicKeyThereIsNone(t *testing.T) {
	t.Parallel()
	id := []byte{7}
	beside := func() values {
		return publicValues(newPrivate(elliptic.P256()).Public()).with(values{pkcs11.CKA_ID: id})
	}
	odd := newPrivate(elliptic.P224())
	spki, err := x509.MarshalPKIXPublicKey(odd.Public())
	if err != nil {
		t.Fatal(err)
	}
	for want, objects := range map[string][]values{
		"nowhere":                nil,
		"two public keys":        {beside(), beside(), beside()},
		"not on its curve":       {beside().with(values{pkcs11.CKA_EC_POINT: octets(append([]byte{4}, make([]byte, 64)...))})},
		"P-224, which is not":    {{pkcs11.CKA_CLASS: ulong(pkcs11.CKO_PUBLIC_KEY), pkcs11.CKA_TOKEN: bit(true), pkcs11.CKA_KEY_TYPE: ulong(pkcs11.CKK_EC), pkcs11.CKA_ID: id, pkcs11.CKA_PUBLIC_KEY_INFO: spki}},
		"certificate that can't": {{pkcs11.CKA_CLASS: ulong(pkcs11.CKO_CERTIFICATE), pkcs11.CKA_TOKEN: bit(true), pkcs11.CKA_ID: id, pkcs11.CKA_VALUE: {0x30}}},
	} {
		p, _ := loggingPool()
		s := newShelf()
		s.put(privateValues(pkcs11.CKK_EC, "k", id))
		for _, v := range objects {
			s.put(v)
		}
		at, err := p.lookUp(s.conn(), mustRef(t, "k"))
		if err != nil || at.why == nil || !strings.Contains(at.why.Error(), want) {
			t.Errorf("want %q: %+v, %v", want, at, err)
		}
	}
}

func TestWhatCanNotBeUsedIsSaid(t *testing.T) {
	t.Parallel()
	pub := newPrivate(elliptic.P384()).Public()
	usable := func() values { return publicValues(pub).with(privateValues(pkcs11.CKK_EC, "k", nil)) }
	for want, c := range map[string]struct {
		key  values
		lack []uint
	}{
		"type 0x1": {usable().with(values{pkcs11.CKA_KEY_TYPE: ulong(pkcs11.CKK_DSA)}), nil},
		"CKA_SIGN": {usable().with(values{pkcs11.CKA_SIGN: bit(false)}), nil},
		"can't sign with ecdsa-p384: it lacks CKM_ECDSA": {usable(), []uint{pkcs11.CKM_ECDSA}},
	} {
		p, _ := loggingPool()
		s := newShelf()
		for _, m := range c.lack {
			delete(s.mechanisms, m)
		}
		s.put(c.key)
		at, err := p.lookUp(s.conn(), mustRef(t, "k"))
		if err != nil || at.why == nil || !strings.Contains(at.why.Error(), want) {
			t.Errorf("want %q: %+v, %v", want, at, err)
		}
	}
}

func TestACertificateOfAnotherKeyIsNotListedBesideAKey(t *testing.T) {
	t.Parallel()
	own, other, id := newPrivate(elliptic.P256()), newPrivate(elliptic.P256()), []byte{1}
	certificate := func(k crypto.Signer) values {
		return values{pkcs11.CKA_CLASS: ulong(pkcs11.CKO_CERTIFICATE), pkcs11.CKA_TOKEN: bit(true), pkcs11.CKA_ID: id, pkcs11.CKA_VALUE: newCertificate(t, k, "k").Raw}
	}
	s := newShelf()
	o := s.put(publicValues(own.Public()).with(privateValues(pkcs11.CKK_EC, "k", id)))
	s.put(certificate(other))
	if object, err := readObject(s.conn(), o); err != nil || object.Certificate != nil {
		t.Errorf("%+v, %v", object, err)
	}
	s.put(certificate(own))
	if object, err := readObject(s.conn(), o); err != nil || object.Certificate == nil || !samePublic(object.Certificate.PublicKey, own.Public()) {
		t.Errorf("%+v, %v", object, err)
	}
}

// A token hides its private keys from a session that is not logged in any more,
// and has no error for that.
func TestALostLoginIsNotTakenForLostKeys(t *testing.T) {
	t.Parallel()
	p, _ := loggingPool()
	s := newShelf()
	c := s.conn()
	c.token.private.Store(true)
	for state, lost := range map[uint]bool{pkcs11.CKS_RO_PUBLIC_SESSION: true, pkcs11.CKS_RW_PUBLIC_SESSION: true, pkcs11.CKS_RO_USER_FUNCTIONS: false, pkcs11.CKS_RW_USER_FUNCTIONS: false} {
		s.state = state
		at, err := p.lookUp(c, mustRef(t, "k"))
		if isCode(err, pkcs11.CKR_USER_NOT_LOGGED_IN) != lost || !lost && !errors.Is(at.why, keys.ErrNotFound) {
			t.Errorf("state %d: %+v, %v", state, at, err)
		}
	}
}

// A token that does not answer says nothing about its keys.
func TestAFaultWhileLookingIsNoAnswer(t *testing.T) {
	t.Parallel()
	lost := pkcs11.Error(pkcs11.CKR_DEVICE_ERROR)
	for _, call := range []string{"GetTokenInfo", "GetMechanismList", "GetMechanismInfo", "FindObjectsInit", "FindObjects", "FindObjectsFinal", "GetAttributeValue"} {
		p, _ := loggingPool()
		s := newShelf()
		s.fails[call] = lost
		s.put(publicValues(newPrivate(elliptic.P256()).Public()).with(privateValues(pkcs11.CKK_EC, "k", nil)))
		if at, err := p.lookUp(s.conn(), mustRef(t, "k")); !errors.Is(err, lost) {
			t.Errorf("%s: %+v, %v", call, at, err)
		}
	}
}

func TestPointsAreReadBareAndWrapped(t *testing.T) {
	t.Parallel()
	for _, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		pub := newPrivate(curve).Public().(*ecdsa.PublicKey)
		for _, point := range [][]byte{pointOf(pub), octets(pointOf(pub))} {
			if got, err := ecPublic(paramsOf(curve), point); err != nil || !pub.Equal(got) {
				t.Errorf("%s: %v", curve.Params().Name, err)
			}
			if got, err := ecPublic(paramsOf(curve), point[:len(point)-1]); err == nil {
				t.Errorf("%s: a point that is cut short is %v", curve.Params().Name, got)
			}
			bent := bytes.Clone(point)
			bent[len(bent)-1] ^= 1
			if got, err := ecPublic(paramsOf(curve), bent); err == nil {
				t.Errorf("%s: a point off the curve is %v", curve.Params().Name, got)
			}
		}
	}
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, params := range paramsEd25519 {
		for _, point := range [][]byte{pub, octets(pub)} {
			if got, err := ecPublic(params, point); err != nil || !pub.Equal(got) {
				t.Errorf("Ed25519 as %x: %v", params, err)
			}
		}
	}
	for name, params := range map[string][]byte{
		"P-224": {0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x21}, "none": nil, "explicit": {0x30, 0x01, 0x02}, "Ed448": {0x06, 0x03, 0x2b, 0x65, 0x71},
	} {
		if got, err := ecPublic(params, octets(pointOf(newPrivate(elliptic.P224()).Public().(*ecdsa.PublicKey)))); err == nil {
			t.Errorf("curve %s: %v", name, got)
		}
	}
}

func TestRSAKeysThatNoSaneTokenMakesAreRefused(t *testing.T) {
	t.Parallel()
	n := rsaKey().N
	for name, c := range map[string]struct{ n, e *big.Int }{
		"small":         {new(big.Int).Rsh(n, 1024), big.NewInt(65537)},
		"huge":          {new(big.Int).Lsh(n, 7000), big.NewInt(65537)},
		"even modulus":  {new(big.Int).Add(n, big.NewInt(1)), big.NewInt(65537)},
		"exponent 1":    {n, big.NewInt(1)},
		"even exponent": {n, big.NewInt(65536)},
		"huge exponent": {n, new(big.Int).Add(new(big.Int).Lsh(big.NewInt(1), 64), big.NewInt(65537))},
		"no exponent":   {n, new(big.Int)},
		"no modulus":    {new(big.Int), big.NewInt(65537)},
	} {
		if got, err := rsaPublic(c.n.Bytes(), c.e.Bytes()); err == nil || got != nil {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got, err := rsaPublic(append([]byte{0}, n.Bytes()...), []byte{1, 0, 1}); err != nil || !rsaKey().PublicKey.Equal(got) {
		t.Errorf("a modulus with a zero in front: %v", err)
	}
}

// FuzzECPublic: what is accepted is one key, and says what it is however it is
// written again.
func FuzzECPublic(f *testing.F) {
	for _, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		point := pointOf(newPrivate(curve).Public().(*ecdsa.PublicKey))
		f.Add(paramsOf(curve), point)
		f.Add(paramsOf(curve), octets(point))
	}
	for _, params := range paramsEd25519 {
		f.Add(params, octets(make([]byte, 32)))
	}
	f.Fuzz(func(t *testing.T, params, point []byte) {
		pub, err := ecPublic(params, point)
		if err != nil {
			if pub != nil {
				t.Fatalf("both %v and %v", pub, err)
			}
			return
		}
		if err := checkPublic(pub); err != nil {
			t.Fatal(err)
		}
		var bare []byte
		switch pub := pub.(type) {
		case *ecdsa.PublicKey:
			if !slices.Contains([]elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()}, pub.Curve) {
				t.Fatal(pub.Curve)
			}
			bare = pointOf(pub)
		case ed25519.PublicKey:
			bare = pub
		}
		if !bytes.Equal(point, bare) && !bytes.Equal(point, octets(bare)) {
			t.Fatalf("%x was read as %x", point, bare)
		}
		for _, point := range [][]byte{bare, octets(bare)} {
			if again, err := ecPublic(params, point); err != nil || !samePublic(again, pub) {
				t.Fatal(fmt.Errorf("another key when written again: %w", err))
			}
		}
	})
}
