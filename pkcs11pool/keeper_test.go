package pkcs11pool

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

// lose has the pool find out that its only token is not there.
func lose(t *testing.T, d *device, p *Pool) {
	t.Helper()
	d.remove(0)
	if err := p.do(t.Context(), sign()); !errors.Is(err, keys.ErrBusy) {
		t.Fatalf("got %v without a token", err)
	}
	wait(0)
}

func TestALostTokenIsLookedForWithGrowingPauses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		mustDo(t, p, sign())
		var times []time.Time
		d.mu.Lock()
		fresh := 0
		d.hook = func(call string, n int) error {
			switch {
			case call == "C_Initialize":
				fresh = n // the attempt that comes now is one more
			case call == "C_GetSlotList" && fresh != 0:
				fresh = 0
			case call == "C_GetSlotList":
				times = append(times, time.Now())
			}
			return nil
		}
		d.mu.Unlock()
		lost := time.Now()
		lose(t, d, p)
		wait(10 * time.Minute)
		if len(times) < 20 || times[0].Sub(lost) != 0 {
			t.Fatalf("%d attempts, the first after %v: want one at once, and then more", len(times), times[0].Sub(lost))
		}
		least, most := leastPause*3/4, leastPause
		for i := 1; i < len(times); i++ {
			if pause := times[i].Sub(times[i-1]); pause < least || pause > most {
				t.Errorf("pause %d is %v, want %v to %v", i, pause, least, most)
			}
			most = min(2*most, mostPause)
			least = most * 3 / 4
		}
	})
}

func TestATokenIsBackWhenItIsThereAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MinSessions = 3
		p := d.pool(t, cfg)
		lose(t, d, p)
		wait(time.Hour)
		again := busyWith(t, p.do(t.Context(), sign()), unavailable)
		if again > mostPause || p.Check(t.Context()) == nil {
			t.Errorf("again after %v, check %v", again, p.Check(t.Context()))
		}
		if r := busyWith(t, p.Ready(), unavailable); r != again {
			t.Errorf("ready says %v, and do %v", r, again)
		}
		asked := d.count("C_Login")
		d.insert(7, aToken(0)) // in another slot
		wait(again + time.Second)
		mustDo(t, p, sign())
		if n := d.count("C_Login") - asked; n != 1 || d.open() != 3 || p.Check(t.Context()) != nil || p.Ready() != nil {
			t.Errorf("%d logins, %d sessions, check %v", n, d.open(), p.Check(t.Context()))
		}
	})
}

// Nobody wants anything, and that the token is gone is known all the same: whoever
// asks for readiness is told the truth, and it is looked for.
func TestATokenThatGoesWhileNobodyCallsIsMissed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		mustDo(t, p, sign())
		d.remove(0)
		wait(beat + time.Second)
		if err := p.Check(t.Context()); err == nil {
			t.Error("the token is gone, and Check does not know")
		}
		busyWith(t, p.Ready(), unavailable)
		d.insert(0, aToken(0))
		wait(mostPause + time.Second)
		if err := p.Check(t.Context()); err != nil {
			t.Errorf("the token is back: %v", err)
		}
	})
}

// A token at work is not asked what its work tells.
func TestATokenAtWorkIsNotAskedWhetherItIsThere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		asked := d.count("C_GetTokenInfo")
		for range 20 {
			mustDo(t, p, sign())
			wait(beat / 2)
		}
		if n := d.count("C_GetTokenInfo") - asked; n != 0 {
			t.Errorf("asked %d times", n)
		}
		wait(10 * beat)
		if n := d.count("C_GetTokenInfo") - asked; n < 9 || n > 11 {
			t.Errorf("asked %d times in 10 pauses", n)
		}
	})
}

// To come back takes no caller: nobody asks, and the token is up again.
func TestALoginThatIsLostIsMadeAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		mustDo(t, p, sign())
		d.mu.Lock()
		d.loggedIn[0] = false
		d.mu.Unlock()
		busyWith(t, p.do(t.Context(), sign()), unavailable)
		wait(0)
		mustDo(t, p, sign())
		if s := p.Stat().Tokens[0]; s.Recovered != 1 || d.count("C_Login") != 2 {
			t.Errorf("%+v, %d logins", s, d.count("C_Login"))
		}
	})
}

