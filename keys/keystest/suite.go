package keystest

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/secsy-pki/secsy-pki/keys"
)

// A StoreGenerator finds and makes keys.
type StoreGenerator interface {
	keys.Store
	keys.Generator
}

// TestStore holds a key store to the promises of package keys. Open opens the
// store at a place, a fresh directory that the store may put to any use; a
// second open of the same place is what a restart of the program is. Algs are
// the algorithms that the store has; none given means all.
func TestStore(t *testing.T, open func(t *testing.T, place string) StoreGenerator, algs ...keys.Algorithm) {
	if len(algs) == 0 {
		algs = []keys.Algorithm{keys.ECDSAP256, keys.ECDSAP384, keys.ECDSAP521, keys.RSA2048, keys.RSA3072, keys.RSA4096, keys.Ed25519}
	}
	s := suite{open: open, algs: algs}
	t.Run("UnknownLabelIsNotFound", s.unknownLabelIsNotFound)
	t.Run("GeneratedKeysSignAndOutliveARestart", s.generatedKeysSignAndOutliveARestart)
	t.Run("TakenLabelKeepsItsKey", s.takenLabelKeepsItsKey)
	t.Run("OneOfManyGenerationsWins", s.oneOfManyGenerationsWins)
	t.Run("UnknownAlgorithmTakesNoLabel", s.unknownAlgorithmTakesNoLabel)
	t.Run("EndedContextMakesNoKeyAndNoSignature", s.endedContextMakesNoKeyAndNoSignature)
	t.Run("WrongDigestIsNotSigned", s.wrongDigestIsNotSigned)
	t.Run("ManySignAtOnce", s.manySignAtOnce)
	t.Run("DestroyedKeyIsGone", s.destroyedKeyIsGone)
	if slices.Contains(algs, keys.RSA2048) {
		t.Run("KeyMadeToDecryptDecrypts", s.keyMadeToDecryptDecrypts)
	}
}

type suite struct {
	open func(t *testing.T, place string) StoreGenerator
	algs []keys.Algorithm
}

func (s suite) unknownLabelIsNotFound(t *testing.T) {
	t.Parallel()
	st := s.open(t, t.TempDir())
	if k, err := st.Key(t.Context(), "nobody"); !errors.Is(err, keys.ErrNotFound) {
		t.Fatalf("Key = %v, %v; want ErrNotFound", k, err)
	}
}

func (s suite) generatedKeysSignAndOutliveARestart(t *testing.T) {
	t.Parallel()
	for _, alg := range s.algs {
		t.Run(string(alg), func(t *testing.T) {
			t.Parallel()
			place := t.TempDir()
			made := generate(t, s.open(t, place), "key-1", alg)
			if got, ok := keys.AlgorithmOf(made.Public()); !ok || got != alg {
				t.Fatalf("algorithm of the key is %q, want %q", got, alg)
			}
			checkSigns(t, made)
			again, err := s.open(t, place).Key(t.Context(), "key-1")
			if err != nil {
				t.Fatalf("finding the key after a restart: %v", err)
			}
			if !samePublic(made, again) {
				t.Fatal("another key after a restart")
			}
			checkSigns(t, again)
		})
	}
}

