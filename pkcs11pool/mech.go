package pkcs11pool

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"errors"
	"fmt"
	"math/big"

	"github.com/miekg/pkcs11"
)

// What PKCS#11 3.0 added and the binding does not name.
const (
	ckkECEdwards          = 0x40
	ckmECEdwardsKeyPair   = 0x1055
	ckmEdDSA              = 0x1057
	ckrCurveNotSupported  = pkcs11.Error(0x140)
	maxAttribute          = 64 << 10 // bytes of an attribute that is looked at
	maxRSABits            = 8192
	minRSABits            = 2048
	ed25519SignatureBytes = ed25519.SignatureSize
	mostScalars           = 2 * 66 // bytes of r and s of the largest curve
)

// The mechanisms without parameters. The binding only reads them.
var (
	mechECDSA   = []*pkcs11.Mechanism{pkcs11.NewMechanism(pkcs11.CKM_ECDSA, nil)}
	mechEdDSA   = []*pkcs11.Mechanism{pkcs11.NewMechanism(ckmEdDSA, nil)}
	mechRSA     = []*pkcs11.Mechanism{pkcs11.NewMechanism(pkcs11.CKM_RSA_PKCS, nil)}
	mechRSARaw  = []*pkcs11.Mechanism{pkcs11.NewMechanism(pkcs11.CKM_RSA_X_509, nil)}
	orderOfP256 = elliptic.P256().Params().N.Bytes()
	orderOfP384 = elliptic.P384().Params().N.Bytes()
	orderOfP521 = elliptic.P521().Params().N.Bytes()
)

// A hashFunc is a hash function that signatures are made over.
type hashFunc struct {
	digestInfo []byte // what stands before the digest in RSA PKCS#1 v1.5, RFC 8017 §9.2
	mechanism  uint
	mgf        uint
}

func digestInfo(arc, size byte) []byte {
	return []byte{0x30, 0x11 + size, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, arc, 0x05, 0x00, 0x04, size}
}

var (
	hashSHA256 = hashFunc{digestInfo(1, 32), pkcs11.CKM_SHA256, pkcs11.CKG_MGF1_SHA256}
	hashSHA384 = hashFunc{digestInfo(2, 48), pkcs11.CKM_SHA384, pkcs11.CKG_MGF1_SHA384}
	hashSHA512 = hashFunc{digestInfo(3, 64), pkcs11.CKM_SHA512, pkcs11.CKG_MGF1_SHA512}
)

// hashFuncOf is nil for one that signatures are not made over.
func hashFuncOf(h crypto.Hash) *hashFunc {
	switch h {
	case crypto.SHA256:
		return &hashSHA256
	case crypto.SHA384:
		return &hashSHA384
	case crypto.SHA512:
		return &hashSHA512
	}
	return nil
}

// A scheme is how one signature is made: what the device is asked for, and what
// its answer has to be.
type scheme struct {
	label         string // of its mechanism, in metrics
	mechanism     []*pkcs11.Mechanism
	message       []byte
	size          int // of the device's answer at most
	deterministic bool
	needs         skill
	order         []byte                   // of the curve, if the answer is r and s
	verify        func(answer []byte) bool // else
}

// finish makes of the device's answer what crypto.Signer promises.
func (s *scheme) finish(answer []byte) ([]byte, error) {
	switch {
	case s.order != nil:
		return ecdsaDER(answer, s.order)
	case !s.verify(answer):
		return nil, errWrongSignature
	}
	return answer, nil
}

// schemeFor chooses how digest, which keys.CheckDigest let pass, is signed. It
// keeps digest, which nobody may change any more.
//
// RSA and Ed25519 signatures are verified before anybody sees them. A fault in
// the middle of either computation makes a signature that gives the private key
// away (of RSA by the Chinese remainder theorem, of Ed25519 by its fixed nonce),
// and verifying costs little beside signing. A faulty ECDSA signature gives nothing
// away and verifying it costs two thirds of what signing does, so only its form is
// checked here: the rooms of ca, ocsp and crl verify what they have had signed.
func schemeFor(pub crypto.PublicKey, digest []byte, opts crypto.SignerOpts) (scheme, error) {
	hash := opts.HashFunc()
	h := hashFuncOf(hash)
	if h == nil && hash != 0 {
		return scheme{}, fmt.Errorf("pkcs11pool: signing over %v digests is not supported: only SHA-256, SHA-384 and SHA-512 are", hash)
	}
	switch pub := pub.(type) {
	case *ecdsa.PublicKey:
		order := orderOf(pub.Curve)
		// FIPS 186-5 §6.4.1: the leftmost bits count. Some tokens refuse more.
		message := digest[:min(len(digest), len(order))]
		return scheme{
			label: "CKM_ECDSA", mechanism: mechECDSA, message: message, size: 2 * len(order), needs: canSign, order: order,
		}, nil
	case ed25519.PublicKey:
		return scheme{
			label: "CKM_EDDSA", mechanism: mechEdDSA, message: digest, size: ed25519SignatureBytes, needs: canSign, deterministic: true,
			verify: func(answer []byte) bool {
				return len(answer) == ed25519SignatureBytes && ed25519.Verify(pub, digest, answer)
			},
		}, nil
	case *rsa.PublicKey:
		if pss, ok := opts.(*rsa.PSSOptions); ok {
			return pssScheme(pub, digest, h, pss)
		}
		return scheme{
			label: "CKM_RSA_PKCS", mechanism: mechRSA, size: pub.Size(), needs: canSign, deterministic: true,
			message: append(bytes.Clone(h.digestInfo), digest...),
			verify:  func(answer []byte) bool { return rsa.VerifyPKCS1v15(pub, hash, digest, answer) == nil },
		}, nil
	}
	return scheme{}, fmt.Errorf("pkcs11pool: a %T can't be signed with", pub)
}

