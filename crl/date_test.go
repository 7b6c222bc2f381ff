package crl

import (
	"bytes"
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

// What was read or written before says nothing of what comes next.
func TestAStampChangesNoDate(t *testing.T) {
	t.Parallel()
	var written, read stamp
	for _, at := range []int64{0, 0, 1, 1, lastUTC, lastUTC + 1, lastUTC + 1, lastUTC, firstUTC - 1, firstUTC, 0, 1} {
		want, err := appendTime(nil, at)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := written.append(nil, at); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d is written % x, not % x: %v", at, got, want, err)
		}
		if got, rest, ok := read.cut(append(want, 7)); !ok || got != at || len(rest) != 1 {
			t.Errorf("%d is read as %d, %v", at, got, ok)
		}
	}
	if _, _, ok := new(stamp).cut(make([]byte, 15)); ok {
		t.Error("nothing is a date")
	}
}
