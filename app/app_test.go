package app

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/pkcs11pool/pkcs11test"
	"github.com/secsy-pki/secsy-pki/store"
)

// A buffer is a log that many write and a test reads.
type buffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// shortDir is a folder whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "app")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// newCA is a CA on ports of its own, in a folder of its own.
func newCA(t *testing.T) string {
	t.Helper()
	from, err := sampleCA()
	dir := filepath.Join(shortDir(t), "ca")
	if err == nil {
		err = os.CopyFS(dir, os.DirFS(from))
	}
	if err == nil { // CopyFS opens all to others
		err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			mode := os.FileMode(0o600)
			if err == nil && d.IsDir() {
				mode = 0o700
			}
			return errors.Join(err, os.Chmod(path, mode))
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// sampleCA makes the CA that newCA copies. Its keys take their time.
var sampleCA = sync.OnceValues(func() (string, error) {
	tmp, err := os.MkdirTemp("", "sample")
	if err != nil {
		return "", err
	}
	sampleFolder = tmp
	dir := filepath.Join(tmp, "ca")
	return dir, Init(context.Background(), sampleOptions(dir))
})

var sampleFolder string // a sweeper removes it

// hsm is where tests take tokens from.
var hsm *pkcs11test.HSM

func TestMain(m *testing.M) { pkcs11test.Main(sweeper{m}, &hsm, 16) }

// A sweeper runs tests and removes the sample.
type sweeper struct{ *testing.M }

func (s sweeper) Run() int {
	code := s.M.Run()
	if sampleFolder != "" {
		_ = os.RemoveAll(sampleFolder)
	}
	return code
}

func sampleOptions(dir string) InitOptions {
	c := config.Default()
	c.Listen.HTTP.Address, c.Listen.HTTP.ExternalURL = "127.0.0.1:0", "http://localhost"
	c.Listen.HTTPS.Address, c.Listen.HTTPS.ExternalURL = "127.0.0.1:0", "https://localhost"
	c.Listen.Operator.Address = "127.0.0.1:0"
	c.ACME.Validation.Resolver = "127.0.0.1:53"
	return InitOptions{Dir: dir, Config: c, Organization: "Example"}
}

func load(t *testing.T, dir string) *config.Config {
	t.Helper()
	c, err := config.Load(filepath.Join(dir, configFile))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// edit replaces text in the configuration of dir.
func edit(t *testing.T, dir string, oldnew ...string) {
	t.Helper()
	file := filepath.Join(dir, configFile)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(oldnew); i += 2 {
		if !strings.Contains(string(b), oldnew[i]) {
			t.Fatalf("no %q in\n%s", oldnew[i], b)
		}
	}
	if err := os.WriteFile(file, []byte(strings.NewReplacer(oldnew...).Replace(string(b))), 0o600); err != nil {
		t.Fatal(err)
	}
}

// built is a program that is opened and wired, but doesn't run.
func built(t *testing.T, dir string) *app {
	t.Helper()
	a := newApp(Options{Config: load(t, dir), ConfigPath: filepath.Join(dir, configFile), Stderr: new(buffer)})
	t.Cleanup(func() {
		if err := a.close(); err != nil {
			t.Error(err)
		}
	})
	if err := a.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.held.release()
	return a
}

func (a *app) logged() string { return a.opts.Stderr.(*buffer).String() }

// A running program of a test.
type running struct {
	at   Addresses
	log  *buffer
	stop func() error
}

func run(t *testing.T, dir string) running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan Addresses, 1), make(chan error, 1)
	r := running{log: new(buffer)}
	cfg := load(t, dir)
	go func() {
		done <- Run(ctx, Options{Config: cfg, Stderr: r.log, Ready: func(a Addresses) { ready <- a }})
	}()
	r.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = r.stop() })
	select {
	case r.at = <-ready:
	case err := <-done:
		done <- err
		t.Fatalf("it did not start: %v\n%s", err, r.log)
	}
	return r
}

