package gate_test

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
)

func cred(client, user, secret string) gate.Credentials {
	return gate.Credentials{Client: client, User: user, Secret: secret, Version: "1"}
}

// Credentials that would be the same octets when joined are not the same: else
// one who may log in as "admin:a" could as "admin".
func TestTheKeyOfAVerdictIsInjective(t *testing.T) {
	t.Parallel()
	known := gate.Credentials{Client: "c", User: "admin", Secret: "a:b", Version: "v"}
	v := gate.NewVerdicts(gate.VerdictsConfig{})
	v.Learn(known)
	if !v.Known(known) {
		t.Fatal("what was learned is not known")
	}
	for _, other := range []gate.Credentials{
		{"c", "admin:a", "b", "v"},
		{"c", "admina", ":b", "v"},
		{"c", "admi", "na:b", "v"},
		{"ca", "dmin", "a:b", "v"},
		{"c", "admin", "a:", "bv"},
		{"c", "admin", "a:bv", ""},
		{"", "cadmin", "a:b", "v"},
		{"c", "admin\x00", "a:b", "v"},
		{"c", "Admin", "a:b", "v"},
		{"c", "a:b", "admin", "v"},
		{"c", "admin", "", "v"},
		{"", "", "", ""},
	} {
		if v.Known(other) {
			t.Errorf("%+v is known, though only %+v was learned", other, known)
		}
	}
}

func FuzzTheKeyOfAVerdictIsInjective(f *testing.F) {
	f.Add("c", "admin", "a:b", "v", "c", "admin:a", "b", "v")
	f.Add("", "", "", "", "a", "", "", "")
	f.Fuzz(func(t *testing.T, c1, u1, s1, v1, c2, u2, s2, v2 string) {
		one, two := gate.Credentials{c1, u1, s1, v1}, gate.Credentials{c2, u2, s2, v2}
		v := gate.NewVerdicts(gate.VerdictsConfig{Max: 1})
		v.Learn(one)
		short := len(u1) <= 1024 && len(s1) <= 1024
		if v.Known(one) != short {
			t.Errorf("%+v is not known after it was learned", one)
		}
		if v.Known(two) != (short && one == two) {
			t.Errorf("%+v is known, though only %+v was learned", two, one)
		}
	})
}

// A changed password makes what was learned before worthless, at once.
func TestAnotherVersionIsNotKnown(t *testing.T) {
	t.Parallel()
	v, c := gate.NewVerdicts(gate.VerdictsConfig{}), cred("c", "u", "s")
	v.Learn(c)
	c.Version = "2"
	if v.Known(c) {
		t.Error("known after the passwords changed")
	}
	if st := v.Stat(); st.Hits != 0 || st.Misses != 1 || st.Entries != 1 {
		t.Errorf("%+v", st)
	}
}

// keptBy is all that v has in memory of what it learned, as text.
func keptBy(v *gate.Verdicts) (digests, rest string) {
	entries := reflect.ValueOf(v).Elem().FieldByName("entries")
	for _, key := range entries.MapKeys() {
		for i := range key.Len() {
			digests += string([]byte{byte(key.Index(i).Uint())})
		}
		rest += fmt.Sprintf("%v", entries.MapIndex(key).Elem())
	}
	return digests, rest
}

// No name and no password is in memory, only digests under a key of the process.
func TestNoSecretIsKept(t *testing.T) {
	t.Parallel()
	v, other := gate.NewVerdicts(gate.VerdictsConfig{}), gate.NewVerdicts(gate.VerdictsConfig{})
	for _, each := range []*gate.Verdicts{v, other} {
		each.Learn(cred("198.51.100.1", "the-user", "the-secret"))
	}
	digests, rest := keptBy(v)
	for _, secret := range []string{"the-user", "the-secret"} {
		if strings.Contains(digests+rest, secret) {
			t.Errorf("%q is kept: %q %q", secret, digests, rest)
		}
	}
	if !strings.Contains(rest, "198.51.100.1") || len(digests) != 32 {
		t.Errorf("this test looked in the wrong place: %q %q", digests, rest)
	}
	if again, _ := keptBy(other); again == digests {
		t.Error("two processes keep the same digest: it has no key")
	}
}

