package ratelimit

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"time"
)

var quotaNow = time.Date(2031, 5, 6, 7, 8, 9, 123_456_789, time.UTC)

// spend debits and says whether that was let through.
func spend(q Quota, now time.Time, free *time.Time, cost int) bool {
	next, d := q.Debit(now, *free, cost)
	*free = next
	return d.OK
}

// A cost above what is left is refused whole: of 10 units 4 are spent, 8 do not
// fit and take nothing, so 6 still do.
func TestACostAboveWhatIsLeftTakesNothing(t *testing.T) {
	t.Parallel()
	q, free := Quota{Limit: 10, Window: time.Minute}, time.Time{}
	for _, step := range []struct {
		cost int
		ok   bool
	}{{4, true}, {8, false}, {8, false}, {6, true}, {1, false}} {
		before := free
		if got := spend(q, quotaNow, &free, step.cost); got != step.ok {
			t.Errorf("debiting %d: %v, want %v", step.cost, got, step.ok)
		}
		if !step.ok && !free.Equal(before) {
			t.Errorf("refusing %d moved the state by %s", step.cost, free.Sub(before))
		}
	}
}

// One at a time and many at once draw on the same budget.
func TestABatchCostsWhatItsPartsDo(t *testing.T) {
	t.Parallel()
	q := Quota{Limit: 7, Window: time.Hour}
	whole, parts := time.Time{}, time.Time{}
	spend(q, quotaNow, &whole, 5)
	for range 5 {
		spend(q, quotaNow, &parts, 1)
	}
	if !whole.Equal(parts) {
		t.Errorf("5 at once lead to %s, 5 times one to %s", whole, parts)
	}
}

// A cost above the limit can never be paid: no retry time is promised, and
// nothing is taken, whether the account has spent anything or not.
func TestACostAboveTheLimitIsRefusedForGood(t *testing.T) {
	t.Parallel()
	q := Quota{Limit: 10, Window: time.Minute}
	for _, free := range []time.Time{{}, quotaNow.Add(-time.Hour), quotaNow.Add(30 * time.Second)} {
		next, d := q.Debit(quotaNow, free, 11)
		if d != (Decision{Never: true}) || !next.Equal(free) {
			t.Errorf("from %s: %+v, state %s", free, d, next)
		}
	}
}

func TestACostOfNothingChangesNothing(t *testing.T) {
	t.Parallel()
	q, full := Quota{Limit: 2, Window: time.Minute}, quotaNow.Add(time.Minute)
	for _, cost := range []int{0, -3} {
		if next, d := q.Debit(quotaNow, full, cost); !d.OK || !next.Equal(full) {
			t.Errorf("cost %d on a spent quota: %+v, %s", cost, d, next)
		}
	}
}

// Without configuration nothing is limited, and nothing is remembered.
func TestAQuotaIsOffByDefault(t *testing.T) {
	t.Parallel()
	for _, q := range []Quota{{}, {Limit: 5}, {Window: time.Hour}} {
		if next, d := q.Debit(quotaNow, time.Time{}, 1_000_000); !d.OK || d.Never || !next.IsZero() || q.Active() {
			t.Errorf("%+v: %+v, %s", q, d, next)
		}
	}
}

// Waiting as long as the refusal says, in whole seconds, is enough, and a second
// less is not, however the moments fall.
func TestQuotaRetryAfterIsTrue(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		q := Quota{Limit: 1 + rnd.IntN(500), Window: time.Second + time.Duration(rnd.Int64N(int64(24*time.Hour)))}
		now := quotaNow.Add(time.Duration(rnd.Int64N(int64(time.Hour))))
		free := time.Time{}
		spend(q, now, &free, q.Limit)
		cost := 1 + rnd.IntN(q.Limit)
		_, d := q.Debit(now, free, cost)
		if d.OK || d.Never || d.RetryAfter < time.Second || d.RetryAfter%time.Second != 0 {
			t.Fatalf("%+v, cost %d: %+v", q, cost, d)
		}
		if _, again := q.Debit(now.Add(d.RetryAfter), free, cost); !again.OK {
			t.Fatalf("%+v, cost %d: still refused after %s", q, cost, d.RetryAfter)
		}
		if d.RetryAfter == time.Second {
			continue
		}
		if _, early := q.Debit(now.Add(d.RetryAfter-time.Second), free, cost); early.OK {
			t.Fatalf("%+v, cost %d: %s is a second too long", q, cost, d.RetryAfter)
		}
	}
}

