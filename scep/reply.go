package scep

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/secsy-pki/secsy-pki/cms"
	"github.com/secsy-pki/secsy-pki/keys"
)

// The pkiStatus values (RFC 8894 §3.2.1.3).
const (
	statusSuccess = "0"
	statusFailure = "2"
	statusPending = "3"
)

// A reply is what is said to a message.
type reply struct {
	status  string
	fail    failInfo // of a failure
	content []byte   // of a success: the pkcsPKIEnvelope
}

func printableValue(s string) [][]byte {
	return values(func(b *cryptobyte.Builder) {
		b.AddASN1(casn1.PrintableString, func(b *cryptobyte.Builder) { b.AddBytes([]byte(s)) })
	})
}

func octetsValue(octets []byte) [][]byte {
	return values(func(b *cryptobyte.Builder) { b.AddASN1OctetString(octets) })
}

// timeValue is a Time as RFC 5652 §11.3 has it.
func timeValue(t time.Time) [][]byte {
	return values(func(b *cryptobyte.Builder) {
		if t.Year() < 2050 {
			b.AddASN1UTCTime(t)
		} else {
			b.AddASN1GeneralizedTime(t)
		}
	})
}

// values is one value of an attribute.
func values(add func(b *cryptobyte.Builder)) [][]byte {
	var b cryptobyte.Builder
	add(&b)
	return [][]byte{b.BytesOrPanic()}
}

// certRep signs the answer to m (RFC 8894 §3.3.2), with a nonce of our own.
func (s *Server) certRep(ctx context.Context, r *registrar, m *message, say reply) ([]byte, error) {
	nonce := make([]byte, 16)
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	attributes := []cms.Attribute{
		{Type: cms.OIDSigningTime, Values: timeValue(s.cfg.Now().UTC())},
		{Type: oidMessageType, Values: printableValue(string(certRep))},
		{Type: oidTransactionID, Values: printableValue(m.transaction)},
		{Type: oidPKIStatus, Values: printableValue(say.status)},
		{Type: oidSenderNonce, Values: octetsValue(nonce)},
		{Type: oidRecipientNonce, Values: octetsValue(m.nonce)},
	}
	if say.status == statusFailure {
		attributes = append(attributes, cms.Attribute{Type: oidFailInfo, Values: printableValue(string(say.fail))})
	}
	der, err := r.signer(ctx, m).Sign(cms.OIDData, say.content, attributes, [][]byte{r.cert.Raw})
	if err != nil {
		return nil, fmt.Errorf("signing a CertRep: %w", err)
	}
	return der, nil
}

func (r *registrar) signer(ctx context.Context, m *message) cms.Signer {
	return cms.Signer{Certificate: r.cert, Key: keys.Signer(ctx, r.key), Hash: m.hash()}
}

// seal wraps what a success brings, for the signer of m alone: by its key, or by
// the challenge that both know, for one whose key can't decrypt (RFC 8894 §3.1).
func seal(m *message, c cms.Cipher, challenge string, certificates, crls [][]byte) ([]byte, error) {
	inner, err := cms.CertsOnly(certificates, crls)
	if err != nil {
		return nil, err
	}
	var to cms.Recipient = cms.TransportTo{Certificate: m.signer}
	if !m.canReceive() {
		to = cms.ByPassword{Password: []byte(challenge)}
	}
	return cms.Seal(cms.OIDData, inner, c, to)
}
