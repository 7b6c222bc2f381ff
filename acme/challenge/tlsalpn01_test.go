package challenge_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/acme/challenge"
	"github.com/secsy-pki/secsy-pki/ca"
)

var oidAcmeIdentifier = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 31}

func octets(b []byte) []byte {
	der, err := asn1.Marshal(b)
	if err != nil {
		panic(err)
	}
	return der
}

// acmeIdentifier is the right extension for keyAuthorization.
func acmeIdentifier() pkix.Extension {
	sum := sha256.Sum256([]byte(keyAuthorization))
	return pkix.Extension{Id: oidAcmeIdentifier, Critical: true, Value: octets(sum[:])}
}

// A challengeCert is what a client of tls-alpn-01 makes, for tests to spoil.
type challengeCert struct {
	template x509.Certificate
	parent   *x509.Certificate // nil: itself
	signer   *ecdsa.PrivateKey // nil: its own key
}

func rightCert(mutate ...func(*challengeCert)) func(t *testing.T) tls.Certificate {
	return func(t *testing.T) tls.Certificate {
		t.Helper()
		c := challengeCert{template: x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ACME Challenge"}, DNSNames: []string{name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtraExtensions: []pkix.Extension{acmeIdentifier()},
		}}
		for _, m := range mutate {
			m(&c)
		}
		key := newKey(t)
		if c.parent == nil {
			c.parent = &c.template
		}
		if c.signer == nil {
			c.signer = key
		}
		der, err := x509.CreateCertificate(rand.Reader, &c.template, c.parent, key.Public(), c.signer)
		if err != nil {
			t.Fatal(err)
		}
		return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// A tlsServer shows a certificate to all who come, and notes what they ask for.
type tlsServer struct {
	port int
	mu   sync.Mutex // guards seen
	seen []*tls.ClientHelloInfo
	more [][]byte // what was read after a handshake
}

func serveTLS(t *testing.T, host string, cert tls.Certificate, change ...func(*tls.Config)) *tlsServer {
	t.Helper()
	s := &tlsServer{}
	cfg := &tls.Config{NextProtos: []string{"acme-tls/1"}, MinVersion: tls.VersionTLS12}
	for _, c := range change {
		c(cfg)
	}
	cfg.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen = append(s.seen, hello)
		return &cert, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(20 * time.Second)) // no test waits for it
				conn := tls.Server(c, cfg)
				if conn.HandshakeContext(t.Context()) != nil {
					return
				}
				b := make([]byte, 100)
				n, _ := conn.Read(b)
				s.mu.Lock()
				defer s.mu.Unlock()
				s.more = append(s.more, b[:n])
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	s.port = l.Addr().(*net.TCPAddr).Port
	return s
}

func alpnConfig(t *testing.T, s *tlsServer) challenge.Config {
	t.Helper()
	cfg := config(newNameServer(t, atLoopback), 1)
	cfg.TLSPort = s.port
	return cfg
}

func TestRightChallengeCertificatePasses(t *testing.T) {
	t.Parallel()
	for what, make := range map[string]func(*testing.T) tls.Certificate{
		"as it should be":     rightCert(),
		"name in upper case":  rightCert(func(c *challengeCert) { c.template.DNSNames = []string{strings.ToUpper(name)} }),
		"expired":             rightCert(func(c *challengeCert) { c.template.NotAfter = time.Now().Add(-time.Minute) }),
		"no subject":          rightCert(func(c *challengeCert) { c.template.Subject = pkix.Name{} }),
		"other name as CN":    rightCert(func(c *challengeCert) { c.template.Subject.CommonName = "other.example" }),
		"CA and key usages":   rightCert(func(c *challengeCert) { c.template.IsCA, c.template.BasicConstraintsValid = true, true }),
		"other extensions":    rightCert(func(c *challengeCert) { c.template.OCSPServer = []string{"http://ocsp.example/"} }),
		"names not in a list": rightCert(func(c *challengeCert) { c.template.PermittedDNSDomains = []string{"example"} }),
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			cert := make(t)
			s := serveTLS(t, "127.0.0.1", cert)
			rec, p := validate(t, alpnConfig(t, s), acme.TLSALPN01)
			wantPass(t, p)
			sum := sha256.Sum256(cert.Certificate[0])
			if rec.Certificate != hex.EncodeToString(sum[:]) || len(rec.Addrs) != 1 {
				t.Errorf("record %+v", rec)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.seen) != 1 || s.seen[0].ServerName != name || len(s.seen[0].SupportedProtos) != 1 {
				t.Errorf("hellos %+v", s.seen)
			}
		})
	}
}

