package challenge_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
)

func newService(t testing.TB) (string, ed25519.PrivateKey) {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return ca.OnionName(pub), key
}

// An attribute of a CSR that crypto/x509 doesn't write.
type attribute struct {
	ID     asn1.ObjectIdentifier
	Values [][]byte `asn1:"set"`
}

var (
	oidOurs   = asn1.ObjectIdentifier{2, 23, 140, 41}
	oidTheirs = asn1.ObjectIdentifier{2, 23, 140, 42}
)

// onionCSR makes a CSR with these attributes, signed by key but said to be of pub.
func onionCSR(t testing.TB, pub crypto.PublicKey, key ed25519.PrivateKey, attrs ...attribute) []byte {
	t.Helper()
	spki, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	var raw []byte
	for _, a := range attrs {
		b, err := asn1.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		raw = append(raw, b...)
	}
	tbs, err := asn1.Marshal(struct {
		Version    int
		Subject    pkix.RDNSequence
		Key        asn1.RawValue
		Attributes asn1.RawValue
	}{0, nil, asn1.RawValue{FullBytes: spki}, asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 0, IsCompound: true, Bytes: raw}})
	if err != nil {
		t.Fatal(err)
	}
	der, err := asn1.Marshal(struct {
		TBS       asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{asn1.RawValue{FullBytes: tbs}, pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 3, 101, 112}}, asn1.BitString{Bytes: ed25519.Sign(key, tbs), BitLength: 512}})
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func nonces(t testing.TB) []attribute {
	t.Helper()
	ours, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		t.Fatal(err)
	}
	return []attribute{{oidOurs, [][]byte{ours}}, {oidTheirs, [][]byte{[]byte("12345678")}}}
}

func onionQuestion(t testing.TB, name string, csr []byte) acme.Validation {
	t.Helper()
	answer, err := json.Marshal(map[string]string{"csr": base64.RawURLEncoding.EncodeToString(csr)})
	if err != nil {
		t.Fatal(err)
	}
	return acme.Validation{
		Type: acme.OnionCSR01, Identifier: ca.Identifier{Type: ca.DNS, Value: name}, Token: token, KeyAuthorization: keyAuthorization,
		Answer: answer, IssuedAt: time.Now(),
	}
}

func TestOnionServiceProvesItselfByItsKey(t *testing.T) {
	t.Parallel()
	service, key := newService(t)
	_, other := newService(t)
	pub := key.Public()
	v := mustNew(t, config(newNameServer(t), 80))
	good := onionCSR(t, pub, key, nonces(t)...)
	for _, name := range []string{service, "www." + service, "a.b." + service} {
		q := onionQuestion(t, name, good)
		q.Wildcard = name == service
		if _, p := v.Validate(t.Context(), q); p != nil {
			t.Errorf("%s: %v", name, p)
		}
	}
	n := nonces(t)
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for says, csr := range map[string][]byte{
		"not the one that":      onionCSR(t, other.Public(), other, n...),
		"not signed with its":   onionCSR(t, pub, other, n...),
		"key is not the one":    onionCSR(t, ec.Public(), key, n...),
		"not there exactly":     onionCSR(t, pub, key, n[1]),
		"they are malformed":    onionCSR(t, pub, key, n[0], n[1], n[1]),
		"is not the challenge'": onionCSR(t, pub, key, attribute{oidOurs, [][]byte{[]byte("another")}}, n[1]),
		"at least 8 octets":     onionCSR(t, pub, key, n[0], attribute{oidTheirs, [][]byte{[]byte("1234567")}}),
		"nonces is not there":   onionCSR(t, pub, key, n[0], attribute{oidTheirs, [][]byte{[]byte("12345678"), []byte("12345679")}}),
		"not a PKCS#10":         good[:len(good)-1],
	} {
		if _, p := v.Validate(t.Context(), onionQuestion(t, service, csr)); p == nil || !strings.Contains(p.Detail, says) {
			t.Errorf("%v, want one that says %q", p, says)
		}
	}
	for says, change := range map[string]func(*acme.Validation){
		"older than 30 days": func(q *acme.Validation) { q.IssuedAt = time.Now().Add(-31 * 24 * time.Hour) },
		"answered with an":   func(q *acme.Validation) { q.Answer = []byte(`{"csr":""}`) },
		"not base64url":      func(q *acme.Validation) { q.Answer = []byte(`{"csr":"!"}`) },
	} {
		q := onionQuestion(t, service, good)
		change(&q)
		if _, p := v.Validate(t.Context(), q); p == nil || !strings.Contains(p.Detail, says) {
			t.Errorf("%v, want one that says %q", p, says)
		}
	}
}

