package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/admin/client"
)

// A registry is a server that revokes: serials that begin with 0 are valid at
// first, those with e are expired and refused, and there are no others.
type registry struct {
	*operator
	revoked map[string]string // reasons by serial
	parts   []int             // how many each request had, rehearsals left out
}

func newRegistry(t *testing.T, more map[string]any) *registry {
	t.Helper()
	g := &registry{revoked: map[string]string{}}
	answers := map[string]any{"POST /certificates/revoke": func(body []byte) any { return g.revoke(t, body) }}
	for k, v := range more {
		answers[k] = v
	}
	g.operator = newOperator(t, answers)
	return g
}

func (g *registry) revoke(t *testing.T, body []byte) any {
	var r client.Revocations
	if err := json.Unmarshal(body, &r); err != nil {
		t.Error(err)
	}
	var out client.RevokedMany
	for _, c := range r.Certificates {
		if c.Reason == "" {
			c.Reason = r.Reason
		}
		res := client.Result{Serial: c.Serial, Reason: c.Reason, Outcome: client.OutcomeRevoked}
		switch {
		case g.revoked[c.Serial] != "":
			res.Outcome = client.OutcomeAlready
		case c.Serial[0] == 'e':
			res.Outcome, res.Detail = client.OutcomeRefused, "no"
		case c.Serial[0] != '0':
			res.Outcome, res.Detail = client.OutcomeUnknown, "not ours"
		case !r.DryRun:
			g.revoked[c.Serial] = c.Reason
		}
		out.Results = append(out.Results, res)
	}
	if !r.DryRun {
		g.parts = append(g.parts, len(r.Certificates))
	}
	return out
}

// listed is a file of serials and their lines.
func listed(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestAFileIsRevokedInPartsAndWhatCannotBeIsNamed(t *testing.T) {
	t.Parallel()
	samples := map[string]any{}
	for _, s := range []string{"010000", "010028", "010050", "010078", "0100a0", "010005"} {
		samples["GET /certificates/"+s] = cert(s)
	}
	g := newRegistry(t, samples)
	text := "serial,reason\nE0:01\nffff,keyCompromise\n"
	for n := range client.MaxRevocations + 1 {
		text += fmt.Sprintf("01%04x,Superseded\r\n", n)
	}
	file := listed(t, text)
	if code, _, errs := g.do(t, "cert", "revoke", "--file", file, "--reason", "cessationOfOperation", "--dry-run"); code != exitError || len(g.parts) != 0 ||
		!strings.Contains(errs, "203 certificates: 201 will be revoked, 0 are revoked already, 2 can't be") {
		t.Fatalf("got %d, %v\n%s", code, g.parts, errs)
	}
	code, out, errs := g.do(t, "cert", "revoke", "--file", file, "--reason", "cessationOfOperation", "--yes", "--json", "--rate", "0")
	if code != exitError || !slices.Equal(g.parts, []int{200, 1}) || len(g.revoked) != 201 || g.revoked["010007"] != "superseded" {
		t.Fatalf("got %d, %v\n%s", code, g.parts, errs)
	}
	for _, part := range []string{"e001: refused: no\n", "ffff: notFound: not ours\n", "201 certificates were revoked\n", "2 of 203 certificates can't be revoked"} {
		if strings.Count(errs, part) != 1 {
			t.Errorf("%q is not there once:\n%s", part, errs)
		}
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var r client.Result
	if err := json.Unmarshal([]byte(lines[0]), &r); err != nil || len(lines) != 201 || r.Outcome != client.OutcomeRevoked || r.Serial != "010000" {
		t.Errorf("%d lines, the first %+v, %v", len(lines), r, err)
	}
	// Again, after a part of it was cut off: what is done is done.
	delete(g.revoked, "010005")
	g.parts = nil
	_, _, errs = g.do(t, "cert", "revoke", "--file", file, "--reason", "cessationOfOperation", "--yes")
	if !slices.Equal(g.parts, []int{1}) || !strings.Contains(errs, "1 will be revoked, 200 are revoked already") {
		t.Errorf("again: %v\n%s", g.parts, errs)
	}
}

func TestNothingIsRevokedWithoutAClearWord(t *testing.T) {
	t.Parallel()
	g := newRegistry(t, nil)
	file := listed(t, "01\n")
	for name, args := range map[string][]string{
		"nobody to ask":     {"--file", file, "--reason", "superseded"},
		"no reason":         {"--file", file, "--yes"},
		"no certificates":   {"--reason", "superseded", "--yes"},
		"two ways":          {"01", "--file", file, "--reason", "superseded", "--yes"},
		"a file and a name": {"--name", "a.example", "--file", file, "--reason", "superseded", "--yes"},
		"no serial":         {"xyz", "--reason", "superseded", "--yes"},
		"hold":              {"01", "--reason", "certificateHold", "--yes"},
		"gone by":           {"01", "--reason", "superseded", "--yes", "--replace-by", "2026-01-01T00:00:00Z"},
		"a note for none":   {"01", "--reason", "superseded", "--yes", "--note", "x"},
		"a rate of -1":      {"01", "02", "--reason", "superseded", "--yes", "--rate", "-1"},
	} {
		if code, _, errs := g.do(t, append([]string{"cert", "revoke"}, args...)...); code != exitUsage {
			t.Errorf("%s: got %d\n%s", name, code, errs)
		}
	}
	for name, text := range map[string]string{
		"empty": "# none\n", "no serial": "01\nnonsense\n", "no reason": "01,boredom\n", "twice": "01,superseded\n0x1,keyCompromise\n",
		"a key": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "cut off": "-----BEGIN CERTIFICATE-----\nAAAA\n", "no DER": "\x30\x82\x00\x01",
	} {
		if code, _, errs := g.do(t, "cert", "revoke", "--file", listed(t, text), "--reason", "superseded", "--yes"); code != exitError {
			t.Errorf("%s: got %d\n%s", name, code, errs)
		}
	}
	if len(g.asked) > 0 {
		t.Errorf("asked %s", <-g.asked)
	}
}

func TestCertificatesOfAKeyAreRevokedUntilNoneComesAnyMore(t *testing.T) {
	t.Parallel()
	key, der := certificateFile(t)
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(spki)
	rounds := 0
	g := newRegistry(t, map[string]any{
		"GET /certificates?limit=500&spki_sha256=" + hex.EncodeToString(sum[:]) + "&state=unexpired": func([]byte) any {
			page := client.CertificatePage{Certificates: []client.Certificate{cert("01"), cert("02")}}
			if rounds++; rounds > 1 { // one was being issued
				page.Certificates = append(page.Certificates, cert("03"))
			}
			return page
		},
		"GET /certificates/01": cert("01"), "GET /certificates/02": cert("02"),
	})
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	sec1, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pemFile := func(kind string, b []byte) string {
		return listed(t, "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"+string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b})))
	}
	for _, given := range []string{
		hex.EncodeToString(sum[:]), pemFile("PUBLIC KEY", spki), pemFile("PRIVATE KEY", pkcs8), pemFile("EC PRIVATE KEY", sec1), pemFile("CERTIFICATE", der),
	} {
		if h, err := keyHash(given); err != nil || h != hex.EncodeToString(sum[:]) {
			t.Errorf("%.40s: %s, %v", given, h, err)
		}
	}
	code, _, errs := g.do(t, "cert", "revoke", "--key", pemFile("PRIVATE KEY", pkcs8), "--yes", "--invalid-since", "2026-05-01T00:00:00Z")
	if code != exitOK || len(g.revoked) != 3 || g.revoked["03"] != "keyCompromise" || rounds != 3 {
		t.Errorf("got %d, %v, looked %d times\n%s", code, g.revoked, rounds, errs)
	}
}

