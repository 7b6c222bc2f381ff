package est

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// strongSwan's pki reads no chunks, no lines, and no body in more than one record.
func TestStrongswanEnrolsAndRenews(t *testing.T) {
	if _, err := exec.LookPath("pki"); err != nil {
		t.Fatal("strongSwan's pki is not installed: apt-get install strongswan-pki")
	}
	w := newWorld(t)
	at := w.listen(w.server(nil), nil)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	keep := func(name string, c *x509.Certificate) {
		t.Helper()
		if err := os.WriteFile(path(name), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	keep("tls.pem", at.Certificate())
	keep("root.pem", w.ca.Root)
	keep("issuer.pem", w.ca.Issuer.Cert)
	pki := func(out string, args ...string) error {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "pki", args...)
		text, err := cmd.Output()
		if err != nil {
			if failed, ok := err.(*exec.ExitError); ok { //nolint:errorlint // Output returns it as it is
				t.Logf("pki %q: %s", args, failed.Stderr)
			}
			return err
		}
		return os.WriteFile(path(out), text, 0o600)
	}
	must := func(out string, args ...string) {
		t.Helper()
		if err := pki(out, args...); err != nil {
			t.Fatal(err)
		}
	}
	trust := []string{"--url", at.URL + "/devices", "--cacert", path("tls.pem"), "--cacert", path("root.pem"), "--cacert", path("issuer.pem"), "--outform", "pem"}
	est := func(args ...string) []string { return append(append([]string{"--est"}, trust...), args...) }
	must("none", "--estca", "--url", at.URL+"/devices", "--cacert", path("tls.pem"), "--caout", path("ca.pem"), "--outform", "pem", "--force")
	must("k.pem", "--gen", "--type", "rsa", "--size", "2048", "--outform", "pem")
	must("d.csr", "--req", "--type", "rsa", "--in", path("k.pem"), "--dn", "CN=dev1.example.org", "--san", "dev1.example.org")
	if pki("no.pem", est("--in", path("d.csr"), "--userpass", "dev1:wrong")...) == nil {
		t.Error("a wrong password is taken")
	}
	must("c.pem", est("--in", path("d.csr"), "--userpass", "dev1:"+goodPassword)...)
	must("c2.pem", est("--in", path("d.csr"), "--cert", path("c.pem"), "--key", path("k.pem"))...)
	if r := w.desk.last(t); !r.Renewal {
		t.Errorf("the desk was asked %+v", r)
	}
}
