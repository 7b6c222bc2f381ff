package store

import (
	"context"
	"fmt"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/crl"
)

var _ crl.Shards = (*CRL)(nil)

// Shards lists the shards of an issuer by their numbers.
func (c *CRL) Shards(ctx context.Context, issuer ca.IssuerID) ([]crl.Shard, error) {
	var out []crl.Shard
	err := c.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		out = nil
		rows, err := tx.Query(ctx, `SELECT s.shard, s.url, s.needed_until FROM crl_shards s WHERE s.issuer = $1 ORDER BY s.shard`, string(issuer))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var (
				s         crl.Shard
				id, until int64
			)
			if err := rows.Scan(&id, &s.URL, &until); err != nil {
				return err
			}
			s.ID, s.NeededUntil = int(id), fromMicros(until)
			out = append(out, s)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("listing CRL shards: %w", err)
	}
	return out, nil
}

// NeedShards makes shards be there, and stay until then.
func (c *CRL) NeedShards(ctx context.Context, issuer ca.IssuerID, list []ca.CRLShard, until time.Time) error {
	return c.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		for _, s := range list {
			n, err := tx.Exec(ctx, `INSERT INTO crl_shards (issuer, shard, url, needed_until) VALUES ($1, $2, $3, $4)
				ON CONFLICT (issuer, shard) DO UPDATE SET
					needed_until = CASE WHEN crl_shards.needed_until < excluded.needed_until THEN excluded.needed_until ELSE crl_shards.needed_until END
				WHERE crl_shards.url = excluded.url`, string(issuer), int64(s.ID), s.URL, micros(until))
			if err != nil {
				return fmt.Errorf("keeping CRL shard %d: %w", s.ID, err)
			}
			if n == 0 {
				return crl.ErrShardTaken
			}
		}
		return nil
	})
}