// TestDeviatingChallengeCertificatesAreNamed has every way in which other
// servers were led to take a certificate that proves nothing.
func TestDeviatingChallengeCertificatesAreNamed(t *testing.T) {
	t.Parallel()
	extension := func(e ...pkix.Extension) func(*challengeCert) {
		return func(c *challengeCert) { c.template.ExtraExtensions = e }
	}
	with := func(change func(*pkix.Extension)) func(*challengeCert) {
		e := acmeIdentifier()
		change(&e)
		return extension(e)
	}
	for what, c := range map[string]struct {
		spoil  func(*challengeCert)
		detail string
	}{
		"two names":        {func(c *challengeCert) { c.template.DNSNames = append(c.template.DNSNames, "other.example") }, "exactly one alternative name"},
		"same name twice":  {func(c *challengeCert) { c.template.DNSNames = append(c.template.DNSNames, name) }, "exactly one alternative name"},
		"name and address": {func(c *challengeCert) { c.template.IPAddresses = []net.IP{{127, 0, 0, 1}} }, "exactly one alternative name"},
		"name and mail":    {func(c *challengeCert) { c.template.EmailAddresses = []string{"a@example.com"} }, "exactly one alternative name"},
		"address alone": {func(c *challengeCert) {
			c.template.DNSNames, c.template.IPAddresses = nil, []net.IP{{127, 0, 0, 1}}
		}, "for the address 7f000001"},
		"mail alone": {func(c *challengeCert) {
			c.template.DNSNames, c.template.EmailAddresses = nil, []string{name}
		}, "neither dNSName nor iPAddress"},
		"no names":         {func(c *challengeCert) { c.template.DNSNames, c.template.Subject.CommonName = nil, name }, "no extension of alternative names"},
		"other name":       {func(c *challengeCert) { c.template.DNSNames = []string{"evil.example"} }, `for the name "evil.example", not for ` + name},
		"wildcard":         {func(c *challengeCert) { c.template.DNSNames = []string{"*.example.com"} }, `for the name "*.example.com"`},
		"parent":           {func(c *challengeCert) { c.template.DNSNames = []string{"example.com"} }, `for the name "example.com"`},
		"no extension":     {extension(), "no extension acmeIdentifier"},
		"not critical":     {with(func(e *pkix.Extension) { e.Critical = false }), "not critical"},
		"draft's number":   {with(func(e *pkix.Extension) { e.Id = append(asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1}, 30, 1) }), "old draft"},
		"other key":        {with(func(e *pkix.Extension) { e.Value = octets(make([]byte, 32)) }), "another key authorization: 0000"},
		"31 octets":        {with(func(e *pkix.Extension) { e.Value = octets(make([]byte, 31)) }), "not an OCTET STRING of 32"},
		"bare digest":      {with(func(e *pkix.Extension) { e.Value = e.Value[2:] }), "not an OCTET STRING of 32"},
		"more after it":    {with(func(e *pkix.Extension) { e.Value = append(e.Value, 5, 0) }), "not an OCTET STRING of 32"},
		"key auth in text": {with(func(e *pkix.Extension) { e.Value = octets([]byte(keyAuthorization)) }), "not an OCTET STRING of 32"},
		"issued by another": {func(c *challengeCert) {
			key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			c.parent = &x509.Certificate{Subject: pkix.Name{CommonName: "Some CA"}}
			c.signer = key
		}, "not signed by its own key"},
		"signed by another of the same name": {func(c *challengeCert) {
			key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			c.parent = &x509.Certificate{Subject: c.template.Subject}
			c.signer = key
		}, "not signed by its own key"},
		"own key under another's name": {func(c *challengeCert) {
			c.parent = &x509.Certificate{Subject: pkix.Name{CommonName: "Some CA"}}
		}, "not signed by its own key"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := serveTLS(t, "127.0.0.1", rightCert(c.spoil)(t))
			rec, p := validate(t, alpnConfig(t, s), acme.TLSALPN01)
			wantProblem(t, p, acme.Unauthorized, c.detail)
			if rec.Certificate == "" {
				t.Error("the record does not say which certificate was refused")
			}
		})
	}
}

