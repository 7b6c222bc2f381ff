package front_test

import (
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/front"
)

func parse(list []string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range list {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func prefixes(t testing.TB, list ...string) *front.Prefixes {
	t.Helper()
	p, err := front.NewPrefixes(parse(list)...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newHops(t testing.TB, header string, trusted ...string) *front.Hops {
	t.Helper()
	h, err := front.NewHops(header, parse(trusted)...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestTheClientIsTheFirstHopFromTheRightThatIsNotOurs(t *testing.T) {
	t.Parallel()
	const proxy = "10.0.0.1"
	for name, c := range map[string]struct {
		header string
		conn   string
		lines  []string
		want   string
	}{
		"no header":                  {front.XForwardedFor, proxy, nil, proxy},
		"one hop":                    {front.XForwardedFor, proxy, []string{"192.0.2.7"}, "192.0.2.7"},
		"untrusted peer":             {front.XForwardedFor, "198.51.100.9", []string{"192.0.2.7"}, "198.51.100.9"},
		"spoofed leftmost":           {front.XForwardedFor, proxy, []string{"1.1.1.1, 192.0.2.7"}, "192.0.2.7"},
		"spoof that names a proxy":   {front.XForwardedFor, proxy, []string{"1.1.1.1, 10.0.0.9, 192.0.2.7"}, "192.0.2.7"},
		"two proxies":                {front.XForwardedFor, proxy, []string{"1.1.1.1, 192.0.2.7, 10.0.0.2"}, "192.0.2.7"},
		"lines are one list":         {front.XForwardedFor, proxy, []string{"1.1.1.1", "192.0.2.7", "10.0.0.2, 10.0.0.3"}, "192.0.2.7"},
		"all ours":                   {front.XForwardedFor, proxy, []string{"10.0.0.7, 10.0.0.2"}, "10.0.0.7"},
		"rubbish first":              {front.XForwardedFor, proxy, []string{"192.0.2.7, junk"}, proxy},
		"rubbish ends the walk":      {front.XForwardedFor, proxy, []string{"192.0.2.7, junk, 10.0.0.2"}, "10.0.0.2"},
		"rubbish left of the client": {front.XForwardedFor, proxy, []string{"junk, 192.0.2.7, 10.0.0.2"}, "192.0.2.7"},
		"empty element":              {front.XForwardedFor, proxy, []string{"192.0.2.7, , 10.0.0.2"}, "10.0.0.2"},
		"empty line":                 {front.XForwardedFor, proxy, []string{"192.0.2.7", ""}, proxy},
		"port":                       {front.XForwardedFor, proxy, []string{"192.0.2.7:4711"}, "192.0.2.7"},
		"bare IPv6":                  {front.XForwardedFor, proxy, []string{"2001:db8::7"}, "2001:db8::7"},
		"brackets":                   {front.XForwardedFor, proxy, []string{"[2001:db8::7]"}, "2001:db8::7"},
		"brackets and port":          {front.XForwardedFor, proxy, []string{"[2001:db8::7]:4711"}, "2001:db8::7"},
		"IPv4 written as IPv6":       {front.XForwardedFor, "::ffff:10.0.0.1", []string{"::ffff:192.0.2.7"}, "192.0.2.7"},
		"zone":                       {front.XForwardedFor, proxy, []string{"fe80::7%eth0"}, "fe80::7"},
		"32 hops":                    {front.XForwardedFor, proxy, []string{"192.0.2.7" + strings.Repeat(",10.0.0.2", 31)}, "192.0.2.7"},
		"33 hops":                    {front.XForwardedFor, proxy, []string{"192.0.2.7" + strings.Repeat(",10.0.0.2", 32)}, proxy},
		"too long":                   {front.XForwardedFor, proxy, []string{strings.Repeat(" ", 4096) + "192.0.2.7"}, proxy},

		"Forwarded":              {front.Forwarded, proxy, []string{"for=192.0.2.7"}, "192.0.2.7"},
		"other pairs":            {front.Forwarded, proxy, []string{`proto=https;For="192.0.2.7:4711";by=_us ; host="a,b;c"`}, "192.0.2.7"},
		"quoted IPv6":            {front.Forwarded, proxy, []string{`for=1.1.1.1, for="[2001:db8::7]:4711"`}, "2001:db8::7"},
		"hidden port":            {front.Forwarded, proxy, []string{`for="[2001:db8::7]:_p"`}, "2001:db8::7"},
		"two Forwarded proxies":  {front.Forwarded, proxy, []string{`for=1.1.1.1, for=192.0.2.7`, `for="10.0.0.2"`}, "192.0.2.7"},
		"unknown":                {front.Forwarded, proxy, []string{`for=192.0.2.7, for=unknown, for=10.0.0.2`}, "10.0.0.2"},
		"hidden":                 {front.Forwarded, proxy, []string{`for=192.0.2.7, for=_gazonk`}, proxy},
		"no for":                 {front.Forwarded, proxy, []string{`for=192.0.2.7, proto=http`}, proxy},
		"two fors":               {front.Forwarded, proxy, []string{`for=192.0.2.7;for=192.0.2.8`}, proxy},
		"bare IPv6 in Forwarded": {front.Forwarded, proxy, []string{`for=2001:db8::7`}, proxy},
		"IPv4 in brackets":       {front.Forwarded, proxy, []string{`for="[192.0.2.7]"`}, proxy},
		"nothing quoted":         {front.Forwarded, proxy, []string{`for=192.0.2.7;host="", for="10.0.0.2"`}, "192.0.2.7"},
		"empty quotes":           {front.Forwarded, proxy, []string{`for=192.0.2.7, for=""`}, proxy},
		"quote never closed":     {front.Forwarded, proxy, []string{`for=192.0.2.7, for="10.0.0.2`}, proxy},
		"escapes":                {front.Forwarded, proxy, []string{`for="192\.0.2.\7"`}, "192.0.2.7"},
		"open quote on the left": {front.Forwarded, proxy, []string{`for="evil, for="[2001:db8::7]"`}, "2001:db8::7"},
		"quoted list on the left": {
			front.Forwarded, proxy,
			[]string{`for="x, for=10.0.0.2", for=192.0.2.7`},
			"192.0.2.7",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := http.Header{c.header: c.lines}
			if c.lines == nil {
				h = http.Header{}
			}
			hops := newHops(t, c.header, "10.0.0.0/8")
			if got := hops.Client(netip.MustParseAddr(c.conn), h).String(); got != c.want {
				t.Errorf("client = %s, want %s", got, c.want)
			}
		})
	}
}

func TestOnlyTheConfiguredHeaderIsRead(t *testing.T) {
	t.Parallel()
	hops := newHops(t, "forwarded", "10.0.0.0/8")
	h := http.Header{}
	h.Set("X-Forwarded-For", "1.1.1.1")
	h.Set("X-Real-Ip", "1.1.1.1")
	h.Set("True-Client-Ip", "1.1.1.1")
	conn := netip.MustParseAddr("10.0.0.1")
	if got := hops.Client(conn, h); got != conn {
		t.Errorf("client = %s, want the TCP peer", got)
	}
	h.Set("Forwarded", "for=192.0.2.7")
	if got := hops.Client(conn, h).String(); got != "192.0.2.7" {
		t.Errorf("client = %s, want what Forwarded says", got)
	}
}

func TestTrustedHopsCanBeReplacedWhileServing(t *testing.T) {
	t.Parallel()
	hops := newHops(t, front.XForwardedFor)
	conn := netip.MustParseAddr("10.0.0.1")
	h := http.Header{"X-Forwarded-For": {"192.0.2.7"}, "Forwarded": {"for=192.0.2.8"}}
	if got := hops.Client(conn, h); got != conn {
		t.Errorf("client = %s, want the TCP peer", got)
	}
	if err := hops.Set("x-forwarded-for", parse([]string{"::ffff:10.0.0.0/104"})); err != nil {
		t.Fatal(err)
	}
	if got := hops.Client(conn, h).String(); got != "192.0.2.7" {
		t.Errorf("client = %s, want 192.0.2.7", got)
	}
	for _, bad := range []netip.Prefix{{}, netip.MustParsePrefix("::ffff:0.0.0.0/90")} {
		if err := hops.Set(front.Forwarded, []netip.Prefix{bad}); err == nil {
			t.Errorf("prefix %v was taken", bad)
		}
	}
	if err := hops.Set("X-Real-Ip", parse([]string{"10.0.0.0/8"})); err == nil {
		t.Error("a header that strangers write was taken")
	}
	if got := hops.Client(conn, h).String(); got != "192.0.2.7" {
		t.Errorf("client = %s: a bad rule replaced the good one", got)
	}
}

var addressLike = regexp.MustCompile(`[0-9A-Fa-f:.]+`)

// mentioned reports whether text contains the address a, however it is written.
func mentioned(text string, a netip.Addr) bool {
	for _, run := range addressLike.FindAllString(text, -1) {
		for from := range len(run) {
			for to := from + 1; to <= len(run); to++ {
				if x, err := netip.ParseAddr(run[from:to]); err == nil && x.Unmap() == a {
					return true
				}
			}
		}
	}
	return false
}

func fuzzHops(f *testing.F, header string, seeds ...string) {
	for _, s := range seeds {
		f.Add(s, "")
		f.Add("192.0.2.1", s)
	}
	trusted := prefixes(f, "10.0.0.0/8", "2001:db8::/32")
	conn := netip.MustParseAddr("10.0.0.1")
	hops := newHops(f, header, "10.0.0.0/8", "2001:db8::/32")
	f.Fuzz(func(t *testing.T, one, two string) {
		got := hops.Client(conn, http.Header{header: {one, two}})
		if !got.IsValid() || got.Is4In6() || got.Zone() != "" {
			t.Fatalf("client = %#v is not a plain address", got)
		}
		text := one + "\n" + two
		if len(text) < 512 && header == front.Forwarded {
			text = strings.ReplaceAll(text, `\`, "")
		}
		if got != conn && len(text) < 512 && !mentioned(text, got) {
			t.Fatalf("client = %s is not in %q", got, text)
		}
		// What stands left of an untrusted hop is the stranger's to write.
		if !trusted.Contains(got) {
			again := hops.Client(conn, http.Header{header: {"6.6.6.6, for=6.6.6.6," + one, two}})
			if again != got && len(one)+len(two) < 1024 && strings.Count(one+two, ",") < 20 {
				t.Fatalf("client = %s, and %s once the stranger writes more", got, again)
			}
		}
	})
}

func FuzzXForwardedFor(f *testing.F) {
	fuzzHops(f, front.XForwardedFor, "192.0.2.7", "1.1.1.1, 10.0.0.2", "[2001:db8::1]:80,::ffff:1.2.3.4", "fe80::1%eth0", "junk,,", "1.2.3.4:99999")
}

func FuzzForwarded(f *testing.F) {
	fuzzHops(f, front.Forwarded, "for=192.0.2.7", `for="[2001:db8::7]:4711";proto=https, for=unknown`, `for="a\"b, for=1.1.1.1`, `for=_x;by="\`, `a=b;for=10.0.0.2`)
}
