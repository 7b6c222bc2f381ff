package front_test

import (
	"bufio"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/front"
)

const (
	get     = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
	v1      = "PROXY TCP4 192.0.2.7 192.0.2.1 4711 443\r\n"
	v2Sig   = "\r\n\r\n\x00\r\nQUIT\n"
	v2      = v2Sig + "\x21\x11\x00\x0c\xc0\x00\x02\x08\xc0\x00\x02\x01\x12\x67\x01\xbb"
	v2Local = v2Sig + "\x20\x00\x00\x00"
	v2Unix  = v2Sig + "\x21\x31\x00\xd8"
	v2UDP   = v2Sig + "\x21\x12\x00\x0c\xc0\x00\x02\x08\xc0\x00\x02\x01\x12\x67\x01\xbb"
)

func TestATrustedProxyMustSayWhoItSpeaksFor(t *testing.T) {
	t.Parallel()
	h := open(t, one(front.Listener{
		ProxyFrom: prefixes(t, "127.0.0.0/8"),
		Limits:    front.Limits{Proxy: 200 * time.Millisecond},
	}, tellCaller))
	for name, c := range map[string]struct{ header, want string }{
		"v1":         {v1, "client=192.0.2.7 conn=192.0.2.7"},
		"v1 IPv6":    {"PROXY TCP6 2001:db8::7 2001:db8::1 1 2\r\n", "client=2001:db8::7 conn=2001:db8::7"},
		"v1 unknown": {"PROXY UNKNOWN\r\n", "client=127.0.0.1 conn=127.0.0.1"},
		"v2":         {v2, "client=192.0.2.8 conn=192.0.2.8"},
		"v2 local":   {v2Local, "client=127.0.0.1 conn=127.0.0.1"},
		"v2 and more": {
			v2Sig + "\x21\x11\x00\x12\xc0\x00\x02\x08\xc0\x00\x02\x01\x12\x67\x01\xbb" + "\x02\x00\x03abc",
			"client=192.0.2.8 conn=192.0.2.8",
		},
	} {
		if got := say(t, h.address(), c.header+get); !strings.HasSuffix(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	for name, header := range map[string]string{
		"absent":       "",
		"v1 malformed": "PROXY TCP4 192.0.2.7\r\n",
		"v1 too long":  "PROXY UNKNOWN " + strings.Repeat("x", 100) + "\r\n",
		"v1 host name": "PROXY TCP4 evil.test 192.0.2.1 1 2\r\n",
		"v2 unix":      v2Unix + strings.Repeat("\x00", 216),
		"v2 UDP":       v2UDP,
		"v2 too long":  v2Sig + "\x21\x11\xff\xff\xc0\x00\x02\x08\xc0\x00\x02\x01\x12\x67\x01\xbb" + strings.Repeat("\x04\x00\x00", 21841),
		"v2 bad more":  v2Sig + "\x21\x11\x00\x12\xc0\x00\x02\x08\xc0\x00\x02\x01\x12\x67\x01\xbb" + "\x02\x00\x04abc",
		"v2 too short": v2Sig + "\x21\x11\x00\x04\xc0\x00\x02\x08",
	} {
		if got := say(t, h.address(), header+get); got != "" {
			t.Errorf("%s: answered with %q, want a closed connection", name, got)
		}
	}
	for reason, want := range map[string]float64{"proxy_missing": 1, "proxy_malformed": 8} {
		if n := h.metric(t, "secsy_http_connections_refused_total", "reason="+reason); n != want {
			t.Errorf("%s counted %v times, want %v", reason, n, want)
		}
	}
}

func TestAStrangerMayNotForgeAProxyHeader(t *testing.T) {
	t.Parallel()
	trusted := prefixes(t, "10.0.0.0/8")
	h := open(t, one(front.Listener{ProxyFrom: trusted}, tellCaller))
	for name, header := range map[string]string{"v1": v1, "v2": v2, "v2 local": v2Local} {
		if got := say(t, h.address(), header+get); got != "" {
			t.Errorf("%s: answered with %q, want a closed connection", name, got)
		}
	}
	if got := say(t, h.address(), get); !strings.HasSuffix(got, "client=127.0.0.1 conn=127.0.0.1") {
		t.Errorf("without a header: %q, want the TCP peer", got)
	}
	if n := h.metric(t, "secsy_http_connections_refused_total", "reason=proxy_untrusted"); n != 3 {
		t.Errorf("%v forgeries counted, want 3", n)
	}
	// A reload makes the stranger a proxy.
	if err := trusted.Set([]netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}); err != nil {
		t.Fatal(err)
	}
	if got := say(t, h.address(), v1+get); !strings.HasSuffix(got, "client=192.0.2.7 conn=192.0.2.7") {
		t.Errorf("after a reload: %q", got)
	}
}

func TestWithoutTheProtocolAProxyHeaderIsRubbish(t *testing.T) {
	t.Parallel()
	h := open(t, one(front.Listener{}, tellCaller))
	if got := say(t, h.address(), v1+get); !strings.HasPrefix(got, "HTTP/1.1 400") {
		t.Errorf("answered with %q, want 400", got)
	}
}

func TestAMuteProxyHoldsUpNobodyAndIsCut(t *testing.T) {
	t.Parallel()
	h := open(t, one(front.Listener{
		ProxyFrom: prefixes(t, "127.0.0.0/8"),
		Limits:    front.Limits{Proxy: 3 * time.Second, ReadHeader: time.Minute},
	}, tellCaller))
	mute := dial(t, h.address())
	half := dial(t, h.address())
	if _, err := io.WriteString(half, v2[:14]); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if got := say(t, h.address(), v1+get); !strings.HasSuffix(got, "client=192.0.2.7 conn=192.0.2.7") {
			t.Fatalf("beside a mute connection: %q", got)
		}
	}
	if n := h.metric(t, "secsy_http_connections_refused_total"); n != 0 {
		t.Errorf("others were served only after %v mute connections were cut", n)
	}
	if got := hear(t, mute) + hear(t, half); got != "" {
		t.Errorf("mute connections were answered with %q", got)
	}
}

func TestHopsAreReadBehindAProxyHeader(t *testing.T) {
	t.Parallel()
	h := open(t, one(front.Listener{
		ProxyFrom: prefixes(t, "127.0.0.0/8"),
		Hops:      newHops(t, front.XForwardedFor, "192.0.2.0/24"),
	}, tellCaller))
	c := dial(t, h.address())
	if _, err := io.WriteString(c, v1+"GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 203.0.113.9\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, got := readAnswer(t, bufio.NewReader(c)); got != "client=203.0.113.9 conn=192.0.2.7" {
		t.Errorf("caller is %q", got)
	}
}
