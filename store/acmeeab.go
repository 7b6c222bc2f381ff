package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/secsy-pki/secsy-pki/acme"
)

// scopeJSON is "" for a scope that bounds nothing.
func scopeJSON(c acme.Scope) string {
	if c.Empty() {
		return ""
	}
	return asJSON(c)
}

func readScope(s string) (c acme.Scope, err error) {
	if s != "" {
		err = json.Unmarshal([]byte(s), &c)
	}
	return c, err
}

// BindingKey returns the key of an external account.
func (s *ACME) BindingKey(ctx context.Context, kid string) (acme.BindingKey, error) {
	var (
		k                           acme.BindingKey
		scope                       string
		expires, most, uses, revoke int64
	)
	err := s.one(ctx, "reading the key of an external account", func(r Row) error {
		return r.Scan(&k.KID, &k.MAC, &scope, &expires, &most, &uses, &revoke)
	}, `SELECT b.kid, b.mac_key, b.scope, b.expires, b.max_uses, b.uses, b.revoked_at
		FROM acme_eab_keys b WHERE b.kid = $1 AND b.directory = $2`, kid, s.directory)
	if err != nil {
		return acme.BindingKey{}, err
	}
	k.Expires, k.RevokedAt, k.MaxUses, k.Uses = fromMicros(expires), fromMicros(revoke), int(most), int(uses)
	if k.Scope, err = readScope(scope); err != nil {
		return acme.BindingKey{}, fmt.Errorf("decoding scope of key %s: %w", kid, err)
	}
	return k, nil
}

// useBindingKey uses the key that a new account is bound by. Of several that
// want the last use at once, the row lets one have it. What can bind nobody any
// more is not kept.
func (s *ACME) useBindingKey(ctx context.Context, tx Tx, a acme.Account) error {
	if a.EAB == "" {
		return nil
	}
	n, err := tx.Exec(ctx, `UPDATE acme_eab_keys SET uses = uses + 1, last_used_at = $1,
			mac_key = CASE WHEN max_uses > 0 AND uses + 1 >= max_uses THEN $2 ELSE mac_key END
		WHERE kid = $3 AND directory = $4 AND revoked_at = 0 AND (expires = 0 OR expires > $1) AND (max_uses = 0 OR uses < max_uses)`,
		micros(a.CreatedAt), []byte{}, a.EAB, s.directory)
	if err != nil {
		return err
	}
	if n == 0 {
		return acme.ErrBindingSpent
	}
	return nil
}
