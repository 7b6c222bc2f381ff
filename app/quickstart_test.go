package app

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/config"
)

func TestQuotedIsOneWordOfAShell(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"", "plain/path.pem", "two words", "it's", "$HOME", "`id`", `back\slash`, "https://[::1]:8443/x", "*", "a;b", "~", "#x", "a\nb", "\"", "ünï",
	} {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+quoted(s)).Output() //nolint:gosec // what it is for
		if err != nil || string(out) != s {
			t.Errorf("%q became %q, %v", s, out, err)
		}
	}
	if got := quoted("bin/secsy-pki"); got != "bin/secsy-pki" {
		t.Errorf("got %s", got)
	}
	if got := quoted("https://[::1]/"); got != "'https://[::1]/'" {
		t.Errorf("a shell may take %s for a pattern", got)
	}
}

// first is the configuration of a first run.
func first(t *testing.T) *config.Config {
	t.Helper()
	c := config.Default()
	c.Listen.HTTP.Address, c.Listen.HTTPS.Address, c.Listen.Operator.Address = "127.0.0.1:8080", "127.0.0.1:8443", "127.0.0.1:8081"
	c.Listen.Operator.Socket = "/d/operator.sock"
	c.Listen.HTTPS.Certificate.Names = httpsNames("localhost")
	if err := setExternal(c, "localhost"); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestFlagsOfALaterRunChangeWhatTheySayAndNoMore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		o           QuickstartOptions
		http, https config.URL
		names       int
	}{
		"none":       {QuickstartOptions{}, "http://localhost:8080", "https://localhost:8443", 3},
		"http":       {QuickstartOptions{ListenHTTP: ":80"}, "http://localhost", "https://localhost:8443", 3},
		"https":      {QuickstartOptions{ListenHTTPS: "[::1]:9443"}, "http://localhost:8080", "https://localhost:9443", 3},
		"host":       {QuickstartOptions{ExternalHost: "pki.example"}, "http://pki.example:8080", "https://pki.example:8443", 4},
		"IPv6":       {QuickstartOptions{ExternalHost: "2001:db8::1", ListenHTTPS: ":443"}, "http://[2001:db8::1]:8080", "https://[2001:db8::1]", 4},
		"everything": {QuickstartOptions{ExternalHost: "127.0.0.1", ListenHTTP: ":1", ListenHTTPS: ":2", ListenOperator: ":3"}, "http://127.0.0.1:1", "https://127.0.0.1:2", 3},
	} {
		cfg := first(t)
		if err := c.o.override(cfg); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if cfg.Listen.HTTP.ExternalURL != c.http || cfg.Listen.HTTPS.ExternalURL != c.https || len(cfg.Listen.HTTPS.Certificate.Names) != c.names {
			t.Errorf("%s: got %s, %s, %v", name, cfg.Listen.HTTP.ExternalURL, cfg.Listen.HTTPS.ExternalURL, cfg.Listen.HTTPS.Certificate.Names)
		}
		before := *cfg
		if err := c.o.override(cfg); err != nil || cfg.Listen.HTTP.ExternalURL != before.Listen.HTTP.ExternalURL {
			t.Errorf("%s: a second time it is another, %v", name, err)
		}
	}
	behind := first(t)
	behind.Listen.HTTPS.ExternalURL, behind.Listen.HTTPS.Certificate.Names = "https://public.example", []config.Host{"public.example"}
	if err := (&QuickstartOptions{ListenHTTP: ":1"}).override(behind); err != nil || behind.Listen.HTTPS.ExternalURL != "https://public.example" || len(behind.Listen.HTTPS.Certificate.Names) != 1 {
		t.Errorf("what the operator wrote is gone: %v, %v", behind.Listen.HTTPS, err)
	}
}

func TestPortZeroIsFixedForTheRun(t *testing.T) {
	t.Parallel()
	o := QuickstartOptions{ListenHTTP: "127.0.0.1:0", ListenHTTPS: "127.0.0.1:1"}
	if err := o.fixPorts(t.Context()); err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(o.ListenHTTP, ":0") || o.ListenHTTPS != "127.0.0.1:1" || o.ListenOperator != "" {
		t.Errorf("got %+v", o)
	}
}

func TestTheGuideIsRightWhateverTheFlags(t *testing.T) {
	t.Parallel()
	c := first(t)
	o := &QuickstartOptions{Dir: "/a folder/d", Program: "/opt/my tools/secsy-pki"}
	c.ACME.Validation.HTTP01Port = 80
	c.Listen.Operator.Address = ":8081"
	if err := setExternal(c, "::1"); err != nil {
		t.Fatal(err)
	}
	guide := o.guide(c, false)
	for _, want := range []string{
		"Serving the CA that is in /a folder/d.",
		"curl --cacert '/a folder/d/root.pem' 'https://[::1]:8443/acme/directory'\n",
		"REQUESTS_CA_BUNDLE='/a folder/d/root.pem' certbot", "--http-01-port 80 ", "--http.port :80 ",
		"'/opt/my tools/secsy-pki' cert list --socket /d/operator.sock\n",
		"-url 'http://[::1]:8080/ocsp' ",
		"http://localhost:8081 (health",
	} {
		if !strings.Contains(guide, want) {
			t.Errorf("no %q in\n%s", want, guide)
		}
	}
	// A shell takes the whole for what it is: commands and comments.
	_, commands, _ := strings.Cut(guide, "second terminal:\n")
	commands, _, _ = strings.Cut(commands, "\nCtrl-C")
	commands, _, _ = strings.Cut(commands, "\nNot installed")
	if out, err := exec.CommandContext(t.Context(), "sh", "-n", "-c", commands).CombinedOutput(); err != nil { //nolint:gosec // what it is for
		t.Errorf("a shell can't read it: %s", out)
	}
	c.Listen.Operator.Address = ""
	if guide := o.guide(c, true); strings.Contains(guide, "health") || !strings.Contains(guide, "Made a CA in") {
		t.Errorf("got\n%s", guide)
	}
}

func TestTheEnvironmentFileIsWhatShellsRead(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(shortDir(t), "it's here")
	if err := os.CopyFS(dir, os.DirFS(newCA(t))); err != nil {
		t.Fatal(err)
	}
	c := first(t)
	if err := setExternal(c, "::1"); err != nil {
		t.Fatal(err)
	}
	o := &QuickstartOptions{Dir: dir, Stdout: io.Discard, Stderr: io.Discard}
	o.ready(c, true)
	file := filepath.Join(dir, "quickstart.env")
	if fi, err := os.Stat(file); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, %v", fi.Mode(), err)
	}
	out, err := exec.CommandContext(t.Context(), "sh", "-c", //nolint:gosec // what it is for
		". "+quoted(file)+`; printf '%s|' "$ACME_DIRECTORY" "$ROOT_PEM" "$OCSP_URL" "$OPERATOR_URL" "${CRL_URL##*.}"`).Output()
	want := "https://[::1]:8443/acme/directory|" + dir + "/root.pem|http://[::1]:8080/ocsp|http://127.0.0.1:8081|crl|"
	if err != nil || string(out) != want {
		t.Errorf("got %s, %v", out, err)
	}
}
