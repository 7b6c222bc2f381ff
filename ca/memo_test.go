package ca

import (
	"encoding/binary"
	"errors"
	"testing"
)

func TestOnlyWhatPassedIsNotVerifiedAgain(t *testing.T) {
	t.Parallel()
	var m memo
	calls := 0
	good, bad := func() error { calls++; return nil }, errors.New("wrong")
	for range 2 {
		if err := m.once([]byte("a"), func() error { return bad }); !errors.Is(err, bad) {
			t.Fatalf("what fails gives %v", err)
		}
	}
	for range 3 {
		if err := m.once([]byte("a"), good); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.once([]byte("b"), good); err != nil || calls != 2 {
		t.Errorf("verified %d times (%v); want once for each", calls, err)
	}
	for i := range 5 * memoSize {
		if err := m.once(binary.BigEndian.AppendUint32(nil, uint32(i)), good); err != nil {
			t.Fatal(err)
		}
		if n := len(m.now) + len(m.old); n > 2*memoSize {
			t.Fatalf("%d are kept", n)
		}
	}
}
