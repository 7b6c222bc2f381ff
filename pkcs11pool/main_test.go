package pkcs11pool

import (
	"testing"

	"github.com/secsy-pki/secsy-pki/pkcs11pool/pkcs11test"
)

// hsm is what the tests of this room take tokens from.
var hsm *pkcs11test.HSM

func TestMain(m *testing.M) { pkcs11test.Main(m, &hsm, 36) }
