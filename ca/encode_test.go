package ca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"testing"
	"time"
)

// What we encode is what crypto/x509 would, whatever a template holds.
func TestEndEntitiesAreEncodedAsByCryptoX509(t *testing.T) {
	t.Parallel()
	r := mathrand.New(mathrand.NewPCG(1, 2))
	pubs := somePublicKeys(t)
	for _, key := range pubs[:4] {
		issuer := &x509.Certificate{SubjectKeyId: []byte("key id"), PublicKey: key}
		var err error
		if issuer.RawSubject, err = asn1Name("Some CA"); err != nil {
			t.Fatal(err)
		}
		d, err := newDrafter(key, issuer)
		if err != nil {
			t.Fatal(err)
		}
		for range 50 {
			template, pub := someTemplate(r), pubs[r.IntN(len(pubs))]
			want, err := d.draft(template, pub)
			if err != nil {
				t.Fatal(err)
			}
			got, err := d.endEntity(template, pub)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.tbs, want.tbs) || !bytes.Equal(got.alg, want.alg) {
				t.Fatalf("%+v:\n%x\nwant\n%x", template, got.tbs, want.tbs)
			}
			cert, err := x509.ParseCertificate(got.der)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.parent.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature); err == nil {
				t.Fatal("a draft is signed")
			}
		}
	}
}

func TestOnlyEndEntitiesAreEncodedByUs(t *testing.T) {
	t.Parallel()
	name, err := asn1Name("Some CA")
	if err != nil {
		t.Fatal(err)
	}
	pub := somePublicKeys(t)[0]
	for what, template := range map[string]*x509.Certificate{
		"an authority":              {SerialNumber: big.NewInt(1), IsCA: true},
		"its issuer":                {SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Some CA"}},
		"a name that is not ASCII":  {SerialNumber: big.NewInt(1), DNSNames: []string{"ä.example"}},
		"a place that is not ASCII": {SerialNumber: big.NewInt(1), OCSPServer: []string{"http://ä.example"}},
	} {
		if _, err := encodeTBS(template, &x509.Certificate{RawSubject: name}, nil, pub); err == nil {
			t.Errorf("%s was encoded", what)
		}
	}
}

func asn1Name(cn string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: cn}}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return cert.RawSubject, nil
}

func somePublicKeys(t *testing.T) []any {
	t.Helper()
	var out []any
	for _, c := range []elliptic.Curve{elliptic.P256(), elliptic.P384()} {
		k, err := ecdsa.GenerateKey(c, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, k.Public())
	}
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ed, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return append(out, r.Public(), ed)
}

// someTemplate is any that order.template can make, and more.
func someTemplate(r *mathrand.Rand) *x509.Certificate {
	maybe := func() bool { return r.IntN(2) == 0 }
	serial := make([]byte, 1+r.IntN(20))
	for i := range serial {
		serial[i] = byte(r.Uint32())
	}
	serial[0] = serial[0]&0x7f | 1
	t := &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(serial), NotBefore: time.Unix(r.Int64N(4e9), 0), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsage(r.IntN(1 << 9)),
	}
	t.NotAfter = t.NotBefore.Add(time.Duration(r.Int64N(1e9)) * time.Second)
	lists := []*[]string{&t.OCSPServer, &t.IssuingCertificateURL, &t.CRLDistributionPoints, &t.DNSNames}
	for _, l := range lists {
		for range r.IntN(3) {
			*l = append(*l, "http://ca.example/"+string(bytes.Repeat([]byte("x"), r.IntN(150))))
		}
	}
	for range r.IntN(3) {
		t.IPAddresses = append(t.IPAddresses, net.IP{8, 8, 8, byte(r.Uint32())}, net.ParseIP("2606:4700::1111"))
	}
	for _, u := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageOCSPSigning, x509.ExtKeyUsageTimeStamping} {
		if maybe() {
			t.ExtKeyUsage = append(t.ExtKeyUsage, u)
		}
	}
	if maybe() {
		t.Subject = pkix.Name{Country: []string{"XX"}, Organization: []string{"Ä & B"}, CommonName: "a.example"}
	}
	if maybe() {
		t.Policies = []x509.OID{oidDomainValidated}
	}
	if maybe() {
		t.SubjectKeyId = []byte("twenty octets or not")
	}
	if maybe() {
		t.ExtraExtensions = []pkix.Extension{{Id: oidOCSPNoCheck, Value: derNull}, {Id: []int{1, 2, 3}, Critical: maybe(), Value: []byte{4, 0}}}
	}
	return t
}
