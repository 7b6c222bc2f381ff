package challenge_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/acme/challenge"
)

const (
	ours       = "ca.example.net"
	accountURL = "https://acme.example.net/acme/account/1"
)

func caaConfig(ns *nameServer) challenge.Config {
	cfg := config(ns, 80)
	cfg.CAAIdentities = []string{ours, "Second.example.net"}
	return cfg
}

// caa makes a record of www.example.com, or of another domain.
func caa(flag int, tag, value string, domain ...string) string {
	at := name
	if len(domain) > 0 {
		at = domain[0]
	}
	return fmt.Sprintf("%s. 60 IN CAA %d %s \"%s\"", at, flag, tag, value)
}

func checkCAA(t *testing.T, ns *nameServer, change ...func(*acme.CAAQuery)) (acme.CAARecord, *acme.Problem) {
	t.Helper()
	q := acme.CAAQuery{Name: name, Method: acme.DNS01, AccountURL: accountURL}
	for _, c := range change {
		c(&q)
	}
	rec, p := mustNew(t, caaConfig(ns)).CheckCAA(t.Context(), q)
	if rec.Name != q.Name || rec.Resolver != ns.addr || rec.At.IsZero() || rec.Took <= 0 {
		t.Errorf("incomplete record: %+v", rec)
	}
	return rec, p
}

func wildcard(q *acme.CAAQuery) { q.Wildcard = true }

