package ca

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"

	"golang.org/x/crypto/cryptobyte"
	cryptobyte_asn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/secsy-pki/secsy-pki/keys"
)

// An issuer is an Issuer with what it needs to make drafts.
type issuer struct {
	*Issuer
	drafter *drafter
}

// A drafter signs drafts in the place of one issuer's key: with a throwaway
// key of the same kind and size, so that a draft differs from the certificate
// in the signature's bits alone.
type drafter struct {
	key    crypto.Signer
	alg    x509.SignatureAlgorithm
	parent *x509.Certificate // the issuer's certificate with the throwaway key; nil drafts a root
	algDER []byte            // alg as certificates have it
	sig    []byte            // by key, of something else
}

// A draft is a certificate signed by a drafter's key.
type draft struct {
	der []byte
	tbs []byte // the TBSCertificate inside der
	alg []byte // the signature's AlgorithmIdentifier, DER
}

func newIssuer(i *Issuer) (*issuer, error) {
	switch {
	case i.Cert == nil || i.Key == nil:
		return nil, errors.New("certificate or key is missing")
	case !i.Cert.IsCA || i.Cert.KeyUsage&x509.KeyUsageCertSign == 0:
		return nil, errors.New("the certificate is not that of an authority")
	case i.ID != IDOf(i.Cert):
		return nil, fmt.Errorf("its id is %s, not %s", IDOf(i.Cert), i.ID)
	case !samePublic(i.Cert.PublicKey, i.Key.Public()):
		return nil, errors.New("the key is not the certificate's")
	}
	d, err := newDrafter(i.Key.Public(), i.Cert)
	if err != nil {
		return nil, err
	}
	return &issuer{Issuer: i, drafter: d}, nil
}

func samePublic(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}

// newDrafter makes a throwaway key like pub. parent is nil for a root's own draft.
func newDrafter(pub crypto.PublicKey, parent *x509.Certificate) (*drafter, error) {
	alg, err := signatureAlgorithm(pub)
	if err != nil {
		return nil, err
	}
	key, err := keyLike(pub)
	if err != nil {
		return nil, fmt.Errorf("making throwaway key: %w", err)
	}
	d := &drafter{key: key, alg: alg}
	if parent != nil {
		// Subject and key id are copied from the issuer, byte for byte.
		clone := *parent
		clone.PublicKey = key.Public()
		d.parent = &clone
		return d, d.sample()
	}
	return d, nil
}

// sample signs once, for all drafts of end entities.
func (d *drafter) sample() error {
	s, err := d.draft(&x509.Certificate{SerialNumber: big.NewInt(1)}, d.key.Public())
	if err != nil {
		return err
	}
	cert, err := x509.ParseCertificate(s.der)
	if err != nil {
		return fmt.Errorf("reading sample: %w", err)
	}
	d.algDER, d.sig = s.alg, cert.Signature
	return nil
}

// endEntity encodes template for pub. The draft has a signature of the right kind
// and size, which was made of another one: that costs nothing each time, and no
// certificate can come of it by mistake. Lints don't verify it: they can't, as
// all that they know is the issuer's own key.
func (d *drafter) endEntity(template *x509.Certificate, pub crypto.PublicKey) (draft, error) {
	tbs, err := encodeTBS(template, d.parent, d.algDER, pub)
	if err != nil {
		return draft{}, fmt.Errorf("encoding draft: %w", err)
	}
	out := draft{tbs: tbs, alg: d.algDER}
	out.der, err = assemble(out, d.sig)
	return out, err
}

// signatureAlgorithm is the one algorithm that a key signs with.
func signatureAlgorithm(pub crypto.PublicKey) (x509.SignatureAlgorithm, error) {
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return x509.ECDSAWithSHA256, nil
		case elliptic.P384():
			return x509.ECDSAWithSHA384, nil
		case elliptic.P521():
			return x509.ECDSAWithSHA512, nil
		}
	case *rsa.PublicKey:
		return x509.SHA256WithRSA, nil
	case ed25519.PublicKey:
		return x509.PureEd25519, nil
	}
	return 0, errors.New("issuers sign with RSA, ECDSA on P-256, P-384 or P-521, or Ed25519")
}

func signatureHash(alg x509.SignatureAlgorithm) crypto.Hash {
	switch alg {
	case x509.ECDSAWithSHA384:
		return crypto.SHA384
	case x509.ECDSAWithSHA512:
		return crypto.SHA512
	case x509.PureEd25519:
		return 0 // the message itself
	}
	return crypto.SHA256
}

