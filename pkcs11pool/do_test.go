package pkcs11pool

import (
	"crypto/elliptic"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

// innocent are the codes after which the device has done nothing, by the words
// of the standard, and may do it for another session or another token.
var innocent = []uint{
	pkcs11.CKR_SESSION_HANDLE_INVALID, pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED, pkcs11.CKR_USER_NOT_LOGGED_IN,
	pkcs11.CKR_OPERATION_NOT_INITIALIZED, pkcs11.CKR_OPERATION_ACTIVE, pkcs11.CKR_KEY_HANDLE_INVALID,
	pkcs11.CKR_OBJECT_HANDLE_INVALID, pkcs11.CKR_TOKEN_NOT_PRESENT, pkcs11.CKR_TOKEN_NOT_RECOGNIZED,
	pkcs11.CKR_SLOT_ID_INVALID,
}

// doubtful are those that leave open what the device has done.
var doubtful = []uint{
	pkcs11.CKR_DEVICE_ERROR, pkcs11.CKR_DEVICE_MEMORY, pkcs11.CKR_DEVICE_REMOVED, pkcs11.CKR_GENERAL_ERROR,
	pkcs11.CKR_FUNCTION_FAILED, pkcs11.CKR_HOST_MEMORY, pkcs11.CKR_SESSION_CLOSED, pkcs11.CKR_FUNCTION_CANCELED,
	pkcs11.CKR_FUNCTION_REJECTED, pkcs11.CKR_BUFFER_TOO_SMALL, pkcs11.CKR_VENDOR_DEFINED, pkcs11.CKR_VENDOR_DEFINED | 77, 0x7777,
}

// hopeless are those that every session would answer with.
var hopeless = []uint{
	pkcs11.CKR_DATA_INVALID, pkcs11.CKR_DATA_LEN_RANGE, pkcs11.CKR_ARGUMENTS_BAD, pkcs11.CKR_MECHANISM_INVALID,
	pkcs11.CKR_MECHANISM_PARAM_INVALID, pkcs11.CKR_KEY_TYPE_INCONSISTENT, pkcs11.CKR_KEY_SIZE_RANGE,
	pkcs11.CKR_KEY_FUNCTION_NOT_PERMITTED, pkcs11.CKR_FUNCTION_NOT_SUPPORTED, pkcs11.CKR_ENCRYPTED_DATA_INVALID,
}

// trial has a device of two tokens sign once, with the code from all calls of
// that name, and returns what came of it and how often it was asked to sign.
func trial(t *testing.T, call string, code uint, repeatable bool) (tries int, err error) {
	t.Helper()
	d := newDevice(t, 2)
	p := d.pool(t, at("a", "b"))
	d.fail(call, code)
	j := sign()
	j.repeatable = repeatable
	err = p.do(t.Context(), j)
	d.fail("", 0)
	return d.count(call), err
}

func eachCode(t *testing.T, codes []uint, f func(t *testing.T, code uint)) {
	t.Helper()
	t.Parallel()
	for _, code := range codes {
		t.Run(fmt.Sprintf("%#x", code), func(t *testing.T) {
			bubble(t, func(t *testing.T) { f(t, code) })
		})
	}
}

func TestWhatTheDeviceCanNotHaveDoneIsTriedElsewhereAndThenLater(t *testing.T) {
	eachCode(t, innocent, func(t *testing.T, code uint) {
		for _, call := range []string{"C_SignInit", "C_Sign"} {
			tries, err := trial(t, call, code, false)
			if b, ok := errors.AsType[*keys.BusyError](err); !ok || tries < 2 || tries > maxAttempts || !errors.Is(b, pkcs11.Error(code)) {
				t.Errorf("%s: %v after %d tries, want busy after 2 or 3", call, err, tries)
			}
		}
	})
}

func TestAnErrorBeforeTheSignatureLeavesNothingOpen(t *testing.T) {
	eachCode(t, doubtful, func(t *testing.T, code uint) {
		tries, err := trial(t, "C_SignInit", code, false)
		if !errors.Is(err, keys.ErrBusy) || tries < 2 || tries > maxAttempts {
			t.Errorf("%v after %d tries, want busy", err, tries)
		}
	})
}

func TestWhatTheDeviceMayHaveDoneIsNotDoneTwice(t *testing.T) {
	eachCode(t, doubtful, func(t *testing.T, code uint) {
		tries, err := trial(t, "C_Sign", code, false)
		if err == nil || errors.Is(err, keys.ErrBusy) || tries != 1 {
			t.Errorf("%v after %d tries, want an error that is not busy after 1", err, tries)
		}
	})
}

func TestWhatIsHarmlessToRepeatIsRepeated(t *testing.T) {
	eachCode(t, doubtful, func(t *testing.T, code uint) {
		tries, err := trial(t, "C_Sign", code, true)
		if err == nil || errors.Is(err, keys.ErrBusy) || tries < 2 || tries > maxAttempts {
			t.Errorf("%v after %d tries, want an error that is not busy after 2 or 3", err, tries)
		}
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		d.on("C_Sign", func(n int) error {
			if n == 1 {
				return pkcs11.Error(pkcs11.CKR_DEVICE_ERROR)
			}
			return nil
		})
		if err := p.do(keys.Repeatable(t.Context()), sign()); err != nil || d.count("C_Sign") != 2 {
			t.Errorf("with the word of who asks: %v after %d tries", err, d.count("C_Sign"))
		}
	})
}

func TestWhatNoSessionCanDoIsAskedOnceAndBreaksNothing(t *testing.T) {
	eachCode(t, hopeless, func(t *testing.T, code uint) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		for range 10 {
			d.fail("C_Sign", code)
			if err := p.do(t.Context(), sign()); err == nil || errors.Is(err, keys.ErrBusy) {
				t.Errorf("got %v", err)
			}
			d.fail("C_SignInit", code)
			if err := p.do(keys.Repeatable(t.Context()), sign()); err == nil || errors.Is(err, keys.ErrBusy) {
				t.Errorf("got %v", err)
			}
		}
		if d.count("C_SignInit") != 20 || d.count("C_OpenSession") != 1 || p.Stat().Tokens[0].State != Up {
			t.Errorf("calls %v, token %v", d.calls, p.Stat().Tokens[0].State)
		}
	})
}

