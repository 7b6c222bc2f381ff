package scep

import (
	"crypto"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/hsmguard"
	"github.com/secsy-pki/secsy-pki/pkcs11pool"
	"github.com/secsy-pki/secsy-pki/pkcs11pool/pkcs11test"
)

// hsm is what the tests of this room take tokens from.
var hsm *pkcs11test.HSM

func TestMain(m *testing.M) { pkcs11test.Main(m, &hsm, 1) }

// The registration authority's key is made on the token, and stays the one of a
// restart. What strangers send is no fault of the token's.
func TestAnAuthorityOnATokenOpensAndSigns(t *testing.T) {
	t.Parallel()
	token := hsm.Take(t)
	registry := prometheus.NewRegistry()
	pool, err := pkcs11pool.Open(t.Context(), pkcs11pool.Config{
		Tokens: []pkcs11pool.TokenConfig{{
			Module: token.Module, Label: token.Label, PIN: func() ([]byte, error) { return []byte(pkcs11test.PIN), nil },
		}},
		Registerer: registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	g, err := gate.New(gate.Config{Seats: 4, MaxQueue: 64})
	if err != nil {
		t.Fatal(err)
	}
	guarded, ok := hsmguard.New(hsmguard.Config{Gate: g}).Keys(pool).(KeyStore)
	if !ok {
		t.Fatal("the guard hides that the pool makes keys")
	}
	w := newWorld(t)
	s := w.served(func(c *Config) { c.Keys = guarded })
	enrolled(t, s, deviceKey(), "a.example.com")
	d := newDevice(t, s, deviceKey())
	for _, d.oaep = range []crypto.Hash{crypto.SHA1, crypto.SHA256} {
		d.transaction = d.oaep.String()
		if h := d.hear(post(t, s, d.message(csr(t, d.key, goodChallenge, "a.example.com"))), ""); h.status != "0" {
			t.Errorf("%v: %v", d.oaep, h)
		}
	}
	d.oaep = 0
	before := troubles(t, registry)
	d.sealed = func(der []byte) []byte { // RSA of what is no key
		at := strings.Index(string(der), "\x04\x82\x01\x00") + 4
		der[at+128] ^= 1
		return der
	}
	for range 20 {
		if h := d.hear(post(t, s, d.message(csr(t, d.key, goodChallenge, "a.example.com"))), ""); h.status != "2" || h.fail != "1" {
			t.Fatalf("wrong padding: %v", h)
		}
	}
	if after := troubles(t, registry); after != before {
		t.Errorf("the token is said to have failed:\n%swas\n%s", after, before)
	}
	again := w.served(func(c *Config) { c.Keys = guarded })
	if !raOf(again).cert.Equal(raOf(s).cert) {
		t.Error("another authority after a restart")
	}
}

// troubles are the counters of what goes wrong at tokens.
func troubles(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, f := range families {
		for _, word := range []string{"fault", "fail", "error", "lost", "discard", "destroy", "retr"} {
			if strings.Contains(f.GetName(), word) {
				out.WriteString(f.String() + "\n")
				break
			}
		}
	}
	if out.Len() == 0 {
		t.Fatal("there are no counters of faults")
	}
	return out.String()
}
