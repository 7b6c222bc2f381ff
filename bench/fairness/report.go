package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/secsy-pki/secsy-pki/bench/measure"
)

// A target is a figure that is promised.
type target struct {
	name  string
	value float64
	bound float64
	least bool // the bound is the least that is good, else the most
}

func (t target) met() bool {
	if t.least {
		return t.value >= t.bound
	}
	return t.value <= t.bound // false for NaN as well
}

func (t target) String() string {
	sign, word := "<=", "MISSED"
	if t.least {
		sign = ">="
	}
	if t.met() {
		word = "met"
	}
	return fmt.Sprintf("%-68s %6.3f %s %.2f  %s", t.name, t.value, sign, t.bound, word)
}

// of finds what our protection did for a part.
func (b *bench) of(scenario, part string) *tally { return b.tally(figure{scenario, ours.name, part}) }

// ratio compares one quantile of two scenarios.
func (b *bench) ratio(loaded, idle, part string, q float64) float64 {
	return b.of(loaded, part).quantile(q) / b.of(idle, part).quantile(q)
}

// A result is what a run comes to, of all rounds together.
type result struct {
	goodput10, admittedP99                 float64
	victimMedian, victimP99, victimServed  float64
	sybil50, sybil1000                     float64
	statusP99, revocationLater             float64
	muteMedian, muteServed, floodedGoodput float64
}

func (b *bench) result() result {
	return result{
		goodput10:       b.of(load10, strangers).goodput.Median() / b.bare.Median(),
		admittedP99:     b.ratio(load10, load1, strangers, 0.99),
		victimMedian:    b.ratio(victimHog, victimAlone, victim, 0.5),
		victimP99:       b.ratio(victimHog, victimAlone, victim, 0.99),
		victimServed:    b.of(victimHog, victim).share(),
		sybil50:         b.of(renewal50, victim).share(),
		sybil1000:       b.of(renewal1000, victim).share(),
		statusP99:       b.ratio(statusLoaded, statusAlone, status, 0.99),
		revocationLater: b.later(),
		muteMedian:      b.ratio(honestMuted, honestAlone, victim, 0.5),
		muteServed:      b.of(honestMuted, victim).share(),
		floodedGoodput:  b.of(issuanceFlooded, victim).goodput.Median() / b.of(issuanceAlone, victim).goodput.Median(),
	}
}

func (r result) targets() []target {
	return []target{
		{"goodput at 10x, of what the bare device does", r.goodput10, 0.95, true},
		{"p99 of the admitted at 10x, of that at 1x", r.admittedP99, 2, false},
		{"one hog: median of the victim, of idle", r.victimMedian, 1.3, false},
		{"one hog: p99 of the victim, of idle", r.victimP99, 1.5, false},
		{"one hog: share of the victim's requests that is served", r.victimServed, 1, true},
		{"50 hogs: share of the renewals that is served", r.sybil50, 1, true},
		{"1000 hogs: share of the renewals that is served", r.sybil1000, 1, true},
		{"issuance at 10x: p99 of status, of idle", r.statusP99, 2, false},
		{"issuance at 10x: revocation later than idle, in service times", r.revocationLater, 1, false},
		{"64 mute connections: median of the honest client, of idle", r.muteMedian, 1.2, false},
		{"64 mute connections: share of the honest requests that is served", r.muteServed, 1, true},
		{"nonces at 10x: goodput of issuance, of idle", r.floodedGoodput, 0.8, true},
	}
}

// later is by how many service times a revocation waits longer than it would alone.
func (b *bench) later() float64 {
	more := b.of(statusLoaded, revocation).quantile(0.5) - b.of(statusAlone, revocation).quantile(0.5)
	return more / (service.Seconds() * 1000)
}

func (b *bench) report(out io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "fairness before a stub device of %d seats and %v on average (exponential), %.0f a second\n", seats, service, capacity)
	fmt.Fprintf(&text, "%s (%s before)\n", measure.Host(), b.before)
	fmt.Fprintf(&text, "%d rounds; open-loop Poisson arrivals, latency from when a request was due\n", b.rounds)
	fmt.Fprintf(&text, "bare device, %d at it all the time: %s a second\n\n", seats, b.bare)
	fmt.Fprintf(&text, "%-42s %-5s %-11s %8s %8s %22s %22s %22s\n", "median of the rounds (least-most)", "by", "who", "offered", "served %", "goodput/s", "median ms", "p99 ms")
	for _, f := range b.order {
		t := b.tallies[f]
		fmt.Fprintf(&text, "%-42s %-5s %-11s %8d %8.1f %22s %22s %22s\n", f.scenario, f.by, f.part, t.offered, 100*t.share(), t.goodput, t.medians, t.p99s)
	}
	r := b.result()
	fmt.Fprintf(&text, "\nall rounds together, ours:\n")
	for _, t := range r.targets() {
		fmt.Fprintln(&text, t)
	}
	fmt.Fprintf(&text, "RESULT fairness goodput_10x=%.3f victim_median_ratio=%.2f victim_p99_ratio=%.2f sybil50_served=%.3f sybil1000_served=%.3f ocsp_p99_ratio=%.2f mute_ratio=%.2f\n",
		r.goodput10, r.victimMedian, r.victimP99, r.sybil50, r.sybil1000, r.statusP99, r.muteMedian)
	_, err := io.WriteString(out, text.String())
	return err
}
