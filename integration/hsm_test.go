package integration

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/pkcs11pool/pkcs11test"
)

// A token is a PKCS#11 token, and what a process needs to reach it.
type token struct {
	module, label, pin, pinFile string
	environ                     []string
}

// uri says to init where keys are to be.
func (k token) uri() string {
	return "pkcs11:token=" + k.label + "?module-path=" + k.module + "&pin-source=" + k.pinFile
}

// withPIN keeps a PIN in a file, as no argument may hold one.
func (k token) withPIN(t testing.TB, pin string) token {
	t.Helper()
	k.pin, k.pinFile = pin, filepath.Join(t.TempDir(), "pin")
	if err := os.WriteFile(k.pinFile, []byte(pin+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return k
}

// newSoftHSM makes a token of SoftHSM in a folder of its own.
func newSoftHSM(t testing.TB) token {
	t.Helper()
	hsm, err := pkcs11test.New(t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	return token{module: hsm.Module, label: hsm.Take(t).Label, environ: []string{"SOFTHSM2_CONF=" + hsm.Conf}}.withPIN(t, pkcs11test.PIN)
}

// softHSM is where SoftHSM's module is.
func softHSM(t testing.TB) string {
	t.Helper()
	module, err := pkcs11test.Module()
	if err != nil {
		t.Fatal(err)
	}
	return module
}

// faulty puts a module before that of k which fails as its script says.
func (k token) faulty(t testing.TB) (token, *pkcs11test.Fault) {
	t.Helper()
	f, err := pkcs11test.MakeFault(t.TempDir(), k.module)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Script(t) }) // nothing hangs any more
	k.module = f.Module
	return k, f
}

// contractKept is for tests that kill nobody: of who is killed in a call the
// book never hears that it ended.
func contractKept(t testing.TB, f *pkcs11test.Fault) {
	t.Helper()
	if b := f.Book(t); b.Violations > 0 {
		t.Errorf("the contract of PKCS#11 was broken %d times, first by %s", b.Violations, b.Violation)
	}
}

// tool runs another client of the token.
func (k token) tool(t testing.TB, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), k.environ...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// An object is one that pkcs11-tool lists.
type object struct{ class, label, access string }

var (
	objectClass = regexp.MustCompile(`(?m)^(Private Key|Public Key|Certificate|Secret Key|Data) Object`)
	objectField = regexp.MustCompile(`(?m)^  (label|Access): +'?(.*?)'?$`)
)

// objects lists what is on the token, as another program sees it.
func (k token) objects(t testing.TB) (out []object) {
	t.Helper()
	list := k.tool(t, "pkcs11-tool", "--module", k.module, "--token-label", k.label, "--login", "--pin", k.pin, "--list-objects")
	at := objectClass.FindAllStringSubmatchIndex(list, -1)
	for i, m := range at {
		end := len(list)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		o := object{class: list[m[2]:m[3]]}
		for _, f := range objectField.FindAllStringSubmatch(list[m[0]:end], -1) {
			if f[1] == "label" {
				o.label = f[2]
			} else {
				o.access = f[2]
			}
		}
		out = append(out, o)
	}
	return out
}

// startHSM makes a CA whose keys are on a token, and serves it.
func startHSM(t testing.TB, dns dnsMock, k token, more ...string) *server {
	t.Helper()
	s := newHSMServer(t, dns, k, more...)
	s.start(t)
	return s
}

// newHSMServer makes the CA and does not serve it yet.
func newHSMServer(t testing.TB, dns dnsMock, k token, more ...string) *server {
	t.Helper()
	s := &server{dir: filepath.Join(t.TempDir(), "pki"), operator: fmt.Sprintf("127.0.0.1:%d", freePort(t)), http01: freePort(t)}
	web, tls := freePort(t), freePort(t)
	args := append([]string{
		"init", "--dir", s.dir, "--organization", "Example", "--external-host", "localhost", "--keys", k.uri(),
		"--listen-http", fmt.Sprintf("127.0.0.1:%d", web), "--listen-https", fmt.Sprintf("127.0.0.1:%d", tls), "--listen-operator", s.operator,
	}, more...)
	if out, errs, code := runIn(t, "", k.environ, args...); code != 0 {
		t.Fatalf("init: exit %d\n%s%s", code, out, errs)
	}
	addSections(t, configOf(s.dir), fmt.Sprintf(`
acme:
  validation: {http01_port: %d, resolver: %q, allow_private_addresses: true, allow: [127.0.0.0/8]}
crl: {after_revocation: 2s}
`, s.http01, dns.addr))
	s.args = []string{"serve", "--config", configOf(s.dir)}
	s.environ = append(os.Environ(), k.environ...)
	s.writeEnv(t, web, tls)
	return s
}

// addSections adds whole sections to a configuration file.
func addSections(t testing.TB, file, sections string) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(sections); err != nil {
		t.Fatal(err)
	}
}

