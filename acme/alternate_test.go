package acme_test

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca/catest"
)

// signedBy makes the certificate of a CA by another one.
func signedBy(t *testing.T, name string, pub crypto.PublicKey, raw []byte, by string, key crypto.Signer) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, RawSubject: raw,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	parent := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: by}}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// alternating gives the world's issuer two further chains, to "Old Root" and, by
// way of a CA between, to "New Root".
func alternating(t *testing.T, more ...func(*acme.Config)) *world {
	t.Helper()
	return newWorld(t, append(more, func(c *acme.Config) {
		authority := catest.New(t)
		oldKey, newKey1, between := newKey(t), newKey(t), newKey(t)
		is := authority.Issuer
		is.Alternates = [][]*x509.Certificate{
			{signedBy(t, "", is.Cert.PublicKey, is.Cert.RawSubject, "Old Root", oldKey)},
			{
				signedBy(t, "", is.Cert.PublicKey, is.Cert.RawSubject, "Between", between),
				signedBy(t, "Between", between.Public(), nil, "New Root", newKey1),
			},
		}
		c.CA = authority.Authority
	})...)
}

// alternates are the links of that relation, each in a line of its own.
func alternates(t *testing.T, r *reply) (out []string) {
	t.Helper()
	for _, l := range r.header["Link"] {
		if strings.Count(l, "<") != 1 {
			t.Errorf("several links in a line: %q", l)
		}
		if u, ok := strings.CutSuffix(l, `>;rel="alternate"`); ok {
			out = append(out, u[1:])
		}
	}
	return out
}

func rootOf(t *testing.T, chain []byte) (name string, n int) {
	t.Helper()
	for b, rest := pem.Decode(chain); b != nil; b, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		name, n = cert.Issuer.CommonName, n+1
	}
	return name, n
}

// RFC 8555 §7.4.2: chains to other roots, found from each other.
func TestChainsToOtherRootsAreLinked(t *testing.T) {
	t.Parallel()
	w := alternating(t)
	c := w.client()
	_, r := c.ready("a.example.com")
	u := c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).want(200).str("certificate")
	first := c.get(u).want(200)
	all := map[string]string{u: "Secsy Test Root", u + "/1": "Old Root", u + "/2": "New Root"}
	if got := alternates(t, first); !slices.Equal(got, []string{u + "/1", u + "/2"}) {
		t.Errorf("alternates are %v", got)
	}
	for url, root := range all {
		got := c.get(url).want(200)
		if name, n := rootOf(t, got.body); name != root || n < 2 || n > 3 {
			t.Errorf("%s: %d certificates to %s; want %s", url, n, name, root)
		}
		if ct := got.header["Content-Type"]; !slices.Equal(ct, []string{"application/pem-certificate-chain"}) {
			t.Errorf("Content-Type is %q", ct)
		}
		if !bytes.Equal(leaf(t, got.body).Raw, leaf(t, first.body).Raw) {
			t.Errorf("%s has another certificate", url)
		}
		others := alternates(t, got)
		if slices.Contains(others, url) || len(others) != 2 {
			t.Errorf("%s: alternates are %v", url, others)
		}
		w.client().get(url).problem(404, "malformed")
		c.do("GET", url, "", nil).problem(405, "malformed")
	}
	if got := c.get(u + "/0").want(200); !bytes.Equal(got.body, first.body) {
		t.Error("number 0 is not the issuer's own chain")
	}
	for _, none := range []string{"/3", "/-1", "/01", "/x", "/1/", "/+1", "/99999999999999999999"} {
		c.get(u+none).problem(404, "malformed")
	}
}

func TestAProfileMayPreferAChain(t *testing.T) {
	t.Parallel()
	w := alternating(t, func(c *acme.Config) { c.PreferredChains = map[string]string{catest.ProfileName: "New Root"} })
	c := w.client()
	_, r := c.ready("a.example.com")
	u := c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).want(200).str("certificate")
	first := c.get(u).want(200)
	if name, _ := rootOf(t, first.body); name != "New Root" {
		t.Errorf("the first chain leads to %s", name)
	}
	if got := alternates(t, first); !slices.Equal(got, []string{u + "/0", u + "/1"}) {
		t.Errorf("alternates are %v", got)
	}
	own := c.get(u + "/0").want(200)
	if name, _ := rootOf(t, own.body); name != "Secsy Test Root" || !slices.Equal(alternates(t, own), []string{u + "/1", u}) {
		t.Errorf("number 0 leads to %s, alternates %v", name, alternates(t, own))
	}
}
