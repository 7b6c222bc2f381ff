package store

import (
	"context"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
)

// AnswerChallenge chooses the challenge of a pending authorization, and keeps
// what the client answered.
func (s *ACME) AnswerChallenge(ctx context.Context, id string, t acme.ChallengeType, answer []byte, lease, now time.Time) error {
	return s.write(ctx, "answering challenge", func(ctx context.Context, tx Tx) error {
		return move(ctx, tx, nil, `UPDATE acme_authzs SET challenge = $1, answer = $2, lease_until = $3
			WHERE id = $4 AND status = 'pending' AND challenge = '' AND expires > $5`, string(t), answer, micros(lease), id, micros(now))
	})
}
