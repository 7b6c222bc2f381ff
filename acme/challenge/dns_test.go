package challenge_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/secsy-pki/secsy-pki/acme"
)

const txtName = "_acme-challenge." + name + "."

func txt(text string) string { return fmt.Sprintf("%s 60 IN TXT %q", txtName, text) }

func TestTXTRecordPasses(t *testing.T) {
	t.Parallel()
	long := dnsText()
	for what, records := range map[string][]string{
		"one":          {txt(long)},
		"second":       {txt("other"), txt(long)},
		"many strings": {fmt.Sprintf("%s 60 IN TXT %q %q", txtName, long[:20], long[20:])},
		"CNAME":        {txtName + " 60 IN CNAME acme.example.net.", fmt.Sprintf("acme.example.net. 60 IN TXT %q", long)},
		"other case":   {txtName + " 60 IN CNAME Acme.Example.NET.", fmt.Sprintf("Acme.Example.NET. 60 IN TXT %q", long)},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			_, p := validate(t, config(newNameServer(t, records...), 80), acme.DNS01)
			wantPass(t, p)
		})
	}
}

func TestWrongTXTRecordIsUnauthorized(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		records []string
		detail  string
	}{
		"other":  {[]string{txt("stale")}, `is "stale", not the expected one`},
		"two":    {[]string{txt("a"), txt("b")}, `none of the 2 TXT records`},
		"long":   {[]string{txt(strings.Repeat("x", 200))}, `xxx..."`},
		"spaces": {[]string{txt(" " + dnsText())}, "not the expected one"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			_, p := validate(t, config(newNameServer(t, c.records...), 80), acme.DNS01)
			wantProblem(t, p, acme.Unauthorized, c.detail)
		})
	}
}

func TestAbsenceIsADNSProblem(t *testing.T) {
	t.Parallel()
	_, p := validate(t, config(newNameServer(t), 80), acme.DNS01)
	wantProblem(t, p, acme.DNSError, "NXDOMAIN")
	_, p = validate(t, config(newNameServer(t, txtName+" 60 IN A 127.0.0.1"), 80), acme.DNS01)
	wantProblem(t, p, acme.DNSError, "no such records")
	_, p = validate(t, config(newNameServer(t, name+". 60 IN TXT x"), 80), acme.HTTP01)
	wantProblem(t, p, acme.DNSError, "no such records")
	_, p = validate(t, config(newNameServer(t, txtName+" 60 IN CNAME gone.example.net."), 80), acme.DNS01)
	wantProblem(t, p, acme.DNSError, "NXDOMAIN")
}

func TestFailingResolverIsNeverAPass(t *testing.T) {
	t.Parallel()
	for _, rcode := range []int{dns.RcodeServerFailure, dns.RcodeRefused, dns.RcodeFormatError, dns.RcodeNotImplemented} {
		t.Run(dns.RcodeToString[rcode], func(t *testing.T) {
			t.Parallel()
			ns := newNameServer(t, txt(dnsText()), atLoopback)
			ns.handle(func(w dns.ResponseWriter, q *dns.Msg, _ bool) bool {
				m := ns.answer(q) // with the right records all the same
				m.Rcode = rcode
				return w.WriteMsg(m) == nil
			})
			for _, typ := range []acme.ChallengeType{acme.DNS01, acme.HTTP01} {
				_, p := validate(t, config(ns, 80), typ)
				wantProblem(t, p, acme.DNSError, "SERVFAIL")
				if p != nil && strings.Contains(p.Detail, ns.addr) {
					t.Errorf("our resolver is named: %s", p.Detail)
				}
			}
			if n := ns.times(txtName + "/TXT"); n != 3 {
				t.Errorf("asked %d times, want 3", n)
			}
		})
	}
}

func TestOneGoodAnswerAmongFailuresIsEnough(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t, txt(dnsText()))
	var asked atomic.Int64
	ns.handle(func(w dns.ResponseWriter, q *dns.Msg, _ bool) bool {
		if asked.Add(1) > 2 {
			return false
		}
		return w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)) == nil
	})
	_, p := validate(t, config(ns, 80), acme.DNS01)
	wantPass(t, p)
}

func TestSilentResolverTimesOut(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t)
	ns.handle(func(dns.ResponseWriter, *dns.Msg, bool) bool { return true })
	cfg := config(ns, 80)
	cfg.DNSTimeout = 50 * time.Millisecond
	_, p := validate(t, cfg, acme.DNS01)
	wantProblem(t, p, acme.DNSError, "no answer in time")
	if n := ns.times(txtName + "/TXT"); n != 3 {
		t.Errorf("asked %d times, want 3", n)
	}
}