// A fixed window lets its limit through just before its end and once more just
// after. Here no two moments are further apart than what was refilled between.
func TestNoBurstIsDoubledAtABoundary(t *testing.T) {
	t.Parallel()
	q := Quota{Limit: 60, Window: time.Minute}
	for offset := range 120 { // wherever a window might end
		start, free, got := quotaNow.Add(time.Duration(offset)*500*time.Millisecond), time.Time{}, 0
		for at := start; !at.After(start.Add(2 * time.Second)); at = at.Add(10 * time.Millisecond) {
			for spend(q, at, &free, 1) {
				got++
			}
		}
		if got != 62 {
			t.Fatalf("%d units within two seconds from %s, want 60 and the 2 refilled", got, start)
		}
	}
}

// Whoever asks again and again while over the limit is let in at the moment that
// was promised first.
func TestAskingWhileOverTheLimitDoesNotPutOffTheTurn(t *testing.T) {
	t.Parallel()
	q, free := Quota{Limit: 6, Window: time.Minute}, time.Time{}
	spend(q, quotaNow, &free, 6)
	for wait := time.Duration(0); wait < 10*time.Second; wait += 100 * time.Millisecond {
		if spend(q, quotaNow.Add(wait), &free, 1) {
			t.Fatalf("let in after %s, want 10 s", wait)
		}
	}
	if !spend(q, quotaNow.Add(10*time.Second), &free, 1) {
		t.Error("not let in after 10 s")
	}
}

// A refund leads back to exactly where the debit came from, also when nothing
// is left, and never to more than a full quota.
func TestARefundUndoesADebitExactly(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		q := Quota{Limit: 1 + rnd.IntN(1000), Window: time.Second + time.Duration(rnd.Int64N(int64(time.Hour)))}
		now, cost := quotaNow, 1+rnd.IntN(q.Limit)
		free := now.Truncate(time.Microsecond).Add(time.Duration(rnd.Int64N(q.Window.Microseconds())) * time.Microsecond)
		next, d := q.Debit(now, free, cost)
		if !d.OK {
			continue
		}
		if back := q.Refund(now, next, cost); !back.Equal(free) {
			t.Fatalf("%+v: %s became %s and then %s", q, free, next, back)
		}
	}
	q, free := Quota{Limit: 3, Window: time.Minute}, time.Time{}
	spend(q, quotaNow, &free, 3)
	free = q.Refund(quotaNow, free, 1)
	if !spend(q, quotaNow, &free, 1) {
		t.Error("a refund at nothing left gave nothing")
	}
	for range 5 {
		free = q.Refund(quotaNow, free, 3)
	}
	if !spend(q, quotaNow, &free, 3) || spend(q, quotaNow, &free, 1) {
		t.Error("refunds made the quota larger than it is")
	}
	free = time.Time{}
	spend(q, quotaNow, &free, 1)
	if got := q.Refund(quotaNow, free, 3); !got.Equal(quotaNow.Truncate(time.Microsecond)) {
		t.Errorf("a refund of more than is owed leads to %s before now", quotaNow.Sub(got))
	}
	if got := q.Refund(quotaNow, time.Time{}, 2); !got.IsZero() {
		t.Errorf("a refund to one that never spent leads to %s", got)
	}
}

// bigBucket is the quota as a leaky bucket in rational numbers.
type bigBucket struct {
	limit, rate, debt *big.Rat // rate in units a microsecond
	at                int64
}

func newBigBucket(limit int64, windowUS *big.Rat) *bigBucket {
	l := new(big.Rat).SetInt64(limit)
	return &bigBucket{limit: l, rate: new(big.Rat).Quo(l, windowUS), debt: new(big.Rat)}
}

