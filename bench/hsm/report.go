package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/secsy-pki/secsy-pki/bench/measure"
)

// A target is a bound that a figure is promised to keep.
type target struct {
	name  string
	value float64
	bound float64
	least bool // it must not be less than the bound, rather than not more
}

func (t target) String() string {
	word, sign := "MISSED", "<="
	if t.least {
		sign = ">="
	}
	if t.least && t.value >= t.bound || !t.least && t.value <= t.bound {
		word = "met"
	}
	return fmt.Sprintf("%-60s %8.3f %s %-6g  %s", t.name, t.value, sign, t.bound, word)
}

func (b *bench) targets() []target {
	var ts []target
	for _, n := range few {
		ts = append(ts, target{fmt.Sprintf("%s through guard and pool of bare calls, %d sessions", kinds[0].name, n), b.ratio(n), 0.95, true})
	}
	return append(
		ts,
		target{"a borrow and return, ns", b.borrow.ns.Median(), 1000, false},
		target{"a borrow and return, allocations", b.borrow.allocs.Median(), 0, false},
		target{fmt.Sprintf("%d sessions at %v of %d times one", poolSize, distance, poolSize), b.linear(oursName, poolSize), 0.9, true},
	)
}

// cells of a section.
func (b *bench) section(name string) (cells []*cell) {
	for _, c := range b.cells {
		if c.section == name {
			cells = append(cells, c)
		}
	}
	return cells
}

// ratio is what guard and pool leave of bare calls.
func (b *bench) ratio(sessions int) float64 {
	for _, c := range b.section(signing) {
		if c.kind == kinds[0].name && c.sessions == sessions {
			return c.ratios(oursName).Median()
		}
	}
	return 0
}

// linear is what of n times one session's rate n sessions reach.
func (b *bench) linear(subject string, n int) float64 {
	var one, all measure.Sample
	for _, c := range b.section(away) {
		if c.sessions == 1 {
			one = c.of(subject).rate
		}
		if c.sessions == n {
			all = c.of(subject).rate
		}
	}
	var s measure.Sample
	for i := range min(len(one), len(all)) {
		s = append(s, all[i]/(float64(n)*one[i]))
	}
	return s.Median()
}

func (b *bench) report(out io.Writer) error {
	var text strings.Builder
	w := &text
	fmt.Fprintf(w, "\n%s (%s before); others had %s %% of the processors\n", measure.Host(), b.before, b.others)
	fmt.Fprintf(w, "%s, %d rounds of %v: median (least-most)\n", b.device, b.rounds, b.length)
	for _, name := range []string{bareName, lineName, findName, oursName, poolName, cryptoName, pkcs11kName} {
		fmt.Fprintf(w, "%-26s %s\n", name, subjects[name].what)
	}
	b.reportSigning(w)
	b.reportAway(w)
	b.reportQueuing(w)
	b.reportFinding(w)
	fmt.Fprintf(w, "\na borrow and return without anybody else: %s ns, %s allocations\n\n", b.borrow.ns, b.borrow.allocs)
	for _, t := range b.targets() {
		fmt.Fprintln(w, t)
	}
	fmt.Fprintf(w, "RESULT hsm ratio_1=%.3f ratio_4=%.3f ratio_8=%.3f borrow_ns=%.0f borrow_allocs=%.0f linear_2ms=%.3f\n",
		b.ratio(1), b.ratio(4), b.ratio(8), b.borrow.ns.Median(), b.borrow.allocs.Median(), b.linear(oursName, poolSize))
	_, err := io.WriteString(out, text.String())
	return err
}

func (b *bench) reportSigning(w io.Writer) {
	fmt.Fprintf(w, "\n%-10s %8s  %-26s %22s %22s %22s\n", "key", "sessions", "as many workers, through", "signatures a second", "of bare calls", "us of CPU for each")
	for _, c := range b.section(signing) {
		for _, s := range c.runs {
			fmt.Fprintf(w, "%-10s %8d  %-26s %22s %22s %22s\n", c.kind, c.sessions, s.by, s.rate, precise(c.ratios(s.by)), s.cpu)
		}
	}
}

func (b *bench) reportAway(w io.Writer) {
	fmt.Fprintf(w, "\n%s, C_Sign takes %v longer, %d requesters: signatures a second, of n times one session, us of CPU for each, %% refused\n",
		kinds[0].name, distance, requesters)
	for _, c := range b.section(away) {
		for _, s := range c.runs {
			fmt.Fprintf(w, "%8d sessions  %-26s %22s %8.3f %22s %8.1f\n", c.sessions, s.by, s.rate, b.linear(s.by, c.sessions), s.cpu, s.refused.Median())
		}
	}
}

func (b *bench) reportQueuing(w io.Writer) {
	for _, c := range b.section(queuing) {
		fmt.Fprintf(w, "\n%s, %d requesters for %d sessions: signatures a second, ms until signed at half and at 99 %%, %% refused\n", c.kind, requesters, c.sessions)
		for _, s := range c.runs {
			fmt.Fprintf(w, "%-26s %22s %22s %22s %8.1f\n", s.by, s.rate, s.half, s.p99, s.refused.Median())
		}
	}
}

func (b *bench) reportFinding(w io.Writer) {
	fmt.Fprintf(w, "\n%s, 1 session, objects in the token: signatures a second\n", kinds[0].name)
	for _, c := range b.section(finding) {
		for _, s := range c.runs {
			fmt.Fprintf(w, "%-10s %-26s %22s\n", c.name, s.by, s.rate)
		}
	}
}

// precise writes ratios near one.
func precise(s measure.Sample) string {
	if len(s) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f (%.2f-%.2f)", s.Median(), s.Least(), s.Most())
}
