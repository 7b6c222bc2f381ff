package cms

import (
	"bytes"
	"context"
	"crypto"
	"crypto/cipher"
	"crypto/rand"
	"crypto/rsa"
	"encoding/asn1"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"
)

var allCiphers = []Cipher{AES128CBC, AES192CBC, AES256CBC, TripleDESCBC}

func TestWhatIsSealedOpens(t *testing.T) {
	t.Parallel()
	o := rsaOwner()
	for _, c := range allCiphers {
		for _, oaep := range []crypto.Hash{0, crypto.SHA1, crypto.SHA256} {
			for _, n := range []int{0, 1, 15, 16, 17, 5000} {
				content := bytes.Repeat([]byte{16}, n) // as padding looks
				der, err := Seal(OIDData, content, c, TransportTo{otherRSAOwner().cert, 0}, TransportTo{o.cert, oaep})
				if err != nil {
					t.Fatal(err)
				}
				ed, err := ParseEnvelopedData(der)
				if err != nil {
					t.Fatal(err)
				}
				if ed.Cipher != c || len(ed.Transports) != 2 || ed.Transports[0].For(o.cert) || !ed.Transports[1].For(o.cert) || ed.Transports[1].OAEP() != oaep {
					t.Fatalf("read back %+v", ed)
				}
				got, err := ed.Open(t.Context(), ed.Transports[1], o)
				if err != nil || !bytes.Equal(got, content) {
					t.Errorf("%v, OAEP %v, %d octets: %v", c, oaep, n, err)
				}
				if _, err := ed.Open(t.Context(), ed.Transports[0], o); oaep != 0 && err != nil && !errors.Is(err, ErrDecrypt) {
					t.Errorf("by another key: %v", err)
				}
			}
		}
	}
}

func TestWhatIsSealedByPasswordOpens(t *testing.T) {
	t.Parallel()
	for _, c := range allCiphers {
		der, err := Seal(OIDData, []byte("content"), c, ByPassword{Password: []byte("secret"), Iterations: 100})
		if err != nil {
			t.Fatal(err)
		}
		ed, err := ParseEnvelopedData(der)
		if err != nil || len(ed.Passwords) != 1 || ed.Passwords[0].Iterations() != 100 {
			t.Fatalf("%+v, %v", ed, err)
		}
		got, err := ed.OpenByPassword(ed.Passwords[0], []byte("secret"), 100)
		if err != nil || string(got) != "content" {
			t.Errorf("%v: %q, %v", c, got, err)
		}
		if _, err := ed.OpenByPassword(ed.Passwords[0], []byte("Secret"), 100); !errors.Is(err, ErrDecrypt) {
			t.Errorf("%v: wrong password: %v", c, err)
		}
		if _, err := ed.OpenByPassword(ed.Passwords[0], []byte("secret"), 99); !errors.Is(err, ErrAlgorithm) {
			t.Errorf("%v: too many iterations: %v", c, err)
		}
		out := mustOpenssl(t, der, "cms", "-decrypt", "-inform", "DER", "-pwri_password", "secret")
		if string(out) != "content" {
			t.Errorf("openssl opens %q", out)
		}
		isDER(t, der)
	}
}

func TestOpenSSLOpensWhatIsSealedAndTheOtherWayRound(t *testing.T) {
	t.Parallel()
	o := rsaOwner()
	cert, key := o.files(t)
	content := bytes.Repeat([]byte("content "), 2000)
	names := map[Cipher]string{AES128CBC: "-aes-128-cbc", AES192CBC: "-aes-192-cbc", AES256CBC: "-aes-256-cbc", TripleDESCBC: "-des3"}
	for c, name := range names {
		for oaep, opts := range map[crypto.Hash][]string{
			0:             nil,
			crypto.SHA1:   {"-keyopt", "rsa_padding_mode:oaep"},
			crypto.SHA256: {"-keyopt", "rsa_padding_mode:oaep", "-keyopt", "rsa_oaep_md:sha256", "-keyopt", "rsa_mgf1_md:sha256"},
		} {
			der, err := Seal(OIDData, content, c, TransportTo{o.cert, oaep})
			if err != nil {
				t.Fatal(err)
			}
			isDER(t, der)
			if out := mustOpenssl(t, der, "cms", "-decrypt", "-binary", "-inform", "DER", "-recip", cert, "-inkey", key); !bytes.Equal(out, content) {
				t.Errorf("openssl opens another content of %v, OAEP %v", c, oaep)
			}
			for _, more := range [][]string{nil, {"-keyid"}, {"-stream"}} {
				args := append([]string{"cms", "-encrypt", "-binary", "-outform", "DER", name, "-recip", cert}, opts...)
				ed, err := ParseEnvelopedData(mustOpenssl(t, content, append(args, more...)...))
				if err != nil {
					t.Fatal(err)
				}
				if len(ed.Transports) != 1 || !ed.Transports[0].For(o.cert) || ed.Transports[0].OAEP() != oaep {
					t.Fatalf("%v %v: recipients %+v", args, more, ed.Transports)
				}
				if got, err := ed.Open(t.Context(), ed.Transports[0], o); err != nil || !bytes.Equal(got, content) {
					t.Errorf("%v %v: %v", args, more, err)
				}
			}
		}
		out := mustOpenssl(t, content, "cms", "-encrypt", "-binary", "-outform", "DER", name, "-pwri_password", "secret", "-stream")
		ed, err := ParseEnvelopedData(out)
		if err != nil || len(ed.Passwords) != 1 {
			t.Fatalf("%v", err)
		}
		if got, err := ed.OpenByPassword(ed.Passwords[0], []byte("secret"), 10_000); err != nil || !bytes.Equal(got, content) {
			t.Errorf("by openssl for a password, %s: %v", name, err)
		}
	}
}

