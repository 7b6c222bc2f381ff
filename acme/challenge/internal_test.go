package challenge

import (
	"net/netip"
	"net/url"
	"strings"
	"testing"
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
