package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/admin/client"
)

// crlOf makes a CRL and what the server says of it.
func crlOf(t *testing.T, number int64, thisUpdate time.Time, entries int) (client.CRLStatus, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	l := &x509.RevocationList{Number: big.NewInt(number), ThisUpdate: thisUpdate, NextUpdate: thisUpdate.Add(time.Hour)}
	for i := range entries {
		l.RevokedCertificateEntries = append(l.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: big.NewInt(int64(i + 1)), RevocationTime: thisUpdate})
	}
	issuer := &x509.Certificate{KeyUsage: x509.KeyUsageCRLSign, SubjectKeyId: []byte{1}, PublicKey: key.Public()}
	issuer.Subject.CommonName = strings.Repeat("a long name ", 5)
	der, err := x509.CreateRevocationList(rand.Reader, l, issuer, key)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(der)
	next := l.NextUpdate
	return client.CRLStatus{
		Issuer: "aa", IssuerName: "main", Path: "/crl/aa.crl", URL: "http://pki.test/crl/aa.crl", Number: number, ThisUpdate: &thisUpdate, NextUpdate: &next,
		Entries: entries, Octets: int64(len(der)), SHA256: hex.EncodeToString(sum[:]),
	}, der
}

func TestCRLsAreListedWithTheirTroubles(t *testing.T) {
	t.Parallel()
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	c, _ := crlOf(t, 7, at, 3)
	shard := client.CRLStatus{IssuerName: "main", Shard: 2, Path: "/crl/aa/2.crl", Trouble: "the device\x1b is away"}
	delta := c
	delta.Delta, delta.Base, delta.Number, delta.Octets = true, 7, 8, 300
	c.Octets = 400
	o := newOperator(t, map[string]any{"GET /crls": client.CRLList{CRLs: []client.CRLStatus{c, delta, shard}}})
	code, out, errs := o.do(t, "crl", "list")
	want := `ISSUER  SHARD  KIND      NUMBER  THIS UPDATE           NEXT UPDATE           ENTRIES  OCTETS
main    -      complete  7       2030-01-02 03:04:05Z  2030-01-02 04:04:05Z  3        400
main    -      delta     8       2030-01-02 03:04:05Z  2030-01-02 04:04:05Z  3        300
main    2      complete  -       -                     -                     -        -
`
	if code != exitOK || out != want || errs != "secsy-pki: building /crl/aa/2.crl: the device? is away\n" {
		t.Errorf("%d:\n%s%s", code, out, errs)
	}
	if code, out, _ := o.do(t, "crl", "list", "--json"); code != exitOK || strings.Count(out, "\n") != 3 || !strings.Contains(out, `"trouble"`) {
		t.Errorf("%d: %s", code, out)
	}
}

func TestOneCRLIsShown(t *testing.T) {
	t.Parallel()
	for _, entries := range []int{0, 1, 2, 5000} { // PEM ends in lines of all lengths
		c, der := crlOf(t, 7, time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), entries)
		o := newOperator(t, map[string]any{"GET /crls": client.CRLList{CRLs: []client.CRLStatus{c}}, "GET /crls/files/crl/aa.crl": der})
		if code, out, errs := o.do(t, "crl", "show", "main", "--pem"); code != exitOK || out != string(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})) {
			t.Errorf("%d:\n%s%s", code, out, errs)
		}
		if code, out, _ := o.do(t, "crl", "show", "aa"); code != exitOK || !strings.Contains(out, c.SHA256) || !strings.Contains(out, "Number:       7\n") {
			t.Errorf("%d:\n%s", code, out)
		}
		if code, out, _ := o.do(t, "crl", "show", "aa", "--json"); code != exitOK || !strings.HasPrefix(out, `{"issuer":"aa"`) {
			t.Errorf("%d:\n%s", code, out)
		}
		for _, args := range []string{"other", "main --shard 3", "main --delta"} {
			if code, _, errs := o.do(t, append([]string{"crl", "show"}, strings.Fields(args)...)...); code != exitError || !strings.Contains(errs, "crl list") {
				t.Errorf("%s: %d, %s", args, code, errs)
			}
		}
		if code, _, _ := o.do(t, "crl", "show"); code != exitUsage {
			t.Errorf("without an issuer: %d", code)
		}
	}
}

