package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/bench/measure"
)

// A target is the most that a figure may be.
type target struct {
	name  string
	value float64
	most  float64
}

func (t target) String() string {
	word := "MISSED"
	if t.value <= t.most {
		word = "met"
	}
	return fmt.Sprintf("%-60s %8.2f <= %-6g  %s", t.name, t.value, t.most, word)
}

func (b *bench) targets() []target {
	d, h := b.decided[givenName], b.held[givenName]
	return []target{
		{"a refusal, ns", d.refused.Median(), 80},
		{"a refusal, allocations", d.refusedAllocs.Median(), 0},
		{"three tiers with their refund, ns", b.tiers.Median(), 250},
		{"a key of a spray, ns", d.spray.Median(), 250},
		{"a key of a spray, allocations", d.sprayAllocs.Median(), 0},
		{"memory for each key that fits into a table, bytes", b.bytesPerKey, 32},
		{"worst call of a spray, ms", h.worst.Seconds() * 1000, 1},
		{"spent keys that a spray had forgotten", float64(h.reset[1]), 0},
		{"refused newOrder of 2 KiB through the middleware, us", b.direct[small].Median(), 2},
		{"refused newOrder of 60 KiB through the middleware, us", b.direct[big].Median(), 2},
	}
}

func (b *bench) report(out io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s (%s before)\n", measure.Host(), b.before)
	fmt.Fprintf(&text, "%d rounds: median (least-most) of processor time; limit of 20 a second and 40 at once\n\n", b.rounds)
	b.reportDecisions(&text)
	b.reportHeld(&text)
	b.reportGuards(&text)
	b.reportRefusals(&text)
	fmt.Fprintln(&text, "ours, as the listener asks, which reads the clock once for a request and hands it in:")
	for _, t := range b.targets() {
		fmt.Fprintln(&text, t)
	}
	d := b.decided[givenName]
	fmt.Fprintf(&text, "RESULT admission refused_ns=%.1f refused_allocs=%.0f tiers3_ns=%.1f spray_ns=%.1f bytes_per_key=%.1f refused_neworder_2k_us=%.2f refused_neworder_60k_us=%.2f\n",
		d.refused.Median(), d.refusedAllocs.Median(), b.tiers.Median(), d.spray.Median(), b.bytesPerKey, b.direct[small].Median(), b.direct[big].Median())
	_, err := io.WriteString(out, text.String())
	return err
}

func (b *bench) reportDecisions(w io.Writer) {
	fmt.Fprintf(w, "%-31s %20s %20s %20s %22s %12s\n", "ns a decision", "one key refused", "same, parallel", "100,000 keys", "keys that come once", "allocs")
	for _, s := range b.subjects {
		d := b.decided[s.name]
		fmt.Fprintf(w, "%-31s %20s %20s %20s %22s %12s\n", s.name, d.refused, d.refusedParallel, d.many, d.spray,
			fmt.Sprintf("%.0f / %.0f", d.refusedAllocs.Median(), d.sprayAllocs.Median()))
	}
	fmt.Fprintf(w, "%-31s %20s %20s %20s %22s %12.0f\n", "the same, three tiers and refund", b.tiers, "", "", "", b.tiersAllocs.Median())
	fmt.Fprintf(w, "%-31s %20s\n\n", "of all that, reading the clock", b.clock)
}

func (b *bench) reportHeld(w io.Writer) {
	fmt.Fprintf(w, "%-31s %22s %12s %26s %26s %18s\n", "", fmt.Sprintf("MiB after %d keys", b.sizes.heap), "worst call",
		fmt.Sprintf("reset after %d keys", min(shorter, b.sizes.longer)), fmt.Sprintf("reset after %d keys", b.sizes.longer), "newcomers let in")
	for _, s := range b.subjects {
		h := b.held[s.name]
		fmt.Fprintf(w, "%-31s %22.1f %12v %26s %26s %18s\n", s.name, h.heap/(1<<20), h.worst.Round(100*time.Nanosecond),
			fmt.Sprintf("%d of %d", h.reset[0], watched), fmt.Sprintf("%d of %d", h.reset[1], watched), fmt.Sprintf("%d of %d", h.newcomers, newcomers))
	}
	fmt.Fprintf(w, "ours after %d keys that were all driven to their limit: %d of %d spent keys reset, %d of %d newcomers let in\n\n",
		b.sizes.spent, b.spentReset, watched, b.spentAdmitted, newcomers)
}

func (b *bench) reportGuards(w io.Writer) {
	fmt.Fprintf(w, "%-31s %20s %30s %20s\n", "ns to come and go", "nobody else", fmt.Sprintf("%d for %d seats", waiters, seats), "of them let in %")
	for _, g := range b.guards {
		fmt.Fprintf(w, "%-31s %20s %30s %20.1f\n", g.name, g.alone, g.crowded, 100*g.let.Median())
	}
	fmt.Fprintln(w)
}

func (b *bench) reportRefusals(w io.Writer) {
	fmt.Fprintln(w, "a newOrder, us of the server's processor time")
	fmt.Fprintf(w, "%-31s %20s\n", "refused, 2 KiB, middleware", b.direct[small])
	fmt.Fprintf(w, "%-31s %20s\n", "refused, 60 KiB, middleware", b.direct[big])
	for _, x := range b.wires {
		fmt.Fprintf(w, "%-31s %20s\n", x.name+", loopback", x.us)
	}
	for i := 0; i+1 < len(b.wires); i += 2 {
		fmt.Fprintf(w, "%s costs %.2f of the one that is %s\n", b.wires[i].name, b.wires[i].us.Median()/b.wires[i+1].us.Median(), b.wires[i+1].name)
	}
	fmt.Fprintln(w)
}