// fails is the error of a start that must not succeed.
func fails(t *testing.T, cfg *config.Config, log io.Writer) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	return Run(ctx, Options{Config: cfg, Stderr: log, Ready: func(Addresses) {
		t.Error("it started")
		cancel()
	}})
}

func TestAProgramServesStopsAndServesAgain(t *testing.T) {
	t.Parallel()
	dir := newCA(t)
	pool := x509.NewCertPool()
	root, err := os.ReadFile(filepath.Join(dir, rootFile))
	if err != nil || !pool.AppendCertsFromPEM(root) {
		t.Fatalf("no root: %v", err)
	}
	var serials []string
	for range 2 {
		r := run(t, dir)
		client := &http.Client{Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: pool, ServerName: "localhost", MinVersion: tls.VersionTLS12},
			DisableKeepAlives: true,
		}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+r.at.HTTPS.String()+"/acme/directory", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode != http.StatusOK || !bytes.Contains(body, []byte("newOrder")) {
			t.Errorf("got %d, %s, %v", resp.StatusCode, body, err)
		}
		serials = append(serials, resp.TLS.PeerCertificates[0].SerialNumber.String())
		if err := r.stop(); err != nil {
			t.Errorf("stopping: %v", err)
		}
	}
	if serials[0] != serials[1] {
		t.Error("the https certificate was issued anew without need")
	}
}

func TestAStartThatFailsSaysNothingButItsError(t *testing.T) {
	t.Parallel()
	dir := newCA(t)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	cfg := load(t, dir)
	cfg.Listen.HTTPS.Address = config.Address(l.Addr().String())
	log := new(buffer)
	err = fails(t, cfg, log)
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("got %v", err)
	}
	if log.String() != "" {
		t.Errorf("it logged %s", log)
	}
	if r := run(t, dir); !strings.Contains(r.log.String(), "https certificate issued") {
		t.Errorf("a start that succeeds does not say what it did:\n%s", r.log)
	}
}

func TestWhatIsHeldBackComesBeforeTheWarning(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	h := new(held)
	base := slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	log := slog.New(heldHandler{base, h})
	ctx := t.Context()
	log.With("k", 1).InfoContext(ctx, "one")
	if b.Len() > 0 {
		t.Errorf("not held back: %s", &b)
	}
	log.WithGroup("g").WarnContext(ctx, "two", "k", 2)
	log.InfoContext(ctx, "three")
	log.DebugContext(ctx, "below the level")
	h.release()
	log.InfoContext(ctx, "four")
	want := "level=INFO msg=one k=1\nlevel=WARN msg=two g.k=2\nlevel=INFO msg=three\nlevel=INFO msg=four\n"
	if b.String() != want {
		t.Errorf("got\n%s", &b)
	}
}

func TestWhatIsHeldBackIsBounded(t *testing.T) {
	t.Parallel()
	h, n := new(held), 0
	log := slog.New(heldHandler{slog.NewTextHandler(writer(func(p []byte) (int, error) { n++; return len(p), nil }), nil), h})
	for range maxHeld {
		log.InfoContext(t.Context(), "x")
	}
	if n != 0 {
		t.Errorf("%d records came early", n)
	}
	log.InfoContext(t.Context(), "x")
	if n != maxHeld+1 {
		t.Errorf("%d records were written", n)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestServicesStopInReverseOnceTheOneAboveHasEnded(t *testing.T) {
	t.Parallel()
	a := newApp(Options{Config: config.Default(), Stderr: io.Discard})
	var mu sync.Mutex // guards order
	var order []string
	note := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, s)
	}
	for _, name := range []string{"low", "middle", "high"} {
		a.services = append(a.services, service{
			name: name, err: make(chan error, 1),
			run:  func(ctx context.Context) error { <-ctx.Done(); note(name + " ends"); return nil },
			last: func(ctx context.Context) error { note(name + " last"); return ctx.Err() },
		})
	}
	a.startServices()()
	want := []string{"high ends", "high last", "middle ends", "middle last", "low ends", "low last"}
	if !slices.Equal(order, want) {
		t.Errorf("got %q", order)
	}
}

