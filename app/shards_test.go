package app

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A certificate names the part that it is on, which is there, also after the
// number of parts was changed; and the other way round, those of before have
// their list where they say.
func TestCertificatesFindTheirPartOfTheList(t *testing.T) {
	t.Parallel()
	dir := newCA(t)
	is := certificateOf(t, dir)
	base := "http://localhost/crl/" + issuerID(is)
	leaf := func(r running) *x509.Certificate {
		t.Helper()
		c, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", r.at.HTTPS.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.(*tls.Conn).ConnectionState().PeerCertificates[0]
	}
	list := func(r running, url string) *x509.RevocationList {
		t.Helper()
		code, body := r.get(t, "http://"+r.at.HTTP.String()+strings.TrimPrefix(url, "http://localhost"))
		if code != http.StatusOK {
			t.Fatalf("%s: %d", url, code)
		}
		l, err := x509.ParseRevocationList([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if err := l.CheckSignatureFrom(is); err != nil {
			t.Error(err)
		}
		return l
	}
	r := run(t, dir)
	if got := leaf(r).CRLDistributionPoints; !slices.Equal(got, []string{base + ".crl"}) {
		t.Errorf("without parts: %q", got)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}

	const section = "\n    crl: {shards: 3, delta: 1h, delta_in_certificates: true}\n"
	edit(t, dir, "    key: issuing\n", "    key: issuing"+section)
	if err := os.Remove(filepath.Join(dir, selfCertFile)); err != nil { // so that the listener has another one
		t.Fatal(err)
	}
	r = run(t, dir)
	cert := leaf(r)
	point := cert.CRLDistributionPoints[0]
	if !slices.Contains([]string{base + "/1.crl", base + "/2.crl", base + "/3.crl"}, point) {
		t.Errorf("one of three parts: %s", point)
	}
	if !slices.ContainsFunc(list(r, point).Extensions, func(e pkix.Extension) bool {
		return e.Id.String() == "2.5.29.28" && e.Critical && strings.Contains(string(e.Value), point)
	}) {
		t.Errorf("the list at %s does not say where it is", point)
	}
	delta := strings.TrimSuffix(point, ".crl") + "/delta.crl"
	list(r, delta)
	if !slices.ContainsFunc(cert.Extensions, func(e pkix.Extension) bool {
		return e.Id.String() == "2.5.29.46" && strings.Contains(string(e.Value), delta)
	}) {
		t.Errorf("the certificate does not say where the delta is")
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}

	edit(t, dir, section, "\n")
	r = run(t, dir)
	for n := 1; n <= 3; n++ {
		list(r, fmt.Sprintf("%s/%d.crl", base, n))
	}
}
