package ratelimit

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// A bucket is one number, its TAT (theoretical arrival time): the instant, in
// nanoseconds of the limiter's clock, at which it will be full again. What is
// spent from it moves the TAT forward, time does the refilling. One that lies in
// the past is a full bucket, and so is 0, which a bucket begins with.
//
// The clock only ever raises a TAT, never lowers it: a reading that is older
// than another caller's makes a bucket look emptier than it is, and mints
// nothing.

// farthest bounds how long any bucket takes to fill. The clock counts from the
// start of the process, so that a TAT has room for as much again.
const farthest = 1 << 62

// A limit is a Bucket made ready for arithmetic in nanoseconds.
//
// One that is not active keeps the numbers of the last that was, so that the
// debts that it left behind are still understood when it comes back.
type limit struct {
	token    int64 // in which one token comes back
	burst    int64 // tokens
	capacity int64 // burst * token: in which an empty bucket is full again
	active   bool
	shadow   bool
}

// newLimit makes a limit of factor times b, or says what is wrong with b.
func newLimit(b Bucket, factor int) (limit, error) {
	switch {
	case math.IsNaN(b.Rate) || math.IsInf(b.Rate, 0):
		return limit{}, errors.New("rate must be a number")
	case b.Rate < 0:
		return limit{}, fmt.Errorf("rate must not be negative, and is %v", b.Rate)
	case b.Burst < 0:
		return limit{}, fmt.Errorf("burst must not be negative, and is %d", b.Burst)
	case b.Rate > 0 && b.Burst == 0:
		return limit{}, fmt.Errorf("burst is missing for a rate of %v: nothing would ever be admitted", b.Rate)
	case !b.Active():
		return limit{shadow: b.Shadow}, nil
	}
	// A token that takes a fraction of a nanosecond longer is never one too many.
	token := math.Ceil(1e9 / (b.Rate * float64(factor)))
	if b.Rate*float64(factor) > 1e9 {
		return limit{}, fmt.Errorf("rate is more than one token in a nanosecond: %v", b.Rate)
	}
	if token >= farthest || int64(b.Burst) > (farthest-1)/int64(token)/int64(factor) {
		return limit{}, fmt.Errorf("a burst of %d at a rate of %v takes longer to come back than can be counted", b.Burst, b.Rate)
	}
	l := limit{token: int64(token), burst: int64(b.Burst) * int64(factor), active: true, shadow: b.Shadow}
	l.capacity = l.burst * l.token
	return l, nil
}

// fits reports whether a full bucket holds c.
func (l *limit) fits(c Cost) bool {
	whole := int64(c / Token)
	return whole < l.burst || whole == l.burst && c%Token == 0
}

// price is c, which fits, in nanoseconds, rounded up.
func (l *limit) price(c Cost) int64 {
	if c == Token {
		return l.token
	}
	whole, part := int64(c/Token), int64(c%Token)
	// In two steps, as the product could be too large.
	return whole*l.token + part*(l.token/1000) + (part*(l.token%1000)+999)/1000
}

// An answer is what a bucket says to a request.
type answer struct {
	tat   int64 // if it is paid
	wait  int64 // 0: it can be paid now
	never bool
}

func (a answer) ok() bool { return a.wait == 0 && !a.never }

// ask says what becomes of a bucket at tat from which c is taken at now while
// reserve tokens, or half of the burst if that is less, must be left.
func (l *limit) ask(tat, now int64, c Cost, reserve int) answer {
	if !l.fits(c) {
		return answer{never: true}
	}
	price := l.price(c)
	room := l.capacity - max(tat-now, 0)
	if reserve > 0 {
		// What fits can be had from a full bucket, whatever the reserve.
		room -= min(min(int64(reserve), l.burst/2)*l.token, l.capacity-price)
	}
	if price > room {
		return answer{wait: price - room}
	}
	return answer{tat: max(tat, now) + price}
}

// fine is the TAT after up to c was taken without asking, as far as the bucket
// goes.
func (l *limit) fine(tat, now int64, c Cost) int64 {
	debt := max(tat-now, 0)
	price := l.capacity
	if l.fits(c) {
		price = l.price(c)
	}
	return max(tat, now) + min(price, max(l.capacity-debt, 0))
}

// convert turns a TAT under one limit into the one that owes as many tokens
// under another, which came into force at the instant at. What a smaller bucket
// can't owe is forgiven.
func convert(tat int64, from, to *limit, at int64) int64 {
	if tat <= at || from.token == to.token && from.capacity == to.capacity {
		return tat
	}
	if from.token == 0 || to.token == 0 {
		return tat // there was, or is, nothing to measure it by
	}
	hi, lo := bits.Mul64(uint64(tat-at), uint64(to.token))
	if hi >= uint64(from.token) {
		return at + to.capacity
	}
	debt, rest := bits.Div64(hi, lo, uint64(from.token))
	if debt >= uint64(to.capacity) {
		return at + to.capacity
	}
	if rest > 0 {
		debt++ // rounded down, it would mint a part of a token
	}
	return at + int64(debt)
}
