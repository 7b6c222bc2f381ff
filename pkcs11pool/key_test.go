package pkcs11pool

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/keys/keystest"
	"github.com/secsy-pki/secsy-pki/pkcs11pool/pkcs11test"
)

// openTokens opens a pool on tokens, in that order.
func openTokens(tb testing.TB, tokens ...pkcs11test.Token) *Pool {
	tb.Helper()
	return openPool(tb, Config{}, tokens...)
}

func openPool(tb testing.TB, cfg Config, tokens ...pkcs11test.Token) *Pool {
	tb.Helper()
	for _, t := range tokens {
		cfg.Tokens = append(cfg.Tokens, TokenConfig{
			Module: t.Module, Label: t.Label,
			PIN: func() ([]byte, error) { return []byte(pkcs11test.PIN), nil },
		})
	}
	p, err := Open(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Errorf("closing: %v", err)
		}
	})
	return p
}

// behindFaults opens a pool on n tokens behind a module that fails as it is told.
func behindFaults(tb testing.TB, n int) (*Pool, *pkcs11test.Fault) {
	tb.Helper()
	f, tokens := hsm.Fault(tb, n)
	return openPool(tb, Config{MinSessions: 2, MaxSessions: 3, CallTimeout: 20 * time.Second}, tokens...), f
}

func mustKey(tb testing.TB, p *Pool, ref string) keys.Key {
	tb.Helper()
	k, err := p.Key(tb.Context(), ref)
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

func mustGenerate(tb testing.TB, p *Pool, label string, alg keys.Algorithm) keys.Key {
	tb.Helper()
	k, err := p.Generate(tb.Context(), label, alg)
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

// signs has k sign something, and verifies that.
func signs(ctx context.Context, k keys.Key, opts crypto.SignerOpts) error {
	message := []byte("to be signed")
	digest := message
	if h := opts.HashFunc(); h != 0 {
		of := h.New()
		of.Write(message)
		digest = of.Sum(nil)
	}
	sig, err := k.Sign(ctx, digest, opts)
	if err != nil {
		return err
	}
	switch pub := k.Public().(type) {
	case *ecdsa.PublicKey:
		if !ecdsa.VerifyASN1(pub, digest, sig) {
			return errors.New("the signature is wrong")
		}
	case ed25519.PublicKey:
		return ed25519.VerifyWithOptions(pub, digest, sig, &ed25519.Options{})
	case *rsa.PublicKey:
		if pss, ok := opts.(*rsa.PSSOptions); ok {
			return rsa.VerifyPSS(pub, pss.Hash, digest, sig, pss)
		}
		return rsa.VerifyPKCS1v15(pub, opts.HashFunc(), digest, sig)
	}
	return nil
}

// importEC puts a key of ours on a token, with its public key object.
func importEC(tb testing.TB, p *Pool, t *token, label string, id []byte, k *ecdsa.PrivateKey, more ...*pkcs11.Attribute) {
	tb.Helper()
	d, err := k.Bytes()
	if err != nil {
		tb.Fatal(err)
	}
	both := []*pkcs11.Attribute{
		pkcs11.NewAttribute(pkcs11.CKA_KEY_TYPE, pkcs11.CKK_EC), pkcs11.NewAttribute(pkcs11.CKA_TOKEN, true),
		pkcs11.NewAttribute(pkcs11.CKA_LABEL, label), pkcs11.NewAttribute(pkcs11.CKA_ID, id), pkcs11.NewAttribute(pkcs11.CKA_EC_PARAMS, paramsOf(k.Curve)),
	}
	importObject(tb, p, t, slices.Concat(both, more, []*pkcs11.Attribute{
		pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_PRIVATE_KEY), pkcs11.NewAttribute(pkcs11.CKA_PRIVATE, true),
		pkcs11.NewAttribute(pkcs11.CKA_SENSITIVE, true), pkcs11.NewAttribute(pkcs11.CKA_SIGN, true), pkcs11.NewAttribute(pkcs11.CKA_VALUE, d),
	}))
	importObject(tb, p, t, slices.Concat(both, []*pkcs11.Attribute{
		pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_PUBLIC_KEY), pkcs11.NewAttribute(pkcs11.CKA_EC_POINT, octets(pointOf(&k.PublicKey))),
	}))
}

