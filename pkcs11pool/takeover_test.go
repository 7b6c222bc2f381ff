package pkcs11pool

import (
	"errors"
	"testing"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

// While a call is under way the module may give the handle to another session,
// whose key the answer is then made with.
func TestAnAnswerToAnothersSessionIsNotTaken(t *testing.T) {
	for call, run := range map[string]func(c *conn) error{
		"C_Sign":           sign().run,
		"C_Decrypt":        func(c *conn) error { _, err := c.Decrypt(c.session, nil); return err },
		"C_GetSessionInfo": func(c *conn) error { _, err := c.GetSessionInfo(c.session); return err },
	} {
		t.Run(call, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				d := newDevice(t, 1)
				p := d.pool(t, at("a"))
				m, another := p.tokens[0].module, &session{}
				taken := false
				d.on(call, func(int) error {
					if !taken {
						taken = true
						m.took(1, another)
					}
					return nil
				})
				err := p.do(t.Context(), &job{run: func(c *conn) error {
					err := run(c)
					if taken && c.session == 1 && !errors.Is(err, errAbandoned) {
						t.Errorf("got %v of a session that is another's", err)
					}
					return err
				}})
				if call == "C_Sign" && (err == nil || errors.Is(err, keys.ErrBusy)) {
					t.Errorf("got %v, and it may have signed", err)
				}
				if !m.gaveUp(1, another) {
					t.Error("the handle is not the other's")
				}
				if err := m.lib.CloseSession(1); err != nil { // not closed by who had it
					t.Error(err)
				}
			})
		})
	}
}

// Sessions that would not close are closed one after the other, which may take
// long: meanwhile one may be somebody's.
func TestAHandleThatIsSomebodysIsNotClosedAsLeft(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		tok := p.tokens[0]
		m, another := tok.module, &session{}
		for range 2 {
			h, err := m.lib.OpenSession(0, pkcs11.CKF_SERIAL_SESSION)
			if err != nil {
				t.Fatal(err)
			}
			m.closed(h, tok, pkcs11.Error(pkcs11.CKR_FUNCTION_FAILED))
		}
		d.on("C_CloseSession", func(n int) error {
			if n == 1 {
				m.took(2, another)
				m.took(3, another)
			}
			return nil
		})
		mustDo(t, p, &job{run: func(c *conn) error { return c.cryptoki.(*calls).closeLeft() }})
		if n := d.count("C_CloseSession"); n != 1 {
			t.Errorf("%d closed, want none after they were somebody's", n)
		}
		d.fail("", 0)
		for h := range pkcs11.SessionHandle(4) {
			if m.gaveUp(h, another) {
				_ = m.lib.CloseSession(h)
			}
		}
	})
}
