package integration

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/ocsp"
)

// cert runs a command of the operator's, and wants its exit code.
func (s *server) cert(t *testing.T, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	args = append([]string{"cert"}, args...)
	stdout, stderr, code := run(t, append(args, "--socket", filepath.Join(s.dir, "operator.sock"))...)
	if code != want {
		t.Fatalf("%q: exit %d, want %d\n%s%s", args, code, want, stdout, stderr)
	}
	return stdout, stderr
}

func serialOf(c *x509.Certificate) string { return fmt.Sprintf("%034x", c.SerialNumber) }

// reasonInCRL returns the reason that the CRL lists c for, -1 for none.
func (s *server) reasonInCRL(t *testing.T, c *x509.Certificate) int {
	t.Helper()
	for _, e := range s.crl(t).RevokedCertificateEntries {
		if e.SerialNumber.Cmp(c.SerialNumber) == 0 {
			return e.ReasonCode
		}
	}
	return -1
}

// A revocation by whatever way is in the next OCSP answer, and in the CRL within
// the bound, which quickstart sets to two seconds.
func TestRevocationShowsAtOnceByEveryWay(t *testing.T) {
	t.Parallel()
	s := startQuickstart(t, quickstart{})
	u := newSubscriber(t, s)
	serveChallenges(t, s.http01, u.client)
	file := filepath.Join(t.TempDir(), "list")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	inPEM := func(c *x509.Certificate) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	}
	var all []*x509.Certificate
	for _, way := range []struct {
		name   string
		reason int
		revoke func(c *x509.Certificate)
	}{
		{"ACME", ocsp.Superseded, func(c *x509.Certificate) {
			if err := u.client.RevokeCert(t.Context(), nil, c.Raw, acme.CRLReasonSuperseded); err != nil {
				t.Fatal(err)
			}
		}},
		{"serial", ocsp.CessationOfOperation, func(c *x509.Certificate) {
			s.cert(t, 0, "revoke", serialOf(c), "--reason", "cessationOfOperation", "--yes")
		}},
		{"CSV", ocsp.AffiliationChanged, func(c *x509.Certificate) {
			write("serial,reason\n" + serialOf(c) + ",affiliationChanged\n")
			s.cert(t, 0, "revoke", "--file", file, "--yes")
		}},
		{"PEM", ocsp.PrivilegeWithdrawn, func(c *x509.Certificate) {
			write(inPEM(c))
			s.cert(t, 0, "revoke", "--file", file, "--reason", "privilegeWithdrawn", "--yes")
		}},
		{"name", ocsp.Superseded, func(c *x509.Certificate) {
			s.cert(t, 0, "revoke", "--name", c.DNSNames[0], "--reason", "superseded", "--yes")
		}},
		{"key", ocsp.KeyCompromise, func(c *x509.Certificate) {
			write(inPEM(c))
			s.cert(t, 0, "revoke", "--key", file, "--yes")
		}},
	} {
		c := u.mustObtain(nil)
		if got := s.status(t, c); got.Status != ocsp.Good {
			t.Fatalf("%s: %d before", way.name, got.Status)
		}
		way.revoke(c)
		if got := s.status(t, c); got.Status != ocsp.Revoked || got.RevocationReason != way.reason {
			t.Errorf("%s: OCSP says %d for %d at once", way.name, got.Status, got.RevocationReason)
		}
		waitFor(t, way.name+" in the CRL", func() error {
			if got := s.reasonInCRL(t, c); got != way.reason {
				return fmt.Errorf("reason %d", got)
			}
			return nil
		})
		all = append(all, c)
	}
	// Once more only for keyCompromise: both say so, and the CRL lists it once.
	s.cert(t, 1, "revoke", serialOf(all[0]), "--reason", "cessationOfOperation", "--yes")
	s.cert(t, 0, "revoke", serialOf(all[0]), "--reason", "keyCompromise", "--yes")
	if got := s.status(t, all[0]); got.RevocationReason != ocsp.KeyCompromise {
		t.Errorf("OCSP says reason %d", got.RevocationReason)
	}
	waitFor(t, "the new reason in the CRL", func() error {
		if got := s.reasonInCRL(t, all[0]); got != ocsp.KeyCompromise {
			return fmt.Errorf("reason %d", got)
		}
		return nil
	})
	if n := len(s.crl(t).RevokedCertificateEntries); n != len(all) {
		t.Errorf("the CRL lists %d, want %d", n, len(all))
	}
	// What is not ours is named, and keeps nothing else from being revoked.
	good := u.mustObtain(nil)
	write(serialOf(good) + "\n01ff\n")
	if _, errs := s.cert(t, 1, "revoke", "--file", file, "--reason", "superseded", "--yes"); !strings.Contains(errs, "01ff: notFound") {
		t.Error(errs)
	}
	if got := s.status(t, good); got.Status != ocsp.Revoked {
		t.Errorf("beside a mistake: %d", got.Status)
	}
	s.cert(t, 1, "hold", serialOf(good)) // no issuer of quickstart allows it
	verifyAudit(t, s)
}

