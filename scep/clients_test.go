package scep

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/cms"
)

// A strongswan is the pki command of strongSwan at a server of ours, which is the
// strictest client that there is: it knows RSA signatures by one name only, reads
// the capabilities by their places, and trusts by chain.
type strongswan struct {
	t    *testing.T
	url  string
	dir  string
	args []string // by which it trusts
}

func newStrongswan(t *testing.T, w *world, s *Server) *strongswan {
	t.Helper()
	srv := httptest.NewServer(s.Handler())
	t.Cleanup(srv.Close)
	p := &strongswan{t: t, url: srv.URL + "/scep/devices", dir: t.TempDir()}
	p.must("--scepca", "--url", p.url, "--caout", p.path("ca.pem"), "--raout", p.path("ra.pem"), "--outform", "pem", "--force")
	ra := p.path("ra.pem")
	for _, f := range []string{"ca.pem", "ca-1.pem"} {
		p.args = append(p.args, "--cacert", p.path(f))
	}
	p.args = append(p.args, "--cacert-enc", ra, "--cacert-sig", ra)
	if got := p.certificate("ra.pem"); !got.Equal(raOf(s).cert) {
		t.Errorf("the registration authority is %v to it", got.Subject)
	}
	if root, issuing := p.certificate("ca.pem"), p.certificate("ca-1.pem"); !issuing.Equal(w.ca.Issuer.Cert) || !root.Equal(w.ca.Root) {
		t.Errorf("the CAs are %v and %v to it", issuing.Subject, root.Subject)
	}
	return p
}

func (p *strongswan) path(name string) string { return filepath.Join(p.dir, name) }

func (p *strongswan) write(name, kind string, ders ...[]byte) {
	p.t.Helper()
	var out []byte
	for _, der := range ders {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})...)
	}
	if err := os.WriteFile(p.path(name), out, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *strongswan) writeKey(name string, key crypto.Signer) {
	p.t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		p.t.Fatal(err)
	}
	p.write(name, "PRIVATE KEY", der)
}

func (p *strongswan) certificate(name string) *x509.Certificate {
	p.t.Helper()
	b, err := os.ReadFile(p.path(name))
	if err != nil {
		p.t.Fatal(err)
	}
	return p.parse(b)
}

func (p *strongswan) parse(b []byte) *x509.Certificate {
	p.t.Helper()
	block, _ := pem.Decode(b)
	if block == nil {
		p.t.Fatalf("no PEM: %.200s", b)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		p.t.Fatal(err)
	}
	return cert
}

func (p *strongswan) run(args ...string) (out, said []byte, err error) {
	cmd := exec.CommandContext(p.t.Context(), "pki", args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return len(v) > 5 && (v[:5] == "http_" || v[:5] == "HTTP_") })
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err = cmd.Output()
	return out, stderr.Bytes(), err
}

func (p *strongswan) must(args ...string) []byte {
	p.t.Helper()
	out, said, err := p.run(args...)
	if err != nil {
		p.t.Fatalf("pki %v: %v\n%s", args, err, said)
	}
	return out
}

// scep has it enrol, and returns the certificate; nil if it was refused.
func (p *strongswan) scep(args ...string) *x509.Certificate {
	p.t.Helper()
	args = slices.Concat([]string{"--scep", "--url", p.url, "--dn", "C=CH, O=devices, CN=a.example.com", "--san", "a.example.com", "--outform", "pem"}, p.args, args)
	out, said, err := p.run(args...)
	if err != nil {
		p.t.Logf("pki %v: %s", args, said)
		return nil
	}
	return p.parse(out)
}

func TestStrongSwanEnrolsAndRenews(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	p := newStrongswan(t, w, s)
	p.writeKey("k.pem", deviceKey())
	p.writeKey("k2.pem", secondKey())
	if p.scep("--in", p.path("k.pem"), "--password", "wrong") != nil {
		t.Error("a wrong challenge was taken")
	}
	cert := p.scep("--in", p.path("k.pem"), "--password", goodChallenge)
	if cert == nil {
		t.Fatal("it did not enrol")
	}
	p.write("c.pem", "CERTIFICATE", cert.Raw)
	next := p.scep("--in", p.path("k2.pem"), "--cert", p.path("c.pem"), "--key", p.path("k.pem"))
	if next == nil {
		t.Fatal("it did not renew")
	}
	if asked := w.desk.asks(); !asked[len(asked)-1].Renewal || asked[len(asked)-1].Principal.Name != string(ca.SerialOf(cert.SerialNumber)) {
		t.Error("the renewal was not one")
	}
	for _, digest := range []string{"sha384", "sha512"} {
		if p.scep("--in", p.path("k.pem"), "--password", goodChallenge, "--digest", digest) == nil {
			t.Errorf("not with %s", digest)
		}
	}
}

