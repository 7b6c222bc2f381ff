package acme

import (
	"bytes"
	"testing"
	"time"
)

// Nobody without the key makes a token: what is good is what was made, until its end.
func FuzzUnpauseToken(f *testing.F) {
	key, account, end := bytes.Repeat([]byte{1}, 32), "0123456789abcdef0123456789abcdef", time.Unix(2e9, 0)
	good, err := newUnpauseToken(key, account, end)
	if err != nil {
		f.Fatal(err)
	}
	f.Add("", int64(0))
	f.Add(good, int64(0))
	f.Add(good, end.Unix())
	f.Add(good[:70]+"A"+good[71:], int64(0))
	f.Fuzz(func(t *testing.T, token string, now int64) {
		got, ok := readUnpauseToken(key, token, time.Unix(now, 0))
		if want := token == good && now < end.Unix(); ok != want || ok && got != account {
			t.Errorf("%q at %d: %q, %v", token, now, got, ok)
		}
		if _, ok := readUnpauseToken(bytes.Repeat([]byte{2}, 32), token, time.Unix(now, 0)); ok {
			t.Errorf("%q is good for another key", token)
		}
	})
}