// Names in .onion are for their own challenge, and it for them; the DNS hears of none.
func TestTheDNSIsNeverAskedForOnions(t *testing.T) {
	t.Parallel()
	service, key := newService(t)
	ns := newNameServer(t)
	v := mustNew(t, config(ns, 80))
	for _, typ := range []acme.ChallengeType{acme.HTTP01, acme.DNS01, acme.TLSALPN01} {
		q := onionQuestion(t, service, nil)
		q.Type = typ
		if _, p := v.Validate(t.Context(), q); p == nil || p.Type != acme.Malformed {
			t.Errorf("%s: %v", typ, p)
		}
	}
	q := onionQuestion(t, name, onionCSR(t, key.Public(), key, nonces(t)...))
	if _, p := v.Validate(t.Context(), q); p == nil || p.Type != acme.Malformed {
		t.Errorf("a name that is no onion: %v", p)
	}
	_, p := mustNew(t, caaConfig(ns)).CheckCAA(t.Context(), acme.CAAQuery{Name: service, Method: acme.OnionCSR01})
	if p == nil || p.Type != acme.OnionCAARequired {
		t.Errorf("CAA: %v", p)
	}
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if len(ns.asked) != 0 {
		t.Errorf("asked for %v", ns.asked)
	}
}

func onionWord(key ed25519.PrivateKey, caa string, expiry int64) *acme.OnionCAA {
	sig := ed25519.Sign(key, fmt.Appendf(nil, "onion-caa|%d|%s", expiry, caa))
	o := &acme.OnionCAA{Expiry: expiry, Signature: base64.URLEncoding.EncodeToString(sig)} // padded, as the RFC's example is
	if caa != "" {
		o.CAA = &caa
	}
	return o
}

func TestOnionsWordOnCAA(t *testing.T) {
	t.Parallel()
	service, key := newService(t)
	_, other := newService(t)
	v := mustNew(t, caaConfig(newNameServer(t)))
	soon := time.Now().Add(time.Hour).Unix()
	const account = "https://ca.example/acme/account/1"
	tampered := onionWord(key, "", soon)
	tampered.Expiry++
	for name, c := range map[string]struct {
		word     *acme.OnionCAA
		wildcard bool
		want     acme.ProblemType
	}{
		"none":                 {onionWord(key, "", soon), false, ""},
		"us":                   {onionWord(key, `caa 128 issue "`+ours+`"`, soon), false, ""},
		"us by this method":    {onionWord(key, `caa 128 issue "`+ours+`; validationmethods=onion-csr-01"`+"\n"+`caa 0 iodef "mailto:a@b.example"`, soon), false, ""},
		"us by another method": {onionWord(key, `caa 0 issue "`+ours+`; validationmethods=http-01"`, soon), false, acme.CAA},
		"us for this account":  {onionWord(key, `caa 0 issue "`+ours+`; accounturi=`+account+`"`, soon), false, ""},
		"us for another":       {onionWord(key, `caa 0 issue "`+ours+`; accounturi=`+account+`2"`, soon), false, acme.CAA},
		"another CA":           {onionWord(key, `caa 0 issue "other.example"`, soon), false, acme.CAA},
		"nobody for wildcards": {onionWord(key, `caa 0 issue "`+ours+`"`+"\n"+`caa 0 issuewild ";"`, soon), true, acme.CAA},
		"unknown and critical": {onionWord(key, `caa 128 tbs "x"`, soon), false, acme.CAA},
		"no such line":         {onionWord(key, "issue ours", soon), false, acme.CAA},
		"an empty line":        {onionWord(key, "\n\n", soon), false, acme.CAA},
		"two records in one":   {onionWord(key, `caa 0 issue ( "a"`+"\r"+`)`, soon), false, acme.CAA},
		"a comment":            {onionWord(key, `caa 0 issue ;x`, soon), false, acme.CAA},
		"too many":             {onionWord(key, strings.Repeat("caa 0 issue \""+ours+"\"\n", 65), soon), false, acme.CAA},
		"too long":             {onionWord(key, `caa 0 issue "`+ours+`; x=`+strings.Repeat("a", 17<<10)+`"`, soon), false, acme.CAA},
		"expired":              {onionWord(key, "", time.Now().Add(-time.Second).Unix()), false, acme.CAA},
		"for too long":         {onionWord(key, "", time.Now().Add(9*time.Hour).Unix()), false, acme.CAA},
		"for ever":             {onionWord(key, "", 1<<62), false, acme.CAA},
		"somebody else's":      {onionWord(other, "", soon), false, acme.CAA},
		"with another expiry":  {tampered, false, acme.CAA},
		"not said":             {nil, false, acme.OnionCAARequired},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec, p := v.CheckCAA(t.Context(), acme.CAAQuery{Name: "www." + service, Wildcard: c.wildcard, Method: acme.OnionCSR01, AccountURL: account, Onion: c.word})
			if p == nil && c.want != "" || p != nil && p.Type != c.want {
				t.Errorf("%v, want %q", p, c.want)
			}
			if p == nil && rec.Found != service {
				t.Errorf("found at %q", rec.Found)
			}
		})
	}
}
