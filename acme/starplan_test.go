package acme

import (
	"testing"
	"time"
)

// A row of four days each, with three days of overlap, for ten days: the example
// of RFC 8739 §3.5.1, each a minute sooner.
func TestRowFollowsItsPlan(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	begin := time.Date(2026, 1, 10, 0, 0, 0, 0, time.UTC)
	a := AutoRenewal{End: begin.Add(10 * day), Lifetime: 4 * day, Adjust: 3 * day}
	for period, want := range []struct{ due, last time.Time }{
		{begin.Add(-3*day - time.Minute), begin.Add(4*day - time.Second)},
		{begin.Add(day - time.Minute), begin.Add(8*day - time.Second)},
		{begin.Add(5*day - time.Minute), begin.Add(10*day - time.Second)},
		{time.Time{}, begin.Add(10*day - time.Second)},
	} {
		if due, last := a.Due(begin, period), a.last(begin, period); !due.Equal(want.due) || !last.Equal(want.last) {
			t.Errorf("period %d is due at %s and ends at %s; want %+v", period, due, last, want)
		}
	}
	if got := a.BeginOf(a.last(begin, 0)); !got.Equal(begin) {
		t.Errorf("it began at %s", got)
	}
	for late, want := range map[time.Duration]int{0: 1, day: 1, 5*day - time.Minute - 1: 1, 5*day - time.Minute: 2, 9 * day: 2, 100 * day: 2} {
		if got := a.periodAt(begin, begin.Add(late), 1); got != want {
			t.Errorf("after %s it is the turn of period %d; want %d", late, got, want)
		}
	}
	ahead := AutoRenewal{Start: begin, End: begin.Add(10 * day), Lifetime: 4 * day, Adjust: 2 * day}
	if from, to := ahead.first(begin.Add(-day)); !from.Equal(begin) || !to.Equal(begin.Add(4*day-time.Second)) {
		t.Errorf("a row that begins later is valid from %s to %s", from, to)
	}
	if from, to := ahead.first(begin.Add(time.Hour)); !from.Equal(begin.Add(time.Hour)) || !to.Equal(begin.Add(4*day+time.Hour-time.Second)) {
		t.Errorf("a row whose start is over is valid from %s to %s", from, to)
	}
}
