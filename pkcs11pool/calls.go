package pkcs11pool

import (
	"errors"

	"github.com/miekg/pkcs11"
)

// calls is the module in the hands of one session. It watches each call for
// itself, says in errors which one it was, makes none when nobody waits any more,
// and knows whether an operation of the session is left half done.
type calls struct {
	lib   cryptoki
	whole wholeSigner // nil: the module is called by the binding alone
	s     *session

	// Of the session's goroutine only.
	touched bool  // the clock was read for the call that comes first
	active  bool  // between an Init and its end
	worst   class // of the errors so far, those that the job has overcome included
	why     error // the first of them that was so bad
}

// may reports whether a call can be made now.
func (c *calls) may() error {
	if c.s.abandoned() {
		return errAbandoned
	}
	if !c.touched {
		c.s.touch()
	}
	c.touched = false
	return nil
}

// result is what a call came to. An answer that came when the handle had been
// given to another session may be to what that one asked.
func (c *calls) result(call string, err error) error {
	if err == nil && !c.s.abandoned() {
		return nil
	}
	if err == nil {
		c.note(classSession, errAbandoned)
		return errAbandoned
	}
	code, ok := errors.AsType[pkcs11.Error](err)
	if !ok {
		c.note(classSuspect, err)
		return err
	}
	err = &callError{call: call, code: code}
	c.note(meaningOf(err).class, err)
	return err
}

func (c *calls) note(is class, err error) {
	if is > c.worst {
		c.worst, c.why = is, err
	}
}

// do makes a call.
func (c *calls) do(call string, f func() error) error {
	if err := c.may(); err != nil {
		return err
	}
	return c.result(call, f())
}

// get makes a call that returns something.
func get[T any](c *calls, call string, f func() (T, error)) (T, error) {
	if err := c.may(); err != nil {
		var none T
		return none, err
	}
	v, err := f()
	return v, c.result(call, err)
}

// begin and end make the first and the last call of an operation. By the
// standard an error ends it, too.
func (c *calls) begin(call string, f func() error) error {
	err := c.do(call, f)
	c.active = err == nil
	return err
}

func end[T any](c *calls, call string, f func() (T, error)) (T, error) {
	c.active = false
	return get(c, call, f)
}

// Initialize implements cryptoki. It is the module's own business.
func (c *calls) Initialize(...pkcs11.InitializeOption) error { return errors.ErrUnsupported }

// Finalize implements cryptoki. It is the module's own business.
func (c *calls) Finalize() error { return errors.ErrUnsupported }

func (c *calls) GetInfo() (pkcs11.Info, error) { return get(c, "C_GetInfo", c.lib.GetInfo) }

func (c *calls) GetSlotList(present bool) ([]uint, error) {
	return get(c, "C_GetSlotList", func() ([]uint, error) { return c.lib.GetSlotList(present) })
}

func (c *calls) GetSlotInfo(slot uint) (pkcs11.SlotInfo, error) {
	return get(c, "C_GetSlotInfo", func() (pkcs11.SlotInfo, error) { return c.lib.GetSlotInfo(slot) })
}

func (c *calls) GetTokenInfo(slot uint) (pkcs11.TokenInfo, error) {
	return get(c, "C_GetTokenInfo", func() (pkcs11.TokenInfo, error) { return c.lib.GetTokenInfo(slot) })
}

func (c *calls) GetMechanismList(slot uint) ([]*pkcs11.Mechanism, error) {
	return get(c, "C_GetMechanismList", func() ([]*pkcs11.Mechanism, error) { return c.lib.GetMechanismList(slot) })
}

func (c *calls) GetMechanismInfo(slot uint, m []*pkcs11.Mechanism) (pkcs11.MechanismInfo, error) {
	return get(c, "C_GetMechanismInfo", func() (pkcs11.MechanismInfo, error) { return c.lib.GetMechanismInfo(slot, m) })
}

func (c *calls) OpenSession(slot, flags uint) (pkcs11.SessionHandle, error) {
	if err := c.may(); err != nil {
		return 0, err
	}
	s, err := c.lib.OpenSession(slot, flags)
	if err != nil {
		return 0, c.result("C_OpenSession", err)
	}
	c.s.token.module.took(s, c.s) // however late: it is to be closed
	return s, nil
}

// CloseSession implements cryptoki. It is called however late it is, unless the
// handle is another session's by now.
func (c *calls) CloseSession(s pkcs11.SessionHandle) error {
	if !c.s.token.module.gaveUp(s, c.s) {
		return nil
	}
	c.s.touch()
	err := c.lib.CloseSession(s)
	c.s.token.module.closed(s, c.s.token, err)
	return c.result("C_CloseSession", err)
}

