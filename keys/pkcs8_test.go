package keys_test

import (
	"crypto"
	"crypto/aes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"strings"
	"testing"

	"github.com/youmark/pkcs8"

	"github.com/secsy-pki/secsy-pki/keys"
)

func spki(t *testing.T, pub crypto.PublicKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// envelope builds an encrypted PKCS#8 key that nobody can decrypt.
func envelope(t testing.TB, kdf asn1.ObjectIdentifier, kdfParams any, cipher asn1.ObjectIdentifier, iv, data []byte) []byte {
	t.Helper()
	der := func(v any) []byte {
		b, err := asn1.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	alg := func(oid asn1.ObjectIdentifier, params any) pkix.AlgorithmIdentifier {
		return pkix.AlgorithmIdentifier{Algorithm: oid, Parameters: asn1.RawValue{FullBytes: der(params)}}
	}
	return pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: der(struct {
		Algorithm pkix.AlgorithmIdentifier
		Data      []byte
	}{
		alg(asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 5, 13}, struct{ KDF, Cipher pkix.AlgorithmIdentifier }{
			alg(kdf, kdfParams), alg(cipher, iv),
		}),
		data,
	})})
}

type pbkdf2Params struct {
	Salt       []byte
	Iterations int
}

type scryptParams struct {
	Salt    []byte
	N, R, P int
}

func hostileEnvelopes(t testing.TB) map[string][]byte {
	pbkdf2, scrypt := asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 5, 12}, asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11591, 4, 11}
	aes256, gcm := asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 1, 42}, asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 1, 46}
	iv, data, salt := make([]byte, aes.BlockSize), make([]byte, 64), make([]byte, 16)
	return map[string][]byte{
		"iterations":     envelope(t, pbkdf2, pbkdf2Params{salt, 1 << 30}, aes256, iv, data),
		"no iterations":  envelope(t, pbkdf2, pbkdf2Params{salt, 0}, aes256, iv, data),
		"negative":       envelope(t, pbkdf2, pbkdf2Params{salt, -1}, aes256, iv, data),
		"salt":           envelope(t, pbkdf2, pbkdf2Params{make([]byte, 4096), 1000}, aes256, iv, data),
		"scrypt memory":  envelope(t, scrypt, scryptParams{salt, 1 << 24, 8, 1}, aes256, iv, data),
		"scrypt work":    envelope(t, scrypt, scryptParams{salt, 1 << 17, 8, 1 << 9}, aes256, iv, data),
		"scrypt odd":     envelope(t, scrypt, scryptParams{salt, 1000, 8, 1}, aes256, iv, data),
		"scrypt zero":    envelope(t, scrypt, scryptParams{salt, 0, 0, 0}, aes256, iv, data),
		"short iv":       envelope(t, pbkdf2, pbkdf2Params{salt, 1000}, aes256, iv[:8], data),
		"partial block":  envelope(t, pbkdf2, pbkdf2Params{salt, 1000}, aes256, iv, data[:63]),
		"no data":        envelope(t, pbkdf2, pbkdf2Params{salt, 1000}, aes256, iv, nil),
		"unknown cipher": envelope(t, pbkdf2, pbkdf2Params{salt, 1000}, gcm, iv, data),
		"unknown kdf":    envelope(t, aes256, pbkdf2Params{salt, 1000}, aes256, iv, data),
	}
}

func TestHostileKeyFileIsRefusedBeforeItCosts(t *testing.T) {
	t.Parallel()
	for name, file := range hostileEnvelopes(t) {
		if _, _, err := keys.Open(file, []byte("p")); err == nil || errors.Is(err, keys.ErrPassphrase) {
			t.Errorf("%s: error = %v, want a refusal of the parameters", name, err)
		}
	}
}

func TestPlainKeyIsRefused(t *testing.T) {
	t.Parallel()
	private, err := keys.NewPrivateKey(keys.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = keys.Open(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), []byte("p"))
	if err == nil || !strings.Contains(err.Error(), "openssl pkcs8 -topk8") {
		t.Errorf("error = %v, want advice", err)
	}
}

func TestKeyOfAnotherSizeIsRefused(t *testing.T) {
	t.Parallel()
	odd, err := rsa.GenerateKey(rand.Reader, 1032)
	if err != nil {
		t.Fatal(err)
	}
	der, err := pkcs8.MarshalPrivateKey(odd, []byte("p"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := keys.Open(pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: der}), []byte("p")); err == nil {
		t.Error("an RSA key of 1032 bits was opened")
	}
}

// FuzzOpenKey: whatever the file, opening it neither panics nor costs more than
// the bounds allow, and what opens is a key that the program uses.
func FuzzOpenKey(f *testing.F) {
	for _, file := range hostileEnvelopes(f) {
		f.Add(file)
	}
	private, err := keys.NewPrivateKey(keys.Ed25519)
	if err != nil {
		f.Fatal(err)
	}
	sealed, err := keys.Seal(private, []byte("p"), 1)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed)
	f.Fuzz(func(t *testing.T, file []byte) {
		key, _, err := keys.Open(file, []byte("p"))
		if err != nil {
			return
		}
		if _, ok := keys.AlgorithmOf(key.Public()); !ok {
			t.Errorf("opened a %T", key)
		}
	})
}
