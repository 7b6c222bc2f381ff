package pkcs11pool

import (
	"context"
	"crypto"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

func TestSessionsAreOpenedUpFrontAndLoggedInToOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MinSessions = 3
		p := d.pool(t, cfg)
		mustDo(t, p, sign())
		if d.count("C_OpenSession") != 3 || d.count("C_Login") != 1 || d.count("C_Initialize") != 1 {
			t.Errorf("calls %v, want 3 sessions and 1 login", d.calls)
		}
	})
}

func TestNoSessionIsUsedByTwoAtATime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 2)
		p := d.pool(t, at("a", "b"))
		d.on("C_Sign", func(int) error { time.Sleep(time.Millisecond); return nil })
		var all sync.WaitGroup
		for range 500 {
			all.Go(func() {
				if err := p.do(t.Context(), sign()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if d.peak != 2*defaultMaxSessions {
			t.Errorf("at most %d sessions, want all %d of both tokens", d.peak, 2*defaultMaxSessions)
		}
	})
}

func TestSessionsAboveTheLeastAreClosedWhenIdleForLong(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MinSessions = 2
		p := d.pool(t, cfg)
		var done []<-chan error
		var lets []func()
		for range 6 {
			j, let := hold()
			lets = append(lets, let)
			done = append(done, begin(t.Context(), p, j))
		}
		for i, let := range lets {
			let()
			if err := <-done[i]; err != nil {
				t.Error(err)
			}
		}
		wait(defaultIdleTime - time.Second)
		mustDo(t, p, sign()) // by the one that was back last
		if n := d.open(); n != 6 {
			t.Errorf("%d sessions before the time, want 6", n)
		}
		wait(time.Second)
		if n := d.open(); n != 2 {
			t.Errorf("%d sessions, want 2", n)
		}
		wait(2 * defaultIdleTime)
		if n := d.open(); n != 2 || p.Stat().Tokens[0].Idle != 2 || d.count("C_OpenSession") != 6 {
			t.Errorf("%d sessions later, want 2, of %d opened", n, d.count("C_OpenSession"))
		}
	})
}

func TestWhoComesFirstIsServedFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MaxSessions = 1
		p := d.pool(t, cfg)
		j, let := hold()
		first := begin(t.Context(), p, j)
		var order []int
		var waiting []<-chan error
		for i := range 20 {
			waiting = append(waiting, begin(t.Context(), p, &job{run: func(*conn) error { order = append(order, i); return nil }}))
		}
		if n := p.Stat().Queued; n != 20 {
			t.Errorf("%d wait, want 20", n)
		}
		let()
		for _, done := range append(waiting, first) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if !slices.IsSorted(order) || len(order) != 20 {
			t.Errorf("order %v", order)
		}
	})
}

// busyWith wants a *keys.BusyError of that reason, and returns when to come again.
func busyWith(t *testing.T, err error, why reason) time.Duration {
	t.Helper()
	b, ok := errors.AsType[*keys.BusyError](err)
	if !ok || b.Reason != why.String() || b.RetryAfter < time.Second || !errors.Is(err, keys.ErrBusy) {
		t.Fatalf("got %v, want busy by reason of %v", err, why)
	}
	if isHung(err) {
		t.Fatalf("%v is of a call that hangs, and of none that has done nothing", err)
	}
	return b.RetryAfter
}

func TestAFullQueueTurnsAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MaxSessions, cfg.MaxQueue = 1, 2
		p := d.pool(t, cfg)
		j, let := hold()
		all := []<-chan error{begin(t.Context(), p, j), begin(t.Context(), p, sign()), begin(t.Context(), p, sign())}
		busyWith(t, p.do(t.Context(), sign()), queueFull)
		let()
		for _, done := range all {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if n := d.count("C_Sign"); n != 2 {
			t.Errorf("%d signatures, want 2", n)
		}
	})
}

func TestTheEndOfAContextTakesOutOfTheQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MaxSessions = 1
		p := d.pool(t, cfg)
		j, let := hold()
		first := begin(t.Context(), p, j)

		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := p.do(short, sign())
		busyWith(t, err, timedOut)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v does not say what stands behind it", err)
		}
		gone, cancel := context.WithCancel(t.Context())
		left := begin(gone, p, sign())
		cancel()
		busyWith(t, <-left, canceled)
		busyWith(t, p.do(gone, sign()), canceled)
		let()
		if err := <-first; err != nil {
			t.Error(err)
		}
		if s := p.Stat(); s.Queued != 0 || d.count("C_SignInit") != 0 || s.Refused["canceled"] != 2 || s.Refused["timeout"] != 1 {
			t.Errorf("%+v, and %d signatures begun", s, d.count("C_SignInit"))
		}
		mustDo(t, p, sign())
	})
}

func TestTheEndOfAContextStopsNoRunningCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		d.on("C_Sign", func(int) error { time.Sleep(5 * time.Second); return nil })
		began := time.Now()
		if err := p.do(ctx, sign()); err != nil || time.Since(began) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// Somebody's context may end in the instant in which the session comes. Whatever
// comes first, the session is nobody's twice, and lost to nobody.
func TestASessionThatComesTooLateGoesToTheNext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MaxSessions = 2
		p := d.pool(t, cfg)
		d.on("C_Sign", func(int) error { time.Sleep(time.Millisecond); return nil })
		var all sync.WaitGroup
		for i := range 400 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i%100)*time.Millisecond)
				defer cancel()
				if err := p.do(ctx, sign()); err != nil && !errors.Is(err, keys.ErrBusy) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if s := p.Stat(); s.Queued != 0 || s.Tokens[0].Busy != 0 || s.Tokens[0].Idle != 2 {
			t.Errorf("%+v", s)
		}
	})
}

func TestASessionThatNobodyWaitsForAnyMoreIsNotLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MaxSessions = 1
		p := d.pool(t, cfg)
		j, let := hold()
		holding := begin(t.Context(), p, j)
		p.mu.Lock()
		w, err := p.joinLocked(sign(), nil)
		p.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		let()
		if err := <-holding; err != nil { // whereupon w has its session
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		v := p.leaveQueue(ctx, w)
		busyWith(t, v.err, canceled)
		mustDo(t, p, sign())
		if v.session != nil || d.count("C_OpenSession") != 1 {
			t.Errorf("lent to nobody, or lost: %d sessions", d.count("C_OpenSession"))
		}
	})
}

func TestWhoWaitsForOneTokenIsNotServedByAnother(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 2)
		cfg := at("a", "b")
		cfg.MaxSessions = 1
		p := d.pool(t, cfg)
		only := func(name string, j *job) *job {
			j.on = func(t *token) bool { return t.name == name }
			return j
		}
		ja, leta := hold()
		jb, letb := hold()
		a, b := begin(t.Context(), p, only("a", ja)), begin(t.Context(), p, only("b", jb))
		where := ""
		waiting := begin(t.Context(), p, only("b", &job{run: func(c *conn) error { where = c.token.name; return nil }}))
		leta()
		if err := <-a; err != nil || p.Stat().Queued != 1 {
			t.Errorf("%v, %d wait", err, p.Stat().Queued)
		}
		letb()
		if err := <-waiting; err != nil || where != "b" {
			t.Errorf("%v on %s", err, where)
		}
		if err := <-b; err != nil {
			t.Error(err)
		}
	})
}

func TestTheLeastBusyTokenIsAsked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 2)
		cfg := at("a", "b")
		cfg.MinSessions = 4
		p := d.pool(t, cfg)
		j, let := hold()
		j.on = func(t *token) bool { return t.name == "a" }
		holding := begin(t.Context(), p, j)
		for range 10 {
			mustDo(t, p, sign())
		}
		if n := p.Stat().Tokens[1].Borrows; n != 10 {
			t.Errorf("the idle token was asked %d times of 10", n)
		}
		let()
		if err := <-holding; err != nil {
			t.Error(err)
		}
	})
}

func TestSessionsForAllWhoWaitAreOpenedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		d.on("C_OpenSession", func(int) error { time.Sleep(time.Second); return nil })
		var all []<-chan error
		var lets []func()
		for range 6 {
			j, let := hold()
			all, lets = append(all, begin(t.Context(), p, j)), append(lets, let)
		}
		wait(time.Second)
		if s := p.Stat().Tokens[0]; s.Busy != 6 || d.count("C_OpenSession") != 6 {
			t.Errorf("%+v by %d openings", s, d.count("C_OpenSession"))
		}
		for i, let := range lets {
			let()
			if err := <-all[i]; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestTokensAreUsedEvenly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 3)
		p := d.pool(t, at("a", "b", "c"))
		for range 300 {
			mustDo(t, p, sign())
		}
		for _, s := range p.Stat().Tokens {
			if s.Borrows != 100 {
				t.Errorf("token %s was asked %d times of 300", s.Name, s.Borrows)
			}
		}
	})
}

