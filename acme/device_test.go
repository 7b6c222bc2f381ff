package acme_test

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/acme/attestation"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
)

// An enclave is a device of Apple's with its maker.
type enclave struct {
	t    *testing.T
	root *x509.Certificate
	sign any
}

func newEnclave(t *testing.T) *enclave {
	t.Helper()
	key := newKey(t)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "maker"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &enclave{t, root, key}
}

// attest is the answer to a challenge with that token, by the device with that serial.
func (e *enclave) attest(serial, token string, pub any) map[string]any {
	e.t.Helper()
	nonce := sha256.Sum256([]byte(token))
	apple := asn1.ObjectIdentifier{1, 2, 840, 113635, 100, 8}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtraExtensions: []pkix.Extension{
			{Id: append(slices.Clone(apple), 9, 1), Value: []byte(serial)}, {Id: append(slices.Clone(apple), 11, 1), Value: nonce[:]},
		},
	}, e.root, pub, e.sign)
	if err != nil {
		e.t.Fatal(err)
	}
	raw, err := cbor.Marshal(map[string]any{"fmt": "apple", "attStmt": map[string]any{"x5c": [][]byte{der}}})
	if err != nil {
		e.t.Fatal(err)
	}
	return map[string]any{"attObj": b64(raw), "more": "is left aside"}
}

// fleet is a server for devices of that maker.
func fleet(t *testing.T, e *enclave) *world {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(e.root)
	v, err := attestation.New(attestation.Config{Roots: map[attestation.Format]*x509.CertPool{attestation.Apple: pool}})
	if err != nil {
		t.Fatal(err)
	}
	return newWorld(t, func(c *acme.Config) {
		c.Challenges, c.Validator, c.DefaultProfile = []acme.ChallengeType{acme.HTTP01, acme.DeviceAttest01}, v, "device"
		c.ReuseAuthorizations = true
		c.CA = catest.New(t, func(cfg *ca.Config) {
			cfg.Profiles = []ca.Profile{{
				Name: "device", Validity: 24 * time.Hour, ExtKeyUsages: []string{"clientAuth"}, CommonName: ca.CNFirst,
				Names: []ca.NameKind{ca.KindDNS, ca.KindPermanentIdentifier},
			}}
			cfg.DefaultProfile = "device"
			cfg.Store = storeOf(c)
		}).Authority
	})
}

func deviceOrder(names ...string) map[string]any {
	var ids []map[string]string
	for _, n := range names {
		ids = append(ids, map[string]string{"type": "permanent-identifier", "value": n})
	}
	return map[string]any{"identifiers": ids}
}

func (c *client) token(authz string) string {
	list, _ := c.get(authz).want(200).json["challenges"].([]any)
	if len(list) != 1 {
		c.t.Fatalf("%d challenges for a device, want device-attest-01 alone", len(list))
	}
	ch, _ := list[0].(map[string]any)
	token, _ := ch["token"].(string)
	return token
}

// A device gets its certificate for the key that it proved to hold, and for no other.
func TestDeviceIsCertifiedForItsAttestedKey(t *testing.T) {
	t.Parallel()
	e := newEnclave(t)
	w := fleet(t, e)
	c := w.client()
	r := c.post(w.url("new-order"), deviceOrder("C02XYZ")).want(201)
	order, authz := r.location(), r.strs("authorizations")[0]
	key := newKey(t)
	c.post(c.challengeURL(authz, "device-attest-01"), e.attest("C02XYZ", c.token(authz), key.Public())).want(200)
	if got := c.await(authz, "valid", "invalid").str("status"); got != "valid" {
		t.Fatalf("authorization is %s: %v", got, c.get(authz).json)
	}
	finalize := c.get(order).want(200).str("finalize")
	c.post(finalize, csrBody(catest.CSR(t, newKey(t)))).problem(400, "badCSR")
	if got := c.get(order).want(200).str("status"); got != "ready" {
		t.Fatalf("order is %s after another key", got)
	}
	done := c.post(finalize, csrBody(catest.CSR(t, key))).want(200)
	chain := c.get(done.str("certificate")).want(200)
	block, _ := pem.Decode(chain.body)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if !key.PublicKey.Equal(cert.PublicKey) || cert.Subject.CommonName != "C02XYZ" {
		t.Errorf("certificate of %v", cert.Subject)
	}
	// The proof was for that key: the next order wants a new one.
	again := c.post(w.url("new-order"), deviceOrder("C02XYZ")).want(201)
	if again.str("status") != "pending" || slices.Contains(again.strs("authorizations"), authz) {
		t.Errorf("the next order is %s", again.str("status"))
	}
}

func TestAttestationThatIsNotBelievedEndsTheOrder(t *testing.T) {
	t.Parallel()
	e := newEnclave(t)
	w := fleet(t, e)
	c := w.client()
	key := newKey(t)
	for name, answer := range map[string]func(token string) map[string]any{
		"another device":     func(token string) map[string]any { return e.attest("C02XYW", token, key.Public()) },
		"another token":      func(string) map[string]any { return e.attest("C02XYZ", "x", key.Public()) },
		"another maker":      func(token string) map[string]any { return newEnclave(t).attest("C02XYZ", token, key.Public()) },
		"nothing":            func(string) map[string]any { return map[string]any{} },
		"the client's error": func(string) map[string]any { return map[string]any{"error": "no enclave"} },
	} {
		r := c.post(w.url("new-order"), deviceOrder("C02XYZ")).want(201)
		authz := r.strs("authorizations")[0]
		c.post(c.challengeURL(authz, "device-attest-01"), answer(c.token(authz))).want(200)
		got := c.await(authz, "valid", "invalid")
		list, _ := got.json["challenges"].([]any)
		ch, _ := list[0].(map[string]any)
		problem, _ := ch["error"].(map[string]any)
		if got.str("status") != "invalid" || problem["type"] != "urn:ietf:params:acme:error:badAttestationStatement" {
			t.Errorf("%s: %v", name, got.json)
		}
		c.get(r.location()).want(200)
		c.post(r.str("finalize"), csrBody(catest.CSR(t, key))).problem(403, "orderNotReady")
	}
}

func TestDeviceIdentifiersThatAreNotWrittenRightAreMalformed(t *testing.T) {
	t.Parallel()
	w := fleet(t, newEnclave(t))
	c := w.client()
	for _, name := range []string{"", "a/b", "/1.2.3", "a/1.2/3"} {
		c.post(w.url("new-order"), deviceOrder(name)).problem(400, "malformed")
	}
	c.post(w.url("new-order"), map[string]any{"identifiers": []map[string]string{{"type": "hardware-module", "value": "a/1.2"}}}).problem(400, "unsupportedIdentifier")
}
