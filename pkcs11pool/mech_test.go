package pkcs11pool

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/asn1"
	"errors"
	"math/big"
	"testing"
)

func newScheme(tb testing.TB, pub crypto.PublicKey, digest []byte, opts crypto.SignerOpts) scheme {
	tb.Helper()
	s, err := schemeFor(pub, digest, opts)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// A broken or attacked device is not believed.
func TestAWrongSignatureIsShownToNobody(t *testing.T) {
	t.Parallel()
	digest := sha256.Sum256([]byte("to be signed"))
	pss := &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA256}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		key  crypto.Signer
		opts crypto.SignerOpts
	}{
		"PKCS#1 v1.5": {rsaKey(), crypto.SHA256},
		"PSS":         {rsaKey(), pss},
		"Ed25519":     {ed, crypto.Hash(0)},
	} {
		s := newScheme(t, c.key.Public(), digest[:], c.opts)
		right, err := c.key.Sign(rand.Reader, digest[:], c.opts)
		if err != nil {
			t.Fatal(err)
		}
		if sig, err := s.finish(right); err != nil || !bytes.Equal(sig, right) {
			t.Errorf("%s: a right signature: %v", name, err)
		}
		bent := bytes.Clone(right)
		bent[len(bent)/2] ^= 1
		for _, wrong := range [][]byte{bent, right[1:], append([]byte{0}, right...), {}, nil} {
			if sig, err := s.finish(wrong); !errors.Is(err, errWrongSignature) || sig != nil {
				t.Errorf("%s: %x became %x, %v", name, wrong, sig, err)
			}
		}
	}
	for _, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		s := newScheme(t, newPrivate(curve).Public(), digest[:], crypto.SHA256)
		n := curve.Params().N
		size := (n.BitLen() + 7) / 8
		raw := func(r, s *big.Int) []byte {
			return append(r.FillBytes(make([]byte, size)), s.FillBytes(make([]byte, size))...)
		}
		one, most := big.NewInt(1), new(big.Int).Sub(n, big.NewInt(1))
		for _, right := range [][]byte{raw(one, most), raw(most, one)} {
			if _, err := s.finish(right); err != nil {
				t.Errorf("%s: %x: %v", curve.Params().Name, right, err)
			}
		}
		for _, wrong := range [][]byte{
			raw(new(big.Int), one), raw(one, new(big.Int)), raw(n, one), raw(one, n), raw(one, one)[1:], append(raw(one, one), 0), {}, nil,
		} {
			if sig, err := s.finish(wrong); !errors.Is(err, errWrongSignature) || sig != nil {
				t.Errorf("%s: %x became %x, %v", curve.Params().Name, wrong, sig, err)
			}
		}
	}
}

// After a call that hangs the caller goes on with bytes that the call still reads.
func TestTheDeviceReadsACopyOfTheDigest(t *testing.T) {
	t.Parallel()
	pss := &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA256}
	for name, c := range map[string]struct {
		pub  crypto.PublicKey
		opts crypto.SignerOpts
	}{
		"ECDSA":       {newPrivate(elliptic.P256()).Public(), crypto.SHA256},
		"PKCS#1 v1.5": {rsaKey().Public(), crypto.SHA256},
		"PSS":         {rsaKey().Public(), pss},
		"Ed25519":     {make(ed25519.PublicKey, 32), crypto.Hash(0)},
	} {
		digest := sha256.Sum256([]byte("to be signed"))
		s, err := (&key{public: c.pub}).newSigning(digest[:], c.opts)
		if err != nil {
			t.Fatal(err)
		}
		before := bytes.Clone(s.message)
		clear(digest[:])
		if !bytes.Equal(s.message, before) {
			t.Errorf("%s: the message changes with the caller's bytes", name)
		}
	}
}

// FIPS 186-5 §6.4.1 has the leftmost bits count; some tokens refuse what is longer.
func TestADigestIsCutToTheCurve(t *testing.T) {
	t.Parallel()
	digest := sha512.Sum512(nil)
	for curve, size := range map[elliptic.Curve]int{elliptic.P256(): 32, elliptic.P384(): 48, elliptic.P521(): 64} {
		if s := newScheme(t, newPrivate(curve).Public(), digest[:], crypto.SHA512); !bytes.Equal(s.message, digest[:size]) {
			t.Errorf("%s: %x", curve.Params().Name, s.message)
		}
	}
}

