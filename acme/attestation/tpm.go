package attestation

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	_ "crypto/sha512" // AK signatures with SHA-384
	"crypto/subtle"
	"crypto/x509"
	"encoding/asn1"
	"math/big"
	"slices"

	"github.com/google/go-tpm/tpm2"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
)

// COSE algorithms that an attestation key may sign with (RFC 9053, RFC 8812).
// SHA-1, which some TPMs still offer, is not among them.
const (
	coseES256 = -7
	coseES384 = -35
	coseRS256 = -257
	coseRS384 = -258
)

var oidAttestationKey = asn1.ObjectIdentifier{2, 23, 133, 8, 3} // tcg-kp-AIKCertificate

// tpm believes TPM2_Certify of the key by an attestation key whose certificate
// leads to a root (WebAuthn §8.3).
func (v *Verifier) tpm(s statement, roots *x509.CertPool, q acme.Validation) (device, error) {
	if s.Version != "2.0" {
		return device{}, no(`ver is not "2.0"`)
	}
	// Verify does not know what is in a subjectAltName without a subject.
	ak, err := v.chain(s.Chain, roots, func(leaf *x509.Certificate) {
		leaf.UnhandledCriticalExtensions = slices.DeleteFunc(leaf.UnhandledCriticalExtensions, oidSubjectAltName.Equal)
	})
	if err != nil {
		return device{}, err
	}
	names, err := attestationKey(ak)
	if err != nil {
		return device{}, err
	}
	pub, err := exactly[tpm2.TPMTPublic](s.PubArea, "pubArea")
	if err != nil {
		return device{}, err
	}
	info, err := exactly[tpm2.TPMSAttest](s.CertInfo, "certInfo")
	if err != nil {
		return device{}, err
	}
	if err := certified(info, pub, q); err != nil {
		return device{}, err
	}
	if err := tpmSigned(ak.PublicKey, s); err != nil {
		return device{}, err
	}
	key, err := tpm2.Pub(*pub)
	if err != nil {
		return device{}, because(err, "the key in pubArea is of a kind that is not known here")
	}
	return device{names: names, key: key}, nil
}

// attestationKey checks what WebAuthn §8.3.1 demands of the certificate of an
// attestation key, and reads the device's names out of it.
func attestationKey(c *x509.Certificate) ([]ca.Identifier, error) {
	switch {
	case c.Version != 3 || len(c.Subject.Names) != 0:
		return nil, no("the attestation key's certificate must be of version 3 and have an empty subject")
	case c.IsCA || !c.BasicConstraintsValid:
		return nil, no("the attestation key's certificate must say that it is not an authority's")
	case !slices.ContainsFunc(c.UnknownExtKeyUsage, oidAttestationKey.Equal):
		return nil, no("the attestation key's certificate lacks the extended key usage tcg-kp-AIKCertificate, %s", oidAttestationKey)
	}
	san, ok := once(c, oidSubjectAltName.String())
	if !ok {
		return nil, no("the attestation key's certificate has no subjectAltName")
	}
	alt, err := parseAltNames(san)
	if err != nil {
		return nil, err
	}
	if !alt.manufacturer || !alt.model || !alt.version {
		return nil, no("the attestation key's certificate does not name the TPM's manufacturer, model and version")
	}
	return alt.names, nil
}

// exactly reads a structure of a TPM that is all there is in b.
func exactly[T tpm2.Marshallable, P interface {
	*T
	tpm2.Unmarshallable
}](b []byte, what string,
) (*T, error) {
	t, err := tpm2.Unmarshal[T, P](b)
	if err != nil {
		return nil, because(err, "%s is not what a TPM writes", what)
	}
	if !bytes.Equal(tpm2.Marshal(*t), b) {
		return nil, no("%s is not what a TPM writes", what)
	}
	return t, nil
}

// certified checks that info says of the very key in pub, for this very
// challenge, that the TPM has it; and that it made the key and keeps it.
func certified(info *tpm2.TPMSAttest, pub *tpm2.TPMTPublic, q acme.Validation) error {
	want := sha256.Sum256([]byte(q.KeyAuthorization))
	if info.Magic != tpm2.TPMGeneratedValue {
		// An attestation key signs data from outside, too, if it does not begin like this.
		return no("certInfo was not made by a TPM")
	}
	what, err := info.Attested.Certify()
	if err != nil || info.Type != tpm2.TPMSTAttestCertify {
		return because(err, "certInfo does not certify a key")
	}
	if subtle.ConstantTimeCompare(info.ExtraData.Buffer, want[:]) != 1 {
		return no("the attestation was not made for this challenge: extraData is not the SHA-256 of the key authorization")
	}
	name, err := tpm2.ObjectName(pub)
	if err != nil {
		return because(err, "the name algorithm in pubArea is not known here")
	}
	if !bytes.Equal(name.Buffer, what.Name.Buffer) {
		return no("certInfo certifies another key than the one in pubArea")
	}
	a := pub.ObjectAttributes
	if !a.FixedTPM || !a.FixedParent || !a.SensitiveDataOrigin {
		return no("the key was not made in the TPM, or can leave it: it needs fixedTPM, fixedParent and sensitiveDataOrigin")
	}
	return nil
}

// tpmSigned verifies sig, a TPMT_SIGNATURE over certInfo, with the algorithm
// that alg says.
func tpmSigned(pub crypto.PublicKey, s statement) error {
	sig, err := exactly[tpm2.TPMTSignature](s.Sig, "sig")
	if err != nil {
		return err
	}
	bad := no("sig is not the attestation key's signature of certInfo")
	var h crypto.Hash
	switch s.Alg {
	case coseES256, coseRS256:
		h = crypto.SHA256
	case coseES384, coseRS384:
		h = crypto.SHA384
	default:
		return no("alg %d is not one of %d, %d, %d, %d", s.Alg, coseES256, coseES384, coseRS256, coseRS384)
	}
	d := h.New()
	d.Write(s.CertInfo)
	sum := d.Sum(nil)
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		e, err := sig.Signature.ECDSA()
		if err != nil || sig.SigAlg != tpm2.TPMAlgECDSA || s.Alg != coseES256 && s.Alg != coseES384 || !hashIs(e.Hash, h) {
			return bad
		}
		r, ss := new(big.Int).SetBytes(e.SignatureR.Buffer), new(big.Int).SetBytes(e.SignatureS.Buffer)
		if !ecdsa.Verify(k, sum, r, ss) {
			return bad
		}
		return nil
	case *rsa.PublicKey:
		e, err := sig.Signature.RSASSA()
		if err != nil || sig.SigAlg != tpm2.TPMAlgRSASSA || s.Alg != coseRS256 && s.Alg != coseRS384 || !hashIs(e.Hash, h) ||
			k.N.BitLen() > maxRSABits || rsa.VerifyPKCS1v15(k, h, sum, e.Sig.Buffer) != nil {
			return bad
		}
		return nil
	}
	return no("the attestation key is neither RSA nor ECDSA")
}

func hashIs(id tpm2.TPMIAlgHash, h crypto.Hash) bool {
	got, err := id.Hash()
	return err == nil && got == h
}
