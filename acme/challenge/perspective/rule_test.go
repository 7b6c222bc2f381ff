package perspective

import (
	"strings"
	"testing"
	"time"
)

func day(y int, m time.Month, d int) time.Time { return time.Date(y, m, d, 0, 0, 0, 0, time.UTC) }

// in makes n perspectives, of which the last is elsewhere.
func in(n int) []Region {
	var out []Region
	for range n - 1 {
		out = append(out, ARIN)
	}
	return append(out, RIPENCC)
}

func TestThePublicRuleGrowsByDate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		now     time.Time
		remotes int
		date    string
	}{
		{day(2020, time.January, 1), 3, "2026-03-15"}, // a clock that is wrong
		{day(2026, time.March, 15), 3, "2026-03-15"},
		{day(2026, time.June, 15).Add(-time.Nanosecond), 3, "2026-03-15"},
		{day(2026, time.June, 15), 4, "2026-06-15"},
		{day(2026, time.November, 30), 4, "2026-06-15"},
		{day(2026, time.December, 15).Add(-time.Nanosecond), 4, "2026-06-15"},
		{day(2026, time.December, 15), 5, "2026-12-15"},
		{day(2036, time.January, 1), 5, "2026-12-15"},
	} {
		rule := Rule{Public: true}
		if err := rule.Check(c.now, in(c.remotes)); err != nil {
			t.Errorf("%s: %d are refused: %v", c.now, c.remotes, err)
		}
		err := rule.Check(c.now, in(c.remotes-1))
		if err == nil || !strings.Contains(err.Error(), c.date) || !strings.Contains(err.Error(), "at least "+string(rune('0'+c.remotes))) {
			t.Errorf("%s: %d less one: %v", c.now, c.remotes, err)
		}
		if err := (Rule{}).Check(c.now, nil); err != nil {
			t.Errorf("an internal CA needs perspectives: %v", err)
		}
	}
}

func TestThePublicRuleWantsTwoRegions(t *testing.T) {
	t.Parallel()
	one := []Region{APNIC, APNIC, APNIC, APNIC, APNIC, APNIC}
	if err := (Rule{Public: true}).Check(day(2027, 1, 1), one); err == nil || !strings.Contains(err.Error(), "2 regions") {
		t.Errorf("one region is enough: %v", err)
	}
	if err := (Rule{}).Check(day(2027, 1, 1), one); err != nil {
		t.Error(err)
	}
}

func TestAQuorumThatCannotBeHadIsRefused(t *testing.T) {
	t.Parallel()
	for _, public := range []bool{true, false} {
		if err := (Rule{Public: public, Quorum: 6}).Check(day(2027, 1, 1), in(5)); err == nil {
			t.Errorf("public %v: 6 of 5", public)
		}
		if err := (Rule{Public: public, Quorum: 5}).Check(day(2027, 1, 1), in(5)); err != nil {
			t.Error(err)
		}
	}
}

func TestShortfallIsTheNextDateThatWantsMore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		now  time.Time
		n    int
		want time.Time
	}{
		{day(2026, time.April, 1), 3, day(2026, time.June, 15)},
		{day(2026, time.April, 1), 4, day(2026, time.December, 15)},
		{day(2026, time.April, 1), 5, time.Time{}},
		{day(2026, time.November, 30), 4, day(2026, time.December, 15)},
		{day(2026, time.December, 15), 4, day(2026, time.December, 15)}, // now
		{day(2027, time.January, 1), 5, time.Time{}},
	} {
		got, err := Rule{Public: true}.Shortfall(c.now, in(c.n))
		if !got.Equal(c.want) || (err == nil) != c.want.IsZero() {
			t.Errorf("%d on %s: %s, %v; want %s", c.n, c.now, got, err, c.want)
		}
	}
}

// TestOneDissentIsForgivenAndTwoOfSix is the table of §3.2.2.9, with the rule
// about regions, for every number of remotes and of those that agree.
func TestOneDissentIsForgivenAndTwoOfSix(t *testing.T) {
	t.Parallel()
	now := day(2027, time.January, 1)
	for used := 1; used <= 12; used++ {
		forgiven := 0
		switch {
		case used >= 6:
			forgiven = 2
		case used >= 2:
			forgiven = 1
		}
		for agree := 0; agree <= used; agree++ {
			for regions := 1; regions <= 2; regions++ {
				for name, rule := range map[string]Rule{"internal": {}, "public": {Public: true}} {
					agreed := in(agree)[:agree]
					if regions == 1 || agree < 2 {
						agreed = in(agree + 1)[:agree] // all the same
					}
					want := refused
					if agree >= used-forgiven && (name == "internal" || distinct(agreed) >= 2) {
						want = corroborated
					}
					if got := rule.demand(now, used).judge(standing{agreed: agreed}); got != want {
						t.Errorf("%s, %d of %d in %d regions: got %d, want %d", name, agree, used, distinct(agreed), got, want)
					}
				}
			}
		}
	}
}

func TestAQuorumOfItsOwnIsTakenAtItsWord(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule       Rule
		used, want int
	}{
		{Rule{Quorum: 2}, 5, 2},
		{Rule{Quorum: 5}, 5, 5},
		{Rule{Public: true, Quorum: 2}, 5, 4}, // never less than the public rule
		{Rule{Public: true, Quorum: 5}, 5, 5},
		{Rule{}, 1, 1},
		{Rule{}, 0, 0},
	} {
		if got := c.rule.demand(day(2027, 1, 1), c.used).agree; got != c.want {
			t.Errorf("%+v of %d: got %d, want %d", c.rule, c.used, got, c.want)
		}
	}
}

// TestAJudgementIsFinal holds what is decided early against every way in which
// the rest may answer.
func TestAJudgementIsFinal(t *testing.T) {
	t.Parallel()
	all := []Region{ARIN, ARIN, ARIN, APNIC, RIPENCC, ARIN}
	for _, rule := range []Rule{{}, {Public: true}, {Quorum: 3}} {
		d := rule.demand(day(2027, 1, 1), len(all))
		// Each remote is open, agrees or disagrees.
		for code := range 3 * 3 * 3 * 3 * 3 * 3 {
			var s standing
			for i, c := 0, code; i < len(all); i, c = i+1, c/3 {
				switch c % 3 {
				case 0:
					s.open = append(s.open, all[i])
				case 1:
					s.agreed = append(s.agreed, all[i])
				}
			}
			early := d.judge(s)
			for mask := range 1 << len(s.open) {
				end := standing{agreed: append([]Region(nil), s.agreed...)}
				for i, r := range s.open {
					if mask>>i&1 == 1 {
						end.agreed = append(end.agreed, r)
					}
				}
				if got := d.judge(end); early != undecided && got != early || got == undecided {
					t.Fatalf("%+v: %+v was judged %d, and in the end %+v is %d", rule, s, early, end, got)
				}
			}
		}
	}
}