// Of wrong padding it tells nothing when a session key is expected, and of a
// ciphertext that is none nothing but that.
func (s suite) keyMadeToDecryptDecrypts(t *testing.T) {
	t.Parallel()
	place := t.TempDir()
	k, err := s.open(t, place).Generate(keys.ToDecrypt(t.Context()), "key-1", keys.RSA2048)
	if err != nil {
		t.Fatal(err)
	}
	checkSigns(t, k)
	again, err := s.open(t, place).Key(t.Context(), "key-1")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []keys.Key{k, again} {
		d, ok := k.(keys.Decrypter)
		if !ok {
			t.Fatalf("%T is no keys.Decrypter", k)
		}
		session := []byte("a key of a cipher")
		ciphertext, err := rsa.EncryptPKCS1v15(rand.Reader, k.Public().(*rsa.PublicKey), session) //nolint:staticcheck // SCEP (RFC 8894) has no other padding
		if err != nil {
			t.Fatal(err)
		}
		opts := &rsa.PKCS1v15DecryptOptions{SessionKeyLen: len(session)} //nolint:staticcheck // as above
		if got, err := d.Decrypt(t.Context(), ciphertext, opts); err != nil || !bytes.Equal(got, session) {
			t.Fatalf("decrypting: %q, %v", got, err)
		}
		ciphertext[0] = 0 // below the modulus
		ciphertext[20] ^= 1
		if got, err := d.Decrypt(t.Context(), ciphertext, opts); err != nil || len(got) != len(session) || bytes.Equal(got, session) {
			t.Fatalf("wrong padding: %q, %v; want some key and no error", got, err)
		}
		if got, err := d.Decrypt(t.Context(), make([]byte, 300), &rsa.OAEPOptions{Hash: crypto.SHA1}); !errors.Is(err, rsa.ErrDecryption) || got != nil {
			t.Fatalf("no ciphertext: %q, %v; want rsa.ErrDecryption", got, err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if got, err := d.Decrypt(ended, ciphertext, opts); err == nil {
			t.Fatalf("decrypting in an ended context: %q", got)
		}
	}
}

func (s suite) takenLabelKeepsItsKey(t *testing.T) {
	t.Parallel()
	place := t.TempDir()
	st := s.open(t, place)
	first := generate(t, st, "taken", s.algs[0])
	for _, st := range []StoreGenerator{st, s.open(t, place)} {
		if _, err := st.Generate(t.Context(), "taken", s.algs[0]); !errors.Is(err, keys.ErrExists) {
			t.Errorf("second Generate: %v, want ErrExists", err)
		}
		k, err := st.Key(t.Context(), "taken")
		if err != nil || !samePublic(first, k) {
			t.Errorf("the first key is no longer there: %v", err)
		}
	}
}

func (s suite) oneOfManyGenerationsWins(t *testing.T) {
	t.Parallel()
	const n = 4
	st := s.open(t, t.TempDir())
	made, errs := make([]keys.Key, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { made[i], errs[i] = st.Generate(t.Context(), "raced", s.algs[0]) })
	}
	wg.Wait()
	var winner keys.Key
	for i := range n {
		switch {
		case errs[i] == nil && winner == nil:
			winner = made[i]
		case errs[i] == nil:
			t.Error("two generations won")
		case !errors.Is(errs[i], keys.ErrExists):
			t.Errorf("a loser got %v, want ErrExists", errs[i])
		}
	}
	if k, err := st.Key(t.Context(), "raced"); err != nil || winner == nil || !samePublic(winner, k) {
		t.Errorf("the winner's key is not the one that is there: %v", err)
	}
}

func (s suite) unknownAlgorithmTakesNoLabel(t *testing.T) {
	t.Parallel()
	st := s.open(t, t.TempDir())
	if _, err := st.Generate(t.Context(), "odd", "rot-13"); err == nil {
		t.Fatal("a key of an unknown algorithm was made")
	}
	if _, err := st.Key(t.Context(), "odd"); !errors.Is(err, keys.ErrNotFound) {
		t.Fatalf("Key = %v, want ErrNotFound", err)
	}
}

func (s suite) endedContextMakesNoKeyAndNoSignature(t *testing.T) {
	t.Parallel()
	st := s.open(t, t.TempDir())
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := st.Generate(ended, "late", s.algs[0]); !errors.Is(err, context.Canceled) {
		t.Errorf("Generate: %v, want context.Canceled", err)
	}
	k := generate(t, st, "late", s.algs[0])
	digest, opts := digestFor(k)
	if sig, err := k.Sign(ended, digest, opts); !errors.Is(err, context.Canceled) || sig != nil {
		t.Errorf("Sign = %x, %v; want context.Canceled", sig, err)
	}
}

func (s suite) wrongDigestIsNotSigned(t *testing.T) {
	t.Parallel()
	st := s.open(t, t.TempDir())
	for _, alg := range s.algs {
		if alg == keys.RSA3072 || alg == keys.RSA4096 {
			continue // as RSA2048, and slow to make
		}
		k := generate(t, st, string(alg), alg)
		if sig, err := k.Sign(t.Context(), make([]byte, 31), crypto.SHA256); err == nil {
			t.Errorf("%s signed a digest of 31 bytes as SHA-256: %x", alg, sig)
		}
		if sig, err := k.Sign(t.Context(), make([]byte, 32), nil); err == nil {
			t.Errorf("%s signed without options: %x", alg, sig)
		}
	}
}

func (s suite) manySignAtOnce(t *testing.T) {
	t.Parallel()
	st := s.open(t, t.TempDir())
	k := generate(t, st, "shared", s.algs[0])
	digest, opts := digestFor(k)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 8 {
				sig, err := k.Sign(t.Context(), digest, opts)
				if err != nil {
					t.Errorf("signing: %v", err)
					return
				}
				if err := verify(k.Public(), digest, sig, opts); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// destroyedKeyIsGone is for stores that can destroy keys.
func (s suite) destroyedKeyIsGone(t *testing.T) {
	t.Parallel()
	place := t.TempDir()
	st := s.open(t, place)
	d, can := st.(keys.Destroyer)
	if !can {
		return
	}
	first := generate(t, st, "gone", s.algs[0])
	kept := generate(t, st, "kept", s.algs[0])
	if err := d.Destroy(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	for _, st := range []StoreGenerator{st, s.open(t, place)} {
		if _, err := st.Key(t.Context(), "gone"); !errors.Is(err, keys.ErrNotFound) {
			t.Errorf("Key: %v, want ErrNotFound", err)
		}
		if k, err := st.Key(t.Context(), "kept"); err != nil || !samePublic(k, kept) {
			t.Errorf("another key is gone too: %v", err)
		}
	}
	if err := d.Destroy(t.Context(), "gone"); !errors.Is(err, keys.ErrNotFound) {
		t.Errorf("second Destroy: %v, want ErrNotFound", err)
	}
	if samePublic(first, generate(t, st, "gone", s.algs[0])) {
		t.Error("the destroyed key is back")
	}
}

func generate(t *testing.T, st StoreGenerator, label string, alg keys.Algorithm) keys.Key {
	t.Helper()
	k, err := st.Generate(t.Context(), label, alg)
	if err != nil {
		t.Fatalf("generating %q: %v", label, err)
	}
	return k
}

func checkSigns(t *testing.T, k keys.Key) {
	t.Helper()
	digest, opts := digestFor(k)
	all := []crypto.SignerOpts{opts}
	if _, ok := k.Public().(*rsa.PublicKey); ok {
		all = append(all, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: opts.HashFunc()})
	}
	for _, opts := range all {
		sig, err := k.Sign(t.Context(), digest, opts)
		if err != nil {
			t.Fatalf("signing with %T: %v", opts, err)
		}
		if err := verify(k.Public(), digest, sig, opts); err != nil {
			t.Fatal(err)
		}
	}
}

// digestFor makes what a certificate of such a key is signed over.
func digestFor(k keys.Key) ([]byte, crypto.SignerOpts) {
	message := []byte("to be signed")
	switch pub := k.Public().(type) {
	case ed25519.PublicKey:
		return message, crypto.Hash(0)
	case *ecdsa.PublicKey:
		switch pub.Curve.Params().BitSize {
		case 384:
			d := sha512.Sum384(message)
			return d[:], crypto.SHA384
		case 521:
			d := sha512.Sum512(message)
			return d[:], crypto.SHA512
		}
	}
	d := sha256.Sum256(message)
	return d[:], crypto.SHA256
}

func verify(pub crypto.PublicKey, digest, sig []byte, opts crypto.SignerOpts) error {
	ok := false
	switch pub := pub.(type) {
	case ed25519.PublicKey:
		ok = ed25519.Verify(pub, digest, sig)
	case *ecdsa.PublicKey:
		ok = ecdsa.VerifyASN1(pub, digest, sig)
	case *rsa.PublicKey:
		if pss, is := opts.(*rsa.PSSOptions); is {
			return rsa.VerifyPSS(pub, pss.Hash, digest, sig, pss)
		}
		return rsa.VerifyPKCS1v15(pub, opts.HashFunc(), digest, sig)
	}
	if !ok {
		return errors.New("the signature does not verify")
	}
	return nil
}

func samePublic(a, b keys.Key) bool {
	pa, ok := a.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && pa.Equal(b.Public())
}
