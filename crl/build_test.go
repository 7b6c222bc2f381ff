package crl

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

// A certList is as much of RFC 5280 §5.1 as is needed to see what the bytes say.
type certList struct {
	TBS struct {
		Version    int
		Alg        pkix.AlgorithmIdentifier
		Issuer     asn1.RawValue
		ThisUpdate asn1.RawValue
		NextUpdate asn1.RawValue
		Revoked    []struct {
			Serial     *big.Int
			Date       asn1.RawValue
			Extensions []pkix.Extension `asn1:"optional"`
		} `asn1:"optional"`
		Extensions []pkix.Extension `asn1:"explicit,tag:0"`
	}
	Alg pkix.AlgorithmIdentifier
	Sig asn1.BitString
}

func decode(t *testing.T, der []byte) certList {
	t.Helper()
	var l certList
	if rest, err := asn1.Unmarshal(der, &l); err != nil || len(rest) > 0 {
		t.Fatalf("%v, %d octets left", err, len(rest))
	}
	return l
}

func TestCRLIsShapedAsTheProfileSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.revoke("05", ca.Unspecified, time.Now())
	w.revoke("ff", ca.Superseded, time.Now()) // needs a sign octet in DER
	w.revoke("7f112233445566778899aabbccddeeff00112233", ca.KeyCompromise, time.Now())
	s := w.prepared(nil)
	c, _ := s.Current(w.issuer.ID)
	der := w.der(s)
	l := decode(t, der)
	if l.TBS.Version != 1 { // v2
		t.Errorf("version %d", l.TBS.Version)
	}
	if !bytes.Equal(l.TBS.Issuer.FullBytes, w.issuer.Cert.RawSubject) {
		t.Error("issuer is not the subject octet for octet")
	}
	for _, tm := range []asn1.RawValue{l.TBS.ThisUpdate, l.TBS.NextUpdate, l.TBS.Revoked[0].Date} {
		if tm.Tag != asn1.TagUTCTime || len(tm.Bytes) != len("060102150405Z") {
			t.Errorf("time %d %q", tm.Tag, tm.Bytes)
		}
	}
	reason := asn1.ObjectIdentifier{2, 5, 29, 21}
	for _, e := range l.TBS.Revoked {
		switch ca.SerialOf(e.Serial) {
		case "05":
			if len(e.Extensions) != 0 {
				t.Error("unspecified is said")
			}
		default:
			if len(e.Extensions) != 1 || !e.Extensions[0].Id.Equal(reason) || e.Extensions[0].Critical {
				t.Errorf("entry extensions %v", e.Extensions)
			}
		}
		if !bytes.Contains(der, derInteger(t, e.Serial)) {
			t.Errorf("serial %x is encoded otherwise than in a certificate", e.Serial)
		}
	}
	got := map[string]bool{}
	for _, e := range l.TBS.Extensions {
		got[e.Id.String()] = true
		if e.Critical {
			t.Errorf("extension %v is critical", e.Id)
		}
	}
	if len(got) != 2 || !got["2.5.29.20"] || !got["2.5.29.35"] {
		t.Errorf("extensions %v", got)
	}
	if c.NextUpdate.Sub(c.ThisUpdate) != 7*24*time.Hour || c.ThisUpdate.After(time.Now()) {
		t.Errorf("from %v to %v", c.ThisUpdate, c.NextUpdate)
	}
}

func derInteger(t *testing.T, n *big.Int) []byte {
	t.Helper()
	b, err := asn1.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEmptyListIsAbsent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.prepared(nil)
	der := w.der(s)
	// RFC 5280 §5.1.2.6: the field must be absent; [0] follows nextUpdate.
	l := decode(t, der)
	if l.TBS.Revoked != nil {
		t.Error("an empty SEQUENCE")
	}
	if !bytes.Contains(der, append(slices.Clone(l.TBS.NextUpdate.FullBytes), 0xa0)) {
		t.Error("something stands between nextUpdate and the extensions")
	}
}