func TestAJobGoesOnlyToTokensThatCanDoIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 2)
		p := d.pool(t, at("a", "b"))
		d.on("C_Sign", func(int) error { time.Sleep(time.Millisecond); return nil })
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				j := sign()
				run := j.run
				j.on = func(t *token) bool { return t.name == "b" }
				j.run = func(c *conn) error {
					if c.token.name != "b" || c.slot != 1 {
						t.Errorf("on token %s in slot %d", c.token.name, c.slot)
					}
					return run(c)
				}
				if err := p.do(t.Context(), j); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		d.remove(1)
		j := sign()
		j.on = func(t *token) bool { return t.name == "b" }
		busyWith(t, p.do(t.Context(), j), unavailable)
		mustDo(t, p, sign())
	})
}

func TestTheTokenSaysHowManySessionsThereMayBe(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		info := aToken(0)
		info.MaxSessionCount = 4
		d.insert(0, info)
		d.room = 4
		cfg := at("a")
		var sizes []int
		cfg.Resized = func(n int) { sizes = append(sizes, n) }
		p := d.pool(t, cfg)
		d.on("C_Sign", func(int) error { time.Sleep(time.Millisecond); return nil })
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if err := p.do(t.Context(), sign()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if d.peak != 3 || p.Capacity() != 3 || !slices.Equal(sizes, []int{3}) {
			t.Errorf("%d sessions, capacity %d, sizes %v: want 3, and room for one that writes", d.peak, p.Capacity(), sizes)
		}
		mustDo(t, p, write())
	})
}

func TestASessionTooManyTeachesHowManyThereAre(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		d.room = 3
		cfg := at("a")
		cfg.MinSessions = 2
		var sizes []int
		cfg.Resized = func(n int) { sizes = append(sizes, n) }
		p := d.pool(t, cfg)
		d.on("C_Sign", func(int) error { time.Sleep(time.Millisecond); return nil })
		load := func() {
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					if err := p.do(t.Context(), sign()); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			wait(0)
		}
		load()
		if p.Capacity() != 3 || d.open() != 3 || p.Stat().Tokens[0].State != Up {
			t.Errorf("capacity %d, %d sessions, want 3", p.Capacity(), d.open())
		}
		asked := d.count("C_OpenSession")
		load()
		if n := d.count("C_OpenSession"); n != asked {
			t.Errorf("asked %d times more for what is not there", n-asked)
		}
		d.mu.Lock()
		d.room = 5
		d.mu.Unlock()
		wait(defaultIdleTime + time.Second)
		load()
		if told := sizes[len(sizes)-1]; p.Capacity() != 5 || told != 5 || sizes[0] != 8 {
			t.Errorf("capacity %d by %v, want 5 when others have given theirs back", p.Capacity(), sizes)
		}
	})
}

// One answer that there is no room is overtaken by another session that there was
// room for.
func TestWhatIsLearntTooEarlyIsCorrected(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		d.on("C_OpenSession", func(n int) error {
			if n == 3 {
				return pkcs11.Error(pkcs11.CKR_SESSION_COUNT)
			}
			time.Sleep(time.Second)
			return nil
		})
		var all []<-chan error
		var lets []func()
		for range 3 {
			j, let := hold()
			all, lets = append(all, begin(t.Context(), p, j)), append(lets, let)
		}
		if n := p.Capacity(); n != 1 {
			t.Errorf("capacity %d, want the one that is there", n)
		}
		wait(time.Second)
		if n := p.Capacity(); n != 2 {
			t.Errorf("capacity %d, want 2", n)
		}
		for i, let := range lets {
			let()
			if err := <-all[i]; err != nil {
				t.Error(err)
			}
		}
	})
}

// write is a job that changes something.
func write() *job {
	return &job{op: "writing", rw: true, run: func(c *conn) error {
		c.effect = true
		_, err := c.CreateObject(c.session, nil)
		return err
	}}
}

func TestWhatChangesSomethingHasASessionOfItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		at, most := 0, 0
		d.on("C_CreateObject", func(int) error {
			at++
			most = max(most, at)
			time.Sleep(time.Millisecond)
			at--
			return nil
		})
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if err := p.do(t.Context(), write()); err != nil {
					t.Error(err)
				}
			})
			all.Go(func() {
				if err := p.do(t.Context(), sign()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		for s := range d.sessions {
			if d.writes[s] {
				t.Errorf("session %d may write, and is still open", s)
			}
		}
		if most != 1 {
			t.Errorf("%d wrote at a time", most)
		}
	})
}

