package pkcs11pool

import (
	"context"
	"errors"
	"fmt"

	"github.com/secsy-pki/secsy-pki/keys"
)

// GenerateOptions say what else than signing a key may do.
type GenerateOptions struct {
	Decrypt bool // RSA only: SCEP needs it
}

// Generate implements keys.Generator: a key that can only sign, and never
// leaves its token.
func (p *Pool) Generate(ctx context.Context, ref string, alg keys.Algorithm) (keys.Key, error) {
	return p.GenerateWith(ctx, ref, alg, GenerateOptions{})
}

// GenerateWith is Generate for a key that may do more than sign.
func (p *Pool) GenerateWith(_ context.Context, ref string, _ keys.Algorithm, _ GenerateOptions) (keys.Key, error) {
	return nil, notYet("generating", ref)
}

// Destroy implements keys.Destroyer: the key is gone from all tokens, with its
// public key and certificate objects.
func (p *Pool) Destroy(_ context.Context, ref string) error {
	return notYet("destroying", ref)
}

func notYet(what, ref string) error {
	return fmt.Errorf("pkcs11pool: %s key %q: %w", what, ref, errors.ErrUnsupported)
}