// An exporter exports to one folder from one server.
type exporter struct {
	*operator
	t   *testing.T
	dir string
}

func newExporter(t *testing.T) *exporter {
	t.Helper()
	return &exporter{newOperator(t, map[string]any{}), t, t.TempDir()}
}

func (e *exporter) serves(c client.CRLStatus, der []byte) {
	e.answers["GET /crls"] = client.CRLList{CRLs: []client.CRLStatus{c}}
	e.answers["GET /crls/files"+c.Path] = der
}

func (e *exporter) export(args ...string) (code int, out, errs string) {
	e.t.Helper()
	code, out, errs = e.do(e.t, append([]string{"crl", "export", "--dir", e.dir}, args...)...)
	for range len(e.asked) {
		<-e.asked
	}
	_ = filepath.WalkDir(e.dir, func(path string, _ os.DirEntry, _ error) error {
		if strings.HasSuffix(path, ".tmp") {
			e.t.Errorf("%s was left behind", path)
		}
		return nil
	})
	return code, out, errs
}

func TestExportWritesWhatIsNewerAndNothingElse(t *testing.T) {
	t.Parallel()
	e := newExporter(t)
	now := time.Now().UTC().Truncate(time.Second)
	file := filepath.Join(e.dir, "crl", "aa.crl")
	holds := func(when string, want []byte, at time.Time) os.FileInfo {
		t.Helper()
		got, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d octets, want %d, %v", when, len(got), len(want), err)
		}
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm() != 0o644 || !info.ModTime().Equal(at) {
			t.Errorf("%s: %v of %v, %v", when, info.Mode(), info.ModTime(), err)
		}
		return info
	}
	one, der1 := crlOf(t, 1, now.Add(-time.Minute), 5000) // more than one buffer
	two, der2 := crlOf(t, 2, now, 5)

	e.serves(one, der1)
	if code, out, errs := e.export(); code != exitOK || !strings.HasPrefix(out, file+": number 1, 5000 entries, until ") || errs != "" {
		t.Errorf("the first: %d, %s%s", code, out, errs)
	}
	first := holds("the first", der1, *one.ThisUpdate)
	if code, out, errs := e.export(); code != exitOK || out+errs != "" {
		t.Errorf("the same: %d, %s%s", code, out, errs)
	}
	if again := holds("the same", der1, *one.ThisUpdate); !os.SameFile(first, again) {
		t.Error("the same was written again")
	}
	e.serves(two, der2)
	if code, _, errs := e.export("--issuer", "main"); code != exitOK {
		t.Errorf("a newer one: %d, %s", code, errs)
	}
	holds("a newer one", der2, *two.ThisUpdate)
	e.serves(one, der1) // a server that is behind
	if code, _, errs := e.export(); code != exitOK || !strings.Contains(errs, "it stays") {
		t.Errorf("an older one: %d, %s", code, errs)
	}
	holds("an older one", der2, *two.ThisUpdate)
	if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := e.export(); code != exitOK {
		t.Errorf("over what is no CRL: %d, %s", code, errs)
	}
	holds("over what is no CRL", der1, *one.ThisUpdate)
}

func TestExportSaysWhatIsNotAsItShouldBe(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(time.Second)
	good, der := crlOf(t, 1, now, 1)
	for name, c := range map[string]struct {
		change func(*client.CRLStatus)
		says   string
		writes bool
	}{
		"none yet":       {func(c *client.CRLStatus) { c.Number = 0 }, "none yet", false},
		"ended":          {func(c *client.CRLStatus) { *c.NextUpdate = now.Add(-time.Second) }, "ended", true},
		"damaged":        {func(c *client.CRLStatus) { c.SHA256 = strings.Repeat("0", 64) }, "damaged", false},
		"not served":     {func(c *client.CRLStatus) { c.Path = "/crl/bb.crl" }, "no such", false},
		"no file's name": {func(c *client.CRLStatus) { c.URL = "http://pki.test/crl/" }, "no name", false},
		"outside":        {func(c *client.CRLStatus) { c.URL = "http://pki.test/../../etc/passwd" }, "no name", false},
	} {
		e := newExporter(t)
		e.serves(good, der)
		bad := good
		next := *good.NextUpdate
		bad.NextUpdate = &next
		c.change(&bad)
		e.answers["GET /crls"] = client.CRLList{CRLs: []client.CRLStatus{bad}}
		code, _, errs := e.export()
		files, err := filepath.Glob(filepath.Join(e.dir, "*", "*"))
		if code != exitError || !strings.Contains(errs, c.says) || (len(files) == 1) != c.writes || err != nil {
			t.Errorf("%s: %d, %s, %v", name, code, errs, files)
		}
	}
	e := newExporter(t)
	e.serves(good, der)
	if code, _, errs := e.export("--issuer", "other"); code != exitError || !strings.Contains(errs, `"other"`) {
		t.Errorf("no such issuer: %d, %s", code, errs)
	}
	if code, _, _ := e.do(t, "crl", "export"); code != exitUsage {
		t.Errorf("without a folder: %d", code)
	}
}