// pssScheme has the salt as long as the hash unless a length is asked for:
// crypto/rsa takes the longest that fits, which FIPS 186-5 §5.4 forbids and
// tokens refuse.
func pssScheme(pub *rsa.PublicKey, digest []byte, h *hashFunc, opts *rsa.PSSOptions) (scheme, error) {
	salt := opts.SaltLength
	if salt == rsa.PSSSaltLengthAuto || salt == rsa.PSSSaltLengthEqualsHash {
		salt = len(digest)
	}
	if most := (pub.N.BitLen()+6)/8 - len(digest) - 2; salt < 1 || salt > most {
		return scheme{}, fmt.Errorf("pkcs11pool: a PSS salt of %d bytes is not possible: 1 to %d are", salt, most)
	}
	check := &rsa.PSSOptions{SaltLength: salt, Hash: opts.Hash}
	return scheme{
		label:     "CKM_RSA_PKCS_PSS",
		mechanism: []*pkcs11.Mechanism{pkcs11.NewMechanism(pkcs11.CKM_RSA_PKCS_PSS, pkcs11.NewPSSParams(h.mechanism, h.mgf, uint(salt)))},
		message:   digest,
		size:      pub.Size(),
		needs:     canSignPSS,
		verify:    func(answer []byte) bool { return rsa.VerifyPSS(pub, opts.Hash, digest, answer, check) == nil },
	}, nil
}

// errWrongSignature says that the device is broken, or under attack: what it
// made is shown to nobody.
var errWrongSignature = fmt.Errorf("%w: a wrong signature", errNonsense)

func orderOf(c elliptic.Curve) []byte {
	switch c {
	case elliptic.P256():
		return orderOfP256
	case elliptic.P384():
		return orderOfP384
	default:
		return orderOfP521
	}
}

// ecdsaDER turns r and s, each as long as the curve's order, into the
// ECDSA-Sig-Value of RFC 3279 §2.2.3.
func ecdsaDER(answer, order []byte) ([]byte, error) {
	n := len(order)
	if len(answer) != 2*n || !isScalar(answer[:n], order) || !isScalar(answer[n:], order) {
		return nil, errWrongSignature
	}
	const head = 3 // octets at most, of the SEQUENCE
	out := make([]byte, head, head+2*(3+n))
	out = appendInteger(appendInteger(out, answer[:n]), answer[n:])
	size := byte(len(out) - head)
	if size < 0x80 {
		out = out[1:]
		out[0], out[1] = 0x30, size
	} else {
		out[0], out[1], out[2] = 0x30, 0x81, size
	}
	return out, nil
}

// isScalar reports whether 0 < b < order; both have the same length.
func isScalar(b, order []byte) bool {
	return bytes.Compare(b, order) < 0 && len(withoutZeros(b)) > 0
}

// withoutZeros is b without those that it begins with.
func withoutZeros(b []byte) []byte {
	for len(b) > 0 && b[0] == 0 {
		b = b[1:]
	}
	return b
}

// appendInteger appends b, which is not 0, as a DER INTEGER of at most 127 bytes.
func appendInteger(out, b []byte) []byte {
	b = withoutZeros(b)
	if b[0] >= 0x80 {
		return append(append(out, 0x02, byte(len(b)+1), 0), b...)
	}
	return append(append(out, 0x02, byte(len(b))), b...)
}

// checkRSA refuses RSA keys that no sane token makes.
func checkRSA(pub *rsa.PublicKey) error {
	switch bits := pub.N.BitLen(); {
	case bits < minRSABits || bits > maxRSABits:
		return fmt.Errorf("an RSA key of %d bits: %d to %d are used", bits, minRSABits, maxRSABits)
	case pub.N.Bit(0) == 0:
		return errors.New("an RSA key with an even modulus")
	case pub.E < 3 || pub.E%2 == 0:
		return fmt.Errorf("an RSA key with the exponent %d", pub.E)
	}
	return nil
}

func rsaPublic(modulus, exponent []byte) (crypto.PublicKey, error) {
	e := new(big.Int).SetBytes(exponent)
	if e.BitLen() > 31 {
		return nil, errors.New("an RSA key with a public exponent of more than 31 bits")
	}
	pub := &rsa.PublicKey{N: new(big.Int).SetBytes(modulus), E: int(e.Int64())}
	if err := checkRSA(pub); err != nil {
		return nil, err
	}
	return pub, nil
}