func TestOnlyWhatIsTheSameEveryTimeIsDeterministic(t *testing.T) {
	t.Parallel()
	digest := sha256.Sum256(nil)
	pss := &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA256}
	for _, c := range []struct {
		pub  crypto.PublicKey
		opts crypto.SignerOpts
		want bool
	}{
		{newPrivate(elliptic.P256()).Public(), crypto.SHA256, false},
		{rsaKey().Public(), crypto.SHA256, true},
		{rsaKey().Public(), pss, false},
		{make(ed25519.PublicKey, 32), crypto.Hash(0), true},
	} {
		if s := newScheme(t, c.pub, digest[:], c.opts); s.deterministic != c.want {
			t.Errorf("%s: deterministic %v", s.label, s.deterministic)
		}
	}
}

func TestOddHashesAndSaltsAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pub  crypto.PublicKey
		opts crypto.SignerOpts
	}{
		{newPrivate(elliptic.P256()).Public(), crypto.SHA1},
		{rsaKey().Public(), crypto.SHA1},
		{rsaKey().Public(), crypto.SHA512_256},
		{rsaKey().Public(), &rsa.PSSOptions{SaltLength: -2, Hash: crypto.SHA256}},
		{rsaKey().Public(), &rsa.PSSOptions{SaltLength: 223, Hash: crypto.SHA256}},
		{rsaKey().Public(), &rsa.PSSOptions{SaltLength: 20, Hash: crypto.SHA1}},
	} {
		if s, err := schemeFor(c.pub, make([]byte, c.opts.HashFunc().Size()), c.opts); err == nil {
			t.Errorf("%T with %v: %s", c.pub, c.opts, s.label)
		}
	}
	newScheme(t, rsaKey().Public(), make([]byte, 32), &rsa.PSSOptions{SaltLength: 222, Hash: crypto.SHA256}) // RFC 8017 §9.1.1: the longest
}

// FuzzECDSASignature: what a device answers becomes DER that says the same two
// numbers, and only if both are scalars.
func FuzzECDSASignature(f *testing.F) {
	for _, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		order := orderOf(curve)
		f.Add(append(bytes.Clone(order), order...))
		small := append(make([]byte, len(order)-1), 1)
		f.Add(append(small, small...))
		f.Add(bytes.Repeat([]byte{0x7f}, 2*len(order)))
		f.Add(append(append([]byte{0}, bytes.Repeat([]byte{0x80}, len(order)-1)...), append([]byte{0}, bytes.Repeat([]byte{0xff}, len(order)-1)...)...))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		for _, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()} {
			n := curve.Params().N
			size := (n.BitLen() + 7) / 8
			der, err := ecdsaDER(answer, orderOf(curve))
			scalars := len(answer) == 2*size
			var r, s *big.Int
			if scalars {
				r, s = new(big.Int).SetBytes(answer[:size]), new(big.Int).SetBytes(answer[size:])
				scalars = r.Sign() > 0 && s.Sign() > 0 && r.Cmp(n) < 0 && s.Cmp(n) < 0
			}
			if scalars != (err == nil) {
				t.Fatalf("%s: %x: %v", curve.Params().Name, answer, err)
			}
			if err != nil {
				continue
			}
			want, err := asn1.Marshal(struct{ R, S *big.Int }{r, s})
			if err != nil || !bytes.Equal(der, want) {
				t.Fatalf("%s: %x became %x, want %x", curve.Params().Name, answer, der, want)
			}
		}
	})
}

func TestAnECDSASignatureOfTheDeviceVerifies(t *testing.T) {
	t.Parallel()
	digest := sha256.Sum256([]byte("to be signed"))
	for _, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		k := newPrivate(curve)
		size := len(orderOf(curve))
		for range 300 { // some have numbers that are short, or begin with a high bit
			der, err := k.Sign(rand.Reader, digest[:], crypto.SHA256)
			if err != nil {
				t.Fatal(err)
			}
			var v struct{ R, S *big.Int }
			if _, err := asn1.Unmarshal(der, &v); err != nil {
				t.Fatal(err)
			}
			got, err := ecdsaDER(append(v.R.FillBytes(make([]byte, size)), v.S.FillBytes(make([]byte, size))...), orderOf(curve))
			if err != nil || !bytes.Equal(got, der) || !ecdsa.VerifyASN1(&k.PublicKey, digest[:], got) {
				t.Fatalf("%s: %x, want %x: %v", curve.Params().Name, got, der, err)
			}
		}
	}
}
