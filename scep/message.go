package scep

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/secsy-pki/secsy-pki/cms"
)

const (
	// maxSignerCert bounds the certificate of who signed a message.
	maxSignerCert = 8 << 10
	// maxTransaction bounds a transactionID.
	maxTransaction = 128
	// maxNonce bounds a senderNonce, which has 16 octets.
	maxNonce = 64
	// leastRSA is the least modulus of who signs.
	leastRSA = 2048
	mostRSA  = 8192
)

// The attributes of RFC 8894 §3.2.1.
var (
	oidMessageType    = asn1.ObjectIdentifier{2, 16, 840, 1, 113733, 1, 9, 2}
	oidPKIStatus      = asn1.ObjectIdentifier{2, 16, 840, 1, 113733, 1, 9, 3}
	oidFailInfo       = asn1.ObjectIdentifier{2, 16, 840, 1, 113733, 1, 9, 4}
	oidSenderNonce    = asn1.ObjectIdentifier{2, 16, 840, 1, 113733, 1, 9, 5}
	oidRecipientNonce = asn1.ObjectIdentifier{2, 16, 840, 1, 113733, 1, 9, 6}
	oidTransactionID  = asn1.ObjectIdentifier{2, 16, 840, 1, 113733, 1, 9, 7}
)

// A messageType is one that is answered (RFC 8894 §3.2.1.2).
type messageType string

const (
	certRep    messageType = "3"
	renewalReq messageType = "17"
	pkcsReq    messageType = "19"
	certPoll   messageType = "20"
	getCert    messageType = "21"
	getCRL     messageType = "22"
)

// word is the type in metrics and logs.
func (m messageType) word() string {
	switch m {
	case renewalReq:
		return "renewal_req"
	case pkcsReq:
		return "pkcs_req"
	case certPoll:
		return "cert_poll"
	case getCert:
		return "get_cert"
	case getCRL:
		return "get_crl"
	}
	return "other"
}

// A failInfo is why not (RFC 8894 §3.2.1.4.1). As an error it is answered with a
// CertRep.
type failInfo string

const (
	badAlg          failInfo = "0"
	badMessageCheck failInfo = "1"
	badRequest      failInfo = "2"
	badCertID       failInfo = "4"
)

func (f failInfo) Error() string { return "scep: " + f.word() }

func (f failInfo) word() string {
	switch f {
	case badAlg:
		return "bad_alg"
	case badMessageCheck:
		return "bad_message_check"
	case badCertID:
		return "bad_cert_id"
	}
	return "bad_request"
}

// A message is a pkiMessage that can be answered: of its attributes all is known,
// of its signature and of what is inside nothing yet.
type message struct {
	signed      *cms.SignedData
	info        *cms.SignerInfo
	signer      *x509.Certificate // as it says of itself
	kind        messageType
	transaction string
	nonce       []byte
}

// errMessage is the error of bytes to which there is no answer but HTTP's own.
var errMessage = errors.New("scep: no pkiMessage")

func notMessage(err error) error { return fmt.Errorf("%w: %w", errMessage, err) }

// parseMessage reads a pkiMessage (RFC 8894 §3.2).
func parseMessage(ber []byte) (*message, error) {
	sd, err := cms.ParseSignedData(ber)
	if err != nil {
		return nil, notMessage(err)
	}
	if len(sd.Signers) != 1 {
		return nil, notMessage(errors.New("not one signer"))
	}
	m := &message{signed: sd, info: sd.Signers[0]}
	if m.signer, err = m.info.Certificate(maxSignerCert); err != nil {
		return nil, notMessage(err)
	}
	kind, err := m.text(oidMessageType)
	if err != nil {
		return nil, err
	}
	m.kind = messageType(kind)
	if m.transaction, err = m.text(oidTransactionID); err != nil {
		return nil, err
	}
	nonce, err := m.value(oidSenderNonce)
	if err != nil {
		return nil, err
	}
	var octets cryptobyte.String
	if !nonce.ReadASN1(&octets, casn1.OCTET_STRING) || !nonce.Empty() || len(octets) == 0 || len(octets) > maxNonce {
		return nil, notMessage(errors.New("senderNonce"))
	}
	m.nonce = octets
	return m, nil
}

func (m *message) value(oid asn1.ObjectIdentifier) (cryptobyte.String, error) {
	v, err := m.info.Attribute(oid)
	if err != nil {
		return nil, notMessage(err)
	}
	if v == nil {
		return nil, notMessage(fmt.Errorf("attribute %v is not there", oid))
	}
	return v, nil
}

// text reads an attribute that is a PrintableString.
func (m *message) text(oid asn1.ObjectIdentifier) (string, error) {
	v, err := m.value(oid)
	if err != nil {
		return "", err
	}
	var s cryptobyte.String
	if !v.ReadASN1(&s, casn1.PrintableString) || !v.Empty() || len(s) == 0 || len(s) > maxTransaction || !printable(s) {
		return "", notMessage(fmt.Errorf("attribute %v is no PrintableString that is neither empty nor too long", oid))
	}
	return string(s), nil
}

// printable is more generous than PrintableString is, as clients are: any character
// of ASCII that can be seen, and the space.
func printable(s []byte) bool {
	for _, b := range s {
		if b < ' ' || b > '~' {
			return false
		}
	}
	return true
}

// verify checks that the key of the certificate signed, and that it is one worth
// the work.
func (m *message) verify(sha1 bool) error {
	switch pub := m.signer.PublicKey.(type) {
	case *rsa.PublicKey:
		if n := pub.N.BitLen(); n < leastRSA || n > mostRSA {
			return fmt.Errorf("%w: signed by RSA of %d bits", badAlg, n)
		}
	case *ecdsa.PublicKey:
	default:
		return fmt.Errorf("%w: signed by %T", badAlg, pub)
	}
	switch err := m.info.Verify(m.signer.PublicKey, sha1); {
	case errors.Is(err, cms.ErrAlgorithm):
		return fmt.Errorf("%w: %w", badAlg, err)
	case err != nil:
		return fmt.Errorf("%w: %w", badMessageCheck, err)
	}
	return nil
}

// canReceive reports whether what is sealed for the signer's key can be opened by
// it: RSA alone can.
func (m *message) canReceive() bool {
	_, ok := m.signer.PublicKey.(*rsa.PublicKey)
	return ok
}

// hash is what the reply is signed with: what the message was signed with.
func (m *message) hash() crypto.Hash {
	if m.info.Digest == 0 {
		return crypto.SHA256
	}
	return m.info.Digest
}

func spkiHash(cert *x509.Certificate) [32]byte { return sha256.Sum256(cert.RawSubjectPublicKeyInfo) }
