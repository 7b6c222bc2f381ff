package attestation

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"strconv"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
)

// yubicoSerial is where a YubiKey's attestation has its serial number.
const yubicoSerial = "1.3.6.1.4.1.41482.3.7"

// step believes the attestation of a YubiKey's PIV application: a certificate
// for the key, and the key authorization signed by it.
func (v *Verifier) step(s statement, roots *x509.CertPool, q acme.Validation) (device, error) {
	leaf, err := v.chain(s.Chain, roots, nothingElse)
	if err != nil {
		return device{}, err
	}
	var sig []byte
	if err := v.cbor.Unmarshal(s.Sig, &sig); err != nil {
		return device{}, because(err, "sig is not a CBOR byte string inside the byte string")
	}
	if !signed(leaf.PublicKey, []byte(q.KeyAuthorization), sig) {
		return device{}, no("sig is not the signature of the key authorization by the attested key")
	}
	d := device{key: leaf.PublicKey}
	if value, ok := once(leaf, yubicoSerial); ok {
		var n int64
		if rest, err := asn1.Unmarshal(value, &n); err == nil && len(rest) == 0 && n > 0 {
			d.names = append(d.names, ca.Identifier{Type: ca.PermanentIdentifier, Value: strconv.FormatInt(n, 10)})
		}
	}
	return d, nil
}

// signed verifies a signature with SHA-256, or Ed25519's own.
func signed(pub any, message, sig []byte) bool {
	sum := sha256.Sum256(message)
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(k, sum[:], sig)
	case *rsa.PublicKey:
		return k.N.BitLen() <= maxRSABits && rsa.VerifyPKCS1v15(k, crypto.SHA256, sum[:], sig) == nil
	case ed25519.PublicKey:
		return ed25519.Verify(k, message, sig)
	}
	return false
}

// maxRSABits bounds the work of a verification.
const maxRSABits = 8192
