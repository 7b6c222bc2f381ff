package challenge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
)

func TestSpecialAddressesAreForbidden(t *testing.T) {
	t.Parallel()
	public, internal := policy{}, policy{private: true}
	for addr, want := range map[string]struct{ public, internal bool }{
		"8.8.8.8":                      {true, true},
		"2606:4700::1111":              {true, true},
		"2002:808:808::1":              {true, true},  // 6to4 of 8.8.8.8
		"64:ff9b::808:808":             {true, true},  // NAT64 of it
		"::ffff:8.8.8.8":               {true, true},  // mapped
		"10.1.2.3":                     {false, true}, // RFC 1918
		"172.31.255.255":               {false, true},
		"192.168.0.1":                  {false, true},
		"100.64.0.1":                   {false, true}, // carrier-grade NAT
		"fd12:3456::1":                 {false, true}, // RFC 4193
		"::ffff:10.1.2.3":              {false, true}, // mapped
		"64:ff9b::10.1.2.3":            {false, true}, // NAT64
		"2002:a01:203::1":              {false, true}, // 6to4
		"172.32.0.1":                   {true, true},  // just outside
		"0.0.0.0":                      {false, false},
		"127.0.0.1":                    {false, false}, // loopback
		"::1":                          {false, false},
		"::":                           {false, false},
		"::ffff:127.0.0.1":             {false, false},
		"::127.0.0.1":                  {false, false}, // compatible, long gone
		"64:ff9b::127.0.0.1":           {false, false},
		"64:ff9b:1::8.8.8.8":           {false, false}, // local NAT64
		"2002:7f00:1::":                {false, false},
		"169.254.1.1":                  {false, false}, // link-local
		"fe80::1":                      {false, false},
		"fec0::1":                      {false, false}, // site-local
		"169.254.169.254":              {false, false}, // metadata
		"fd00:ec2::254":                {false, false},
		"100.100.100.200":              {false, false},
		"168.63.129.16":                {false, false},
		"64:ff9b::a9fe:a9fe":           {false, false},
		"224.0.0.1":                    {false, false}, // multicast
		"ff02::1":                      {false, false},
		"240.0.0.1":                    {false, false},
		"255.255.255.255":              {false, false},
		"192.0.2.1":                    {false, false}, // documentation
		"198.51.100.1":                 {false, false},
		"203.0.113.1":                  {false, false},
		"2001:db8::1":                  {false, false},
		"3fff::1":                      {false, false},
		"198.18.0.1":                   {false, false}, // benchmarks
		"192.0.0.8":                    {false, false}, // IETF protocols
		"2001:20::1":                   {false, false},
		"5f00::1":                      {false, false}, // segment routing
		"100::1":                       {false, false}, // discard
		"2001:0:808:808::":             {false, false}, // Teredo, client 255.255.255.255
		"2001:0:808:808:0:0:f7f7:f7f7": {true, true},   // Teredo, client and server 8.8.8.8
		"2001:0:808:808:0:0:80ff:fffe": {false, false}, // Teredo, client 127.0.0.1
		"2001:0:7f00:1:0:0:f7f7:f7f7":  {false, false}, // Teredo, server 127.0.0.1
	} {
		a := netip.MustParseAddr(addr)
		if got := public.allowed(a); got != want.public {
			t.Errorf("public: %s allowed = %v", addr, got)
		}
		if got := internal.allowed(a); got != want.internal {
			t.Errorf("internal: %s allowed = %v", addr, got)
		}
	}
	if internal.allowed(netip.MustParseAddr("fd00::1%eth0")) || internal.allowed(netip.Addr{}) {
		t.Error("an address with a zone, or none, is allowed")
	}
}

func TestAllowAndDeny(t *testing.T) {
	t.Parallel()
	p := policy{
		private: true,
		allow:   []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fd00:ec2::254/128")},
		deny:    []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("127.0.0.9/32")},
	}
	for addr, want := range map[string]bool{
		"127.0.0.1":         true,
		"127.0.0.9":         false,
		"10.0.0.1":          false,
		"10.0.1.1":          true,
		"::ffff:10.0.0.1":   false,
		"64:ff9b::10.0.0.1": false,
		"169.254.1.1":       true,
		"169.254.169.254":   false, // needs a prefix of its own
		"fd00:ec2::254":     true,
	} {
		if got := p.allowed(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s allowed = %v", addr, got)
		}
	}
}

