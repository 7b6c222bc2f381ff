package challenge_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/acme/challenge"
)

const atLoopback = name + ". 60 IN A 127.0.0.1"

func TestRightAnswerPasses(t *testing.T) {
	t.Parallel()
	requests := make(chan *http.Request, 1)
	port := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- r
		_, _ = w.Write([]byte(keyAuthorization + " \r\n"))
	}))
	rec, p := validate(t, config(newNameServer(t, atLoopback), port), acme.HTTP01)
	wantPass(t, p)
	if want := fmt.Sprintf("http://%s:%d%s", name, port, challengePath); !slices.Equal(rec.URLs, []string{want}) {
		t.Errorf("URLs = %v, want %s", rec.URLs, want)
	}
	if !slices.Equal(rec.Addrs, []netip.Addr{netip.MustParseAddr("127.0.0.1")}) {
		t.Errorf("Addrs = %v", rec.Addrs)
	}
	asked := <-requests
	if asked.Method != http.MethodGet || asked.Host != fmt.Sprintf("%s:%d", name, port) || asked.URL.Path != challengePath {
		t.Errorf("asked %s %s at %s", asked.Method, asked.URL, asked.Host)
	}
	if asked.Header.Get("Accept-Encoding") != "" || asked.Header.Get("Cookie") != "" || !asked.Close {
		t.Errorf("headers %v", asked.Header)
	}
}

// RFC 9110 §15.2: a client has to take any number of them before the answer.
func TestInformationBeforeTheAnswerIsPassedOver(t *testing.T) {
	t.Parallel()
	port := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = w.Write([]byte(keyAuthorization))
	}))
	if _, p := validate(t, config(newNameServer(t, atLoopback), port), acme.HTTP01); p != nil {
		t.Error(p)
	}
}

func TestWrongAnswersAreUnauthorized(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		h      http.Handler
		detail string
	}{
		"wrong body":    {text(200, "evil\x1b[31m\"<script>"), `"evil?[31m?<script>"`},
		"prefix":        {text(200, keyAuthorization[:len(keyAuthorization)-1]), "not with the key authorization"},
		"space before":  {text(200, " "+keyAuthorization), "not with the key authorization"},
		"more":          {text(200, keyAuthorization+"\nx"), "not with the key authorization"},
		"empty":         {text(200, ""), `answered with ""`},
		"not found":     {text(404, keyAuthorization), "status 404"},
		"other success": {text(206, keyAuthorization), "status 206"},
		"see other":     {http.RedirectHandler("/", http.StatusSeeOther), "status 303"},
		"huge":          {text(200, keyAuthorization+strings.Repeat(" ", 8<<10)), "more than 8192 bytes"},
		"endless": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write([]byte(strings.Repeat("\n", 4096))); err != nil {
					return
				}
			}
		}), "more than 8192 bytes"},
		"unasked gzip": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write([]byte("\x1f\x8b\x08"))
		}), `"???"`},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			_, p := validate(t, config(newNameServer(t, atLoopback), serveHTTP(t, c.h)), acme.HTTP01)
			wantProblem(t, p, acme.Unauthorized, c.detail)
		})
	}
}

func TestTroublesOfTheConnection(t *testing.T) {
	t.Parallel()
	hang := func(r *http.Request) { <-r.Context().Done() } // until the client leaves
	for what, c := range map[string]struct {
		h      http.HandlerFunc
		detail string
	}{
		"silence": {func(_ http.ResponseWriter, r *http.Request) { hang(r) }, "timeout"},
		"slow body": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(token))
			_ = http.NewResponseController(w).Flush()
			hang(r)
		}, "timeout"},
		"hangs up": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "closed early"},
		"short body": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte(keyAuthorization))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, "closed early"},
		"huge header": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Long", strings.Repeat("x", 64<<10))
		}, "not a proper answer"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			cfg := config(newNameServer(t, atLoopback), serveHTTP(t, c.h))
			if c.detail == "timeout" {
				cfg.Timeout, cfg.StepTimeout = 400*time.Millisecond, 300*time.Millisecond
			}
			_, p := validate(t, cfg, acme.HTTP01)
			wantProblem(t, p, acme.Connection, c.detail)
		})
	}
}

func TestRefusedConnectionIsNamed(t *testing.T) {
	t.Parallel()
	srv, port := serve(t, "127.0.0.1", 0, text(200, keyAuthorization))
	_ = srv.Listener.Close()
	rec, p := validate(t, config(newNameServer(t, atLoopback), port), acme.HTTP01)
	wantProblem(t, p, acme.Connection, fmt.Sprintf("connecting to 127.0.0.1:%d: connection refused", port))
	if len(rec.Addrs) != 1 || len(rec.URLs) != 1 {
		t.Errorf("record %+v", rec)
	}
}

