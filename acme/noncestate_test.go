package acme

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

// restarted goes on with n in another instance.
func restarted(t testing.TB, n *nonces) *nonces {
	t.Helper()
	state, err := n.freeze()
	if err != nil {
		t.Fatal(err)
	}
	next := mustNonces(t, n.window, n.rekey)
	if err := next.restore(state); err != nil {
		t.Fatal(err)
	}
	return next
}

// The law of TestNonceIsGoodOnceAndWithinTheWindow holds over restarts: there
// may be so many in one window as there are keys.
func TestNonceIsGoodOnceOverRestarts(t *testing.T) {
	t.Parallel()
	const window = 64
	n := mustNonces(t, window, 1000)
	var issued []string
	used := map[int]bool{}
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 5000 {
		if i%20 == 19 { // ten or so are issued in between
			n = restarted(t, n)
		}
		if len(issued) == 0 || r.IntN(3) > 0 {
			issued = append(issued, mustIssue(t, n))
			continue
		}
		i := max(0, len(issued)-1-r.IntN(2*window))
		want := len(issued)-i <= window && !used[i]
		if got := n.redeem(issued[i]) == nil; got != want {
			t.Fatalf("nonce %d of %d, used %v: taken %v; want %v", i, len(issued), used[i], got, want)
		}
		used[i] = used[i] || want
	}
	if len(n.seals) > maxSeals {
		t.Errorf("%d keys are kept", len(n.seals))
	}
}

// Nothing is taken back once the state is out: whoever goes on with it would
// take it a second time.
func TestNothingIsRedeemedAfterTheStateWasHandedOn(t *testing.T) {
	t.Parallel()
	n := mustNonces(t, 64, 64)
	s := mustIssue(t, n)
	next := restarted(t, n)
	if n.redeem(s) == nil {
		t.Fatal("a nonce was taken after the state was handed on")
	}
	// What a straggler hears is good nowhere, and takes nobody's place.
	late := mustIssue(t, n)
	first := mustIssue(t, next)
	if n.redeem(late) == nil || next.redeem(late) == nil {
		t.Error("a nonce from after the state was handed on is good")
	}
	if err := next.redeem(s); err != nil {
		t.Error(err)
	}
	if next.redeem(s) == nil {
		t.Error("taken twice")
	}
	if err := next.redeem(first); err != nil {
		t.Error(err)
	}
}

// Idle restarts cost no key.
func TestRestartsThatGiveOutNothingForgetNothing(t *testing.T) {
	t.Parallel()
	n := mustNonces(t, 64, 64)
	s := mustIssue(t, n)
	for range 3 * maxSeals {
		n = restarted(t, n)
	}
	if err := n.redeem(s); err != nil {
		t.Error(err)
	}
}

// The key that was in the database seals nothing any more.
func TestTheKeyOfAStateSealsNothingNew(t *testing.T) {
	t.Parallel()
	n := mustNonces(t, 64, 64)
	mustIssue(t, n)
	next := restarted(t, n)
	if next.seals[0].key == n.seals[0].key {
		t.Error("the key of the state is in use")
	}
	forged := &nonces{window: 64, rekey: 64, prefix: n.prefix, next: 1, out: make([]uint64, 1), seals: n.seals}
	mustIssue(t, next)
	if next.redeem(mustIssue(t, forged)) == nil { // for the counter that next has just given out
		t.Error("a nonce made with the key of the state took the place of a new one")
	}
}

func TestAStateThatIsNotOneIsRefusedWhole(t *testing.T) {
	t.Parallel()
	n := mustNonces(t, 64, 64)
	good := mustIssue(t, n)
	state, err := mustNonces(t, 64, 64).freeze()
	if err != nil {
		t.Fatal(err)
	}
	other, err := mustNonces(t, 128, 128).freeze()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range [][]byte{nil, state[:10], state[:len(state)-1], slices.Concat(state, []byte{0}), other, slices.Concat([]byte{2}, state[1:])} {
		if err := n.restore(b); !errors.Is(err, errNonceState) {
			t.Errorf("%x: %v", b, err)
		}
	}
	if err := n.redeem(good); err != nil {
		t.Errorf("what is no state changed what was: %v", err)
	}
}

// What is read as a state is one that a server can go on with.
func FuzzNonceState(f *testing.F) {
	n := mustNonces(f, 64, 64)
	for range 100 {
		mustIssue(f, n)
	}
	state, err := n.freeze()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(state)
	f.Add(state[:60])
	f.Fuzz(func(t *testing.T, b []byte) {
		n := mustNonces(t, 64, 64)
		if n.restore(b) != nil {
			return
		}
		s := mustIssue(t, n)
		if n.redeem(s) != nil || n.redeem(s) == nil {
			t.Errorf("after %x a nonce is not good once", b)
		}
	})
}
