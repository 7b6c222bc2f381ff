package store

import (
	"context"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
)

// CreateAuthorization stores an authorization that no order asks for yet. Two at
// the same instant may both see the last free place.
func (s *ACME) CreateAuthorization(ctx context.Context, a acme.Authorization, limit int) error {
	return s.write(ctx, "creating authorization", func(ctx context.Context, tx Tx) error {
		n, err := tx.Exec(ctx, `INSERT INTO acme_authzs (id, account_id, order_id, type, name, wildcard, status, token, offered, created_at, expires, purge_at,
				directory, profile, subdomains)
			SELECT $1, $2, '', $3, $4, 0, 'pending', $5, $6, $7, $8, $9, $10, $11, $12
			WHERE (SELECT COUNT(*) FROM (SELECT 1 FROM acme_authzs
				WHERE account_id = $2 AND status = 'pending' AND order_id = '' AND expires > $7 LIMIT $13) ahead) < $13`,
			a.ID, a.AccountID, string(a.Identifier.Type), a.Identifier.Value, a.Token, asJSON(a.Offered),
			micros(a.CreatedAt), micros(a.Expires), micros(a.PurgeAt), a.Directory, a.Profile, flag(a.Subdomains), int64(limit))
		if err != nil {
			return err
		}
		if n == 0 {
			return acme.ErrTooManyOpen
		}
		return nil
	})
}

const pendingAhead = `SELECT ` + authzColumns + ` FROM acme_authzs z
	WHERE z.account_id = $1 AND z.status = 'pending' AND z.order_id = '' AND z.expires > $2 ORDER BY z.expires DESC, z.id LIMIT $3`

// PendingAuthorizations lists what an account asked for ahead of orders.
func (s *ACME) PendingAuthorizations(ctx context.Context, accountID string, until time.Time, limit int) ([]acme.Authorization, error) {
	return many(ctx, s.db, "listing pending authorizations", scanAuthz, pendingAhead, accountID, micros(until), int64(limit))
}
