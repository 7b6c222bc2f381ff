package pkcs11pool

import (
	"context"
	"crypto"

	"github.com/secsy-pki/secsy-pki/keys"
)

// A Capability is what a token says that it is and can do.
type Capability struct {
	Token        string
	Manufacturer string
	Model        string
	Serial       string
	Firmware     string
	FreeSessions int // negative: not known, or without bound

	Algorithms []AlgorithmCapability // all that the program uses, in the order of package keys

	DecryptRaw    bool          // RSA without padding, which this program then removes itself
	DecryptPKCS1  bool          // RSA with PKCS#1 v1.5
	DecryptOAEP   bool          // RSA with OAEP, of some hash functions
	PSS           bool          // RSA signatures with PSS
	OAEPByProgram []crypto.Hash // hash functions of OAEP that work by DecryptRaw or DecryptOAEP
}

// An AlgorithmCapability is what a token can do with one kind of key.
type AlgorithmCapability struct {
	Algorithm keys.Algorithm
	Generate  bool
	Sign      bool
	Lacks     []string // what it would need, such as "CKM_ECDSA"
}

// Capabilities asks the tokens that are up what they can do.
func (p *Pool) Capabilities(_ context.Context) ([]Capability, error) {
	return nil, notYet("capabilities", "*")
}