func TestTokensAreAStore(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	places := make(map[string]pkcs11test.Token)
	keystest.TestStore(t, func(t *testing.T, place string) keystest.StoreGenerator {
		take := func() pkcs11test.Token {
			mu.Lock()
			defer mu.Unlock()
			if _, known := places[place]; !known {
				places[place] = hsm.Take(t)
			}
			return places[place]
		}
		return openTokens(t, take())
	}, algorithms...)
}

func TestEveryKeySignsOverEveryHash(t *testing.T) {
	t.Parallel()
	p := openTokens(t, hsm.Take(t))
	hashes := []crypto.SignerOpts{crypto.SHA256, crypto.SHA384, crypto.SHA512}
	pss := []crypto.SignerOpts{&rsa.PSSOptions{Hash: crypto.SHA256}, &rsa.PSSOptions{Hash: crypto.SHA384, SaltLength: 20}, &rsa.PSSOptions{Hash: crypto.SHA512, SaltLength: rsa.PSSSaltLengthEqualsHash}}
	for alg, all := range map[keys.Algorithm][]crypto.SignerOpts{
		keys.ECDSAP256: hashes, keys.ECDSAP384: hashes, keys.ECDSAP521: hashes, keys.RSA2048: slices.Concat(hashes, pss), keys.Ed25519: {crypto.Hash(0)},
	} {
		k := mustGenerate(t, p, string(alg), alg)
		for _, opts := range all {
			if err := signs(t.Context(), k, opts); err != nil {
				t.Errorf("%s, %T over %v: %v", alg, opts, opts.HashFunc(), err)
			}
		}
	}
	k := mustKey(t, p, string(keys.ECDSAP256))
	if sig, err := k.Sign(t.Context(), make([]byte, 20), crypto.SHA1); err == nil {
		t.Errorf("SHA-1 was signed: %x", sig)
	}
}

// "No wrong signature is delivered" is held by looking where a fault gives the
// key away, and by the form alone of the others.
func TestADeviceThatSignsWronglyIsNotBelieved(t *testing.T) {
	t.Parallel()
	p, f := behindFaults(t, 1)
	pss := &rsa.PSSOptions{Hash: crypto.SHA256}
	digest := make([]byte, 32)
	for alg, all := range map[keys.Algorithm][]crypto.SignerOpts{keys.RSA2048: {crypto.SHA256, pss}, keys.Ed25519: {crypto.Hash(0)}} {
		k := mustGenerate(t, p, string(alg), alg)
		for _, opts := range all {
			f.Script(t, "C_Sign * corrupt")
			if sig, err := k.Sign(t.Context(), digest, opts); !errors.Is(err, errWrongSignature) || errors.Is(err, keys.ErrBusy) || sig != nil {
				t.Errorf("%s: %x, %v", alg, sig, err)
			}
			f.Script(t)
			untilNotBusy(t, p, func() error { return signs(t.Context(), k, opts) })
		}
	}
}

// untilNotBusy does something once the device can be called. A session whose
// errors are suspicious is closed, and with the last one the login is lost.
func untilNotBusy(tb testing.TB, p *Pool, do func() error) {
	tb.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; p.sleep(5 * time.Millisecond) {
		err := do()
		if err != nil && errors.Is(err, keys.ErrBusy) && time.Now().Before(deadline) {
			continue
		}
		if err != nil {
			tb.Error(err)
		}
		return
	}
}

// A signature that is the same every time is asked for once more, of another session.
func TestAWrongSignatureIsNotTheLastWord(t *testing.T) {
	t.Parallel()
	p, f := behindFaults(t, 2)
	for _, tok := range p.tokens {
		importRSA(t, p, tok, "k", rsaKey(), false)
	}
	k := mustKey(t, p, "k")
	f.Script(t, "C_Sign 1 corrupt")
	if err := signs(t.Context(), k, crypto.SHA256); err != nil {
		t.Error(err)
	}
	if n := f.Book(t).Signatures; n != 2 {
		t.Errorf("%d signatures, want the wrong one and another", n)
	}
}

