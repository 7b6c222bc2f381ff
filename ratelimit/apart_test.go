package ratelimit

import "testing"

// TestASetInUseHoldsUpNoOther: there is no lock over a table. While one set of a
// full table is held, sources of all the others are admitted, and make room one
// at a time: no call does the work of many, and none waits for it. (Elsewhere a
// quarter of the table was cleared at once, while nobody was admitted.)
func TestASetInUseHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	const sets, flood = 100, 20_000
	l, _ := newTest(t, Config{PerIP: Bucket{Rate: 0.001, Burst: 10}, MaxKeys: sets * ways})
	e := l.Endpoint("order", EndpointOptions{})
	e.Admit(ip(alice))
	s := l.settings.Load()
	held := requestOf(l, s, ip(alice), e.index)
	if !held.read(s) || !held.lockAsRead() {
		t.Fatal("a set at rest can't be read and locked")
	}
	asked := 0
	for i := range uint32(flood) {
		if r := requestOf(l, s, v4(i), e.index); r.claims[0].set == held.claims[0].set {
			continue
		}
		asked++
		before := l.Stat().Tables[0].Evicted
		if !e.Admit(v4(i)).OK { // would never end if it waited for what is held here
			t.Fatalf("source %d is refused", i)
		}
		if n := l.Stat().Tables[0].Evicted - before; n > 1 {
			t.Fatalf("source %d drove out %d others", i, n)
		}
	}
	if asked < flood*9/10 || l.Stat().Tables[0].Evicted < flood/2 {
		t.Errorf("%d asked, %d were driven out: that was no flood", asked, l.Stat().Tables[0].Evicted)
	}
	held.restore()
	if !e.Admit(ip(alice)).OK {
		t.Error("the set that was held is lost")
	}
}