// Whoever exports while a new CRL is published gets that one.
func TestExportFollowsWhatIsPublishedMeanwhile(t *testing.T) {
	t.Parallel()
	e := newExporter(t)
	now := time.Now().UTC().Truncate(time.Second)
	one, _ := crlOf(t, 1, now.Add(-time.Minute), 1)
	two, der2 := crlOf(t, 2, now, 2)
	e.serves(two, der2)
	asked := 0
	e.answers["GET /crls"] = func([]byte) any {
		if asked++; asked == 1 {
			return client.CRLList{CRLs: []client.CRLStatus{one}}
		}
		return client.CRLList{CRLs: []client.CRLStatus{two}}
	}
	if code, out, errs := e.export(); code != exitOK || !strings.Contains(out, "number 2") {
		t.Errorf("%d, %s%s", code, out, errs)
	}
}

func TestRebuildWaitsUntilNumbersHaveGrown(t *testing.T) {
	t.Parallel()
	before, _ := crlOf(t, 1, time.Now(), 1)
	during, after, other := before, before, before
	during.Building, during.Read, during.Trouble = true, 1, "the device is away"
	after.Number = 2
	other.Path = "/crl/other.crl"
	asked := 0
	o := newOperator(t, map[string]any{
		"POST /crls/rebuild": client.CRLList{CRLs: []client.CRLStatus{before}},
		"GET /crls": func([]byte) any {
			if asked++; asked == 1 {
				return client.CRLList{CRLs: []client.CRLStatus{during, other}}
			}
			return client.CRLList{CRLs: []client.CRLStatus{after, other}}
		},
	})
	code, out, errs := o.do(t, "crl", "rebuild", "--issuer", "main")
	if code != exitOK || strings.Count(out, "main") != 1 || strings.Count(errs, "the device is away") != 1 || asked != 2 {
		t.Errorf("%d after asking %d times:\n%s%s", code, asked, out, errs)
	}
	if got := <-o.asked; got != `POST /crls/rebuild {"issuer":"main"}` {
		t.Errorf("asked %s", got)
	}
	o.answers["GET /crls"] = client.CRLList{CRLs: []client.CRLStatus{before}}
	if code, _, errs := o.do(t, "crl", "rebuild", "--wait", "1ms"); code != exitError || !strings.Contains(errs, "not there yet: /crl/aa.crl") {
		t.Errorf("too late: %d, %s", code, errs)
	}
	if code, out, errs := o.do(t, "crl", "rebuild", "--wait", "0"); code != exitOK || out+errs != "" {
		t.Errorf("without waiting: %d, %s%s", code, out, errs)
	}
	if code, _, _ := o.do(t, "crl", "rebuild", "--wait", "-1s"); code != exitUsage {
		t.Errorf("a negative time: %d", code)
	}
}

// FuzzThisUpdate reads what may be in a folder that others write to.
func FuzzThisUpdate(f *testing.F) {
	f.Add([]byte{0x30, 0x80, 0x30, 0x80})
	f.Add([]byte{0x30, 0x03, 0x30, 0x01, 0x02})
	f.Fuzz(func(t *testing.T, der []byte) {
		at := thisUpdateOf(der)
		if l, err := x509.ParseRevocationList(der); err == nil && !at.Equal(l.ThisUpdate) {
			t.Errorf("%v, want %v", at, l.ThisUpdate)
		}
	})
}