// A counter counts what it is asked for, and answers as it is told.
type counter struct {
	owner
	asked int
	err   error
	key   []byte
}

func (c *counter) Decrypt(ctx context.Context, ciphertext []byte, opts crypto.DecrypterOpts) ([]byte, error) {
	c.asked++
	if c.err != nil || c.key != nil {
		return c.key, c.err
	}
	return c.owner.Decrypt(ctx, ciphertext, opts)
}

// sealedWith is an envelope with any algorithms, key and octets.
func sealedWith(content, transport asn1.ObjectIdentifier, iv, encryptedKey, ciphertext []byte) []byte {
	id := identify(rsaOwner().cert)
	der, err := build(OIDEnvelopedData, func(b *cryptobyte.Builder) {
		b.AddASN1Int64(0)
		b.AddASN1(casn1.SET, func(b *cryptobyte.Builder) {
			b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
				b.AddASN1Int64(0)
				id.add(b)
				addAlgorithm(b, transport, addNull)
				b.AddASN1OctetString(encryptedKey)
			})
		})
		b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1ObjectIdentifier(OIDData)
			addAlgorithm(b, content, func(b *cryptobyte.Builder) { b.AddASN1OctetString(iv) })
			b.AddASN1(implicit0, func(b *cryptobyte.Builder) { b.AddBytes(ciphertext) })
		})
	})
	if err != nil {
		panic(err)
	}
	return der
}