// A device that takes logins and no signatures is not asked for both as fast as
// it can say so.
func TestATokenThatIsUpOnlyToFailIsLeftInPeace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		d.fail("C_Sign", pkcs11.CKR_DEVICE_REMOVED)
		end := time.Now().Add(10 * time.Minute)
		for time.Now().Before(end) {
			_ = p.do(t.Context(), sign())
			time.Sleep(10 * time.Millisecond)
		}
		if n := d.count("C_Login"); n > 90 {
			t.Errorf("%d logins in ten minutes", n)
		}
		d.fail("", 0)
		wait(mostPause)
		mustDo(t, p, sign())
		d.fail("C_Sign", pkcs11.CKR_DEVICE_REMOVED)
		_ = p.do(t.Context(), sign())
		d.fail("", 0)
		wait(0)
		mustDo(t, p, sign()) // it had worked, so it is brought back at once
	})
}

func TestWhoWaitsIsToldWhenTheLastTokenGoesDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MaxSessions = 2
		p := d.pool(t, cfg)
		j, let := hold()
		holding := begin(t.Context(), p, j)
		failing, fail := hold()
		run := failing.run
		failing.run = func(c *conn) error { _ = run(c); return &callError{"C_Sign", pkcs11.CKR_TOKEN_NOT_PRESENT} }
		d.on("C_GetSlotList", func(int) error { return pkcs11.Error(pkcs11.CKR_DEVICE_ERROR) })
		dooming := begin(t.Context(), p, failing)
		var waiting []<-chan error
		for range 10 {
			waiting = append(waiting, begin(t.Context(), p, sign()))
		}
		fail()
		for _, done := range waiting {
			busyWith(t, <-done, unavailable)
		}
		busyWith(t, <-dooming, unavailable)
		if d.count("C_SignInit") != 0 {
			t.Error("some of them have signed")
		}
		let() // who has a session may end in peace
		if err := <-holding; err != nil {
			t.Error(err)
		}
	})
}

// That no session can be opened must not leave anybody waiting for one.
func TestNobodyWaitsForASessionThatCanNotBeOpened(t *testing.T) {
	for _, code := range []uint{pkcs11.CKR_FUNCTION_FAILED, pkcs11.CKR_SESSION_COUNT, pkcs11.CKR_TOKEN_NOT_PRESENT, pkcs11.CKR_ARGUMENTS_BAD} {
		bubble1(t, code, func(t *testing.T) {
			d := newDevice(t, 1)
			p := d.pool(t, at("a"))
			d.forget(0)
			d.fail("C_OpenSession", code)
			began := time.Now()
			for range 5 {
				busyWith(t, p.do(t.Context(), sign()), unavailable)
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("told after %v", took)
			}
			d.fail("", 0)
			wait(time.Minute)
			mustDo(t, p, sign())
		})
	}
}

func TestNobodyWaitsLongForASessionWhoseOpeningHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		d.forget(0)
		back := make(chan struct{})
		d.on("C_OpenSession", func(int) error { <-back; return nil })
		began := time.Now()
		busyWith(t, p.do(t.Context(), sign()), unavailable)
		if took := time.Since(began); took != defaultCallTimeout {
			t.Errorf("told after %v", took)
		}
		close(back)
		wait(time.Minute)
		mustDo(t, p, sign())
	})
}

func bubble1(t *testing.T, code uint, f func(t *testing.T)) {
	t.Helper()
	t.Run(pkcs11.Error(code).Error(), func(t *testing.T) { bubble(t, f) })
}

func TestAWrongPINIsTriedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 2)
		load := d.load()
		cfg := at("a")
		cfg.Lenient = true
		cfg.Tokens[0].PIN = pinOf("wrong")
		for range 5 {
			if _, err := openWith(t.Context(), cfg, load); !errors.Is(err, ErrPIN) || strings.Contains(err.Error(), "wrong") {
				t.Fatalf("got %v", err)
			}
		}
		if n := d.count("C_Login"); n != 1 {
			t.Errorf("%d logins", n)
		}
		cfg.Tokens[0].PIN = pinOf(goodPIN) // another PIN is another matter
		p, err := openWith(t.Context(), cfg, load)
		if err != nil {
			t.Fatal(err)
		}
		d.close(t, p)
		cfg.Tokens[0].Label, cfg.Tokens[0].PIN = "b", pinOf("wrong") // and so is another token
		_, _ = openWith(t.Context(), cfg, load)
		if n := d.count("C_Login"); n != 3 {
			t.Errorf("%d logins, want 3", n)
		}
	})
}

