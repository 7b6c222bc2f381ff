package challenge_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/acme/challenge"
	"github.com/secsy-pki/secsy-pki/ca"
)

const (
	name             = "www.example.com"
	token            = "evaGxfADs6pSRb2LAv9IZf17Dt3juxGJ-PCt92wr-oA"
	keyAuthorization = token + ".9jg46WB3rR_AHD-EBXdN7cBkH1WOu0tA3M9fm21mqTI"
	challengePath    = "/.well-known/acme-challenge/" + token
)

// dnsText is the TXT record that dns-01 looks for.
func dnsText() string {
	sum := sha256.Sum256([]byte(keyAuthorization))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// A nameServer answers from records in zone file form.
type nameServer struct {
	addr string

	mu      sync.Mutex // guards what follows
	first   func(w dns.ResponseWriter, q *dns.Msg, tcp bool) bool
	records []dns.RR
	asked   map[string]int // "name/TYPE"
}

func newNameServer(t *testing.T, records ...string) *nameServer {
	t.Helper()
	s := &nameServer{asked: make(map[string]int)}
	s.add(t, records...)
	udp, tcp := listenBoth(t)
	s.addr = udp.LocalAddr().String()
	for _, srv := range []*dns.Server{{PacketConn: udp, Handler: s}, {Listener: tcp, Handler: s}} {
		started := make(chan struct{})
		srv.NotifyStartedFunc = func() { close(started) }
		done := make(chan struct{})
		go func() { defer close(done); _ = srv.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { _ = srv.Shutdown(); <-done })
	}
	return s
}

// listenBoth finds a port that is free for both.
func listenBoth(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	var lc net.ListenConfig
	for range 20 {
		udp, err := lc.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		tcp, err := lc.Listen(t.Context(), "tcp", udp.LocalAddr().String())
		if err == nil {
			return udp, tcp
		}
		_ = udp.Close()
	}
	t.Fatal("no port is free for UDP and TCP")
	return nil, nil
}

func (s *nameServer) add(t *testing.T, records ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range records {
		rr, err := dns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		s.records = append(s.records, rr)
	}
}

// handle sets what goes first on every question, and reports whether it has answered.
func (s *nameServer) handle(first func(w dns.ResponseWriter, q *dns.Msg, tcp bool) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first = first
}

func (s *nameServer) times(question string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[question]
}

func (s *nameServer) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	s.mu.Lock()
	s.asked[q.Question[0].Name+"/"+dns.TypeToString[q.Question[0].Qtype]]++
	first := s.first
	s.mu.Unlock()
	_, tcp := w.RemoteAddr().(*net.TCPAddr)
	if first != nil && first(w, q, tcp) {
		return
	}
	m := s.answer(q)
	if !tcp {
		m.Truncate(1232)
	}
	_ = w.WriteMsg(m) // a client that left is the test's concern
}

// answer is what a recursive resolver says: the CNAMEs on the way, and the records.
func (s *nameServer) answer(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	s.mu.Lock()
	defer s.mu.Unlock()
	owner, exists := q.Question[0].Name, false
	for hop := 0; hop < 40; hop++ {
		next := ""
		for _, rr := range s.records {
			h := rr.Header()
			if h.Name != owner {
				continue
			}
			exists = true
			if c, ok := rr.(*dns.CNAME); ok {
				next = c.Target
				m.Answer = append(m.Answer, dns.Copy(rr)) // packing writes to it
			} else if h.Rrtype == q.Question[0].Qtype {
				m.Answer = append(m.Answer, dns.Copy(rr)) // packing writes to it
			}
		}
		if next == "" {
			break
		}
		owner = next
	}
	if !exists {
		m.Rcode = dns.RcodeNameError
	}
	return m
}

// serve is an HTTP server at a loopback address, port 0 for any.
func serve(t *testing.T, host string, port int, h http.Handler) (srv *httptest.Server, at int) {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	srv = httptest.NewUnstartedServer(h)
	_ = srv.Listener.Close() // the one it came with
	srv.Listener = l
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	t.Cleanup(srv.Close)
	return srv, l.Addr().(*net.TCPAddr).Port
}

func serveHTTP(t *testing.T, h http.Handler) (port int) {
	t.Helper()
	srv, port := serve(t, "127.0.0.1", 0, h)
	srv.Start()
	return port
}

// text answers every request with the same.
func text(status int, body string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	})
}

// recordHost answers rightly and says which host was asked for.
func recordHost(hosts chan<- string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hosts <- r.Host
		_, _ = w.Write([]byte(keyAuthorization))
	})
}

func config(ns *nameServer, port int) challenge.Config {
	return challenge.Config{
		Resolver: ns.addr, HTTPPort: port, HTTPSPort: 1,
		Allow:      []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("::1/128")},
		DNSTimeout: 5 * time.Second, StepTimeout: 10 * time.Second, Timeout: 20 * time.Second, // no test waits for these
	}
}

func validation(typ acme.ChallengeType) acme.Validation {
	return acme.Validation{
		Type: typ, Identifier: ca.Identifier{Type: ca.DNS, Value: name},
		Token: token, KeyAuthorization: keyAuthorization, AccountID: "a",
	}
}

func validate(t *testing.T, cfg challenge.Config, typ acme.ChallengeType) (acme.ValidationRecord, *acme.Problem) {
	t.Helper()
	v, err := challenge.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	rec, p := v.Validate(t.Context(), validation(typ))
	if rec.Type != typ || rec.Name != name || rec.Resolver != cfg.Resolver || rec.At.IsZero() || rec.Took <= 0 {
		t.Errorf("incomplete record: %+v", rec)
	}
	return rec, p
}

func wantPass(t *testing.T, p *acme.Problem) {
	t.Helper()
	if p != nil {
		t.Errorf("refused: %v", p)
	}
}

func wantProblem(t *testing.T, p *acme.Problem, typ acme.ProblemType, detail string) {
	t.Helper()
	if p == nil {
		t.Error("passed")
		return
	}
	status := http.StatusBadRequest
	if typ == acme.Unauthorized || typ == acme.CAA {
		status = http.StatusForbidden
	}
	if p.Type != typ || p.Status != status || !bytes.Contains([]byte(p.Detail), []byte(detail)) {
		t.Errorf("problem %s %d %q, want %s %d with %q", p.Type, p.Status, p.Detail, typ, status, detail)
	}
}
