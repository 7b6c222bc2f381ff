package enrol_test

import (
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/enrol"
)

func TestPatternsMatchWhatTheySay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, value, subject string
		want                    bool
	}{
		{"dev1", "dev1", "", true},
		{"dev1", "dev12", "", false},
		{"*", "dev1", "", true},
		{"*", "", "", false},
		{"*", "a.b", "", false},
		{"**", "a.b", "", true},
		{"*.example.org", "a.example.org", "", true},
		{"*.example.org", "a.b.example.org", "", false},
		{"*.example.org", ".example.org", "", false},
		{"**.example.org", "a.b.example.org", "", true},
		{"*.example.org", "a.example.org.evil", "", false},
		{"{name}", "dev1", "dev1", true},
		{"{name}", "dev2", "dev1", false},
		{"{name}", "", "", false},
		{"{name}.example.org", ".example.org", "", false},
		{"{name}", "anything", "*", false}, // a subject is no pattern
		{"{name}", "*", "*", true},
		{"a{b", "a{b", "", true},
		{"pump-*-{name}", "pump-7-x", "x", true},
	} {
		if got := enrol.Pattern(c.pattern).Match(c.value, c.subject); got != c.want {
			t.Errorf("%q matches %q for %q: %t", c.pattern, c.value, c.subject, got)
		}
	}
	for _, s := range []string{"", "dns", "dns:", "email:x", "dns:***", "dns:" + strings.Repeat("a*", 9), "dns:" + strings.Repeat("a", 300)} {
		if _, err := enrol.ParseNamePattern(s); err == nil {
			t.Errorf("%q is taken", s)
		}
	}
}

// A pattern without stars matches itself alone, and the work is bounded by the bounds of both.
func FuzzPattern(f *testing.F) {
	f.Add("*.example.org", "a.example.org", "x")
	f.Add("{name}", "x", "x")
	f.Fuzz(func(t *testing.T, pattern, value, subject string) {
		p := enrol.Pattern(pattern)
		if p.Validate() != nil {
			return
		}
		if got := p.Match(value, subject); !strings.ContainsAny(pattern, "*{") && got != (pattern == value) {
			t.Errorf("%q matches %q: %t", pattern, value, got)
		}
	})
}