// A key is blocked with a certificate for it. Where there is none that is said.
func TestAKeyWithoutCertificatesIsSaidNotToBeBlocked(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("ab", sha256.Size)
	g := newRegistry(t, map[string]any{"GET /certificates?limit=500&spki_sha256=" + hash + "&state=unexpired": client.CertificatePage{}})
	code, _, errs := g.do(t, "cert", "revoke", "--key", hash, "--yes")
	if code != exitError || len(g.revoked) > 0 || !strings.Contains(errs, "was not blocked") {
		t.Errorf("got %d, %v\n%s", code, g.revoked, errs)
	}
}

// certificateFile makes a key and a certificate for it, whose serial is 0x0abc.
func certificateFile(t *testing.T) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(0xabc)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return key, der
}

func TestCertificatesInAFileAreTheVeryOnes(t *testing.T) {
	t.Parallel()
	_, one := certificateFile(t)
	_, two := certificateFile(t)
	sum := sha256.Sum256(one)
	want := []client.Revoke{{Serial: "0abc", SHA256: hex.EncodeToString(sum[:])}}
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: one})
	for name, b := range map[string][]byte{
		"PEM": append([]byte("# from a client\n"), block...), "DER": one, "twice": append(bytes.Clone(block), block...), "two in DER": append(bytes.Clone(one), one...),
	} {
		if got, err := readTargets(bytes.NewReader(b)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if got, err := readTargets(bytes.NewReader(append(bytes.Clone(one), two...))); err == nil {
		t.Errorf("two certificates of one serial: %+v", got)
	}
	if got, err := readTargets(strings.NewReader("0abc;keyCompromise\n\n1,\n")); err != nil || fmt.Sprint(got) != "[{0abc keyCompromise } {01  }]" {
		t.Errorf("lines: %+v, %v", got, err)
	}
}

func TestReplaceByOpensAnIncidentAndRevokesNothing(t *testing.T) {
	t.Parallel()
	by := time.Now().Add(5 * 24 * time.Hour).UTC().Truncate(time.Second)
	name := "revocation-" + strings.ToLower(by.Format("20060102T150405Z"))
	i := client.Incident{Name: name, Status: "open", Listed: true, Serials: 2, WindowStart: by, WindowEnd: by}
	created := false
	var asked client.IncidentRequest
	g := newRegistry(t, map[string]any{
		"GET /certificates/01": cert("01"), "GET /certificates/02": cert("02"),
		"POST /acme/incidents": func(body []byte) any {
			created = json.Unmarshal(body, &asked) == nil
			return i
		},
		"POST /acme/incidents/" + name + "/serials": client.AddedSerials{Listed: 2},
	})
	code, _, errs := g.do(t, "cert", "revoke", "01", "02", "--reason", "superseded", "--yes", "--replace-by", by.Format(time.RFC3339))
	if !created || len(g.revoked) != 0 || !asked.Listed || asked.Name != name || code == exitUsage {
		t.Fatalf("got %d, %v, %+v\n%s", code, g.revoked, asked, errs)
	}
	g.answers["GET /acme/incidents/"+name], created = i, false
	code, out, errs := g.do(t, "cert", "revoke", "01", "02", "--reason", "superseded", "--yes", "--replace-by", by.Format(time.RFC3339))
	if code != exitOK || created || !strings.Contains(out, name) || !strings.Contains(errs, "secsy-pki cert revoke --incident "+name+" --reason superseded") {
		t.Fatalf("again: got %d, created %t\n%s\n%s", code, created, out, errs)
	}
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	if start, end := replacementWindow(now, now.Add(96*time.Hour)); !start.Equal(now) || !end.Equal(now.Add(48*time.Hour)) {
		t.Errorf("four days: %s to %s", start, end)
	}
	if start, end := replacementWindow(now, now.Add(23*time.Hour)); !end.Before(now) || !start.Before(end) {
		t.Errorf("less than a day: %s to %s", start, end)
	}
}

func TestHoldAndReleaseTakeSeveral(t *testing.T) {
	t.Parallel()
	o := newOperator(t, map[string]any{"POST /certificates/01/revoke": cert("01"), "POST /certificates/02/release": cert("02")})
	code, out, errs := o.do(t, "cert", "hold", "01", "ff")
	if code != exitError || out != "certificate 01 is on hold\n" || !strings.Contains(errs, "no such certificate") {
		t.Errorf("got %d\n%s\n%s", code, out, errs)
	}
	if got, want := <-o.asked, `POST /certificates/01/revoke {"reason":"certificateHold"}`; got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
	if code, out, _ := o.do(t, "cert", "release", "02"); code != exitOK || out != "certificate 02 is released\n" {
		t.Errorf("got %d\n%s", code, out)
	}
	if code, _, _ := o.do(t, "cert", "release"); code != exitUsage {
		t.Errorf("without a serial: got %d", code)
	}
}

// What docs/revocation.md says to type is understood: commands, flags, no more arguments than there may be.
func TestRevocationIsDoneAsItsPageSays(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/revocation.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(strings.ReplaceAll(string(page), "\\\n", "")) {
		line, ok := strings.CutPrefix(line, "    secsy-pki ")
		if !ok {
			continue
		}
		seen++
		r := csv.NewReader(strings.NewReader(strings.TrimSpace(line)))
		r.Comma = ' '
		r.LazyQuotes = true
		words, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		words = slices.DeleteFunc(words, func(w string) bool { return w == "" })
		cmd, rest, err := newRoot().Find(words)
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err == nil && cmd.HasSubCommands() {
			err = errors.New("is no command")
		}
		if err == nil && strings.HasPrefix(line, "cert revoke ") {
			f := cmd.Flags()
			get := func(name string) string { return f.Lookup(name).Value.String() }
			rev := &revocation{cmd: cmd, file: get("file"), key: get("key"), yes: true, replaceBy: get("replace-by"), incident: get("open-incident")}
			rev.Reason, rev.filter.Profile = get("reason"), get("profile")+get("name")+get("account")+get("issuer")+get("incident")
			err = rev.check(f.Args())
		}
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	if seen < 15 {
		t.Errorf("only %d commands were found", seen)
	}
}

func FuzzTargetsAreSerialNumbersOnceEach(f *testing.F) {
	f.Add([]byte("serial,reason\n01:AB, superseded\n"))
	f.Add([]byte("0"))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"))
	f.Add([]byte{0x30, 0x80, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := readTargets(bytes.NewReader(b))
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, r := range list {
			if again, err := parseSerial(r.Serial); err != nil || again != r.Serial || seen[r.Serial] {
				t.Errorf("%+v: %q, %v", r, again, err)
			}
			seen[r.Serial] = true
		}
	})
}