func TestEndedContextEndsTheAttempt(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	port := serveHTTP(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}))
	v, err := challenge.New(config(newNameServer(t, atLoopback), port))
	if err != nil {
		t.Fatal(err)
	}
	_, p := v.Validate(ctx, validation(acme.HTTP01))
	wantProblem(t, p, acme.Connection, "given up")
}

func TestIPv4HelpsOutOnce(t *testing.T) {
	t.Parallel()
	// Nobody listens at ::1.
	ns := newNameServer(t, atLoopback, name+". 60 IN AAAA ::1")
	rec, p := validate(t, config(ns, serveHTTP(t, text(200, keyAuthorization))), acme.HTTP01)
	wantPass(t, p)
	want := []netip.Addr{netip.MustParseAddr("::1"), netip.MustParseAddr("127.0.0.1")}
	if !slices.Equal(rec.Addrs, want) {
		t.Errorf("Addrs = %v, want %v", rec.Addrs, want)
	}
}

func TestOneAddressOfManyIsTried(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t)
	for i := range 60 {
		ns.add(t, fmt.Sprintf("%s. 60 IN A 127.0.1.%d", name, i+1))
	}
	cfg := config(ns, serveHTTP(t, text(200, keyAuthorization))) // listens at 127.0.0.1 only
	cfg.Allow = append(cfg.Allow, netip.MustParsePrefix("127.0.1.0/24"))
	rec, p := validate(t, cfg, acme.HTTP01)
	wantProblem(t, p, acme.Connection, "connection refused")
	if len(rec.Addrs) != 1 {
		t.Errorf("%d addresses were tried", len(rec.Addrs))
	}
}

// redirects serves a chain: each path leads to where the map says, and every
// other answers with the key authorization.
func redirects(to map[string]string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		where, ok := to[r.URL.Path]
		if !ok {
			_, _ = w.Write([]byte(keyAuthorization))
			return
		}
		w.Header().Set("Location", where)
		w.WriteHeader(http.StatusFound)
		_, _ = w.Write([]byte("moved"))
	})
}

func TestRedirectsAreFollowed(t *testing.T) {
	t.Parallel()
	srv, httpsPort := serve(t, "127.0.0.1", 0, redirects(map[string]string{"/secure": "/there#fragment"}))
	srv.StartTLS() // a certificate of its own, for another name
	port := serveHTTP(t, redirects(map[string]string{
		challengePath:                          "relative?q=1",
		"/.well-known/acme-challenge/relative": fmt.Sprintf("https://OTHER.example.com:%d/secure", httpsPort),
	}))
	cfg := config(newNameServer(t, atLoopback, "other.example.com. 60 IN A 127.0.0.1"), port)
	cfg.HTTPSPort = httpsPort
	rec, p := validate(t, cfg, acme.HTTP01)
	wantPass(t, p)
	want := []string{
		fmt.Sprintf("http://%s:%d%s", name, port, challengePath),
		fmt.Sprintf("http://%s:%d/.well-known/acme-challenge/relative?q=1", name, port),
		fmt.Sprintf("https://other.example.com:%d/secure", httpsPort),
		fmt.Sprintf("https://other.example.com:%d/there", httpsPort),
	}
	if !slices.Equal(rec.URLs, want) {
		t.Errorf("URLs = %v, want %v", rec.URLs, want)
	}
	if len(rec.Addrs) != 4 {
		t.Errorf("Addrs = %v", rec.Addrs)
	}
}

func TestHTTPSWithoutTLSIsATLSProblem(t *testing.T) {
	t.Parallel()
	plain := serveHTTP(t, text(200, keyAuthorization))
	port := serveHTTP(t, http.RedirectHandler(fmt.Sprintf("https://%s:%d/", name, plain), http.StatusMovedPermanently))
	cfg := config(newNameServer(t, atLoopback), port)
	cfg.HTTPSPort = plain
	_, p := validate(t, cfg, acme.HTTP01)
	wantProblem(t, p, acme.TLSError, "TLS handshake")
}

func TestBadRedirectsAreRefused(t *testing.T) {
	t.Parallel()
	for where, detail := range map[string]string{
		"":                                      "does not say where to",
		challengePath:                           "loop",
		"http://127.0.0.1/":                     "IP address",
		"http://[::1]/":                         "IP address",
		"http://2130706433/":                    "not to a host name",
		"http://127.1/":                         "not to a host name",
		"http://0x7f.0x1/":                      "not to a host name",
		"http://www.example.com./":              "not to a host name",
		"http://m\u00fcller.example/":           "not to a host name",
		"http://www.example.com:22/":            "port other than",
		"http://www.example.com:/":              "port other than",
		"http://www.example.com:99999/":         "port other than",
		"http://user:pw@www.example.com/":       "user name",
		"ftp://www.example.com/":                "neither http nor https",
		"file:///etc/passwd":                    "neither http nor https",
		"http:///nowhere":                       "not to a host name",
		"http:opaque":                           "not a URL with a host",
		"http://www.example.com/%zz":            "not a URL",
		"http://w/" + strings.Repeat("x", 2000): "longer than",
		"http://internal.example.com/":          "no address that this server may connect to",
		"http://missing.example.com/":           "NXDOMAIN",
	} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			port := serveHTTP(t, redirects(map[string]string{challengePath: where}))
			_, p := validate(t, config(newNameServer(t, atLoopback, "internal.example.com. 60 IN A 10.0.0.1"), port), acme.HTTP01)
			want := acme.Connection
			if strings.Contains(where, "internal") || strings.Contains(where, "missing") {
				want = acme.DNSError
			}
			wantProblem(t, p, want, detail)
			if p != nil && strings.Contains(p.Detail, "10.0.0.1") {
				t.Errorf("our view of the DNS is told: %s", p.Detail)
			}
		})
	}
}

