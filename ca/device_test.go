package ca_test

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
)

var deviceKinds = []ca.NameKind{ca.KindPermanentIdentifier, ca.KindHardwareModule}

func devices(t *testing.T, change ...func(*ca.Profile)) *catest.CA {
	t.Helper()
	return catest.New(t, func(c *ca.Config) {
		p := ca.Profile{Name: "device", Validity: 24 * time.Hour, Names: deviceKinds, ExtKeyUsages: []string{"clientAuth"}, CommonName: ca.CNFirst}
		for _, f := range change {
			f(&p)
		}
		c.Profiles, c.DefaultProfile = []ca.Profile{p}, "device"
	})
}

func permanent(v string) ca.Identifier { return ca.Identifier{Type: ca.PermanentIdentifier, Value: v} }
func module(v string) ca.Identifier    { return ca.Identifier{Type: ca.HardwareModule, Value: v} }

func TestDeviceIdentifiersAreWrittenAsTheGrammarSays(t *testing.T) {
	t.Parallel()
	c := devices(t)
	for _, id := range []ca.Identifier{
		permanent("ABCDEF123456"), permanent("ABCDEF123456/1.2.3.4"), permanent("seriell-ü 1"), permanent("x/2.999.1"), module("ABCD/1.2.3.4"), module("1/2.5"),
	} {
		if err := c.CheckIdentifiers(t.Context(), "device", []ca.Identifier{id}); err != nil {
			t.Errorf("%v: %v", id, err)
		}
	}
	for _, id := range []ca.Identifier{
		permanent(""), permanent("/1.2.3"), permanent("a/"), permanent("a/1"), permanent("a/1.2/3"), permanent("a/01.2"), permanent("a/1.2.03"), permanent("a/3.2"), permanent("a/1.40"),
		permanent("\xff"), permanent("a\nb"), permanent("a\u202eb"), permanent("a\u200bb"), permanent(strings.Repeat("a", 300)), module("ABCD"), module("/1.2"), module("a/b"),
	} {
		err := c.CheckIdentifiers(t.Context(), "device", []ca.Identifier{id})
		if r, ok := errors.AsType[*ca.Refusal](err); !ok || r.Code != ca.Malformed || r.Identifier == nil {
			t.Errorf("%q: %v, want malformed", id.Value, err)
		}
	}
}

func TestOnlyProfilesForDevicesTakeThem(t *testing.T) {
	t.Parallel()
	c := catest.New(t)
	err := c.CheckIdentifiers(t.Context(), "", []ca.Identifier{permanent("A")})
	if r, ok := errors.AsType[*ca.Refusal](err); !ok || r.Code != ca.Unsupported {
		t.Errorf("%v, want unsupported", err)
	}
	err = c.CheckIdentifiers(t.Context(), "", []ca.Identifier{{Type: "node-id", Value: "A"}})
	if r, ok := errors.AsType[*ca.Refusal](err); !ok || r.Code != ca.Unsupported {
		t.Errorf("%v, want unsupported", err)
	}
	_, err = ca.New(ca.Config{
		Policy: ca.Public, Store: catest.NewStore(), Linter: catest.Linter(t, ca.Public), Issuers: []*ca.Issuer{c.Issuer},
		Profiles: []ca.Profile{{Name: "device", Validity: 24 * time.Hour, Names: deviceKinds}},
	})
	if err == nil || !strings.Contains(err.Error(), "certifies no devices") {
		t.Errorf("public: %v", err)
	}
}

// deviceCSR makes a CSR whose subjectAltName is as given.
func deviceCSR(t *testing.T, cn string, san []byte, dns ...string) []byte {
	t.Helper()
	return csrOf(t, nil, func(r *x509.CertificateRequest) {
		r.DNSNames = dns
		if cn != "" {
			r.Subject = pkix.Name{CommonName: cn}
		}
		if san != nil {
			r.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: san}}
		}
	})
}

