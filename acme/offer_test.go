package acme_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
)

func idsBody(ids ...string) map[string]any {
	list := make([]ca.Identifier, 0, len(ids))
	list = append(list, catest.IDs(ids...)...)
	return map[string]any{"identifiers": list}
}

// types lists the challenges of an authorization.
func (c *client) types(authz string) (out []string) {
	c.t.Helper()
	list, _ := c.get(authz).want(200).json["challenges"].([]any)
	for _, v := range list {
		ch, _ := v.(map[string]any)
		typ, _ := ch["type"].(string)
		out = append(out, typ)
	}
	return out
}

// TestAddressesAreProvenByConnectingToThem is RFC 8738: an order for addresses,
// each written in its one spelling, its challenges, its certificate.
func TestAddressesAreProvenByConnectingToThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	r := c.post(w.url("new-order"), idsBody("198.51.100.7", "2001:0DB8:0:0::00F1", "a.example.com")).want(201)
	url := r.location()
	var values []string
	for _, v := range r.json["identifiers"].([]any) {
		values = append(values, v.(map[string]any)["type"].(string)+" "+v.(map[string]any)["value"].(string))
	}
	if want := []string{"ip 198.51.100.7", "ip 2001:db8::f1", "dns a.example.com"}; !slices.Equal(values, want) {
		t.Fatalf("identifiers %v, want %v", values, want)
	}
	for i, a := range r.strs("authorizations") {
		want := []string{"http-01", "tls-alpn-01"}
		if i == 2 {
			want = []string{"http-01", "dns-01", "tls-alpn-01"}
		}
		if got := c.types(a); !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", values[i], got, want)
		}
		if got := c.prove(a, want[len(want)-1]).str("status"); got != "valid" {
			t.Fatalf("%s is %s", values[i], got)
		}
	}
	// In the CSR they are octets: there is nothing to spell.
	csr := catest.CSR(t, newKey(t), "a.example.com", "2001:db8::f1", "198.51.100.7")
	r = c.post(c.get(url).str("finalize"), csrBody(csr)).want(200)
	if r.str("status") != "valid" {
		t.Fatalf("order %s", r.body)
	}
	cert := leaf(t, c.get(r.str("certificate")).want(200).body)
	if len(cert.IPAddresses) != 2 || len(cert.DNSNames) != 1 {
		t.Errorf("the certificate has %v and %v", cert.IPAddresses, cert.DNSNames)
	}
	for _, q := range w.validator.calls {
		if q.AccountURL != c.kid || q.Wildcard {
			t.Errorf("validation %+v", q)
		}
	}
}

// TestAnAddressIsNoName refuses what is an address only for some readers.
func TestAnAddressIsNoName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	for _, id := range []ca.Identifier{
		{Type: ca.DNS, Value: "198.51.100.7"},
		{Type: ca.DNS, Value: "2001:db8::1"},
		{Type: ca.IP, Value: "a.example.com"},
		{Type: ca.IP, Value: "198.51.100.07"},
		{Type: ca.IP, Value: "198.51.100"},
		{Type: ca.IP, Value: "[2001:db8::1]"},
		{Type: ca.IP, Value: "fe80::1%eth0"},
		{Type: ca.IP, Value: "::ffff:198.51.100.7"},
		{Type: ca.IP, Value: "198.51.100.0/24"},
		{Type: ca.IP, Value: ""},
	} {
		c.post(w.url("new-order"), map[string]any{"identifiers": []ca.Identifier{id}}).problem(400, "rejectedIdentifier")
	}
}

// TestWildcardsAreProvenInTheDNS offers nothing that only one server answers.
func TestWildcardsAreProvenInTheDNS(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *acme.Config) { c.Challenges = []acme.ChallengeType{acme.HTTP01, acme.TLSALPN01} })
	c := w.client()
	c.post(w.url("new-order"), dns("*.example.com")).problem(400, "rejectedIdentifier")
	c.order("example.com")
}

// TestAddressesCountForRevocation lets an account revoke that has proven all
// names and addresses of a certificate, and none that lacks an address.
func TestAddressesCountForRevocation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	owner, other := w.client(), w.client()
	issued := func(c *client, ids ...string) *reply {
		r := c.post(w.url("new-order"), idsBody(ids...)).want(201)
		for _, a := range r.strs("authorizations") {
			c.prove(a, "http-01")
		}
		return c.get(r.location())
	}
	r := issued(owner, "a.example.com", "198.51.100.7")
	r = owner.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com", "198.51.100.7"))).want(200)
	cert := leaf(t, owner.get(r.str("certificate")).want(200).body)
	body := map[string]any{"certificate": b64(cert.Raw)}
	issued(other, "a.example.com")
	other.post(w.url("revoke-cert"), body).problem(403, "unauthorized")
	issued(other, "198.51.100.7")
	other.post(w.url("revoke-cert"), body).want(200)
}

