package pkcs11pool

import "errors"

// ErrPIN says that a token does not accept the PIN, or that one more wrong PIN
// would lock it. It is not tried again.
var ErrPIN = errors.New("pkcs11pool: the token does not accept the PIN")
