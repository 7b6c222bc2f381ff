package ca_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
)

func subjects(t *testing.T) *catest.CA {
	t.Helper()
	return catest.New(t, func(c *ca.Config) {
		c.Profiles = []ca.Profile{{
			Name: "device", Validity: 24 * time.Hour, ExtKeyUsages: []string{"clientAuth"},
			Names: []ca.NameKind{ca.KindDNS, ca.KindIP, ca.KindPermanentIdentifier, ca.KindCommonName, ca.KindSerialNumber},
		}, {Name: "server", Validity: 24 * time.Hour}}
		c.DefaultProfile = "device"
	})
}

func subjectCSR(t *testing.T, subject pkix.Name, dns ...string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject, DNSNames: dns}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func common(v string) ca.Identifier { return ca.Identifier{Type: ca.SubjectCommonName, Value: v} }
func number(v string) ca.Identifier { return ca.Identifier{Type: ca.SubjectSerialNumber, Value: v} }
func dnsName(v string) ca.Identifier {
	return ca.Identifier{Type: ca.DNS, Value: v}
}

func TestASubjectHasTheNamesThatWereAskedForAndNoOthers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		csr  pkix.Name
		dns  []string
		want []ca.Identifier
	}{
		{pkix.Name{CommonName: "Pump 7"}, nil, []ca.Identifier{common("Pump 7")}},
		{pkix.Name{CommonName: "dev1", SerialNumber: "A-1", Organization: []string{"Elsewhere"}}, nil, []ca.Identifier{common("dev1"), number("A-1")}},
		{pkix.Name{CommonName: "dev1"}, []string{"dev1.example.org"}, []ca.Identifier{common("dev1"), dnsName("dev1.example.org")}},
		{pkix.Name{CommonName: "dev1.example.org"}, []string{"dev1.example.org"}, []ca.Identifier{common("dev1.example.org"), dnsName("dev1.example.org")}},
		{pkix.Name{SerialNumber: "A-1"}, []string{"dev1.example.org"}, []ca.Identifier{dnsName("dev1.example.org"), number("A-1")}},
	} {
		a := subjects(t)
		csr := subjectCSR(t, c.csr, c.dns...)
		names, err := a.RequestedNames(t.Context(), "device", csr)
		if err != nil || !reflect.DeepEqual(names, c.want) {
			t.Errorf("%v: names are %v, %v; want %v", c.csr, names, err, c.want)
			continue
		}
		cert, err := a.Issue(t.Context(), ca.Request{Profile: "device", CSR: csr, Identifiers: names}, a.Store.PlainLedger())
		if err != nil {
			t.Errorf("%v: %v", c.csr, err)
			continue
		}
		got, err := x509.ParseCertificate(cert.DER)
		if err != nil {
			t.Fatal(err)
		}
		if got.Subject.CommonName != c.csr.CommonName || got.Subject.SerialNumber != c.csr.SerialNumber || len(got.Subject.Organization) > 0 || !reflect.DeepEqual(got.DNSNames, c.dns) {
			t.Errorf("%v: subject is %v, names are %v", c.csr, got.Subject, got.DNSNames)
		}
		// A name less than the CSR has, or one more, is not what was asked for.
		for _, wrong := range [][]ca.Identifier{append([]ca.Identifier{dnsName("other.example.org")}, names...), {common("dev2")}} {
			if _, err := a.CheckCSR(t.Context(), "device", csr, wrong); !refusedAs(err, ca.BadCSR) {
				t.Errorf("%v as %v: %v", c.csr, wrong, err)
			}
		}
	}
}

func TestWordsInASubjectAreBounded(t *testing.T) {
	t.Parallel()
	a := subjects(t)
	for _, ids := range [][]ca.Identifier{
		{common("")}, {common(strings.Repeat("x", 65))}, {common("a\x00b")}, {common("\xff")}, {common("a\u202eb")}, {common(" a")}, {number("a_b")}, {number("é")}, {number(strings.Repeat("1", 65))},
	} {
		if err := a.CheckIdentifiers(t.Context(), "device", ids); !refusedAs(err, ca.Malformed) {
			t.Errorf("%q: %v", ids, err)
		}
	}
	if err := a.CheckIdentifiers(t.Context(), "device", []ca.Identifier{common("a"), common("b")}); !refusedAs(err, ca.RejectedIdentifier) {
		t.Errorf("two common names: %v", err)
	}
	if err := a.CheckIdentifiers(t.Context(), "server", []ca.Identifier{common("a")}); !refusedAs(err, ca.Unsupported) {
		t.Errorf("a profile without them: %v", err)
	}
}

// Where a profile has no kind for it, a common name counts as what it looks like.
func TestACommonNameIsADomainNameWhereNothingElseIs(t *testing.T) {
	t.Parallel()
	a := subjects(t)
	for name, want := range map[string][]ca.Identifier{"dev1": {dnsName("dev1")}, "Dev1.example.org": {dnsName("dev1.example.org")}, "Pump 7": {}} {
		got, err := a.RequestedNames(t.Context(), "server", subjectCSR(t, pkix.Name{CommonName: name}))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %v; want %v", name, got, err, want)
		}
	}
}

func refusedAs(err error, code ca.Code) bool {
	r, ok := errors.AsType[*ca.Refusal](err)
	return ok && r.Code == code
}
