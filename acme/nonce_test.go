package acme

import (
	"math/rand/v2"
	"sync"
	"testing"
)

func mustNonces(t testing.TB, window, rekey uint64) *nonces {
	t.Helper()
	n, err := newNonces(window, rekey)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func mustIssue(t testing.TB, n *nonces) string {
	t.Helper()
	s, err := n.issue()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The property: a nonce is taken if and only if it is among the last window
// issued, and was not taken before. Keys change on the way.
func TestNonceIsGoodOnceAndWithinTheWindow(t *testing.T) {
	t.Parallel()
	const window = 64
	n := mustNonces(t, window, 100)
	var issued []string
	used := map[int]bool{}
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		if len(issued) == 0 || r.IntN(3) > 0 {
			issued = append(issued, mustIssue(t, n))
			continue
		}
		i := max(0, len(issued)-1-r.IntN(2*window))
		want := len(issued)-i <= window && !used[i]
		if got := n.redeem(issued[i]) == nil; got != want {
			t.Fatalf("nonce %d of %d, used %v: taken %v; want %v", i, len(issued), used[i], got, want)
		}
		used[i] = true
	}
}

func TestForeignNoncesAreRefused(t *testing.T) {
	t.Parallel()
	n, other := mustNonces(t, 64, 64), mustNonces(t, 64, 64)
	s := mustIssue(t, n)
	for _, bad := range []string{"", "x", s[:len(s)-1], s + "A", s + "=", mustIssue(t, other), s[:20] + "A" + s[21:], s[:20] + "B" + s[21:]} {
		if bad != s && n.redeem(bad) == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if err := n.redeem(s); err != nil {
		t.Error(err)
	}
}

func TestNonceIsTakenByOneOfMany(t *testing.T) {
	t.Parallel()
	n := mustNonces(t, 1<<12, 1<<12)
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		taken = map[string]int{}
	)
	all := make([]string, 200)
	for i := range all {
		all[i] = mustIssue(t, n)
	}
	for range 8 {
		wg.Go(func() {
			for _, s := range all {
				_, _ = n.issue()
				if n.redeem(s) == nil {
					mu.Lock()
					taken[s]++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	for _, s := range all {
		if taken[s] != 1 {
			t.Fatalf("a nonce was taken %d times", taken[s])
		}
	}
}

func FuzzRedeem(f *testing.F) {
	n := mustNonces(f, 64, 64)
	f.Add("")
	f.Add(mustIssue(f, mustNonces(f, 64, 64)))
	f.Add(mustIssue(f, n)[:58] + "_")
	f.Fuzz(func(t *testing.T, s string) {
		if n.redeem(s) == nil {
			t.Errorf("%q was never issued, and was taken", s)
		}
	})
}

func BenchmarkNonce(b *testing.B) {
	n := mustNonces(b, nonceWindow, nonceRekeyAt)
	for b.Loop() {
		if err := n.redeem(mustIssue(b, n)); err != nil {
			b.Fatal(err)
		}
	}
}
