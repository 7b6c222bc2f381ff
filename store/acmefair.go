package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
)

// namesHash is the same for the same set of names, however they are written,
// ordered or repeated.
func namesHash(names []ca.Identifier) string {
	names = ca.NormalizeIdentifiers(names)
	slices.SortFunc(names, func(a, b ca.Identifier) int {
		if c := strings.Compare(string(a.Type), string(b.Type)); c != 0 {
			return c
		}
		return strings.Compare(a.Value, b.Value)
	})
	h := sha256.New()
	for _, n := range names {
		_, _ = fmt.Fprintf(h, "%s:%s\n", n.Type, n.Value) // a hash takes all
	}
	return hex.EncodeToString(h.Sum(nil))
}

const certificateHeld = `SELECT COUNT(*) FROM (SELECT 1 FROM certificates c
	WHERE c.requester = $1 AND c.names_hash = $2 AND c.names_hash <> '' AND c.not_after > $3 AND c.state = 'issued' AND c.revoked_at = 0
	LIMIT 1) held`

// Facts says what is known of a CSR.
func (s *ACME) Facts(ctx context.Context, q acme.FactsQuery) (acme.Facts, error) {
	var keys, held int64
	err := s.one(ctx, "asking about a CSR", func(r Row) error { return r.Scan(&keys, &held) },
		`SELECT (SELECT COUNT(*) FROM acme_accounts a WHERE a.thumbprint = $4), (`+certificateHeld+`)`,
		q.Requester, namesHash(q.Names), micros(q.Now), q.Thumbprint)
	return acme.Facts{AccountKey: keys > 0, Held: held > 0}, err
}

// renewalLead is for how long an order that is no renewal stands behind those
// that are: bounded, so that none waits for ever behind renewals that keep coming.
const renewalLead = time.Minute

// dueOrders gives each account its turn: first those of which the fewest orders
// are being worked on or put off again, of equals the one that follows the last
// that had a turn, and so on around. How long an order has been waiting counts
// within its account only: else who has thousands would have the oldest for ever.
// Of those that are not listed nothing but the index is read.
const dueOrders = `SELECT ` + orderColumns + ` FROM (
		SELECT d.id, d.account_id, d.due_at,
			d.held + d.turn - CASE WHEN d.renewal = 1 OR d.due_at <= $1 THEN 1 ELSE 0 END AS turn
		FROM (
			SELECT p.id, p.account_id, p.due_at, p.renewal,
				SUM(CASE WHEN p.due_at > $2 THEN 1 ELSE 0 END) OVER (PARTITION BY p.account_id) AS held,
				ROW_NUMBER() OVER (PARTITION BY p.account_id, p.renewal ORDER BY p.due_at, p.id) AS turn
			FROM acme_orders p WHERE p.status = 'processing' AND p.directory = $5) d
		WHERE d.due_at <= $2
		ORDER BY 4, d.account_id <= $3, d.account_id, d.due_at, d.id LIMIT $4) f
	JOIN acme_orders o ON o.id = f.id
	ORDER BY f.turn, f.account_id <= $3, f.account_id, f.due_at, f.id`

// DueOrders lists orders being issued that nobody works on.
func (s *ACME) DueOrders(ctx context.Context, now time.Time, after string, limit int) ([]acme.Order, error) {
	return many(ctx, s.db, "listing due orders", scanOrder, dueOrders, micros(now.Add(-renewalLead)), micros(now), after, int64(limit), s.directory)
}

const backlog = `SELECT a.account_id, a.n, CAST(SUM(a.n) OVER () AS BIGINT) FROM (
		SELECT o.account_id, COUNT(*) AS n FROM acme_orders o WHERE o.status = 'processing' GROUP BY o.account_id) a
	ORDER BY a.n DESC LIMIT $1`

// Backlog counts the orders being issued.
func (s *ACME) Backlog(ctx context.Context, top int) (acme.BacklogCount, error) {
	type row struct {
		account  string
		n, total int64
	}
	rows, err := many(ctx, s.db, "counting the backlog", func(r Row) (row, error) {
		var x row
		err := r.Scan(&x.account, &x.n, &x.total)
		return x, err
	}, backlog, int64(top))
	out := acme.BacklogCount{Of: make(map[string]int, len(rows))}
	for _, r := range rows {
		out.Total, out.Of[r.account] = int(r.total), int(r.n)
	}
	return out, err
}

const processing = `SELECT x.directory, COUNT(*) FROM (SELECT o.directory FROM acme_orders o WHERE o.status = 'processing'
	UNION ALL SELECT t.directory FROM acme_stars t WHERE t.due_at <> 0) x GROUP BY x.directory`

// ProcessingOrders counts the orders being issued or renewed, by directory.
func (s *ACME) ProcessingOrders(ctx context.Context) (map[string]int, error) {
	type row struct {
		directory string
		n         int64
	}
	rows, err := many(ctx, s.db, "counting orders by directory", func(r Row) (row, error) {
		var x row
		err := r.Scan(&x.directory, &x.n)
		return x, err
	}, processing)
	out := make(map[string]int, len(rows))
	for _, r := range rows {
		out[r.directory] = int(r.n)
	}
	return out, err
}

// dueValidations is like dueOrders.
const dueValidations = `SELECT ` + authzColumns + ` FROM (
		SELECT d.id, d.account_id, d.lease_until, d.held + d.turn AS turn
		FROM (
			SELECT p.id, p.account_id, p.lease_until,
				SUM(CASE WHEN p.lease_until > $1 THEN 1 ELSE 0 END) OVER (PARTITION BY p.account_id) AS held,
				ROW_NUMBER() OVER (PARTITION BY p.account_id ORDER BY p.lease_until, p.id) AS turn
			FROM acme_authzs p WHERE p.lease_until <> 0 AND p.directory = $4) d
		WHERE d.lease_until <= $1
		ORDER BY 4, d.account_id <= $2, d.account_id, d.lease_until, d.id LIMIT $3) f
	JOIN acme_authzs z ON z.id = f.id
	ORDER BY f.turn, f.account_id <= $2, f.account_id, f.lease_until, f.id`

// DueValidations lists validations that nobody works on.
func (s *ACME) DueValidations(ctx context.Context, now time.Time, after string, limit int) ([]acme.Authorization, error) {
	return many(ctx, s.db, "listing due validations", scanAuthz, dueValidations, micros(now), after, int64(limit), s.directory)
}

// ExtendLease moves the lease of a validation, whose holder stays the same.
func (s *ACME) ExtendLease(ctx context.Context, id string, old, until time.Time) error {
	return s.lease(ctx, "extending lease", id, old, until, 0)
}

// TakeLease gives a validation whose lease ended to somebody else.
func (s *ACME) TakeLease(ctx context.Context, id string, old, until time.Time) error {
	return s.lease(ctx, "taking lease", id, old, until, 1)
}

// GiveBackLease ends the lease of a validation that did not come to an outcome.
func (s *ACME) GiveBackLease(ctx context.Context, id string, old, now time.Time) error {
	return s.lease(ctx, "giving back lease", id, old, now, -1)
}

// lease moves a lease by compare-and-swap. The first holder is not counted, so
// that one who gives back leaves -1 behind, and the next one 0.
func (s *ACME) lease(ctx context.Context, doing, id string, old, until time.Time, count int64) error {
	return s.write(ctx, doing, func(ctx context.Context, tx Tx) error {
		return move(ctx, tx, nil, `UPDATE acme_authzs SET lease_until = $1, attempts = attempts + $2
			WHERE id = $3 AND lease_until = $4 AND status = 'pending'`, micros(until), count, id, micros(old))
	})
}