func (b *bigBucket) take(at int64, cost int) bool {
	drained := new(big.Rat).Mul(b.rate, new(big.Rat).SetInt64(at-b.at))
	b.at = at
	if b.debt.Sub(b.debt, drained); b.debt.Sign() < 0 {
		b.debt.SetInt64(0)
	}
	next := new(big.Rat).Add(b.debt, new(big.Rat).SetInt64(int64(cost)))
	if next.Cmp(b.limit) > 0 {
		return false
	}
	b.debt = next
	return true
}

// Whole microseconds are exact for a window that is rounded up to a multiple of
// its limit, which is less than Limit microseconds longer; so a quota is never
// more generous than the one asked for.
func TestDebitIsTheLeakyBucketOfTheRoundedWindow(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 60 {
		q := Quota{Limit: 1 + rnd.IntN(50), Window: time.Second + time.Duration(rnd.Int64N(int64(time.Minute)))}
		rounded := q.unit() * int64(q.Limit)
		if wider := rounded - q.Window.Microseconds(); wider < 0 || wider >= int64(q.Limit) {
			t.Fatalf("%+v is counted as a window of %d us", q, rounded)
		}
		exact := newBigBucket(int64(q.Limit), new(big.Rat).SetInt64(rounded))
		now, free := quotaNow, time.Time{}
		exact.at = now.UnixMicro()
		for range 200 {
			now = now.Add(time.Duration(rnd.Int64N(2 * int64(q.Window) / int64(q.Limit))))
			cost := 1 + rnd.IntN(min(q.Limit, 4))
			want := exact.take(now.UnixMicro(), cost)
			if got := spend(q, now, &free, cost); got != want {
				t.Fatalf("%+v, cost %d: %v, want %v", q, cost, got, want)
			}
		}
	}
}

// A clock that is set back delays by the step at most and gives nothing away.
func TestASteppedClockGivesNoUnitsAway(t *testing.T) {
	t.Parallel()
	q, free := Quota{Limit: 10, Window: time.Minute}, time.Time{}
	spend(q, quotaNow, &free, 10)
	for _, back := range []time.Duration{time.Second, time.Minute, time.Hour} {
		_, d := q.Debit(quotaNow.Add(-back), free, 1)
		if want := 6*time.Second + back; d.OK || d.RetryAfter != want {
			t.Errorf("%s back: %+v, want a no for %s", back, d, want)
		}
	}
}

func TestTheWidestQuotaDoesNotOverflow(t *testing.T) {
	t.Parallel()
	for _, q := range []Quota{
		{Limit: maxQuotaLimit, Window: maxQuotaWindow},
		{Limit: maxQuotaLimit, Window: minQuotaWindow},
		{Limit: 1, Window: maxQuotaWindow},
		{Limit: 1, Window: minQuotaWindow},
	} {
		free := time.Time{}
		if err := q.Validate(); err != nil {
			t.Error(err)
		}
		if !spend(q, quotaNow, &free, q.Limit) || spend(q, quotaNow, &free, 1) || !free.After(quotaNow) {
			t.Errorf("%+v: full at %s", q, free)
		}
		if _, d := q.Debit(quotaNow, free, q.Limit); d.OK || d.RetryAfter < time.Second {
			t.Errorf("%+v: %+v", q, d)
		}
	}
}

func TestAQuotaThatMakesNoSenseIsNamed(t *testing.T) {
	t.Parallel()
	for _, q := range []Quota{
		{Limit: -1, Window: time.Hour},
		{Limit: 5},
		{Window: time.Hour},
		{Limit: 5, Window: -time.Hour},
		{Limit: 5, Window: time.Millisecond},
		{Limit: maxQuotaLimit + 1, Window: time.Hour},
		{Limit: 5, Window: maxQuotaWindow + 1},
	} {
		if q.Validate() == nil {
			t.Errorf("%+v passes", q)
		}
	}
	for _, q := range []Quota{{}, {Limit: 5, Window: time.Hour}} {
		if err := q.Validate(); err != nil {
			t.Error(err)
		}
	}
}
