package ocsp

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha1" // RFC 6960 §4.2.1: KeyHash is SHA-1, a name and not a proof
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/secsy-pki/secsy-pki/keys"
)

// A response is what a BasicOCSPResponse says before it is signed. Times are
// whole seconds.
type response struct {
	producedAt time.Time
	singles    []single
	nonce      []byte // nil: none

	extendedRevoke bool      // one is revoked that was never issued
	archiveCutoff  time.Time // zero: nothing is said about expired certificates
}

// A single is the answer about one certificate.
type single struct {
	certID     []byte // DER, as the request had it
	status     Status
	thisUpdate time.Time
	nextUpdate time.Time
}

// A delegate is a key and the certificate that lets it sign for one issuer.
type delegate struct {
	cert    *x509.Certificate
	key     keys.Key          // nil: signs nothing any more
	spki    [sha256.Size]byte // of the SubjectPublicKeyInfo
	keyHash [sha1.Size]byte
	scheme  scheme
	revoked atomic.Bool // neither signs any more nor stands behind what it signed
}

// A scheme is how a key signs.
type scheme struct {
	algorithm x509.SignatureAlgorithm
	hash      crypto.Hash // 0: the key gets the whole message
	der       []byte      // AlgorithmIdentifier
}

func newDelegate(cert *x509.Certificate) (*delegate, error) {
	s, err := schemeOf(cert.PublicKey)
	if err != nil {
		return nil, err
	}
	bits, err := publicKeyBits(cert.RawSubjectPublicKeyInfo)
	if err != nil {
		return nil, err
	}
	return &delegate{cert: cert, spki: sha256.Sum256(cert.RawSubjectPublicKeyInfo), keyHash: sha1.Sum(bits), scheme: s}, nil
}

func schemeOf(pub crypto.PublicKey) (scheme, error) {
	switch pub := pub.(type) {
	case *ecdsa.PublicKey:
		switch pub.Curve {
		case elliptic.P256():
			return newScheme(x509.ECDSAWithSHA256, crypto.SHA256, asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}, false), nil
		case elliptic.P384():
			return newScheme(x509.ECDSAWithSHA384, crypto.SHA384, asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 3}, false), nil
		case elliptic.P521():
			return newScheme(x509.ECDSAWithSHA512, crypto.SHA512, asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 4}, false), nil
		}
	case *rsa.PublicKey:
		return newScheme(x509.SHA256WithRSA, crypto.SHA256, asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}, true), nil
	case ed25519.PublicKey:
		return newScheme(x509.PureEd25519, 0, asn1.ObjectIdentifier{1, 3, 101, 112}, false), nil
	}
	return scheme{}, fmt.Errorf("ocsp: cannot sign with a %T of this size", pub)
}

func newScheme(alg x509.SignatureAlgorithm, h crypto.Hash, oid asn1.ObjectIdentifier, null bool) scheme {
	var b cryptobyte.Builder
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1ObjectIdentifier(oid)
		if null { // RFC 4055 §5: RSA's parameters are NULL, RFC 5758 and 8410: the others' absent
			b.AddASN1NULL()
		}
	})
	return scheme{algorithm: alg, hash: h, der: b.BytesOrPanic()}
}

// publicKeyBits returns the subjectPublicKey of a SubjectPublicKeyInfo, which is
// what key hashes are made over (RFC 6960 §4.1.1): without tag, length and
// count of unused bits.
func publicKeyBits(spki []byte) ([]byte, error) {
	in := cryptobyte.String(spki)
	var seq cryptobyte.String
	var bits []byte
	if !in.ReadASN1(&seq, casn1.SEQUENCE) || !seq.SkipASN1(casn1.SEQUENCE) || !seq.ReadASN1BitStringAsBytes(&bits) {
		return nil, errors.New("ocsp: malformed SubjectPublicKeyInfo")
	}
	return bits, nil
}

// sign encodes r, has it signed and proves the signature before anybody sees it.
func (d *delegate) sign(ctx context.Context, r *response) (tbs, sig []byte, err error) {
	tbs, err = d.responseData(r)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding response: %w", err)
	}
	signed := tbs
	if d.scheme.hash != 0 {
		h := d.scheme.hash.New()
		h.Write(tbs)
		signed = h.Sum(nil)
	}
	sig, err = d.key.Sign(ctx, signed, d.scheme.hash)
	if err != nil {
		return nil, nil, fmt.Errorf("signing response: %w", err)
	}
	if err := d.cert.CheckSignature(d.scheme.algorithm, tbs, sig); err != nil {
		return nil, nil, fmt.Errorf("checking a signature just made: %w", err)
	}
	return tbs, sig, nil
}

