package ocsp

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/secsy-pki/secsy-pki/ca"
)

func subjectNo(n int) subject { return subject{0, ca.Serial(strconv.Itoa(n))} }

func (c *cache) spellings() int {
	n := 0
	for i := range c.spelled {
		n += len(c.spelled[i].answers)
	}
	return n
}

func TestAFullCacheForgetsWhatNobodyAsksFor(t *testing.T) {
	t.Parallel()
	const size = 10 * shards
	c := newCache(size)
	popular := &answer{}
	c.put(subjectNo(-1), nil, 0, popular)
	c.spell(popular, "popular")
	for n := range 20 * size {
		a := &answer{}
		s := subjectNo(n)
		if !c.put(s, nil, c.changes(s), a) {
			t.Fatal("not kept")
		}
		c.spell(a, strconv.Itoa(n))
		if c.len() > size || c.spellings() > size {
			t.Fatalf("%d answers, %d spellings", c.len(), c.spellings())
		}
		if c.bySpelling("popular") != popular {
			t.Fatalf("the popular one is gone after %d others", n)
		}
	}
}

func TestSpellingsAreBoundedAndGoWithTheirAnswer(t *testing.T) {
	t.Parallel()
	c := newCache(100)
	s := subjectNo(1)
	a := &answer{}
	c.put(s, []byte("sha1"), 0, a)
	for n := range 100 {
		c.spell(a, strconv.Itoa(n))
		c.spell(a, strconv.Itoa(n))
	}
	if c.spellings() != maxSpellings || c.bySpelling("99") != a || c.bySpelling("1") != nil {
		t.Errorf("%d spellings", c.spellings())
	}
	again := &answer{}
	c.put(s, []byte("sha1"), 0, again)
	if c.spellings() != 0 || c.bySpelling("99") != nil || !a.gone.Load() {
		t.Error("an answer that was replaced is found")
	}
	c.spell(a, "late")
	if c.bySpelling("late") != nil {
		t.Error("an answer that is gone is found again")
	}
	for n := range 100 {
		c.put(s, fmt.Append(nil, n), 0, &answer{})
	}
	if c.len() != maxForms {
		t.Errorf("%d answers about one certificate", c.len())
	}
}

func TestNothingFromBeforeAChangeIsKept(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*cache, subject){
		"one": (*cache).change, "all": func(c *cache, _ subject) { c.clear() },
	} {
		c := newCache(100)
		s := subjectNo(1)
		before := c.changes(s)
		a := &answer{}
		c.put(s, nil, before, a)
		c.spell(a, "a")
		change(c, s)
		if c.get(s, nil) != nil || c.bySpelling("a") != nil || c.len() != 0 || c.spellings() != 0 {
			t.Errorf("%s: found after the change", name)
		}
		if c.put(s, nil, before, &answer{}) || c.get(s, nil) != nil {
			t.Errorf("%s: kept after the change", name)
		}
		if !c.put(s, nil, c.changes(s), &answer{}) {
			t.Errorf("%s: what is from after it is not kept", name)
		}
	}
}
