package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/admin"
	"github.com/secsy-pki/secsy-pki/audit"
)

// An ACMEOperator is the operator's view of ACME, over all directories.
type ACMEOperator struct{ db *DB }

// NewACMEOperator returns the view of db.
func NewACMEOperator(db *DB) *ACMEOperator { return &ACMEOperator{db} }

var (
	_ admin.ExternalKeys = (*ACMEOperator)(nil)
	_ admin.Accounts     = (*ACMEOperator)(nil)
)

// CreateExternalKey stores a key.
func (o *ACMEOperator) CreateExternalKey(ctx context.Context, k admin.ExternalKey, e audit.Entry) error {
	return o.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO acme_eab_keys (kid, directory, mac_key, comment, scope, created_by, created_at, expires, max_uses)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
			k.KID, k.Directory, k.MAC, k.Comment, scopeJSON(acme.Scope{DNS: k.DNS, IP: k.IP, Profiles: k.Profiles}),
			k.CreatedBy, micros(k.CreatedAt), micros(k.Expires), int64(k.MaxUses))
		if err != nil {
			return fmt.Errorf("storing the key of an external account: %w", err)
		}
		return appendAudit(ctx, tx, e)
	})
}

// mac_key is not among them: nothing but the verification of a MAC reads it.
const externalKeyColumns = `b.kid, b.directory, b.comment, b.scope, b.created_by, b.created_at, b.expires, b.max_uses, b.uses, b.last_used_at, b.revoked_at`

func scanExternalKey(row Row) (admin.ExternalKey, error) {
	var (
		k                                           admin.ExternalKey
		scope                                       string
		created, expires, most, uses, last, revoked int64
	)
	err := row.Scan(&k.KID, &k.Directory, &k.Comment, &scope, &k.CreatedBy, &created, &expires, &most, &uses, &last, &revoked)
	if err != nil {
		return k, err
	}
	k.CreatedAt, k.Expires, k.LastUsedAt, k.RevokedAt = fromMicros(created), fromMicros(expires), fromMicros(last), fromMicros(revoked)
	k.MaxUses, k.Uses = int(most), int(uses)
	c, err := readScope(scope)
	if err != nil {
		return k, fmt.Errorf("decoding scope of key %s: %w", k.KID, err)
	}
	k.DNS, k.IP, k.Profiles = c.DNS, c.IP, c.Profiles
	return k, nil
}

// ListExternalKeys returns a page of keys, newest first.
func (o *ACMEOperator) ListExternalKeys(ctx context.Context, q admin.KeyQuery) ([]admin.ExternalKey, string, error) {
	w, err := newestFirst("b", "kid", q.Before)
	if err != nil {
		return nil, "", err
	}
	if q.Directory != nil {
		w.and("b.directory = ", *q.Directory)
	}
	list, err := many(ctx, o.db, "listing keys of external accounts", scanExternalKey,
		`SELECT `+externalKeyColumns+` FROM acme_eab_keys b`+w.page(q.Limit), w.args...)
	if err != nil || len(list) <= q.Limit {
		return list, "", err
	}
	list = list[:q.Limit]
	last := list[len(list)-1]
	return list, listPlace(last.CreatedAt, last.KID), nil
}

// RevokeExternalKey ends a key, and forgets its MAC.
func (o *ACMEOperator) RevokeExternalKey(ctx context.Context, kid string, at time.Time, e audit.Entry) (k admin.ExternalKey, err error) {
	ended := false
	err = o.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		n, err := tx.Exec(ctx, `UPDATE acme_eab_keys SET revoked_at = $1, mac_key = $2 WHERE kid = $3 AND revoked_at = 0`, micros(at), []byte{}, kid)
		if err != nil {
			return err
		}
		if ended = n == 0; !ended {
			if err := appendAudit(ctx, tx, e); err != nil {
				return err
			}
		}
		k, err = scanExternalKey(tx.QueryRow(ctx, `SELECT `+externalKeyColumns+` FROM acme_eab_keys b WHERE b.kid = $1`, kid))
		return err
	})
	switch {
	case errors.Is(err, ErrNoRows):
		return k, admin.ErrNotFound
	case err != nil:
		return k, fmt.Errorf("revoking the key of an external account: %w", err)
	case ended:
		return k, admin.ErrEnded
	}
	return k, nil
}

const operatorAccountColumns = `a.id, a.directory, a.status, a.contacts, a.thumbprint, a.eab_kid, a.created_at, a.revoked_at`

func scanOperatorAccount(row Row) (admin.Account, error) {
	var (
		a                admin.Account
		contacts         string
		created, revoked int64
	)
	if err := row.Scan(&a.ID, &a.Directory, &a.Status, &contacts, &a.Thumbprint, &a.ExternalKey, &created, &revoked); err != nil {
		return a, err
	}
	if a.CreatedAt, a.RevokedAt = fromMicros(created), fromMicros(revoked); revoked != 0 {
		a.Status = string(acme.AccountRevoked)
	}
	if err := json.Unmarshal([]byte(contacts), &a.Contacts); err != nil {
		return a, fmt.Errorf("decoding contacts of account %s: %w", a.ID, err)
	}
	return a, nil
}