func TestAServiceThatFailsEndsTheServing(t *testing.T) {
	t.Parallel()
	a := newApp(Options{Config: config.Default(), Stderr: io.Discard})
	broken := errors.New("broken")
	a.serve("good", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	a.serve("done", func(context.Context) error { return nil })
	a.serve("bad", func(context.Context) error { return broken })
	stop := a.startServices()
	defer stop()
	ctx, cancel := context.WithCancelCause(t.Context())
	a.watchServices(ctx, cancel)
	if err := context.Cause(ctx); !errors.Is(err, broken) || err.Error() != "running bad: broken" {
		t.Errorf("got %v", err)
	}
}

func TestEveryLineOfAnErrorNamesItsKey(t *testing.T) {
	t.Parallel()
	both := errors.Join(errors.New("b"), errors.Join(errors.New("c"), errors.New("a")))
	for want, err := range map[string]error{
		"profiles: a\nprofiles: b\nprofiles: c": both,
		"profiles: x":                           errors.New("x"),
	} {
		if got := underProfiles(err); got.Error() != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if underProfiles(nil) != nil {
		t.Error("no error became one")
	}
}

// remake is a certificate of the issuing CA's own key with other content.
func remake(t *testing.T, dir string, change func(*x509.Certificate)) {
	t.Helper()
	a := newApp(Options{Config: load(t, dir), Stderr: io.Discard})
	for _, step := range []func(context.Context) error{a.buildAdmission, a.openKeys} {
		if err := step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, issuingFile)
	cert, err := readCertificate(file)
	if err != nil {
		t.Fatal(err)
	}
	root, err := readCertificate(filepath.Join(dir, rootFile))
	if err != nil {
		t.Fatal(err)
	}
	key, err := a.keys.Key(t.Context(), rootLabel)
	if err != nil {
		t.Fatal(err)
	}
	change(cert)
	der, err := x509.CreateCertificate(rand.Reader, cert, root, cert.PublicKey, keys.Signer(t.Context(), key))
	if err != nil {
		t.Fatal(err)
	}
	if err := writeCertificate(file, der); err != nil {
		t.Fatal(err)
	}
}

// alternate gives the issuer an alternate chain, by a certificate like its own but
// for what change does.
func alternate(change func(*x509.Certificate)) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		own, err := os.ReadFile(filepath.Join(dir, issuingFile))
		if err != nil {
			t.Fatal(err)
		}
		remake(t, dir, change)
		err = os.Rename(filepath.Join(dir, issuingFile), filepath.Join(dir, "cross.pem"))
		if err = errors.Join(err, os.WriteFile(filepath.Join(dir, issuingFile), own, 0o600)); err != nil {
			t.Fatal(err)
		}
		edit(t, dir, "root: root.pem", "alternate_chains: [cross.pem]")
	}
}

