package pkcs11pool

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"sync"
	"testing"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

type (
	pkcs1Options = rsa.PKCS1v15DecryptOptions //nolint:staticcheck // SCEP (RFC 8894) has no other padding
	oaepOptions  = rsa.OAEPOptions
)

// encryptRaw is RSA without padding.
func encryptRaw(pub *rsa.PublicKey, em []byte) []byte {
	c := new(big.Int).Exp(new(big.Int).SetBytes(em), big.NewInt(int64(pub.E)), pub.N)
	return c.FillBytes(make([]byte, pub.Size()))
}

// importRSA puts a key of ours on a token, as no key of earnest is.
func importRSA(tb testing.TB, p *Pool, t *token, label string, k *rsa.PrivateKey, decrypt bool) {
	tb.Helper()
	importObject(tb, p, t, []*pkcs11.Attribute{
		pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_PRIVATE_KEY), pkcs11.NewAttribute(pkcs11.CKA_KEY_TYPE, pkcs11.CKK_RSA),
		pkcs11.NewAttribute(pkcs11.CKA_TOKEN, true), pkcs11.NewAttribute(pkcs11.CKA_PRIVATE, true), pkcs11.NewAttribute(pkcs11.CKA_SENSITIVE, true),
		pkcs11.NewAttribute(pkcs11.CKA_SIGN, true), pkcs11.NewAttribute(pkcs11.CKA_DECRYPT, decrypt),
		pkcs11.NewAttribute(pkcs11.CKA_LABEL, label), pkcs11.NewAttribute(pkcs11.CKA_ID, []byte(label)),
		pkcs11.NewAttribute(pkcs11.CKA_MODULUS, k.N.Bytes()), pkcs11.NewAttribute(pkcs11.CKA_PUBLIC_EXPONENT, big.NewInt(int64(k.E)).Bytes()),
		pkcs11.NewAttribute(pkcs11.CKA_PRIVATE_EXPONENT, k.D.Bytes()),
		pkcs11.NewAttribute(pkcs11.CKA_PRIME_1, k.Primes[0].Bytes()), pkcs11.NewAttribute(pkcs11.CKA_PRIME_2, k.Primes[1].Bytes()),
		pkcs11.NewAttribute(pkcs11.CKA_EXPONENT_1, k.Precomputed.Dp.Bytes()), pkcs11.NewAttribute(pkcs11.CKA_EXPONENT_2, k.Precomputed.Dq.Bytes()),
		pkcs11.NewAttribute(pkcs11.CKA_COEFFICIENT, k.Precomputed.Qinv.Bytes()),
	})
}