// waitUp waits until all tokens are up.
func waitUp(tb testing.TB, p *Pool) {
	tb.Helper()
	up := func() bool {
		return !slices.ContainsFunc(p.Stat().Tokens, func(s TokenStat) bool { return s.State != Up })
	}
	for deadline := time.Now().Add(30 * time.Second); !up(); {
		if time.Now().After(deadline) {
			tb.Fatalf("not all up: %+v", p.Stat().Tokens)
		}
		p.sleep(5 * time.Millisecond)
	}
}

func TestAHandleThatMeansNothingAnyMoreIsFoundAnew(t *testing.T) {
	t.Parallel()
	p, f := behindFaults(t, 1)
	k := mustGenerate(t, p, "k", keys.ECDSAP256)
	if err := signs(t.Context(), k, crypto.SHA256); err != nil {
		t.Fatal(err)
	}
	for _, code := range []uint{pkcs11.CKR_KEY_HANDLE_INVALID, pkcs11.CKR_OBJECT_HANDLE_INVALID} {
		for _, call := range []string{"C_SignInit", "C_Sign"} {
			f.Script(t, fmt.Sprintf("%s 1 return %#x", call, code))
			before := f.Book(t).Functions["C_FindObjectsInit"].Calls
			if err := signs(t.Context(), k, crypto.SHA256); err != nil {
				t.Errorf("%s says %#x once: %v", call, code, err)
			}
			if f.Book(t).Functions["C_FindObjectsInit"].Calls == before {
				t.Errorf("%s says %#x once: the key was not looked for", call, code)
			}
			before = f.Book(t).Functions["C_FindObjectsInit"].Calls
			if err := signs(t.Context(), k, crypto.SHA256); err != nil || f.Book(t).Functions["C_FindObjectsInit"].Calls != before {
				t.Errorf("the key is looked for again with each signature: %v", err)
			}
		}
		f.Script(t, fmt.Sprintf("C_SignInit * return %#x", code))
		if err := signs(t.Context(), k, crypto.SHA256); !errors.Is(err, keys.ErrBusy) {
			t.Errorf("%#x for ever: %v, want busy, as nothing was signed", code, err)
		}
		f.Script(t)
	}
	other := openTokens(t, pkcs11test.Token{Module: p.tokens[0].cfg.Module, Label: p.tokens[0].cfg.Label})
	if err := other.Destroy(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	before := f.Book(t).Signatures
	for range 2 {
		if err := signs(t.Context(), k, crypto.SHA256); !errors.Is(err, keys.ErrBusy) || f.Book(t).Signatures != before {
			t.Errorf("a key that somebody destroyed: %v, want busy, as nothing was signed", err)
		}
	}
	if err := keys.Ready(k); !errors.Is(err, keys.ErrBusy) {
		t.Errorf("it is ready: %v", err)
	}
}

func TestAKeyIsUsedOnTheTokensThatHaveIt(t *testing.T) {
	t.Parallel()
	p, f := behindFaults(t, 3)
	none, one, both := newPrivate(elliptic.P256()), newPrivate(elliptic.P256()), newPrivate(elliptic.P256())
	importEC(t, p, p.tokens[1], "one", []byte{1}, one)
	for _, tok := range p.tokens[1:] {
		importEC(t, p, tok, "both", []byte{2}, both)
	}
	importEC(t, p, p.tokens[0], "unlike", []byte{3}, one)
	importEC(t, p, p.tokens[2], "unlike", []byte{3}, none)

	onlyOne, onBoth := mustKey(t, p, "one"), mustKey(t, p, "both")
	signatures := func() (n [3]int) {
		for i, tok := range p.tokens {
			n[i] = f.Book(t).Tokens[tok.name].Signatures
		}
		return n
	}
	for range 20 {
		if err := errors.Join(signs(t.Context(), onlyOne, crypto.SHA256), signs(t.Context(), onBoth, crypto.SHA256)); err != nil {
			t.Fatal(err)
		}
	}
	if n := signatures(); n[0] != 0 || n[1] < 25 || n[2] < 5 || n[1]+n[2] != 40 {
		t.Errorf("signatures on the tokens: %v", n)
	}
	if _, err := p.Key(t.Context(), "unlike"); err == nil || errors.Is(err, keys.ErrNotFound) || errors.Is(err, keys.ErrBusy) || !strings.Contains(err.Error(), p.tokens[0].name) || !strings.Contains(err.Error(), p.tokens[2].name) {
		t.Errorf("tokens with different keys: %v", err)
	}

	f.Script(t, "@"+p.tokens[1].name+" token removed")
	for range 5 {
		if err := signs(t.Context(), onBoth, crypto.SHA256); err != nil {
			t.Errorf("with one of two tokens away: %v", err)
		}
	}
	if err := signs(t.Context(), onlyOne, crypto.SHA256); !errors.Is(err, keys.ErrBusy) {
		t.Errorf("the only token is away: %v", err)
	}
	if err := keys.Ready(onlyOne); !errors.Is(err, keys.ErrBusy) {
		t.Errorf("ready without its only token: %v", err)
	}
	if err := keys.Ready(onBoth); err != nil {
		t.Errorf("not ready with one of two tokens: %v", err)
	}
	// Nobody knows what the token that is away has.
	if _, err := p.Key(t.Context(), "nobody"); !errors.Is(err, keys.ErrBusy) || errors.Is(err, keys.ErrNotFound) {
		t.Errorf("a key that the token which is away may have: %v", err)
	}
	if _, err := p.Generate(t.Context(), "nobody", keys.ECDSAP256); !errors.Is(err, keys.ErrBusy) {
		t.Errorf("a key was made whose label may be taken: %v", err)
	}
	if err := p.Destroy(t.Context(), "both"); !errors.Is(err, keys.ErrBusy) {
		t.Errorf("a key was destroyed on some tokens: %v", err)
	}
	if err := signs(t.Context(), onBoth, crypto.SHA256); err != nil {
		t.Errorf("after Destroy has done nothing: %v", err)
	}
	f.Script(t)
	waitUp(t, p)
	if err := signs(t.Context(), onlyOne, crypto.SHA256); err != nil {
		t.Errorf("the only token is back: %v", err)
	}
	if _, err := p.Key(t.Context(), "nobody"); !errors.Is(err, keys.ErrNotFound) {
		t.Errorf("a key that no token has: %v", err)
	}
}

// What a token had not it may have when it comes back; and another key of the
// name is not the key.
func TestATokenThatComesBackIsAskedAgain(t *testing.T) {
	t.Parallel()
	p, f := behindFaults(t, 2)
	private := newPrivate(elliptic.P256())
	importEC(t, p, p.tokens[0], "k", []byte{1}, private)
	k := mustKey(t, p, "k")
	signedBy := func(i, times int) bool {
		t.Helper()
		before := f.Book(t).Tokens[p.tokens[i].name].Signatures
		for range times { // each token has its turn, once it has sessions again
			untilNotBusy(t, p, func() error { return signs(t.Context(), k, crypto.SHA256) })
			if f.Book(t).Tokens[p.tokens[i].name].Signatures > before {
				return true
			}
		}
		return false
	}
	const seldom, often = 20, 2000
	restart := func(i int) {
		t.Helper()
		was := p.tokens[i].objects()
		f.Script(t, "@"+p.tokens[i].name+" token reset")
		for range 100 {
			_, _ = p.List(t.Context()) // somebody has to notice
			if p.tokens[i].objects() != was {
				break
			}
		}
		waitUp(t, p)
		f.Script(t)
		if p.tokens[i].objects() == was {
			t.Fatal("nobody has noticed that the token was restarted")
		}
	}
	other := newPrivate(elliptic.P256())
	importEC(t, p, p.tokens[1], "k", []byte{1}, other)
	if signedBy(1, seldom) {
		t.Error("a token that had not the key has signed with another")
	}
	restart(1)
	if signedBy(1, seldom) {
		t.Error("a token has signed with another key of the name")
	}
	err := p.do(t.Context(), &job{op: "replacing", rw: true, on: func(tok *token) bool { return tok == p.tokens[1] }, run: func(c *conn) error {
		at, err := p.lookUp(c, ref{label: "k"})
		if err != nil {
			return err
		}
		return destroyAt(c, at)
	}})
	if err != nil {
		t.Fatal(err)
	}
	importEC(t, p, p.tokens[1], "k", []byte{1}, private)
	restart(1)
	if !signedBy(1, often) {
		t.Error("a token that has the key now is not asked")
	}
	restart(0)
	if !signedBy(0, often) {
		t.Error("a token that has come back is not asked")
	}
}

func TestAKeyThatAsksForThePINGetsItEachTime(t *testing.T) {
	t.Parallel()
	p, f := behindFaults(t, 1)
	importEC(t, p, p.tokens[0], "careful", []byte{1}, newPrivate(elliptic.P256()), pkcs11.NewAttribute(pkcs11.CKA_ALWAYS_AUTHENTICATE, true))
	k := mustKey(t, p, "careful")
	before := f.Book(t).Functions["C_Login"].Calls
	for range 5 {
		if err := signs(t.Context(), k, crypto.SHA256); err != nil {
			t.Fatal(err)
		}
	}
	if n := f.Book(t).Functions["C_Login"].Calls - before; n != 5 {
		t.Errorf("%d logins for 5 signatures", n)
	}
	f.Script(t, fmt.Sprintf("C_Login * return %#x", uint(pkcs11.CKR_PIN_INCORRECT)))
	before = f.Book(t).Functions["C_Login"].Calls
	for range 5 {
		if err := signs(t.Context(), k, crypto.SHA256); !errors.Is(err, ErrPIN) {
			t.Errorf("a wrong PIN: %v", err)
		}
	}
	if n := f.Book(t).Functions["C_Login"].Calls - before; n != 1 {
		t.Errorf("a wrong PIN was tried %d times", n)
	}
}

func TestAKeyThatIsMadeCanOnlySign(t *testing.T) {
	t.Parallel()
	p := openTokens(t, hsm.Take(t))
	for _, alg := range []keys.Algorithm{keys.ECDSAP256, keys.RSA2048, keys.Ed25519} {
		if k := mustGenerate(t, p, string(alg), alg); func() bool { _, can := k.(keys.Decrypter); return can }() {
			t.Errorf("a key of %s decrypts", alg)
		}
	}
	k, err := p.GenerateWith(t.Context(), "scep", keys.RSA2048, GenerateOptions{Decrypt: true})
	if err != nil {
		t.Fatal(err)
	}
	secret := []byte("a session key...")
	sealed, err := rsa.EncryptOAEPWithOptions(rand.Reader, k.Public().(*rsa.PublicKey), secret, &oaepOptions{Hash: crypto.SHA256})
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := k.(keys.Decrypter).Decrypt(t.Context(), sealed, &oaepOptions{Hash: crypto.SHA256}); err != nil || !bytes.Equal(plain, secret) {
		t.Errorf("a key that was made to decrypt: %q, %v", plain, err)
	}
	all, err := p.List(t.Context())
	if err != nil || len(all) != 4 {
		t.Fatalf("%d keys are listed: %v", len(all), err)
	}
	for _, o := range all {
		if !o.Sensitive || o.Extractable || !o.NeverExtractable || !o.Local || o.AlwaysAuthenticate || !o.Sign || o.Decrypt != (o.Label == "scep") || len(o.ID) != 32 || o.Certificate != nil {
			t.Errorf("%+v", o)
		}
		if !samePublic(o.Public, mustKey(t, p, o.Label).Public()) || o.Label != "scep" && string(o.Algorithm) != o.Label {
			t.Errorf("%s has the algorithm %s, or another public key", o.Label, o.Algorithm)
		}
		found, err := ask(t.Context(), p, p.tokens[0], "looking", func(c *conn) (map[uint][]byte, error) {
			at, err := p.lookUp(c, ref{label: o.Label})
			if err != nil {
				return nil, err
			}
			return attributes(c, at.handle, pkcs11.CKA_UNWRAP, pkcs11.CKA_DERIVE, pkcs11.CKA_SIGN_RECOVER, pkcs11.CKA_MODIFIABLE, pkcs11.CKA_COPYABLE)
		})
		if err != nil || len(found) != 5 {
			t.Fatalf("%v, %v", found, err)
		}
		for attribute, v := range found {
			if yes(v) {
				t.Errorf("%s: attribute %#x is set", o.Label, attribute)
			}
		}
	}
}

func TestAKeyIsMadeByTheURIThatNamesIt(t *testing.T) {
	t.Parallel()
	p := openTokens(t, hsm.Take(t))
	made := mustGenerate(t, p, "pkcs11:object=issuing;id=%01%02", keys.ECDSAP256)
	for _, ref := range []string{"issuing", "pkcs11:id=%01%02", "pkcs11:object=issuing;token=" + p.tokens[0].name} {
		if k := mustKey(t, p, ref); !samePublic(k.Public(), made.Public()) {
			t.Errorf("%s is another key", ref)
		}
	}
	for _, ref := range []string{"issuing", "pkcs11:object=other;id=%01%02"} {
		if _, err := p.Generate(t.Context(), ref, keys.ECDSAP256); !errors.Is(err, keys.ErrExists) {
			t.Errorf("%s again: %v", ref, err)
		}
	}
	if _, err := p.Generate(t.Context(), "pkcs11:object=other;token=elsewhere", keys.ECDSAP256); err == nil {
		t.Error("a key was made on another token than the URI names")
	}
}

// Labels are unique to those who ask at once through pools of their own, as
// processes do. SoftHSM at times fails one of several who make keys at once: what
// came of that nobody knows.
func TestOfManyWhoMakeOneLabelOneWins(t *testing.T) {
	t.Parallel()
	tok := hsm.Take(t)
	pools := []*Pool{openTokens(t, tok), openTokens(t, tok), openTokens(t, tok)}
	decided := 0
	for round := range 16 {
		label := fmt.Sprintf("raced-%d", round)
		made, errs := make([]keys.Key, len(pools)), make([]error, len(pools))
		var all sync.WaitGroup
		for i, p := range pools {
			all.Go(func() { made[i], errs[i] = p.Generate(t.Context(), label, keys.ECDSAP256) })
		}
		all.Wait()
		won := slices.DeleteFunc(made, func(k keys.Key) bool { return k == nil })
		if len(won) > 1 {
			t.Fatalf("%d won", len(won))
		}
		if slices.ContainsFunc(errs, func(err error) bool { return err != nil && !errors.Is(err, keys.ErrExists) }) {
			t.Log(errors.Join(errs...))
			continue
		}
		decided++
		listed, err := pools[0].List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		listed = slices.DeleteFunc(listed, func(o Object) bool { return o.Label != label })
		if len(listed) != len(won) || len(won) == 1 && !samePublic(won[0].Public(), listed[0].Public) {
			t.Errorf("%d won, and %d keys are there", len(won), len(listed))
		}
	}
	if decided < 4 {
		t.Errorf("%d rounds ended without a fault of the device", decided)
	}
}

// Signing the same bytes twice may do no harm, but nobody wants a second key. So
// after an error that leaves open whether there is a key, it is looked first.
func TestAnAttemptToMakeAKeyThatMayHaveSucceededMakesNoSecond(t *testing.T) {
	t.Parallel()
	p, f := behindFaults(t, 1)
	f.Script(t, fmt.Sprintf("C_GenerateKeyPair 1 after return %#x", uint(pkcs11.CKR_DEVICE_ERROR)))
	if k, err := p.Generate(keys.Repeatable(t.Context()), "k", keys.ECDSAP256); err == nil || errors.Is(err, keys.ErrBusy) {
		t.Errorf("%v, %v", k, err)
	}
	if all, err := p.List(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%d keys are there: %v", len(all), err)
	}
}

// objectsOf counts what a token has of an ID.
func objectsOf(t *testing.T, p *Pool, id []byte) int {
	t.Helper()
	n, err := ask(t.Context(), p, p.tokens[0], "counting", func(c *conn) (int, error) {
		found, err := find(c, []*pkcs11.Attribute{pkcs11.NewAttribute(pkcs11.CKA_ID, id)}, maxMatches)
		return len(found), err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestDestroyingTakesAllThatBelongsToTheKeyAndNoMore(t *testing.T) {
	t.Parallel()
	p := openTokens(t, hsm.Take(t))
	gone := mustGenerate(t, p, "pkcs11:object=gone;id=%01", keys.ECDSAP256)
	kept := mustGenerate(t, p, "pkcs11:object=kept;id=%02", keys.ECDSAP256)
	for label, k := range map[string]keys.Key{"gone": gone, "kept": kept} {
		if err := p.StoreCertificate(t.Context(), label, newCertificate(t, keys.Signer(t.Context(), k), label)); err != nil {
			t.Fatal(err)
		}
	}
	twin := newPrivate(elliptic.P256())
	importEC(t, p, p.tokens[0], "twin", []byte{1}, twin) // the ID of another key
	if n := objectsOf(t, p, []byte{1}); n != 5 {
		t.Fatalf("%d objects before", n)
	}
	if err := p.Destroy(t.Context(), "pkcs11:id=%01"); !errors.Is(err, errSeveral) {
		t.Errorf("one of two keys of an ID was destroyed: %v", err)
	}
	if err := p.Destroy(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	if n := objectsOf(t, p, []byte{1}); n != 2 { // the twin's
		t.Errorf("%d objects are left", n)
	}
	if err := signs(t.Context(), mustKey(t, p, "twin"), crypto.SHA256); err != nil {
		t.Errorf("the key of the same ID: %v", err)
	}
	if n := objectsOf(t, p, []byte{2}); n != 3 {
		t.Errorf("%d objects of another key are left", n)
	}
	for range 2 {
		if err := signs(t.Context(), gone, crypto.SHA256); !errors.Is(err, keys.ErrNotFound) {
			t.Errorf("a destroyed key signs: %v", err)
		}
	}
	if err := signs(t.Context(), kept, crypto.SHA256); err != nil {
		t.Errorf("another key: %v", err)
	}
	for _, ref := range []string{"gone", "", "pkcs11:object=gone", "pkcs11:object=kept;token=elsewhere"} {
		if err := p.Destroy(t.Context(), ref); !errors.Is(err, keys.ErrNotFound) {
			t.Errorf("destroying %q: %v", ref, err)
		}
	}
}

// What has its handle then is up to the token, also for who was in the queue.
func TestAKeyThatIsDestroyedMeanwhileIsNotUsed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newDevice(t, 1).pool(t, at("a"))
		k := p.newKey(ref{text: "k"}, newPrivate(elliptic.P256()).Public())
		signing := func(run func() error) error {
			_, err := work(t.Context(), k, job{op: "signing", on: k.signs}, func(*conn) (struct{}, bool, error) { return struct{}{}, true, run() })
			return err
		}
		err := signing(func() error {
			k.destroyed.Store(true)
			return nil
		})
		if !errors.Is(err, keys.ErrNotFound) || errors.Is(err, keys.ErrBusy) {
			t.Errorf("destroyed while it signed: %v", err)
		}
		k.destroyed.Store(false)
		var lets []func()
		var all []<-chan error
		for range p.cfg.MaxSessions {
			j, let := hold()
			lets, all = append(lets, let), append(all, begin(t.Context(), p, j))
		}
		queued := make(chan error, 1)
		go func() {
			queued <- signing(func() error { t.Error("used"); return nil })
		}()
		wait(0)
		k.destroyed.Store(true)
		for i, let := range lets {
			let()
			if err := <-all[i]; err != nil {
				t.Error(err)
			}
		}
		if err := <-queued; !errors.Is(err, keys.ErrNotFound) {
			t.Errorf("destroyed while it was queued: %v", err)
		}
	})
}

func TestACertificateStandsBesideItsKeyAlone(t *testing.T) {
	t.Parallel()
	p, f := behindFaults(t, 1)
	k, other := mustGenerate(t, p, "k", keys.ECDSAP256), mustGenerate(t, p, "other", keys.ECDSAP256)
	certify := func(k keys.Key, name string) *x509.Certificate {
		return newCertificate(t, keys.Signer(t.Context(), k), name)
	}
	if err := p.StoreCertificate(t.Context(), "k", certify(other, "other")); err == nil {
		t.Error("a certificate of another key was stored")
	}
	if err := p.StoreCertificate(t.Context(), "nobody", certify(k, "k")); !errors.Is(err, keys.ErrNotFound) {
		t.Errorf("a certificate without a key: %v", err)
	}
	first, second := certify(k, "first"), certify(k, "second")
	for _, cert := range []*x509.Certificate{first, first, second} {
		if err := p.StoreCertificate(t.Context(), "k", cert); err != nil {
			t.Fatal(err)
		}
		all, err := p.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range all {
			if o.Label == "k" && (o.Certificate == nil || !o.Certificate.Equal(cert)) || o.Label == "other" && o.Certificate != nil {
				t.Errorf("%s has the certificate %v, want that of %s", o.Label, o.Certificate, cert.Subject)
			}
		}
	}
	if n := f.Book(t).Functions["C_CreateObject"].Calls; n != 2 {
		t.Errorf("two certificates were written %d times", n)
	}
	stored, err := ask(t.Context(), p, p.tokens[0], "looking", func(c *conn) ([]map[uint][]byte, error) {
		objects, err := find(c, beside(pkcs11.CKO_CERTIFICATE, nil, []byte("k")), maxMatches)
		var all []map[uint][]byte
		for _, o := range objects {
			a, err := attributes(c, o, pkcs11.CKA_SUBJECT, pkcs11.CKA_ISSUER, pkcs11.CKA_SERIAL_NUMBER, pkcs11.CKA_CERTIFICATE_TYPE, pkcs11.CKA_ID)
			if err != nil {
				return nil, err
			}
			all = append(all, a)
		}
		return all, err
	})
	if err != nil || len(stored) != 1 {
		t.Fatalf("%d certificates are there: %v", len(stored), err)
	}
	at := keyOf(k).place(p.tokens[0]).Load()
	for attribute, want := range map[uint][]byte{
		pkcs11.CKA_SUBJECT: second.RawSubject, pkcs11.CKA_ISSUER: second.RawIssuer, pkcs11.CKA_SERIAL_NUMBER: {0x02, 0x02, 0x01, 0x2c},
		pkcs11.CKA_CERTIFICATE_TYPE: nil, pkcs11.CKA_ID: at.id,
	} {
		if got := stored[0][attribute]; want != nil && !bytes.Equal(got, want) || want == nil && number(got) != pkcs11.CKC_X_509 {
			t.Errorf("attribute %#x is %x, want %x", attribute, got, want)
		}
	}
}

func TestWhatTokensSaidMakesOneVerdict(t *testing.T) {
	t.Parallel()
	a, b := newPrivate(elliptic.P256()).Public(), newPrivate(elliptic.P256()).Public()
	has := func(pub crypto.PublicKey) *place { return &place{public: pub} }
	unfit := &place{why: errors.New("odd")}
	absent := &place{why: keys.ErrNotFound}
	away := &keys.BusyError{Reason: "unavailable", RetryAfter: 7 * time.Second}
	for name, c := range map[string]struct {
		said []*place // nil: away
		want error    // nil: there; errDifferent: another error
	}{
		"all have it":             {[]*place{has(a), has(a)}, nil},
		"one has it":              {[]*place{absent, has(a), nil, unfit}, nil},
		"none has it":             {[]*place{absent, absent}, keys.ErrNotFound},
		"one may have it":         {[]*place{absent, nil}, keys.ErrBusy},
		"all are away":            {[]*place{nil, nil}, keys.ErrBusy},
		"one has it, unfit":       {[]*place{absent, unfit}, unfit.why},
		"one unfit, one away":     {[]*place{nil, unfit}, unfit.why},
		"different keys, and odd": {[]*place{has(a), nil, has(b), has(a)}, errDifferent},
	} {
		s := survey{ref: ref{text: "k"}}
		for i, at := range c.said {
			var err error
			if at == nil {
				err = away
			}
			s.add(&token{name: fmt.Sprint(i)}, at, err)
		}
		err := s.verdict()
		if c.want == nil && err != nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if busy, ok := errors.AsType[*keys.BusyError](err); ok && busy.RetryAfter != away.RetryAfter {
			t.Errorf("%s: come again in %v", name, busy.RetryAfter)
		}
	}
}

// The ring forgets what is found again anyway.
func TestKeysAreRememberedWithinBounds(t *testing.T) {
	t.Parallel()
	p := &Pool{}
	first := p.newKey(ref{}, newPrivate(elliptic.P256()).Public())
	if k := p.ring.keep("k", first); k != keys.Key(first) || p.ring.keep("k", p.newKey(ref{}, first.public)) != keys.Key(first) {
		t.Error("two keys of one name")
	}
	for i := range 2 * maxKeys {
		p.ring.keep(fmt.Sprint(i), first)
	}
	if n := len(p.ring.keys); n != maxKeys {
		t.Errorf("%d keys are remembered", n)
	}
	p.ring.forget(first.public)
	if len(p.ring.keys) != 0 || !first.destroyed.Load() {
		t.Errorf("%d are left, destroyed %v", len(p.ring.keys), first.destroyed.Load())
	}
}