func TestRedirectsEnd(t *testing.T) {
	t.Parallel()
	var hops atomic.Int64
	port := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, fmt.Sprintf("/%d", hops.Add(1)), http.StatusFound)
	}))
	rec, p := validate(t, config(newNameServer(t, atLoopback), port), acme.HTTP01)
	wantProblem(t, p, acme.Connection, "more than 10 redirects")
	if hops.Load() != 11 || len(rec.URLs) != 11 {
		t.Errorf("%d requests, %d recorded", hops.Load(), len(rec.URLs))
	}
}

// TestRebindingNeverConnects changes the name's address between two hops, and
// would change it again between check and connection if there were two lookups.
func TestRebindingNeverConnects(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t)
	var lookups atomic.Int64
	ns.handle(func(w dns.ResponseWriter, q *dns.Msg, _ bool) bool {
		m := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			addr := "127.0.0.1"
			if lookups.Add(1) > 1 {
				addr = "127.0.0.2"
			}
			rr, err := dns.NewRR(name + ". 0 IN A " + addr)
			if err != nil {
				return false
			}
			m.Answer = append(m.Answer, rr)
		}
		return w.WriteMsg(m) == nil
	})
	port := serveHTTP(t, redirects(map[string]string{challengePath: "/next"}))
	var reached atomic.Bool
	victim, _ := serve(t, "127.0.0.2", port, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	victim.Start()
	rec, p := validate(t, config(ns, port), acme.HTTP01)
	wantProblem(t, p, acme.DNSError, "no address that this server may connect to")
	if reached.Load() || lookups.Load() != 2 || len(rec.Addrs) != 1 {
		t.Errorf("reached=%v, %d lookups, connected to %v", reached.Load(), lookups.Load(), rec.Addrs)
	}
}

func TestForbiddenAddressIsPassedOver(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t, name+". 60 IN A 10.9.9.9", name+". 60 IN AAAA fe80::1", atLoopback)
	rec, p := validate(t, config(ns, serveHTTP(t, text(200, keyAuthorization))), acme.HTTP01)
	wantPass(t, p)
	if len(rec.Addrs) != 1 {
		t.Errorf("Addrs = %v", rec.Addrs)
	}
}

func TestProxyFromTheEnvironmentIsIgnored(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	_, p := validate(t, config(newNameServer(t, atLoopback), serveHTTP(t, text(200, keyAuthorization))), acme.HTTP01)
	wantPass(t, p)
}

func TestOddQuestionsStayAtHome(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t)
	v, err := challenge.New(config(ns, 80))
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*acme.Validation){
		"IP as name":   func(q *acme.Validation) { q.Identifier.Type, q.Identifier.Value = "ip", "localhost" },
		"wildcard":     func(q *acme.Validation) { q.Identifier.Value = "*.example.com" },
		"upper case":   func(q *acme.Validation) { q.Identifier.Value = "WWW.example.com" },
		"dot":          func(q *acme.Validation) { q.Identifier.Value = "example.com." },
		"path":         func(q *acme.Validation) { q.Identifier.Value = "example.com/x" },
		"IPv4 as name": func(q *acme.Validation) { q.Identifier.Value = "127.0.0.1" },
		"empty":        func(q *acme.Validation) { q.Identifier.Value = "" },
		"token":        func(q *acme.Validation) { q.Token = "../../../../etc/passwd/xxxxxx" },
		"short token":  func(q *acme.Validation) { q.Token = "abc" },
		"other token":  func(q *acme.Validation) { q.KeyAuthorization = "x" + q.KeyAuthorization },
		"type":         func(q *acme.Validation) { q.Type = "smoke-signal-01" },
	} {
		q := validation(acme.HTTP01)
		change(&q)
		if _, p := v.Validate(t.Context(), q); p == nil || p.Status == 0 {
			t.Errorf("%s: %v", what, p)
		}
	}
	if n := ns.times(name + "./A"); n != 0 {
		t.Errorf("the DNS was asked %d times", n)
	}
}
