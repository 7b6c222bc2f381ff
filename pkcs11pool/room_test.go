package pkcs11pool

import (
	"testing"
	"time"

	"github.com/miekg/pkcs11"
)

func TestNoSessionIsLostToOneThatHangsBesideIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		back := make(chan struct{})
		d.on("C_OpenSession", func(n int) error {
			if n == 2 {
				<-back
			}
			return nil
		})
		cfg := at("a")
		cfg.MinSessions, cfg.Lenient = 3, true
		p := d.pool(t, cfg)
		close(back)
		wait(time.Minute)
		if s := p.Stat().Tokens[0]; s.State != Up || s.Idle != 3 || d.open() != 3 {
			t.Errorf("%+v, %d sessions", s, d.open())
		}
	})
}

func TestSessionsThatHangAreAmongTheMost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MinSessions, cfg.MaxSessions, cfg.MaxHung = 4, 4, 2
		p := d.pool(t, cfg)
		back := make(chan struct{})
		d.on("C_Sign", func(n int) error {
			if n <= 3 {
				<-back
			}
			return nil
		})
		var all []<-chan error
		for range 3 {
			all = append(all, begin(t.Context(), p, sign()))
		}
		for _, signing := range all {
			if err := <-signing; !isHung(err) {
				t.Errorf("got %v", err)
			}
		}
		wait(time.Minute)
		mustDo(t, p, sign())
		if s := p.Stat().Tokens[0]; s.Hung != 3 || s.Idle+s.Busy+s.Opening+s.Closing != 1 {
			t.Errorf("%+v: more than %d", s, cfg.MaxSessions)
		}
		close(back)
		wait(time.Minute)
		if s := p.Stat().Tokens[0]; s.Idle != 4 {
			t.Errorf("%+v after all have returned", s)
		}
	})
}

// As long as other sessions work, nothing else keeps a token that opens no more
// from being asked without end.
func TestSessionsThatCanNotBeOpenedAreTriedWithPauses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		d.on("C_OpenSession", func(int) error { time.Sleep(3 * time.Millisecond); return pkcs11.Error(pkcs11.CKR_FUNCTION_FAILED) })
		var all []<-chan error
		for range 2 {
			all = append(all, begin(t.Context(), p, &job{run: func(*conn) error { return nil }}))
		}
		end := time.Now().Add(time.Minute)
		stop := make(chan struct{})
		keep := func() {
			for time.Now().Before(end) {
				if err := p.do(t.Context(), &job{run: func(*conn) error { time.Sleep(time.Millisecond); return nil }}); err != nil {
					t.Error(err)
				}
			}
			stop <- struct{}{}
		}
		go keep()
		go keep()
		<-stop
		<-stop
		for _, done := range all {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if n := d.count("C_OpenSession"); n < 5 || n > 15 {
			t.Errorf("%d tried in a minute", n)
		}
		d.fail("", 0)
		wait(mostPause)
		hold1, let1 := hold()
		hold2, let2 := hold()
		first, second := begin(t.Context(), p, hold1), begin(t.Context(), p, hold2)
		if n := d.open(); n != 2 {
			t.Errorf("%d sessions for two, now that there are some", n)
		}
		let1()
		let2()
		if <-first != nil || <-second != nil {
			t.Error("not done")
		}
	})
}

// After the pause nobody but the keeper may be there to think of it.
func TestASessionThatCouldNotBeOpenedIsOpenedLater(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MinSessions = 2
		p := d.pool(t, cfg)
		d.on("C_OpenSession", func(n int) error {
			if n == 3 {
				return pkcs11.Error(pkcs11.CKR_FUNCTION_FAILED)
			}
			return nil
		})
		mustDo(t, p, &job{run: func(c *conn) error { return c.SignInit(c.session, nil, 1) }}) // half done
		wait(leastPause - time.Millisecond)
		if n := p.Stat().Tokens[0].Idle; n != 1 {
			t.Errorf("%d sessions before the time", n)
		}
		wait(time.Millisecond)
		if n := p.Stat().Tokens[0].Idle; n != 2 {
			t.Errorf("%d sessions, want 2", n)
		}
	})
}