func TestStrongSwanPollsUntilThereIsACertificate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	w.desk.pending = true
	w.desk.onPoll = func(ctx context.Context, n int) {
		if n == 2 {
			w.desk.approve(ctx)
		}
	}
	p := newStrongswan(t, w, s)
	p.writeKey("k.pem", deviceKey())
	if p.scep("--in", p.path("k.pem"), "--password", goodChallenge, "--interval", "1", "--maxpolltime", "30") == nil {
		t.Error("no certificate")
	}
}

// Triple DES is there where it is allowed, and nowhere else.
func TestStrongSwanWithTripleDES(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, legacy := range []bool{false, true} {
		s := w.served(func(c *Config) { c.Endpoints[0].Legacy = legacy })
		p := newStrongswan(t, w, s)
		p.writeKey("k.pem", deviceKey())
		if got := p.scep("--in", p.path("k.pem"), "--password", goodChallenge, "--cipher", "des3"); (got != nil) != legacy {
			t.Errorf("allowed: %v, had: %v", legacy, got != nil)
		}
	}
}

// openssl reads what we answer, and its CSRs and envelopes are taken.
func TestOpenSSLReadsTheAnswersAndWeItsEnvelopes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	d := newDevice(t, s, deviceKey())
	p := &strongswan{t: t, dir: t.TempDir()}
	p.write("ra.pem", "CERTIFICATE", d.ra.Raw)
	p.write("trusted.pem", "CERTIFICATE", w.ca.Root.Raw, w.ca.Issuer.Cert.Raw)
	p.write("d.pem", "CERTIFICATE", d.cert.Raw)
	p.writeKey("k.pem", d.key)
	conf := "[req]\nprompt=no\ndistinguished_name=dn\nattributes=a\nreq_extensions=x\n[dn]\nCN=a.example.com\n[a]\nchallengePassword=" + goodChallenge + "\n[x]\nsubjectAltName=DNS:a.example.com\n"
	if err := os.WriteFile(p.path("conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	openssl := func(in []byte, args ...string) []byte {
		cmd := exec.CommandContext(t.Context(), "openssl", args...)
		cmd.Dir, cmd.Stdin = p.dir, bytes.NewReader(in)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("openssl %v: %v\n%s", args, err, stderr.Bytes())
		}
		return out
	}
	request := openssl(nil, "req", "-new", "-key", "k.pem", "-config", "conf", "-outform", "DER")
	d.sealed = func([]byte) []byte {
		return openssl(request, "cms", "-encrypt", "-binary", "-outform", "DER", "-aes-128-cbc", "-stream", "ra.pem")
	}
	answer := body(post(t, s, d.message(nil)))
	content := openssl(answer, "cms", "-verify", "-inform", "DER", "-binary", "-CAfile", "trusted.pem", "-purpose", "any")
	inner := openssl(content, "cms", "-decrypt", "-inform", "DER", "-binary", "-recip", "d.pem", "-inkey", "k.pem")
	if out := openssl(inner, "pkcs7", "-inform", "DER", "-print_certs", "-noout"); !bytes.Contains(out, []byte("CN = a.example.com")) || bytes.Count(out, []byte("subject=")) != 1 {
		t.Errorf("inside: %s", out)
	}
	if _, err := cms.ParseSignedData(inner); err != nil {
		t.Error(err)
	}
}

// The scripts of integration/interop with curl, strongSwan, certmonger and micromdm's scepclient,
// which knows single DES alone and has to be told badAlg.
func TestClientsDoTheirWholeJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	p := &strongswan{t: t, dir: t.TempDir()}
	p.write("root.pem", "CERTIFICATE", w.ca.Root.Raw)
	for _, name := range []string{"scep-curl", "scep-strongswan", "scep-scepclient", "scep-certmonger"} {
		cmd := exec.CommandContext(t.Context(), "../integration/interop/"+name+".sh")
		cmd.Env = append(os.Environ(), "SCEP_URL="+srv.URL+"/scep/devices", "SCEP_CHALLENGE="+goodChallenge, "ROOT_PEM="+p.path("root.pem"))
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("\nPASS "+name+": ")) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
