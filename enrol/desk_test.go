package enrol_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/enrol"
	"github.com/secsy-pki/secsy-pki/keys"
)

var client = netip.MustParseAddr("192.0.2.1")

func TestRightPasswordOfAUserInUsePasses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.user("dev1")
	w.user("off", func(u *enrol.UserRecord) { u.DisabledAt = w.now })
	w.user("elsewhere", func(u *enrol.UserRecord) { u.Endpoints = []string{"others"} })
	w.user("broken", func(u *enrol.UserRecord) { u.Password = "$argon2id$v=19$m=99999999,t=1,p=1$AAAA$AAAA" })
	old, err := bcrypt.GenerateFromPassword([]byte(goodPassword), bcrypt.DefaultCost)
	if err != nil {
		t.Fatal(err)
	}
	w.user("old", func(u *enrol.UserRecord) { u.Password = string(old) })
	for range 2 { // the second time from memory
		for _, name := range []string{"dev1", "old"} {
			p, err := w.CheckPassword(t.Context(), devices, name, goodPassword, client)
			if err != nil || p.Kind != enrol.User || p.Name != name || p.Subject != name {
				t.Errorf("%s: %+v, %v", name, p, err)
			}
		}
	}
	for _, c := range [][3]string{
		{devices, "dev1", goodPassword + "x"},
		{devices, "dev1", ""},
		{devices, "", goodPassword},
		{devices, "nobody", goodPassword},
		{devices, "off", goodPassword},
		{devices, "elsewhere", goodPassword},
		{devices, "broken", goodPassword},
		{"others", "dev1", goodPassword},
		{devices, "old", goodPassword + strings.Repeat("x", 72)},
		{devices, strings.Repeat("x", 200), goodPassword},
		{devices, "dev1\xff", goodPassword},
	} {
		if p, err := w.CheckPassword(t.Context(), c[0], c[1], c[2], client); !errors.Is(err, enrol.ErrDenied) || p != (enrol.Principal{}) {
			t.Errorf("%q: %+v, %v", c, p, err)
		}
	}
	// What was right a moment ago is not once the user is disabled.
	if err := w.store.DisableUser(t.Context(), "dev1", w.now, entry()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.CheckPassword(t.Context(), devices, "dev1", goodPassword, client); !errors.Is(err, enrol.ErrDenied) {
		t.Errorf("disabled: %v", err)
	}
}

func TestHashesAreOfBoundedCost(t *testing.T) {
	t.Parallel()
	good, err := enrol.HashPassword(goodPassword)
	if err != nil || enrol.CheckHash(good) != nil {
		t.Fatalf("%q: %v, %v", good, err, enrol.CheckHash(good))
	}
	for _, s := range []string{
		"", "plain", "$1$abc", "$2b$31$" + strings.Repeat("a", 53), "$2b$04$" + strings.Repeat("a", 53),
		strings.Replace(good, "m=19456", "m=4194304", 1), strings.Replace(good, "t=2", "t=1000", 1), strings.Replace(good, "p=1", "p=255", 1),
		strings.Replace(good, "t=2", "t=0", 1), strings.Replace(good, "m=19456", "m=19456x", 1), strings.Replace(good, "v=19", "v=16", 1), good + "$", good + " ",
	} {
		if enrol.CheckHash(s) == nil {
			t.Errorf("%q is taken", s)
		}
	}
	for _, s := range []string{"", "short", strings.Repeat("x", 73), "correct\nhorse battery"} {
		if _, err := enrol.HashPassword(s); err == nil {
			t.Errorf("password %q is taken", s)
		}
	}
}

func TestARuleHasToAllowAllNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		subject pkix.Name
		dns     []string
		allowed bool
	}{
		{pkix.Name{CommonName: "dev1"}, nil, true},
		{pkix.Name{CommonName: "dev1"}, []string{"dev1.example.org"}, true},
		{pkix.Name{}, []string{"DEV1.example.org"}, true},
		{pkix.Name{CommonName: "dev2"}, nil, false},
		{pkix.Name{CommonName: "dev1"}, []string{"dev1.example.org", "dev2.example.org"}, false},
		{pkix.Name{CommonName: "dev1"}, []string{"www.dev1.example.org"}, false},
		{pkix.Name{CommonName: "dev1", SerialNumber: "1"}, nil, false},
		{pkix.Name{Organization: []string{"dev1"}}, nil, false},
	} {
		req := enrol.Request{Endpoint: devices, Principal: asUser("dev1"), CSR: csr(t, newKey(t), c.subject, c.dns...)}
		res, err := w.Enrol(t.Context(), req)
		if c.allowed && (err != nil || res.Certificate == nil || len(res.Chain) == 0) || !c.allowed && !errors.Is(err, enrol.ErrDenied) {
			t.Errorf("%v %v: %v", c.subject, c.dns, err)
		}
	}
	_, err := w.Enrol(t.Context(), enrol.Request{Endpoint: "nowhere", Principal: asUser("dev1"), CSR: csr(t, newKey(t), pkix.Name{CommonName: "dev1"})})
	if !errors.Is(err, enrol.ErrDenied) {
		t.Errorf("no endpoint: %v", err)
	}
}

func TestTheSameRequestGivesTheSameCertificate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := newKey(t)
	first := w.issued(enrol.Request{Principal: asUser("dev1"), CSR: csr(t, key, pkix.Name{CommonName: "dev1"})})
	// ECDSA signatures differ from time to time.
	again := w.issued(enrol.Request{Principal: asUser("dev1"), CSR: csr(t, key, pkix.Name{CommonName: "dev1"})})
	if !first.Equal(again) {
		t.Error("two certificates for one request")
	}
	other := w.issued(enrol.Request{Principal: asUser("dev1"), CSR: csr(t, newKey(t), pkix.Name{CommonName: "dev1"})})
	if first.Equal(other) {
		t.Error("one certificate for two keys")
	}
	w.now = w.now.Add(25 * time.Hour)
	if late := w.issued(enrol.Request{Principal: asUser("dev1"), CSR: csr(t, key, pkix.Name{CommonName: "dev1"})}); first.Equal(late) {
		t.Error("the certificate of yesterday")
	}
}

func TestARevokedCertificateIsNotHandedOutAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	req := enrol.Request{Endpoint: devices, Principal: asUser("dev1"), CSR: csr(t, newKey(t), pkix.Name{CommonName: "dev1"})}
	cert := w.issued(req)
	if err := w.ca.Revoke(t.Context(), ca.Revocation{Serial: ca.SerialOf(cert.SerialNumber)}); err != nil {
		t.Fatal(err)
	}
	if res, err := w.Enrol(t.Context(), req); !errors.Is(err, enrol.ErrDenied) {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestSimultaneousRequestsGiveOneCertificate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	req := enrol.Request{Endpoint: devices, Principal: asUser("dev1"), CSR: csr(t, newKey(t), pkix.Name{CommonName: "dev1"})}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex // guards seen
		seen = map[string]bool{}
	)
	for range 8 {
		wg.Go(func() {
			res, err := w.Enrol(t.Context(), req)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if !res.Pending() {
				seen[string(res.Certificate)] = true
			}
		})
	}
	wg.Wait()
	if len(seen) != 1 {
		t.Errorf("%d certificates", len(seen))
	}
}

func TestOneTimeChallengeBuysOneRequestAndOnlyItsNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secret := w.challenge(func(c *enrol.ChallengeRecord) {
		c.Names = []ca.Identifier{{Type: ca.SubjectCommonName, Value: "Meter 9"}}
	})
	try := func(secret string, der []byte) error {
		_, err := w.Enrol(t.Context(), enrol.Request{Endpoint: devices, Challenge: secret, Transaction: "t", CSR: der})
		return err
	}
	key := newKey(t)
	right := csr(t, key, pkix.Name{CommonName: "Meter 9"})
	for name, err := range map[string]error{
		"other names":  try(secret, csr(t, key, pkix.Name{CommonName: "Meter 10"})),
		"other secret": try(enrol.NewSecret(), right),
		"none":         try("", right),
		"expired":      try(w.challenge(func(c *enrol.ChallengeRecord) { c.Expires = w.now }), csr(t, key, pkix.Name{CommonName: "pump-1"})),
		"against rule": try(w.challenge(), csr(t, key, pkix.Name{CommonName: "Meter 9"})),
	} {
		if !errors.Is(err, enrol.ErrDenied) {
			t.Errorf("%s: %v", name, err)
		}
	}
	first := w.issued(enrol.Request{Challenge: secret, Transaction: "t", CSR: right})
	again := w.issued(enrol.Request{Challenge: secret, Transaction: "t", CSR: right})
	if !first.Equal(again) {
		t.Error("a repeated message gives another certificate")
	}
	if err := try(secret, csr(t, newKey(t), pkix.Name{CommonName: "Meter 9"})); !errors.Is(err, enrol.ErrDenied) {
		t.Errorf("a second time: %v", err)
	}
	w.issued(enrol.Request{Challenge: w.challenge(), Transaction: "u", CSR: csr(t, key, pkix.Name{CommonName: "pump-1"})})
}

