package ca

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"fmt"
	"slices"

	"github.com/secsy-pki/secsy-pki/ca/weakkey"
	"github.com/secsy-pki/secsy-pki/keys"
)

// CheckKey says whether pub may be certified at all: it is not weak, not on the
// blocklist and not one of the CA's own. The error is a *Refusal with
// BadPublicKey.
func (a *Authority) CheckKey(ctx context.Context, pub crypto.PublicKey) error {
	if err := weakkey.Check(pub, a.weak); err != nil {
		return &Refusal{Code: BadPublicKey, Detail: err.Error()}
	}
	hash, err := weakkey.SPKIHash(pub)
	if err != nil {
		return &Refusal{Code: BadPublicKey, Detail: "the public key is of a kind not known here", Err: err}
	}
	if a.own[hash] {
		return &Refusal{Code: BadPublicKey, Detail: "the public key is not yours"}
	}
	blocked, err := a.blocked(ctx, hash)
	if err != nil {
		return fmt.Errorf("looking for key %x: %w", hash, err)
	}
	if blocked {
		return &Refusal{Code: BadPublicKey, Detail: "the public key was reported as compromised"}
	}
	return nil
}

func (a *Authority) blocked(ctx context.Context, hash [32]byte) (bool, error) {
	if a.blockedKeys != nil {
		if blocked, err := a.blockedKeys(ctx, hash); err != nil || blocked {
			return blocked, err
		}
	}
	return a.store.KeyBlocked(ctx, hash)
}

// checkKey adds the rules of the profile.
func (a *Authority) checkKey(ctx context.Context, p *Profile, pub crypto.PublicKey) error {
	alg := algorithmOf(pub)
	if !slices.Contains(p.KeyAlgorithms, alg) {
		return &Refusal{Code: BadPublicKey, Detail: fmt.Sprintf("the profile allows keys of these kinds only: %s", join(p.KeyAlgorithms))}
	}
	return a.CheckKey(ctx, pub)
}

// algorithmOf names the kind and size of pub, "" for one that has no name here.
func algorithmOf(pub crypto.PublicKey) keys.Algorithm {
	switch k := pub.(type) {
	case *rsa.PublicKey:
		return keys.Algorithm(fmt.Sprintf("rsa-%d", k.N.BitLen()))
	case *ecdsa.PublicKey:
		return keys.Algorithm(fmt.Sprintf("ecdsa-p%d", k.Curve.Params().BitSize))
	case ed25519.PublicKey:
		return keys.Ed25519
	}
	return ""
}