// A signature that was perhaps made on the first token is not forgotten because
// the second is certain to have done nothing.
func TestADoubtIsNotForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		d.on("C_Sign", func(n int) error {
			if n == 1 {
				return pkcs11.Error(pkcs11.CKR_FUNCTION_FAILED)
			}
			return pkcs11.Error(pkcs11.CKR_TOKEN_NOT_PRESENT)
		})
		if err := p.do(keys.Repeatable(t.Context()), sign()); errors.Is(err, keys.ErrBusy) || !errors.Is(err, pkcs11.Error(pkcs11.CKR_FUNCTION_FAILED)) {
			t.Errorf("got %v", err)
		}
	})
}

// Nor because the second finds that it has not the key at all.
func TestADoubtIsNotForgottenByATokenThatIsUnable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 2)
		p := d.pool(t, at("a", "b"))
		k := p.newKey(ref{text: "k"}, newPrivate(elliptic.P256()).Public())
		has := p.tokens[0]
		d.on("C_Sign", func(int) error { return pkcs11.Error(pkcs11.CKR_DEVICE_REMOVED) }) // which takes the token down
		for range 2 {
			wait(time.Minute)
			_, err := work(t.Context(), k, job{op: "signing", on: k.signs, repeatable: true}, func(c *conn) (struct{}, bool, error) {
				if c.token != has {
					return struct{}{}, false, nil
				}
				return struct{}{}, true, sign().run(c)
			})
			if errors.Is(err, keys.ErrBusy) || !isCode(err, pkcs11.CKR_DEVICE_REMOVED) {
				t.Errorf("got %v", err)
			}
			has = p.tokens[1]
		}
	})
}

func TestAnErrorSaysWhoseItIs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		for code, want := range map[uint]string{
			pkcs11.CKR_DEVICE_ERROR:           "pkcs11pool: signing: token a: C_Sign: CKR_DEVICE_ERROR (0x30)",
			pkcs11.CKR_VENDOR_DEFINED | 0x123: "pkcs11pool: signing: token a: C_Sign: a code of the vendor's (0x80000123)",
			0x7777:                            "pkcs11pool: signing: token a: C_Sign: an unknown code (0x7777)",
		} {
			d.fail("C_Sign", code)
			if err := p.do(t.Context(), sign()); err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
			d.fail("", 0)
			mustDo(t, p, sign())
		}
	})
}

func TestTheJobsOwnErrorsAreNotTheDevices(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		for range 10 {
			if err := p.do(t.Context(), &job{run: func(*conn) error { return keys.ErrNotFound }}); !errors.Is(err, keys.ErrNotFound) || errors.Is(err, keys.ErrBusy) {
				t.Errorf("got %v", err)
			}
		}
		if n := d.count("C_OpenSession"); n != 1 {
			t.Errorf("%d sessions for it", n)
		}
	})
}