// responseData encodes ResponseData (RFC 6960 §4.2.1).
func (d *delegate) responseData(r *response) ([]byte, error) {
	var b cryptobyte.Builder
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1(explicit(2), func(b *cryptobyte.Builder) { // byKey, RFC 9919 §3.2.1
			b.AddASN1OctetString(d.keyHash[:])
		})
		b.AddASN1GeneralizedTime(r.producedAt.UTC())
		b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
			for _, s := range r.singles {
				addSingle(b, s, r.archiveCutoff)
			}
		})
		if r.nonce != nil || r.extendedRevoke {
			b.AddASN1(explicit(1), func(b *cryptobyte.Builder) {
				b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) { addResponseExtensions(b, r) })
			})
		}
	})
	return b.Bytes()
}

func addSingle(b *cryptobyte.Builder, s single, archiveCutoff time.Time) {
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddBytes(s.certID)
		if s.status.revoked() {
			b.AddASN1(explicit(1), func(b *cryptobyte.Builder) { addRevokedInfo(b, s) })
		} else {
			b.AddASN1(casn1.Tag(0).ContextSpecific(), func(*cryptobyte.Builder) {})
		}
		b.AddASN1GeneralizedTime(s.thisUpdate.UTC())
		b.AddASN1(explicit(0), func(b *cryptobyte.Builder) { b.AddASN1GeneralizedTime(s.nextUpdate.UTC()) })
		if !archiveCutoff.IsZero() && !s.status.unissued {
			b.AddASN1(explicit(1), func(b *cryptobyte.Builder) {
				b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
					addExtension(b, oidArchiveCutoff, func(b *cryptobyte.Builder) { b.AddASN1GeneralizedTime(archiveCutoff.UTC()) })
				})
			})
		}
	})
}

func addRevokedInfo(b *cryptobyte.Builder, s single) {
	at := s.status.RevokedAt
	if at.IsZero() { // abandoned, and the hour is not known
		at = s.thisUpdate
	}
	b.AddASN1GeneralizedTime(at.UTC().Truncate(time.Second))
	if s.status.Reason != 0 { // unspecified is said by silence
		b.AddASN1(explicit(0), func(b *cryptobyte.Builder) { b.AddASN1Enum(int64(s.status.Reason)) })
	}
}

func addResponseExtensions(b *cryptobyte.Builder, r *response) {
	if r.nonce != nil {
		addNonce(b, r.nonce)
	}
	if r.extendedRevoke {
		addExtension(b, oidExtendedRevoke, func(b *cryptobyte.Builder) { b.AddASN1NULL() })
	}
}

func addNonce(b *cryptobyte.Builder, nonce []byte) {
	addExtension(b, oidNonce, func(b *cryptobyte.Builder) { b.AddASN1OctetString(nonce) })
}

// addExtension never marks one critical: there are clients that abort at any
// critical extension in a response.
func addExtension(b *cryptobyte.Builder, oid asn1.ObjectIdentifier, value cryptobyte.BuilderContinuation) {
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1ObjectIdentifier(oid)
		b.AddASN1(casn1.OCTET_STRING, value)
	})
}

// envelope puts data, signature and the delegate's certificate into an
// OCSPResponse. No other certificate goes along: clients take any that is
// there for a delegate's.
func (d *delegate) envelope(tbs, sig []byte) ([]byte, error) {
	var b cryptobyte.Builder
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1Enum(0) // successful
		b.AddASN1(explicit(0), func(b *cryptobyte.Builder) {
			b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
				b.AddASN1ObjectIdentifier(oidBasic)
				b.AddASN1(casn1.OCTET_STRING, func(b *cryptobyte.Builder) {
					b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
						b.AddBytes(tbs)
						b.AddBytes(d.scheme.der)
						b.AddASN1BitString(sig)
						b.AddASN1(explicit(0), func(b *cryptobyte.Builder) {
							b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) { b.AddBytes(d.cert.Raw) })
						})
					})
				})
			})
		})
	})
	return b.Bytes()
}
