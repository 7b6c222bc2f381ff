package keys

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
)

// NewPrivateKey makes a private key in memory.
func NewPrivateKey(alg Algorithm) (crypto.Signer, error) {
	switch alg {
	case ECDSAP256:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case ECDSAP384:
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case ECDSAP521:
		return ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case RSA2048:
		return rsa.GenerateKey(rand.Reader, 2048)
	case RSA3072:
		return rsa.GenerateKey(rand.Reader, 3072)
	case RSA4096:
		return rsa.GenerateKey(rand.Reader, 4096)
	case Ed25519:
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	}
	return nil, fmt.Errorf("keys: unknown algorithm %q", alg)
}

// AlgorithmOf names the algorithm of a public key, and reports whether it is
// one that the program uses.
func AlgorithmOf(pub crypto.PublicKey) (Algorithm, bool) {
	switch pub := pub.(type) {
	case *ecdsa.PublicKey:
		switch pub.Curve {
		case elliptic.P256():
			return ECDSAP256, true
		case elliptic.P384():
			return ECDSAP384, true
		case elliptic.P521():
			return ECDSAP521, true
		}
	case *rsa.PublicKey:
		switch pub.N.BitLen() {
		case 2048:
			return RSA2048, true
		case 3072:
			return RSA3072, true
		case 4096:
			return RSA4096, true
		}
	case ed25519.PublicKey:
		return Ed25519, true
	}
	return "", false
}

// FromSigner is Signer's other half: a Key out of a private key in memory.
func FromSigner(s crypto.Signer) Key {
	k := memoryKey{s}
	if private, ok := s.(*rsa.PrivateKey); ok {
		return memoryDecrypter{k, private}
	}
	return k
}

type memoryKey struct{ signer crypto.Signer }

func (k memoryKey) Public() crypto.PublicKey { return k.signer.Public() }

func (k memoryKey) Sign(ctx context.Context, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := CheckDigest(k.signer.Public(), digest, opts); err != nil {
		return nil, err
	}
	return k.signer.Sign(rand.Reader, digest, opts)
}

// A memoryDecrypter is an RSA key, which crypto/rsa decrypts with in constant time.
type memoryDecrypter struct {
	memoryKey
	private *rsa.PrivateKey
}

// Decrypt implements Decrypter.
func (k memoryDecrypter) Decrypt(ctx context.Context, ciphertext []byte, opts crypto.DecrypterOpts) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return k.private.Decrypt(rand.Reader, ciphertext, opts)
}

// CheckDigest refuses what crypto.Signer would sign without a thought: RSA over
// bytes that no hash function made, say.
func CheckDigest(pub crypto.PublicKey, digest []byte, opts crypto.SignerOpts) error {
	if opts == nil {
		return errors.New("keys: signing needs options")
	}
	hash := opts.HashFunc()
	if _, ok := pub.(ed25519.PublicKey); ok {
		if hash != 0 {
			return fmt.Errorf("keys: Ed25519 signs whole messages, not %v digests", hash)
		}
		return nil
	}
	if hash == 0 || len(digest) != hash.Size() {
		return fmt.Errorf("keys: a digest of %d bytes is not of hash function %v", len(digest), hash)
	}
	return nil
}
