package store

import (
	"context"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/audit"
)

// AuthorizationsIn returns the authorizations of those ids.
func (s *ACME) AuthorizationsIn(ctx context.Context, ids []string) ([]acme.Authorization, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	return many(ctx, s.db, "reading authorizations", scanAuthz,
		`SELECT `+authzColumns+` FROM acme_authzs z WHERE z.id IN (`+places(1, len(ids))+`)`, anys(ids)...)
}

// NoteCAA writes when CAA records allowed certificates. A later check stays.
func (s *ACME) NoteCAA(ctx context.Context, ids []string, at time.Time, es []audit.Entry) error {
	return s.write(ctx, "noting CAA checks", func(ctx context.Context, tx Tx) error {
		if len(ids) > 0 {
			_, err := tx.Exec(ctx, `UPDATE acme_authzs SET caa_at = $1 WHERE caa_at < $1 AND id IN (`+places(2, len(ids))+`)`,
				append([]any{micros(at)}, anys(ids)...)...)
			if err != nil {
				return err
			}
		}
		for _, e := range es {
			if err := appendAudit(ctx, tx, e); err != nil {
				return err
			}
		}
		return nil
	})
}