// ListAccounts returns a page of accounts, newest first.
func (o *ACMEOperator) ListAccounts(ctx context.Context, q admin.AccountQuery) ([]admin.Account, string, error) {
	w, err := newestFirst("a", "id", q.Before)
	if err != nil {
		return nil, "", err
	}
	if q.Directory != nil {
		w.and("a.directory = ", *q.Directory)
	}
	if q.ExternalKey != "" {
		w.and("a.eab_kid <> '' AND a.eab_kid = ", q.ExternalKey)
	}
	switch acme.AccountStatus(q.Status) {
	case "":
	case acme.AccountRevoked:
		w.and("a.revoked_at > ", int64(0))
	case acme.AccountDeactivated:
		w.and("a.revoked_at = 0 AND a.status = ", q.Status)
	default:
		w.and("a.status = ", q.Status)
	}
	list, err := many(ctx, o.db, "listing accounts", scanOperatorAccount,
		`SELECT `+operatorAccountColumns+` FROM acme_accounts a`+w.page(q.Limit), w.args...)
	if err != nil || len(list) <= q.Limit {
		return list, "", err
	}
	list = list[:q.Limit]
	last := list[len(list)-1]
	return list, listPlace(last.CreatedAt, last.ID), nil
}

// Account returns one account.
func (o *ACMEOperator) Account(ctx context.Context, id string) (a admin.Account, err error) {
	err = o.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		if a, err = scanOperatorAccount(tx.QueryRow(ctx, `SELECT `+operatorAccountColumns+` FROM acme_accounts a WHERE a.id = $1`, id)); err != nil {
			return err
		}
		var open int64
		err := tx.QueryRow(ctx, `SELECT COUNT(*) FROM acme_orders o WHERE o.account_id = $1 AND o.status IN ('pending', 'ready')`, id).Scan(&open)
		a.OpenOrders = int(open)
		return err
	})
	if errors.Is(err, ErrNoRows) {
		return a, admin.ErrNotFound
	}
	if err != nil {
		return a, fmt.Errorf("reading account: %w", err)
	}
	return a, nil
}

// RevokeAccount ends an account, and its orders that nobody signs for.
func (o *ACMEOperator) RevokeAccount(ctx context.Context, id string, at time.Time, e audit.Entry) error {
	err := o.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		err := move(ctx, tx, &e, `UPDATE acme_accounts SET status = 'deactivated', revoked_at = $1 WHERE id = $2 AND status = 'valid'`, micros(at), id)
		if errors.Is(err, acme.ErrMoved) {
			var n int64
			if err := tx.QueryRow(ctx, `SELECT COUNT(*) FROM acme_accounts a WHERE a.id = $1`, id).Scan(&n); err != nil || n > 0 {
				return errors.Join(err, admin.ErrEnded)
			}
			return admin.ErrNotFound
		}
		if err != nil {
			return err
		}
		closed := acme.ClosedByOperator(at)
		// What waits for its turn without an intent was not begun.
		_, err = tx.Exec(ctx, `UPDATE acme_orders SET status = 'invalid', error = $1, sweep_at = $2, csr = NULL, due_at = 0
			WHERE account_id = $3 AND (status IN ('pending', 'ready') OR status = 'processing' AND intent_id = '')`,
			problemJSON(&closed.Error), micros(closed.PurgeAt), id)
		return err
	})
	if err != nil {
		return fmt.Errorf("revoking account: %w", err)
	}
	return nil
}

// A where is the conditions of a list that is newest first, by created_at and id.
type where struct {
	table, id string
	text      strings.Builder
	args      []any
}

// newestFirst begins a list after the place, "" for its beginning.
func newestFirst(table, id, after string) (*where, error) {
	w := &where{table: table, id: id}
	if after == "" {
		return w, nil
	}
	micro, last, ok := strings.Cut(after, ".")
	at, err := strconv.ParseInt(micro, 10, 64)
	if !ok || err != nil || last == "" || strings.Trim(last, "0123456789abcdef") != "" {
		return nil, admin.ErrNotFound
	}
	w.args = []any{at, last}
	fmt.Fprintf(&w.text, " WHERE (%[1]s.created_at < $1 OR %[1]s.created_at = $1 AND %[1]s.%[2]s < $2)", table, id)
	return w, nil
}

// and adds a condition, which ends in what the value is compared by.
func (w *where) and(condition string, v any) {
	w.args = append(w.args, v)
	joint := " AND "
	if w.text.Len() == 0 {
		joint = " WHERE "
	}
	fmt.Fprintf(&w.text, "%s%s$%d", joint, condition, len(w.args))
}

// page ends the statement: one row more than asked for says that there are more.
func (w *where) page(limit int) string {
	w.args = append(w.args, int64(limit)+1)
	return fmt.Sprintf("%s ORDER BY %[2]s.created_at DESC, %[2]s.%[3]s DESC LIMIT $%[4]d", w.text.String(), w.table, w.id, len(w.args))
}

// listPlace is where a list goes on.
func listPlace(at time.Time, id string) string { return strconv.FormatInt(micros(at), 10) + "." + id }
