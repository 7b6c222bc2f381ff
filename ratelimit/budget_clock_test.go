package ratelimit

import (
	"testing"
	"time"
)

// Of two requests at once, the one that read the clock first may be counted
// second. Without refusals neither has to wait; with some, the interval is not
// longer for it.
func TestARequestOvertakenByAnotherDoesNotWait(t *testing.T) {
	t.Parallel()
	b, err := NewBudget(BudgetConfig{Free: 1})
	if err != nil {
		t.Fatal(err)
	}
	late := time.Now()
	early := late.Add(-time.Millisecond)
	for _, at := range []time.Time{late, early, late, early} {
		if d, _ := b.attempt("a", at); !d.OK {
			t.Fatalf("refused for %s without a refusal behind it", d.RetryAfter)
		}
	}
	b.count("a", late)
	b.count("a", late) // the first that is not free: a second between attempts
	for at, want := range map[time.Time]time.Duration{early: time.Second, late.Add(time.Millisecond): time.Second} {
		if d, _ := b.attempt("a", at); d.OK || d.RetryAfter != want {
			t.Errorf("%+v, want to wait for %s", d, want)
		}
	}
	if d, _ := b.attempt("a", late.Add(time.Second)); !d.OK {
		t.Errorf("refused for %s after the interval", d.RetryAfter)
	}
}