// What a job overcomes is of no concern to its caller, but of the session's and
// the token's.
func TestAnErrorThatIsOvercomeIsNotForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		careless := &job{run: func(c *conn) error { _, _ = c.Decrypt(c.session, nil); return nil }}
		d.fail("C_Decrypt", pkcs11.CKR_ATTRIBUTE_TYPE_INVALID)
		mustDo(t, p, careless)
		if n := d.count("C_OpenSession"); n != 1 {
			t.Errorf("%d sessions for what is none of the session's fault", n)
		}
		d.fail("C_Decrypt", pkcs11.CKR_DEVICE_MEMORY)
		mustDo(t, p, careless)
		wait(0)
		if n := d.count("C_OpenSession"); n != 2 {
			t.Errorf("%d sessions, want another", n)
		}
		d.fail("C_Decrypt", pkcs11.CKR_TOKEN_NOT_PRESENT)
		mustDo(t, p, careless)
		wait(0)
		if s := p.Stat().Tokens[0]; s.Recovered != 1 || s.State != Up {
			t.Errorf("%+v", s)
		}
	})
}

// A stranger who sends ciphertexts that are none must not cost sessions, tokens
// or tries.
func TestAFaultOfTheDataCountsForNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 2)
		p := d.pool(t, at("a", "b"))
		d.fail("C_Decrypt", pkcs11.CKR_GENERAL_ERROR)
		for range 20 {
			err := p.do(t.Context(), &job{
				op:         "decrypting",
				repeatable: true,
				dataFault:  func(err error) bool { return errors.Is(err, pkcs11.Error(pkcs11.CKR_GENERAL_ERROR)) },
				run:        func(c *conn) error { _, err := c.Decrypt(c.session, nil); return err },
			})
			if !errors.Is(err, pkcs11.Error(pkcs11.CKR_GENERAL_ERROR)) || errors.Is(err, keys.ErrBusy) {
				t.Fatalf("got %v", err)
			}
		}
		s := p.Stat()
		if d.count("C_Decrypt") != 20 || d.count("C_OpenSession") != 2 || s.Tokens[0].State != Up || s.Tokens[0].Errors["suspect"] != 0 {
			t.Errorf("calls %v, %+v", d.calls, s)
		}
	})
}

func TestThreeSuspiciousErrorsInARowTakeATokenDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		d.fail("C_Sign", pkcs11.CKR_DEVICE_ERROR)
		for range 2 {
			_ = p.do(t.Context(), sign())
		}
		wait(0)
		if s := p.Stat().Tokens[0]; s.State != Up || s.Recovered != 0 {
			t.Errorf("after two: %+v", s)
		}
		_ = p.do(t.Context(), sign())
		wait(0)
		if s := p.Stat().Tokens[0]; s.State != Up || s.Recovered != 1 {
			t.Errorf("after three: %+v, want it to have been away", s)
		}
	})
}

func TestASuccessForgivesSuspiciousErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		d.on("C_Sign", func(n int) error {
			if n%3 != 0 {
				return pkcs11.Error(pkcs11.CKR_DEVICE_ERROR)
			}
			return nil
		})
		for range 30 {
			_ = p.do(t.Context(), sign())
		}
		if s := p.Stat().Tokens[0]; s.Recovered != 0 || s.State != Up || s.Errors["suspect"] != 20 {
			t.Errorf("%+v", s)
		}
	})
}

// A key at which the device chokes is not the device's end: one job is one strike,
// however often it is tried.
func TestOneJobIsOneStrike(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		for range 10 {
			d.fail("C_SignInit", pkcs11.CKR_FUNCTION_FAILED)
			if err := p.do(t.Context(), sign()); !errors.Is(err, keys.ErrBusy) {
				t.Errorf("got %v", err)
			}
			d.fail("", 0)
			mustDo(t, p, sign())
		}
		if s := p.Stat().Tokens[0]; s.Recovered != 0 || s.Errors["suspect"] != 30 {
			t.Errorf("%+v", s)
		}
	})
}

func TestASecondTryIsOnAnotherToken(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 2)
		cfg := at("a", "b")
		cfg.MinSessions = 4
		p := d.pool(t, cfg)
		for range 20 {
			tries := 0
			mustDo(t, p, &job{run: func(c *conn) error {
				if tries++; c.token.name == "a" {
					return &callError{"C_SignInit", pkcs11.CKR_KEY_HANDLE_INVALID}
				}
				return nil
			}})
			if tries > 2 {
				t.Errorf("%d tries", tries)
			}
		}
	})
}

func TestAnotherTokenDoesWhatOneCanNot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 2)
		p := d.pool(t, at("a", "b"))
		d.remove(0)
		for range 20 {
			mustDo(t, p, sign())
		}
		if err := p.Check(t.Context()); err != nil || p.Ready() != nil {
			t.Errorf("not ready with one token: %v", err)
		}
		d.insert(0, aToken(0))
		wait(time.Minute)
		for _, s := range p.Stat().Tokens {
			if s.State != Up {
				t.Errorf("token %s is %v after its return", s.Name, s.State)
			}
		}
		before := p.Stat().Tokens[0].Borrows
		for range 20 {
			mustDo(t, p, sign())
		}
		if n := p.Stat().Tokens[0].Borrows - before; n != 10 {
			t.Errorf("the token that is back did %d of 20", n)
		}
	})
}