func TestTwoDoNotWriteThoughSessionsAreIdle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MinSessions = 4
		p := d.pool(t, cfg)
		d.on("C_CreateObject", func(int) error { time.Sleep(time.Second); return nil })
		began := time.Now()
		one, two := begin(t.Context(), p, write()), begin(t.Context(), p, write())
		mustDo(t, p, sign()) // who only reads need not wait
		if took := time.Since(began); took != 0 {
			t.Errorf("a reader has waited for %v", took)
		}
		for _, done := range []<-chan error{one, two} {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("both took %v", took)
		}
	})
}

func TestAWritingCallThatHangsIsWatchedToo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		back := make(chan struct{})
		d.on("C_CreateObject", func(n int) error {
			if n == 1 {
				<-back
			}
			return nil
		})
		err := p.do(t.Context(), write())
		h, ok := errors.AsType[*keys.HungError](err)
		if !ok {
			t.Fatalf("got %v", err)
		}
		mustDo(t, p, write())
		close(back)
		<-h.Returned
	})
}

// A panic is the fault of a job, and neither the end of the program nor of a
// session.
func TestAJobThatPanicsIsAnError(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MaxSessions = 1
		p := d.pool(t, cfg)
		tries := 0
		err := p.do(t.Context(), &job{op: "failing", run: func(*conn) error { tries++; panic("oh") }})
		if err == nil || errors.Is(err, keys.ErrBusy) || tries != 1 || !strings.Contains(err.Error(), "oh") {
			t.Errorf("%v after %d tries", err, tries)
		}
		mustDo(t, p, sign())
	})
}

func TestAnOperationLeftHalfDoneIsNobodysTrouble(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MaxSessions = 1
		p := d.pool(t, cfg)
		own := errors.New("of its own")
		err := p.do(t.Context(), &job{run: func(c *conn) error {
			_ = c.SignInit(c.session, nil, 1)
			return own
		}})
		if !errors.Is(err, own) || errors.Is(err, keys.ErrBusy) {
			t.Errorf("got %v", err)
		}
		mustDo(t, p, sign())
		if n := d.count("C_SignInit"); n != 2 {
			t.Errorf("SignInit %d times: the second fell over the first", n)
		}
	})
}

func TestAJobMayNotInitializeTheModule(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		mustDo(t, p, &job{run: func(c *conn) error {
			if c.Initialize() == nil || c.Finalize() == nil {
				t.Error("it may")
			}
			return nil
		}})
	})
}

func TestABorrowTakesNoAllocation(t *testing.T) {
	d := newDevice(t, 1)
	p, err := openWith(t.Context(), at("a"), d.load())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { d.close(t, p) }()
	j := &job{run: func(*conn) error { return nil }, mechanism: "fake"}
	ctx := t.Context()
	for name, f := range map[string]func() error{
		"borrow and return": func() error { return borrowOnce(ctx, p, j) },
		"do":                func() error { return p.do(ctx, j) },
	} {
		if n := testing.AllocsPerRun(1000, func() {
			if err := f(); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// One is all that the signature needs until it is there, the other is the signature.
func TestAnECDSASignatureAllocatesTwice(t *testing.T) {
	k := mustGenerate(t, openTokens(t, hsm.Take(t)), "k", keys.ECDSAP256)
	digest := sha256.Sum256([]byte("to be signed"))
	if n := testing.AllocsPerRun(200, func() {
		if _, err := k.Sign(context.Background(), digest[:], crypto.SHA256); err != nil {
			t.Error(err)
		}
	}); n > 2 {
		t.Errorf("%v allocations", n)
	}
}

func borrowOnce(ctx context.Context, p *Pool, j *job) error {
	var a attempts
	s, err := p.borrow(ctx, j, &a)
	if err != nil {
		return err
	}
	p.giveBack(s, outcome{ok: true}, false)
	return nil
}

func benchmark(b *testing.B, j *job, f func(context.Context, *Pool, *job) error) {
	d := newDevice(nil, 1)
	p, err := openWith(b.Context(), at("a"), d.load())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	b.ReportAllocs()
	for b.Loop() {
		if err := f(b.Context(), p, j); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLend(b *testing.B) {
	benchmark(b, &job{run: func(*conn) error { return nil }}, borrowOnce)
}

func BenchmarkDo(b *testing.B) {
	benchmark(b, &job{run: func(*conn) error { return nil }, mechanism: "fake"}, func(ctx context.Context, p *Pool, j *job) error { return p.do(ctx, j) })
}

var _ cryptoki = (*pkcs11.Ctx)(nil)