// A plan of a mass revocation: certificates are to be replaced first, of which
// their clients hear at once, and are revoked later.
func TestReplacementComesBeforeRevocation(t *testing.T) {
	t.Parallel()
	s := startQuickstart(t, quickstart{})
	u := newSubscriber(t, s)
	serveChallenges(t, s.http01, u.client)
	c, other := u.mustObtain(nil), u.mustObtain(nil)
	by := time.Now().Add(2 * time.Hour).UTC().Format(time.RFC3339)
	s.cert(t, 0, "revoke", "--name", c.DNSNames[0], "--reason", "superseded", "--replace-by", by, "--open-incident", "plan", "--yes")
	if got := s.status(t, c); got.Status != ocsp.Good {
		t.Fatalf("revoked before its time: %d", got.Status)
	}
	waitFor(t, "clients to hear that they are to replace it at once", func() error {
		if end := s.windowEnd(t, c); !end.Before(time.Now()) {
			return fmt.Errorf("until %s", end)
		}
		return nil
	})
	if end := s.windowEnd(t, other); !end.After(time.Now()) {
		t.Errorf("the other: until %s", end)
	}
	_, errs := s.cert(t, 0, "revoke", "--incident", "plan", "--reason", "superseded", "--dry-run")
	if !strings.Contains(errs, "1 certificate: 1 will be revoked") {
		t.Error(errs)
	}
	s.cert(t, 0, "revoke", "--incident", "plan", "--reason", "superseded", "--yes")
	if got := s.status(t, c); got.Status != ocsp.Revoked {
		t.Errorf("OCSP says %d", got.Status)
	}
	if got := s.status(t, other); got.Status != ocsp.Good {
		t.Errorf("of the other OCSP says %d", got.Status)
	}
}

// windowEnd asks for the renewal information of c (RFC 9773).
func (s *server) windowEnd(t *testing.T, c *x509.Certificate) time.Time {
	t.Helper()
	get := func(url string, into any) {
		t.Helper()
		resp, err := s.client(t).Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %s, %v", url, resp.StatusCode, b, err)
		}
		if err := json.Unmarshal(b, into); err != nil {
			t.Fatal(err)
		}
	}
	var directory struct{ RenewalInfo string }
	get(s.env["ACME_DIRECTORY"], &directory)
	var info struct{ SuggestedWindow struct{ End time.Time } }
	enc := base64.RawURLEncoding
	get(directory.RenewalInfo+"/"+enc.EncodeToString(c.AuthorityKeyId)+"."+enc.EncodeToString(c.SerialNumber.Bytes()), &info)
	return info.SuggestedWindow.End
}

// A certificate on hold is revoked for OCSP and the CRL, and when it is released
// it is good at once and leaves the CRL.
func TestAHoldComesAndGoes(t *testing.T) {
	t.Parallel()
	s := startQuickstart(t, quickstart{})
	s.stop()
	file := configOf(s.dir)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	allowed := strings.Replace(string(b), "    root: root.pem\n", "    root: root.pem\n    hold: true\n", 1)
	if allowed == string(b) {
		t.Fatalf("no issuer in %s", b)
	}
	if err := os.WriteFile(file, []byte(allowed), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start(t)
	u := newSubscriber(t, s)
	serveChallenges(t, s.http01, u.client)
	c := u.mustObtain(nil)
	inCRL := func(want int) {
		t.Helper()
		waitFor(t, "the CRL", func() error {
			if got := s.reasonInCRL(t, c); got != want {
				return fmt.Errorf("reason %d", got)
			}
			return nil
		})
	}
	for range 2 {
		s.cert(t, 0, "hold", serialOf(c))
		if got := s.status(t, c); got.Status != ocsp.Revoked || got.RevocationReason != ocsp.CertificateHold {
			t.Fatalf("on hold: OCSP says %d for %d", got.Status, got.RevocationReason)
		}
		inCRL(ocsp.CertificateHold)
		s.cert(t, 0, "release", serialOf(c))
		if got := s.status(t, c); got.Status != ocsp.Good {
			t.Fatalf("released: OCSP says %d", got.Status)
		}
		inCRL(-1)
	}
	s.cert(t, 1, "release", serialOf(c))
}
