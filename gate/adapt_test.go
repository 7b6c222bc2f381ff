package gate_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
)

// A device is what is behind an adaptive gate in these tests: it works at
// parallel things at a time at full speed, and at more the slower.
type device struct {
	mu       sync.Mutex
	busy     int
	parallel int
	work     time.Duration
}

// signing is slower than elsewhere, as so many windows go by in fewer steps.
const signing = 10 * service

// use works once. The time it takes is settled when it begins.
func (d *device) use() {
	d.mu.Lock()
	d.busy++
	took := d.work * time.Duration(max(d.busy, d.parallel)) / time.Duration(d.parallel)
	d.mu.Unlock()
	time.Sleep(took)
	d.mu.Lock()
	d.busy--
	d.mu.Unlock()
}

// press keeps that many clients asking at g for that long, each again as soon as
// it has its answer, and returns the narrowest and the widest that the gate was.
func press(g *gate.Gate, clients int, length time.Duration, work func(gate.Seat)) (least, most int) {
	var all sync.WaitGroup
	end := time.Now().Add(length)
	for range clients {
		all.Go(func() {
			for time.Now().Before(end) {
				s, err := g.AcquireSeat(background, gate.Issuance, "a")
				if err != nil {
					time.Sleep(signing)
					continue
				}
				work(s)
			}
		})
	}
	least = g.Stat().Limit
	for time.Now().Before(end) {
		n := g.Stat().Limit
		least, most = min(least, n), max(most, n)
		time.Sleep(signing)
	}
	all.Wait()
	return least, most
}

func (d *device) serve(s gate.Seat) {
	d.use()
	s.Release()
}

var adaptive = gate.Config{Seats: 16, MaxQueue: 64, MaxWait: time.Minute, Adaptive: true, MinSeats: 2}

func TestAGateIsNotAdaptiveUnlessToldSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := adaptive
		cfg.Adaptive = false
		g := newGate(t, cfg)
		d := &device{parallel: 1, work: signing}
		if least, most := press(g, 32, 20*time.Second, d.serve); least != 16 || most != 16 {
			t.Errorf("from %d to %d seats, want 16", least, most)
		}
	})
}

// A device that gets slower the more is at it gets fewer at a time, but never
// fewer than the floor; when it is fast again, more, but never more than there are.
func TestAnAdaptiveGateStaysBetweenFloorAndSeats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, adaptive)
		d := &device{parallel: 16, work: signing}
		if _, most := press(g, 32, 10*time.Second, d.serve); most != 16 || g.Stat().Limit != 16 {
			t.Errorf("%d seats, at most %d: want 16 of a device that can do so", g.Stat().Limit, most)
		}
		d.parallel = 4
		least, _ := press(g, 32, 20*time.Second, d.serve)
		if least < 2 || g.Stat().Limit > 8 {
			t.Errorf("%d seats, %d at least: want 2 to 8 of a device for 4", g.Stat().Limit, least)
		}
		d.parallel, d.work = 1, 2*signing
		least, _ = press(g, 32, 120*time.Second, d.serve)
		if least != 2 {
			t.Errorf("%d seats at least: want the floor of 2", least)
		}
		d.parallel, d.work = 16, signing
		if _, most := press(g, 32, 30*time.Second, d.serve); most != 16 {
			t.Errorf("at most %d seats, want 16 again", most)
		}
	})
}

// To learn how fast the device is alone, the gate does not make it idle: while it
// is as fast as usual, under load or without, the limit never falls.
func TestAnAdaptiveGateDoesNotProbeByNarrowing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, adaptive)
		d := &device{parallel: 16, work: signing}
		limit := g.Stat().Limit
		for _, clients := range []int{32, 1, 64, 2, 16, 32} {
			if least, _ := press(g, clients, 10*time.Second, d.serve); least < limit {
				t.Fatalf("%d clients: down to %d seats from %d", clients, least, limit)
			}
			limit = g.Stat().Limit
		}
	})
}

// A device that is a little slower than usual, as one just above its knee, makes
// the gate no wider, however long its queue is and however often it looks.
func TestMildOverloadDoesNotWidenTheGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, adaptive)
		d := &device{parallel: 6, work: signing}
		press(g, 4, 10*time.Second, d.serve) // what is usual, from a quiet hour
		press(g, 12, 10*time.Second, d.serve)
		limit := g.Stat().Limit
		if _, most := press(g, 40, 300*time.Second, d.serve); most > limit || most > 12 {
			t.Errorf("from %d to %d seats in five minutes", limit, most)
		}
	})
}

