package pkcs11pool

import (
	"context"
	"crypto"
	"crypto/x509"

	"github.com/secsy-pki/secsy-pki/keys"
)

// An Object is a private key on a token, as the token describes it.
type Object struct {
	Token string
	Label string
	ID    string // in hexadecimal
	// Algorithm is "" for a kind or size of key that the program does not use.
	Algorithm   keys.Algorithm
	Public      crypto.PublicKey  // nil: not found, or not understood
	Certificate *x509.Certificate // beside the key, or nil

	Sensitive          bool
	Extractable        bool
	NeverExtractable   bool
	Local              bool // made on the token
	AlwaysAuthenticate bool // asks for the PIN before each signature
	Sign               bool
	Decrypt            bool
}

// List describes the private keys of all tokens, of each at most 4096.
func (p *Pool) List(_ context.Context) ([]Object, error) {
	return nil, notYet("listing", "*")
}