// TestPersistentChallengesNameTheCAInPlaceOfAToken is draft-ietf-acme-dns-persist-01 §3.1.
func TestPersistentChallengesNameTheCAInPlaceOfAToken(t *testing.T) {
	t.Parallel()
	until := time.Now().Add(3 * time.Hour)
	w := newWorld(t, func(c *acme.Config) {
		c.CAAIdentities = []string{"CA.example", "second.example"}
		c.Challenges = []acme.ChallengeType{acme.DNSPersist01, acme.DNSAccount01, acme.HTTP01}
		c.Validator = untilValidator{c.Validator, until}
	})
	c := w.client()
	u, r := c.order("*.example.com")
	authz := r.strs("authorizations")[0]
	if got := c.types(authz); !slices.Equal(got, []string{"dns-persist-01", "dns-account-01"}) {
		t.Errorf("a wildcard has %v", got)
	}
	for _, v := range c.get(authz).json["challenges"].([]any) {
		ch := v.(map[string]any)
		token, hasToken := ch["token"]
		issuers, _ := ch["issuer-domain-names"].([]any)
		if persist := ch["type"] == "dns-persist-01"; persist == hasToken || persist != (len(issuers) == 2) || persist && issuers[0] != "ca.example" {
			t.Errorf("%s: token %v, issuers %v", ch["type"], token, issuers)
		} else if account, there := ch["accounturi"]; there != persist || persist && account != c.kid {
			t.Errorf("%s: accounturi %v", ch["type"], account)
		}
	}
	a := c.prove(authz, "dns-persist-01")
	// RFC 8555 §7.1.4: it may be relied on no longer than its record says.
	if a.str("status") != "valid" || a.str("expires") != until.UTC().Truncate(time.Second).Format(time.RFC3339) {
		t.Errorf("authorization %s", a.body)
	}
	if got := c.get(u).want(200); got.str("status") != "ready" || got.str("expires") != a.str("expires") {
		t.Errorf("order %s", got.body)
	}
	if q := w.validator.calls[0]; !q.Wildcard || q.AccountURL != c.kid || q.Type != acme.DNSPersist01 {
		t.Errorf("validation %+v", q)
	}
}

// An untilValidator's proofs end at a time.
type untilValidator struct {
	acme.Validator
	until time.Time
}

func (v untilValidator) Validate(ctx context.Context, q acme.Validation) (acme.ValidationRecord, *acme.Problem) {
	rec, p := v.Validator.Validate(ctx, q)
	rec.Until = v.until
	return rec, p
}

func TestChallengesThatCannotBeOfferedAreRefused(t *testing.T) {
	t.Parallel()
	base, err := url.Parse("https://ca.example")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	for what, c := range map[string]acme.Config{
		"unknown":     {Challenges: []acme.ChallengeType{"tls-sni-01"}},
		"no identity": {Challenges: []acme.ChallengeType{acme.DNSPersist01}},
		"too many":    {Challenges: []acme.ChallengeType{acme.DNSPersist01}, CAAIdentities: slices.Repeat([]string{"ca.example"}, 11)},
	} {
		c.BaseURL, c.Store, c.CA, c.Validator, c.Logger = base, w.store, w.ca.Authority, w.validator, slog.New(slog.DiscardHandler)
		if _, err := acme.New(c); err == nil {
			t.Errorf("%s: taken", what)
		}
	}
}

// TestForeignCertificatesAreAskedAboutAsOursAre: whether a certificate is one of
// ours must not show in what is looked up for it, addresses included.
func TestForeignCertificatesAreAskedAboutAsOursAre(t *testing.T) {
	t.Parallel()
	h := &holdsAsked{}
	w := newWorld(t, func(c *acme.Config) { h.Store, c.Store = c.Store, h })
	template := &x509.Certificate{SerialNumber: big.NewInt(7), DNSNames: []string{"a.example.com"}, IPAddresses: []net.IP{net.IPv4(198, 51, 100, 7), net.ParseIP("2001:db8::7")}}
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	w.client().post(w.url("revoke-cert"), map[string]any{"certificate": b64(der)}).problem(403, "unauthorized")
	h.mu.Lock()
	defer h.mu.Unlock()
	if want := catest.IDs("a.example.com", "198.51.100.7", "2001:db8::7"); !slices.Equal(h.ids, want) {
		t.Errorf("asked about %v, want %v", h.ids, want)
	}
}

// A holdsAsked store notes what Holds was asked about.
type holdsAsked struct {
	acme.Store
	mu  sync.Mutex // guards ids
	ids []ca.Identifier
}

func (h *holdsAsked) Holds(ctx context.Context, account string, ids []ca.Identifier, now time.Time) (bool, error) {
	h.mu.Lock()
	h.ids = ids
	h.mu.Unlock()
	return h.Store.Holds(ctx, account, ids, now)
}