func TestThisUpdateMovesOn(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 999, time.UTC)
	sec := now.Truncate(time.Second)
	for name, c := range map[string]struct {
		previous time.Time
		latest   time.Time
		want     time.Time
	}{
		"the first":                      {time.Time{}, time.Time{}, sec.Add(-backdate)},
		"long after":                     {sec.Add(-time.Hour), time.Time{}, sec.Add(-backdate)},
		"soon after":                     {sec.Add(-backdate), time.Time{}, sec.Add(-backdate + time.Second)},
		"not before a revocation listed": {time.Time{}, now, sec},
		"a revocation yet to come":       {time.Time{}, now.Add(time.Hour), sec},
		"clock a little back":            {sec.Add(time.Minute), time.Time{}, sec.Add(time.Minute + time.Second)},
		"clock was a year ahead":         {sec.AddDate(1, 0, 0), time.Time{}, sec.Add(-backdate)},
	} {
		if got := thisUpdate(now, c.previous, c.latest); !got.Equal(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestEveryCRLIsAudited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.revoke("05", ca.Superseded, time.Now())
	s := w.prepared(nil)
	c, _ := s.Current(w.issuer.ID)
	if len(w.audits) != 1 {
		t.Fatalf("%d entries", len(w.audits))
	}
	e, sum := w.audits[0], sha256.Sum256(w.der(s))
	if e.Action != "crl.issued" || e.Object != fmt.Sprintf("crl/%s/%d", w.issuer.ID, c.Number) {
		t.Errorf("%s %s", e.Action, e.Object)
	}
	for _, want := range []string{`"sha256":"` + hex.EncodeToString(sum[:]), `"entries":1`, fmt.Sprintf(`"number":%d`, c.Number)} {
		if !strings.Contains(string(e.Detail), want) {
			t.Errorf("no %s in %s", want, e.Detail)
		}
	}
	w.publishErr = errors.New("no audit log")
	w.revoke("06", ca.Superseded, time.Now())
	if _, err := s.update(t.Context(), s.shelf(Scope{Issuer: w.issuer.ID})); err == nil {
		t.Error("no error")
	}
	if again, _ := s.Current(w.issuer.ID); again.Number != c.Number {
		t.Error("a CRL that the store did not take is served")
	}
}

func openssl(t *testing.T, args ...string) string {
	t.Helper()
	out, _ := exec.CommandContext(t.Context(), "openssl", args...).CombinedOutput() // the words count
	return string(out)
}

func TestOpenSSLBelievesTheCRL(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	good, bad := w.leaf("7001020304050607"), w.leaf("7001020304050608")
	w.revoke("7001020304050608", ca.CessationOfOperation, bad.NotAfter)
	s := w.prepared(nil)
	dir := t.TempDir()
	put := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cacert, list := put("ca.pem", "CERTIFICATE", w.issuer.Cert.Raw), put("crl.pem", "X509 CRL", w.der(s))
	if out := openssl(t, "crl", "-in", list, "-noout", "-CAfile", cacert, "-text"); !strings.Contains(out, "verify OK") ||
		!strings.Contains(out, "Cessation Of Operation") || !strings.Contains(out, "X509v3 CRL Number") {
		t.Errorf("openssl crl: %s", out)
	}
	verify := func(leaf *x509.Certificate) string {
		return openssl(t, "verify", "-x509_strict", "-CAfile", cacert, "-crl_check", "-CRLfile", list, put("leaf.pem", "CERTIFICATE", leaf.Raw))
	}
	if out := verify(good); !strings.Contains(out, "leaf.pem: OK") {
		t.Errorf("the good one: %s", out)
	}
	if out := verify(bad); !strings.Contains(out, "certificate revoked") {
		t.Errorf("the revoked one: %s", out)
	}
}
