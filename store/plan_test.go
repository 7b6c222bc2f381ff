package store_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/crl"
	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/storetest"
)

// The questions that are asked all the time read no more than what is under
// way, however many orders, authorizations and certificates there are.
func TestWhatIsUnderWayIsFoundByItsIndex(t *testing.T) {
	t.Parallel()
	for name, engine := range map[string]struct {
		open    func(*testing.T) *store.DB
		explain string
		whole   string // what a plan says that reads all of a table
	}{
		"sqlite":   {storetest.SQLite, "EXPLAIN QUERY PLAN ", "SCAN "},
		"postgres": {storetest.Postgres, "EXPLAIN ", "Seq Scan on "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := engine.open(t)
			fill(t, db)
			type asked struct {
				question, index string
				tables          []string // that must not be read as a whole
				args            []any
			}
			listed := func(index string, s crl.Selection) asked {
				q, args := store.Listed(s)
				return asked{q, index, []string{"c", "certificates"}, args}
			}
			all, shard := crl.Scope{Issuer: "many"}, crl.Scope{Issuer: "many", Shard: 3}
			for _, q := range []asked{
				listed("certificates_revoked", crl.Selection{Series: crl.Series{Scope: all}}),
				listed("certificates_revoked_shard", crl.Selection{Series: crl.Series{Scope: shard}}),
				listed("certificates_changed", crl.Selection{Series: crl.Series{Scope: all, Delta: true}, Since: 7990}),
				listed("certificates_changed", crl.Selection{Series: crl.Series{Scope: shard, Delta: true}, Since: 7990}),
				{store.ShardChanged, "certificates_changed", []string{"c", "certificates"}, []any{"many", int64(7990), int64(3)}},
				{store.DueOrders, "acme_orders_", []string{"o", "p", "acme_orders"}, []any{int64(1), int64(1 << 50), "", int64(5), ""}},
				{store.DueValidations, "acme_authzs_", []string{"z", "p", "acme_authzs"}, []any{int64(1 << 50), "", int64(5), ""}},
				{store.Processing, "acme_orders_", []string{"o", "acme_orders"}, nil},
				{store.Backlog, "acme_orders_", []string{"o", "acme_orders"}, []any{int64(10)}},
				{store.SameOrder, "acme_orders_", []string{"o", "acme_orders"}, []any{"account3", "wish7", int64(1)}},
				{store.Reusable, "acme_authzs_valid", []string{"v", "z", "acme_authzs"}, []any{"account3", "", "", int64(1), int64(0), "http-01", "name7"}},
				{store.PendingAhead, "acme_authzs_ahead", []string{"z", "acme_authzs"}, []any{"account3", int64(1), int64(5)}},
				{store.ListOrders, "acme_orders_account", []string{"o", "acme_orders"}, []any{"account3", "", int64(5)}},
				{store.AheadDue, "ocsp_ahead_due", []string{"a", "ocsp_ahead"}, []any{int64(1), int64(100), int64(200)}},
				{store.AheadAssigned, "certificates_created", []string{"c", "certificates"}, []any{int64(1), int64(0), "serial1", int64(200)}},
				{store.CertificateHeld, "certificates_held", []string{"c", "certificates"}, []any{"account3", "hash7", int64(1)}},
			} {
				plan := planOf(t, db, engine.explain+q.question, q.args...)
				if !strings.Contains(plan, q.index) {
					t.Errorf("no index of %s:\n%s", q.index, plan)
				}
				for line := range strings.Lines(plan) {
					for _, table := range q.tables {
						if strings.Contains(line, engine.whole+table+" ") && !strings.Contains(line, "INDEX "+q.index) || strings.Contains(line, engine.whole+table+"\n") {
							t.Errorf("%s is read as a whole:\n%s", table, plan)
						}
					}
				}
			}
		})
	}
}

// fill makes some thousand rows, of which few are under way.
func fill(t *testing.T, db *store.DB) {
	t.Helper()
	const numbers = `WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 8000) `
	for _, q := range []string{
		`INSERT INTO acme_orders (id, account_id, status, profile, identifiers, authz_ids, open_authzs, not_before, not_after, created_at, expires, sweep_at, due_at)
		` + numbers + `SELECT 'order' || i, 'account' || (i % 10), CASE WHEN i % 100 = 0 THEN 'processing' ELSE 'valid' END, 'p', '[]', '[]', 0, 0, 0, 0, 0, 0, i FROM n`,
		`INSERT INTO acme_authzs (id, account_id, order_id, type, name, wildcard, status, token, offered, created_at, expires, purge_at, lease_until)
		` + numbers + `SELECT 'authz' || i, 'account' || (i % 10), 'o', 'dns', 'a', 0, 'pending', 't', '[]', 0, 0, 0, CASE WHEN i % 100 = 0 THEN i ELSE 0 END FROM n`,
		`INSERT INTO acme_orders (id, account_id, status, profile, identifiers, authz_ids, open_authzs, not_before, not_after, created_at, expires, sweep_at, set_hash)
		` + numbers + `SELECT 'open' || i, 'account' || (i % 10), 'pending', 'p', '[]', '[]', 0, 0, 0, 0, i, i, 'wish' || i FROM n`,
		`INSERT INTO acme_authzs (id, account_id, order_id, type, name, wildcard, status, token, offered, created_at, expires, purge_at)
		` + numbers + `SELECT 'valid' || i, 'account' || (i % 10), 'o', 'dns', 'name' || i, 0, 'valid', 't', '[]', 0, i, 0 FROM n`,
		`INSERT INTO certificates (serial, id, issuer, profile, state, spki_hash, names, requester, not_before, not_after, created_at, lease_until, names_hash)
		` + numbers + `SELECT 'serial' || i, 'id' || i, 'i', 'p', 'issued', '', '[]', 'account' || (i % 10), 0, i, 0, 0, 'hash' || i FROM n`,
		`INSERT INTO ocsp_ahead (serial, hash, responder, status_seq, produced_at, this_update, next_update, refresh_at, signature)
		` + numbers + `SELECT 'serial' || i, 1, 'serial0', 0, 0, 0, 0, i, '' FROM n`,
		`INSERT INTO certificates (serial, id, issuer, profile, state, spki_hash, names, requester, not_before, not_after, created_at, lease_until, crl_shard, revoked_at, revocation_seq)
		` + numbers + `SELECT 'many' || i, 'many' || i, CASE WHEN i % 10 = 0 THEN 'many' ELSE 'others' END, 'p', 'issued', '', '[]', '', 0, i, 0, 0, i % 16, i % 2, i * (i % 2) FROM n`,
		`ANALYZE`,
	} {
		err := db.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
			_, err := tx.Exec(ctx, q)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func planOf(t *testing.T, db *store.DB, q string, args ...any) (plan string) {
	t.Helper()
	err := db.Read(t.Context(), func(ctx context.Context, tx store.Tx) error {
		plan = ""
		rows, err := tx.Query(ctx, q, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var a, b, c int64
			var line string
			// PostgreSQL has the line alone, SQLite three numbers before it.
			if err := rows.Scan(&line); err != nil {
				if err := rows.Scan(&a, &b, &c, &line); err != nil {
					return fmt.Errorf("reading plan: %w", err)
				}
			}
			plan += line + "\n"
		}
		return rows.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	return plan
}
