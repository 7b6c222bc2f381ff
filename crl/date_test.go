package crl

import (
	"testing"
	"time"
)

// Every day there is, and some of each day's seconds.
func TestDatesAreThoseOfTheCalendar(t *testing.T) {
	t.Parallel()
	last := time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	second := 0
	for at := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC); !at.After(last); at = at.AddDate(0, 0, 1) {
		second = (second + 12347) % secondsADay
		year, month, day, s := dateOf(at.Unix() + int64(second))
		if year != at.Year() || month != int(at.Month()) || day != at.Day() || s != second {
			t.Fatalf("%v is %d-%d-%d, second %d not %d", at, year, month, day, s, second)
		}
		if got := secondsOf(year, month, day); got != at.Unix() {
			t.Fatalf("%v is at %d, not %d", at, got, at.Unix())
		}
	}
	if first := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).Unix(); first != firstSecond || last.Unix()+secondsADay-1 != lastSecond {
		t.Errorf("first %d, last %d", first, last.Unix())
	}
}
