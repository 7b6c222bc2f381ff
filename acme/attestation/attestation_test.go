package attestation_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/acme/attestation"
	"github.com/secsy-pki/secsy-pki/ca"
)

const (
	token   = "evaGxfADs6pSRb2LAv9IZf17Dt3juxGJ-PCt92wr-oA"
	keyAuth = token + ".9jg46WB3rR_AHD-EBXdN7cBkH1WOu0tA3M9fm21mqTI"
)

// A maker is a manufacturer: a root, and an authority below it.
type maker struct {
	t         *testing.T
	root, sub *x509.Certificate
	key       crypto.Signer
}

func newMaker(t *testing.T) *maker {
	t.Helper()
	rootKey, subKey := newKey(t), newKey(t)
	authority := func(cn string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: cn}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		}
	}
	m := &maker{t: t, key: subKey}
	m.root = m.certify(authority("root"), authority("root"), rootKey.Public(), rootKey)
	m.sub = m.certify(authority("sub"), m.root, subKey.Public(), rootKey)
	return m
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (m *maker) certify(c, parent *x509.Certificate, pub any, key crypto.Signer) *x509.Certificate {
	m.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, c, parent, pub, key)
	if err != nil {
		m.t.Fatal(err)
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

// leaf certifies a device's key with some extensions.
func (m *maker) leaf(pub any, change func(*x509.Certificate)) *x509.Certificate {
	m.t.Helper()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "device"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
	}
	change(c)
	return m.certify(c, m.sub, pub, m.key)
}

func (m *maker) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(m.root)
	return p
}

func (m *maker) verifier(f attestation.Format) *attestation.Verifier {
	m.t.Helper()
	v, err := attestation.New(attestation.Config{Roots: map[attestation.Format]*x509.CertPool{f: m.pool()}})
	if err != nil {
		m.t.Fatal(err)
	}
	return v
}

func ext(t *testing.T, oid string, value []byte) pkix.Extension {
	t.Helper()
	var id asn1.ObjectIdentifier
	for part := range strings.SplitSeq(oid, ".") {
		var n int
		if _, err := fmt.Sscan(part, &n); err != nil {
			t.Fatal(err)
		}
		id = append(id, n)
	}
	return pkix.Extension{Id: id, Value: value}
}

// answer is what a client posts to the challenge.
func answer(t *testing.T, format string, statement map[string]any) []byte {
	t.Helper()
	raw, err := cbor.Marshal(map[string]any{"fmt": format, "attStmt": statement})
	if err != nil {
		t.Fatal(err)
	}
	return wrap(t, raw)
}