func TestHandshakesThatDoNotFitAreNamed(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		change func(*tls.Config)
		typ    acme.ProblemType
		detail string
	}{
		"no ALPN":    {func(c *tls.Config) { c.NextProtos = nil }, acme.Unauthorized, "did not agree to the protocol acme-tls/1"},
		"other ALPN": {func(c *tls.Config) { c.NextProtos = []string{"h2", "http/1.1"} }, acme.TLSError, "no application protocol"},
		"TLS 1.1": {func(c *tls.Config) {
			c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
		}, acme.TLSError, "version"},
		"an alert": {func(c *tls.Config) {
			c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, errors.New("no") }
		}, acme.TLSError, "alert"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := serveTLS(t, "127.0.0.1", rightCert()(t), c.change)
			_, p := validate(t, alpnConfig(t, s), acme.TLSALPN01)
			wantProblem(t, p, c.typ, c.detail)
		})
	}
}

func TestTLS12IsEnough(t *testing.T) {
	t.Parallel()
	s := serveTLS(t, "127.0.0.1", rightCert()(t), func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 })
	_, p := validate(t, alpnConfig(t, s), acme.TLSALPN01)
	wantPass(t, p)
}

func TestNothingIsSentAfterTheHandshake(t *testing.T) {
	t.Parallel()
	s := serveTLS(t, "127.0.0.1", rightCert()(t))
	_, p := validate(t, alpnConfig(t, s), acme.TLSALPN01)
	wantPass(t, p)
	for range 1000 { // until the server has noticed that the client left
		s.mu.Lock()
		done := len(s.more) > 0
		s.mu.Unlock()
		if done {
			break
		}
		time.Sleep(time.Millisecond)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.more) != 1 || len(s.more[0]) != 0 {
		t.Errorf("the server read %q", s.more)
	}
}

func TestClosedPortOfTLSIsAConnectionProblem(t *testing.T) {
	t.Parallel()
	srv, port := serve(t, "127.0.0.1", 0, text(200, ""))
	_ = srv.Listener.Close()
	cfg := config(newNameServer(t, atLoopback), 1)
	cfg.TLSPort = port
	_, p := validate(t, cfg, acme.TLSALPN01)
	wantProblem(t, p, acme.Connection, "connection refused")
	cfg.TLSPort = serveHTTP(t, text(200, "hello"))
	_, p = validate(t, cfg, acme.TLSALPN01)
	wantProblem(t, p, acme.TLSError, "does not speak TLS")
}

func ipValidation(typ acme.ChallengeType, addr string) acme.Validation {
	q := validation(typ)
	q.Identifier = ca.Identifier{Type: ca.IP, Value: addr}
	return q
}

// TestAddressesAreProvenByTLS is RFC 8738 §6: the handshake asks for the name of
// the reverse lookup, the certificate is for the address.
func TestAddressesAreProvenByTLS(t *testing.T) {
	t.Parallel()
	for addr, sni := range map[string]string{
		"127.0.0.1": "1.0.0.127.in-addr.arpa",
		"::1":       "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.ip6.arpa",
	} {
		forAddr := func(c *challengeCert) { c.template.DNSNames, c.template.IPAddresses = nil, []net.IP{net.ParseIP(addr)} }
		s := serveTLS(t, addr, rightCert(forAddr)(t))
		ns := newNameServer(t)
		cfg := config(ns, 1)
		cfg.TLSPort = s.port
		rec, p := mustNew(t, cfg).Validate(t.Context(), ipValidation(acme.TLSALPN01, addr))
		wantPass(t, p)
		if len(rec.Addrs) != 1 || rec.Addrs[0] != netip.MustParseAddr(addr) {
			t.Errorf("connected to %v", rec.Addrs)
		}
		if s.seen[0].ServerName != sni {
			t.Errorf("%s: SNI %s, want %s", addr, s.seen[0].ServerName, sni)
		}
		if len(ns.asked) != 0 {
			t.Errorf("the DNS was asked: %v", ns.asked)
		}
		// A certificate for the reverse name, or for the address in text, is none.
		for _, wrong := range []string{sni, "localhost"} {
			s := serveTLS(t, addr, rightCert(func(c *challengeCert) { c.template.DNSNames = []string{wrong} })(t))
			cfg.TLSPort = s.port
			_, p := mustNew(t, cfg).Validate(t.Context(), ipValidation(acme.TLSALPN01, addr))
			wantProblem(t, p, acme.Unauthorized, "for the name")
		}
	}
}

