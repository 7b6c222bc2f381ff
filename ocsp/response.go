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
	"slices"
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

	room [1]single // for most
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
	scheme  scheme
	id      []byte       // ResponderID
	certs   []byte       // [0] SEQUENCE OF Certificate, with cert
	checked atomic.Int64 // when a signature was last found right, in Unix nanoseconds; 0: none was since one was wrong
	revoked atomic.Bool  // neither signs any more nor stands behind what it signed
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
	d := &delegate{
		cert: cert, spki: sha256.Sum256(cert.RawSubjectPublicKeyInfo), scheme: s,
	}
	keyHash := sha1.Sum(bits)
	d.id = enclose(enclose(keyHash[:], 0, casn1.OCTET_STRING), 0, explicit(2)) // byKey, RFC 9919 §3.2.1
	d.certs = enclose(enclose(slices.Clone(cert.Raw), 0, casn1.SEQUENCE), 0, explicit(0))
	return d, nil
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

// sign encodes r and has it signed. Whether the signature is right, check says.
func (d *delegate) sign(ctx context.Context, r *response) (tbs, sig []byte, err error) {
	tbs, err = d.responseData(r)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding response: %w", err)
	}
	sig, err = d.key.Sign(ctx, d.scheme.digest(tbs), d.scheme.hash)
	if err != nil {
		return nil, nil, fmt.Errorf("signing response: %w", err)
	}
	return tbs, sig, nil
}

// digest is what a key gets of a message.
func (s scheme) digest(message []byte) []byte {
	switch s.hash {
	case 0:
		return message
	case crypto.SHA256:
		sum := sha256.Sum256(message)
		return sum[:]
	}
	h := s.hash.New()
	h.Write(message)
	return h.Sum(nil)
}

// check proves a signature, as clients will.
func (d *delegate) check(now time.Time, tbs, sig []byte) error {
	if err := d.cert.CheckSignature(d.scheme.algorithm, tbs, sig); err != nil {
		d.checked.Store(0)
		return fmt.Errorf("checking a signature just made: %w", err)
	}
	d.checked.Store(now.UnixNano())
	return nil
}

// spotCheck is how often a signature is checked of those that one client gets,
// who checks it too.
const spotCheck = time.Second

// suspect reports whether a signature is to be checked that is for one client:
// the first, one each spotCheck, and after a wrong one all, until one is right. It
// costs more to check one than to make it.
func (d *delegate) suspect(now time.Time) bool {
	last := d.checked.Load()
	since := now.UnixNano() - last
	return last == 0 || (since < 0 || since >= int64(spotCheck)) && d.checked.CompareAndSwap(last, now.UnixNano())
}

// responseData encodes ResponseData (RFC 6960 §4.2.1).
func (d *delegate) responseData(r *response) ([]byte, error) {
	if !r.datable() {
		return nil, errors.New("a time has no four-digit year")
	}
	b := make([]byte, 0, 192+len(r.nonce)+256*len(r.singles))
	b = append(b, d.id...)
	b = appendTime(b, r.producedAt)
	singles := len(b)
	for _, s := range r.singles {
		b = appendSingle(b, s, r.archiveCutoff)
	}
	b = enclose(b, singles, casn1.SEQUENCE)
	if extensions := len(b); r.nonce != nil || r.extendedRevoke {
		b = appendResponseExtensions(b, r)
		b = enclose(b, extensions, casn1.SEQUENCE)
		b = enclose(b, extensions, explicit(1))
	}
	return enclose(b, 0, casn1.SEQUENCE), nil
}

// datable reports whether GeneralizedTime can tell all times of r.
func (r *response) datable() bool {
	for _, s := range r.singles {
		if !datable(s.thisUpdate) || !datable(s.nextUpdate) || !datable(s.status.RevokedAt) {
			return false
		}
	}
	return datable(r.producedAt) && datable(r.archiveCutoff)
}

func datable(t time.Time) bool {
	year := t.UTC().Year()
	return year >= 0 && year <= 9999
}

func appendSingle(b []byte, s single, archiveCutoff time.Time) []byte {
	start := len(b)
	b = append(b, s.certID...)
	status := len(b)
	if s.status.revoked() {
		b = enclose(appendRevokedInfo(b, s), status, explicit(1))
	} else {
		b = enclose(b, status, casn1.Tag(0).ContextSpecific())
	}
	b = appendTime(b, s.thisUpdate)
	next := len(b)
	b = enclose(appendTime(b, s.nextUpdate), next, explicit(0))
	if extensions := len(b); !archiveCutoff.IsZero() && !s.status.unissued {
		b = appendExtension(b, archiveCutoffDER, func(b []byte) []byte { return appendTime(b, archiveCutoff) })
		b = enclose(b, extensions, casn1.SEQUENCE)
		b = enclose(b, extensions, explicit(1))
	}
	return enclose(b, start, casn1.SEQUENCE)
}

