package pkcs11pool

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

// StoreCertificate stores a certificate beside its key, on each token that has
// the key, in place of those that are there. Tokens that do not answer are in
// the error, and the others have it.
func (p *Pool) StoreCertificate(ctx context.Context, text string, cert *x509.Certificate) error {
	found, err := p.Key(ctx, text)
	if err != nil {
		return err
	}
	k := keyOf(found)
	if !samePublic(k.public, cert.PublicKey) {
		return fmt.Errorf("pkcs11pool: the certificate of %q is not of key %q", cert.Subject, text)
	}
	if len(cert.Raw) > maxAttribute {
		return fmt.Errorf("pkcs11pool: a certificate of %d bytes: at most %d are stored", len(cert.Raw), maxAttribute)
	}
	op := "storing the certificate of key " + text
	if err := p.ring.take(ctx); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer p.ring.give()
	var errs []error
	stored := 0
	for _, t := range p.tokens {
		has, err := k.store(ctx, t, op, cert)
		if err != nil {
			errs = append(errs, err)
		} else if has {
			stored++
		}
	}
	if stored == 0 && len(errs) == 0 {
		return fmt.Errorf("%s: %w", op, keys.ErrNotFound)
	}
	return errors.Join(errs...)
}

// store reports whether the token has the key, and so the certificate now.
func (k *key) store(ctx context.Context, t *token, op string, cert *x509.Certificate) (has bool, err error) {
	at, err := ask(ctx, k.pool, t, op, k.at)
	if err != nil || at.why != nil {
		return false, err
	}
	template, err := certificateTemplate(at, cert)
	if err != nil {
		return false, err
	}
	return true, k.pool.do(ctx, &job{
		op: op, rw: true, repeatable: true,
		on:  func(other *token) bool { return other == t },
		run: func(c *conn) error { return replaceCertificate(c, at, template, cert.Raw) },
	})
}

// replaceCertificate makes the new object before it destroys the old, so that
// there is one at any time.
func replaceCertificate(c *conn, at *place, template []*pkcs11.Attribute, der []byte) error {
	objects, err := find(c, beside(pkcs11.CKO_CERTIFICATE, at.id, at.label), maxMatches)
	if err != nil {
		return err
	}
	there := false
	var old []pkcs11.ObjectHandle
	for _, o := range objects {
		a, err := attributes(c, o, pkcs11.CKA_VALUE)
		switch {
		case err != nil:
			return err
		case !there && bytes.Equal(a[pkcs11.CKA_VALUE], der):
			there = true
		default:
			old = append(old, o)
		}
	}
	c.effect = true
	if !there {
		if _, err := c.CreateObject(c.session, template); err != nil {
			return err
		}
	}
	for _, o := range old {
		if err := c.DestroyObject(c.session, o); err != nil {
			return err
		}
	}
	return nil
}

func certificateTemplate(at *place, cert *x509.Certificate) ([]*pkcs11.Attribute, error) {
	serial, err := asn1.Marshal(cert.SerialNumber) // PKCS#11 §4.6.3: in DER
	if err != nil {
		return nil, err
	}
	return []*pkcs11.Attribute{
		pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_CERTIFICATE),
		pkcs11.NewAttribute(pkcs11.CKA_CERTIFICATE_TYPE, pkcs11.CKC_X_509),
		pkcs11.NewAttribute(pkcs11.CKA_TOKEN, true),
		pkcs11.NewAttribute(pkcs11.CKA_PRIVATE, false),
		pkcs11.NewAttribute(pkcs11.CKA_LABEL, at.label),
		pkcs11.NewAttribute(pkcs11.CKA_ID, at.id),
		pkcs11.NewAttribute(pkcs11.CKA_SUBJECT, cert.RawSubject),
		pkcs11.NewAttribute(pkcs11.CKA_ISSUER, cert.RawIssuer),
		pkcs11.NewAttribute(pkcs11.CKA_SERIAL_NUMBER, serial),
		pkcs11.NewAttribute(pkcs11.CKA_VALUE, cert.Raw),
	}, nil
}
