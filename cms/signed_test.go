package cms

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"encoding/asn1"
	"errors"
	"testing"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"
)

var oidTest = asn1.ObjectIdentifier{2, 16, 840, 1, 113733, 1, 9, 7}

func textAttribute(s string) Attribute {
	return Attribute{oidTest, [][]byte{encode(func(b *cryptobyte.Builder) {
		b.AddASN1(casn1.PrintableString, func(b *cryptobyte.Builder) { b.AddBytes([]byte(s)) })
	})}}
}

func mustSign(t testing.TB, o owner, content []byte, attributes ...Attribute) []byte {
	t.Helper()
	der, err := o.signer().Sign(OIDData, content, attributes, [][]byte{o.cert.Raw})
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func TestWhatIsSignedVerifies(t *testing.T) {
	t.Parallel()
	for _, o := range []owner{rsaOwner(), ecOwner()} {
		for _, hash := range []crypto.Hash{0, crypto.SHA1, crypto.SHA256, crypto.SHA384, crypto.SHA512} {
			for _, content := range [][]byte{[]byte("content"), {}, nil} {
				s := o.signer()
				s.Hash = hash
				der, err := s.Sign(OIDData, content, []Attribute{textAttribute("x")}, [][]byte{otherRSAOwner().cert.Raw, o.cert.Raw})
				if err != nil {
					t.Fatal(err)
				}
				sd, err := ParseSignedData(der)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(sd.Content, content) || (sd.Content == nil) != (content == nil) || len(sd.Certificates) != 2 || len(sd.Signers) != 1 {
					t.Fatalf("read back: %+v", sd)
				}
				si := sd.Signers[0]
				cert, err := si.Certificate(8 << 10)
				if err != nil || !cert.Equal(o.cert) {
					t.Fatalf("signer's certificate: %v, %v", cert, err)
				}
				if err := si.Verify(cert.PublicKey, hash == crypto.SHA1); err != nil {
					t.Errorf("%T with %v over %q: %v", o.key, hash, content, err)
				}
				if hash == crypto.SHA1 {
					if err := si.Verify(cert.PublicKey, false); !errors.Is(err, ErrAlgorithm) {
						t.Errorf("SHA-1 that is not allowed: %v", err)
					}
				}
				if err := si.Verify(otherRSAOwner().cert.PublicKey, true); err == nil {
					t.Error("it verifies by another key")
				}
				if v, err := si.Attribute(oidTest); err != nil || !bytes.Equal(v, []byte{19, 1, 'x'}) {
					t.Errorf("attribute %x, %v", v, err)
				}
				if v, err := si.Attribute(oidRSA); v != nil || err != nil {
					t.Errorf("attribute that is not there: %x, %v", v, err)
				}
			}
		}
	}
}

func TestNoBitOfContentAttributesOrSignatureMayChange(t *testing.T) {
	t.Parallel()
	for _, o := range []owner{rsaOwner(), ecOwner()} {
		der := mustSign(t, o, []byte("content"), textAttribute("x"))
		sd, err := ParseSignedData(der)
		if err != nil {
			t.Fatal(err)
		}
		for name, part := range map[string][]byte{"content": sd.Content, "attributes": sd.Signers[0].attrs, "signature": sd.Signers[0].sig} {
			at := bytes.Index(der, part)
			for i := range 8 * len(part) {
				changed := bytes.Clone(der)
				changed[at+i/8] ^= 1 << (i % 8)
				sd, err := ParseSignedData(changed)
				if err == nil {
					err = sd.Signers[0].Verify(o.cert.PublicKey, true)
				}
				if err == nil {
					t.Fatalf("%T: bit %d of the %s changed, and it verifies", o.key, i, name)
				}
			}
		}
	}
}

// A forged message is signed by hand, so that it may break the rules that Sign
// keeps.
func forge(t testing.TB, o owner, content []byte, attrs []byte, tag casn1.Tag) []byte {
	t.Helper()
	hashed := append(appendHeader(nil, byte(tag), len(attrs)), attrs...)
	if tag == 0 {
		hashed = content
	}
	sig, err := o.key.Sign(rand.Reader, sum(crypto.SHA256, hashed), crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	id := identify(o.cert)
	der, err := build(OIDSignedData, func(b *cryptobyte.Builder) {
		addSignedDataHead(b, oidSHA256, OIDData, content, [][]byte{o.cert.Raw}, nil)
		b.AddASN1(casn1.SET, func(b *cryptobyte.Builder) {
			b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
				b.AddASN1Int64(1)
				id.add(b)
				addAlgorithm(b, oidSHA256, nil)
				if tag != 0 {
					b.AddASN1(explicit(0), func(b *cryptobyte.Builder) { b.AddBytes(attrs) })
				}
				addAlgorithm(b, oidSHA256WithRSA, nil)
				b.AddASN1OctetString(sig)
			})
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func attributes(as ...Attribute) []byte {
	var b cryptobyte.Builder
	addAttributes(&b, as)
	return b.BytesOrPanic()
}

// smallstep/certificates#1723, bcgit/bc-java#1484: there are clients that sign
// their attributes in an order of their own, and clients that sign those of DER and
// send them in another.
func TestAttributesInAnyOrderVerify(t *testing.T) {
	t.Parallel()
	o, content := rsaOwner(), []byte("content")
	as := bound(OIDData, sum(crypto.SHA256, content), []Attribute{textAttribute("a transaction")})
	as[0], as[2] = as[2], as[0]
	own := attributes(as...)
	sorted := sortedSet(own)
	if bytes.Equal(own, sorted) {
		t.Fatal("they are in order")
	}
	for name, der := range map[string][]byte{
		"signed as sent":             forge(t, o, content, own, casn1.SET),
		"signed sorted, sent sorted": forge(t, o, content, sorted, casn1.SET),
		"signed sorted, sent not":    bytes.Replace(forge(t, o, content, sorted, casn1.SET), sorted, own, 1),
	} {
		sd, err := ParseSignedData(der)
		if err != nil {
			t.Fatal(err)
		}
		if err := sd.Signers[0].Verify(o.cert.PublicKey, false); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAttributesMustBindTheContent(t *testing.T) {
	t.Parallel()
	o, content := rsaOwner(), []byte("content")
	good := bound(OIDData, sum(crypto.SHA256, content), nil)
	twice := good[1]
	twice.Values = [][]byte{twice.Values[0], twice.Values[0]}
	for name, c := range map[string]struct {
		attrs []byte
		tag   casn1.Tag
	}{
		"no attributes at all":      {nil, 0},
		"empty attributes":          {nil, casn1.SET},
		"no contentType":            {attributes(good[1]), casn1.SET},
		"no messageDigest":          {attributes(good[0]), casn1.SET},
		"messageDigest twice":       {attributes(good[0], good[1], good[1]), casn1.SET},
		"two values":                {attributes(good[0], twice), casn1.SET},
		"of another content":        {attributes(bound(OIDData, sum(crypto.SHA256, []byte("other")), nil)...), casn1.SET},
		"of another type":           {attributes(bound(OIDEnvelopedData, sum(crypto.SHA256, content), nil)...), casn1.SET},
		"signed with the sent tag":  {attributes(good...), explicit(0)},
		"digest of another element": {attributes(good[0], Attribute{OIDMessageDigest, [][]byte{good[0].Values[0]}}), casn1.SET},
	} {
		sd, err := ParseSignedData(forge(t, o, content, c.attrs, c.tag))
		if err == nil {
			err = sd.Signers[0].Verify(o.cert.PublicKey, false)
		}
		if err == nil {
			t.Errorf("%s: it verifies", name)
		}
	}
	// The forger itself forges well.
	sd, err := ParseSignedData(forge(t, o, content, attributes(good...), casn1.SET))
	if err == nil {
		err = sd.Signers[0].Verify(o.cert.PublicKey, false)
	}
	if err != nil {
		t.Error(err)
	}
}

func TestTheSignersCertificateIsFoundAmongOthers(t *testing.T) {
	t.Parallel()
	o := rsaOwner()
	var many [][]byte
	for range maxCandidates {
		many = append(many, ecOwner().cert.Raw)
	}
	for name, c := range map[string]struct {
		certs [][]byte
		max   int
		found bool
	}{
		"first":           {[][]byte{o.cert.Raw, ecOwner().cert.Raw}, 8 << 10, true},
		"last":            {[][]byte{{0x30, 0}, {5, 0}, ecOwner().cert.Raw, o.cert.Raw}, 8 << 10, true},
		"not there":       {[][]byte{ecOwner().cert.Raw}, 8 << 10, false},
		"none":            {nil, 8 << 10, false},
		"too long":        {[][]byte{o.cert.Raw}, len(o.cert.Raw) - 1, false},
		"after too many":  {append(many, o.cert.Raw), 8 << 10, false},
		"just in the row": {append(many[:maxCandidates-1:maxCandidates-1], o.cert.Raw), 8 << 10, true},
	} {
		der, err := o.signer().Sign(OIDData, nil, nil, c.certs)
		if err != nil {
			t.Fatal(err)
		}
		sd, err := ParseSignedData(der)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := sd.Signers[0].Certificate(c.max)
		if found := err == nil && cert.Equal(o.cert); found != c.found {
			t.Errorf("%s: %v", name, err)
		}
	}
	// By its key identifier, too.
	sd, err := ParseSignedData(mustOpenssl(t, []byte("content"), signArgs(t, o, "-keyid")...))
	if err != nil {
		t.Fatal(err)
	}
	if cert, err := sd.Signers[0].Certificate(8 << 10); err != nil || !cert.Equal(o.cert) {
		t.Errorf("by key identifier: %v", err)
	}
}

func signArgs(t testing.TB, o owner, more ...string) []string {
	t.Helper()
	cert, key := o.files(t)
	return append([]string{"cms", "-sign", "-binary", "-nodetach", "-outform", "DER", "-signer", cert, "-inkey", key}, more...)
}

func TestOpenSSLsSignaturesVerifyHere(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("content "), 2000) // in pieces, when streamed
	for _, o := range []owner{rsaOwner(), ecOwner()} {
		for _, args := range [][]string{{"-md", "sha256"}, {"-md", "sha512"}, {"-stream"}, {"-md", "sha384", "-keyid", "-stream"}} {
			der := mustOpenssl(t, content, signArgs(t, o, args...)...)
			sd, err := ParseSignedData(der)
			if err != nil {
				t.Fatalf("%v: %v", args, err)
			}
			if err := sd.Signers[0].Verify(o.cert.PublicKey, false); err != nil || !bytes.Equal(sd.Content, content) {
				t.Errorf("%v: %v", args, err)
			}
		}
		sd, err := ParseSignedData(mustOpenssl(t, content, signArgs(t, o, "-noattr")...))
		if err == nil {
			err = sd.Signers[0].Verify(o.cert.PublicKey, false)
		}
		if !errors.Is(err, ErrMalformed) {
			t.Errorf("without attributes: %v", err)
		}
	}
}

func TestOpenSSLVerifiesOurSignatures(t *testing.T) {
	t.Parallel()
	for _, o := range []owner{rsaOwner(), ecOwner()} {
		cert, _ := o.files(t)
		for _, hash := range []crypto.Hash{crypto.SHA256, crypto.SHA384, crypto.SHA512} {
			s := o.signer()
			s.Hash = hash
			der, err := s.Sign(OIDData, []byte("content"), []Attribute{textAttribute("x")}, [][]byte{o.cert.Raw})
			if err != nil {
				t.Fatal(err)
			}
			if out := mustOpenssl(t, der, "cms", "-verify", "-binary", "-inform", "DER", "-CAfile", cert, "-purpose", "any"); !bytes.Equal(out, []byte("content")) {
				t.Errorf("%v: %q", hash, out)
			}
			isDER(t, der)
		}
	}
}

// isDER has openssl read der and write it anew, which must change nothing.
func isDER(t testing.TB, der []byte) {
	t.Helper()
	if out := mustOpenssl(t, der, "cms", "-cmsout", "-inform", "DER", "-outform", "DER"); !bytes.Equal(out, der) {
		t.Errorf("openssl writes it otherwise:\n%x\n%x", der, out)
	}
	if again, err := DER(der); err != nil || !bytes.Equal(again, der) {
		t.Errorf("it is no DER: %v", err)
	}
}

// strongswan#1607: there are clients that know a signature by RSA only by the name
// of the key.
func TestRSASignaturesAreCalledRSAEncryption(t *testing.T) {
	t.Parallel()
	sd, err := ParseSignedData(mustSign(t, rsaOwner(), []byte("content")))
	if err != nil || !sd.Signers[0].sigOID.Equal(oidRSA) || !sd.Signers[0].noParams {
		t.Errorf("%v, %v", sd.Signers[0].sigOID, err)
	}
}

// mosen/SCEPy#2: clients take the first certificate for what it is by its place,
// whatever order DER has for a SET.
func TestCertificatesKeepTheirOrder(t *testing.T) {
	t.Parallel()
	a, b, c := rsaOwner().cert.Raw, ecOwner().cert.Raw, otherRSAOwner().cert.Raw
	for _, certs := range [][][]byte{{a, b, c}, {c, b, a}, {b, a}, {a}, nil} {
		der, err := CertsOnly(certs, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(der, bytes.Join(certs, nil)) {
			t.Error("on the wire they are in another order")
		}
		sd, err := ParseSignedData(der)
		if err != nil || len(sd.Signers) != 0 || sd.Content != nil || len(sd.Certificates) != len(certs) {
			t.Fatalf("%+v, %v", sd, err)
		}
		for i := range certs {
			if !bytes.Equal(sd.Certificates[i], certs[i]) {
				t.Error("read back they are in another order")
			}
		}
		out := mustOpenssl(t, der, "pkcs7", "-inform", "DER", "-print_certs")
		if n := bytes.Count(out, []byte("BEGIN CERTIFICATE")); n != len(certs) {
			t.Errorf("openssl found %d certificates", n)
		}
	}
}

func TestAlgorithmsMustFitTheKeyAndTheDigest(t *testing.T) {
	t.Parallel()
	good := mustSign(t, rsaOwner(), []byte("content"))
	if _, err := (Signer{Certificate: rsaOwner().cert, Key: rsaOwner().key, Hash: crypto.MD5}).Sign(OIDData, nil, nil, nil); !errors.Is(err, ErrAlgorithm) {
		t.Errorf("signing with MD5: %v", err)
	}
	for name, change := range map[string]func(si *SignerInfo){
		"unknown digest":      func(si *SignerInfo) { si.Digest = 0 },
		"ECDSA by an RSA key": func(si *SignerInfo) { si.sigOID = oidECDSAWithSHA256 },
		"another hash":        func(si *SignerInfo) { si.sigOID = oidSHA512WithRSA },
		"parameters":          func(si *SignerInfo) { si.noParams = false },
	} {
		sd, err := ParseSignedData(good)
		if err != nil {
			t.Fatal(err)
		}
		change(sd.Signers[0])
		if err := sd.Signers[0].Verify(rsaOwner().cert.PublicKey, true); !errors.Is(err, ErrAlgorithm) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParseSignedData(f *testing.F) {
	f.Add(mustSign(f, ecOwner(), []byte("content"), textAttribute("x")))
	f.Add(mustSign(f, rsaOwner(), nil))
	certs, err := CertsOnly([][]byte{ecOwner().cert.Raw}, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(certs)
	f.Add(mustOpenssl(f, []byte("content"), signArgs(f, ecOwner(), "-stream")...))
	signed := map[string]bool{"content": true, "": true}
	f.Fuzz(func(t *testing.T, in []byte) {
		sd, err := ParseSignedData(in)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		for _, si := range sd.Signers {
			if cert, err := si.Certificate(8 << 10); err == nil && !si.sid.names(cert) {
				t.Fatal("another's certificate")
			}
			for _, pub := range []crypto.PublicKey{ecOwner().cert.PublicKey, rsaOwner().cert.PublicKey} {
				if si.Verify(pub, false) == nil && !signed[string(sd.Content)] {
					t.Fatalf("%q was never signed", sd.Content)
				}
			}
		}
	})
}
