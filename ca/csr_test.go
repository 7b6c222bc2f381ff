package ca_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/cryptobyte"
	cbasn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/ca/weakkey"
)

// csrOf makes a CSR of key, P-256 for nil, that change has altered.
func csrOf(t testing.TB, key crypto.Signer, change func(*x509.CertificateRequest)) []byte {
	t.Helper()
	if key == nil {
		key = catest.NewKey(t)
	}
	tmpl := &x509.CertificateRequest{}
	change(tmpl)
	der, err := x509.CreateCertificateRequest(rand.Reader, tmpl, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func cn(s string) pkix.Name { return pkix.Name{CommonName: s} }

func extension(t testing.TB, oid asn1.ObjectIdentifier, value any) pkix.Extension {
	t.Helper()
	der, err := asn1.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return pkix.Extension{Id: oid, Critical: true, Value: der}
}

var (
	oidSAN   = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidBasic = asn1.ObjectIdentifier{2, 5, 29, 19}
	oidKU    = asn1.ObjectIdentifier{2, 5, 29, 15}
	oidEKU   = asn1.ObjectIdentifier{2, 5, 29, 37}
)

func TestCSRAsksForExactlyTheNames(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	for name, tt := range map[string]struct {
		ids    []string
		change func(*x509.CertificateRequest)
		ok     bool
	}{
		"same":             {[]string{"a.example", "b.example"}, func(r *x509.CertificateRequest) { r.DNSNames = []string{"a.example", "b.example"} }, true},
		"order and case":   {[]string{"a.example", "b.example"}, func(r *x509.CertificateRequest) { r.DNSNames = []string{"B.Example", "A.EXAMPLE"} }, true},
		"repeated":         {[]string{"a.example"}, func(r *x509.CertificateRequest) { r.DNSNames = []string{"a.example", "A.example", "a.example"} }, true},
		"only a CN":        {[]string{"a.example"}, func(r *x509.CertificateRequest) { r.Subject = cn("A.example") }, true},
		"CN and SAN":       {[]string{"a.example", "b.example"}, func(r *x509.CertificateRequest) { r.Subject, r.DNSNames = cn("a.example"), []string{"b.example"} }, true},
		"CN in SAN":        {[]string{"a.example"}, func(r *x509.CertificateRequest) { r.Subject, r.DNSNames = cn("a.example"), []string{"a.example"} }, true},
		"CN is a word":     {[]string{"a.example"}, func(r *x509.CertificateRequest) { r.Subject, r.DNSNames = cn("My Server"), []string{"a.example"} }, true},
		"CN is one label":  {[]string{"a.example"}, func(r *x509.CertificateRequest) { r.Subject, r.DNSNames = cn("server"), []string{"a.example"} }, true},
		"only one label":   {[]string{"server"}, func(r *x509.CertificateRequest) { r.Subject = cn("server") }, true},
		"CN is a wildcard": {[]string{"*.a.example"}, func(r *x509.CertificateRequest) { r.Subject = cn("*.a.example") }, true},
		"address": {[]string{"192.0.2.1", "2001:db8::1"}, func(r *x509.CertificateRequest) {
			r.IPAddresses = []net.IP{net.ParseIP("2001:db8::1"), net.IPv4(192, 0, 2, 1)}
		}, true},
		"address in CN": {[]string{"192.0.2.1"}, func(r *x509.CertificateRequest) { r.Subject = cn("192.0.2.1") }, true},

		"CN outside": {[]string{"a.example"}, func(r *x509.CertificateRequest) { r.Subject, r.DNSNames = cn("b.example"), []string{"a.example"} }, false},
		"second CN outside": {[]string{"a.example"}, func(r *x509.CertificateRequest) {
			r.DNSNames = []string{"a.example"}
			r.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "b.example"}, {Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "a.example"}}
		}, false},
		"wildcard CN outside": {[]string{"a.example"}, func(r *x509.CertificateRequest) { r.Subject, r.DNSNames = cn("*.a.example"), []string{"a.example"} }, false},
		"address CN outside":  {[]string{"a.example"}, func(r *x509.CertificateRequest) { r.Subject, r.DNSNames = cn("192.0.2.1"), []string{"a.example"} }, false},
		"one more":            {[]string{"a.example"}, func(r *x509.CertificateRequest) { r.DNSNames = []string{"a.example", "b.example"} }, false},
		"one less":            {[]string{"a.example", "b.example"}, func(r *x509.CertificateRequest) { r.DNSNames = []string{"a.example"} }, false},
		"none":                {[]string{"a.example"}, func(*x509.CertificateRequest) {}, false},
		"trailing dot":        {[]string{"a.example"}, func(r *x509.CertificateRequest) { r.DNSNames = []string{"a.example."} }, false},
		"address as dns name": {[]string{"192.0.2.1"}, func(r *x509.CertificateRequest) { r.DNSNames = []string{"192.0.2.1"} }, false},
		"email": {[]string{"a.example"}, func(r *x509.CertificateRequest) {
			r.DNSNames, r.EmailAddresses = []string{"a.example"}, []string{"me@a.example"}
		}, false},
		"uri": {[]string{"a.example"}, func(r *x509.CertificateRequest) {
			r.DNSNames, r.URIs = []string{"a.example"}, []*url.URL{{Scheme: "https", Host: "a.example"}}
		}, false},
		"other name": {[]string{"a.example"}, func(r *x509.CertificateRequest) { r.ExtraExtensions = []pkix.Extension{otherName(t, "a.example")} }, false},
		"CA": {[]string{"a.example"}, func(r *x509.CertificateRequest) {
			r.DNSNames = []string{"a.example"}
			r.ExtraExtensions = []pkix.Extension{extension(t, oidBasic, struct{ CA bool }{true})}
		}, false},
		"not a CA": {[]string{"a.example"}, func(r *x509.CertificateRequest) {
			r.DNSNames = []string{"a.example"}
			r.ExtraExtensions = []pkix.Extension{extension(t, oidBasic, struct{}{})}
		}, true},
		"broken constraints": {[]string{"a.example"}, func(r *x509.CertificateRequest) {
			r.DNSNames = []string{"a.example"}
			r.ExtraExtensions = []pkix.Extension{extension(t, oidBasic, 7)}
		}, false},
		"usages next to names": {[]string{"a.example"}, func(r *x509.CertificateRequest) {
			r.DNSNames = []string{"a.example"}
			r.ExtraExtensions = []pkix.Extension{
				extension(t, oidKU, asn1.BitString{Bytes: []byte{0x06}, BitLength: 7}), // keyCertSign, cRLSign
				extension(t, oidEKU, []asn1.ObjectIdentifier{{1, 3, 6, 1, 5, 5, 7, 3, 9}}),
				extension(t, asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 24}, []int{5}), // must-staple
			}
		}, true},
	} {
		ids := catest.IDs(tt.ids...)
		der := csrOf(t, nil, tt.change)
		pub, err := c.CheckCSR(t.Context(), "", der, ids)
		if (err == nil) != tt.ok || (err == nil && pub == nil) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			wantRefusal(t, err, ca.BadCSR)
			continue
		}
		got, err := c.Issue(t.Context(), ca.Request{CSR: der, Identifiers: ids}, c.Store.PlainLedger())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		// Only names and key come from outside.
		cert := parse(t, got.DER)
		if len(cert.DNSNames)+len(cert.IPAddresses) != len(tt.ids) || cert.KeyUsage != x509.KeyUsageDigitalSignature || len(cert.ExtKeyUsage) != 1 || cert.IsCA {
			t.Errorf("%s: names %v %v, usage %d %v", name, cert.DNSNames, cert.IPAddresses, cert.KeyUsage, cert.ExtKeyUsage)
		}
	}
}