// TestCAASaysWhoMayIssue goes through the rules for one set of records.
func TestCAASaysWhoMayIssue(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		records []string
		name    string // what is said against the name, "" for nothing
		wild    string // and against the wildcard
	}{
		"none":                   {nil, "", ""},
		"ours":                   {[]string{caa(0, "issue", ours)}, "", ""},
		"ours in capitals":       {[]string{caa(0, "ISSUE", strings.ToUpper(ours))}, "", ""},
		"our second":             {[]string{caa(0, "issue", "second.example.net")}, "", ""},
		"with blanks":            {[]string{caa(0, "issue", "\\009 "+ours+" \\009; ")}, "", ""},
		"critical":               {[]string{caa(128, "issue", ours)}, "", ""},
		"other's":                {[]string{caa(0, "issue", "other.example")}, "other CAs", "other CAs"},
		"other's and ours":       {[]string{caa(0, "issue", "other.example"), caa(0, "issue", ours)}, "", ""},
		"nobody":                 {[]string{caa(0, "issue", ";")}, "other CAs", "other CAs"},
		"empty":                  {[]string{caa(0, "issue", "")}, "other CAs", "other CAs"},
		"nobody and ours":        {[]string{caa(0, "issue", ";"), caa(0, "issue", ours)}, "", ""},
		"below ours":             {[]string{caa(0, "issue", "x."+ours)}, "other CAs", "other CAs"},
		"issuewild ours":         {[]string{caa(0, "issuewild", ours)}, "", ""},
		"issuewild nobody":       {[]string{caa(0, "issuewild", ";")}, "", "other CAs"},
		"wild other, issue ours": {[]string{caa(0, "issuewild", "other.example"), caa(0, "issue", ours)}, "", "other CAs"},
		"wild ours, issue other": {[]string{caa(0, "issuewild", ours), caa(0, "issue", "other.example")}, "other CAs", ""},
		"iodef only":             {[]string{caa(0, "iodef", "mailto:a@example.com")}, "", ""},
		"iodef critical":         {[]string{caa(128, "iodef", "mailto:a@example.com")}, "", ""},
		"issuemail only":         {[]string{caa(128, "issuemail", ";")}, "", ""},
		"unknown":                {[]string{caa(0, "tbs", "Unknown")}, "", ""},
		"unknown critical":       {[]string{caa(128, "tbs", "Unknown"), caa(0, "issue", ours)}, `property "tbs" is critical`, `property "tbs" is critical`},
		"reserved flags":         {[]string{caa(127, "tbs", "Unknown")}, "", ""},
		"all flags":              {[]string{caa(255, "tbs", "Unknown")}, "critical", "critical"},
		"trailing dot":           {[]string{caa(0, "issue", ours+".")}, "malformed", "malformed"},
		"underscore":             {[]string{caa(0, "issue", "ca_.example.net")}, "malformed", "malformed"},
		"two words":              {[]string{caa(0, "issue", ours+" other.example")}, "malformed", "malformed"},
		"new line":               {[]string{caa(0, "issue", ours+"\\010")}, "malformed", "malformed"},
		"parameter without =":    {[]string{caa(0, "issue", ours+"; now")}, "malformed", "malformed"},
		"semicolon at the end":   {[]string{caa(0, "issue", ours+"; a=b;")}, "malformed", "malformed"},
		"two semicolons":         {[]string{caa(0, "issue", ours+";; a=b")}, "malformed", "malformed"},
		"parameter with blank":   {[]string{caa(0, "issue", ours+"; a=b c")}, "malformed", "malformed"},
		"parameter tag _":        {[]string{caa(0, "issue", ours+"; a_b=c")}, "malformed", "malformed"},
		"malformed and ours":     {[]string{caa(0, "issue", "%%%%%"), caa(0, "issue", ours)}, "", ""},
		"unknown parameter":      {[]string{caa(0, "issue", ours+"; color=blue")}, "", ""},
		"empty parameter value":  {[]string{caa(0, "issue", ours+"; color=")}, "", ""},
		"blanks around =":        {[]string{caa(0, "issue", ours+" \\; \\009accounturi = "+accountURL+" \\; x=y ")}, "", ""},
		"our account":            {[]string{caa(0, "issue", ours+"; accounturi="+accountURL)}, "", ""},
		"other account":          {[]string{caa(0, "issue", ours+"; accounturi="+accountURL+"0")}, "accounturi", "accounturi"},
		"account in capitals":    {[]string{caa(0, "issue", ours+"; accounturi="+strings.ToUpper(accountURL))}, "accounturi", "accounturi"},
		"tag in capitals":        {[]string{caa(0, "issue", ours+"; ACCOUNTURI=https://other.example")}, "accounturi", "accounturi"},
		"account twice":          {[]string{caa(0, "issue", ours+"; accounturi="+accountURL+"; accounturi="+accountURL)}, "accounturi", "accounturi"},
		"account empty":          {[]string{caa(0, "issue", ours+"; accounturi=")}, "accounturi", "accounturi"},
		"one of two accounts": {[]string{
			caa(0, "issue", ours+"; accounturi=https://other.example"), caa(0, "issue", ours+"; accounturi="+accountURL),
		}, "", ""},
		"our method":           {[]string{caa(0, "issue", ours+"; validationmethods=dns-01")}, "", ""},
		"one of the methods":   {[]string{caa(0, "issue", ours+"; validationmethods=http-01,ca-x,dns-01")}, "", ""},
		"other method":         {[]string{caa(0, "issue", ours+"; validationmethods=http-01")}, "does not list dns-01", "does not list dns-01"},
		"method in capitals":   {[]string{caa(0, "issue", ours+"; validationmethods=DNS-01")}, "does not list", "does not list"},
		"methods twice":        {[]string{caa(0, "issue", ours+"; validationmethods=dns-01; validationmethods=dns-01")}, "does not list", "does not list"},
		"no methods":           {[]string{caa(0, "issue", ours+"; validationmethods=")}, "does not list", "does not list"},
		"malformed methods":    {[]string{caa(0, "issue", ours+"; validationmethods=dns-01,,http-01")}, "does not list", "does not list"},
		"account and method":   {[]string{caa(0, "issue", ours+"; validationmethods=dns-01; accounturi="+accountURL)}, "", ""},
		"account, not method":  {[]string{caa(0, "issue", ours+"; validationmethods=http-01; accounturi="+accountURL)}, "does not list", "does not list"},
		"other's and not ours": {[]string{caa(0, "issue", "other.example"), caa(0, "issue", ours+"; validationmethods=http-01")}, "does not list", "does not list"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ns := newNameServer(t, append(c.records, atLoopback)...)
			for want, change := range map[*string]func(*acme.CAAQuery){&c.name: func(*acme.CAAQuery) {}, &c.wild: wildcard} {
				rec, p := checkCAA(t, ns, change)
				if *want == "" {
					wantPass(t, p)
				} else {
					wantProblem(t, p, acme.CAA, *want)
				}
				if len(rec.Records) != len(c.records) || rec.Found == "" != (len(c.records) == 0) {
					t.Errorf("record %+v", rec)
				}
			}
		})
	}
}