// A device that closes what was idle for long has closed it all: whoever comes
// next does not try one dead session after the other.
func TestDeadIdleSessionsFailNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MinSessions = 8
		p := d.pool(t, cfg)
		d.mu.Lock()
		clear(d.sessions) // and the login stays
		d.mu.Unlock()
		for range 20 {
			mustDo(t, p, sign())
		}
		wait(time.Second)
		if s := p.Stat().Tokens[0]; s.State != Up || s.Idle != 8 || s.Recovered != 0 || s.Reopened != 8 {
			t.Errorf("%+v", s)
		}
	})
}

// By the standard a token forgets its login with its last session.
func TestTheLoginIsNotLostWithTheLastSession(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MaxSessions = 1
		p := d.pool(t, cfg)
		d.on("C_Sign", func(n int) error {
			if n%2 == 1 {
				return pkcs11.Error(pkcs11.CKR_DEVICE_ERROR)
			}
			return nil
		})
		for range 10 {
			if err := p.do(t.Context(), sign()); !errors.Is(err, pkcs11.Error(pkcs11.CKR_DEVICE_ERROR)) {
				t.Errorf("got %v", err)
			}
			mustDo(t, p, sign())
		}
		if s := p.Stat().Tokens[0]; s.Recovered != 0 || s.Reopened != 10 {
			t.Errorf("%+v", s)
		}
	})
}

// The login comes with the first new session, and no other is asked for a key
// before.
func TestNobodyOvertakesTheLogin(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		d.on("C_Sign", func(n int) error {
			if n == 1 {
				return pkcs11.Error(pkcs11.CKR_DEVICE_ERROR)
			}
			return nil
		})
		_ = p.do(t.Context(), sign())
		d.mu.Lock()
		inner := d.hook
		d.hook = func(call string, n int) error {
			if call == "C_Login" {
				time.Sleep(time.Second)
			}
			return inner(call, n)
		}
		d.mu.Unlock()
		var all []<-chan error
		for range 5 {
			all = append(all, begin(t.Context(), p, sign()))
		}
		for _, done := range all {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if s := p.Stat().Tokens[0]; s.Recovered != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Whatever fails, no session is lost, doubled or forgotten, and whatever was
// signed was signed by the session that was asked.
func TestNothingIsLostUnderRandomFaults(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 2)
		cfg := at("a", "b")
		cfg.MinSessions, cfg.CallTimeout = 2, time.Second
		p := d.pool(t, cfg)
		all := append(append(append([]uint{}, innocent...), doubtful...), hopeless...)
		var mu sync.Mutex
		fault := 0
		d.mu.Lock()
		d.hook = func(call string, n int) error {
			mu.Lock()
			fault++
			i := fault
			mu.Unlock()
			time.Sleep(time.Millisecond)
			switch {
			case call == "C_Finalize" || call == "C_CloseSession":
				return nil
			case i%397 == 0:
				time.Sleep(5 * time.Second) // hangs, and comes back
			case i%11 == 0:
				return pkcs11.Error(all[i%len(all)])
			}
			return nil
		}
		d.mu.Unlock()
		var callers sync.WaitGroup
		done := 0
		for range 20 {
			callers.Go(func() {
				for range 100 {
					err := p.do(t.Context(), sign())
					if err == nil {
						mu.Lock()
						done++
						mu.Unlock()
					} else {
						time.Sleep(50 * time.Millisecond)
					}
				}
			})
		}
		callers.Wait()
		d.mu.Lock()
		d.hook = nil
		d.mu.Unlock()
		wait(2 * time.Minute)
		s := p.Stat()
		open := 0
		for _, tok := range s.Tokens {
			if tok.State != Up || tok.Busy+tok.Opening+tok.Closing+tok.Hung != 0 || tok.Idle < 2 || tok.Idle > defaultMaxSessions {
				t.Errorf("%+v", tok)
			}
			open += tok.Idle
		}
		if d.open() != open || s.Queued != 0 || done < 1000 {
			t.Errorf("%d sessions at the device, %d in the book, %d of 2000 signatures", d.open(), open, done)
		}
	})
}

func TestEveryClassHasAName(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for c := range classes {
		if s := c.String(); s == "" || seen[s] || strings.ContainsAny(s, " ") {
			t.Errorf("class %d is %q", c, s)
		} else {
			seen[s] = true
		}
	}
	for r := range reasons {
		if s := r.String(); s == "" || seen[s] {
			t.Errorf("reason %d is %q", r, s)
		} else {
			seen[s] = true
		}
	}
}
