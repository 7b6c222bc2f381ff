package ca_test

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/keys/keystest"
)

// pemFile writes certificates to a file of their own.
func pemFile(t *testing.T, certs ...[]byte) string {
	t.Helper()
	var b bytes.Buffer
	for _, der := range certs {
		if err := pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: der}); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.CreateTemp(t.TempDir(), "*.pem")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(b.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return filepath.Clean(f.Name())
}

func TestOpenSSLVerifiesTheChainStrictly(t *testing.T) {
	t.Parallel()
	for _, policy := range []ca.Policy{ca.Internal, ca.Public} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			c := catest.New(t, func(cfg *ca.Config) { cfg.Policy = policy })
			root, issuing := pemFile(t, c.Root.Raw), pemFile(t, c.Issuer.Cert.Raw)
			leaf := pemFile(t, c.Certificate(t, "www.example.com", "*.example.org", "8.8.8.8").DER)
			verify := func(args ...string) {
				t.Helper()
				args = append([]string{"verify", "-x509_strict", "-check_ss_sig", "-CAfile", root, "-untrusted", issuing}, args...)
				if out, err := exec.CommandContext(t.Context(), "openssl", args...).CombinedOutput(); err != nil {
					t.Errorf("openssl %v: %v: %s", args, err, out)
				}
			}
			verify(issuing)
			verify("-purpose", "sslserver", "-verify_hostname", "www.example.com", leaf)
			verify("-purpose", "sslserver", "-verify_hostname", "a.example.org", leaf)
			verify("-purpose", "sslserver", "-verify_ip", "8.8.8.8", leaf)
		})
	}
}

func TestAuthoritiesAreWhatTheyAreFor(t *testing.T) {
	t.Parallel()
	for _, policy := range []ca.Policy{ca.Internal, ca.Public} {
		c := catest.New(t, func(cfg *ca.Config) { cfg.Policy = policy })
		root, issuing := c.Root, c.Issuer.Cert
		const signs = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
		if !root.IsCA || root.KeyUsage != signs || root.ExtKeyUsage != nil || root.SubjectKeyId == nil || root.MaxPathLenZero {
			t.Errorf("%s: root %+v", policy, root)
		}
		if !issuing.IsCA || issuing.KeyUsage != signs || !issuing.MaxPathLenZero || !bytes.Equal(issuing.AuthorityKeyId, root.SubjectKeyId) ||
			!bytes.Equal(issuing.RawIssuer, root.RawSubject) {
			t.Errorf("%s: issuing %+v", policy, issuing)
		}
		if serverOnly := len(issuing.ExtKeyUsage) == 1 && issuing.ExtKeyUsage[0] == x509.ExtKeyUsageServerAuth; serverOnly != (policy == ca.Public) {
			t.Errorf("%s: uses %v", policy, issuing.ExtKeyUsage)
		}
		if issuing.NotAfter.After(root.NotAfter) {
			t.Errorf("%s: the issuing authority outlives the root", policy)
		}
	}
}

func TestAuthorityIsNotMadeOfHalfARequest(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	ks := keystest.New()
	key, err := ks.Generate(t.Context(), "new", keys.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	rootKey, err := c.Keys.Key(t.Context(), catest.RootKeyLabel)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*ca.IssuingRequest){
		"as it should be": func(*ca.IssuingRequest) {},
		"no name":         func(r *ca.IssuingRequest) { r.Subject = pkix.Name{} },
		"no key":          func(r *ca.IssuingRequest) { r.PublicKey = nil },
		"root's key":      func(r *ca.IssuingRequest) { r.PublicKey = rootKey.Public() },
		"another root":    func(r *ca.IssuingRequest) { r.RootKey = key },
		"an hour":         func(r *ca.IssuingRequest) { r.Validity = time.Hour },
		"a century":       func(r *ca.IssuingRequest) { r.Validity = 36500 * day },
		"no linter":       func(r *ca.IssuingRequest) { r.Linter = nil },
	} {
		req := ca.IssuingRequest{Root: c.Root, RootKey: rootKey, Subject: cn("New"), PublicKey: key.Public(), Linter: linterFunc(pass)}
		change(&req)
		if _, err := ca.CreateIssuing(t.Context(), req); (err == nil) != (name == "as it should be") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, req := range map[string]ca.RootRequest{
		"no key":    {Subject: cn("Root"), Linter: linterFunc(pass)},
		"no name":   {Key: key, Linter: linterFunc(pass)},
		"a century": {Subject: cn("Root"), Key: key, Linter: linterFunc(pass), Validity: 36500 * day},
	} {
		if _, err := ca.CreateRoot(t.Context(), req); err == nil {
			t.Errorf("root, %s: accepted", name)
		}
	}
}
