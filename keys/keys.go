// Package keys is what a private key is to the rest of the program: something
// that signs when asked, wherever it lives.
//
// A device, a file and a guard in front of either are all a Store; nobody but
// this room and the device rooms sees private key bytes.
package keys

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"
	"time"
)

// A Key signs with one private key. It is safe for concurrent use.
//
// Sign leaves a queue when ctx ends, but never abandons a signature that the
// device has already begun. The digest and opts follow crypto.Signer: Ed25519
// keys get the whole message and crypto.Hash(0).
type Key interface {
	Public() crypto.PublicKey
	Sign(ctx context.Context, digest []byte, opts crypto.SignerOpts) ([]byte, error)
}

// A Decrypter is a Key that can also decrypt: a skill that not every key has. It
// is safe for concurrent use, and keeps to ctx as Sign does.
//
// The options are of crypto/rsa. With a SessionKeyLen, wrong padding is no error but
// a random key; whatever else is wrong with a ciphertext is rsa.ErrDecryption, which
// is a fault of who sent it, never one of the device.
type Decrypter interface {
	Decrypt(ctx context.Context, ciphertext []byte, opts crypto.DecrypterOpts) ([]byte, error)
}

// A Store finds keys by label. It is safe for concurrent use. Key returns an
// error matching ErrNotFound when there is no key of that label.
type Store interface {
	Key(ctx context.Context, label string) (Key, error)
}

// A Generator is a Store that can make keys. Generate returns an error matching
// ErrExists when the label is taken; the key is durable on return.
type Generator interface {
	Generate(ctx context.Context, label string, alg Algorithm) (Key, error)
}

var (
	// ErrNotFound says that the store has no key of that label.
	ErrNotFound = errors.New("keys: no such key")
	// ErrExists says that a key of that label is already there.
	ErrExists = errors.New("keys: key exists")
	// ErrBusy says that the device was not called: trying again is safe.
	ErrBusy = errors.New("keys: device busy")
	// ErrOtherKey says that what the store has under a label is not the key that
	// is wanted.
	ErrOtherKey = errors.New("keys: another key than the one wanted")
	// ErrUnable says that the device can't do what is asked with the key, today or
	// any other day.
	ErrUnable = errors.New("keys: the device can't do that")
	// ErrPassphrase says that the passphrase does not open the key.
	ErrPassphrase = errors.New("keys: wrong passphrase")
)

// A BusyError is an ErrBusy that says when to come again.
type BusyError struct {
	Reason     string        // one of few words, for logs and metrics
	RetryAfter time.Duration // at least a second
	Err        error         // what stands behind it, such as the end of a context; may be nil
}

func (e *BusyError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%v: %s: %v", ErrBusy, e.Reason, e.Err)
	}
	return fmt.Sprintf("%v: %s", ErrBusy, e.Reason)
}

// Is reports that a BusyError is ErrBusy: the device was not called.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

func (e *BusyError) Unwrap() error { return e.Err }

// A HungError says that a call of the device has taken so long that nobody waits
// for it any more. It may have signed, or may still do so.
type HungError struct {
	After time.Duration // how long it was waited for
	// Returned is closed when the call returns after all. Until then whatever was
	// reserved for the call is still in use.
	Returned <-chan struct{}
}

func (e *HungError) Error() string {
	return fmt.Sprintf("keys: the device has not returned from a call for %v", e.After)
}

// Ready asks a key whether its device can be called at the moment. A nil error
// promises nothing; a *BusyError means that asking for a signature would be in
// vain. It costs next to nothing and never calls the device.
func Ready(k Key) error {
	if r, ok := k.(interface{ Ready() error }); ok {
		return r.Ready()
	}
	return nil
}

// A Destroyer is a Store that can destroy keys. Destroy returns an error matching
// ErrNotFound when there is no key of that label.
type Destroyer interface {
	Destroy(ctx context.Context, label string) error
}

type repeatableKey struct{}

// Repeatable returns a context in which signing the same bytes twice does no
// harm: after a failure that leaves open whether the device signed, it may be
// asked once more. Never for certificates, of which there must be one.
func Repeatable(ctx context.Context) context.Context {
	return context.WithValue(ctx, repeatableKey{}, true)
}

// Once returns a context in which nothing is repeatable, whatever ctx is.
func Once(ctx context.Context) context.Context {
	if !IsRepeatable(ctx) {
		return ctx
	}
	return context.WithValue(ctx, repeatableKey{}, false)
}

// IsRepeatable reports whether ctx is from Repeatable.
func IsRepeatable(ctx context.Context) bool {
	yes, _ := ctx.Value(repeatableKey{}).(bool)
	return yes
}

type decryptKey struct{}

// ToDecrypt returns a context in which Generate makes a key that may decrypt, too.
// A device is asked for that when a key is made, or never: by itself a key of a
// device signs and does nothing else. Only RSA keys can decrypt.
func ToDecrypt(ctx context.Context) context.Context {
	return context.WithValue(ctx, decryptKey{}, true)
}

// IsToDecrypt reports whether ctx is from ToDecrypt.
func IsToDecrypt(ctx context.Context) bool {
	yes, _ := ctx.Value(decryptKey{}).(bool)
	return yes
}

// A Purpose is what a signature is for. A guard before a device decides by it
// what goes first.
type Purpose uint8

// The purposes. The zero one is issuance.
const (
	ForIssuance   Purpose = iota // of a new certificate
	ForRenewal                   // of a certificate whose requester holds one like it
	ForStatus                    // an OCSP response or a CRL that many will read
	ForRevocation                // a status that says that a certificate is revoked
	ForOne                       // an answer for one stranger alone, such as an OCSP nonce
	ForAhead                     // what nobody has asked for yet
)

type purposeKey struct{}

// WithPurpose returns a context whose signatures are for p.
func WithPurpose(ctx context.Context, p Purpose) context.Context {
	return context.WithValue(ctx, purposeKey{}, p)
}

// PurposeOf returns what the signatures of ctx are for.
func PurposeOf(ctx context.Context) Purpose {
	p, _ := ctx.Value(purposeKey{}).(Purpose)
	return p
}

// An Algorithm names a kind and size of key that the program can make.
type Algorithm string

// The algorithms that can be made.
const (
	ECDSAP256 Algorithm = "ecdsa-p256"
	ECDSAP384 Algorithm = "ecdsa-p384"
	ECDSAP521 Algorithm = "ecdsa-p521"
	RSA2048   Algorithm = "rsa-2048"
	RSA3072   Algorithm = "rsa-3072"
	RSA4096   Algorithm = "rsa-4096"
	Ed25519   Algorithm = "ed25519"
)

// Signer adapts k to crypto.Signer for the length of one operation, with ctx as
// the bound of each signature.
func Signer(ctx context.Context, k Key) crypto.Signer { return signer{ctx, k} }

type signer struct {
	ctx context.Context //nolint:containedctx // a crypto.Signer of one operation only
	key Key
}

func (s signer) Public() crypto.PublicKey { return s.key.Public() }

func (s signer) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	return s.key.Sign(s.ctx, digest, opts)
}