func TestMistakesOfAnOperatorAreOneLineThatNamesThem(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	copyOf := func(from, to string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			b, err := os.ReadFile(filepath.Join(dir, from))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, to), b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		spoil func(*testing.T, string)
		want  []string
	}{
		"another certificate": {copyOf(rootFile, issuingFile), []string{"issuers[0] (issuing)", "is not the key of", issuingFile}},
		"no certificate":      {copyOf(configFile, issuingFile), []string{"issuers[0] (issuing)", issuingFile, "no CERTIFICATE"}},
		"two certificates": {func(t *testing.T, dir string) {
			b, err := os.ReadFile(filepath.Join(dir, issuingFile))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, issuingFile), append(b, b...), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, []string{issuingFile, "more than one"}},
		"no CA": {func(t *testing.T, dir string) {
			remake(t, dir, func(c *x509.Certificate) { c.IsCA, c.MaxPathLenZero, c.MaxPathLen = false, false, -1 })
		}, []string{"issuers[0] (issuing)", issuingFile, "not the certificate of a CA"}},
		"expired": {func(t *testing.T, dir string) {
			remake(t, dir, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) })
		}, []string{"issuers[0] (issuing)", issuingFile, "this machine's clock says"}},
		"clock is late": {func(t *testing.T, dir string) {
			remake(t, dir, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(day) })
		}, []string{"issuers[0] (issuing)", issuingFile, "this machine's clock says"}},
		"root in the chain": {func(t *testing.T, dir string) {
			edit(t, dir, "root: root.pem", "chain: [root.pem]")
		}, []string{"issuers[0] (issuing)", "chain[0]", rootFile, "leave it out"}},
		"strange chain": {func(t *testing.T, dir string) {
			edit(t, dir, "root: root.pem", "chain: [issuing.pem]")
		}, []string{"issuers[0] (issuing)", "chain[0]", issuingFile, "didn't sign"}},
		"root in an alternate chain": {func(t *testing.T, dir string) {
			edit(t, dir, "root: root.pem", "alternate_chains: [root.pem]")
		}, []string{"issuers[0] (issuing)", "alternate_chains[0]", rootFile, "not one of the issuer's name and key"}},
		"an alternate chain of the same name in other strings": {alternate(func(c *x509.Certificate) {
			c.RawSubject = bytes.ReplaceAll(c.RawSubject, []byte{0x13}, []byte{0x0c})
		}), []string{"issuers[0] (issuing)", "alternate_chains[0]", "cross.pem", "strings of other types", "x509toreq"}},
		"an alternate chain of no CA": {alternate(func(c *x509.Certificate) {
			c.IsCA, c.MaxPathLenZero, c.MaxPathLen = false, false, -1
		}), []string{"issuers[0] (issuing)", "alternate_chains[0]", "cross.pem", "not that of a CA"}},
		"an alternate chain by another key identifier": {alternate(func(c *x509.Certificate) {
			c.SubjectKeyId = []byte{0xca, 0xfe}
		}), []string{"issuers[0] (issuing)", "alternate_chains[0]", "cross.pem", "CAFE", "by which clients look for it"}},
		"a folder of the socket that is open to others": {func(t *testing.T, dir string) {
			if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // That is the mistake.
				t.Fatal(err)
			}
		}, []string{"open to others: run chmod 700 ", "socket"}},
		"no such roots of devices": {func(t *testing.T, dir string) {
			edit(t, dir, "\nkeys:", "\nprofiles: [{name: a, extended_key_usages: [clientAuth], identifiers: {permanent_identifiers: true}}]\nkeys:",
				"\nacme:\n", "\nacme:\n  challenges: [device-attest-01]\n  device_attestation: {tpm_roots: none.pem}\n")
		}, []string{"acme.device_attestation.tpm_roots", "none.pem", "no such file"}},
		"the same chain again": {func(t *testing.T, dir string) {
			edit(t, dir, "root: root.pem", "alternate_chains: [issuing.pem]")
		}, []string{"issuers[0] (issuing)", "alternate_chains[0]", issuingFile, "has this chain already"}},
		"no such root": {func(t *testing.T, dir string) {
			edit(t, dir, "\nkeys:", "\nprofiles: [{name: a, preferred_chain: Other Root}]\nkeys:")
		}, []string{"profiles[0].preferred_chain", "Other Root", "they lead to"}},
		"no key": {func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, keysFolder, issuingLabel+".pem")); err != nil {
				t.Fatal(err)
			}
		}, []string{"issuers[0] (issuing)", "opening key issuing"}},
		"no passphrase": {func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, passphraseFile)); err != nil {
				t.Fatal(err)
			}
		}, []string{"keys.passphrase", passphraseFile}},
		"passphrase open to others": {func(t *testing.T, dir string) {
			if err := os.Chmod(filepath.Join(dir, passphraseFile), 0o644); err != nil {
				t.Fatal(err)
			}
		}, []string{"keys.passphrase", passphraseFile, "0600"}},
		"no certificate for https": {func(t *testing.T, dir string) {
			edit(t, dir, "external_url: \"https://localhost\"", "external_url: \"https://localhost\"\n    files: {cert_file: x.pem, key_file: y.pem}")
		}, []string{"listen.https.files", "x.pem"}},
		"no database URL": {func(t *testing.T, dir string) {
			edit(t, dir, "\nkeys:", "\nstore:\n  engine: postgres\n  postgres: {url: {env: SECSY_TEST_UNSET}}\nkeys:")
		}, []string{"store.postgres.url", "SECSY_TEST_UNSET"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := newCA(t)
			c.spoil(t, dir)
			cfg, log := load(t, dir), new(buffer)
			for _, err := range []error{
				Check(t.Context(), cfg, nil, io.Discard),
				fails(t, cfg, log),
			} {
				if err == nil || strings.Contains(err.Error(), "\n") {
					t.Fatalf("got %v", err)
				}
				for _, w := range c.want {
					if !strings.Contains(err.Error(), w) {
						t.Errorf("%q does not say %q", err, w)
					}
				}
			}
			if log.String() != "" {
				t.Errorf("it logged %s", log)
			}
			if _, err := os.Stat(filepath.Join(dir, "operator.sock")); err == nil {
				t.Error("a socket is left")
			}
		})
	}
}