func TestBusyDeviceBurnsNoChallenge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secret := w.challenge()
	w.ca.Keys.Fail(keys.ErrBusy)
	req := enrol.Request{Endpoint: devices, Challenge: secret, Transaction: "t", CSR: csr(t, newKey(t), pkix.Name{CommonName: "pump-1"})}
	_, err := w.Enrol(t.Context(), req)
	if busy, ok := errors.AsType[*enrol.BusyError](err); !ok || busy.RetryAfter <= 0 {
		t.Fatalf("busy: %v", err)
	}
	w.ca.Keys.Fail(nil)
	req.CSR = csr(t, newKey(t), pkix.Name{CommonName: "pump-1"}) // with another key, even
	w.issued(req)
}

func TestSharedChallengeIsHeldToTheRules(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(e *enrol.Endpoint) { e.Shared = "open sesame" })
	w.issued(enrol.Request{Challenge: "open sesame", Transaction: "t", CSR: csr(t, newKey(t), pkix.Name{CommonName: "pump-1"})})
	for _, c := range [][2]string{{"open sesame", "meter"}, {"open sesam", "pump-1"}} {
		_, err := w.Enrol(t.Context(), enrol.Request{Endpoint: devices, Challenge: c[0], Transaction: "t", CSR: csr(t, newKey(t), pkix.Name{CommonName: c[1]})})
		if !errors.Is(err, enrol.ErrDenied) {
			t.Errorf("%q: %v", c, err)
		}
	}
}

