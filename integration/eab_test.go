package integration

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

// eabKey has the command line make a key for external account binding.
func (s *server) eabKey(t *testing.T, args ...string) (kid, mac string) {
	t.Helper()
	out, errs, code := run(t, append([]string{"acme", "eab", "create", "--json", "--socket", s.dir + "/operator.sock"}, args...)...)
	var k struct {
		KID string `json:"kid"`
		MAC string `json:"mac_key"`
	}
	if err := json.Unmarshal([]byte(out), &k); code != 0 || err != nil || k.KID == "" || k.MAC == "" {
		t.Fatalf("acme eab create: exit %d\n%s%s", code, out, errs)
	}
	return k.KID, k.MAC
}

// jsonLines runs a command that prints one JSON object a line.
func (s *server) jsonLines(t *testing.T, args ...string) (list []map[string]any) {
	t.Helper()
	out, errs, code := run(t, append(args, "--json", "--limit", "0", "--socket", s.dir+"/operator.sock")...)
	if code != 0 {
		t.Fatalf("%s: exit %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	for line := range strings.Lines(out) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		list = append(list, v)
	}
	return list
}

// Real clients get accounts in a directory that binds them, by a key that the
// command line made, and nowhere else; the operator ends them.
func TestRealClientsAreBoundToExternalAccounts(t *testing.T) {
	t.Parallel()
	dns := startDNS(t)
	s := startQuickstart(t, quickstart{dns: dns})
	s.stop()
	setSection(t, configOf(s.dir), "acme:", `  directories:
    - name: bound
      external_account_binding: required
      permitted_dns: [example.com]
`)
	s.start(t)
	kid, mac := s.eabKey(t, "--directory", "bound", "--uses", "0", "--dns", "kit.example.com", "--comment", "real clients")
	s.env["EAB_KID"], s.env["EAB_HMAC"] = kid, mac
	s.env["ACME_EAB_DIRECTORY"] = strings.Replace(s.env["ACME_DIRECTORY"], "/acme/", "/acme/d/bound/", 1)
	runClients(t, s, dns, "acme-certbot-eab", "acme-lego-eab", "acme-dehydrated-eab", "acme-uacme-eab")

	accounts := s.jsonLines(t, "acme", "account", "list", "--directory", "bound", "--key-id", kid)
	if len(accounts) < 4 {
		t.Errorf("%d accounts are bound: %v", len(accounts), accounts)
	}
	if own := s.jsonLines(t, "acme", "account", "list", "--directory", "default"); len(own) != 0 {
		t.Errorf("the other directory has accounts: %v", own)
	}
	keys := s.jsonLines(t, "acme", "eab", "list")
	if len(keys) != 1 || keys[0]["kid"] != kid || keys[0]["mac_key"] != nil || int(keys[0]["uses"].(float64)) != len(accounts) {
		t.Errorf("keys: %v, accounts: %d", keys, len(accounts))
	}
	if strings.Contains(s.out.String(), mac) {
		t.Error("the HMAC key is in the log")
	}
	out, errs, code := run(t, "acme", "eab", "revoke", kid, "--revoke-accounts", "--yes", "--socket", s.dir+"/operator.sock")
	if code != 0 || !strings.Contains(out, "is revoked") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	for _, a := range s.jsonLines(t, "acme", "account", "list", "--directory", "bound") {
		if a["status"] == "valid" {
			t.Errorf("an account is still valid: %v", a)
		}
	}
	verifyAudit(t, s)
}

// A directory is served as long as it is in the configuration.
func TestADirectoryComesAndGoes(t *testing.T) {
	t.Parallel()
	s := startQuickstart(t, quickstart{})
	served := func() int {
		res, err := s.client(t).Get(strings.Replace(s.env["ACME_DIRECTORY"], "/acme/", "/acme/d/guests/", 1))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode
	}
	if got := served(); got != http.StatusNotFound {
		t.Errorf("before: %d", got)
	}
	s.stop()
	section := "  directories: [{name: guests}]\n"
	setSection(t, configOf(s.dir), "acme:", section)
	s.start(t)
	if got := served(); got != http.StatusOK {
		t.Errorf("with it: %d", got)
	}
	if _, errs, code := run(t, "acme", "eab", "create", "--directory", "guests", "--socket", s.dir+"/operator.sock"); code != 1 || !strings.Contains(errs, "external_account_binding") {
		t.Errorf("a key for a directory that binds nobody: exit %d, %s", code, errs)
	}
	s.stop()
	b, err := os.ReadFile(configOf(s.dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(configOf(s.dir), []byte(strings.Replace(string(b), section, "", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start(t)
	if got := served(); got != http.StatusNotFound {
		t.Errorf("without it: %d", got)
	}
}
