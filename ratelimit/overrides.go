package ratelimit

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// maxOverrides bounds the overrides, so that a class fits into its bits.
const maxOverrides = 10000

// A rule is the override of a source or an account: which limit of its tier's
// schedule it stands for.
type rule struct {
	class  uint16
	bits   uint8 // of the prefix
	exempt bool
}

// common is the rule of all without an override.
var common = rule{}

// sources finds the rule of an address: the address space cut at the borders of
// all prefixes, each piece with the longest prefix that covers it. No sources
// have no pieces, and cost nothing.
type sources []piece

type piece struct {
	first address
	rule  rule
}

// find returns the rule of a.
func (s sources) find(a address) rule {
	// The last piece that doesn't begin beyond a.
	lo, hi := 0, len(s)
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); a.less(s[mid].first) {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	if lo == 0 {
		return common
	}
	return s[lo-1].rule
}

// A sourceRule is a rule before the pieces are cut.
type sourceRule struct {
	span
	rule rule
}

// last is the highest address of the prefix.
func (p span) last() address {
	rest := address{^uint64(0), ^uint64(0)}.masked(p.bits)
	return address{p.hi | ^rest.hi, p.lo | ^rest.lo}
}

// next is the address after a, false after the highest.
func (a address) next() (address, bool) {
	if a.lo++; a.lo == 0 {
		a.hi++
	}
	return a, a != address{}
}

// newSources cuts the pieces. A rule that covers no IPv4-mapped address by
// itself, such as that of ::/0, must not cover IPv4 sources: they get a piece.
func newSources(rules []sourceRule) sources {
	if len(rules) == 0 {
		return nil
	}
	rules = append(slices.Clone(rules), sourceRule{span: span{address{lo: mapped}, 96}})
	if slices.ContainsFunc(rules[:len(rules)-1], func(r sourceRule) bool { return r.span == rules[len(rules)-1].span }) {
		rules = rules[:len(rules)-1] // 0.0.0.0/0 has a rule
	}
	// The wider ones first where several begin at the same address.
	slices.SortFunc(rules, func(a, b sourceRule) int {
		return cmp.Or(cmp.Compare(a.hi, b.hi), cmp.Compare(a.lo, b.lo), cmp.Compare(a.bits, b.bits))
	})
	var c cutter
	for _, r := range rules {
		c.closeBefore(r.address)
		c.begin(r.address, r.rule)
		c.open = append(c.open, r)
	}
	c.closeAll()
	return c.pieces
}

// A cutter goes over prefixes in order. open are those that cover where it is,
// the longest last.
type cutter struct {
	pieces sources
	open   []sourceRule
}

// begin lets a piece begin at a. Of several that begin there the last counts.
func (c *cutter) begin(a address, r rule) { c.pieces = append(c.pieces, piece{a, r}) }

func (c *cutter) closeBefore(a address) {
	for len(c.open) > 0 && c.open[len(c.open)-1].last().less(a) {
		c.closeLast()
	}
}

func (c *cutter) closeAll() {
	for len(c.open) > 0 {
		c.closeLast()
	}
}

// closeLast ends the innermost prefix: the one around it goes on.
func (c *cutter) closeLast() {
	ended := c.open[len(c.open)-1]
	c.open = c.open[:len(c.open)-1]
	after, ok := ended.last().next()
	if !ok {
		return
	}
	around := common
	if len(c.open) > 0 {
		around = c.open[len(c.open)-1].rule
	}
	c.begin(after, around)
}

// validate says what is wrong with o by itself, and returns its limit.
func (o Override) validate() (limit, error) {
	if o.Source.IsValid() == (o.Account != "") {
		return limit{}, errors.New("needs either a source or an account")
	}
	l, err := newLimit(o.Bucket, 1)
	switch {
	case err != nil:
		return limit{}, err
	case o.Exempt && l.active:
		return limit{}, errors.New("is exempt, and has a bucket")
	case !o.Exempt && !l.active:
		return limit{}, fmt.Errorf("a rate of %v and a burst of %d limit nothing: say exempt if that is meant", o.Bucket.Rate, o.Bucket.Burst)
	}
	return l, nil
}
