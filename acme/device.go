package acme

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"slices"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

// Devices keeps what devices say of themselves, until it was judged.
type Devices interface {
	// AnswerChallenge is StartChallenge of a challenge that is proven by what the
	// client answers.
	AnswerChallenge(ctx context.Context, id string, t ChallengeType, answer []byte, lease, now time.Time) error
}

// beginChallenge notes that the client is ready. Only the answers that prove
// something are kept.
func (s *Server) beginChallenge(ctx context.Context, id string, t ChallengeType, answer []byte, lease, now time.Time) error {
	if provenByAnswer(t) {
		return s.store.AnswerChallenge(ctx, id, t, answer, lease, now)
	}
	return s.store.StartChallenge(ctx, id, t, lease, now)
}

func provenByAnswer(t ChallengeType) bool { return t == DeviceAttest01 || t == OnionCSR01 }

// checkAttestedKey says whether pub is the key that the order's devices proved
// to hold (draft-ietf-acme-device-attest): what else were the attestation worth?
func (s *Server) checkAttestedKey(ctx context.Context, o Order, pub crypto.PublicKey) error {
	if !slices.ContainsFunc(o.Identifiers, func(id ca.Identifier) bool { return id.Type.IsDevice() }) {
		return nil
	}
	spki, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return &Problem{Type: BadCSR, Detail: "the CSR's key is of a kind not known here", Err: err}
	}
	sum := sha256.Sum256(spki)
	key := hex.EncodeToString(sum[:])
	proven, err := s.store.AuthorizationsIn(ctx, o.AuthzIDs)
	if err != nil {
		return err
	}
	for _, a := range proven {
		if a.Identifier.Type.IsDevice() && a.AttestedKey != key {
			p := aboutName(Problem{Type: BadCSR, Detail: "the CSR's key is not the one that was attested"}, a.name())
			return &p
		}
	}
	return nil
}
