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
	"github.com/secsy-pki/secsy-pki/keys"
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
	l := decode(t, c.DER)
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
		if !bytes.Contains(c.DER, derInteger(t, e.Serial)) {
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
	c, _ := s.Current(w.issuer.ID)
	// RFC 5280 §5.1.2.6: the field must be absent; [0] follows nextUpdate.
	l := decode(t, c.DER)
	if l.TBS.Revoked != nil {
		t.Error("an empty SEQUENCE")
	}
	if !bytes.Contains(c.DER, append(slices.Clone(l.TBS.NextUpdate.FullBytes), 0xa0)) {
		t.Error("something stands between nextUpdate and the extensions")
	}
}

func TestTimesBeyond2049AreGeneralized(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := time.Date(2050, 1, 1, 0, 0, 0, 0, time.UTC)
	der, err := sign(t.Context(), w.issuer, plan{number: 1, thisUpdate: at.Add(-time.Second), nextUpdate: at})
	if err != nil {
		t.Fatal(err)
	}
	if l := decode(t, der); l.TBS.ThisUpdate.Tag != asn1.TagUTCTime || l.TBS.NextUpdate.Tag != asn1.TagGeneralizedTime {
		t.Errorf("%d, %d", l.TBS.ThisUpdate.Tag, l.TBS.NextUpdate.Tag)
	}
}

func TestEveryEntryComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, n := range []int{0, 1, 1_000, 10_000} {
		now := time.Now().UTC().Truncate(time.Second)
		d := plan{number: Number(n), thisUpdate: now, nextUpdate: now.Add(time.Hour), entries: manyEntries(n)}
		if _, err := sign(t.Context(), w.issuer, d); err != nil { // which reads it back
			t.Errorf("%d entries: %v", n, err)
		}
	}
}

func TestCRLThatSaysOtherThanMeantIsNotPublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := time.Now().UTC().Truncate(time.Second)
	d := plan{number: 5, thisUpdate: now, nextUpdate: now.Add(time.Hour), entries: manyEntries(2)}
	der, err := sign(t.Context(), w.issuer, d)
	if err != nil {
		t.Fatal(err)
	}
	if err := check(der, w.issuer, d); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*plan, *ca.Issuer){
		"number":  func(d *plan, _ *ca.Issuer) { d.number++ },
		"times":   func(d *plan, _ *ca.Issuer) { d.nextUpdate = d.nextUpdate.Add(time.Second) },
		"entries": func(d *plan, _ *ca.Issuer) { d.entries = d.entries[:1] },
		"serial":  func(d *plan, _ *ca.Issuer) { d.entries[0].Serial = "77" },
		"reason":  func(d *plan, _ *ca.Issuer) { d.entries[1].Reason = 1 },
		"date":    func(d *plan, _ *ca.Issuer) { d.entries[1].RevokedAt = now },
		"issuer":  func(_ *plan, is *ca.Issuer) { is.Cert = newWorld(t).issuer.Cert },
	} {
		other, is := d, *w.issuer
		other.entries = slices.Clone(d.entries)
		change(&other, &is)
		if err := check(der, &is, other); err == nil {
			t.Errorf("another %s: passes", name)
		}
	}
	der[len(der)-1] ^= 1
	if err := check(der, w.issuer, d); err == nil {
		t.Error("a broken signature passes")
	}
	is := *w.issuer
	other, err := keys.NewPrivateKey(keys.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	is.Key = keys.FromSigner(other)
	if _, err := sign(t.Context(), &is, d); err == nil {
		t.Error("another key's signature passes")
	}
}

func TestThisUpdateMovesOn(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 999, time.UTC)
	sec := now.Truncate(time.Second)
	for name, c := range map[string]struct {
		previous time.Time
		entries  []Entry
		want     time.Time
	}{
		"the first":                      {time.Time{}, nil, sec.Add(-backdate)},
		"long after":                     {sec.Add(-time.Hour), nil, sec.Add(-backdate)},
		"soon after":                     {sec.Add(-backdate), nil, sec.Add(-backdate + time.Second)},
		"not before a revocation listed": {time.Time{}, []Entry{{RevokedAt: now}, {RevokedAt: sec.Add(-time.Hour)}}, sec},
		"a revocation yet to come":       {time.Time{}, []Entry{{RevokedAt: now.Add(time.Hour)}}, sec},
		"clock a little back":            {sec.Add(time.Minute), nil, sec.Add(time.Minute + time.Second)},
		"clock was a year ahead":         {sec.AddDate(1, 0, 0), nil, sec.Add(-backdate)},
	} {
		if got := thisUpdate(now, c.previous, c.entries); !got.Equal(c.want) {
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
	e, sum := w.audits[0], sha256.Sum256(c.DER)
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
	if _, err := s.update(t.Context(), s.shelves[w.issuer.ID]); err == nil {
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
	c, _ := s.Current(w.issuer.ID)
	dir := t.TempDir()
	put := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cacert, list := put("ca.pem", "CERTIFICATE", w.issuer.Cert.Raw), put("crl.pem", "X509 CRL", c.DER)
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

func BenchmarkSign100k(b *testing.B) {
	w := newWorld(b)
	now := time.Now().UTC().Truncate(time.Second)
	d := plan{number: 1, thisUpdate: now, nextUpdate: now.Add(time.Hour), entries: manyEntries(100_000)}
	b.ReportAllocs()
	for b.Loop() {
		der, err := sign(b.Context(), w.issuer, d)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(der)))
	}
}
