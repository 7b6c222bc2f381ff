package integration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/crypto/acme"
)

// A resolverMock answers as a recursive resolver that may or may not validate
// DNSSEC, from records in zone file form.
type resolverMock struct {
	addr string

	mu        sync.Mutex // guards what follows
	validates bool
	records   []dns.RR
}

func startResolver(t *testing.T, records ...string) *resolverMock {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &resolverMock{addr: conn.LocalAddr().String()}
	r.add(t, records...)
	srv := &dns.Server{PacketConn: conn, Handler: r}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.ActivateAndServe() }()
	t.Cleanup(func() { _ = srv.Shutdown(); <-done })
	return r
}

func (r *resolverMock) add(t *testing.T, records ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, text := range records {
		rr, err := dns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		r.records = append(r.records, rr)
	}
}

func (r *resolverMock) validate() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.validates = true
}

func (r *resolverMock) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := new(dns.Msg).SetReply(q)
	m.AuthenticatedData = r.validates
	for _, rr := range r.records {
		if h := rr.Header(); strings.EqualFold(h.Name, q.Question[0].Name) && h.Rrtype == q.Question[0].Qtype {
			m.Answer = append(m.Answer, dns.Copy(rr))
		}
	}
	_ = w.WriteMsg(m)
}

// TestCAAAndDNSSECDecideWhatIsIssued drives the built program with a resolver
// that validates only after a while, and with records for and against it.
func TestCAAAndDNSSECDecideWhatIsIssued(t *testing.T) {
	t.Parallel()
	resolver := startResolver(t,
		". 60 IN SOA a.root-servers.net. nstld.example. 1 1 1 1 1",
		"early.example.com. 60 IN A 127.0.0.1",
		"allowed.example.com. 60 IN A 127.0.0.1",
		`allowed.example.com. 60 IN CAA 0 issue "ca.example.net; validationmethods=http-01"`,
		"forbidden.example.com. 60 IN A 127.0.0.1",
		`forbidden.example.com. 60 IN CAA 0 issue "ca.example.net; validationmethods=dns-01"`,
		`example.com. 60 IN CAA 0 issue "other.example"`,
		`persist.example.com. 60 IN CAA 0 issue "ca.example.net"`,
	)
	s := startQuickstart(t, quickstart{dns: dnsMock{addr: resolver.addr}})
	s.stop()
	b, err := os.ReadFile(configOf(s.dir))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(b), "\nacme:\n", "\nacme:\n  caa_identities: [ca.example.net]\n  challenges: [http-01, dns-persist-01]\n", 1)
	text = strings.Replace(text, "\n  validation:\n", "\n  validation:\n    dnssec: ad\n", 1)
	if err := os.WriteFile(configOf(s.dir), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start(t)
	u := newSubscriber(t, s)
	serveChallenges(t, s.http01, u.client)

	if err := u.obtainBy(t, "allowed.example.com", "http-01"); !isProblem(err, "dns", "can't validate DNSSEC") {
		t.Fatalf("with a resolver that does not validate: %v", err)
	}
	resolver.validate()
	waitFor(t, "trust in the resolver", func() error {
		time.Sleep(2 * time.Second) // a name that fails 50 times in a row is paused
		return u.obtainBy(t, "allowed.example.com", "http-01")
	})
	for name, typ := range map[string]string{"forbidden.example.com": "validationmethods", "early.example.com": "other CAs"} {
		if err := u.obtainBy(t, name, "http-01"); !isProblem(err, "caa", typ) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := u.obtainBy(t, "*.persist.example.com", "dns-persist-01"); !isProblem(err, "dns", "no such records") {
		t.Errorf("without a record: %v", err)
	}
	account, err := u.client.GetReg(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	resolver.add(t, fmt.Sprintf(`_validation-persist.persist.example.com. 60 IN TXT "ca.example.net; accounturi=%s" "; policy=wildcard"`, account.URI))
	for _, name := range []string{"*.persist.example.com", "persist.example.com"} {
		if err := u.obtainBy(t, name, "dns-persist-01"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	verifyAudit(t, s)
}

// isProblem reports whether err is of an authorization that ended with such a problem.
func isProblem(err error, typ, detail string) bool {
	z, ok := errors.AsType[*acme.AuthorizationError](err)
	return ok && len(z.Errors) == 1 && strings.Contains(z.Errors[0].Error(), "urn:ietf:params:acme:error:"+typ) && strings.Contains(z.Errors[0].Error(), detail)
}

// obtainBy gets a certificate for a name by a challenge type, or says why not.
func (u *subscriber) obtainBy(t *testing.T, name, typ string) error {
	t.Helper()
	ctx := t.Context()
	o, err := u.client.AuthorizeOrder(ctx, acme.DomainIDs(name))
	if err != nil {
		return err
	}
	for _, at := range o.AuthzURLs {
		z, err := u.client.GetAuthorization(ctx, at)
		if err != nil {
			return err
		}
		for _, ch := range z.Challenges {
			if ch.Type == typ && z.Status == acme.StatusPending {
				if _, err := u.client.Accept(ctx, ch); err != nil {
					return err
				}
			}
		}
		if _, err := u.client.WaitAuthorization(ctx, at); err != nil {
			return err
		}
	}
	if o, err = u.client.WaitOrder(ctx, o.URI); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{name}}, key)
	if err != nil {
		return err
	}
	_, _, err = u.client.CreateOrderCert(ctx, o.FinalizeURL, csr, true)
	return err
}
