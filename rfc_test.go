package secsypki_test

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestEveryTestThatTheStandardsPageNamesExists keeps the pages that say which
// test holds what from promising tests that were renamed or are gone.
func TestEveryTestThatTheStandardsPageNamesExists(t *testing.T) {
	t.Parallel()
	funcs, words := declared(t)
	for page, least := range map[string]int{"docs/rfc.md": 100, "docs/acme.md": 40, "docs/crl.md": 40, "docs/status.md": 50, "docs/scep.md": 50, "docs/est.md": 20, "docs/admission-laws.md": 300} {
		named := testsNamed(t, page)
		if len(named) < least {
			t.Errorf("%s names only %d tests", page, len(named))
		}
		for _, m := range named {
			if !funcs[m[1]] {
				t.Errorf("%s: there is no %s", page, m[1])
			}
			if m[2] != "" && !words[m[2]] {
				t.Errorf("%s: no suite has the law %s", page, m[2])
			}
		}
	}
}

// testsNamed are the tests that a page names, each as a whole, its function and
// the law of a suite.
func testsNamed(t *testing.T, page string) [][]string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)(?:/…/([A-Za-z0-9]+))?`").FindAllStringSubmatch(string(text), -1)
}

// TestEveryLawOfAdmissionHasATest keeps rows without one off the page of
// admission's laws: each names a test, or where the law went.
func TestEveryLawOfAdmissionHasATest(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("docs/admission-laws.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(cells[0], " promise") {
			continue
		}
		if rows++; len(cells) != 2 || !strings.Contains(cells[1], "`Test") && !strings.Contains(cells[1], "`Fuzz") {
			t.Errorf("no test in: %s", line)
		}
	}
	if rows < 120 {
		t.Errorf("only %d laws", rows)
	}
}

// TestTheGuideSaysThatTiersArePerProcess: whoever sizes limits for replicas has
// to know which of them add up.
func TestTheGuideSaysThatTiersArePerProcess(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("docs/admission.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"tiers are per process", "N replicas admit N times the rate", "Quotas and refusal budgets are shared"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the guide does not say %q", want)
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
