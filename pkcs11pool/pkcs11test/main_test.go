package pkcs11test_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/pkcs11pool/pkcs11test"
)

var hsm *pkcs11test.HSM

// asClient is the module that a process only initializes and asks for slots.
const asClient = "SECSY_TEST_AS_CLIENT"

func TestMain(m *testing.M) {
	if module := os.Getenv(asClient); module != "" {
		c := pkcs11.New(module)
		if err := c.Initialize(); err != nil {
			fmt.Println(err)
		}
		if _, err := c.GetSlotList(true); err != nil {
			fmt.Println(err)
		}
		return
	}
	pkcs11test.Main(m, &hsm, 1)
}
