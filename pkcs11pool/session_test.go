package pkcs11pool

import (
	"errors"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/keys"
)

// A call that hangs rests on what runtime/coro.go says of a coroutine and no
// document promises: whoever yields goes on with whoever called next, be it the
// goroutine of the sequence or another, and stands still in its place until that
// one leaves. If this fails after an update of Go, sessions need another way.
func TestAnotherGoroutineYieldsForACoroutine(t *testing.T) {
	t.Parallel()
	var yield func(error) bool
	called, call, gone := make(chan struct{}), make(chan struct{}), make(chan struct{})
	next, _ := iter.Pull(func(y func(error) bool) {
		yield = y
		close(called)
		<-call
		<-gone
	})
	over := make(chan struct{})
	go func() {
		<-called
		yield(errAbandoned)
		close(over)
	}()
	if err, ok := next(); !errors.Is(err, errAbandoned) || !ok {
		t.Fatalf("%v, %v, want what the other goroutine yielded", err, ok)
	}
	close(gone)
	select {
	case <-over:
		t.Error("whoever yielded went on during the call")
	case <-time.After(10 * time.Millisecond):
	}
	close(call)
	select {
	case <-over:
	case <-time.After(10 * time.Second):
		t.Fatal("whoever yielded stands still, though the sequence is over")
	}
}

// The call and the patience with it end at the same moment: whichever was first,
// the other agrees.
func TestACallThatReturnsAsItIsGivenUpHungOrDidNot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		cfg := at("a")
		cfg.CallTimeout, cfg.MinSessions, cfg.MaxSessions, cfg.MaxHung = time.Second, 1, 2, 2
		d := newDevice(t, 1)
		p := d.pool(t, cfg)
		hung, inTime := 0, 0
		for range 300 {
			signed := false
			err := p.do(t.Context(), &job{op: "signing", run: func(*conn) error {
				time.Sleep(cfg.CallTimeout)
				signed = true
				return nil
			}})
			h, hangs := errors.AsType[*keys.HungError](err)
			switch {
			case hangs:
				hung++
				<-h.Returned
				synctest.Wait() // for another session
			case err != nil:
				t.Fatal(err)
			case !signed:
				t.Fatal("done, though it was not")
			default:
				inTime++
			}
		}
		if s := p.Stat().Tokens[0]; s.Errors["hung"] != uint64(hung) || s.Idle != 1 || s.Hung != 0 {
			t.Errorf("%d hung, %d did not, %+v", hung, inTime, s)
		}
		t.Logf("%d hung, %d did not", hung, inTime)
	})
}

// Closing a session is a call like others, for which nobody waits.
func TestAClosingThatHangsIsOverWhenItReturns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		cfg := at("a")
		cfg.CallTimeout, cfg.MinSessions, cfg.MaxSessions, cfg.MaxHung, cfg.IdleTime = time.Second, 1, 2, 2, time.Minute
		d := newDevice(t, 1)
		p := d.pool(t, cfg)
		release := make(chan struct{})
		d.on("C_CloseSession", func(int) error { <-release; return nil })
		j, let := hold()
		held := begin(t.Context(), p, j)
		mustDo(t, p, sign())
		let()
		if err := <-held; err != nil {
			t.Error(err)
		}
		wait(cfg.IdleTime + 2*cfg.CallTimeout)
		if s := p.Stat().Tokens[0]; s.Hung != 1 || s.Idle != 1 {
			t.Errorf("%+v", s)
		}
		close(release)
		synctest.Wait()
		if s := p.Stat().Tokens[0]; s.Hung+s.Closing != 0 || s.Idle != 1 || d.open() != 1 {
			t.Errorf("%+v, %d sessions at the device", s, d.open())
		}
	})
}

// The timer goes on from call to call, and rests when there is none.
func TestACallIsGivenUpOnTimeWheneverItBegan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		cfg := at("a")
		cfg.CallTimeout, cfg.MinSessions, cfg.MaxSessions, cfg.MaxHung = time.Second, 1, 2, 2
		d := newDevice(t, 1)
		p := d.pool(t, cfg)
		for _, idle := range []time.Duration{0, cfg.CallTimeout / 2, cfg.CallTimeout, 3 * cfg.CallTimeout, beat + cfg.CallTimeout/2} {
			mustDo(t, p, sign())
			wait(idle)
			j, let := hold()
			done := begin(t.Context(), p, j)
			wait(cfg.CallTimeout - 1)
			select {
			case err := <-done:
				t.Errorf("after %v: given up too early: %v", idle, err)
			default:
			}
			wait(1)
			select {
			case err := <-done:
				if !isHung(err) {
					t.Errorf("after %v: %v", idle, err)
				}
			default:
				t.Errorf("after %v: not given up", idle)
			}
			let()
			synctest.Wait() // for another session
		}
	})
}
