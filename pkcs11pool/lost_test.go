package pkcs11pool

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

// A token forgets the login with its sessions. While the pool still counts one of
// those, the next looks like one more of them, and is not.
func TestASessionWithoutTheLoginIsNotLent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MinSessions = 2
		p := d.pool(t, cfg)
		holding, let := hold()
		held := begin(t.Context(), p, holding)
		d.forget(0)
		strangers := 0
		for range 3 {
			err := p.do(t.Context(), &job{op: "signing", run: func(c *conn) error {
				if info, err := c.GetSessionInfo(c.session); err == nil && info.State != pkcs11.CKS_RO_USER_FUNCTIONS {
					strangers++
				}
				return sign().run(c)
			}})
			if err != nil && !errors.Is(err, keys.ErrBusy) {
				t.Error(err)
			}
		}
		if strangers > 0 {
			t.Errorf("%d sessions without the login were lent", strangers)
		}
		let()
		if err := <-held; err != nil {
			t.Error(err)
		}
		wait(mostPause)
		mustDo(t, p, sign())
		if n := d.count("C_Login"); n != 2 {
			t.Errorf("%d logins, want 2", n)
		}
	})
}

// What a job finds out may leave those who wait for its token without hope: they
// are told, and not left until they give up by themselves.
func TestWhoeverWaitsForATokenThatCanNotDoItAnyMoreIsTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MaxSessions = 1
		p := d.pool(t, cfg)
		holding, let := hold()
		held := begin(t.Context(), p, holding)
		var can atomic.Bool
		can.Store(true)
		j := sign()
		j.on = func(*token) bool { return can.Load() }
		waits := begin(t.Context(), p, j)
		can.Store(false)
		let()
		if err := <-held; err != nil {
			t.Error(err)
		}
		wait(0)
		select {
		case err := <-waits:
			if !errors.Is(err, keys.ErrBusy) {
				t.Error(err)
			}
		default:
			t.Error("it waits still")
			can.Store(true)
			mustDo(t, p, sign())
			t.Log(<-waits)
		}
	})
}
