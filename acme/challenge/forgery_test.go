package challenge_test

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/acme/challenge"
	"github.com/secsy-pki/secsy-pki/ca"
)

// What no stranger may make us connect to, by the reason why.
var (
	never = map[string][]string{
		"loopback":      {"127.0.0.1", "127.9.9.9", "::1"},
		"unspecified":   {"0.0.0.0", "::"},
		"link-local":    {"169.254.1.1", "fe80::1"},
		"metadata":      {"169.254.169.254", "fd00:ec2::254", "100.100.100.200"},
		"multicast":     {"224.0.0.1", "ff02::1", "255.255.255.255"},
		"mapped":        {"::ffff:127.0.0.1", "::ffff:169.254.169.254"},
		"compatible":    {"::127.0.0.1"},
		"6to4":          {"2002:7f00:1::1", "2002:a9fe:a9fe::"},
		"NAT64":         {"64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1"},
		"Teredo":        {"2001:0:7f00:1:0:0:f7f7:f7f7", "2001:0:808:808:0:0:5601:5601"},
		"documentation": {"192.0.2.1", "2001:db8::1"},
	}
	// Policy internal allows these, and public does not.
	privates = map[string][]string{
		"private":           {"10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd12:3456::1"},
		"private by mapped": {"::ffff:10.0.0.1"},
		"private by 6to4":   {"2002:a00:1::1"},
		"private by NAT64":  {"64:ff9b::10.0.0.1"},
	}
)

// policies are the two rule books, with the addresses that each refuses.
func policies(ns *nameServer) map[string]struct {
	cfg     challenge.Config
	refused []map[string][]string
} {
	public, internal := challenge.Config{Resolver: ns.addr}, challenge.Config{Resolver: ns.addr, AllowPrivate: true}
	return map[string]struct {
		cfg     challenge.Config
		refused []map[string][]string
	}{
		"public":   {public, []map[string][]string{never, privates}},
		"internal": {internal, []map[string][]string{never}},
	}
}

// eachForbidden calls fn for every address that a policy refuses.
func eachForbidden(t *testing.T, fn func(t *testing.T, cfg challenge.Config, ns *nameServer, addr string)) {
	t.Helper()
	ns := newNameServer(t)
	for policy, p := range policies(ns) {
		for _, list := range p.refused {
			for why, addrs := range list {
				for _, addr := range addrs {
					t.Run(policy+"/"+why+"/"+addr, func(t *testing.T) {
						t.Parallel()
						fn(t, p.cfg, newNameServer(t), addr)
					})
				}
			}
		}
	}
}

// record is one that leads name to addr. A mapped address is written as what
// the DNS really carries.
func record(name, addr string) string {
	a := netip.MustParseAddr(addr)
	if a.Is4() {
		return fmt.Sprintf("%s. 1 IN A %s", name, a)
	}
	return fmt.Sprintf("%s. 1 IN AAAA %s", name, a)
}

// wantRefused wants that so many hops were connected to, all of them allowed.
func wantRefused(t *testing.T, rec acme.ValidationRecord, p *acme.Problem, hops int) {
	t.Helper()
	if p == nil {
		t.Fatal("passed")
	}
	if len(rec.Addrs) != hops {
		t.Errorf("connected to %v", rec.Addrs)
	}
	if p.Type != acme.DNSError && p.Type != acme.Connection && p.Type != acme.Malformed {
		t.Errorf("problem %v", p)
	}
}

func TestNamesLeadToNoForbiddenAddress(t *testing.T) {
	t.Parallel()
	eachForbidden(t, func(t *testing.T, cfg challenge.Config, ns *nameServer, addr string) {
		ns.add(t, record(name, addr))
		cfg.Resolver = ns.addr
		for _, typ := range []acme.ChallengeType{acme.HTTP01, acme.TLSALPN01} {
			rec, p := mustNew(t, cfg).Validate(t.Context(), validation(typ))
			wantRefused(t, rec, p, 0)
			wantProblem(t, p, acme.DNSError, "no address that this server may connect to")
			if p != nil && strings.Contains(p.Detail, addr) {
				t.Errorf("our view of the DNS is told: %s", p.Detail)
			}
		}
	})
}

func TestIdentifiersAreNoForbiddenAddress(t *testing.T) {
	t.Parallel()
	eachForbidden(t, func(t *testing.T, cfg challenge.Config, ns *nameServer, addr string) {
		cfg.Resolver = ns.addr
		for _, typ := range []acme.ChallengeType{acme.HTTP01, acme.TLSALPN01} {
			q := validation(typ)
			q.Identifier = ca.Identifier{Type: ca.IP, Value: netip.MustParseAddr(addr).String()}
			rec, p := mustNew(t, cfg).Validate(t.Context(), q)
			wantRefused(t, rec, p, 0)
		}
	})
}