// FuzzExcerpt: an excerpt is short, printable ASCII, and ends where its
// quotation ends.
func FuzzExcerpt(f *testing.F) {
	f.Add([]byte("plain"))
	f.Add([]byte("\x1b]0;title\a\"\\\r\n\xff\xc3\xbc"))
	f.Add([]byte(strings.Repeat("x", 1000)))
	f.Fuzz(func(t *testing.T, b []byte) {
		got := excerpt(b)
		if len(got) > 64+len(`"..."`) {
			t.Errorf("%d bytes", len(got))
		}
		inner := strings.TrimSuffix(strings.TrimPrefix(got, `"`), `"`)
		if len(inner) != len(got)-2 || strings.ContainsAny(inner, `"\`) {
			t.Errorf("not one quotation: %s", got)
		}
		for _, c := range []byte(got) {
			if c < ' ' || c > '~' {
				t.Errorf("byte %#x in %q", c, got)
			}
		}
	})
}

// FuzzRedirect: wherever a server sends us, we go to a host name in lower case,
// by http or https, to one of the ports, as nobody in particular.
func FuzzRedirect(f *testing.F) {
	v := &Validator{cfg: Config{HTTPPort: 80, HTTPSPort: 443}}
	from := target{url: &url.URL{Scheme: "http", Host: "www.example.com", Path: "/.well-known/acme-challenge/t"}, host: "www.example.com", port: 80}
	for _, s := range []string{
		"/next", "//other.example/x", "https://other.example:443/?q#f", "http://user@host/", "http://127.0.0.1/", "http://[::1%25eth0]/",
		"?q", "http:x", "HTTP://UPPER.example:80/", "http://a:b:c/", "\\\\evil\\x", "http://0x7f.1/", "http://a.example:080/", "..//..",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, location string) {
		to, err := v.redirect(from, []string{location})
		if err != nil {
			for _, c := range []byte(err.Error()) {
				if c < ' ' || c > '~' {
					t.Errorf("byte %#x in %q", c, err)
				}
			}
			return
		}
		u, err := url.Parse(to.url.String())
		if err != nil {
			t.Fatalf("%q became %q: %v", location, to.url, err)
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Hostname() != to.host || u.Fragment != "" {
			t.Errorf("%q became %q", location, u)
		}
		if !isHostname(to.host) || to.port != 80 && to.port != 443 {
			t.Errorf("%q leads to %s port %d", location, to.host, to.port)
		}
		if _, err := netip.ParseAddr(to.host); err == nil {
			t.Errorf("%q leads to the address %s", location, to.host)
		}
	})
}

// FuzzIssueValue: what is read of a value is in the grammar of RFC 8659 §4.2,
// and written out it is read as the same again.
func FuzzIssueValue(f *testing.F) {
	for _, s := range []string{
		"", ";", "ca.example.net", " ca.example.net ; ", "CA.example; accounturi=https://x/1; validationmethods=dns-01,http-01",
		"ca.example; policy=wildcard; persistUntil=1782424856", "ca..example", "a=b", "ca.example;;", "ca.example; a = b ; c=", "\x00", "ca.example;a=\xff",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := parseIssueValue(s)
		if err != nil {
			if v.issuer != "" || v.params != nil {
				t.Errorf("%q: %v, and yet %+v", s, err, v)
			}
			return
		}
		if v.issuer != strings.ToLower(v.issuer) || v.issuer != "" && !isLabels(v.issuer) || len(v.params) > maxParams {
			t.Errorf("%q became %+v", s, v)
		}
		text := v.issuer
		for _, p := range v.params {
			if strings.ContainsAny(p.value, "; \t\n") || !isLabel(p.tag) {
				t.Errorf("%q became %+v", s, v)
			}
			text += ";" + p.tag + "=" + p.value
		}
		again, err := parseIssueValue(text)
		if err != nil || again.issuer != v.issuer || !slices.Equal(again.params, v.params) {
			t.Errorf("%q became %+v, and %q %+v, %v", s, v, text, again, err)
		}
	})
}

// FuzzCAA: whatever the octets of a CAA record are, they never let another CA's
// record pass for ours, and the check ends.
func FuzzCAA(f *testing.F) {
	v := &Validator{issuers: []string{"ca.example.net"}}
	q := acme.CAAQuery{Name: "www.example.com", Method: acme.DNS01, AccountURL: "https://acme.example.net/1"}
	f.Add(uint8(0), "issue", "ca.example.net")
	f.Add(uint8(128), "issuewild", ";")
	f.Add(uint8(0), "issue", "ca.example.net; accounturi=https://acme.example.net/1")
	f.Fuzz(func(t *testing.T, flag uint8, tag, value string) {
		record := &dns.CAA{Flag: flag, Tag: tag, Value: value}
		for _, wild := range []bool{false, true} {
			q.Wildcard = wild
			err := v.permits([]*dns.CAA{record}, q)
			restricts := strings.EqualFold(tag, "issue") || wild && strings.EqualFold(tag, "issuewild")
			if err == nil && restricts && !strings.HasPrefix(strings.ToLower(strings.TrimLeft(value, " \t")), "ca.example.net") {
				t.Errorf("%d %q %q lets us issue", flag, tag, value)
			}
			// Beside a record that forbids, nothing forbids less.
			nobody := &dns.CAA{Tag: "issue", Value: ";"}
			if both := v.permits([]*dns.CAA{nobody, record}, q); err != nil && both == nil {
				t.Errorf("%d %q %q is refused, and allowed beside one that forbids", flag, tag, value)
			}
			if err != nil {
				for _, c := range []byte(err.Error()) {
					if c < ' ' || c > '~' {
						t.Errorf("byte %#x in %q", c, err)
					}
				}
			}
		}
	})
}

// FuzzChallengeCert: what is taken for a right certificate of tls-alpn-01 has
// the one name, the one extension, and its own signature.
func FuzzChallengeCert(f *testing.F) {
	id := ca.Identifier{Type: ca.DNS, Value: "www.example.com"}
	sum := sha256.Sum256([]byte("key authorization"))
	digest, err := asn1.Marshal(sum[:])
	if err != nil {
		f.Fatal(err)
	}
	san := []byte("\x30\x11\x82\x0fwww.example.com")
	f.Add(san, digest, true)
	f.Add([]byte("\x30\x06\x87\x04\x7f\x00\x00\x01"), digest, true)
	f.Add([]byte("\x30\x80\x00\x00"), []byte{4, 0}, false)
	f.Fuzz(func(t *testing.T, names, identifier []byte, critical bool) {
		cert := &x509.Certificate{Extensions: []pkix.Extension{
			{Id: oidSAN, Value: names}, {Id: oidAcmeID, Critical: critical, Value: identifier},
		}}
		nameErr := checkOnlyName(cert, id)
		if nameErr == nil && !bytes.EqualFold(names, san) {
			t.Errorf("%x passes for %x", names, san)
		}
		got, idErr := acmeIdentifier(cert)
		if idErr == nil && (!critical || len(got) != 32 || !bytes.Equal(identifier, append([]byte{4, 32}, got...))) {
			t.Errorf("%x passes for %x", identifier, got)
		}
		for _, err := range []error{nameErr, idErr} {
			if err == nil {
				continue
			}
			for _, c := range []byte(err.Error()) {
				if c < ' ' || c > '~' {
					t.Errorf("byte %#x in %q", c, err)
				}
			}
		}
	})
}

// FuzzDNSAnswer: whatever datagram comes back, the records taken from it are of
// the name and type asked for, and the walk along its aliases ends.
func FuzzDNSAnswer(f *testing.F) {
	query := new(dns.Msg).SetQuestion("_acme-challenge.example.com.", dns.TypeTXT)
	query.Id = 7
	good := new(dns.Msg).SetReply(query)
	for _, text := range []string{"_acme-challenge.example.com. 1 IN CNAME a.example.", "a.example. 1 IN CNAME A.example.", "a.example. 1 IN TXT \"x\" \"y\""} {
		rr, err := dns.NewRR(text)
		if err != nil {
			f.Fatal(err)
		}
		good.Answer = append(good.Answer, rr)
	}
	packed, err := good.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(packed)
	f.Add(packed[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		answer := new(dns.Msg)
		if answer.Unpack(b) != nil || !answers(answer, query) {
			return
		}
		if answer.Id != query.Id || !answer.Response {
			t.Error("an answer to something else was taken")
		}
		end, n := follow(answer.Answer, query.Question[0].Name)
		if n > maxCNAMEs+1 {
			t.Errorf("%d aliases were followed", n)
		}
		for _, rr := range recordsAt(answer.Answer, end, dns.TypeTXT) {
			if !sameName(rr.Header().Name, end) || rr.Header().Rrtype != dns.TypeTXT {
				t.Errorf("%v was taken for %s TXT", rr, end)
			}
			_ = textOf(rr)
		}
	})
}

// TestAProofOfValidationWearsOff asks the resolver again after a while, and
// sooner after it failed.
func TestAProofOfValidationWearsOff(t *testing.T) {
	t.Parallel()
	d := newDNSSEC()
	d.until, d.err = time.Now().Add(time.Hour), errNoAD
	if err := d.check(t.Context(), nil); !errors.Is(err, errNoAD) {
		t.Errorf("a fresh verdict is not remembered: %v", err)
	}
	d.until = time.Now().Add(-time.Second)
	r := &resolver{servers: []string{"127.0.0.1:1"}, timeout: time.Second, dnssec: d, queries: prometheus.NewCounterVec(prometheus.CounterOpts{}, []string{"type", "outcome"})}
	if err := d.check(t.Context(), r); !errors.Is(err, errNoAD) || time.Until(d.until) > distrust {
		t.Errorf("after a failure: %v, next in %v", err, time.Until(d.until))
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	d.until, d.err = time.Time{}, nil
	if err := d.check(gone, r); err == nil || d.err != nil || !d.until.IsZero() {
		t.Errorf("who gave up decided for others: %v, %v", err, d.err)
	}
}

// TestPrivateAddressesAreForTheInternalPolicy: what policy public refuses, an
// internal CA may connect to, and by no other way than as what it is.
func TestPrivateAddressesAreForTheInternalPolicy(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd12:3456::1"} {
		for private, v := range map[bool]*Validator{false: {}, true: {policy: policy{private: true}}} {
			found, p := (&attempt{v: v}).addresses(t.Context(), addr)
			if (p == nil) != private || private && (len(found) != 1 || found[0] != netip.MustParseAddr(addr)) {
				t.Errorf("%s with private=%v: %v, %v", addr, private, found, p)
			}
		}
	}
}

// TestTheLastGateIsAtTheDialer: what got past all that is before it is not dialed.
func TestTheLastGateIsAtTheDialer(t *testing.T) {
	t.Parallel()
	v := &Validator{}
	for _, addr := range []string{"127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "64:ff9b::7f00:1"} {
		if conn, err := v.dial(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(addr), 80)); err == nil || conn != nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

// TestIPv4JoinsWhenIPv6IsSlow holds RFC 8305 with a first address that
// swallows what is sent to it.
func TestIPv4JoinsWhenIPv6IsSlow(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	// Nothing is sent to a discard-only prefix: there is a route to nowhere, or none.
	all := policy{allow: []netip.Prefix{netip.MustParsePrefix("::/0"), netip.MustParsePrefix("0.0.0.0/0")}}
	a := &attempt{v: &Validator{policy: all, cfg: Config{StepTimeout: 5 * time.Second}}}
	start := time.Now()
	conn, err := a.connect(t.Context(), []netip.Addr{netip.MustParseAddr("100::1"), netip.MustParseAddr("127.0.0.1")}, port)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("it took %v", took)
	}
	if len(a.rec.Addrs) != 2 {
		t.Errorf("connected to %v", a.rec.Addrs)
	}
}

// FuzzPersist: whatever a record holds, it proves nothing without this CA's
// domain at its beginning and the account's URL, and nothing for longer than ten days.
func FuzzPersist(f *testing.F) {
	const account = "https://acme.example.net/1"
	now := time.Unix(1800000000, 0)
	for _, s := range []string{
		"ca.example.net; accounturi=" + account, "ca.example.net; accounturi=" + account + "; policy=wildcard; persistUntil=1800000001",
		"ca.example.net; accounturi=" + account + "; persistUntil=1", "ca.example.net", "other; accounturi=" + account, "ca.example.net;;", "\xff",
	} {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, text string, wild bool) {
		a := &attempt{v: &Validator{issuers: []string{"ca.example.net"}}, q: acme.Validation{AccountURL: account, Wildcard: wild}}
		until, err := a.persists(text, now)
		if err != nil {
			for _, c := range []byte(err.Error()) {
				if c < ' ' || c > '~' {
					t.Errorf("byte %#x in %q", c, err)
				}
			}
			return
		}
		lower := strings.ToLower(text)
		switch {
		case !strings.HasPrefix(strings.TrimLeft(lower, " \t"), "ca.example.net"), !strings.Contains(text, account), wild && !strings.Contains(lower, "wildcard"):
			t.Errorf("%q proves control", text)
		case until.After(now.Add(persistReuse)) || until.Before(now):
			t.Errorf("%q proves control until %v", text, until)
		}
	})
}
