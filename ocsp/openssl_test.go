package ocsp

import (
	"bytes"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

func writePEM(t *testing.T, name string, der []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// openssl asks over HTTP, verifies the chain of trust and prints what it heard.
func TestOpenSSLBelievesTheAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	issuer := writePEM(t, "issuer.pem", w.issuers[0].Cert.Raw)
	other := writePEM(t, "other.pem", w.issuers[1].Cert.Raw)
	good := writePEM(t, "good.pem", w.leaf(0, 0x7001020304050607, Status{State: ca.Issued}).Raw)
	revoked := writePEM(t, "revoked.pem", w.leaf(0, 0x7001020304050608, Status{State: ca.Issued, RevokedAt: time.Now().Add(-time.Hour), Reason: 4}).Raw)
	ask := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), "openssl", append([]string{"ocsp", "-url", srv.URL + "/ocsp", "-CAfile", issuer, "-resp_text"}, args...)...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		_ = cmd.Run() // its output is what counts: openssl succeeds on much that it should not
		return out.String()
	}
	for name, c := range map[string]struct {
		args []string
		want []string
		not  string
	}{
		"good, nonce": {
			[]string{"-issuer", issuer, "-cert", good, "-nonce"},
			[]string{"Response verify OK", good + ": good", "Responder Id: ", "OCSP Nonce", "OCSP No Check"},
			"WARNING: no nonce in response",
		},
		"good, no nonce": {[]string{"-issuer", issuer, "-cert", good, "-no_nonce"}, []string{"Response verify OK", good + ": good"}, "OCSP Nonce"},
		"good, SHA-256":  {[]string{"-sha256", "-issuer", issuer, "-cert", good}, []string{"Response verify OK", good + ": good", "Hash Algorithm: sha256"}, "No Status found"},
		"good, SHA-512":  {[]string{"-sha512", "-issuer", issuer, "-cert", good}, []string{"Response verify OK", good + ": good"}, "No Status found"},
		"revoked":        {[]string{"-issuer", issuer, "-cert", revoked}, []string{"Response verify OK", revoked + ": revoked", "Reason: superseded"}, "No Status found"},
		"both":           {[]string{"-issuer", issuer, "-cert", good, "-cert", revoked}, []string{"Response verify OK", good + ": good", revoked + ": revoked"}, "No Status found"},
		"never issued":   {[]string{"-issuer", issuer, "-serial", "0x5001"}, []string{"unauthorized"}, ": good"},
		"other issuer":   {[]string{"-issuer", other, "-serial", "0x7001020304050607"}, []string{"unauthorized"}, ": good"},
	} {
		out := ask(c.args...)
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", name, want, out)
			}
		}
		if strings.Contains(out, c.not) {
			t.Errorf("%s: %q in\n%s", name, c.not, out)
		}
	}
}

// Also what it hears of archives, of holds, and of serials that nobody has.
func TestOpenSSLReadsTheExtensions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(func(c *Config) { c.Archive, c.RevokeUnissued = 30*24*time.Hour, true })
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	issuer := writePEM(t, "issuer.pem", w.issuers[0].Cert.Raw)
	expired := writePEM(t, "expired.pem", w.leaf(0, 0x7001020304050607, Status{State: ca.Issued, NotAfter: time.Now().Add(-time.Minute)}).Raw)
	held := writePEM(t, "held.pem", w.leaf(0, 0x7001020304050608, Status{State: ca.Issued, RevokedAt: time.Now().Add(-time.Hour), Reason: ca.CertificateHold}).Raw)
	for name, c := range map[string]struct{ args, want []string }{
		"expired":      {[]string{"-cert", expired}, []string{"Response verify OK", expired + ": good", "OCSP Archive Cutoff"}},
		"held":         {[]string{"-cert", held}, []string{"Response verify OK", held + ": revoked", "Reason: certificateHold"}},
		"never issued": {[]string{"-serial", "0x5001"}, []string{"Response verify OK", "0x5001: revoked", "Reason: certificateHold", "Jan  1 00:00:00 1970 GMT"}},
	} {
		args := append([]string{"ocsp", "-url", srv.URL + "/ocsp", "-CAfile", issuer, "-resp_text", "-no_nonce", "-issuer", issuer}, c.args...)
		out, _ := exec.CommandContext(t.Context(), "openssl", args...).CombinedOutput()
		for _, want := range c.want {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: no %q in\n%s", name, want, out)
			}
		}
	}
}

// What openssl signs into a request, names in it or puts twice is read, too.
func TestOpenSSLsRequestsAreRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	issuer := writePEM(t, "issuer.pem", w.issuers[0].Cert.Raw)
	key, cert, out := filepath.Join(t.TempDir(), "k.pem"), filepath.Join(t.TempDir(), "c.pem"), filepath.Join(t.TempDir(), "r.der")
	run := func(args ...string) {
		if b, err := exec.CommandContext(t.Context(), "openssl", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, b)
		}
	}
	run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", cert, "-subj", "/CN=asker", "-days", "1")
	for name, args := range map[string][]string{
		"signed": {"-signer", cert, "-signkey", key, "-serial", "0x7001"},
		"three":  {"-serial", "1", "-serial", "2", "-sha256", "-serial", "3"},
		"long":   {"-serial", "0x7fffffffffffffffffffffffffffffffffffffff"},
	} {
		run(append([]string{"ocsp", "-issuer", issuer, "-reqout", out}, args...)...)
		der, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		req, err := parseRequest(der)
		if err != nil || len(req.nonce) != 16 || (name == "three") != (len(req.certIDs) == 3) {
			t.Errorf("%s: %+v, %v", name, req, err)
		}
	}
}