func TestTruncatedAnswerIsFetchedOverTCP(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t, txt(dnsText()))
	ns.handle(func(w dns.ResponseWriter, q *dns.Msg, tcp bool) bool {
		if tcp {
			return false
		}
		m := new(dns.Msg).SetReply(q)
		m.Truncated = true
		return w.WriteMsg(m) == nil
	})
	_, p := validate(t, config(ns, 80), acme.DNS01)
	wantPass(t, p)
}

// TestForgedDatagramsAreIgnored sends wrong answers before the right one.
func TestForgedDatagramsAreIgnored(t *testing.T) {
	t.Parallel()
	for what, forge := range map[string]func(m *dns.Msg){
		"id":       func(m *dns.Msg) { m.Id++ },
		"question": func(m *dns.Msg) { m.Question[0].Name = "evil.example." },
		"type":     func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeA },
		"query":    func(m *dns.Msg) { m.Response = false },
		"opcode":   func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify },
		"none":     func(m *dns.Msg) { m.Question = nil },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ns := newNameServer(t, txt(dnsText()))
			ns.handle(func(w dns.ResponseWriter, q *dns.Msg, _ bool) bool {
				m := new(dns.Msg).SetReply(q)
				m.Rcode = dns.RcodeNameError
				forge(m)
				if w.WriteMsg(m) != nil {
					return true
				}
				_, err := w.Write([]byte("not a DNS message at all"))
				return err != nil
			})
			_, p := validate(t, config(ns, 80), acme.DNS01)
			wantPass(t, p)
		})
	}
}

func TestFloodOfForgeriesEnds(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t)
	ns.handle(func(w dns.ResponseWriter, q *dns.Msg, _ bool) bool {
		m := new(dns.Msg).SetReply(q)
		m.Id++
		for range 100 {
			if w.WriteMsg(m) != nil {
				break
			}
		}
		return true
	})
	_, p := validate(t, config(ns, 80), acme.DNS01)
	wantProblem(t, p, acme.DNSError, "lookup failed")
}

func TestCNAMEsAreBounded(t *testing.T) {
	t.Parallel()
	loop := newNameServer(t, txtName+" 60 IN CNAME b.example.", "b.example. 60 IN CNAME "+txtName)
	_, p := validate(t, config(loop, 80), acme.DNS01)
	wantProblem(t, p, acme.DNSError, "CNAMEs")

	chain := newNameServer(t, txtName+" 60 IN CNAME c0.example.")
	for i := range 15 {
		chain.add(t, fmt.Sprintf("c%d.example. 60 IN CNAME c%d.example.", i, i+1))
	}
	chain.add(t, fmt.Sprintf("c15.example. 60 IN TXT %q", dnsText()))
	_, p = validate(t, config(chain, 80), acme.DNS01)
	wantProblem(t, p, acme.DNSError, "CNAMEs")
}

// TestPartOfAChainIsCompleted has a resolver that gives one CNAME at a time.
func TestPartOfAChainIsCompleted(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t, txtName+" 60 IN CNAME a.example.", "a.example. 60 IN CNAME b.example.", fmt.Sprintf("b.example. 60 IN TXT %q", dnsText()))
	ns.handle(func(w dns.ResponseWriter, q *dns.Msg, _ bool) bool {
		m := ns.answer(q)
		m.Answer = m.Answer[:1]
		return w.WriteMsg(m) == nil
	})
	_, p := validate(t, config(ns, 80), acme.DNS01)
	wantPass(t, p)
}

// TestRecordsOfOthersDoNotCount puts the right value where nobody asked.
func TestRecordsOfOthersDoNotCount(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t, txt("stale"))
	ns.handle(func(w dns.ResponseWriter, q *dns.Msg, _ bool) bool {
		m := ns.answer(q)
		rr, err := dns.NewRR(fmt.Sprintf("evil.example. 60 IN TXT %q", dnsText()))
		if err != nil {
			return false
		}
		m.Answer = append(m.Answer, rr)
		return w.WriteMsg(m) == nil
	})
	_, p := validate(t, config(ns, 80), acme.DNS01)
	wantProblem(t, p, acme.Unauthorized, `"stale"`)
}

func TestNameTooLongForTheLabel(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t)
	q := validation(acme.DNS01)
	q.Identifier.Value = strings.Repeat("a.", 124) + "aa"
	_, p := mustNew(t, config(ns, 80)).Validate(t.Context(), q)
	wantProblem(t, p, acme.DNSError, "too long")
}
