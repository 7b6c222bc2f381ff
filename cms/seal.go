package cms

import (
	"crypto"
	"crypto/cipher"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"fmt"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// A Recipient is whom content is encrypted for: TransportTo or ByPassword.
type Recipient interface {
	// wrap returns the RecipientInfo with the content key.
	wrap(key []byte, c Cipher) (func(b *cryptobyte.Builder), error)
}

// TransportTo is a recipient with an RSA certificate.
type TransportTo struct {
	Certificate *x509.Certificate
	OAEP        crypto.Hash // SHA-1 or SHA-256, of MGF1 too; 0: PKCS#1 v1.5
}

// Seal returns a ContentInfo with EnvelopedData: content encrypted by c under a
// new key, for the recipients.
func Seal(contentType asn1.ObjectIdentifier, content []byte, c Cipher, recipients ...Recipient) ([]byte, error) {
	known, ok := ciphers[c]
	if !ok {
		return nil, fmt.Errorf("%w: content encryption", ErrAlgorithm)
	}
	key, iv, err := newKey(c)
	if err != nil {
		return nil, err
	}
	defer clear(key)
	block, err := known.block(key)
	if err != nil {
		return nil, fmt.Errorf("cms: content key: %w", err)
	}
	ciphertext := pad(content, block.BlockSize())
	cipher.NewCBCEncrypter(block, iv).CryptBlocks(ciphertext, ciphertext)
	version := int64(0) // RFC 5652 §6.1
	infos := make([]func(b *cryptobyte.Builder), 0, len(recipients))
	for _, r := range recipients {
		info, err := r.wrap(key, c)
		if err != nil {
			return nil, err
		}
		if _, ok := r.(ByPassword); ok {
			version = 3
		}
		infos = append(infos, info)
	}
	return build(OIDEnvelopedData, func(b *cryptobyte.Builder) {
		b.AddASN1Int64(version)
		b.AddASN1(casn1.SET, func(b *cryptobyte.Builder) {
			for _, info := range infos {
				info(b)
			}
		})
		b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1ObjectIdentifier(contentType)
			addCipher(b, c, iv)
			b.AddASN1(implicit0, func(b *cryptobyte.Builder) { b.AddBytes(ciphertext) })
		})
	})
}

func newKey(c Cipher) (key, iv []byte, err error) {
	key, iv = make([]byte, ciphers[c].key), make([]byte, c.blockSize())
	if _, err := rand.Read(key); err != nil {
		return nil, nil, err
	}
	_, err = rand.Read(iv)
	return key, iv, err
}

func addCipher(b *cryptobyte.Builder, c Cipher, iv []byte) {
	addAlgorithm(b, ciphers[c].oid, func(b *cryptobyte.Builder) { b.AddASN1OctetString(iv) })
}

func (r TransportTo) wrap(key []byte, _ Cipher) (func(b *cryptobyte.Builder), error) {
	pub, ok := r.Certificate.PublicKey.(*rsa.PublicKey)
	if !ok {
		return nil, fmt.Errorf("%w: key transport to %T", ErrAlgorithm, r.Certificate.PublicKey)
	}
	id := identify(r.Certificate)
	encrypted, algorithm, err := r.encrypt(pub, key)
	if err != nil {
		return nil, fmt.Errorf("cms: encrypting the content key: %w", err)
	}
	return func(b *cryptobyte.Builder) {
		b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1Int64(0)
			id.add(b)
			algorithm(b)
			b.AddASN1OctetString(encrypted)
		})
	}, nil
}

func (r TransportTo) encrypt(pub *rsa.PublicKey, key []byte) ([]byte, func(b *cryptobyte.Builder), error) {
	switch r.OAEP {
	case 0:
		encrypted, err := rsa.EncryptPKCS1v15(rand.Reader, pub, key) //nolint:staticcheck // SCEP (RFC 8894) has no other padding
		return encrypted, func(b *cryptobyte.Builder) { addAlgorithm(b, oidRSA, addNull) }, err
	case crypto.SHA1: // the defaults, which DER leaves out
		encrypted, err := rsa.EncryptOAEP(crypto.SHA1.New(), rand.Reader, pub, key, nil)
		return encrypted, func(b *cryptobyte.Builder) {
			addAlgorithm(b, oidOAEP, func(b *cryptobyte.Builder) { b.AddASN1(casn1.SEQUENCE, func(*cryptobyte.Builder) {}) })
		}, err
	case crypto.SHA256:
		encrypted, err := rsa.EncryptOAEP(sha256.New(), rand.Reader, pub, key, nil)
		return encrypted, func(b *cryptobyte.Builder) { addAlgorithm(b, oidOAEP, addOAEPWithSHA256) }, err
	}
	return nil, nil, fmt.Errorf("%w: OAEP with %v", ErrAlgorithm, r.OAEP)
}

func addOAEPWithSHA256(b *cryptobyte.Builder) {
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1(explicit(0), func(b *cryptobyte.Builder) { addAlgorithm(b, oidSHA256, addNull) })
		b.AddASN1(explicit(1), func(b *cryptobyte.Builder) {
			addAlgorithm(b, oidMGF1, func(b *cryptobyte.Builder) { addAlgorithm(b, oidSHA256, addNull) })
		})
	})
}
