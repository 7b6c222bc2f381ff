package gate

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

func acquire(t *testing.T, g *Gate, identity string) Seat {
	t.Helper()
	s, err := g.AcquireSeat(t.Context(), Issuance, identity)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestIdentitiesThatAreGoneAreSoonForgotten(t *testing.T) {
	t.Parallel()
	g, err := New(Config{Seats: 2, MaxQueue: 8, MaxWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	stays := acquire(t, g, "stays")
	for i := range 10 * maxGone {
		for range 2 { // the second time it is remembered
			s := acquire(t, g, strconv.Itoa(i))
			if n := g.Stat().Identities; n != 2 {
				t.Fatalf("%d identities are seated, want 2", n)
			}
			s.Release()
		}
	}
	if n := len(g.lanes[Issuance].flows); n > maxGone+1 {
		t.Errorf("%d identities are remembered, want %d and the one that is seated", n, maxGone)
	}
	stays.Release()
	if n := g.Stat().Identities; n != 0 {
		t.Errorf("%d identities are seated, want none", n)
	}
}

// Turns that somebody had while nobody else wanted any are not held against him.
func TestWhoComesBackIsAsOneWhoWasNeverThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, err := New(Config{Seats: 1, MaxQueue: 8, MaxWait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			acquire(t, g, "back").Release()
		}
		other := acquire(t, g, "other")
		served := make(chan string, 2)
		for _, id := range []string{"back", "new"} {
			go func() {
				s := acquire(t, g, id)
				served <- id
				s.Release()
			}()
			synctest.Wait()
		}
		other.Release()
		if first := <-served; first != "back" {
			t.Errorf("%s was served before who had asked first", first)
		}
		<-served
	})
}

func TestSeatsAreCountedByHowLongTheyWereTaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, err := New(Config{Seats: 1, MaxQueue: 8, MaxWait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for i, end := range []func(Seat){Seat.Release, Seat.Fail, Seat.Hung, Seat.Void} {
			s := acquire(t, g, "a")
			time.Sleep(time.Duration(i+1) * time.Second)
			end(s)
			end(s) // counts once
		}
		c := g.Stat().Class[Issuance]
		if c.Held.Count != 3 || c.Held.Sum != 6*time.Second {
			t.Errorf("%d seats of %v, want three of 6s: what was void is none", c.Held.Count, c.Held.Sum)
		}
		if want := (7*time.Second + 2*time.Second) / 8; c.Service != want {
			t.Errorf("work is said to take %v, want %v: what hung teaches nothing", c.Service, want)
		}
	})
}
