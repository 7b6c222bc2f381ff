package ratelimit

import (
	"math"
	"math/rand/v2"
	"testing"
)

// microWord is a word of a token a microsecond, for short numbers: a token is
// 1000 ns.
func microWord(t *testing.T, burst int) *word {
	t.Helper()
	l, err := newLimit(Bucket{Rate: 1e6, Burst: burst}, 1)
	if err != nil {
		t.Fatal(err)
	}
	return &word{limit: l}
}

func take(t *testing.T, w *word, now int64, c Cost) payment {
	t.Helper()
	p, a, ok := w.take(now, c)
	if !ok || !a.ok() {
		t.Fatalf("a payment of %d at %d is refused: %+v", c, now, a)
	}
	return p
}

func at(now int64) func() int64 { return func() int64 { return now } }

// TestWhatIsGivenBackAtZeroCanBeTakenAgain: a refund to an empty bucket lets the
// next request pass. (One was ignored elsewhere when nothing remained.)
func TestWhatIsGivenBackAtZeroCanBeTakenAgain(t *testing.T) {
	t.Parallel()
	w := microWord(t, 3)
	take(t, w, 100, Token)
	p := take(t, w, 100, Token)
	take(t, w, 100, Token)
	if _, a, _ := w.take(100, 1); a.ok() {
		t.Fatal("the bucket is not empty")
	}
	w.giveBack(p, at(100))
	take(t, w, 100, Token)
	if _, a, _ := w.take(100, 1); a.ok() {
		t.Error("more came back than was given")
	}
}

// TestGivingBackIsExact: whoever is alone leaves the very bits, and whoever is
// not takes out the very amount, fractions of a token included.
func TestGivingBackIsExact(t *testing.T) {
	t.Parallel()
	for _, cost := range []Cost{1, 7, 333, 999, Token, 1001, 5*Token + 1} {
		for _, before := range []int64{0, 50, 100, 1234} { // full, and in debt
			w := microWord(t, 20)
			w.limit.token = 1003 // not a multiple of the smallest cost
			w.limit.capacity = 20 * 1003
			w.state.Store(before)
			p := take(t, w, 100, cost)
			w.giveBack(p, at(100))
			if got := w.state.Load(); got != before {
				t.Errorf("cost %d: %d became %d", cost, before, got)
			}
			p = take(t, w, 100, cost)
			take(t, w, 100, 3*Token)
			w.giveBack(p, at(100))
			if got, want := w.state.Load(), max(before, 100)+3*1003; got != want {
				t.Errorf("cost %d: with another payment between, %d became %d, want %d", cost, before, got, want)
			}
		}
	}
}

