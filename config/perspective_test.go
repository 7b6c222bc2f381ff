package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const smallPerspective = `name: fra1
region: ripencc
listen: {certificate: a.pem, key: /k/a.key}
clients: {ca_bundle: ca.pem, names: [pki.example.org]}
`

func TestPerspectiveReferenceInDocsIsCurrent(t *testing.T) {
	t.Parallel()
	file := filepath.Join("..", "docs", "perspective-reference.yaml")
	if *update {
		if err := os.WriteFile(file, []byte(PerspectiveReference()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != PerspectiveReference() {
		t.Error("docs/perspective-reference.yaml is not what PerspectiveReference prints; run go test ./config -run Reference -update")
	}
}

func TestPerspectiveReferenceLacksWhatOnlyTheOperatorKnows(t *testing.T) {
	t.Parallel()
	_, err := ParsePerspectiveServer("p.yaml", []byte(PerspectiveReference()))
	got, ok := errors.AsType[Errors](err)
	if !ok {
		t.Fatalf("got %v", err)
	}
	var keys []string
	for _, e := range got {
		keys = append(keys, e.Key)
	}
	if want := []string{"name", "region", "listen.certificate", "listen.key", "clients.ca_bundle"}; !reflect.DeepEqual(keys, want) {
		t.Errorf("missing are %q, want %q", keys, want)
	}
}

func TestAPerspectiveIsReadAsTheRestIs(t *testing.T) {
	t.Parallel()
	c, err := ParsePerspectiveServer("/etc/secsy-pki/p.yaml", []byte(smallPerspective))
	if err != nil {
		t.Fatal(err)
	}
	want := DefaultPerspectiveServer()
	want.Name, want.Region = "fra1", "ripencc"
	want.Listen.Certificate, want.Listen.Key, want.Clients.CABundle = "/etc/secsy-pki/a.pem", "/k/a.key", "/etc/secsy-pki/ca.pem"
	want.Clients.Names = []Host{"pki.example.org"}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	for text, errs := range map[string]string{
		"issuers: []":                    "p.yaml:5:1: issuers: unknown key",
		"region: europe":                 "region: given twice",
		"validation: {timeout: 3m}":      "validation.timeout: ",
		"validation: {allow_privat: on}": "validation.allow_privat: unknown key",
		"listen: [a]":                    "listen: given twice",
		"limits: {looks: 0}":             "limits.looks: ",
	} {
		_, err := ParsePerspectiveServer("p.yaml", []byte(smallPerspective+text+"\n"))
		if err == nil || !strings.Contains(err.Error(), errs) {
			t.Errorf("%s: got %v", text, err)
		}
	}
	_, err = ParsePerspectiveServer("p.yaml", []byte(strings.Replace(smallPerspective, "listen: {", `listen: {address: ":8081", `, 1)))
	if err == nil || !strings.Contains(err.Error(), "listen.operator: ") {
		t.Errorf("one port for both: %v", err)
	}
}

func TestThePageHasAFileOfAPerspectiveAndOfItsServer(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "docs", "perspectives.md"))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for rest := string(page); ; {
		_, after, ok := strings.Cut(rest, "```yaml\n")
		if !ok {
			break
		}
		text, tail, _ := strings.Cut(after, "```")
		blocks, rest = append(blocks, text), tail
	}
	if len(blocks) != 2 {
		t.Fatalf("%d blocks of YAML", len(blocks))
	}
	if _, err := ParsePerspectiveServer("p.yaml", []byte(blocks[0])); err != nil {
		t.Error(err)
	}
	c := mustParse(t, blocks[1])
	if v := c.ACME.Validation; len(v.Perspectives) != 3 || v.TLSOf(v.Perspectives[0]).Key == "" {
		t.Errorf("got %+v", v)
	}
}

// FuzzPerspective holds what FuzzParse holds of the other file.
func FuzzPerspective(f *testing.F) {
	f.Add([]byte(smallPerspective))
	f.Add([]byte(PerspectiveReference()))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParsePerspectiveServer("p.yaml", data)
		if (c == nil) == (err == nil) {
			t.Fatalf("got %v and %v", c, err)
		}
		if c != nil && (c.Name == "" || c.Region == "" || !filepath.IsAbs(string(c.Listen.Key))) {
			t.Errorf("got through: %+v", c)
		}
	})
}

func TestEveryFieldOfAPerspectiveHasKeyAndComment(t *testing.T) {
	t.Parallel()
	docs := fieldDocs()
	var visit func(reflect.Type)
	visit = func(typ reflect.Type) {
		for f := range typ.Fields() {
			at := typ.Name() + "." + f.Name
			if f.Tag.Get("yaml") == "" || docs[at] == "" {
				t.Errorf("%s has no key or no comment", at)
			}
			if isSection(f.Type) {
				visit(f.Type)
			}
		}
	}
	visit(reflect.TypeFor[PerspectiveServer]())
}

func TestPerspectivesOfAServerAreToldApart(t *testing.T) {
	t.Parallel()
	tls := "  validation:\n    perspective_tls: {ca_bundle: ca.pem, certificate: c.pem, key: c.key}\n"
	for name, c := range map[string]struct{ text, want string }{
		"twice a name":   {tls + "    perspectives: [{name: a, region: arin, url: \"https://a\"}, {name: a, region: apnic, url: \"https://b\"}]\n", "perspectives[1].name: "},
		"twice a URL":    {tls + "    perspectives: [{name: a, region: arin, url: \"https://a\"}, {name: b, region: apnic, url: \"https://a/\"}]\n", "perspectives[1].url: "},
		"plain HTTP":     {tls + "    perspectives: [{name: a, region: arin, url: \"http://a\"}]\n", "perspectives[0].url: "},
		"a path":         {tls + "    perspectives: [{name: a, region: arin, url: \"https://a/b\"}]\n", "perspectives[0].url: "},
		"no region":      {tls + "    perspectives: [{name: a, url: \"https://a\"}]\n", "perspectives[0].region: "},
		"another region": {tls + "    perspectives: [{name: a, region: europe, url: \"https://a\"}]\n", "want afrinic, apnic, arin, lacnic, ripencc"},
		"no certificate": {"  validation:\n    perspectives: [{name: a, region: arin, url: \"https://a\"}]\n", "perspectives[0].tls.certificate: "},
		"half a pair":    {tls + "    perspectives: [{name: a, region: arin, url: \"https://a\", tls: {key: k}}]\n", "perspectives[0].tls: certificate and key"},
		"a large quorum": {tls + "    quorum: 2\n    perspectives: [{name: a, region: arin, url: \"https://a\"}]\n", "acme.validation.quorum: "},
	} {
		_, err := Parse("c.yaml", []byte("acme:\n"+c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	c := mustParse(t, "acme:\n"+tls+"    perspectives: [{name: a, region: arin, url: \"https://a:8444\", tls: {ca_bundle: /x.pem}}]\n")
	v := c.ACME.Validation
	if got := v.TLSOf(v.Perspectives[0]); got.CABundle != "/x.pem" || filepath.Base(string(got.Key)) != "c.key" || !filepath.IsAbs(string(got.Key)) {
		t.Errorf("got %+v", got)
	}
}
