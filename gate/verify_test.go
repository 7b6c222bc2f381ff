package gate_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/secsy-pki/secsy-pki/gate"
)

// A door verifies names and passwords in the order that the Governor asks for.
type door struct {
	governor *gate.Governor
	verdicts *gate.Verdicts
	users    map[string][]byte // their hashes
	version  string            // of users
	nobody   []byte            // a hash that no password fits, as costly as theirs
	compare  func(hash, password []byte) error
}

var errDenied = errors.New("denied")

// verify has one answer to everything that is not right.
func (d *door) verify(ctx context.Context, client, user, password string) error {
	c := gate.Credentials{Client: client, User: user, Secret: password, Version: d.version}
	if d.verdicts.Known(c) {
		return nil
	}
	release, err := d.governor.Acquire(ctx, client)
	if err != nil {
		return fmt.Errorf("%w: %w", errDenied, err)
	}
	defer release() // once the hash is computed, not when the client leaves
	stored, exists := d.users[user]
	if !exists {
		stored = d.nobody
	}
	if wrong := d.compare(stored, []byte(password)); wrong != nil || !exists {
		return errDenied
	}
	d.verdicts.Learn(c)
	return nil
}

// newDoor lets alice in, with a hash that only counts.
func newDoor(c gate.GovernorConfig) (d *door, hashed *int) {
	hashed = new(int)
	return &door{
		governor: gate.NewGovernor(c),
		verdicts: gate.NewVerdicts(gate.VerdictsConfig{}),
		users:    map[string][]byte{"alice": []byte("right")},
		version:  "1",
		nobody:   []byte("\x00"),
		compare: func(hash, password []byte) error {
			*hashed++
			if string(hash) != string(password) {
				return errDenied
			}
			return nil
		},
	}, hashed
}

func ExampleGovernor() {
	d, hashed := newDoor(gate.GovernorConfig{Ceiling: 1, MaxWait: time.Millisecond})
	ctx := context.Background()
	try := func(user, password string) {
		err := d.verify(ctx, "192.0.2.1", user, password)
		fmt.Printf("%s with %s: %v, %d hashed\n", user, password, err, *hashed)
	}
	try("alice", "right")
	try("alice", "right") // known by now
	try("alice", "wrong")
	try("nobody", "right")

	release, _ := d.governor.Acquire(ctx, "192.0.2.99") // the ceiling is reached
	defer release()
	try("alice", "right")
	try("alice", "wrong")
	try("nobody", "right")
	// Output:
	// alice with right: <nil>, 1 hashed
	// alice with right: <nil>, 1 hashed
	// alice with wrong: denied, 2 hashed
	// nobody with right: denied, 3 hashed
	// alice with right: <nil>, 3 hashed
	// alice with wrong: denied: gate: password verification turned away: timeout, 3 hashed
	// nobody with right: denied: gate: password verification turned away: timeout, 3 hashed
}

// The Governor does not change a verdict that it lets be found: every name and
// password has the answer that it would have without one.
func TestVerdictsAreUnchangedUnderTheBudget(t *testing.T) {
	t.Parallel()
	d, hashed := newDoor(gate.GovernorConfig{})
	for user, ok := range map[string]bool{"alice": true, "bob": false, "": false} {
		for _, password := range []string{"right", "wrong", "", "\x00"} {
			want := ok && password == "right"
			if got := d.verify(t.Context(), "c", user, password) == nil; got != want {
				t.Errorf("%q with %q: %v, want %v", user, password, got, want)
			}
		}
	}
	if *hashed != 12 {
		t.Errorf("%d hashes for 12 attempts: which were not computed shows in their time", *hashed)
	}
	governorAtRest(t, d.governor)
}

// What was verified a moment ago is let in while every place is taken and the
// queue is full, and does not even count as asking.
func TestACachedSuccessNeverReachesTheGovernor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, hashed := newDoor(gate.GovernorConfig{Ceiling: 1})
		if err := d.verify(t.Context(), "c", "alice", "right"); err != nil {
			t.Fatal(err)
		}
		release := hold(t, d.governor, "")
		flood := logInAll(t, d.governor, "", 8)
		before := d.governor.Stat()
		for i := range 50 {
			if err := d.verify(t.Context(), "c", "alice", "right"); err != nil {
				t.Errorf("attempt %d: %v", i, err)
			}
		}
		if after := d.governor.Stat(); after != before || *hashed != 1 {
			t.Errorf("before: %+v, after: %+v, %d hashed", before, after, *hashed)
		}
		d.version = "2" // alice has another password
		if err := d.verify(t.Context(), "c", "alice", "right"); err == nil {
			t.Error("let in with what an older version knew")
		}
		release()
		countVerdicts(flood)
	})
}

// timed is how long fn takes.
func timed(fn func()) time.Duration {
	begin := time.Now()
	fn()
	return time.Since(begin)
}

// Over the budget a wrong name and a wrong password are refused before anything
// is hashed, in far less than a hash takes; below it both take as long as a hash.
func TestNamesAndPasswordsAreToldApartByNoOnesWatch(t *testing.T) {
	t.Parallel()
	hash := func(password string) []byte {
		h, err := bcrypt.GenerateFromPassword([]byte(password), 6)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	// One place and one waiter: who comes third is refused at once.
	d, _ := newDoor(gate.GovernorConfig{Ceiling: 1, MaxWaiters: 1, MaxWait: time.Hour})
	d.users, d.nobody, d.compare = map[string][]byte{"alice": hash("right")}, hash("of nobody"), bcrypt.CompareHashAndPassword
	attempt := func(user, password string) time.Duration {
		return timed(func() {
			if err := d.verify(t.Context(), "", user, password); !errors.Is(err, errDenied) {
				t.Errorf("%s: %v", user, err)
			}
		})
	}
	// A busy machine spoils some rounds, and what is wrong spoils all.
	holds := func(law string, ok func(took, one time.Duration) bool) {
		t.Helper()
		var took, wrongUser, wrongPassword time.Duration
		for range 20 {
			took = timed(func() { _ = bcrypt.CompareHashAndPassword(d.nobody, []byte("wrong")) })
			wrongUser, wrongPassword = attempt("mallory", "right"), attempt("alice", "wrong")
			if ok(took, wrongUser) && ok(took, wrongPassword) {
				return
			}
		}
		t.Errorf("%s: wrong user %s, wrong password %s, a hash %s", law, wrongUser, wrongPassword, took)
	}
	holds("under the budget", func(took, one time.Duration) bool { return one > took/2 })

	release := hold(t, d.governor, "")
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error)
	go func() {
		_, err := d.governor.Acquire(ctx, "")
		waiting <- err
	}()
	for d.governor.Stat().Queued == 0 {
		runtime.Gosched()
	}
	holds("over the budget", func(took, one time.Duration) bool { return one < took/4 })
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Errorf("the one that waited: %v", err)
	}
	release()
	governorAtRest(t, d.governor)
}