func keyLike(pub crypto.PublicKey) (crypto.Signer, error) {
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		return ecdsa.GenerateKey(k.Curve, rand.Reader)
	case *rsa.PublicKey:
		return rsa.GenerateKey(rand.Reader, k.N.BitLen())
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	return key, err
}

// draft encodes template for pub.
func (d *drafter) draft(template *x509.Certificate, pub crypto.PublicKey) (draft, error) {
	template.SignatureAlgorithm = d.alg
	parent := d.parent
	if parent == nil {
		// A root's draft: its issuer is its subject. The key that checks the
		// signature is the throwaway one.
		self := *template
		self.PublicKey = d.key.Public()
		parent = &self
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, d.key)
	if err != nil {
		return draft{}, fmt.Errorf("encoding draft: %w", err)
	}
	return splitDraft(der)
}

func splitDraft(der []byte) (draft, error) {
	var (
		input    = cryptobyte.String(der)
		seq      cryptobyte.String
		tbs, alg cryptobyte.String
	)
	if !input.ReadASN1(&seq, cryptobyte_asn1.SEQUENCE) || !seq.ReadASN1Element(&tbs, cryptobyte_asn1.SEQUENCE) ||
		!seq.ReadASN1Element(&alg, cryptobyte_asn1.SEQUENCE) {
		return draft{}, errors.New("the draft is not a certificate")
	}
	return draft{der: der, tbs: tbs, alg: alg}, nil
}

// signTBS has key sign exactly tbs and returns the certificate, checked: it
// holds tbs, and issuerKey verifies it.
func signTBS(ctx context.Context, key keys.Key, d draft) ([]byte, error) {
	alg, err := signatureAlgorithm(key.Public())
	if err != nil {
		return nil, err
	}
	hash := signatureHash(alg)
	message := d.tbs
	if hash != 0 {
		h := hash.New()
		h.Write(d.tbs)
		message = h.Sum(nil)
	}
	sig, err := key.Sign(ctx, message, hash)
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	der, err := assemble(d, sig)
	if err != nil {
		return nil, err
	}
	return der, verifySigned(der, d, key.Public())
}

func assemble(d draft, sig []byte) ([]byte, error) {
	var b cryptobyte.Builder
	b.AddASN1(cryptobyte_asn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddBytes(d.tbs)
		b.AddBytes(d.alg)
		b.AddASN1BitString(sig)
	})
	der, err := b.Bytes()
	if err != nil {
		return nil, fmt.Errorf("assembling certificate: %w", err)
	}
	return der, nil
}

// verifySigned holds the device to what it was asked for: a wrong key behind
// the label, or a bit flipped on the way, ends here.
func verifySigned(der []byte, d draft, pub crypto.PublicKey) error {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("reading signed certificate: %w", err)
	}
	if !bytes.Equal(cert.RawTBSCertificate, d.tbs) {
		return errors.New("the signed certificate is not the linted one")
	}
	signer := &x509.Certificate{PublicKey: pub, PublicKeyAlgorithm: publicKeyAlgorithm(pub)}
	if err := signer.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature); err != nil {
		return fmt.Errorf("verifying signature: %w", err)
	}
	return nil
}

func publicKeyAlgorithm(pub crypto.PublicKey) x509.PublicKeyAlgorithm {
	switch pub.(type) {
	case *rsa.PublicKey:
		return x509.RSA
	case *ecdsa.PublicKey:
		return x509.ECDSA
	}
	return x509.Ed25519
}

var (
	oidOCSPNoCheck = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 48, 1, 5}
	oidFreshestCRL = asn1.ObjectIdentifier{2, 5, 29, 46}
	oidNoRevAvail  = asn1.ObjectIdentifier{2, 5, 29, 56}
	derNull        = []byte{5, 0}
)

// publicKeyBits returns the subjectPublicKey BIT STRING's contents of pub.
func publicKeyBits(pub crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return nil, fmt.Errorf("encoding public key: %w", err)
	}
	var info struct {
		Algorithm asn1.RawValue
		Key       asn1.BitString
	}
	if _, err := asn1.Unmarshal(der, &info); err != nil {
		return nil, fmt.Errorf("decoding public key: %w", err)
	}
	return info.Key.RightAlign(), nil
}
