package pkcs11pool

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/hex"
	"errors"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

const (
	maxListed = 4096 // objects of a class on a token
	listStep  = 32   // keys that one job reads, so that none takes long
)

// An Object is a private key on a token, as the token describes it.
type Object struct {
	Token string
	Label string
	ID    string // in hexadecimal
	// Algorithm is "" for a kind or size of key that the program can't make.
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

// List describes the private keys of all tokens, of each at most 4096. Tokens
// that do not answer are in the error, beside the keys of the others.
func (p *Pool) List(ctx context.Context) ([]Object, error) {
	var all []Object
	var errs []error
	for _, t := range p.tokens {
		some, err := p.listToken(ctx, t)
		all = append(all, some...)
		if err != nil {
			errs = append(errs, err)
		}
	}
	return all, errors.Join(errs...)
}

func (p *Pool) listToken(ctx context.Context, t *token) (all []Object, err error) {
	const op = "listing keys"
	private, err := ask(ctx, p, t, op, func(c *conn) ([]pkcs11.ObjectHandle, error) {
		return findPrivate(c, []*pkcs11.Attribute{
			pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_PRIVATE_KEY), pkcs11.NewAttribute(pkcs11.CKA_TOKEN, true),
		}, maxListed)
	})
	if err != nil {
		return nil, err
	}
	for len(private) > 0 {
		step := private[:min(len(private), listStep)]
		private = private[len(step):]
		some, err := ask(ctx, p, t, op, func(c *conn) (some []Object, err error) {
			for _, o := range step {
				object, err := readObject(c, o)
				if errors.Is(err, pkcs11.Error(pkcs11.CKR_OBJECT_HANDLE_INVALID)) {
					continue // destroyed meanwhile
				}
				if err != nil {
					return nil, err
				}
				some = append(some, object)
			}
			return some, nil
		})
		if err != nil {
			return all, err
		}
		all = append(all, some...)
	}
	return all, nil
}

func readObject(c *conn, o pkcs11.ObjectHandle) (Object, error) {
	a, err := attributes(
		c, o, pkcs11.CKA_LABEL, pkcs11.CKA_ID, pkcs11.CKA_KEY_TYPE, pkcs11.CKA_SENSITIVE, pkcs11.CKA_EXTRACTABLE,
		pkcs11.CKA_NEVER_EXTRACTABLE, pkcs11.CKA_LOCAL, pkcs11.CKA_ALWAYS_AUTHENTICATE, pkcs11.CKA_SIGN, pkcs11.CKA_DECRYPT,
	)
	if err != nil {
		return Object{}, err
	}
	object := Object{
		Token: c.token.name, Label: string(a[pkcs11.CKA_LABEL]), ID: hex.EncodeToString(a[pkcs11.CKA_ID]),
		Sensitive: yes(a[pkcs11.CKA_SENSITIVE]), Extractable: !no(a[pkcs11.CKA_EXTRACTABLE]),
		NeverExtractable: yes(a[pkcs11.CKA_NEVER_EXTRACTABLE]), Local: yes(a[pkcs11.CKA_LOCAL]),
		AlwaysAuthenticate: yes(a[pkcs11.CKA_ALWAYS_AUTHENTICATE]), Sign: yes(a[pkcs11.CKA_SIGN]), Decrypt: yes(a[pkcs11.CKA_DECRYPT]),
	}
	object.Public, _, err = publicOf(c, o, number(a[pkcs11.CKA_KEY_TYPE]), a[pkcs11.CKA_ID], a[pkcs11.CKA_LABEL])
	if err != nil {
		return Object{}, err
	}
	object.Algorithm, _ = keys.AlgorithmOf(object.Public)
	certs, err := find(c, beside(pkcs11.CKO_CERTIFICATE, a[pkcs11.CKA_ID], a[pkcs11.CKA_LABEL]), maxMatches)
	if err != nil {
		return Object{}, err
	}
	for _, o := range certs {
		cert, _, err := readCertificate(c, o)
		if err != nil {
			return Object{}, err
		}
		if cert != nil && samePublic(object.Public, cert.PublicKey) && (object.Certificate == nil || bytes.Compare(cert.Raw, object.Certificate.Raw) < 0) {
			object.Certificate = cert
		}
	}
	return object, nil
}