// When a token has no session left, it is no time for a pause.
func TestAPauseIsNotForATokenWithoutSessions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		d.fail("C_OpenSession", pkcs11.CKR_FUNCTION_FAILED)
		let := make(chan struct{})
		first := begin(t.Context(), p, &job{run: func(c *conn) error {
			<-let
			return c.SignInit(c.session, nil, 1) // half done: the session is of no use any more
		}})
		second := begin(t.Context(), p, sign())
		d.fail("", 0)
		began := time.Now()
		close(let)
		if err := <-first; err != nil {
			t.Error(err)
		}
		if err := <-second; err != nil || time.Since(began) > 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// A token is known to have no session left by their number.
func TestSessionsThatTheModuleHasClosedAreNotCounted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 2)
		p := d.pool(t, at("a", "b"))
		d.mu.Lock()
		d.running = false
		clear(d.sessions)
		clear(d.loggedIn)
		d.mu.Unlock()
		j := sign()
		j.on = func(tok *token) bool { return tok.name == "a" } // b is idle when the module is initialized anew
		_ = p.do(t.Context(), j)
		wait(time.Minute)
		for _, tok := range p.tokens {
			if n := tok.there.Load(); n != 1 || !tok.isUp() {
				t.Errorf("token %s: %d sessions, want 1", tok.name, n)
			}
		}
	})
}

// The client of AWS CloudHSM has no read-only sessions, and there is no code for that.
func TestATokenWithoutReadOnlySessionsIsUsedWithOthers(t *testing.T) {
	for _, code := range []uint{
		pkcs11.CKR_FUNCTION_NOT_SUPPORTED, pkcs11.CKR_ARGUMENTS_BAD, pkcs11.CKR_SESSION_PARALLEL_NOT_SUPPORTED, pkcs11.CKR_SESSION_READ_WRITE_SO_EXISTS,
	} {
		bubble1(t, code, func(t *testing.T) {
			d := newDevice(t, 1)
			d.noReadOnly = code
			cfg := at("a")
			cfg.MinSessions, cfg.MaxSessions = 2, 2
			p := d.pool(t, cfg)
			mustDo(t, p, sign())
			if n := d.count("C_OpenSession"); n != 3 {
				t.Errorf("%d sessions asked for, want it remembered after the first", n)
			}
			mustDo(t, p, write())
			if n := d.count("C_OpenSession"); n != 3 {
				t.Error("a session of its own for what any may do")
			}
			d.forget(0)
			wait(0)
			_ = p.do(t.Context(), sign())
			wait(time.Minute)
			mustDo(t, p, sign())
			if s := p.Stat().Tokens[0]; s.Errors["suspect"] != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// Whatever else is wrong is not asked for twice.
func TestASessionThatIsRefusedForAnotherReasonIsNotAskedForOtherwise(t *testing.T) {
	for _, code := range []uint{pkcs11.CKR_SESSION_COUNT, pkcs11.CKR_DEVICE_ERROR, pkcs11.CKR_TOKEN_NOT_PRESENT, pkcs11.CKR_VENDOR_DEFINED} {
		bubble1(t, code, func(t *testing.T) {
			d := newDevice(t, 1)
			d.noReadOnly = code
			if _, err := openWith(t.Context(), at("a"), d.load()); !isCode(err, code) {
				t.Errorf("got %v", err)
			}
			if n := d.count("C_OpenSession"); n != 1 {
				t.Errorf("%d sessions asked for", n)
			}
		})
	}
}

func TestATokenOfOneSessionCanBeWrittenTo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		d.room = 1
		info := aToken(0)
		info.MaxSessionCount = 1
		d.insert(0, info)
		p := d.pool(t, at("a"))
		mustDo(t, p, write())
		mustDo(t, p, sign())
		if s := p.Stat().Tokens[0]; d.peak != 1 || s.Errors["limit"] != 0 {
			t.Errorf("at most %d sessions, %+v", d.peak, s)
		}
	})
}

func TestATokenThatIsWriteProtectedIsNotOpenedForWriting(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		info := aToken(0)
		info.MaxSessionCount = 1
		info.Flags |= pkcs11.CKF_WRITE_PROTECTED
		d.insert(0, info)
		mustDo(t, d.pool(t, at("a")), sign())
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.writes[1] || len(d.sessions) != 1 {
			t.Errorf("sessions %v, of which may write %v", d.sessions, d.writes)
		}
	})
}

func TestSlotsWithoutEndAreNonsense(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, maxSlots+1)
		if _, err := openWith(t.Context(), at("a"), d.load()); err == nil || d.count("C_GetTokenInfo") != 0 {
			t.Errorf("got %v after looking into %d", err, d.count("C_GetTokenInfo"))
		}
	})
}