func wrap(t *testing.T, raw []byte) []byte {
	t.Helper()
	b, err := json.Marshal(map[string]string{"attObj": base64.RawURLEncoding.EncodeToString(raw)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func question(name string, answer []byte) acme.Validation {
	return acme.Validation{
		Type: acme.DeviceAttest01, Identifier: ca.Identifier{Type: ca.PermanentIdentifier, Value: name},
		Token: token, KeyAuthorization: keyAuth, Answer: answer,
	}
}

func spkiHash(t *testing.T, pub any) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// believed demands that q is believed, for the key.
func believed(t *testing.T, v *attestation.Verifier, q acme.Validation, pub any) {
	t.Helper()
	rec, p := v.Validate(t.Context(), q)
	if p != nil {
		t.Fatalf("%s: %s (%v)", q.Identifier.Value, p.Detail, p.Err)
	}
	if want := spkiHash(t, pub); rec.AttestedKey != want || rec.Format == "" {
		t.Errorf("key %s by %q, want %s", rec.AttestedKey, rec.Format, want)
	}
}

// refused demands a problem whose detail has says in it, and no key.
func refused(t *testing.T, v *attestation.Verifier, q acme.Validation, says string) {
	t.Helper()
	rec, p := v.Validate(t.Context(), q)
	if p == nil || p.Type != acme.BadAttestationStatement || !strings.Contains(p.Detail, says) || rec.AttestedKey != "" {
		t.Errorf("%v with key %q, want one that says %q", p, rec.AttestedKey, says)
	}
}

const (
	appleSerial = "1.2.840.113635.100.8.9.1"
	appleUDID   = "1.2.840.113635.100.8.9.2"
	appleNonce  = "1.2.840.113635.100.8.11.1"
	yubicoOID   = "1.3.6.1.4.1.41482.3.7"
)

func TestAppleAttestationIsForItsDeviceTokenAndKey(t *testing.T) {
	t.Parallel()
	m := newMaker(t)
	v := m.verifier(attestation.Apple)
	key := newKey(t)
	nonce := sha256.Sum256([]byte(token))
	make := func(nonce []byte, chain ...*x509.Certificate) []byte {
		leaf := m.leaf(key.Public(), func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{ext(t, appleSerial, []byte("C02XYZ")), ext(t, appleUDID, []byte("00008110-00AA"))}
			if nonce != nil {
				c.ExtraExtensions = append(c.ExtraExtensions, ext(t, appleNonce, nonce))
			}
		})
		x5c := [][]byte{leaf.Raw}
		for _, c := range chain {
			x5c = append(x5c, c.Raw)
		}
		return answer(t, "apple", map[string]any{"x5c": x5c})
	}
	good := make(nonce[:], m.sub)
	believed(t, v, question("C02XYZ", good), key.Public())
	believed(t, v, question("00008110-00AA", good), key.Public())
	inString, err := asn1.Marshal(nonce[:])
	if err != nil {
		t.Fatal(err)
	}
	believed(t, v, question("C02XYZ", make(inString, m.sub)), key.Public())

	refused(t, v, question("C02XYW", good), "not that of the device")
	refused(t, v, question("C02XYZ/1.2.3", good), "not that of the device")
	refused(t, v, question("", good), "not that of the device")
	hw := question("C02XYZ", good)
	hw.Identifier.Type = ca.HardwareModule
	refused(t, v, hw, "not that of the device")
	refused(t, v, question("C02XYZ", make(nil, m.sub)), "not made for this challenge")
	other := sha256.Sum256([]byte(keyAuth))
	refused(t, v, question("C02XYZ", make(other[:], m.sub)), "not made for this challenge")
	refused(t, v, question("C02XYZ", make(nonce[:])), "does not lead to a root")
	refused(t, newMaker(t).verifier(attestation.Apple), question("C02XYZ", good), "does not lead to a root")
	refused(t, m.verifier(attestation.TPM), question("C02XYZ", good), "not taken here; those that are: tpm")
}

// Two values for one thing are none.
func TestAnExtensionThatIsThereTwiceSaysNothing(t *testing.T) {
	t.Parallel()
	m := newMaker(t)
	key := newKey(t)
	nonce := sha256.Sum256([]byte(token))
	// crypto/x509 reads no such certificate at all.
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtraExtensions: []pkix.Extension{ext(t, appleSerial, []byte("A")), ext(t, appleSerial, []byte("B")), ext(t, appleNonce, nonce[:])},
	}, m.sub, key.Public(), m.key)
	if err != nil {
		t.Fatal(err)
	}
	refused(t, m.verifier(attestation.Apple), question("A", answer(t, "apple", map[string]any{"x5c": [][]byte{der, m.sub.Raw}})), "")
}

func TestYubiKeyAttestationIsSignedByTheAttestedKey(t *testing.T) {
	t.Parallel()
	m := newMaker(t)
	v := m.verifier(attestation.Step)
	key, other := newKey(t), newKey(t)
	serial, err := asn1.Marshal(12345678)
	if err != nil {
		t.Fatal(err)
	}
	leaf := m.leaf(key.Public(), func(c *x509.Certificate) { c.ExtraExtensions = []pkix.Extension{ext(t, yubicoOID, serial)} })
	nameless := m.leaf(key.Public(), func(*x509.Certificate) {})
	make := func(leaf *x509.Certificate, key *ecdsa.PrivateKey, message string) []byte {
		sum := sha256.Sum256([]byte(message))
		sig, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		inner, err := cbor.Marshal(sig)
		if err != nil {
			t.Fatal(err)
		}
		return answer(t, "step", map[string]any{"x5c": [][]byte{leaf.Raw, m.sub.Raw}, "alg": -7, "sig": inner})
	}
	believed(t, v, question("12345678", make(leaf, key, keyAuth)), key.Public())
	refused(t, v, question("12345679", make(leaf, key, keyAuth)), "not that of the device")
	refused(t, v, question("12345678", make(leaf, other, keyAuth)), "sig is not the signature")
	refused(t, v, question("12345678", make(leaf, key, token)), "sig is not the signature")
	refused(t, v, question("12345678", make(nameless, key, keyAuth)), "not that of the device")
	refused(t, v, question("12345678", answer(t, "step", map[string]any{"x5c": [][]byte{leaf.Raw, m.sub.Raw}, "sig": []byte("x")})), "not a CBOR byte string")
}