func TestApprovedRequestIsIssuedWhenItsDeviceComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(e *enrol.Endpoint) { e.Manual = true })
	decide := func(key *[32]byte, to enrol.State) {
		t.Helper()
		list, _, err := w.store.ListRequests(t.Context(), enrol.Waiting, "", 10)
		if err != nil || len(list) != 1 {
			t.Fatalf("%d waiting, %v", len(list), err)
		}
		*key = list[0].SPKI
		if err := w.store.DecideRequest(t.Context(), list[0].ID, to, "operator:uid/0", w.now, w.now.Add(time.Hour), entry()); err != nil {
			t.Fatal(err)
		}
	}
	req := enrol.Request{Endpoint: devices, Principal: asUser("dev1"), Transaction: "t", CSR: csr(t, newKey(t), pkix.Name{CommonName: "dev1"})}
	for range 2 {
		if res, err := w.Enrol(t.Context(), req); err != nil || !res.Pending() || res.RetryAfter <= 0 {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	var spki [32]byte
	decide(&spki, enrol.Approved)
	poll := enrol.Poll{Endpoint: devices, Transaction: "t", SPKI: spki}
	res, err := w.Poll(t.Context(), poll)
	if err != nil || res.Pending() {
		t.Fatalf("%+v, %v", res, err)
	}
	if again := w.issued(req); !bytes.Equal(again.Raw, res.Certificate) {
		t.Error("asking again gives another certificate than polling")
	}
	poll.SPKI[0]++
	if _, err := w.Poll(t.Context(), poll); !errors.Is(err, enrol.ErrDenied) {
		t.Errorf("polled by another key: %v", err)
	}
	req.CSR = csr(t, newKey(t), pkix.Name{CommonName: "dev1"})
	if res, err := w.Enrol(t.Context(), req); err != nil || !res.Pending() {
		t.Fatalf("%+v, %v", res, err)
	}
	decide(&spki, enrol.Denied)
	if _, err := w.Enrol(t.Context(), req); !errors.Is(err, enrol.ErrDenied) {
		t.Errorf("after a no: %v", err)
	}
}

type decider func(ctx context.Context, q enrol.Question) (enrol.Verdict, error)

func (d decider) Decide(ctx context.Context, q enrol.Question) (enrol.Verdict, error) {
	return d(ctx, q)
}

func TestWhoDecidesElsewhereIsNeverTakenForYesInSilence(t *testing.T) {
	t.Parallel()
	var verdict enrol.Verdict
	var broken error
	w := newWorld(t, func(e *enrol.Endpoint) {
		e.Decider = decider(func(_ context.Context, q enrol.Question) (enrol.Verdict, error) {
			if q.Endpoint != devices || len(q.Names) != 1 || q.SPKI == "" || q.Principal != "enrol:user/dev1" {
				t.Errorf("asked %+v", q)
			}
			return verdict, broken
		})
	})
	try := func() (enrol.Result, error) {
		return w.Enrol(t.Context(), enrol.Request{Endpoint: devices, Principal: asUser("dev1"), CSR: csr(t, newKey(t), pkix.Name{CommonName: "dev1"})})
	}
	for _, v := range []enrol.Verdict{enrol.Deny, "", "yes"} {
		verdict = v
		if _, err := try(); !errors.Is(err, enrol.ErrDenied) {
			t.Errorf("%q: %v", v, err)
		}
	}
	verdict = enrol.Ask
	if res, err := try(); err != nil || !res.Pending() {
		t.Errorf("ask: %+v, %v", res, err)
	}
	verdict = enrol.Allow
	if res, err := try(); err != nil || res.Pending() {
		t.Errorf("allow: %+v, %v", res, err)
	}
	broken = errors.New("down")
	if _, err := try(); err == nil || errors.Is(err, enrol.ErrDenied) {
		t.Errorf("broken: %v", err)
	}
}

func TestOnlyACertificateOfOursInForceIsRenewedAndForItsNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := newKey(t)
	subject := pkix.Name{CommonName: "dev1"}
	cert := w.issued(enrol.Request{Principal: asUser("dev1"), CSR: csr(t, key, subject, "dev1.example.org")})
	who := func() enrol.Principal {
		t.Helper()
		p, err := w.CheckCertificate(t.Context(), devices, []*x509.Certificate{cert})
		if err != nil || p.Kind != enrol.Certificate || p.Current == nil {
			t.Fatalf("%+v, %v", p, err)
		}
		return p
	}
	renew := func(p enrol.Principal, subject pkix.Name, dns ...string) error {
		_, err := w.Enrol(t.Context(), enrol.Request{Endpoint: devices, Principal: p, Renewal: true, CSR: csr(t, newKey(t), subject, dns...)})
		return err
	}
	if err := renew(who(), subject, "dev1.example.org"); err != nil {
		t.Errorf("the same names: %v", err)
	}
	for name, err := range map[string]error{
		"another subject": renew(who(), pkix.Name{CommonName: "dev2"}, "dev1.example.org"),
		"a name more":     renew(who(), subject, "dev1.example.org", "dev2.example.org"),
		"a name less":     renew(who(), subject),
		"a user":          renew(asUser("dev1"), subject, "dev1.example.org"),
		"nobody":          renew(enrol.Principal{}, subject, "dev1.example.org"),
	} {
		if !errors.Is(err, enrol.ErrDenied) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// As a first request the rules for certificates hold, which allow something else.
	_, err := w.Enrol(t.Context(), enrol.Request{Endpoint: devices, Principal: who(), CSR: csr(t, newKey(t), subject)})
	if !errors.Is(err, enrol.ErrDenied) {
		t.Errorf("as a first request: %v", err)
	}
	w.now = cert.NotAfter.Add(time.Minute)
	if err := renew(who(), subject, "dev1.example.org"); err != nil {
		t.Errorf("within grace: %v", err)
	}
	w.now = cert.NotAfter.Add(2 * time.Hour)
	if err := renew(who(), subject, "dev1.example.org"); !errors.Is(err, enrol.ErrDenied) {
		t.Errorf("after grace: %v", err)
	}
	w.now = cert.NotBefore.Add(time.Minute)
	if err := w.ca.Revoke(t.Context(), ca.Revocation{Serial: ca.SerialOf(cert.SerialNumber)}); err != nil {
		t.Fatal(err)
	}
	if p, err := w.CheckCertificate(t.Context(), devices, []*x509.Certificate{cert}); !errors.Is(err, enrol.ErrDenied) {
		t.Errorf("revoked: %+v, %v", p, err)
	}
}

func TestRenewalFollowsTheRulesForKeysAndTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(e *enrol.Endpoint) { e.Renewal = enrol.Renewal{NewKey: true, Early: 50} })
	key, subject := newKey(t), pkix.Name{CommonName: "dev1"}
	cert := w.issued(enrol.Request{Principal: asUser("dev1"), CSR: csr(t, key, subject)})
	p, err := w.CheckCertificate(t.Context(), devices, []*x509.Certificate{cert})
	if err != nil {
		t.Fatal(err)
	}
	fresh := csr(t, newKey(t), subject)
	early := enrol.Request{Endpoint: devices, Principal: p, Renewal: true, CSR: fresh}
	if _, err := w.Enrol(t.Context(), early); !errors.Is(err, enrol.ErrDenied) {
		t.Errorf("early: %v", err)
	}
	w.now = cert.NotBefore.Add(6 * time.Hour)
	same := enrol.Request{Endpoint: devices, Principal: p, Renewal: true, CSR: csr(t, key, subject)}
	if _, err := w.Enrol(t.Context(), same); !errors.Is(err, enrol.ErrDenied) {
		t.Errorf("with the same key: %v", err)
	}
	w.issued(early)
}