// What was learned is forgotten after a while, however often it is used.
func TestAVerdictExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := gate.NewVerdicts(gate.VerdictsConfig{TTL: time.Minute})
		c := cred("c", "u", "s")
		v.Learn(c)
		for range 59 {
			time.Sleep(time.Second)
			if !v.Known(c) {
				t.Fatal("forgotten too soon")
			}
		}
		time.Sleep(time.Second)
		if v.Known(c) || v.Stat().Entries != 0 || v.Stat().Clients != 0 {
			t.Errorf("known after a minute: %+v", v.Stat())
		}
		v.Learn(c)
		time.Sleep(30 * time.Second)
		v.Learn(c) // verified again
		time.Sleep(45 * time.Second)
		if !v.Known(c) {
			t.Error("forgotten a minute after it was first learned")
		}
	})
}

// A client that learns ten times what there is room for displaces its own
// entries, and nobody else's.
func TestAFloodOfOneClientDisplacesNoOther(t *testing.T) {
	t.Parallel()
	const room = 100
	v := gate.NewVerdicts(gate.VerdictsConfig{Max: room})
	for i := range 10 {
		v.Learn(cred("victim", fmt.Sprint(i), "s"))
		v.Learn(cred(fmt.Sprint("single", i), "u", "s"))
	}
	for i := range 10 * room {
		v.Learn(cred("flood", fmt.Sprint(i), "s"))
	}
	for i := range 10 {
		if !v.Known(cred("victim", fmt.Sprint(i), "s")) || !v.Known(cred(fmt.Sprint("single", i), "u", "s")) {
			t.Errorf("entry %d was displaced", i)
		}
	}
	for i := range 10 * room {
		if got, want := v.Known(cred("flood", fmt.Sprint(i), "s")), i >= 10*room-80; got != want {
			t.Fatalf("entry %d of the flood: %v, want only its newest 80 known", i, got)
		}
	}
	if st := v.Stat(); st.Entries != room || st.Clients != 12 || st.Evicted != 9*room+20 {
		t.Errorf("%+v", st)
	}
}

// Who gives way is no matter of chance: of clients with equally many entries it
// is the one whose entry is the oldest.
func TestEvictionIsDeterministic(t *testing.T) {
	t.Parallel()
	for range 20 {
		v := gate.NewVerdicts(gate.VerdictsConfig{Max: 6})
		for i := range 6 {
			v.Learn(cred(fmt.Sprint(i), "u", "s"))
		}
		v.Learn(cred("0", "u", "s")) // again: now 1 is the oldest
		v.Learn(cred("new", "u", "s"))
		v.Learn(cred("newer", "u", "s"))
		var gone []string
		for i := range 6 {
			if !v.Known(cred(fmt.Sprint(i), "u", "s")) {
				gone = append(gone, fmt.Sprint(i))
			}
		}
		if fmt.Sprint(gone) != "[1 2]" {
			t.Fatalf("gone are %v, want 1 and 2", gone)
		}
	}
}

// What no hash is computed over is not worth a digest either.
func TestOverlongCredentialsAreNotRemembered(t *testing.T) {
	t.Parallel()
	v := gate.NewVerdicts(gate.VerdictsConfig{})
	for n, want := range map[int]bool{1024: true, 1025: false} {
		for _, c := range []gate.Credentials{cred("c", strings.Repeat("u", n), "s"), cred("c", "u", strings.Repeat("s", n))} {
			v.Learn(c)
			if got := v.Known(c); got != want {
				t.Errorf("of %d octets: known %v, want %v", n, got, want)
			}
		}
	}
}

func TestVerdictsAreSafeForManyAtATime(t *testing.T) {
	t.Parallel()
	v := gate.NewVerdicts(gate.VerdictsConfig{Max: 50})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 500 {
				c := cred(fmt.Sprint(i%7), fmt.Sprint(w), fmt.Sprint(i%40))
				v.Learn(c)
				v.Known(c)
				v.Stat()
			}
		})
	}
	wg.Wait()
	if st := v.Stat(); st.Entries != 50 || st.Hits+st.Misses != 4000 {
		t.Errorf("%+v", st)
	}
}