// What can be refused without a private key is.
func TestWhatCannotBeOpenedCostsNoDecryption(t *testing.T) {
	t.Parallel()
	oidDES := asn1.ObjectIdentifier{1, 3, 14, 3, 2, 7}
	iv, key, text := make([]byte, 16), make([]byte, 256), make([]byte, 32)
	for name, c := range map[string]struct {
		der  []byte
		want error
	}{
		"single DES":                    {sealedWith(oidDES, oidRSA, iv[:8], key, text), ErrAlgorithm},
		"triple DES":                    {sealedWith(oid3DESCBC, oidRSA, iv[:8], key, text), ErrAlgorithm},
		"key agreement":                 {sealedWith(oidAES128CBC, oidECDSAWithSHA1, iv, key, text), ErrAlgorithm},
		"OAEP with bad parameters":      {sealedWith(oidAES128CBC, oidOAEP, iv, key, text), ErrAlgorithm},
		"a short IV":                    {sealedWith(oidAES128CBC, oidRSA, iv[:15], key, text), ErrMalformed},
		"a long IV":                     {sealedWith(oidAES128CBC, oidRSA, text, key, text), ErrMalformed},
		"no content":                    {sealedWith(oidAES128CBC, oidRSA, iv, key, nil), ErrMalformed},
		"content not of whole blocks":   {sealedWith(oidAES128CBC, oidRSA, iv, key, text[:31]), ErrMalformed},
		"content shorter than a block":  {sealedWith(oidAES128CBC, oidRSA, iv, key, text[:1]), ErrMalformed},
		"nothing wrong but the content": {sealedWith(oidAES128CBC, oidRSA, iv, key, text), nil},
	} {
		ed, err := ParseEnvelopedData(c.der)
		if err == nil {
			err = ed.Check(ed.Transports[0], false)
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// Bleichenbacher and Vaudenay: of bad RSA padding, a key of another length, bad CBC
// padding and content that is no content nothing is told apart, and each takes the
// same road to the end.
func TestWhatIsWrongInsideIsAllTheSame(t *testing.T) {
	t.Parallel()
	o := rsaOwner()
	pub := o.cert.PublicKey.(*rsa.PublicKey)
	transported := func(key []byte) []byte {
		out, err := rsa.EncryptPKCS1v15(rand.Reader, pub, key) //nolint:staticcheck // SCEP (RFC 8894) has no other padding
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	key := bytes.Repeat([]byte{7}, 16)
	blocks := func(last ...byte) []byte { // AES-CBC of a block and of one that ends with last
		plain := make([]byte, 32)
		copy(plain[32-len(last):], last)
		block, err := ciphers[AES128CBC].block(key)
		if err != nil {
			t.Fatal(err)
		}
		out := make([]byte, 32)
		cipher.NewCBCEncrypter(block, make([]byte, 16)).CryptBlocks(out, plain)
		return out
	}
	good := blocks(1)
	for name, c := range map[string]struct{ key, text []byte }{
		"RSA padding":                     {make([]byte, 256), good},
		"a ciphertext above the modulus":  {bytes.Repeat([]byte{0xff}, 256), good},
		"a ciphertext too short":          {make([]byte, 255), good},
		"no ciphertext":                   {nil, good},
		"a key too short":                 {transported(key[:15]), good},
		"a key too long":                  {transported(append(key, 7)), good},
		"an empty key":                    {transported(nil), good},
		"CBC padding of zero":             {transported(key), blocks(0)},
		"CBC padding longer than a block": {transported(key), blocks(17)},
		"CBC padding not all the same":    {transported(key), blocks(1, 2)},
		"CBC padding of 255":              {transported(key), blocks(255)},
	} {
		device := &counter{owner: o}
		ed, err := ParseEnvelopedData(sealedWith(oidAES128CBC, oidRSA, make([]byte, 16), c.key, c.text))
		if err != nil {
			t.Fatal(err)
		}
		got, err := ed.Open(t.Context(), ed.Transports[0], device)
		// One in 256 random keys gives good padding by chance: then there is no
		// error, and no content that anybody could read.
		if err == nil && len(c.key) == 256 && bytes.HasPrefix(got, make([]byte, 16)) || err != nil && err.Error() != ErrDecrypt.Error() {
			t.Errorf("%s: %x, %v", name, got, err)
		}
		if err != nil && len(got) != 32 {
			t.Errorf("%s: %d octets to go on with", name, len(got))
		}
		if device.asked != 1 {
			t.Errorf("%s: the device was asked %d times", name, device.asked)
		}
	}
}

// What the device says of itself is no error of the message.
func TestAFaultOfTheDeviceIsNoWrongMessage(t *testing.T) {
	t.Parallel()
	der, err := Seal(OIDData, []byte("content"), AES128CBC, TransportTo{rsaOwner().cert, 0})
	if err != nil {
		t.Fatal(err)
	}
	ed, err := ParseEnvelopedData(der)
	if err != nil {
		t.Fatal(err)
	}
	busy := errors.New("device busy")
	got, err := ed.Open(t.Context(), ed.Transports[0], &counter{err: fmt.Errorf("signing: %w", busy)})
	if got != nil || !errors.Is(err, busy) || errors.Is(err, ErrDecrypt) {
		t.Errorf("%x, %v", got, err)
	}
	// A key of another length from a device that does not keep to the rule.
	if _, err := ed.Open(t.Context(), ed.Transports[0], &counter{key: make([]byte, 17)}); err != nil && !errors.Is(err, ErrDecrypt) {
		t.Error(err)
	}
}

func TestUnpadIsTheInverseOfPadAndOfNothingElse(t *testing.T) {
	t.Parallel()
	for _, block := range []int{8, 16} {
		for n := range 3 * block {
			content := bytes.Repeat([]byte{byte(n)}, n)
			if good, at := unpad(pad(content, block), block); good != 1 || at != n {
				t.Errorf("%d octets, blocks of %d: %d, %d", n, block, good, at)
			}
		}
		for last := range 256 {
			for wrong := range block {
				plain := bytes.Repeat([]byte{byte(last)}, 2*block)
				plain[2*block-1-wrong] ^= 0x80
				n := int(plain[2*block-1])
				want := n >= 1 && n <= block && bytes.Count(plain[2*block-n:], []byte{byte(n)}) == n
				good, at := unpad(plain, block)
				if (good == 1) != want || good == 0 && at != 2*block || good == 1 && at != 2*block-n {
					t.Fatalf("%x: %d, %d", plain, good, at)
				}
			}
		}
	}
}

func FuzzParseEnvelopedData(f *testing.F) {
	for _, r := range []Recipient{TransportTo{rsaOwner().cert, 0}, TransportTo{rsaOwner().cert, crypto.SHA256}, ByPassword{[]byte("secret"), 2}} {
		der, err := Seal(OIDData, []byte("content"), AES128CBC, r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(der)
	}
	cert, _ := rsaOwner().files(f)
	f.Add(mustOpenssl(f, []byte("content"), "cms", "-encrypt", "-outform", "DER", "-aes128", "-recip", cert, "-stream"))
	f.Fuzz(func(t *testing.T, in []byte) {
		ed, err := ParseEnvelopedData(in)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		for _, tr := range ed.Transports {
			tr.For(rsaOwner().cert)
			device := &counter{key: make([]byte, 16)}
			got, err := ed.Open(t.Context(), tr, device)
			if err != nil && !errors.Is(err, ErrDecrypt) && !errors.Is(err, ErrAlgorithm) {
				t.Fatal(err)
			}
			if len(got) > len(in) || device.asked > 1 {
				t.Fatalf("%d octets of %d, %d calls", len(got), len(in), device.asked)
			}
		}
		for _, p := range ed.Passwords {
			if _, err := ed.OpenByPassword(p, []byte("secret"), 10); err != nil && !errors.Is(err, ErrDecrypt) && !errors.Is(err, ErrAlgorithm) {
				t.Fatal(err)
			}
		}
	})
}