func TestClosestCAARecordsWin(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		records []string
		found   string
		pass    bool
	}{
		"at the name":              {[]string{caa(0, "issue", ours), caa(0, "issue", ";", "example.com")}, name, true},
		"above":                    {[]string{atLoopback, caa(0, "issue", ";", "example.com")}, "example.com", false},
		"at the top":               {[]string{atLoopback, caa(0, "issue", ";", "com")}, "com", false},
		"one that allows above":    {[]string{atLoopback, caa(0, "iodef", "mailto:x@example.com", "example.com"), caa(0, "issue", ";", "com")}, "example.com", true},
		"a name that is not there": {[]string{caa(0, "issue", ";", "example.com")}, "example.com", false},
		"by an alias":              {[]string{name + ". 60 IN CNAME cdn.example.org.", caa(0, "issue", ";", "cdn.example.org")}, name, false},
		// RFC 8659 has no climbing from where an alias leads.
		"not above the alias":       {[]string{name + ". 60 IN CNAME cdn.example.org.", caa(0, "issue", ";", "example.org"), caa(0, "issue", ours, "example.com")}, "example.com", true},
		"an alias to nowhere":       {[]string{name + ". 60 IN CNAME gone.example.org.", caa(0, "issue", ";", "example.com")}, "example.com", false},
		"an alias above":            {[]string{atLoopback, "example.com. 60 IN CNAME example.org.", caa(0, "issue", ";", "example.org")}, "example.com", false},
		"a chain":                   {[]string{name + ". 60 IN CNAME a.example.org.", "a.example.org. 60 IN CNAME b.example.org.", caa(0, "issue", ";", "b.example.org")}, name, false},
		"records of other kinds":    {[]string{atLoopback, "example.com. 60 IN TXT \"0 issue ;\""}, "", true},
		"records of names below it": {[]string{atLoopback, caa(0, "issue", ";", "a."+name)}, "", true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			rec, p := checkCAA(t, newNameServer(t, c.records...))
			if (p == nil) != c.pass || rec.Found != c.found {
				t.Errorf("%v, found at %q; want %v at %q", p, rec.Found, c.pass, c.found)
			}
		})
	}
}

// TestDNAMEIsFollowed has what a resolver answers below one (RFC 6672 §2.3).
func TestDNAMEIsFollowed(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t)
	ns.handle(func(w dns.ResponseWriter, q *dns.Msg, _ bool) bool {
		if q.Question[0].Name != name+"." {
			return false
		}
		m := new(dns.Msg).SetReply(q)
		for _, text := range []string{
			"example.com. 60 IN DNAME example.org.", name + ". 60 IN CNAME www.example.org.", caa(0, "issue", "other.example", "www.example.org"),
		} {
			rr, err := dns.NewRR(text)
			if err != nil {
				return false
			}
			m.Answer = append(m.Answer, rr)
		}
		return w.WriteMsg(m) == nil
	})
	_, p := checkCAA(t, ns)
	wantProblem(t, p, acme.CAA, "other CAs")
}

// TestEmptyNonTerminalIsClimbedThrough answers NOERROR without records for what
// is only a part of longer names.
func TestEmptyNonTerminalIsClimbedThrough(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t, caa(0, "issue", ";", "com"))
	ns.handle(func(w dns.ResponseWriter, q *dns.Msg, _ bool) bool {
		return strings.HasSuffix(q.Question[0].Name, "example.com.") && w.WriteMsg(new(dns.Msg).SetReply(q)) == nil
	})
	rec, p := checkCAA(t, ns)
	wantProblem(t, p, acme.CAA, "records of com do not allow")
	if rec.Found != "com" {
		t.Errorf("record %+v", rec)
	}
}