func TestOnlyManufacturersOfTheEndpointVouchForDevices(t *testing.T) {
	t.Parallel()
	maker, born := newKey(t), newKey(t)
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Maker"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	sign := func(c *x509.Certificate, pub any) *x509.Certificate {
		t.Helper()
		der, err := x509.CreateCertificate(rand.Reader, c, root, pub, maker)
		if err != nil {
			t.Fatal(err)
		}
		out, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	anchor := sign(root, maker.Public())
	idevid := sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "Pump", SerialNumber: "SN-77"}, NotBefore: root.NotBefore, NotAfter: root.NotAfter,
	}, born.Public())
	pool := x509.NewCertPool()
	pool.AddCert(anchor)
	w := newWorld(t, func(e *enrol.Endpoint) { e.Manufacturers = pool })
	p, err := w.CheckCertificate(t.Context(), devices, []*x509.Certificate{idevid})
	if err != nil || p.Subject != "SN-77" || p.Current != nil || !strings.HasPrefix(p.Name, "sha256:") {
		t.Fatalf("%+v, %v", p, err)
	}
	w.issued(enrol.Request{Principal: p, CSR: csr(t, newKey(t), pkix.Name{SerialNumber: "SN-77"})})
	if _, err := w.Enrol(t.Context(), enrol.Request{Endpoint: devices, Principal: p, CSR: csr(t, newKey(t), pkix.Name{SerialNumber: "SN-78"})}); !errors.Is(err, enrol.ErrDenied) {
		t.Errorf("for another device: %v", err)
	}
	for _, other := range []*world{newWorld(t)} {
		if _, err := other.CheckCertificate(t.Context(), devices, []*x509.Certificate{idevid}); !errors.Is(err, enrol.ErrDenied) {
			t.Errorf("of no manufacturer: %v", err)
		}
	}
	if _, err := w.CheckCertificate(t.Context(), devices, nil); !errors.Is(err, enrol.ErrDenied) {
		t.Errorf("no certificate: %v", err)
	}
	w.now = w.now.Add(2 * time.Hour)
	if _, err := w.CheckCertificate(t.Context(), devices, []*x509.Certificate{idevid}); !errors.Is(err, enrol.ErrDenied) {
		t.Errorf("expired: %v", err)
	}
}
