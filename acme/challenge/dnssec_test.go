package challenge_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/acme/challenge"
)

// validating makes a name server answer as a resolver that validates: with AD
// for the root and for what is below the domains given.
func (s *nameServer) validating(secure ...string) {
	s.handle(func(w dns.ResponseWriter, q *dns.Msg, _ bool) bool {
		if q.CheckingDisabled || !q.AuthenticatedData || q.IsEdns0() == nil || !q.IsEdns0().Do() {
			return w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeFormatError)) == nil
		}
		if q.Question[0].Name == "." {
			return w.WriteMsg(rootSOA(q, true)) == nil
		}
		m := s.answer(q)
		for _, domain := range secure {
			m.AuthenticatedData = m.AuthenticatedData || dns.IsSubDomain(domain+".", q.Question[0].Name)
		}
		return w.WriteMsg(m) == nil
	})
}

func rootSOA(q *dns.Msg, ad bool) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	rr, err := dns.NewRR(". 86400 IN SOA a.root-servers.net. nstld.verisign-grs.com. 2026010100 1800 900 604800 86400")
	if err != nil {
		panic(err)
	}
	m.Answer, m.AuthenticatedData = []dns.RR{rr}, ad
	return m
}

func dnssecConfig(ns *nameServer) challenge.Config {
	cfg := caaConfig(ns)
	cfg.RequireDNSSEC = true
	return cfg
}

// TestValidatingResolverIsBelieved also holds what the evidence says of each answer.
func TestValidatingResolverIsBelieved(t *testing.T) {
	t.Parallel()
	for state, secure := range map[string][]string{"secure": {"example.com", "com"}, "insecure": {"com.example"}} {
		ns := newNameServer(t, txt(dnsText()), atLoopback)
		ns.validating(secure...)
		v := mustNew(t, dnssecConfig(ns))
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				rec, p := v.Validate(t.Context(), validation(acme.DNS01))
				wantPass(t, p)
				if rec.DNSSEC != state {
					t.Errorf("the record says %q, want %q", rec.DNSSEC, state)
				}
			})
		}
		wg.Wait()
		caa, p := v.CheckCAA(t.Context(), acme.CAAQuery{Name: name, Method: acme.DNS01})
		wantPass(t, p)
		if caa.DNSSEC != state {
			t.Errorf("the record of CAA says %q, want %q", caa.DNSSEC, state)
		}
		if n := ns.times("./SOA"); n != 1 {
			t.Errorf("the resolver was probed %d times in one minute", n)
		}
	}
}

// TestResolverThatDoesNotValidateIsNotBelieved: answers without AD may be bogus
// ones that nobody looked at.
func TestResolverThatDoesNotValidateIsNotBelieved(t *testing.T) {
	t.Parallel()
	for what, root := range map[string]func(q *dns.Msg) *dns.Msg{
		"no AD":       func(q *dns.Msg) *dns.Msg { return rootSOA(q, false) },
		"SERVFAIL":    func(q *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure) },
		"AD, no data": func(q *dns.Msg) *dns.Msg { m := rootSOA(q, true); m.Answer = nil; return m },
		"NXDOMAIN":    func(q *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(q, dns.RcodeNameError) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ns := newNameServer(t, txt(dnsText()), atLoopback)
			ns.handle(func(w dns.ResponseWriter, q *dns.Msg, _ bool) bool {
				return q.Question[0].Name == "." && w.WriteMsg(root(q)) == nil
			})
			v := mustNew(t, dnssecConfig(ns))
			if err := v.CheckResolver(t.Context()); err == nil || !strings.Contains(err.Error(), "does not validate DNSSEC") {
				t.Errorf("CheckResolver: %v", err)
			}
			for _, typ := range []acme.ChallengeType{acme.DNS01, acme.HTTP01, acme.TLSALPN01} {
				_, p := v.Validate(t.Context(), validation(typ))
				wantProblem(t, p, acme.DNSError, "can't validate DNSSEC for now")
			}
			_, p := v.CheckCAA(t.Context(), acme.CAAQuery{Name: name})
			wantProblem(t, p, acme.DNSError, "can't validate DNSSEC for now")
			for _, q := range []string{txtName + "/TXT", name + "./A", name + "./CAA"} {
				if n := ns.times(q); n != 0 {
					t.Errorf("%s was asked %d times", q, n)
				}
			}
		})
	}
}

// TestBogusAnswersAreRefused: a validating resolver says SERVFAIL for them.
func TestBogusAnswersAreRefused(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t)
	ns.handle(func(w dns.ResponseWriter, q *dns.Msg, _ bool) bool {
		if q.Question[0].Name == "." {
			return w.WriteMsg(rootSOA(q, true)) == nil
		}
		return w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)) == nil
	})
	v := mustNew(t, dnssecConfig(ns))
	_, p := v.Validate(t.Context(), validation(acme.DNS01))
	wantProblem(t, p, acme.DNSError, "check the zone's name servers and DNSSEC")
	_, p = v.CheckCAA(t.Context(), acme.CAAQuery{Name: name})
	wantProblem(t, p, acme.DNSError, "check the zone's name servers and DNSSEC")
}

func TestDNSSECWantsANamedResolver(t *testing.T) {
	t.Parallel()
	if _, err := challenge.New(challenge.Config{RequireDNSSEC: true}); err == nil {
		t.Error("a resolver that nobody chose is trusted")
	}
	ns := newNameServer(t, txt(dnsText()))
	v := mustNew(t, config(ns, 80))
	rec, p := v.Validate(t.Context(), validation(acme.DNS01))
	wantPass(t, p)
	if rec.DNSSEC != "" || ns.times("./SOA") != 0 || v.CheckResolver(t.Context()) != nil {
		t.Errorf("without the requirement: %+v", rec)
	}
}

// TestWildcardCNAMEAtTheChallengeIsFollowed has a zone in which every name that
// is not there, _acme-challenge among them, is an alias.
func TestWildcardCNAMEAtTheChallengeIsFollowed(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t, fmt.Sprintf("all.example.net. 60 IN TXT %q", dnsText()))
	var asked atomic.Int64
	ns.handle(func(w dns.ResponseWriter, q *dns.Msg, _ bool) bool {
		if !dns.IsSubDomain("example.com.", q.Question[0].Name) {
			return false
		}
		asked.Add(1)
		m := new(dns.Msg).SetReply(q)
		rr, err := dns.NewRR(q.Question[0].Name + " 60 IN CNAME all.example.net.")
		m.Answer = []dns.RR{rr}
		return err == nil && w.WriteMsg(m) == nil
	})
	_, p := validate(t, config(ns, 80), acme.DNS01)
	wantPass(t, p)
	if asked.Load() != 1 || ns.times("all.example.net./TXT") != 1 {
		t.Errorf("asked %v", ns.asked)
	}
}
