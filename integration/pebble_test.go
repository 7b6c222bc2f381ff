package integration

import (
	"cmp"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// A difference is one that is meant to be: what we answer, what Pebble does, and
// why. Its probes are names, or beginnings of names that end with a star.
type difference struct {
	what         string // as the table of docs/acme.md has it
	facet        string // outcome, or the name of a header
	ours, pebble string
	why          string
	probes       []string
}

func (d difference) covers(probe, facet, ours, pebble string) bool {
	if d.facet != facet || d.ours != ours || d.pebble != pebble {
		return false
	}
	return slices.ContainsFunc(d.probes, func(p string) bool {
		begin, star := strings.CutSuffix(p, "*")
		return p == probe || star && strings.HasPrefix(probe, begin)
	})
}

// row is the difference in the table of docs/acme.md.
func (d difference) row() string {
	ours, pebble := cmp.Or(d.ours, "none"), cmp.Or(d.pebble, "none")
	if d.facet != "outcome" {
		ours, pebble = d.facet+": "+ours, d.facet+": "+pebble
	}
	return "| " + d.what + " | " + ours + " | " + pebble + " | " + d.why + " |"
}

// TestEveryDifferenceFromPebbleIsExplained sends the same script to the built
// program and to Pebble, and compares status, type and headers. A difference that
// is not in the table fails, as does one in the table that is gone.
func TestEveryDifferenceFromPebbleIsExplained(t *testing.T) {
	t.Parallel()
	dns := startDNS(t)
	met := map[int]int{}
	n := compareProbes(t, probes(), startProbed(t, dns, false), startPebble(t, dns, false), met)
	n += compareProbes(t, bindingScript(), startProbed(t, dns, true), startPebble(t, dns, true), met)
	for i, d := range differences {
		if met[i] == 0 {
			t.Errorf("the table has a difference that there is not: %s", d.row())
		}
	}
	t.Logf("%d probes, %d kinds of differences", n, len(differences))
}

// compareProbes sends a script to both, and counts which differences it met.
func compareProbes(t *testing.T, script []probe, ours, pebble *prober, met map[int]int) int {
	t.Helper()
	for _, p := range script {
		a, b := p.send(ours), p.send(pebble)
		explained := true
		compare := func(facet, x, y string) {
			if x == y {
				return
			}
			i := slices.IndexFunc(differences, func(d difference) bool { return d.covers(p.name, facet, x, y) })
			if met[i]++; i < 0 {
				explained = false
				t.Errorf("%s: %s: ours %q, Pebble's %q, and nothing says why", p.name, facet, x, y)
			}
		}
		compare("outcome", a.outcome(), b.outcome())
		if a.outcome() == b.outcome() {
			other := b.headers()
			for facet, v := range a.headers() {
				compare(facet, v, other[facet])
			}
		}
		if !explained {
			t.Logf("%s: ours: %s\nPebble's: %s", p.name, a.body, b.body)
		}
	}
	return len(script)
}

// TestTheDocsListTheDifferencesFromPebble keeps the table of docs/acme.md what
// the test knows.
func TestTheDocsListTheDifferencesFromPebble(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/acme.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Differences from Pebble\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var want strings.Builder
	for _, d := range differences {
		want.WriteString(d.row() + "\n")
	}
	if !strings.HasSuffix(strings.TrimSpace(section)+"\n", "|---|---|---|---|\n"+want.String()) {
		t.Errorf("the table under \"Differences from Pebble\" is to be:\n\n%s", want.String())
	}
}

// TestProbesHaveNamesOfTheirOwn: a difference is told by the name of its probe.
func TestProbesHaveNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, p := range slices.Concat(probes(), bindingScript()) {
		if seen[p.name] {
			t.Errorf("two probes are named %q", p.name)
		}
		seen[p.name] = true
	}
	if len(slices.Collect(maps.Keys(seen))) < 250 {
		t.Errorf("only %d probes", len(seen))
	}
}
