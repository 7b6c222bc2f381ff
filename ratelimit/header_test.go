package ratelimit

import (
	"math"
	"strconv"
	"testing"
)

// TestWholeSecondsAreWrittenAsTheyAre, and less than one as one.
func TestWholeSecondsAreWrittenAsTheyAre(t *testing.T) {
	t.Parallel()
	for _, n := range []int64{math.MinInt64, -1, 0, 1, 2, 599, 600, 601, 86400, math.MaxInt64} {
		got := SecondsHeader(n)
		if want := strconv.FormatInt(max(n, 1), 10); len(got) != 1 || cap(got) != 1 || got[0] != want {
			t.Errorf("%d is %q, want %q alone and without room for more", n, got, want)
		}
	}
}