func importObject(tb testing.TB, p *Pool, t *token, template []*pkcs11.Attribute) {
	tb.Helper()
	err := p.do(tb.Context(), &job{
		op: "importing", rw: true, on: func(other *token) bool { return other == t },
		run: func(c *conn) error {
			_, err := c.CreateObject(c.session, template)
			return err
		},
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// A decryption is a way to take padding off: by a token that leaves it on, by one
// that does not, or by crypto/rsa.
type decryption func(ciphertext []byte, opts crypto.DecrypterOpts) ([]byte, error)

// decryptions opens one key in all ways that there are.
func decryptions(t *testing.T) map[string]decryption {
	t.Helper()
	p := openTokens(t, hsm.Take(t))
	importRSA(t, p, p.tokens[0], "scep", rsaKey(), true)
	found, err := p.Key(t.Context(), "scep")
	if err != nil {
		t.Fatal(err)
	}
	raw := found.(decrypter)
	at := *raw.place(p.tokens[0]).Load()
	if at.skills&canDecryptRaw == 0 {
		t.Fatal("the token has no RSA without padding")
	}
	at.skills &^= canDecryptRaw
	padded := decrypter{p.newKey(raw.ref, raw.public)}
	padded.place(p.tokens[0]).Store(&at)
	by := func(d keys.Decrypter) decryption {
		return func(c []byte, opts crypto.DecrypterOpts) ([]byte, error) { return d.Decrypt(t.Context(), c, opts) }
	}
	return map[string]decryption{
		"raw": by(raw), "padded": by(padded),
		"crypto/rsa": func(c []byte, opts crypto.DecrypterOpts) ([]byte, error) {
			return rsaKey().Decrypt(rand.Reader, c, opts)
		},
	}
}

func TestTokensDecryptAsTheLibraryDoes(t *testing.T) {
	t.Parallel()
	ways := decryptions(t)
	pub := &rsaKey().PublicKey
	message := []byte("a session key...")
	pkcs1, err := rsa.EncryptPKCS1v15(rand.Reader, pub, message) //nolint:staticcheck // SCEP (RFC 8894) has no other padding
	if err != nil {
		t.Fatal(err)
	}
	oaep := func(opts oaepOptions) []byte {
		c, err := rsa.EncryptOAEPWithOptions(rand.Reader, pub, message, &opts)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	label := []byte("a label")
	for name, c := range map[string]struct {
		ciphertext []byte
		opts       crypto.DecrypterOpts
		padded     bool // SoftHSM itself can take it off
	}{
		"no options":           {pkcs1, nil, true},
		"PKCS#1 v1.5":          {pkcs1, &pkcs1Options{}, true},
		"session key":          {pkcs1, &pkcs1Options{SessionKeyLen: len(message)}, true},
		"OAEP SHA-1":           {oaep(oaepOptions{Hash: crypto.SHA1}), &oaepOptions{Hash: crypto.SHA1}, true},
		"OAEP SHA-256":         {oaep(oaepOptions{Hash: crypto.SHA256}), &oaepOptions{Hash: crypto.SHA256}, false},
		"OAEP SHA-384":         {oaep(oaepOptions{Hash: crypto.SHA384}), &oaepOptions{Hash: crypto.SHA384}, false},
		"OAEP SHA-512, label":  {oaep(oaepOptions{Hash: crypto.SHA512, Label: label}), &oaepOptions{Hash: crypto.SHA512, Label: label}, false},
		"OAEP SHA-256, MGF of": {oaep(oaepOptions{Hash: crypto.SHA256, MGFHash: crypto.SHA1}), &oaepOptions{Hash: crypto.SHA256, MGFHash: crypto.SHA1}, false},
	} {
		for way, decrypt := range ways {
			plain, err := decrypt(c.ciphertext, c.opts)
			if way == "padded" && !c.padded {
				// Not for the ciphertext's sake, so it is said.
				if err == nil || errors.Is(err, rsa.ErrDecryption) || errors.Is(err, keys.ErrBusy) {
					t.Errorf("%s, %s: %x, %v", name, way, plain, err)
				}
				continue
			}
			if err != nil || !bytes.Equal(plain, message) {
				t.Errorf("%s, %s: %q, %v", name, way, plain, err)
			}
		}
	}
}

// Bad padding, whatever is bad about it, is one error, and none at all for a
// session key; the session is used on.
func TestBadPaddingTellsNothing(t *testing.T) {
	t.Parallel()
	pub := &rsaKey().PublicKey
	size := pub.Size()
	block := func(change func(em []byte)) []byte {
		em := bytes.Repeat([]byte{0x5a}, size)
		em[0], em[1], em[size-17] = 0, 2, 0
		change(em)
		return encryptRaw(pub, em)
	}
	bad := map[string][]byte{
		"first byte":        block(func(em []byte) { em[0] = 1 }),
		"block type":        block(func(em []byte) { em[1] = 1 }),
		"no end of padding": block(func(em []byte) { em[size-17] = 1 }),
		"padding too short": block(func(em []byte) { em[9] = 0 }),
		"zero":              make([]byte, size),
		"one":               append(make([]byte, size-1), 1),
		"all random":        block(func(em []byte) { _, _ = rand.Read(em[1:]) }),
	}
	for way, decrypt := range decryptions(t) {
		for name, c := range bad {
			for range 12 { // more often than there are sessions
				if plain, err := decrypt(c, &pkcs1Options{}); err != rsa.ErrDecryption || plain != nil { //nolint:errorlint // the very same error
					t.Fatalf("%s, %s: %x, %v", name, way, plain, err)
				}
			}
			seen := map[string]bool{}
			for range 12 {
				plain, err := decrypt(c, &pkcs1Options{SessionKeyLen: 16})
				if err != nil || len(plain) != 16 || seen[string(plain)] {
					t.Fatalf("%s, %s: session key %x, %v, before: %v", name, way, plain, err, seen)
				}
				seen[string(plain)] = true
			}
			if plain, err := decrypt(c, &oaepOptions{Hash: crypto.SHA1}); err != rsa.ErrDecryption || plain != nil { //nolint:errorlint // the very same error
				t.Fatalf("%s, %s: OAEP: %x, %v", name, way, plain, err)
			}
		}
		// Good padding around a session key of another length is as bad.
		good := block(func([]byte) {})
		if plain, err := decrypt(good, &pkcs1Options{SessionKeyLen: 24}); err != nil || len(plain) != 24 || bytes.Contains(plain, []byte{0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a, 0x5a}) {
			t.Errorf("%s: %x, %v", way, plain, err)
		}
		if plain, err := decrypt(good, &pkcs1Options{SessionKeyLen: 16}); err != nil || !bytes.Equal(plain, bytes.Repeat([]byte{0x5a}, 16)) {
			t.Errorf("%s: a good session key after all that: %x, %v", way, plain, err)
		}
	}
}

func TestACiphertextThatIsNoneDoesNotReachTheDevice(t *testing.T) {
	t.Parallel()
	pub := &rsaKey().PublicKey
	p := &Pool{} // without a token: whatever reaches for one fails otherwise
	d := decrypter{p.newKey(ref{text: "scep"}, pub)}
	n := pub.N.Bytes()
	for name, c := range map[string][]byte{
		"empty": nil, "short": n[1:], "long": append([]byte{0}, n...), "modulus": n, "all ones": bytes.Repeat([]byte{0xff}, len(n)),
	} {
		for _, opts := range []crypto.DecrypterOpts{nil, &pkcs1Options{SessionKeyLen: 16}, &oaepOptions{Hash: crypto.SHA256}} {
			if plain, err := d.Decrypt(t.Context(), c, opts); err != rsa.ErrDecryption || plain != nil { //nolint:errorlint // the very same error
				t.Errorf("%s with %T: %x, %v", name, opts, plain, err)
			}
		}
	}
	most := new(big.Int).Sub(pub.N, big.NewInt(1)).Bytes()
	if _, err := d.Decrypt(t.Context(), most, nil); err == nil || errors.Is(err, rsa.ErrDecryption) {
		t.Errorf("the largest ciphertext was not tried: %v", err)
	}
	for name, opts := range map[string]crypto.DecrypterOpts{
		"strange": crypto.SHA256, "MD5": &oaepOptions{Hash: crypto.MD5}, "MGF1 with MD5": &oaepOptions{Hash: crypto.SHA256, MGFHash: crypto.MD5}, "no hash": &oaepOptions{},
	} {
		if _, err := d.Decrypt(t.Context(), most, opts); err == nil || errors.Is(err, keys.ErrBusy) || errors.Is(err, rsa.ErrDecryption) {
			t.Errorf("options %s: %v", name, err)
		}
	}
	for _, l := range []int{-1, pub.Size() - 10} {
		if _, err := d.Decrypt(t.Context(), most, &pkcs1Options{SessionKeyLen: l}); !errors.Is(err, rsa.ErrDecryption) {
			t.Errorf("a session key of %d bytes: %v", l, err)
		}
	}
}

// A cipher answers C_Decrypt.
type cipher struct {
	*shelf
	inits  []error // of C_DecryptInit, one after another; then none
	used   []uint  // mechanisms
	answer []byte
	err    error
}

func (c *cipher) DecryptInit(_ pkcs11.SessionHandle, m []*pkcs11.Mechanism, _ pkcs11.ObjectHandle) (err error) {
	c.used = append(c.used, m[0].Mechanism)
	if len(c.inits) > 0 {
		err, c.inits = c.inits[0], c.inits[1:]
	}
	return err
}

func (c *cipher) Decrypt(pkcs11.SessionHandle, []byte) ([]byte, error) { return c.answer, c.err }

// decipherWith has a cipher decrypt for a key that may decrypt without padding
// or, as said, may not.
func decipherWith(t *testing.T, c *cipher, raw bool) (deciphered, error) {
	t.Helper()
	c.shelf = newShelf()
	cn := &conn{cryptoki: c, token: &token{name: "cipher"}}
	d := decrypter{(&Pool{tokens: []*token{cn.token}}).newKey(ref{text: "scep"}, &rsaKey().PublicKey)}
	at := &place{skills: canDecrypt}
	if raw {
		at.skills |= canDecryptRaw
	}
	d.place(cn.token).Store(at)
	pad, err := paddingFor(256, nil)
	if err != nil {
		t.Fatal(err)
	}
	out, able, err := d.decipher(cn, make([]byte, 256), pad)
	if !able && err == nil {
		t.Fatal("not able to")
	}
	return out, err
}

func TestWhatIsTheCiphertextsFaultIsNotTheDevices(t *testing.T) {
	t.Parallel()
	for code, of := range map[uint]struct{ raw, padded bool }{
		pkcs11.CKR_GENERAL_ERROR:            {true, true},
		pkcs11.CKR_ENCRYPTED_DATA_INVALID:   {true, true},
		pkcs11.CKR_ENCRYPTED_DATA_LEN_RANGE: {true, true},
		pkcs11.CKR_DATA_INVALID:             {true, true},
		pkcs11.CKR_DATA_LEN_RANGE:           {true, true},
		pkcs11.CKR_FUNCTION_FAILED:          {false, true},
		pkcs11.CKR_VENDOR_DEFINED | 7:       {false, true},
		pkcs11.CKR_DEVICE_ERROR:             {false, false},
		pkcs11.CKR_SESSION_HANDLE_INVALID:   {false, false},
		pkcs11.CKR_TOKEN_NOT_PRESENT:        {false, false},
		pkcs11.CKR_USER_NOT_LOGGED_IN:       {false, false},
		pkcs11.CKR_BUFFER_TOO_SMALL:         {false, false}, // the operation goes on
	} {
		for _, raw := range []bool{true, false} {
			out, err := decipherWith(t, &cipher{err: pkcs11.Error(code)}, raw)
			itsFault := of.padded
			if raw {
				itsFault = of.raw
			}
			c, complains := errors.AsType[*complaint](err)
			if complains != itsFault || isComplaint(err) != itsFault || complains && c.raw != raw || !complains && !errors.Is(err, pkcs11.Error(code)) {
				t.Errorf("%#x, raw %v: %+v, %v", code, raw, out, err)
			}
		}
	}
}

// Strangers send ciphertexts. Were they counted, a few bad ones would take the
// token out of use.
func TestBadCiphertextsCostNoSessionAndNoToken(t *testing.T) {
	t.Parallel()
	p, f := behindFaults(t, 1)
	importRSA(t, p, p.tokens[0], "scep", rsaKey(), true)
	d := mustKey(t, p, "scep").(decrypter)
	zero := make([]byte, 256)
	before := f.Book(t).Functions
	for _, code := range []uint{pkcs11.CKR_GENERAL_ERROR, pkcs11.CKR_ENCRYPTED_DATA_INVALID, pkcs11.CKR_DATA_LEN_RANGE} {
		f.Script(t, fmt.Sprintf("C_Decrypt * after return %#x", code))
		for range 10 {
			if plain, err := d.Decrypt(t.Context(), zero, &pkcs1Options{SessionKeyLen: 16}); err != nil || len(plain) != 16 {
				t.Fatalf("%#x: %x, %v", code, plain, err)
			}
			if plain, err := d.Decrypt(t.Context(), zero, nil); err != rsa.ErrDecryption || plain != nil { //nolint:errorlint // the very same error
				t.Fatalf("%#x: %x, %v", code, plain, err)
			}
		}
	}
	after := f.Book(t).Functions
	if s := p.Stat().Tokens[0]; s.State != Up || s.Reopened != 0 || s.Errors["suspect"]+s.Errors["data"] != 0 {
		t.Errorf("%+v", s)
	}
	if n := after["C_Decrypt"].Calls - before["C_Decrypt"].Calls; n != 60 {
		t.Errorf("60 ciphertexts were tried %d times", n)
	}
}

func TestAKeyThatMustNotDecryptRawIsAskedOtherwise(t *testing.T) {
	t.Parallel()
	for _, code := range []uint{pkcs11.CKR_MECHANISM_INVALID, pkcs11.CKR_KEY_FUNCTION_NOT_PERMITTED, pkcs11.CKR_KEY_TYPE_INCONSISTENT} {
		c := &cipher{inits: []error{pkcs11.Error(code)}, answer: []byte("plain")}
		out, err := decipherWith(t, c, true)
		if err != nil || out.raw || string(out.bytes) != "plain" || fmt.Sprint(c.used) != fmt.Sprint([]uint{pkcs11.CKM_RSA_X_509, pkcs11.CKM_RSA_PKCS}) {
			t.Errorf("%#x: %+v, %v by %x", code, out, err, c.used)
		}
		c = &cipher{inits: []error{pkcs11.Error(code), pkcs11.Error(code)}}
		if out, err := decipherWith(t, c, true); err != nil || out.unable == nil {
			t.Errorf("%#x twice: %+v, %v", code, out, err)
		}
	}
	lost := pkcs11.Error(pkcs11.CKR_SESSION_CLOSED)
	c := &cipher{inits: []error{lost}}
	if out, err := decipherWith(t, c, true); !errors.Is(err, lost) || len(c.used) != 1 {
		t.Errorf("a lost session: %+v, %v by %x", out, err, c.used)
	}
}

// RFC 8017 §7.2.2 has as many bytes as the modulus; some tokens drop zeros in front.
func TestAnAnswerWithoutItsZerosIsReadWithThem(t *testing.T) {
	t.Parallel()
	out, err := decipherWith(t, &cipher{answer: []byte{2, 3}}, true)
	if want := append(make([]byte, 254), 2, 3); err != nil || !bytes.Equal(out.bytes, want) {
		t.Errorf("%x, %v", out.bytes, err)
	}
	if out, err := decipherWith(t, &cipher{answer: make([]byte, 257)}, true); err == nil {
		t.Errorf("too long: %x", out.bytes)
	}
	if out, err := decipherWith(t, &cipher{}, false); err != nil || out.bytes == nil {
		t.Errorf("an empty message is not a bad one: %+v, %v", out, err)
	}
}

// fuzzKey is small, for many trials.
var fuzzKey = sync.OnceValue(func() *rsa.PrivateKey {
	k, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		panic(err)
	}
	return k
})

// Whatever a block has inside, we make of it what crypto/rsa does.
func FuzzPadding(f *testing.F) {
	pub := &fuzzKey().PublicKey
	size := pub.Size()
	good := bytes.Repeat([]byte{1}, size)
	good[0], good[1], good[size-17] = 0, 2, 0
	f.Add(good, byte(0))
	f.Add(good, byte(16))
	for _, end := range []int{9, 10} {
		early := bytes.Clone(good)
		early[end] = 0
		f.Add(early, byte(0))
	}
	f.Add(append([]byte{0, 2}, bytes.Repeat([]byte{7}, size-2)...), byte(0))
	f.Add(append(append([]byte{0, 2}, bytes.Repeat([]byte{7}, size-3)...), 0), byte(0))
	// Blocks of OAEP are given with their masks off, and masked before the trial.
	const oaep = 0xff
	f.Add(unmasked(sha1Of(nil), make([]byte, size-42-5), []byte{1}, []byte("hello")), byte(oaep))
	f.Add(unmasked(sha1Of(nil), make([]byte, size-42), []byte{1}, nil), byte(oaep))
	f.Add(unmasked(sha1Of(nil), make([]byte, size-41), nil, nil), byte(oaep))
	f.Add(unmasked(sha1Of([]byte("x")), make([]byte, size-42-5), []byte{1}, []byte("hello")), byte(oaep))
	f.Add(unmasked(sha1Of(nil), []byte{2, 1}, nil, make([]byte, size-43)), byte(oaep))
	f.Fuzz(func(t *testing.T, in []byte, sessionKey byte) {
		em := make([]byte, size)
		copy(em, in)
		if new(big.Int).SetBytes(em).Cmp(pub.N) >= 0 {
			em[0] = 0
		}
		switch l := int(sessionKey); {
		case l == oaep:
			agree(t, mask(em), &oaepOptions{Hash: crypto.SHA1})
		case l > 0 && l <= size-11:
			agreeOnKey(t, em, l)
		default:
			agree(t, em, &pkcs1Options{})
		}
	})
}

func strip(t *testing.T, em []byte, opts crypto.DecrypterOpts) ([]byte, error) {
	t.Helper()
	pad, err := paddingFor(len(em), opts)
	if err != nil {
		t.Fatal(err)
	}
	return pad.strip(bytes.Clone(em))
}

func agree(t *testing.T, em []byte, opts crypto.DecrypterOpts) {
	t.Helper()
	ours, err := strip(t, em, opts)
	theirs, theirErr := fuzzKey().Decrypt(rand.Reader, encryptRaw(&fuzzKey().PublicKey, em), opts)
	if (err == nil) != (theirErr == nil) || !bytes.Equal(ours, theirs) {
		t.Fatalf("%T of\n%s\nours %x %v\ntheirs %x %v", opts, hex.Dump(em), ours, err, theirs, theirErr)
	}
	if err != nil && (err != rsa.ErrDecryption || ours != nil) { //nolint:errorlint // the very same error
		t.Fatalf("%x, %v", ours, err)
	}
}

// agreeOnKey tells a real session key from a random one by asking twice.
func agreeOnKey(t *testing.T, em []byte, l int) {
	t.Helper()
	plain, err := strip(t, em, &pkcs1Options{})
	real := err == nil && len(plain) == l
	once, err := strip(t, em, &pkcs1Options{SessionKeyLen: l})
	if err != nil || len(once) != l {
		t.Fatalf("%x, %v", once, err)
	}
	if real && !bytes.Equal(once, plain) {
		t.Fatalf("session key %x, want %x", once, plain)
	}
	if twice, _ := strip(t, em, &pkcs1Options{SessionKeyLen: l}); !real && l >= 8 && bytes.Equal(once, twice) {
		t.Fatalf("a session key that is not random: %x", once)
	}
}

func sha1Of(b []byte) []byte {
	h := sha1.Sum(b)
	return h[:]
}

func unmasked(labelHash, padding, one, message []byte) []byte {
	return bytes.Join([][]byte{{0}, make([]byte, 20), labelHash, padding, one, message}, nil)
}

// mask puts the masks of OAEP with SHA-1 on.
func mask(em []byte) []byte {
	em = bytes.Clone(em)
	maskMGF1(em[21:], sha1.New(), em[1:21])
	maskMGF1(em[1:21], sha1.New(), em[21:])
	return em
}

func TestMGF1IsOfTheHashGiven(t *testing.T) {
	t.Parallel()
	mask := make([]byte, 50)
	maskMGF1(mask, sha256.New(), []byte("seed"))
	first := sha256.Sum256([]byte("seed\x00\x00\x00\x00"))
	second := sha256.Sum256([]byte("seed\x00\x00\x00\x01"))
	if want := append(first[:], second[:18]...); !bytes.Equal(mask, want) {
		t.Errorf("%x, want %x", mask, want)
	}
}