// Nobody waits: there is no reason for more seats, nor a use in fewer.
func TestTheLimitStaysWhileNobodyFindsTheGateFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, adaptive)
		d := &device{parallel: 16, work: signing}
		least, most := press(g, 4, 20*time.Second, d.serve)
		d.work *= 10
		slow, _ := press(g, 4, 60*time.Second, d.serve)
		if least != 8 || most != 8 || slow != 8 {
			t.Errorf("from %d to %d seats, and %d when all got slower: want 8", least, most, slow)
		}
	})
}

// Work that failed at once, or that was refused, says nothing about how fast the
// device is. Were it taken for fast, the gate would open for a device that fails,
// and shut for one that has recovered.
func TestFailuresTeachAnAdaptiveGateNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, adaptive)
		d := &device{parallel: 16, work: signing}
		press(g, 4, 10*time.Second, d.serve)
		_, most := press(g, 32, 2*time.Second, func(s gate.Seat) {
			time.Sleep(time.Millisecond)
			s.Fail()
		})
		if most != 8 {
			t.Errorf("failures made 8 seats %d", most)
		}
		if least, _ := press(g, 32, 10*time.Second, d.serve); least < 8 {
			t.Errorf("after the failures usual work is slow: down to %d seats", least)
		}
	})
}

// Work begun under another limit says nothing about the one in force.
func TestWorkOfAnEarlierLimitTeachesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := adaptive
		cfg.Seats = 400
		g := newGate(t, cfg)
		d := &device{parallel: 400, work: signing}
		press(g, 100, 5*time.Second, d.serve)
		var old []gate.Seat
		for range 150 { // more than one decision needs
			old = append(old, seat(t, g, gate.Issuance, "a"))
		}
		time.Sleep(time.Second) // slow, but under the limit that was
		reconfigure(t, g, cfg)
		limit := g.Stat().Limit
		for range limit - 150 {
			seat(t, g, gate.Issuance, "a")
		}
		ask(t.Context(), g, gate.Issuance, "a") // the gate is full, and somebody sees it
		for _, s := range old {
			s.Release()
		}
		if n := g.Stat().Limit; n != limit {
			t.Errorf("%d seats became %d", limit, n)
		}
		settle(g)
	})
}

// Work of one class that takes longer than that of another is not slow: each is
// held against its own.
func TestSlowerKindsOfWorkAreNotTakenForASlowDevice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, adaptive)
		kind := func(c gate.Class, work time.Duration, clients int, length time.Duration) {
			var all sync.WaitGroup
			end := time.Now().Add(length)
			for range clients {
				all.Go(func() {
					for time.Now().Before(end) {
						if s, err := g.AcquireSeat(background, c, "a"); err == nil {
							time.Sleep(work)
							s.Release()
						} else {
							time.Sleep(signing)
						}
					}
				})
			}
			all.Wait()
		}
		kind(gate.Status, signing, 2, 10*time.Second)
		kind(gate.Issuance, 20*signing, 2, 60*time.Second)
		limit := g.Stat().Limit
		kind(gate.Issuance, 20*signing, 40, 60*time.Second)
		if n := g.Stat().Limit; n < limit {
			t.Errorf("%d seats became %d by work that always takes so long", limit, n)
		}
	})
}

// A change of the configuration keeps an adaptive gate where it has found to be,
// and one that is adaptive no more gets all its seats back.
func TestReconfiguringKeepsWhatTheGateHasLearnt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, adaptive)
		d := &device{parallel: 2, work: signing}
		press(g, 1, 10*time.Second, d.serve)
		press(g, 32, 20*time.Second, d.serve)
		limit := g.Stat().Limit
		if limit >= 8 {
			t.Fatalf("%d seats for a device of 2", limit)
		}
		cfg := adaptive
		cfg.MaxQueue = 10
		reconfigure(t, g, cfg)
		if n := g.Stat().Limit; n != limit {
			t.Errorf("%d seats became %d", limit, n)
		}
		if _, most := press(g, 32, 60*time.Second, d.serve); most > limit+1 {
			t.Errorf("%d seats became %d when what is usual should have been known", limit, most)
		}
		cfg.Adaptive = false
		reconfigure(t, g, cfg)
		if n := g.Stat().Limit; n != 16 {
			t.Errorf("%d seats, want all 16", n)
		}
	})
}