func TestEveryRefusalOfThePINIsTheLast(t *testing.T) {
	for _, code := range []uint{
		pkcs11.CKR_PIN_INCORRECT, pkcs11.CKR_PIN_INVALID, pkcs11.CKR_PIN_LEN_RANGE, pkcs11.CKR_PIN_LOCKED,
		pkcs11.CKR_PIN_EXPIRED, pkcs11.CKR_USER_PIN_NOT_INITIALIZED,
	} {
		bubble1(t, code, func(t *testing.T) {
			d := newDevice(t, 1)
			p := d.pool(t, at("a"))
			d.fail("C_Login", code)
			d.forget(0) // whereupon it is logged in to again
			_ = p.do(t.Context(), sign())
			wait(time.Minute)
			looked := d.count("C_GetSlotList")
			wait(24 * time.Hour)
			if n := d.count("C_Login"); n != 2 || d.count("C_GetSlotList") != looked {
				t.Errorf("%d logins, want 1 more, and looked for it %d times after", n, d.count("C_GetSlotList")-looked)
			}
			busyWith(t, p.Ready(), unavailable)
			if err := p.Check(t.Context()); !errors.Is(err, ErrPIN) || p.Stat().Tokens[0].State != Refused {
				t.Errorf("check %v, %+v", err, p.Stat().Tokens[0])
			}
			d.fail("", 0)
		})
	}
}

func TestATokenAtItsLastTryIsNotLoggedInTo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, flag := range []uint{pkcs11.CKF_USER_PIN_FINAL_TRY, pkcs11.CKF_USER_PIN_LOCKED} {
			d := newDevice(t, 1)
			p := d.pool(t, at("a"))
			info := aToken(0)
			info.Flags |= flag
			d.insert(0, info)
			if _, err := openWith(t.Context(), at("a"), d.load()); !errors.Is(err, ErrPIN) {
				t.Errorf("got %v", err)
			}
			d.forget(0)
			_ = p.do(t.Context(), sign())
			wait(time.Hour)
			if n := d.count("C_Login"); n != 1 || p.Stat().Tokens[0].State != Refused {
				t.Errorf("%d logins, %v", n, p.Stat().Tokens[0].State)
			}
			d.insert(0, aToken(0)) // somebody has logged in by other means
			wait(mostPause)
			mustDo(t, p, sign())
		}
	})
}

func TestATokenWithoutLoginIsNotLoggedInTo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		info := aToken(0)
		info.Flags &^= pkcs11.CKF_LOGIN_REQUIRED
		d.insert(0, info)
		d.pool(t, at("a"))
		if n := d.count("C_Login"); n != 0 {
			t.Errorf("%d logins", n)
		}
	})
}

func TestSomebodyElsesLoginIsAsGood(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		d.fail("C_Login", pkcs11.CKR_USER_ALREADY_LOGGED_IN)
		d.loggedIn[0] = true
		p := d.pool(t, at("a"))
		mustDo(t, p, sign())
	})
}

// lines collects what is logged.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) with(s string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, s) {
			found = append(found, line)
		}
	}
	return found
}

func TestAnOutageIsAFewLinesInTheLog(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		var log lines
		cfg := at("a")
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		p := d.pool(t, cfg)
		lose(t, d, p)
		end := time.Now().Add(time.Hour)
		for time.Now().Before(end) {
			_ = p.do(t.Context(), sign())
			time.Sleep(100 * time.Millisecond)
		}
		d.insert(0, aToken(0))
		wait(time.Minute)
		down, still, back := log.with(`msg="PKCS#11 token down"`), log.with(`msg="PKCS#11 token still down"`), log.with(`msg="PKCS#11 token back"`)
		if len(down) != 1 || len(still) < 2 || len(still) > 62 || len(back) != 1 || !strings.Contains(back[0], "after=1h0m") {
			t.Errorf("%d lines down, %d still, back %v", len(down), len(still), back)
		}
		if !strings.Contains(down[0], "level=ERROR") || !strings.Contains(down[0], "token=a") || len(log.with(goodPIN)) != 0 {
			t.Errorf("%s", down[0])
		}
	})
}

func TestTheCapacityIsToldWheneverItChanges(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 2)
		cfg := at("a", "b")
		cfg.MaxSessions = 5
		var sizes []int
		cfg.Resized = func(n int) { sizes = append(sizes, n) }
		p := d.pool(t, cfg)
		wait(0)
		d.remove(0)
		for range 4 {
			mustDo(t, p, sign())
		}
		wait(0)
		d.remove(1)
		_ = p.do(t.Context(), sign())
		wait(time.Minute)
		d.insert(0, aToken(0))
		wait(time.Minute)
		if want := []int{10, 5, 0, 5}; !slices.Equal(sizes[max(0, len(sizes)-4):], want) || p.Capacity() != 5 {
			t.Errorf("told %v, want %v", sizes, want)
		}
	})
}

