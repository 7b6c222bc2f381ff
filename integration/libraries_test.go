package integration

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/acme"
)

// unlimited are the lines of rate_limit for clients that ask, from one address,
// as fast as they can.
const unlimited = "  overrides: [{source: 127.0.0.0/8, exempt: true}]\n  global: {rate: 0}\n  per_account: {rate: 0}\n"

// goIn runs the go command in the module of clients, whose libraries are no part
// of the program, nor of its module.
func goIn(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = "clients"
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestLegosLibraryDoesItsWholeJob drives the library that Traefik and others use.
func TestLegosLibraryDoesItsWholeJob(t *testing.T) {
	t.Parallel()
	bin := filepath.Join(t.TempDir(), "lego")
	goIn(t, "build", "-o", bin, "./lego")
	dns := startDNS(t)
	s := limited(t, quickstart{dns: dns}, unlimited)
	cmd := exec.CommandContext(t.Context(), bin)
	cmd.Env = append(os.Environ(), "DNS_ADMIN_URL="+dns.admin, "DNS_SERVER="+dns.addr)
	for k, v := range s.env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "\nPASS lego-library: ") {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Log(strings.TrimSpace(string(out[strings.LastIndex(string(out), "PASS"):])))
	verifyAudit(t, s)
}

// Tests of eggsampler/acme that say by themselves that the server has not what they try.
var eggsamplerSkips = []string{"TestClient_FetchAllCertificates"} // there is one chain

// TestEggsamplersOwnTestsPass runs the tests of github.com/eggsampler/acme/v3, the
// client that Boulder is tested with, against our directory. Two things are
// replaced in a copy of them: the address of the challenge server, and the end of
// TestMain, which runs no test where the directory is given.
func TestEggsamplersOwnTestsPass(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	http01 := freePort(t)
	dns := startDNS(t, "-http01", fmt.Sprintf("127.0.0.1:%d", http01))
	copied := filepath.Join(dir, "acme")
	if err := os.CopyFS(copied, os.DirFS(goIn(t, "list", "-m", "-f", "{{.Dir}}", "github.com/eggsampler/acme/v3"))); err != nil {
		t.Fatal(err)
	}
	replaceIn(t, filepath.Join(copied, "utility_test.go"), "http://localhost:8055", dns.admin)
	replaceIn(t, filepath.Join(copied, "utility_test.go"), "\t\treturn\n\t}\n\n\troots :=", "\t\tos.Exit(m.Run())\n\t}\n\n\troots :=")
	replaceIn(t, filepath.Join(copied, "autocert_test.go"), "http://localhost:8055", dns.admin)
	bin := filepath.Join(dir, "eggsampler.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", bin, ".")
	build.Dir = copied
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}

	s := startQuickstart(t, quickstart{dns: dns, http01: http01})
	s.stop()
	setSection(t, configOf(s.dir), "rate_limit:", unlimited)
	setSection(t, configOf(s.dir), "acme:", `  terms_of_service: https://ca.example/terms
  challenges: [http-01, dns-01, dns-account-01]
  profiles: [{name: tls-server, description: TLS servers}]
`)
	s.start(t)
	trust(t, s, filepath.Join(dir, "trust", "test", "certs", "pebble.minica.pem"))
	cmd := exec.CommandContext(t.Context(), bin, "-test.v", "-test.timeout=5m")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "ACME_DIRECTORY="+s.env["ACME_DIRECTORY"], "ACME_STRICT=1", "SSL_CERT_FILE="+s.env["CA_BUNDLE"],
		"PEBBLE_PATH="+filepath.Join(dir, "trust"), "BOULDER_PATH="+filepath.Join(dir, "none"))
	out, err := cmd.CombinedOutput()
	verdicts := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (\w+)`).FindAllStringSubmatch(string(out), -1) {
		verdicts[m[1]] = append(verdicts[m[1]], m[2])
	}
	slices.Sort(verdicts["SKIP"])
	if err != nil || len(verdicts["PASS"]) < 60 || !slices.Equal(verdicts["SKIP"], eggsamplerSkips) {
		t.Errorf("%v; %d passed, skipped %q, failed %q\n%s", err, len(verdicts["PASS"]), verdicts["SKIP"], verdicts["FAIL"], out)
	}
	t.Logf("%d passed", len(verdicts["PASS"]))
}

// replaceIn replaces text in a file that is of somebody else, and has to have it.
func replaceIn(t *testing.T, file, from, to string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), from) {
		t.Fatalf("%s has no %q", file, from)
	}
	if err := os.Chmod(file, 0o600); err != nil { // modules are kept read-only
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(b), from, to)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// trust writes what issued certificates are trusted by to a file.
func trust(t *testing.T, s *server, file string) {
	t.Helper()
	pem, err := os.ReadFile(s.env["ROOT_PEM"])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, pem, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A goClient is golang.org/x/crypto/acme, which autocert and many others are, and
// what answers its challenges.
type goClient struct {
	*acme.Client
	t     *testing.T
	dns   dnsMock
	certs sync.Map // of tls-alpn-01, by name
}

// TestTheGoProjectsClientDoesItsWholeJob has it do all that it can.
func TestTheGoProjectsClientDoesItsWholeJob(t *testing.T) {
	t.Parallel()
	dns := startDNS(t)
	s := limited(t, quickstart{dns: dns}, unlimited)
	ctx := t.Context()
	c := &goClient{t: t, dns: dns, Client: &acme.Client{Key: p256(t), DirectoryURL: s.env["ACME_DIRECTORY"], HTTPClient: s.client(t)}}
	must := func(doing string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", doing, err)
		}
	}
	account, err := c.Register(ctx, &acme.Account{Contact: []string{"mailto:a@example.com"}}, acme.AcceptTOS)
	must("registering", err)
	if _, err := c.Register(ctx, &acme.Account{}, acme.AcceptTOS); !errors.Is(err, acme.ErrAccountAlreadyExists) {
		t.Errorf("registering again: %v", err)
	}
	found, err := c.GetReg(ctx, "")
	must("finding the account", err)
	if found.URI != account.URI {
		t.Errorf("the account is %s, and was %s", found.URI, account.URI)
	}
	found.Contact = []string{"mailto:b@example.com"}
	_, err = c.UpdateReg(ctx, found)
	must("updating the account", err)

	serveChallenges(t, s.http01, c.Client)
	serveALPN(t, s.tlsALPN, c)
	leaf, key := c.issue("http-01", "go.example.com", "www.go.example.com")
	must("revoking by the account", c.RevokeCert(ctx, nil, leaf, acme.CRLReasonSuperseded))
	must("revoking again, which this client takes for done", c.RevokeCert(ctx, nil, leaf, acme.CRLReasonSuperseded))
	_ = key
	leaf, key = c.issue("dns-01", "go.example.com", "*.go.example.com")
	must("revoking by the certificate's key", c.RevokeCert(ctx, key, leaf, acme.CRLReasonKeyCompromise))
	c.issue("tls-alpn-01", "alpn.go.example.com")

	next := p256(t)
	must("changing the key", c.AccountKeyRollover(ctx, next))
	c.issue("http-01", "after.go.example.com")

	order, err := c.AuthorizeOrder(ctx, acme.DomainIDs("given-up.go.example.com"))
	must("ordering", err)
	must("deactivating an authorization", c.RevokeAuthorization(ctx, order.AuthzURLs[0]))
	if order, err = c.GetOrder(ctx, order.URI); err != nil || order.Status != acme.StatusInvalid {
		t.Errorf("the order of an authorization that was given up: %v, %v", order, err)
	}
	must("deactivating the account", c.DeactivateReg(ctx))
	if _, err := c.AuthorizeOrder(ctx, acme.DomainIDs("late.go.example.com")); err == nil {
		t.Error("an order after deactivation")
	}
	verifyAudit(t, s)
}

// TestTheGoProjectsClientIsBound has it register where accounts are to be bound
// to others, with the key and without.
func TestTheGoProjectsClientIsBound(t *testing.T) {
	t.Parallel()
	s := startQuickstart(t, quickstart{})
	s.stop()
	setSection(t, configOf(s.dir), "acme:", "  external_account_binding: required\n")
	s.start(t)
	kid, mac := s.eabKey(t)
	key, err := base64.RawURLEncoding.DecodeString(mac)
	if err != nil {
		t.Fatal(err)
	}
	register := func(b *acme.ExternalAccountBinding) (*acme.Account, error) {
		c := &acme.Client{Key: p256(t), DirectoryURL: s.env["ACME_DIRECTORY"], HTTPClient: s.client(t)}
		return c.Register(t.Context(), &acme.Account{ExternalAccountBinding: b}, acme.AcceptTOS)
	}
	refused := func(what, typ string, b *acme.ExternalAccountBinding) {
		t.Helper()
		_, err := register(b)
		if p, ok := errors.AsType[*acme.Error](err); !ok || p.ProblemType != "urn:ietf:params:acme:error:"+typ {
			t.Errorf("%s: %v; want %s", what, err, typ)
		}
	}
	refused("without a binding", "externalAccountRequired", nil)
	refused("with another key", "unauthorized", &acme.ExternalAccountBinding{KID: kid, Key: make([]byte, len(key))})
	refused("with a key of nobody", "unauthorized", &acme.ExternalAccountBinding{KID: "nobody", Key: key})
	a, err := register(&acme.ExternalAccountBinding{KID: kid, Key: key})
	if err != nil || a.Status != acme.StatusValid {
		t.Fatalf("with the key: %v, %v", a, err)
	}
	refused("with a key that was used", "unauthorized", &acme.ExternalAccountBinding{KID: kid, Key: key})
	verifyAudit(t, s)
}

// issue orders, proves by one type of challenge, and has the certificate.
func (c *goClient) issue(typ string, names ...string) (leaf []byte, key crypto.Signer) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	fatal := func(doing string, err error) {
		c.t.Helper()
		if err != nil {
			c.t.Fatalf("%s, %q by %s: %v", doing, names, typ, err)
		}
	}
	order, err := c.AuthorizeOrder(ctx, acme.DomainIDs(names...))
	fatal("ordering", err)
	for _, u := range order.AuthzURLs {
		z, err := c.GetAuthorization(ctx, u)
		fatal("reading", err)
		if z.Status == acme.StatusValid {
			continue // from an order before
		}
		i := slices.IndexFunc(z.Challenges, func(ch *acme.Challenge) bool { return ch.Type == typ })
		if i < 0 {
			c.t.Fatalf("no %s for %s", typ, z.Identifier.Value)
		}
		fatal("preparing", c.prepare(ctx, z.Challenges[i], z.Identifier.Value))
		_, err = c.Accept(ctx, z.Challenges[i])
		fatal("accepting", err)
		_, err = c.WaitAuthorization(ctx, u)
		fatal("proving", err)
	}
	order, err = c.WaitOrder(ctx, order.URI)
	fatal("waiting", err)
	mine := p256(c.t)
	chain, _, err := c.CreateOrderCert(ctx, order.FinalizeURL, csrOf(c.t, mine, x509.CertificateRequest{DNSNames: names}), true)
	fatal("finalizing", err)
	cert, err := x509.ParseCertificate(chain[0])
	fatal("parsing", err)
	for _, n := range names {
		fatal("checking", cert.VerifyHostname(strings.Replace(n, "*", "any", 1)))
	}
	return chain[0], mine
}

func (c *goClient) prepare(ctx context.Context, ch *acme.Challenge, name string) error {
	switch ch.Type {
	case "dns-01":
		v, err := c.DNS01ChallengeRecord(ch.Token)
		if err != nil {
			return err
		}
		body := fmt.Sprintf(`{"host":"_acme-challenge.%s.","value":"%s"}`, name, v)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.dns.admin+"/set-txt", strings.NewReader(body))
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		return res.Body.Close()
	case "tls-alpn-01":
		cert, err := c.TLSALPN01ChallengeCert(ch.Token, name)
		c.certs.Store(name, &cert)
		return err
	}
	return nil
}

// serveALPN answers tls-alpn-01 with what prepare made before.
func serveALPN(t *testing.T, port int, c *goClient) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port), &tls.Config{
		NextProtos: []string{acme.ALPNProto},
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if cert, ok := c.certs.Load(h.ServerName); ok {
				return cert.(*tls.Certificate), nil
			}
			return nil, fmt.Errorf("no certificate for %q", h.ServerName)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}()
		}
	}()
}
