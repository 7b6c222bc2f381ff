package cms

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/subtle"
	"errors"
	"fmt"
)

// A Decrypter has an RSA key and decrypts by it, as a keys.Decrypter does: with a
// SessionKeyLen it gives a random key instead of an error where the padding is
// wrong, and what else is wrong with a ciphertext is rsa.ErrDecryption.
type Decrypter interface {
	Decrypt(ctx context.Context, ciphertext []byte, opts crypto.DecrypterOpts) ([]byte, error)
}

// Open decrypts the content by the key of the recipient t.
//
// An error that matches ErrDecrypt comes with octets all the same, which are none
// that anybody sent. Whoever goes on to read the content reads those as well, and
// looks at the error only then: so takes every wrong message the same way, be it
// the key, the padding or the content that is wrong (RFC 3218 §2.3.2). All other
// errors are of the device or of the algorithms.
func (ed *EnvelopedData) Open(ctx context.Context, t *Transport, by Decrypter) ([]byte, error) {
	if err := ed.Check(t, true); err != nil {
		return nil, err
	}
	key := make([]byte, ciphers[ed.Cipher].key)
	if _, err := rand.Read(key); err != nil { // before anything is known of t
		return nil, err
	}
	got, err := by.Decrypt(ctx, t.encrypted, t.options(len(key)))
	if err != nil && !errors.Is(err, rsa.ErrDecryption) {
		return nil, fmt.Errorf("cms: decrypting the content key: %w", err)
	}
	// Whatever is not a key of that length leaves the random one.
	fits := subtle.ConstantTimeEq(int32(len(got)), int32(len(key)))
	whole := make([]byte, len(key))
	copy(whole, got)
	subtle.ConstantTimeCopy(fits, key, whole)
	clear(got)
	clear(whole)
	defer clear(key)
	return ed.unseal(key)
}

func (t *Transport) options(key int) crypto.DecrypterOpts {
	if t.oaep != nil {
		return t.oaep
	}
	return &rsa.PKCS1v15DecryptOptions{SessionKeyLen: key} //nolint:staticcheck // SCEP (RFC 8894) has no other padding
}