func TestAHungCallCostsItsSessionOnly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MaxSessions = 4
		p := d.pool(t, cfg)
		back := make(chan struct{})
		d.on("C_Sign", func(n int) error {
			if n == 1 {
				<-back
			}
			return nil
		})
		began := time.Now()
		err := p.do(t.Context(), sign())
		h, ok := errors.AsType[*keys.HungError](err)
		if !ok || errors.Is(err, keys.ErrBusy) || time.Since(began) != defaultCallTimeout || h.After != defaultCallTimeout {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		for range 10 {
			mustDo(t, p, sign())
		}
		select {
		case <-h.Returned:
			t.Error("said to be back, and is not")
		default:
		}
		if s := p.Stat().Tokens[0]; s.Hung != 1 || s.State != Up || s.Errors["hung"] != 1 || p.Check(t.Context()) != nil {
			t.Errorf("%+v", s)
		}
		close(back)
		<-h.Returned
		wait(0)
		if s := p.Stat().Tokens[0]; s.Hung != 0 || d.open() != s.Idle {
			t.Errorf("%+v, %d sessions at the device", s, d.open())
		}
	})
}

func TestNoCallFollowsOneThatHung(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		back := make(chan struct{})
		d.on("C_SignInit", func(int) error { <-back; return nil })
		err := p.do(keys.Repeatable(t.Context()), sign())
		h, ok := errors.AsType[*keys.HungError](err)
		if !ok {
			t.Fatalf("got %v", err)
		}
		close(back)
		<-h.Returned
		if d.count("C_Sign") != 0 || d.count("C_SignInit") != 1 {
			t.Errorf("calls %v: it has signed for nobody", d.calls)
		}
	})
}

// What is waited for is a call, and not all the calls that a job makes.
func TestAJobOfManyCallsDoesNotHang(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		d.on("C_Decrypt", func(int) error { time.Sleep(defaultCallTimeout * 2 / 3); return nil })
		mustDo(t, p, &job{run: func(c *conn) error {
			for range 10 {
				if _, err := c.Decrypt(c.session, nil); err != nil {
					return err
				}
			}
			return nil
		}})
		d.on("C_Decrypt", func(n int) error { time.Sleep(time.Duration(n) * time.Second); return nil })
		last := make(chan time.Time, 1000)
		err := p.do(t.Context(), &job{run: func(c *conn) error {
			for {
				last <- time.Now()
				if _, err := c.Decrypt(c.session, nil); err != nil {
					return err
				}
			}
		}})
		now := time.Now()
		h, ok := errors.AsType[*keys.HungError](err)
		if !ok {
			t.Fatalf("got %v", err)
		}
		<-h.Returned
		calls := len(last)
		for range calls - 1 {
			<-last
		}
		if in := now.Sub(<-last); in != defaultCallTimeout || calls < 19 {
			t.Errorf("given up at call %d, which was under way for %v", calls, in)
		}
	})
}

func TestTooManyHungCallsTakeATokenDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MaxSessions, cfg.MaxHung = 8, 3
		p := d.pool(t, cfg)
		mustDo(t, p, sign())
		back := make(chan struct{})
		d.mu.Lock()
		d.hook = func(call string, _ int) error {
			if call == "C_Sign" || call == "C_GetSlotList" {
				<-back
			}
			return nil
		}
		d.mu.Unlock()
		var hung []*keys.HungError
		for range 3 {
			h, ok := errors.AsType[*keys.HungError](p.do(t.Context(), sign()))
			if !ok {
				t.Fatal("no hung call")
			}
			hung = append(hung, h)
		}
		wait(0)
		busyWith(t, p.do(t.Context(), sign()), unavailable)
		if p.Check(t.Context()) == nil {
			t.Error("ready, with all calls hanging")
		}
		wait(time.Hour)
		inside := func() int { d.mu.Lock(); defer d.mu.Unlock(); return d.inside }
		if n := inside(); n != 4 || p.Stat().Tokens[0].Hung != 4 || d.count("C_Finalize") != 0 {
			t.Errorf("%d calls hang, want 3 and the one that looks whether it is better", n)
		}
		close(back)
		for _, h := range hung {
			<-h.Returned
		}
		wait(time.Minute)
		mustDo(t, p, sign())
		if s := p.Stat().Tokens[0]; s.Hung != 0 || s.Recovered != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// Calls that never return must not keep a device away that is well again: some