// TestFailedLookupOfCAANeverAllows fails one label after the other. What is
// above the closest records does not matter; all else does.
func TestFailedLookupOfCAANeverAllows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fails string
		pass  bool
	}{{name, false}, {"example.com", false}, {"com", true}} {
		for what, rcode := range map[string]int{"SERVFAIL": dns.RcodeServerFailure, "REFUSED": dns.RcodeRefused, "no answer": -1} {
			t.Run(c.fails+" "+what, func(t *testing.T) {
				t.Parallel()
				ns := newNameServer(t, atLoopback, caa(0, "issue", ours, "example.com"))
				ns.handle(func(w dns.ResponseWriter, q *dns.Msg, _ bool) bool {
					if q.Question[0].Name != c.fails+"." {
						return false
					}
					return rcode < 0 || w.WriteMsg(new(dns.Msg).SetRcode(q, rcode)) == nil
				})
				cfg := caaConfig(ns)
				cfg.DNSTimeout = 50 * time.Millisecond
				_, p := mustNew(t, cfg).CheckCAA(t.Context(), acme.CAAQuery{Name: name, Method: acme.DNS01})
				if c.pass {
					wantPass(t, p)
					return
				}
				wantProblem(t, p, acme.DNSError, "looking up CAA for "+c.fails)
			})
		}
	}
}

// TestCAAIsBounded holds the time of a check, the records of a set, and what the
// evidence holds of them.
func TestCAAIsBounded(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t, caa(0, "issue", ours))
	for i := range 30 {
		ns.add(t, caa(0, "iodef", fmt.Sprintf("mailto:%d%s@example.com", i, strings.Repeat("x", 150))))
	}
	rec, p := checkCAA(t, ns)
	wantPass(t, p)
	if len(rec.Records) != 16 || slices.ContainsFunc(rec.Records, func(s string) bool { return len(s) > 260 }) {
		t.Errorf("%d records in the evidence", len(rec.Records))
	}
	for i := range 60 {
		ns.add(t, caa(0, "iodef", fmt.Sprint(i)))
	}
	_, p = checkCAA(t, ns)
	wantProblem(t, p, acme.CAA, "more than 64 CAA records")

	silent := newNameServer(t)
	silent.handle(func(dns.ResponseWriter, *dns.Msg, bool) bool { return true })
	cfg := caaConfig(silent)
	cfg.Timeout = 100 * time.Millisecond
	start := time.Now()
	_, p = mustNew(t, cfg).CheckCAA(t.Context(), acme.CAAQuery{Name: strings.Repeat("a.", 120) + "com"})
	wantProblem(t, p, acme.DNSError, "no answer in time")
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestWhatCAADoesNotApplyTo(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t, caa(0, "issue", ";", "localhost"))
	_, p := checkCAA(t, ns, func(q *acme.CAAQuery) { q.Name = "demo.localhost" })
	wantPass(t, p)
	for _, bad := range []string{"127.0.0.1", "*.example.com", "", "Example.com", "a..b"} {
		_, p := checkCAA(t, ns, func(q *acme.CAAQuery) { q.Name = bad })
		wantProblem(t, p, acme.Malformed, "not a host name")
	}
	if len(ns.asked) > 0 {
		t.Errorf("the DNS was asked: %v", ns.asked)
	}
}

// TestWithoutIdentitiesRestrictionsForbid: a CA that has no name in CAA is never
// the one that is meant.
func TestWithoutIdentitiesRestrictionsForbid(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t, caa(0, "issue", ours))
	_, p := mustNew(t, config(ns, 80)).CheckCAA(t.Context(), acme.CAAQuery{Name: name})
	wantProblem(t, p, acme.CAA, "other CAs")
	ns = newNameServer(t, atLoopback)
	_, p = mustNew(t, config(ns, 80)).CheckCAA(t.Context(), acme.CAAQuery{Name: name})
	wantPass(t, p)
}
