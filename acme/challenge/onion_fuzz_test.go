package challenge

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"strings"
	"testing"
)

// FuzzOnionCAA: no text is read as more records than it has lines, and what a
// line is read as has no name of its own.
func FuzzOnionCAA(f *testing.F) {
	f.Add(`caa 128 issue "ca.example; validationmethods=onion-csr-01"`)
	f.Add("caa 0 issue \"a\"\ncaa 0 iodef \"mailto:a@b\"")
	f.Add("caa 0 issue (\n)")
	f.Add("caa 0 issue \"a\" ; b")
	f.Fuzz(func(t *testing.T, text string) {
		set, err := parseOnionCAA(text)
		if err == nil && (len(set) > strings.Count(text, "\n")+1 || len(set) > maxCAA) {
			t.Errorf("%d records in %q", len(set), text)
		}
		for _, r := range set {
			if r.Hdr.Name != "." {
				t.Errorf("%q has a record of %q", text, r.Hdr.Name)
			}
		}
	})
}

// FuzzSigningNonces: both nonces are octets of the request itself, or neither is.
func FuzzSigningNonces(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{"a.example"}}, key)
	if err != nil {
		f.Fatal(err)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(csr.RawTBSCertificateRequest)
	f.Add([]byte("\x30\x2d\x02\x01\x00\x30\x00\x30\x00\xa0\x24\x30\x10\x06\x04\x67\x81\x0c\x29\x31\x08\x04\x0612345\x36\x30\x10\x06\x04\x67\x81\x0c\x2a\x31\x08\x04\x06123456"))
	f.Fuzz(func(t *testing.T, tbs []byte) {
		ours, theirs, err := signingNonces(tbs)
		if err != nil {
			return
		}
		if len(ours) == 0 || len(theirs) == 0 || !bytes.Contains(tbs, ours) || !bytes.Contains(tbs, theirs) {
			t.Errorf("nonces %x and %x in %x", ours, theirs, tbs)
		}
	})
}