// TestAddressesAreProvenByHTTP is RFC 8738 §5: the address is the host, IPv6 in brackets.
func TestAddressesAreProvenByHTTP(t *testing.T) {
	t.Parallel()
	for addr, host := range map[string]string{"127.0.0.1": "127.0.0.1", "::1": "[::1]"} {
		hosts := make(chan string, 1)
		srv, port := serve(t, addr, 0, recordHost(hosts))
		srv.Start()
		ns := newNameServer(t)
		rec, p := mustNew(t, config(ns, port)).Validate(t.Context(), ipValidation(acme.HTTP01, addr))
		wantPass(t, p)
		want := host + ":" + strconv.Itoa(port)
		if got := <-hosts; got != want || rec.URLs[0] != "http://"+want+challengePath {
			t.Errorf("Host %s, URL %s; want %s", got, rec.URLs[0], want)
		}
		if len(ns.asked) != 0 {
			t.Errorf("the DNS was asked: %v", ns.asked)
		}
	}
}

// TestAnAddressMayRedirectToItselfAlone lets a server move from http to https,
// and nobody to another address.
func TestAnAddressMayRedirectToItselfAlone(t *testing.T) {
	t.Parallel()
	secure, httpsPort := serve(t, "127.0.0.1", 0, text(200, keyAuthorization))
	secure.StartTLS()
	to := "https://127.0.0.1:" + strconv.Itoa(httpsPort) + "/x"
	cfg := config(newNameServer(t), serveHTTP(t, redirects(map[string]string{challengePath: to})))
	cfg.HTTPSPort = httpsPort
	_, p := mustNew(t, cfg).Validate(t.Context(), ipValidation(acme.HTTP01, "127.0.0.1"))
	wantPass(t, p)
	cfg = config(newNameServer(t), serveHTTP(t, redirects(map[string]string{challengePath: "http://127.0.0.2/x"})))
	_, p = mustNew(t, cfg).Validate(t.Context(), ipValidation(acme.HTTP01, "127.0.0.1"))
	wantProblem(t, p, acme.Connection, "IP address")
}

// TestOddAddressesStayAtHome holds what never leads to a connection.
func TestOddAddressesStayAtHome(t *testing.T) {
	t.Parallel()
	v := mustNew(t, config(newNameServer(t), 80))
	for _, addr := range []string{
		"", "localhost", "127.1", "0x7f.0.0.1", "127.0.0.01", "::FFFF", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1", "fe80::1%lo", "[::1]", "127.0.0.1:80",
	} {
		for _, typ := range []acme.ChallengeType{acme.HTTP01, acme.TLSALPN01} {
			rec, p := v.Validate(t.Context(), ipValidation(typ, addr))
			wantProblem(t, p, acme.Malformed, "not an address")
			if len(rec.Addrs) > 0 {
				t.Errorf("%q: connected to %v", addr, rec.Addrs)
			}
		}
	}
	_, p := v.Validate(t.Context(), ipValidation(acme.DNS01, "127.0.0.1"))
	wantProblem(t, p, acme.UnsupportedIdentifier, "can't be validated this way")
	for _, typ := range []acme.ChallengeType{acme.HTTP01, acme.TLSALPN01} {
		q := validation(typ)
		q.Wildcard = true
		_, p := v.Validate(t.Context(), q)
		wantProblem(t, p, acme.Malformed, "wildcard")
	}
}