func TestAProfileThatCannotBeIssuedIsFoundAtStart(t *testing.T) {
	t.Parallel()
	// No public certificate is for a name below a domain that isn't public.
	dir := filepath.Join(shortDir(t), "ca")
	o := sampleOptions(dir)
	o.Country, o.RootCRLURL, o.RootCertURL = "DE", "http://pki.example.org/root.crl", "http://pki.example.org/root.cer"
	o.Config.Policy = config.PolicyPublic
	o.Config.ACME.CAAIdentities = []config.Domain{"pki.example.org"}
	o.Config.ACME.Validation.DNSSEC, o.Config.ACME.Validation.Resolver = config.DNSSECAD, "127.0.0.1:53"
	o.Config.Listen.HTTP.ExternalURL, o.Config.Listen.HTTPS.ExternalURL = "http://pki.example.org", "https://pki.example.org"
	if err := Init(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	cfg := load(t, dir)
	cfg.Profiles[0].PermittedDNS = []config.Domain{"corp.internal"}
	cfg.ACME.Enabled = false // it would need remote perspectives
	for _, err := range []error{Check(t.Context(), cfg, nil, io.Discard), fails(t, cfg, io.Discard)} {
		if err == nil || !strings.HasPrefix(err.Error(), "profiles: ") || !strings.Contains(err.Error(), `"tls-server"`) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v", err)
		}
	}
}

func TestCheckMakesNothing(t *testing.T) {
	t.Parallel()
	dir := newCA(t)
	before := tree(t, dir)
	var out bytes.Buffer
	if err := Check(t.Context(), load(t, dir), nil, &out); err != nil {
		t.Fatal(err)
	}
	if after := tree(t, dir); !slices.Equal(before, after) {
		t.Errorf("was %q, is %q", before, after)
	}
	for _, want := range []string{"issuer issuing, active, until ", "profiles tls-server: each can be issued", "passphrase from " + filepath.Join(dir, passphraseFile)} {
		if !strings.Contains(out.String(), "  ok  ") || !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

// tree lists what is in a folder.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestTheVersionBeforeWorksOnANewerSchema is an upgrade of one replica after
// the other, or one taken back: serving goes on with a warning, and only the
// command that migrates refuses.
func TestTheVersionBeforeWorksOnANewerSchema(t *testing.T) {
	t.Parallel()
	dir := newCA(t)
	first := built(t, dir)
	err := first.db.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, 1)`)
		return err
	})
	if err := errors.Join(err, first.close()); err != nil {
		t.Fatal(err)
	}
	first.closers = nil
	again := built(t, dir)
	if !strings.Contains(again.logged(), "newer version has migrated") {
		t.Errorf("no warning in\n%s", again.logged())
	}
	if err := again.close(); err != nil {
		t.Fatal(err)
	}
	again.closers = nil
	if err := Migrate(t.Context(), load(t, dir), io.Discard); !errors.Is(err, store.ErrNewerSchema) {
		t.Errorf("migrating: %v", err)
	}
}