// TestRedirectsLeadToNoForbiddenAddress has a first hop that is allowed, at an
// address of its own, and a second one by name and by address, over http and https.
func TestRedirectsLeadToNoForbiddenAddress(t *testing.T) {
	t.Parallel()
	const first = "127.0.0.3"
	eachForbidden(t, func(t *testing.T, cfg challenge.Config, ns *nameServer, addr string) {
		literal := addr
		if strings.Contains(addr, ":") {
			literal = "[" + addr + "]"
		}
		ns.add(t, record(name, first), record("target.example.com", addr))
		for _, to := range []string{"http://target.example.com/", "https://target.example.com/", "http://" + literal + "/", "https://" + literal + "/"} {
			srv, port := serve(t, first, 0, redirects(map[string]string{challengePath: to}))
			srv.Start()
			cfg := cfg
			cfg.Resolver, cfg.HTTPPort, cfg.HTTPSPort = ns.addr, port, port
			cfg.Allow = []netip.Prefix{netip.MustParsePrefix(first + "/32")}
			rec, p := mustNew(t, cfg).Validate(t.Context(), validation(acme.HTTP01))
			wantRefused(t, rec, p, 1)
			// An identifier that is an address may not send us to another one either.
			q := validation(acme.HTTP01)
			q.Identifier = ca.Identifier{Type: ca.IP, Value: first}
			rec, p = mustNew(t, cfg).Validate(t.Context(), q)
			wantRefused(t, rec, p, 1)
		}
	})
}

// TestRebindingBetweenCheckAndConnectionIsNotSeen answers the first question with
// an allowed address and all later ones with a forbidden one: there is one question.
func TestRebindingBetweenCheckAndConnectionIsNotSeen(t *testing.T) {
	t.Parallel()
	for _, typ := range []acme.ChallengeType{acme.HTTP01, acme.TLSALPN01} {
		ns := newNameServer(t)
		var asked atomic.Int64
		ns.handle(func(w dns.ResponseWriter, q *dns.Msg, _ bool) bool {
			if q.Question[0].Qtype != dns.TypeA {
				return false
			}
			addr := "127.0.0.3"
			if asked.Add(1) > 1 {
				addr = "127.0.0.1"
			}
			m := new(dns.Msg).SetReply(q)
			rr, err := dns.NewRR(record(name, addr))
			m.Answer = []dns.RR{rr}
			return err == nil && w.WriteMsg(m) == nil
		})
		reached := atomic.Int64{}
		var lc net.ListenConfig
		good, err := lc.Listen(t.Context(), "tcp", "127.0.0.3:0")
		if err != nil {
			t.Fatal(err)
		}
		port := good.Addr().(*net.TCPAddr).Port
		victim, err := lc.Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		for l, n := range map[net.Listener]*atomic.Int64{good: {}, victim: &reached} {
			done := make(chan struct{})
			go func() {
				defer close(done)
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					n.Add(1)
					_ = c.Close()
				}
			}()
			t.Cleanup(func() { _ = l.Close(); <-done })
		}
		cfg := challenge.Config{Resolver: ns.addr, HTTPPort: port, HTTPSPort: port, TLSPort: port, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.3/32")}}
		rec, p := mustNew(t, cfg).Validate(t.Context(), validation(typ))
		if p == nil || asked.Load() != 1 || reached.Load() != 0 || len(rec.Addrs) != 1 || rec.Addrs[0] != netip.MustParseAddr("127.0.0.3") {
			t.Errorf("%s: %v, asked %d times, the victim was reached %d times, %v", typ, p, asked.Load(), reached.Load(), rec.Addrs)
		}
	}
}

// TestOneForbiddenAddressHidesBehindNoGoodOne: of both families, what is
// forbidden is not the one that is dialed when the other fails.
func TestOneForbiddenAddressHidesBehindNoGoodOne(t *testing.T) {
	t.Parallel()
	victim := make(chan struct{}, 1)
	srv, port := serve(t, "::1", 0, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { victim <- struct{}{} }))
	srv.Start()
	ns := newNameServer(t, record(name, "127.0.0.3"), record(name, "::1"))
	cfg := challenge.Config{Resolver: ns.addr, HTTPPort: port, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.3/32")}} // where nobody listens
	rec, p := mustNew(t, cfg).Validate(t.Context(), validation(acme.HTTP01))
	wantProblem(t, p, acme.Connection, "connection refused")
	if len(rec.Addrs) != 1 || len(victim) != 0 {
		t.Errorf("connected to %v", rec.Addrs)
	}
}