func TestWhatIsNoAttestationIsRefused(t *testing.T) {
	t.Parallel()
	m := newMaker(t)
	v := m.verifier(attestation.Apple)
	twice := []byte("\xa2\x63fmt\x65apple\x63fmt\x63tpm")
	endless := []byte("\xbf\x63fmt\x65apple\xff")
	for name, c := range map[string]struct {
		answer []byte
		says   string
	}{
		"nothing":          {nil, "has an attObj"},
		"empty":            {[]byte("{}"), "missing or larger"},
		"no JSON":          {[]byte("attObj"), "has an attObj"},
		"padded":           {[]byte(`{"attObj":"oA=="}`), "base64url without padding"},
		"too long":         {fmt.Appendf(nil, `{"attObj":%q}`, strings.Repeat("A", 80<<10)), "missing or larger"},
		"client's error":   {[]byte(`{"error":"no enclave"}`), "could not have itself attested"},
		"no CBOR":          {wrap(t, []byte("\xff")), "not the CBOR"},
		"a member twice":   {wrap(t, twice), "not the CBOR"},
		"without an end":   {wrap(t, endless), "not the CBOR"},
		"nested":           {wrap(t, []byte("\xa1\x67attStmt\xa1\x63x5c\x81\x81\x81\x81\x81\x40")), "not the CBOR"},
		"format unknown":   {answer(t, "android-key", nil), "not taken here"},
		"no chain":         {answer(t, "apple", map[string]any{}), "from one to 8 certificates"},
		"long chain":       {answer(t, "apple", map[string]any{"x5c": [][]byte{{}, {}, {}, {}, {}, {}, {}, {}, {}}}), "from one to 8"},
		"chain of nothing": {answer(t, "apple", map[string]any{"x5c": [][]byte{{1}}}), "not a certificate"},
		"chain of text":    {answer(t, "apple", map[string]any{"x5c": []string{"MII"}}), "not the CBOR"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, v, question("A", c.answer), c.says)
		})
	}
}

func TestAFormatNeedsRoots(t *testing.T) {
	t.Parallel()
	for _, roots := range []map[attestation.Format]*x509.CertPool{
		{attestation.Apple: nil}, {attestation.Apple: x509.NewCertPool()}, {"android-key": newMaker(t).pool()},
	} {
		if _, err := attestation.New(attestation.Config{Roots: roots}); err == nil {
			t.Errorf("%v makes a verifier", roots)
		}
	}
}

// FuzzAttestation looks for a panic, and for anything that is believed: no
// stranger has a key of the maker's.
func FuzzAttestation(f *testing.F) {
	f.Add([]byte("\xa2\x63fmt\x65apple\x67attStmt\xa1\x63x5c\x81\x40"))
	f.Add([]byte("\xa2\x63fmt\x63tpm\x67attStmt\xa1\x63ver\x632.0"))
	f.Add([]byte("\xa2\x63fmt\x64step\x67attStmt\xa1\x63sig\x40"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m := newMaker(t)
		v, err := attestation.New(attestation.Config{Roots: map[attestation.Format]*x509.CertPool{attestation.Apple: m.pool(), attestation.TPM: m.pool(), attestation.Step: m.pool()}})
		if err != nil {
			t.Fatal(err)
		}
		rec, p := v.Validate(t.Context(), question("A", wrap(t, raw)))
		if p == nil || rec.AttestedKey != "" {
			t.Errorf("%x is believed", raw)
		}
	})
}
