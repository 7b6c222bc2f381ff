package secsypki_test

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestEveryTestThatTheStandardsPageNamesExists keeps docs/rfc.md from promising
// tests that were renamed or are gone.
func TestEveryTestThatTheStandardsPageNamesExists(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("docs/rfc.md")
	if err != nil {
		t.Fatal(err)
	}
	funcs, words := declared(t)
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)(?:/…/([A-Za-z0-9]+))?`").FindAllStringSubmatch(string(page), -1)
	if len(named) < 100 {
		t.Errorf("the page names only %d tests", len(named))
	}
	for _, m := range named {
		if !funcs[m[1]] {
			t.Errorf("there is no %s", m[1])
		}
		if m[2] != "" && !words[m[2]] {
			t.Errorf("no suite has the law %s", m[2])
		}
	}
}

// declared are the tests of the tree, and the quoted words of its test rooms,
// which the laws of suites are among.
func declared(t *testing.T) (funcs, words map[string]bool) {
	t.Helper()
	funcs, words = map[string]bool{}, map[string]bool{}
	test := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	word := regexp.MustCompile(`"([A-Z][A-Za-z0-9]+)"`)
	err := fs.WalkDir(os.DirFS("."), ".", func(path string, d fs.DirEntry, err error) error {
		room := strings.Contains(path, "test/")
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || !room && !strings.HasSuffix(path, "_test.go") {
			return err
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range test.FindAllSubmatch(src, -1) {
			funcs[string(m[1])] = true
		}
		if room {
			for _, m := range word.FindAllSubmatch(src, -1) {
				words[string(m[1])] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return funcs, words
}