func appendRevokedInfo(b []byte, s single) []byte {
	at := s.status.RevokedAt
	if at.IsZero() { // abandoned, and the hour is not known
		at = s.thisUpdate
	}
	b = appendTime(b, at)
	if reason := len(b); s.status.Reason != 0 { // unspecified is said by silence
		b = append(b, byte(casn1.ENUM), 1, byte(s.status.Reason))
		b = enclose(b, reason, explicit(0))
	}
	return b
}

func appendResponseExtensions(b []byte, r *response) []byte {
	if r.nonce != nil {
		b = appendExtension(b, nonceDER, func(b []byte) []byte { return append(appendHeader(b, casn1.OCTET_STRING, len(r.nonce)), r.nonce...) })
	}
	if r.extendedRevoke {
		b = appendExtension(b, extendedRevokeDER, func(b []byte) []byte { return append(b, byte(casn1.NULL), 0) })
	}
	return b
}

// appendExtension never marks one critical: there are clients that abort at any
// critical extension in a response.
func appendExtension(b, oid []byte, value func([]byte) []byte) []byte {
	start := len(b)
	b = append(b, oid...)
	contents := len(b)
	b = enclose(value(b), contents, casn1.OCTET_STRING)
	return enclose(b, start, casn1.SEQUENCE)
}

// envelope puts data, signature and the delegate's certificate into an
// OCSPResponse. No other certificate goes along: clients take any that is
// there for a delegate's.
func (d *delegate) envelope(tbs, sig []byte) []byte {
	b := make([]byte, 0, 64+len(tbs)+len(d.scheme.der)+len(sig)+len(d.certs))
	b = append(b, byte(casn1.ENUM), 1, 0) // successful
	bytes := len(b)
	b = append(b, basicDER...)
	basic := len(b)
	b = append(b, tbs...)
	b = append(b, d.scheme.der...)
	signature := len(b)
	b = append(b, 0) // no bit of the last octet is unused
	b = enclose(append(b, sig...), signature, casn1.BIT_STRING)
	b = append(b, d.certs...)
	b = enclose(b, basic, casn1.SEQUENCE)
	b = enclose(b, basic, casn1.OCTET_STRING)
	b = enclose(b, bytes, casn1.SEQUENCE)
	b = enclose(b, bytes, explicit(0))
	return enclose(b, 0, casn1.SEQUENCE)
}

var (
	basicDER          = objectIdentifier(oidBasic)
	nonceDER          = objectIdentifier(oidNonce)
	archiveCutoffDER  = objectIdentifier(oidArchiveCutoff)
	extendedRevokeDER = objectIdentifier(oidExtendedRevoke)
)

func objectIdentifier(oid asn1.ObjectIdentifier) []byte {
	var b cryptobyte.Builder
	b.AddASN1ObjectIdentifier(oid)
	return b.BytesOrPanic()
}

// enclose makes what is in b from start on the contents of an element. Moving it
// costs less than knowing before how long it will be.
func enclose(b []byte, start int, tag casn1.Tag) []byte {
	var header [5]byte
	return slices.Insert(b, start, appendHeader(header[:0], tag, len(b)-start)...)
}

// appendHeader writes tag and length of contents of n octets, below 16 MiB.
func appendHeader(b []byte, tag casn1.Tag, n int) []byte {
	switch b = append(b, byte(tag)); {
	case n < 1<<7:
		return append(b, byte(n))
	case n < 1<<8:
		return append(b, 0x81, byte(n))
	case n < 1<<16:
		return append(b, 0x82, byte(n>>8), byte(n))
	}
	return append(b, 0x83, byte(n>>16), byte(n>>8), byte(n))
}

// appendTime writes a GeneralizedTime, for a quarter of what a layout costs.
func appendTime(b []byte, t time.Time) []byte {
	year, month, day := t.UTC().Date()
	hour, minute, second := t.UTC().Clock()
	b = append(b, byte(casn1.GeneralizedTime), 15)
	for _, n := range [...]int{year / 100, year % 100, int(month), day, hour, minute, second} {
		b = append(b, '0'+byte(n/10), '0'+byte(n%10))
	}
	return append(b, 'Z')
}
