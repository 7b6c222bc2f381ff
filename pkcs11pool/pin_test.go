package pkcs11pool

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/pkcs11"
)

// Two at once would be two that the token counts.
func TestAPINIsTriedByOneAtATime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		d.on("C_Login", func(int) error { time.Sleep(time.Second); return nil })
		cfg := at("a", "a") // by mistake
		cfg.Tokens[1].Name = "a again"
		for i := range cfg.Tokens {
			cfg.Tokens[i].PIN = pinOf("wrong")
		}
		if _, err := openWith(t.Context(), cfg, d.load()); !errors.Is(err, ErrPIN) {
			t.Errorf("got %v", err)
		}
		if n := d.count("C_Login"); n != 1 {
			t.Errorf("%d logins", n)
		}
	})
}

func TestAPINIsNotTriedBesideALoginThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		back := make(chan struct{})
		d.on("C_Login", func(int) error { <-back; return pkcs11.Error(pkcs11.CKR_PIN_INCORRECT) })
		d.forget(0)
		signing := begin(t.Context(), p, sign())
		wait(time.Hour)
		close(back)
		wait(time.Hour)
		busyWith(t, <-signing, unavailable)
		if n := d.count("C_Login"); n != 2 || p.Stat().Tokens[0].State != Refused {
			t.Errorf("%d logins, want 1 more, %v", n, p.Stat().Tokens[0].State)
		}
	})
}

// The PIN may have been changed while the login lasts, and all who sign find out at once.
func TestAKeysPINIsTriedByOneAtATime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MinSessions = 8
		p := d.pool(t, cfg)
		d.on("C_Login", func(int) error { time.Sleep(time.Second); return pkcs11.Error(pkcs11.CKR_PIN_INCORRECT) })
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				err := p.do(t.Context(), &job{op: "signing", run: func(c *conn) error { return authenticate(c, &place{asks: true, owner: "a"}) }})
				if !errors.Is(err, ErrPIN) {
					t.Errorf("got %v", err)
				}
			})
		}
		all.Wait()
		if n := d.count("C_Login"); n != 2 {
			t.Errorf("%d logins, want 1 more", n)
		}
	})
}

// The code of a login that failed may be any. That the token counts a wrong PIN
// since then tells what it was.
func TestATokenThatHasCountedAWrongPINIsNotGivenItAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		d.on("C_Login", func(int) error {
			info := aToken(0)
			info.Flags |= pkcs11.CKF_USER_PIN_COUNT_LOW
			go d.insert(0, info)
			synctest.Wait()
			return pkcs11.Error(pkcs11.CKR_VENDOR_DEFINED | 1)
		})
		d.forget(0)
		_ = p.do(t.Context(), sign())
		wait(time.Hour)
		if n := d.count("C_Login"); n != 2 || p.Stat().Tokens[0].State != Refused {
			t.Errorf("%d logins, want 1 more, %v", n, p.Stat().Tokens[0].State)
		}
		d.fail("", 0)
		d.insert(0, aToken(0)) // somebody has logged in by other means
		wait(mostPause)
		mustDo(t, p, sign())
	})
}

// A flag from before is no answer to the login that failed.
func TestALoginThatFailedForAnotherReasonIsMadeAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		info := aToken(0)
		info.Flags |= pkcs11.CKF_USER_PIN_COUNT_LOW
		d.insert(0, info)
		p := d.pool(t, at("a"))
		d.on("C_Login", func(n int) error {
			if n < 5 {
				return pkcs11.Error(pkcs11.CKR_GENERAL_ERROR)
			}
			return nil
		})
		d.forget(0)
		_ = p.do(t.Context(), sign())
		wait(time.Minute)
		mustDo(t, p, sign())
	})
}

// A card that was drawn and replaced by another.
func TestAnotherTokenInTheSlotDoesNotGetThePIN(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		d.remove(0)
		d.insert(0, aToken(1))
		busyWith(t, p.do(t.Context(), sign()), unavailable)
		wait(time.Minute)
		if n := d.count("C_Login"); n != 1 {
			t.Errorf("%d logins, want that of the one that is away", n)
		}
		d.insert(0, aToken(0))
		wait(time.Minute)
		mustDo(t, p, sign())
	})
}