// libraries lose a call with its connection.
func TestCallsThatNeverReturnDoNotKeepATokenDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MaxSessions, cfg.MaxHung = 4, 2
		p := d.pool(t, cfg)
		back := make(chan struct{})
		d.on("C_Sign", func(n int) error {
			if n <= 2 {
				<-back
			}
			return nil
		})
		one, two := begin(t.Context(), p, sign()), begin(t.Context(), p, sign())
		if !isHung(<-one) || !isHung(<-two) {
			t.Error("they do not hang")
		}
		wait(time.Second)
		mustDo(t, p, sign())
		if s := p.Stat().Tokens[0]; s.Hung != 2 || s.State != Up || s.Recovered != 1 {
			t.Errorf("%+v", s)
		}
		close(back)
		wait(0) // until they are back, as the end of the test asks for all
	})
}

// Each round may cost one more session, but never more than there are.
func TestHungCallsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MaxSessions, cfg.MaxHung = 6, 2
		p := d.pool(t, cfg)
		back := make(chan struct{})
		d.on("C_Sign", func(int) error { <-back; return nil })
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				for range 20 {
					_ = p.do(t.Context(), sign())
					time.Sleep(time.Second)
				}
			})
		}
		all.Wait()
		if s := p.Stat().Tokens[0]; s.Hung > 6 || s.Hung < 2 || s.State == Up {
			t.Errorf("%+v", s)
		}
		d.fail("", 0)
		close(back)
		wait(time.Minute)
		mustDo(t, p, sign())
	})
}

// A new session may have the handle of one that is gone. So whoever has such a one
// comes back first.
func TestATokenIsNotBackBeforeItsSessionsAre(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		j, let := hold()
		holding := begin(t.Context(), p, j)
		lose(t, d, p)
		d.insert(0, aToken(0))
		wait(defaultCallTimeout / 2)
		if s := p.Stat().Tokens[0]; s.State != Down || s.Opening != 0 {
			t.Errorf("%+v, while a session of before is lent", s)
		}
		let()
		if err := <-holding; err != nil {
			t.Error(err)
		}
		wait(time.Second)
		mustDo(t, p, sign())
		if n := d.open(); n != 1 {
			t.Errorf("%d sessions", n)
		}
	})
}

func TestAHandleThatAnotherTokenHasByNowIsNotUsed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 2)
		d.reuse = true
		p := d.pool(t, at("a", "b"))
		on := func(name string, j *job) *job {
			j.on = func(t *token) bool { return t.name == name }
			return j
		}
		s, err := p.borrow(t.Context(), on("a", sign()), &attempts{})
		if err != nil {
			t.Fatal(err)
		}
		d.forget(0)
		j, let := hold()
		holding := begin(t.Context(), p, on("b", j))
		mustDo(t, p, on("b", sign())) // with a new session, which has the handle
		before := d.count("C_SignInit")
		if err := s.call(sign()); !errors.Is(err, errAbandoned) || d.count("C_SignInit") != before {
			t.Errorf("got %v", err)
		}
		p.giveBack(s, outcome{fate: classSession, why: errAbandoned}, false)
		let()
		if err := <-holding; err != nil {
			t.Error(err)
		}
		wait(time.Second)
		if st := p.Stat().Tokens[1]; st.Idle != 2 || st.State != Up {
			t.Errorf("%+v", st)
		}
		mustDo(t, p, on("b", sign()))
		if d.unknown != 0 {
			t.Errorf("%d calls with handles that are not there", d.unknown)
		}
	})
}

// A session that has been closed by the module leaves its handle to another. The
// one who had it must neither use nor close it any more.
func TestAHandleThatIsAnothersByNowIsNotUsed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		d.reuse = true
		p := d.pool(t, at("a"))
		hang, back := hold()
		late := begin(t.Context(), p, &job{op: "late", run: func(c *conn) error {
			_ = hang.run(c)
			_, err := c.GetTokenInfo(c.slot)
			if err == nil {
				t.Error("called with a handle that is another's")
			}
			return c.SignInit(c.session, nil, 1)
		}})
		wait(time.Minute) // it hangs
		if err := <-late; !isHung(err) {
			t.Errorf("got %v", err)
		}
		d.forget(0) // and with it goes its session
		_ = p.do(t.Context(), sign())
		wait(time.Second)
		mustDo(t, p, sign())
		back()
		wait(time.Second)
		if n := d.open(); n != 1 {
			t.Errorf("%d sessions: the late one has closed another's", n)
		}
		mustDo(t, p, sign())
	})
}