// writeEnv writes what quickstart writes for the scripts of the clients.
func (s *server) writeEnv(t testing.TB, web, tls int) {
	t.Helper()
	root, issuing := filepath.Join(s.dir, "root.pem"), filepath.Join(s.dir, "issuing.pem")
	lines := []string{
		"ACME_DIRECTORY=https://localhost:" + strconv.Itoa(tls) + "/acme/directory",
		"CA_BUNDLE=" + root, "ROOT_PEM=" + root, "ISSUER_PEM=" + issuing,
		"HTTP01_PORT=" + strconv.Itoa(s.http01),
		"OCSP_URL=http://localhost:" + strconv.Itoa(web) + "/ocsp",
	}
	if err := os.WriteFile(filepath.Join(s.dir, "quickstart.env"), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// crlFromIssuer asks the running program where its CRL is.
func (s *server) crlFromIssuer(t testing.TB) {
	t.Helper()
	out, errs, code := run(t, "issuer", "list", "--json", "--config", configOf(s.dir))
	var issuer struct {
		URL string `json:"crl_url"`
	}
	if err := json.Unmarshal([]byte(out), &issuer); code != 0 || err != nil || issuer.URL == "" {
		t.Fatalf("issuer list: exit %d, %v\n%s%s", code, err, out, errs)
	}
	s.env["CRL_URL"] = issuer.URL
}

// everyKeyStays holds the server to having no private key but the listener's
// outside its token, and none in it that could leave.
func (s *server) everyKeyStays(t *testing.T, k token) {
	t.Helper()
	private := 0
	for _, o := range k.objects(t) {
		if o.class != "Private Key" {
			continue
		}
		private++
		if o.access != "sensitive, always sensitive, never extractable, local" {
			t.Errorf("private key %q: %s", o.label, o.access)
		}
	}
	if private != 3 {
		t.Errorf("%d private keys on the token: want those of the root, the issuing CA and its OCSP responder", private)
	}
	err := filepath.WalkDir(s.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || d.Name() == "https.pem" {
			return err
		}
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), "PRIVATE KEY") {
			t.Errorf("%s holds a private key", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestRealClientsWithKeysOnAToken has each client do its whole job while every
// key of the CA is on a token.
func TestRealClientsWithKeysOnAToken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, root, issuing string
		acme, status        []string
	}{
		{
			"ECDSA", "ecdsa-p384", "ecdsa-p256",
			[]string{"acme-certbot", "acme-lego-http01"},
			[]string{"ocsp-openssl", "ocsp-http", "ocsp-gnutls", "ocsp-strongswan", "ocsp-stapling-nginx", "crl-openssl", "crl-gnutls", "crl-strongswan"},
		},
		{
			"RSA", "rsa-3072", "rsa-2048",
			[]string{"acme-lego-http01"},
			[]string{"ocsp-openssl", "ocsp-gnutls", "ocsp-strongswan", "crl-openssl", "crl-gnutls", "crl-strongswan"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			k, dns := newSoftHSM(t), startDNS(t)
			s := startHSM(t, dns, k, "--root-key-algorithm", c.root, "--issuing-key-algorithm", c.issuing)
			s.crlFromIssuer(t)
			runClients(t, s, dns, c.acme...)
			s.toAskAbout(t)
			runClients(t, s, dns, c.status...)
			s.env["HSM_TOKEN_LABEL"], s.env["HSM_PIN"], s.env["HSM_KEY_LABEL"] = k.label, k.pin, "issuing"
			s.env["SOFTHSM2_CONF"] = strings.TrimPrefix(k.environ[0], "SOFTHSM2_CONF=")
			runClients(t, s, dns, "hsm-softhsm2")
			s.everyKeyStays(t, k)
			verifyAudit(t, s)
		})
	}
}

// toAskAbout gets two certificates for the scripts that ask for status, of
// which the operator revokes one.
func (s *server) toAskAbout(t *testing.T) {
	t.Helper()
	u := newSubscriber(t, s)
	serveChallenges(t, s.http01, u.client)
	for _, which := range []string{"GOOD", "REVOKED"} {
		chain, key, err := u.finalize(t.Context(), u.ready())
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		s.env[which+"_PEM"] = writePEM(t, "CERTIFICATE", chain[0])
		s.env[which+"_KEY"] = writePEM(t, "PRIVATE KEY", private)
		if which == "GOOD" {
			continue
		}
		cert, err := x509.ParseCertificate(chain[0])
		if err != nil {
			t.Fatal(err)
		}
		s.revoke(t, cert, "superseded")
	}
}

func writePEM(t *testing.T, kind string, der []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// revoke is the operator's.
func (s *server) revoke(t *testing.T, c *x509.Certificate, reason string) {
	t.Helper()
	serial := fmt.Sprintf("%034x", c.SerialNumber)
	if out, errs, code := run(t, "cert", "revoke", serial, "--reason", reason, "--yes", "--config", configOf(s.dir)); code != 0 {
		t.Fatalf("cert revoke: exit %d\n%s%s", code, out, errs)
	}
}

// command is what starts the server.
func (s *server) command(t testing.TB) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(secsy(t), s.args...)
	cmd.Env = s.environ
	return cmd
}