// closeLeft closes once more what would not close before.
func (c *calls) closeLeft() error {
	m := c.s.token.module
	for _, h := range m.leftOf(c.s.token) {
		if err := c.may(); err != nil {
			return err
		}
		if !m.isLeft(h, c.s.token) {
			continue
		}
		m.closed(h, c.s.token, c.lib.CloseSession(h))
	}
	return nil
}

func (c *calls) GetSessionInfo(s pkcs11.SessionHandle) (pkcs11.SessionInfo, error) {
	return get(c, "C_GetSessionInfo", func() (pkcs11.SessionInfo, error) { return c.lib.GetSessionInfo(s) })
}

func (c *calls) Login(s pkcs11.SessionHandle, user uint, pin string) error {
	return c.do("C_Login", func() error { return c.lib.Login(s, user, pin) })
}

func (c *calls) Logout(s pkcs11.SessionHandle) error {
	return c.do("C_Logout", func() error { return c.lib.Logout(s) })
}

func (c *calls) FindObjectsInit(s pkcs11.SessionHandle, template []*pkcs11.Attribute) error {
	return c.begin("C_FindObjectsInit", func() error { return c.lib.FindObjectsInit(s, template) })
}

func (c *calls) FindObjects(s pkcs11.SessionHandle, limit int) ([]pkcs11.ObjectHandle, bool, error) {
	if err := c.may(); err != nil {
		return nil, false, err
	}
	found, more, err := c.lib.FindObjects(s, limit)
	return found, more, c.result("C_FindObjects", err)
}

func (c *calls) FindObjectsFinal(s pkcs11.SessionHandle) error {
	_, err := end(c, "C_FindObjectsFinal", func() (struct{}, error) { return struct{}{}, c.lib.FindObjectsFinal(s) })
	return err
}

func (c *calls) GetAttributeValue(s pkcs11.SessionHandle, o pkcs11.ObjectHandle, a []*pkcs11.Attribute) ([]*pkcs11.Attribute, error) {
	return get(c, "C_GetAttributeValue", func() ([]*pkcs11.Attribute, error) { return c.lib.GetAttributeValue(s, o, a) })
}

func (c *calls) SetAttributeValue(s pkcs11.SessionHandle, o pkcs11.ObjectHandle, a []*pkcs11.Attribute) error {
	return c.do("C_SetAttributeValue", func() error { return c.lib.SetAttributeValue(s, o, a) })
}

func (c *calls) CreateObject(s pkcs11.SessionHandle, template []*pkcs11.Attribute) (pkcs11.ObjectHandle, error) {
	return get(c, "C_CreateObject", func() (pkcs11.ObjectHandle, error) { return c.lib.CreateObject(s, template) })
}

func (c *calls) DestroyObject(s pkcs11.SessionHandle, o pkcs11.ObjectHandle) error {
	return c.do("C_DestroyObject", func() error { return c.lib.DestroyObject(s, o) })
}

func (c *calls) GenerateKeyPair(s pkcs11.SessionHandle, m []*pkcs11.Mechanism, public, private []*pkcs11.Attribute) (pub, priv pkcs11.ObjectHandle, err error) {
	if err := c.may(); err != nil {
		return 0, 0, err
	}
	pub, priv, err = c.lib.GenerateKeyPair(s, m, public, private)
	return pub, priv, c.result("C_GenerateKeyPair", err)
}

func (c *calls) SignInit(s pkcs11.SessionHandle, m []*pkcs11.Mechanism, key pkcs11.ObjectHandle) error {
	return c.begin("C_SignInit", func() error { return c.lib.SignInit(s, m, key) })
}

func (c *calls) Sign(s pkcs11.SessionHandle, message []byte) ([]byte, error) {
	return end(c, "C_Sign", func() ([]byte, error) { return c.lib.Sign(s, message) })
}

func (c *calls) DecryptInit(s pkcs11.SessionHandle, m []*pkcs11.Mechanism, key pkcs11.ObjectHandle) error {
	return c.begin("C_DecryptInit", func() error { return c.lib.DecryptInit(s, m, key) })
}

func (c *calls) Decrypt(s pkcs11.SessionHandle, ciphertext []byte) ([]byte, error) {
	return end(c, "C_Decrypt", func() ([]byte, error) { return c.lib.Decrypt(s, ciphertext) })
}
