package pkcs11pool

import (
	"sync/atomic"

	"github.com/miekg/pkcs11"
)

// A wholeSigner begins a signature and makes it in one go, into a buffer that is
// as long as signatures of the key. The binding asks the module for that size
// first, which some modules hand on to the device: two ways instead of one for
// each signature. And into C and back is gone once instead of twice.
type wholeSigner interface {
	// SignWhole returns why C_SignInit failed, or what came of C_Sign: how much of
	// the signature there is. Once halt is not zero, no call is made any more.
	SignWhole(halt *atomic.Uint32, s pkcs11.SessionHandle, m *pkcs11.Mechanism, key pkcs11.ObjectHandle,
		message, signature []byte) (n int, begin, end error)
}

// SignWhole is SignInit and Sign in one. It is watched as one call.
func (c *calls) SignWhole(s pkcs11.SessionHandle, m *pkcs11.Mechanism, key pkcs11.ObjectHandle,
	message, signature []byte,
) (n int, begin, end error) {
	if err := c.may(); err != nil {
		return 0, err, nil
	}
	n, begin, end = c.whole.SignWhole(&c.s.halt, s, m, key, message, signature)
	if begin != nil {
		return 0, c.result("C_SignInit", begin), nil
	}
	return n, nil, c.result("C_Sign", end)
}