// otherName is a SAN with a dns name and an otherName, which crypto/x509 passes over.
func otherName(t testing.TB, dns string) pkix.Extension {
	t.Helper()
	var b cryptobyte.Builder
	b.AddASN1(cbasn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1(cbasn1.Tag(2).ContextSpecific(), func(b *cryptobyte.Builder) { b.AddBytes([]byte(dns)) })
		b.AddASN1(cbasn1.Tag(0).ContextSpecific().Constructed(), func(b *cryptobyte.Builder) {
			b.AddASN1ObjectIdentifier(asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 311, 20, 2, 3})
			b.AddASN1(cbasn1.Tag(0).ContextSpecific().Constructed(), func(b *cryptobyte.Builder) {
				b.AddASN1(cbasn1.UTF8String, func(b *cryptobyte.Builder) { b.AddBytes([]byte("root@a.example")) })
			})
		})
	})
	der, err := b.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return pkix.Extension{Id: oidSAN, Value: der}
}

func TestWeakKeysAreRefusedInTheCSR(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	small := smallRSA(t)
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{"RSA-1024": small, "P-224": p224} {
		der := csrOf(t, key, func(r *x509.CertificateRequest) { r.DNSNames = []string{"a.example"} })
		_, err := c.CheckCSR(t.Context(), "", der, catest.IDs("a.example"))
		if r := refusal(t, err, ca.BadCSR); r.Detail == "" {
			t.Errorf("%s: no detail", name)
		}
		wantRefusal(t, c.CheckKey(t.Context(), key.Public()), ca.BadPublicKey)
	}
}

