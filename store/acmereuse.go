package store

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/secsy-pki/secsy-pki/acme"
)

// places are n parameters from $first on, for an IN list.
func places(first, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "$%d", first+i)
	}
	return b.String()
}

func anys[T any](list []T) []any {
	out := make([]any, 0, len(list))
	for _, v := range list {
		out = append(out, v)
	}
	return out
}

// notValid counts those that an order waits for.
func notValid(as []acme.Authorization) (n int64) {
	for _, a := range as {
		if a.Status != acme.AuthzValid {
			n++
		}
	}
	return n
}

// relyOn makes sure that o may rely on the authorizations that are not made for
// it, and keeps them for as long as it. Who deactivates one meanwhile waits for
// this transaction, and then finds the order.
func relyOn(ctx context.Context, tx Tx, o acme.Order, made []acme.Authorization) error {
	old := slices.DeleteFunc(slices.Clone(o.AuthzIDs), func(id string) bool {
		return slices.ContainsFunc(made, func(a acme.Authorization) bool { return a.ID == id })
	})
	if len(o.AuthzIDs) == 0 || len(old)+len(made) != len(o.AuthzIDs) {
		return fmt.Errorf("order %s: %d authorizations, of which %d are made for it", o.ID, len(o.AuthzIDs), len(made))
	}
	if len(old) == 0 {
		return nil
	}
	n, err := tx.Exec(ctx, `UPDATE acme_authzs SET purge_at = CASE WHEN purge_at < expires THEN expires ELSE purge_at END
		WHERE account_id = $1 AND directory = $2 AND status = 'valid' AND expires >= $3 AND id IN (`+places(4, len(old))+`)`,
		append([]any{o.AccountID, o.Directory, micros(o.Expires)}, anys(old)...)...)
	if err != nil {
		return err
	}
	if n != int64(len(old)) {
		return acme.ErrMoved
	}
	return nil
}

// proven is the condition that all the authorizations of a claim hold, with its
// parameters from $first on.
func proven(c acme.Claim, first int) (string, []any) {
	if len(c.Authzs) == 0 {
		return `1 = 0`, nil // nothing was proven
	}
	args := append([]any{micros(c.Now), micros(c.Since), int64(len(c.Authzs))}, anys(c.Authzs)...)
	return fmt.Sprintf(`(SELECT COUNT(*) FROM acme_authzs z WHERE z.status = 'valid' AND z.expires > $%d AND z.validated_at >= $%d
		AND z.id IN (%s)) = $%d`, first, first+1, places(first+3, len(c.Authzs)), first+2), args
}

// closeUnproven ends an order that could be claimed but for its authorizations,
// and passes on why it was not if that is not the reason.
func closeUnproven(ctx context.Context, tx Tx, c acme.Claim, why error) (bool, error) {
	holds, args := proven(c, 7)
	n, err := tx.Exec(ctx, `UPDATE acme_orders SET status = 'invalid', error = $1, csr = NULL, due_at = 0, sweep_at = $2
		WHERE id = $3 AND intent_id = $4 AND expires > $5 AND (status = 'ready' OR (status = 'processing' AND csr_hash = $6)) AND NOT `+holds,
		append([]any{problemJSON(&c.Unproven.Error), micros(c.Unproven.PurgeAt), c.OrderID, c.Prev, micros(c.Now), c.CSRHash}, args...)...)
	switch {
	case err != nil:
		return false, err
	case n == 0:
		return false, why
	}
	return true, nil
}

// closeRelying ends the orders that rely on an authorization and are not being
// issued: no more than one account may have open. An id stands in authz_ids as
// it is, between quotes.
func closeRelying(ctx context.Context, tx Tx, id string, c acme.Closing) error {
	_, err := tx.Exec(ctx, `UPDATE acme_orders SET status = 'invalid', error = $1, sweep_at = $2
		WHERE status IN ('pending', 'ready') AND account_id = (SELECT z.account_id FROM acme_authzs z WHERE z.id = $3) AND authz_ids LIKE $4`,
		problemJSON(&c.Error), micros(c.PurgeAt), id, `%"`+id+`"%`)
	return err
}

// reusable is asked for an account's authorizations of some names: of several
// for the same the one that holds longest.
const reusable = `SELECT ` + authzColumns + ` FROM (
		SELECT v.id, ROW_NUMBER() OVER (PARTITION BY v.type, v.name, v.wildcard, v.subdomains ORDER BY v.expires DESC, v.id) AS rank
		FROM acme_authzs v
		WHERE v.account_id = $1 AND v.status = 'valid' AND v.directory = $2 AND v.profile = $3 AND v.expires > $4 AND v.validated_at > $5
			AND v.challenge IN (%s) AND v.name IN (%s)) f
	JOIN acme_authzs z ON z.id = f.id WHERE f.rank = 1`

// ReusableAuthorizations finds what an account has proven already.
func (s *ACME) ReusableAuthorizations(ctx context.Context, q acme.ReuseQuery) ([]acme.Authorization, error) {
	if len(q.Names) == 0 || len(q.Types) == 0 {
		return nil, nil
	}
	args := []any{q.AccountID, q.Directory, q.Profile, micros(q.Until), micros(q.Since)}
	args = append(append(args, anys(q.Types)...), anys(q.Names)...)
	return many(ctx, s.db, "looking for authorizations", scanAuthz,
		fmt.Sprintf(reusable, places(6, len(q.Types)), places(6+len(q.Types), len(q.Names))), args...)
}

const sameOrder = `SELECT ` + orderColumns + ` FROM acme_orders o
	WHERE o.account_id = $1 AND o.set_hash = $2 AND o.set_hash <> '' AND o.status IN ('pending', 'ready') AND o.expires > $3
	ORDER BY o.expires DESC, o.id LIMIT 1`

// openSame selects from the orders that are open for the same wish.
func openSame(account, hash, until string) string {
	return `SELECT 1 FROM acme_orders s WHERE s.account_id = ` + account + ` AND s.set_hash = ` + hash + ` AND s.set_hash <> ''
		AND s.status IN ('pending', 'ready') AND s.expires > ` + until
}

// unlike is when an order must expire later to be the same.
func unlike(l acme.OrderLimits) int64 {
	if l.Unlike.IsZero() {
		return math.MaxInt64
	}
	return micros(l.Unlike)
}

// refuseOrder returns why there is no order whatever else speaks against it: who
// asks for what is there already is refused nothing.
func refuseOrder(ctx context.Context, tx Tx, o acme.Order, l acme.OrderLimits) error {
	var signed, same int64
	if err := tx.QueryRow(ctx, `SELECT (SELECT COUNT(*) FROM acme_accounts y WHERE y.id = $1 AND y.thumbprint = $2 AND y.status = 'valid'),
			(SELECT COUNT(*) FROM (`+openSame("$1", "$3", "$4")+` LIMIT 1) one)`,
		o.AccountID, l.By.Thumbprint, o.SetHash, unlike(l)).Scan(&signed, &same); err != nil {
		return err
	}
	switch {
	case signed == 0 && l.By != (acme.Signer{}):
		return acme.ErrUnsigned
	case same > 0:
		return acme.ErrSame
	}
	return nil
}

// SameOrder finds the open order for the same wish.
func (s *ACME) SameOrder(ctx context.Context, q acme.SameOrderQuery) (o acme.Order, err error) {
	err = s.one(ctx, "looking for an order", func(r Row) (err error) { o, err = scanOrder(r); return err },
		sameOrder, q.AccountID, q.SetHash, micros(q.Until))
	return o, err
}
