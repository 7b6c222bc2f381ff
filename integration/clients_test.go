package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRealClientsOnSQLite has each client do its whole job against quickstart.
func TestRealClientsOnSQLite(t *testing.T) {
	t.Parallel()
	dns := startDNS(t)
	s := startQuickstart(t, quickstart{dns: dns})
	runClients(t, s, dns,
		"acme-certbot", "acme-certbot-dns01", "acme-lego-http01", "acme-lego-dns01",
		"acme-dehydrated", "acme-uacme", "acme-acme-tiny",
		"acme-lego-tlsalpn01", "acme-dehydrated-tlsalpn01", "acme-uacme-tlsalpn01",
		"ocsp-openssl", "ocsp-http", "ocsp-gnutls", "ocsp-strongswan", "ocsp-stapling-nginx",
		"crl-openssl", "crl-gnutls", "crl-strongswan")
	verifyAudit(t, s)
}

// TestRealClientsOnPostgreSQL does the same with the other engine.
func TestRealClientsOnPostgreSQL(t *testing.T) {
	t.Parallel()
	dns := startDNS(t)
	s := startQuickstart(t, quickstart{dns: dns, postgres: startPostgres(t)})
	runClients(t, s, dns, "acme-certbot", "acme-lego-http01", "ocsp-openssl", "crl-openssl")
	verifyAudit(t, s)
}

// TestWebServersGetTheirOwnCertificates has servers that are clients by
// themselves get, serve and renew certificates, and staple their status.
func TestWebServersGetTheirOwnCertificates(t *testing.T) {
	t.Parallel()
	dns := startDNS(t)
	s := startQuickstart(t, quickstart{dns: dns})
	runClients(t, s, dns, "acme-caddy", "acme-mod_md")
	verifyAudit(t, s)
}

// TestRealClientsOfStatus has those check a certificate's status that no other
// test has.
func TestRealClientsOfStatus(t *testing.T) {
	t.Parallel()
	s := startQuickstart(t, quickstart{})
	s.toAskAbout(t)
	runClients(t, s, dnsMock{}, "ocsp-stapling-apache", "status-nss", "status-java")
}

// runClients runs scripts one after another: they share the port of http-01.
func runClients(t *testing.T, s *server, dns dnsMock, scripts ...string) {
	t.Helper()
	for _, name := range scripts {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "./interop/"+name+".sh")
			tmp := t.TempDir()
			for _, dir := range []string{tmp, filepath.Dir(tmp)} { // Apache goes on as another user
				if err := os.Chmod(dir, 0o711); err != nil {
					t.Fatal(err)
				}
			}
			cmd.Env = append(os.Environ(), "DNS_ADMIN_URL="+dns.admin, "TMPDIR="+tmp)
			for k, v := range s.env {
				cmd.Env = append(cmd.Env, k+"="+v)
			}
			out, err := cmd.CombinedOutput()
			verdict := string(out[strings.LastIndexByte(strings.TrimRight(string(out), "\n"), '\n')+1:])
			if err != nil || !strings.Contains(string(out), "PASS "+name+": ") {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Log(strings.TrimSpace(verdict))
		})
	}
}

// verifyAudit proves that the chain of what was acknowledged is complete.
func verifyAudit(t *testing.T, s *server) {
	t.Helper()
	out, errs, code := run(t, "audit", "verify", "--socket", s.dir+"/operator.sock")
	if code != 0 {
		t.Errorf("audit verify: exit %d\n%s%s", code, out, errs)
	}
	t.Log(strings.TrimSpace(out))
}