// TestListedKeyIsRefusedInTheCSR goes from a file as the openssl-blacklist
// packages have it to the refusal of a CSR with a key that is on it.
func TestListedKeyIsRefusedInTheCSR(t *testing.T) {
	t.Parallel()
	listed, other := newRSA(t), newRSA(t)
	sum := sha1.Sum(fmt.Appendf(nil, "Modulus=%X\n", listed.N)) // openssl rsa -noout -modulus | sha1sum
	dir := t.TempDir()
	content := "# a header, as the packages have\n00000001234567890abc\n" + hex.EncodeToString(sum[10:]) + "\nffffffff1234567890ab\n"
	if err := os.WriteFile(filepath.Join(dir, "blacklist.RSA-2048"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := weakkey.LoadList(dir)
	if err != nil {
		t.Fatal(err)
	}
	c := catest.New(t, func(cfg *ca.Config) {
		cfg.Weak = ca.DefaultWeak(cfg.Policy)
		cfg.Weak.Debian = list
	})
	request := func(key *rsa.PrivateKey) ca.Request {
		return ca.Request{CSR: catest.CSR(t, key, "a.example"), Identifiers: catest.IDs("a.example")}
	}
	_, err = c.Issue(t.Context(), request(listed), c.Store.PlainLedger())
	if r := refusal(t, err, ca.BadCSR); !strings.Contains(r.Detail, "CVE-2008-0166") {
		t.Errorf("detail %q", r.Detail)
	}
	if len(c.Store.Records()) != 0 {
		t.Error("something was recorded for the listed key")
	}
	if _, err := c.Issue(t.Context(), request(other), c.Store.PlainLedger()); err != nil {
		t.Errorf("another key: %v", err)
	}
}

func newRSA(t testing.TB) *rsa.PrivateKey {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// smallRSA is a key of 1024 bits, which crypto/rsa makes for nobody anymore.
func smallRSA(t testing.TB) *rsa.PrivateKey {
	t.Helper()
	block, _ := pem.Decode(read(t, "testdata/rsa-1024.pem"))
	key, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func read(t testing.TB, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestKeyThatMayNotBeCertifiedIsRefused(t *testing.T) {
	t.Parallel()
	blocked, hooked, fine := catest.NewKey(t), catest.NewKey(t), catest.NewKey(t)
	hash := func(k crypto.Signer) [32]byte {
		der, err := x509.MarshalPKIXPublicKey(k.Public())
		if err != nil {
			t.Fatal(err)
		}
		return sha256.Sum256(der)
	}
	c := catest.New(t, unlinted, func(cfg *ca.Config) {
		list := hash(hooked)
		cfg.BlockedKeys = func(_ context.Context, spki [32]byte) (bool, error) { return spki == list, nil }
	})
	c.Store.Block(hash(blocked))
	own, err := c.Keys.Key(t.Context(), catest.KeyLabel)
	if err != nil {
		t.Fatal(err)
	}
	for name, pub := range map[string]crypto.PublicKey{"blocked": blocked.Public(), "hook": hooked.Public(), "the CA's own": own.Public(), "none": nil} {
		wantRefusal(t, c.CheckKey(t.Context(), pub), ca.BadPublicKey)
		if pub == nil {
			continue
		}
		_, err := c.Issue(t.Context(), ca.Request{Profile: ca.ProfileSelf, PublicKey: pub, Identifiers: catest.IDs("a.example")}, c.Store.PlainLedger())
		if r := refusal(t, err, ca.BadPublicKey); r.Detail == "" {
			t.Errorf("%s: no detail", name)
		}
	}
	if err := c.CheckKey(t.Context(), fine.Public()); err != nil {
		t.Error(err)
	}
	wantRefusal(t, func() error {
		_, err := c.Issue(t.Context(), ca.Request{Identifiers: catest.IDs("a.example")}, c.Store.PlainLedger())
		return err
	}(), ca.BadCSR)
}

func TestPublicPolicyHasNoEd25519(t *testing.T) {
	t.Parallel()
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if err := catest.New(t, unlinted).CheckKey(t.Context(), pub); err != nil {
		t.Error(err)
	}
	wantRefusal(t, catest.New(t, public).CheckKey(t.Context(), pub), ca.BadPublicKey)
}

func TestCSRProvesItsKey(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	ids := catest.IDs("a.example")
	good := catest.CSR(t, catest.NewKey(t), "a.example")
	check := func(name string, der []byte) {
		t.Helper()
		if _, err := c.CheckCSR(t.Context(), "", der, ids); err == nil {
			t.Errorf("%s: accepted", name)
		} else {
			wantRefusal(t, err, ca.BadCSR)
		}
	}
	flipped := bytes.Clone(good)
	flipped[len(flipped)-1] ^= 1
	check("flipped signature", flipped)
	check("trailing octet", append(bytes.Clone(good), 0))
	check("cut off", good[:len(good)-1])
	check("empty", []byte{})
	check("too large", csrOf(t, nil, func(r *x509.CertificateRequest) {
		r.DNSNames = strings.Split(strings.Repeat("a.example,", 8000)+"a.example", ",")
	}))
	check("SHA-1", sha1CSR(t, "a.example"))
	if _, err := c.CheckCSR(t.Context(), "", good, ids); err != nil {
		t.Error(err)
	}
}

// A digest that is broken proves no key. The name of the algorithm is enough for
// a no: nothing is verified by it.
func TestBrokenDigestsAreRefusedByName(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	for name, oid := range map[string]asn1.ObjectIdentifier{
		"md2WithRSA": {1, 2, 840, 113549, 1, 1, 2}, "md5WithRSA": {1, 2, 840, 113549, 1, 1, 4}, "sha1WithRSA": {1, 2, 840, 113549, 1, 1, 5},
		"dsaWithSHA1": {1, 2, 840, 10040, 4, 3}, "dsaWithSHA256": {2, 16, 840, 1, 101, 3, 4, 3, 2}, "ecdsaWithSHA1": {1, 2, 840, 10045, 4, 1}, "unknown": {1, 2, 3, 4},
	} {
		der := catest.CSR(t, catest.NewKey(t), "a.example")
		var parts struct {
			TBS asn1.RawValue
			Alg pkix.AlgorithmIdentifier
			Sig asn1.BitString
		}
		if _, err := asn1.Unmarshal(der, &parts); err != nil {
			t.Fatal(err)
		}
		parts.Alg = pkix.AlgorithmIdentifier{Algorithm: oid}
		der, err := asn1.Marshal(parts)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.CheckCSR(t.Context(), "", der, catest.IDs("a.example"))
		if r := refusal(t, err, ca.BadCSR); !strings.Contains(r.Detail, "SHA-256 or better") && !strings.Contains(r.Detail, "algorithm is not known") {
			t.Errorf("%s: %s", name, r.Detail)
		}
	}
}

// What is asked for twice could be read in two ways.
func TestRepeatedExtensionsAreRefused(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	names := func(n string) pkix.Extension {
		return extension(t, oidSAN, []asn1.RawValue{{Class: 2, Tag: 2, Bytes: []byte(n)}})
	}
	for _, list := range [][]pkix.Extension{
		{names("evil.example"), names("a.example")}, {names("a.example"), names("evil.example")}, {names("a.example"), names("a.example")},
	} {
		der := csrOf(t, nil, func(r *x509.CertificateRequest) { r.ExtraExtensions = list })
		_, err := c.CheckCSR(t.Context(), "", der, catest.IDs("a.example"))
		wantRefusal(t, err, ca.BadCSR)
	}
}

// sha1CSR signs a CSR anew with ecdsa-with-SHA1, which crypto/x509 does not make.
func sha1CSR(t testing.TB, name string) []byte {
	t.Helper()
	key := catest.NewKey(t)
	csr, err := x509.ParseCertificateRequest(catest.CSR(t, key, name))
	if err != nil {
		t.Fatal(err)
	}
	digest := sha1.Sum(csr.RawTBSCertificateRequest) // what is to be refused
	sig, err := key.Sign(rand.Reader, digest[:], crypto.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	der, err := asn1.Marshal(struct {
		TBS asn1.RawValue
		Alg pkix.AlgorithmIdentifier
		Sig asn1.BitString
	}{
		asn1.RawValue{FullBytes: csr.RawTBSCertificateRequest},
		pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 1}},
		asn1.BitString{Bytes: sig, BitLength: 8 * len(sig)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func TestHugeRSAKeyIsRefusedBeforeItsSignatureIsTried(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	n := new(big.Int).SetBit(big.NewInt(1), 16383, 1)
	spki, err := x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: n, E: 65537})
	if err != nil {
		t.Fatal(err)
	}
	// Nobody has to own a key to have us try a signature of it.
	der, err := asn1.Marshal(struct {
		TBS struct {
			Version    int
			Subject    pkix.RDNSequence
			Key        asn1.RawValue
			Attributes asn1.RawValue
		}
		Alg pkix.AlgorithmIdentifier
		Sig asn1.BitString
	}{
		TBS: struct {
			Version    int
			Subject    pkix.RDNSequence
			Key        asn1.RawValue
			Attributes asn1.RawValue
		}{0, cn("a.example").ToRDNSequence(), asn1.RawValue{FullBytes: spki}, asn1.RawValue{Class: 2, Tag: 0, IsCompound: true}},
		Alg: pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}, Parameters: asn1.NullRawValue},
		Sig: asn1.BitString{Bytes: make([]byte, 2048), BitLength: 8 * 2048},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.CheckCSR(t.Context(), "", der, catest.IDs("a.example"))
	if r := refusal(t, err, ca.BadCSR); !strings.Contains(r.Detail, "8192 bits") {
		t.Errorf("refusal %v", r)
	}
}

// No CSR makes CheckCSR panic; what it accepts asks for exactly the names, with
// a signature of its own key.
func FuzzCheckCSR(f *testing.F) {
	key := catest.NewKey(f)
	f.Add(catest.CSR(f, key, "a.example", "192.0.2.1"))
	f.Add(csrOf(f, key, func(r *x509.CertificateRequest) { r.Subject = cn("a.example") }))
	f.Add(csrOf(f, key, func(r *x509.CertificateRequest) { r.ExtraExtensions = []pkix.Extension{otherName(f, "a.example")} }))
	f.Add(csrOf(f, key, func(r *x509.CertificateRequest) {
		r.ExtraExtensions = []pkix.Extension{extension(f, oidBasic, struct{ CA bool }{true})}
	}))
	f.Add(sha1CSR(f, "a.example"))
	f.Add([]byte{0x30, 0x80})
	c := catest.New(f, unlinted)
	ids := catest.IDs("a.example", "192.0.2.1")
	f.Fuzz(func(t *testing.T, der []byte) {
		pub, err := c.CheckCSR(t.Context(), "", der, ids)
		if err != nil {
			if r, ok := errors.AsType[*ca.Refusal](err); !ok || r.Code != ca.BadCSR {
				t.Errorf("error %v", err)
			}
			return
		}
		csr, err := x509.ParseCertificateRequest(der)
		if err != nil {
			t.Fatal(err)
		}
		if err := csr.CheckSignature(); err != nil || pub == nil || len(csr.EmailAddresses)+len(csr.URIs) > 0 {
			t.Errorf("accepted %x: %v", der, err)
		}
		for _, n := range csr.DNSNames {
			if !strings.EqualFold(n, "a.example") {
				t.Errorf("accepted the name %q", n)
			}
		}
	})
}