func TestDeviceCertificatesHoldTheirNames(t *testing.T) {
	t.Parallel()
	for _, cn := range []ca.CNPolicy{ca.CNFirst, ca.CNNone} {
		c := devices(t, func(p *ca.Profile) { p.CommonName = cn })
		if err := c.Rehearse(t.Context()); err != nil {
			t.Fatal(err)
		}
		names := []ca.Identifier{permanent("SN 1/1.2.3"), module("HW/1.2.9"), permanent("other")}
		got, err := c.Issue(t.Context(), ca.Request{CSR: deviceCSR(t, "", nil), Identifiers: names}, c.Store.PlainLedger())
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(got.DER)
		if err != nil {
			t.Fatal(err)
		}
		want := map[ca.CNPolicy]string{ca.CNFirst: "SN 1"}[cn]
		if cert.Subject.CommonName != want {
			t.Errorf("common name %q, want %q", cert.Subject.CommonName, want)
		}
		var read []ca.Identifier
		for _, e := range cert.Extensions {
			if e.Id.String() != "2.5.29.17" {
				continue
			}
			if e.Critical != (cn == ca.CNNone) {
				t.Errorf("critical: %t, with a subject of %q", e.Critical, want)
			}
			read = append(read, readDevices(t, e.Value)...)
		}
		if len(read) != len(names) {
			t.Fatalf("%v", read)
		}
		for i, id := range read {
			if id != names[i] {
				t.Errorf("%v, want %v", id, names[i])
			}
		}
		// What the certificate says is also what its renewal may ask for.
		san := sanOf(t, cert)
		if _, err := c.CheckCSR(t.Context(), "device", deviceCSR(t, "", san), names); err != nil {
			t.Error(err)
		}
	}
}

func sanOf(t *testing.T, cert *x509.Certificate) []byte {
	t.Helper()
	for _, e := range cert.Extensions {
		if e.Id.String() == "2.5.29.17" {
			return e.Value
		}
	}
	t.Fatal("no subjectAltName")
	return nil
}

func readDevices(t *testing.T, san []byte) (out []ca.Identifier) {
	t.Helper()
	var seq asn1.RawValue
	if _, err := asn1.Unmarshal(san, &seq); err != nil {
		t.Fatal(err)
	}
	for rest := seq.Bytes; len(rest) > 0; {
		var name asn1.RawValue
		var err error
		if rest, err = asn1.Unmarshal(rest, &name); err != nil {
			t.Fatal(err)
		}
		id, known, err := ca.ParseDeviceName(name.FullBytes)
		if err != nil || !known {
			t.Fatalf("%x: %t, %v", name.FullBytes, known, err)
		}
		out = append(out, id)
	}
	return out
}

func TestDeviceCSRs(t *testing.T) {
	t.Parallel()
	c := devices(t)
	names := []ca.Identifier{permanent("SN-1")}
	issue := func(ids ...ca.Identifier) []byte {
		got, err := c.Issue(t.Context(), ca.Request{CSR: deviceCSR(t, "", nil), Identifiers: ids}, c.Store.PlainLedger())
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(got.DER)
		if err != nil {
			t.Fatal(err)
		}
		return sanOf(t, cert)
	}
	upn := []byte("\x30\x18\xa0\x16\x06\x0a\x2b\x06\x01\x04\x01\x82\x37\x14\x02\x03\xa0\x08\x0c\x06a@b.cd")
	for name, k := range map[string]struct {
		csr  []byte
		good bool
	}{
		"no name":              {deviceCSR(t, "", nil), true},
		"its name":             {deviceCSR(t, "", issue(names...)), true},
		"its name as subject":  {deviceCSR(t, "SN-1", nil), true},
		"its owner as subject": {deviceCSR(t, "Jane Doe's phone", nil), true},
		"another device":       {deviceCSR(t, "", issue(permanent("SN-2"))), false},
		"with an assigner":     {deviceCSR(t, "", issue(permanent("SN-1/1.2.3"))), false},
		"as a module":          {deviceCSR(t, "", issue(module("SN-1/1.2.3"))), false},
		"a domain":             {deviceCSR(t, "", nil, "www.example.com"), false},
		"a domain as subject":  {deviceCSR(t, "www.example.com", nil), false},
		"a user's name":        {deviceCSR(t, "", upn), false},
		"cut off":              {deviceCSR(t, "", []byte{0x30, 2, 0xa0, 0}), false},
	} {
		_, err := c.CheckCSR(t.Context(), "device", k.csr, names)
		if r, ok := errors.AsType[*ca.Refusal](err); err != nil != !k.good || err != nil && (!ok || r.Code != ca.BadCSR) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzParseDeviceName: what is read is written the same again in a certificate.
func FuzzParseDeviceName(f *testing.F) {
	f.Add([]byte("\xa0\x12\x06\x08\x2b\x06\x01\x05\x05\x07\x08\x03\xa0\x06\x30\x04\x0c\x02SN"))
	f.Add([]byte("\xa0\x16\x06\x08\x2b\x06\x01\x05\x05\x07\x08\x04\xa0\x0a\x30\x08\x06\x02\x2a\x03\x04\x02HW"))
	f.Fuzz(func(t *testing.T, element []byte) {
		id, known, err := ca.ParseDeviceName(element)
		if err != nil || !known {
			return
		}
		again, err := ca.DeviceName(id)
		if err != nil || !bytes.Equal(again, element) {
			t.Errorf("%x is read as %v, written as %x (%v)", element, id, again, err)
		}
	})
}