// TestTimeAndARefundDoNotGiveBackTwice: what has come back by itself before it is
// given back, and was found by others, is not minted a second time.
func TestTimeAndARefundDoNotGiveBackTwice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name              string
		paid, other, back int64
		want              int64
	}{
		{"the bucket was full again before the other", 1000, 9000, 9000, 9000 + 1000},
		{"a quarter had come back", 1000, 1000, 1250, 1000 + 2000 - 750},
		{"none had", 1000, 1000, 1000, 1000 + 1000},
	} {
		w := microWord(t, 20)
		p := take(t, w, c.paid, Token)
		take(t, w, c.other, Token)
		w.giveBack(p, at(c.back))
		if got := w.state.Load(); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

// TestARefundFindsTheHeir: what was paid before a reload and is given back after
// it comes off the new bucket's debt, in tokens.
func TestARefundFindsTheHeir(t *testing.T) {
	t.Parallel()
	old, heir := microWord(t, 20), microWord(t, 20)
	heir.limit.token, heir.limit.capacity = 3000, 60000
	p := take(t, old, 1000, 2*Token)
	take(t, old, 1000, Token)
	heir.succeed(old, 1000)
	take(t, heir, 1000, 4*Token)
	if _, _, ok := old.take(1000, Token); ok {
		t.Error("a sealed word was paid")
	}
	if _, ok := old.look(1000, Token); ok {
		t.Error("a sealed word answers")
	}
	old.giveBack(p, at(1000))
	heir.settle()
	if got, want := heir.state.Load(), int64(1000+5*3000); got != want {
		t.Errorf("the heir is at %d, want %d", got, want)
	}
}

// TestARefundFollowsSeveralReloads: it follows the words from heir to heir.
func TestARefundFollowsSeveralReloads(t *testing.T) {
	t.Parallel()
	w := microWord(t, 20)
	p := take(t, w, 1000, 2*Token)
	first := w
	for range 3 {
		take(t, w, 1000, Token)
		next := microWord(t, 20)
		next.succeed(w, 1000)
		next.settle()
		w = next
	}
	first.giveBack(p, at(1000))
	if got := w.state.Load(); got != 1000+3*1000 {
		t.Errorf("the last heir is at %d, want 4000", got)
	}
}

// TestADebtIsConvertedInTokens: rounded against whoever owes it, by less than a
// nanosecond, and to no more than the new bucket can owe.
func TestADebtIsConvertedInTokens(t *testing.T) {
	t.Parallel()
	l := func(token, burst int64) *limit {
		return &limit{token: token, burst: burst, capacity: token * burst, active: true}
	}
	for _, c := range []struct {
		tat      int64
		from, to *limit
		want     int64
	}{
		{0, l(10, 5), l(20, 5), 0},
		{99, l(10, 5), l(20, 5), 99}, // owes nothing
		{100, l(10, 5), l(20, 5), 100},
		{130, l(10, 5), l(20, 5), 160},
		{130, l(10, 5), l(20, 2), 140}, // 3 tokens of 2
		{130, l(10, 5), l(10, 2), 120},
		{130, l(10, 5), l(1, 5), 103},
		{131, l(10, 5), l(1, 5), 104}, // 3.1
		{131, l(10, 5), l(10, 7), 131},
		{130, l(10, 5), &limit{}, 130},
		{130, &limit{}, l(10, 1), 130},
		{100 + 1<<61, l(1<<60, 2), l(1<<61, 1), 100 + 1<<61},
		{100 + 1<<61, l(1, 1<<61), l(1<<61, 1), 100 + 1<<61}, // the product has 122 bits
		{100 + 1<<61, l(1, 1<<61), l(2, 1<<60), 100 + 1<<61},
	} {
		if got := convert(c.tat, c.from, c.to, 100); got != c.want {
			t.Errorf("%d from %+v to %+v: %d, want %d", c.tat, *c.from, *c.to, got, c.want)
		}
	}
	for range 10000 {
		from, to := l(1+rand.Int64N(1e9), 1e9), l(1+rand.Int64N(1e9), 1e9)
		debt := rand.Int64N(1e15)
		back := convert(convert(100+debt, from, to, 100), to, from, 100) - 100
		if slack := from.token/to.token + 2; debt < to.capacity && (back < debt && back < from.capacity || back > debt+slack) {
			if convert(100+debt, from, to, 100)-100 < to.capacity {
				t.Fatalf("%d under %d became %d by way of %d", debt, from.token, back, to.token)
			}
		}
	}
}

// TestPricesAreExactToTheNanosecond: and never lower than the true price.
func TestPricesAreExactToTheNanosecond(t *testing.T) {
	t.Parallel()
	for range 100000 {
		token := 1 + rand.Int64N(1<<uint(1+rand.IntN(40)))
		burst := 1 + rand.Int64N(1<<20)
		l := &limit{token: token, burst: burst, capacity: token * burst}
		c := Cost(rand.Int64N(burst*int64(Token) + 1))
		whole, part := int64(c/Token)*token, int64(c%Token)
		hi := whole + int64(math.Ceil(float64(part)*float64(token)/1000))
		if got := l.price(c); got < hi-1 || got > hi+1 || (part == 0 && got != whole) || (got-whole)*1000 < part*token || (got-whole)*1000-part*token >= 1000 {
			t.Fatalf("%d thousandths at %d ns a token cost %d", c, token, got)
		}
		if !l.fits(c) || l.fits(Cost(burst)*Token+1) || l.price(Cost(burst)*Token) != l.capacity {
			t.Fatalf("burst %d: what fits is wrong", burst)
		}
	}
}
