package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// ACME keeps the accounts, orders and authorizations of one directory. It is an acme.Store.
type ACME struct {
	db        *DB
	directory string
}

// NewACME returns the ACME objects in db of the directory that every server has.
func NewACME(db *DB) *ACME { return &ACME{db: db} }

// Directory returns those of another directory.
func (s *ACME) Directory(name string) *ACME { return &ACME{s.db, name} }

var _ acme.Store = (*ACME)(nil)

// move runs one statement that changes a row by compare-and-swap, with e in the
// same transaction. No row means acme.ErrMoved.
func move(ctx context.Context, tx Tx, e *audit.Entry, q string, args ...any) error {
	n, err := tx.Exec(ctx, q, args...)
	if err != nil {
		return err
	}
	if n == 0 {
		return acme.ErrMoved
	}
	if e == nil {
		return nil
	}
	return appendAudit(ctx, tx, *e)
}

// write is a transaction; doing says of what, for its error.
func (s *ACME) write(ctx context.Context, doing string, fn func(ctx context.Context, tx Tx) error) error {
	if err := s.db.Write(ctx, fn); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// one reads one row, acme.ErrNotFound for none.
func (s *ACME) one(ctx context.Context, doing string, scan func(Row) error, q string, args ...any) error {
	err := s.db.ReadRow(ctx, scan, q, args...)
	if errors.Is(err, ErrNoRows) {
		return acme.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// many reads rows, in the order they come.
func many[T any](ctx context.Context, db *DB, doing string, scan func(Row) (T, error), q string, args ...any) ([]T, error) {
	var out []T
	err := db.Read(ctx, func(ctx context.Context, tx Tx) error {
		out = nil
		rows, err := tx.Query(ctx, q, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			v, err := scan(rows)
			if err != nil {
				return err
			}
			out = append(out, v)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	return out, nil
}

// asJSON encodes plain values of ours, which cannot fail.
func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "null"
	}
	return string(b)
}

func problemJSON(p *acme.Problem) string {
	if p == nil {
		return ""
	}
	return asJSON(p)
}

func readProblem(s string) (*acme.Problem, error) {
	if s == "" {
		return nil, nil
	}
	var p acme.Problem
	if err := json.Unmarshal([]byte(s), &p); err != nil {
		return nil, fmt.Errorf("decoding problem: %w", err)
	}
	return &p, nil
}

// Accounts.

const accountColumns = `a.id, a.thumbprint, a.jwk, a.contacts, a.terms_agreed, a.status, a.created_at, a.directory, a.eab_kid,
	a.eab_scope, a.revoked_at`

func scanAccount(row Row) (acme.Account, error) {
	var (
		a                     acme.Account
		jwk, contacts, status string
		scope                 string
		terms, created        int64
		revoked               int64
	)
	err := row.Scan(&a.ID, &a.Thumbprint, &jwk, &contacts, &terms, &status, &created, &a.Directory, &a.EAB, &scope, &revoked)
	if err != nil {
		return a, err
	}
	if revoked != 0 {
		status = string(acme.AccountRevoked)
	}
	if a.Scope, err = readScope(scope); err != nil {
		return a, fmt.Errorf("decoding scope of account %s: %w", a.ID, err)
	}
	a.Key, a.TermsAgreed, a.Status, a.CreatedAt = []byte(jwk), terms != 0, acme.AccountStatus(status), fromMicros(created)
	if err := json.Unmarshal([]byte(contacts), &a.Contacts); err != nil {
		return a, fmt.Errorf("decoding contacts of account %s: %w", a.ID, err)
	}
	return a, nil
}

// CreateAccount stores a, or returns the account that has its key.
func (s *ACME) CreateAccount(ctx context.Context, a acme.Account, e audit.Entry) (acme.Account, bool, error) {
	var (
		out     acme.Account
		created bool
	)
	a.Directory = s.directory
	err := s.write(ctx, "creating account", func(ctx context.Context, tx Tx) error {
		n, err := tx.Exec(ctx, `INSERT INTO acme_accounts (id, thumbprint, jwk, contacts, terms_agreed, status, created_at, directory, eab_kid, eab_scope)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (thumbprint, directory) DO NOTHING`,
			a.ID, a.Thumbprint, string(a.Key), asJSON(a.Contacts), flag(a.TermsAgreed), string(a.Status), micros(a.CreatedAt), a.Directory, a.EAB, scopeJSON(a.Scope))
		if err != nil {
			return err
		}
		if out, created = a, n == 1; created {
			if err := s.useBindingKey(ctx, tx, a); err != nil {
				return err
			}
			return appendAudit(ctx, tx, e)
		}
		out, err = scanAccount(tx.QueryRow(ctx, accountByKey, a.Thumbprint, a.Directory))
		return err
	})
	return out, created, err
}

// Account returns the account of that id.
func (s *ACME) Account(ctx context.Context, id string) (a acme.Account, err error) {
	err = s.one(ctx, "reading account", func(r Row) (err error) { a, err = scanAccount(r); return err },
		`SELECT `+accountColumns+` FROM acme_accounts a WHERE a.id = $1 AND a.directory = $2`, id, s.directory)
	return a, err
}

// signs says that the account $2 is one that signs with the key of thumbprint $3.
const signs = `EXISTS (SELECT 1 FROM acme_accounts y WHERE y.id = $2 AND y.thumbprint = $3 AND y.status = 'valid')`

const accountByKey = `SELECT ` + accountColumns + ` FROM acme_accounts a WHERE a.thumbprint = $1 AND a.directory = $2`

// AccountByKey returns the account whose key has that thumbprint.
func (s *ACME) AccountByKey(ctx context.Context, thumbprint string) (a acme.Account, err error) {
	err = s.one(ctx, "finding account", func(r Row) (err error) { a, err = scanAccount(r); return err },
		accountByKey, thumbprint, s.directory)
	return a, err
}

// UpdateContacts replaces the contacts of a valid account.
func (s *ACME) UpdateContacts(ctx context.Context, id string, contacts []string, e audit.Entry) error {
	return s.write(ctx, "updating account", func(ctx context.Context, tx Tx) error {
		return move(ctx, tx, &e, `UPDATE acme_accounts SET contacts = $1 WHERE id = $2 AND status = 'valid'`, asJSON(contacts), id)
	})
}

// DeactivateAccount ends an account and what it has not finalized.
func (s *ACME) DeactivateAccount(ctx context.Context, id string, closed acme.Closing, e audit.Entry) error {
	return s.write(ctx, "deactivating account", func(ctx context.Context, tx Tx) error {
		if err := move(ctx, tx, &e, `UPDATE acme_accounts SET status = 'deactivated' WHERE id = $1 AND status = 'valid'`, id); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE acme_orders SET status = 'invalid', error = $1, sweep_at = $2
			WHERE account_id = $3 AND status IN ('pending', 'ready')`, problemJSON(&closed.Error), micros(closed.PurgeAt), id)
		return err
	})
}

// ChangeKey gives a valid account another key.
func (s *ACME) ChangeKey(ctx context.Context, id, old string, jwk []byte, thumbprint string, e audit.Entry) error {
	err := s.write(ctx, "changing account key", func(ctx context.Context, tx Tx) error {
		// The key may be taken by this very account, too.
		return move(ctx, tx, &e, `UPDATE acme_accounts SET jwk = $1, thumbprint = $2
			WHERE id = $3 AND thumbprint = $4 AND status = 'valid'`, string(jwk), thumbprint, id, old)
	})
	if errors.Is(err, ErrUnique) {
		return acme.ErrKeyTaken
	}
	return err
}

// Orders.

const orderColumns = `o.id, o.account_id, o.status, o.profile, o.identifiers, o.authz_ids, o.not_before, o.not_after,
	o.created_at, o.expires, o.error, o.csr, o.csr_hash, o.intent_id, o.attempts, o.deaths, o.due_at, o.renewal, o.certificate_id, o.serial,
	o.directory, o.set_hash, o.replaces, o.auto_renewal,
	CASE WHEN o.auto_renewal = '' THEN 0 ELSE COALESCE((SELECT t.canceled_at FROM acme_stars t WHERE t.order_id = o.id), 0) END`

func scanOrder(row Row) (acme.Order, error) {
	var (
		o                                               acme.Order
		status, ids, authzs, problem, serial, replaces  string
		notBefore, notAfter, created, expires, due, try int64
		deaths, renewal                                 int64
		auto                                            string
		canceled                                        int64
	)
	err := row.Scan(&o.ID, &o.AccountID, &status, &o.Profile, &ids, &authzs, &notBefore, &notAfter,
		&created, &expires, &problem, &o.CSR, &o.CSRHash, &o.IntentID, &try, &deaths, &due, &renewal, &o.CertificateID, &serial,
		&o.Directory, &o.SetHash, &replaces, &auto, &canceled)
	if err != nil {
		return o, err
	}
	o.Status, o.Serial, o.Attempts = acme.OrderStatus(status), ca.Serial(serial), int(try)
	o.Deaths, o.Renewal, o.Replaces = int(deaths), renewal != 0, acme.CertID(replaces)
	o.NotBefore, o.NotAfter, o.CreatedAt, o.Expires, o.DueAt = fromMicros(notBefore), fromMicros(notAfter), fromMicros(created), fromMicros(expires), fromMicros(due)
	if err := json.Unmarshal([]byte(ids), &o.Identifiers); err != nil {
		return o, fmt.Errorf("decoding identifiers of order %s: %w", o.ID, err)
	}
	if err := json.Unmarshal([]byte(authzs), &o.AuthzIDs); err != nil {
		return o, fmt.Errorf("decoding authorizations of order %s: %w", o.ID, err)
	}
	o.CanceledAt = fromMicros(canceled)
	if o.AutoRenewal, err = acme.ReadAutoRenewal(auto); err != nil {
		return o, fmt.Errorf("order %s: %w", o.ID, err)
	}
	o.Error, err = readProblem(problem)
	return o, err
}

// CreateOrder stores o with its authorizations.
func (s *ACME) CreateOrder(ctx context.Context, o acme.Order, as []acme.Authorization, l acme.OrderLimits) error {
	var same bool
	err := s.write(ctx, "creating order", func(ctx context.Context, tx Tx) (err error) {
		// Not by an error: what is there may not be durable yet, which only a
		// transaction that is kept waits for.
		defer func() {
			if same = errors.Is(err, acme.ErrSame); same {
				err = nil
			}
		}()
		if l.Quota.Active() || len(l.Debits) > 0 { // before anything is debited
			if err := refuseOrder(ctx, tx, o, l); err != nil {
				return err
			}
		}
		if o.Replaces != "" {
			if err := expireReplacing(ctx, tx, o); err != nil {
				return err
			}
		}
		d, err := debit(ctx, tx, quotaIdentifiers, o.AccountID, l.Quota, o.CreatedAt, len(o.Identifiers))
		if err != nil {
			return err
		}
		if !d.OK {
			return &acme.QuotaError{Decision: d}
		}
		for _, x := range l.Debits {
			if d, err = debit(ctx, tx, x.Kind, x.Subject, x.Quota, o.CreatedAt, x.Cost); err != nil {
				return err
			}
			if !d.OK {
				return &acme.QuotaError{Decision: d, Debit: x}
			}
		}
		if err := relyOn(ctx, tx, o, as); err != nil {
			return err
		}
		// Without a quota, two at the same instant may both see the last free
		// place: the bound is against floods, and is soft by as many as arrive
		// at once.
		insert := func(pausing bool) (int64, error) {
			return tx.Exec(ctx, `INSERT INTO acme_orders (id, account_id, status, profile, identifiers, authz_ids, open_authzs,
				not_before, not_after, created_at, expires, sweep_at, directory, set_hash, replaces, renewal, auto_renewal, keep_until)
			SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $17, $19, $20
			WHERE (SELECT COUNT(*) FROM (SELECT 1 FROM acme_orders
				WHERE account_id = $2 AND status IN ('pending', 'ready') LIMIT $16) open_ones) < $16
				AND ($18 = 0 OR NOT EXISTS (SELECT 1 FROM acme_failures f WHERE f.account_id = $2 AND f.paused_at <> 0))
				AND NOT EXISTS (`+openSame("$2", "$14", "$21")+`)
				AND ($22 = '' OR EXISTS (SELECT 1 FROM acme_accounts y WHERE y.id = $2 AND y.thumbprint = $22 AND y.status = 'valid'))`,
				o.ID, o.AccountID, string(o.Status), o.Profile, asJSON(o.Identifiers), asJSON(o.AuthzIDs), notValid(as),
				micros(o.NotBefore), micros(o.NotAfter), micros(o.CreatedAt), micros(o.Expires), micros(o.Expires),
				o.Directory, o.SetHash, string(o.Replaces), int64(l.MaxOpen), flag(o.Renewal), flag(pausing),
				acme.WriteAutoRenewal(o.AutoRenewal), micros(l.KeepUntil), unlike(l), l.By.Thumbprint)
		}
		// One look for all of that, and for most orders the only one.
		pausing := l.Pausing && len(as) > 0
		n, err := insert(pausing)
		if err == nil && n == 0 {
			err = refuseOrder(ctx, tx, o, l)
			if err == nil {
				err = whyNotOrdered(ctx, tx, o, as, pausing)
			}
			if err == nil {
				n, err = insert(false)
			}
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return acme.ErrTooManyOpen
		}
		return insertAuthzs(ctx, tx, as)
	})
	if o.Replaces != "" && errors.Is(err, ErrUnique) {
		return acme.ErrReplaced
	}
	if err == nil && same {
		return acme.ErrSame
	}
	return err
}

// quotaIdentifiers is the kind of the quota of identifiers in new orders.
const quotaIdentifiers = "acme_identifiers"

// debit charges cost to the quota of subject, or leaves it as it is.
func debit(ctx context.Context, tx Tx, kind, subject string, q ratelimit.Quota, now time.Time, cost int) (ratelimit.Decision, error) {
	if !q.Active() {
		return ratelimit.Decision{OK: true}, nil
	}
	// Whoever else debits this subject waits here until our transaction has
	// ended, and then reads what we wrote. An insert that changes nothing is
	// the one way to lock a row, there or not, that both engines have.
	var free int64
	err := tx.QueryRow(ctx, `INSERT INTO quotas (kind, subject, free_at) VALUES ($1, $2, 0)
		ON CONFLICT (kind, subject) DO UPDATE SET free_at = quotas.free_at RETURNING free_at`, kind, subject).Scan(&free)
	if err != nil {
		return ratelimit.Decision{}, err
	}
	next, d := q.Debit(now, fromMicros(free), cost)
	if !d.OK {
		return d, nil
	}
	_, err = tx.Exec(ctx, `UPDATE quotas SET free_at = $1 WHERE kind = $2 AND subject = $3`, micros(next), kind, subject)
	return d, err
}

// authzRows is how many authorizations one statement inserts.
const authzRows = 50

func insertAuthzs(ctx context.Context, tx Tx, as []acme.Authorization) error {
	for chunk := range slices.Chunk(as, authzRows) {
		var (
			q    strings.Builder
			args []any
		)
		q.WriteString(`INSERT INTO acme_authzs (id, account_id, order_id, type, name, wildcard, status, token, offered, created_at, expires, purge_at,
			directory, profile, subdomains, challenge, validated_at) VALUES `)
		for i, a := range chunk {
			if i > 0 {
				q.WriteString(", ")
			}
			row := []any{
				a.ID, a.AccountID, a.OrderID, string(a.Identifier.Type), a.Identifier.Value, flag(a.Wildcard), string(a.Status),
				a.Token, asJSON(a.Offered), micros(a.CreatedAt), micros(a.Expires), micros(a.PurgeAt),
				a.Directory, a.Profile, flag(a.Subdomains), string(a.Challenge), micros(a.Validated),
			}
			q.WriteString("(")
			for j := range row {
				if j > 0 {
					q.WriteString(", ")
				}
				fmt.Fprintf(&q, "$%d", len(args)+j+1)
			}
			q.WriteString(")")
			args = append(args, row...)
		}
		if _, err := tx.Exec(ctx, q.String(), args...); err != nil {
			return err
		}
	}
	return nil
}

// Order returns the order of that id, as it is stored.
func (s *ACME) Order(ctx context.Context, id string) (o acme.Order, err error) {
	err = s.one(ctx, "reading order", func(r Row) (err error) { o, err = scanOrder(r); return err },
		`SELECT `+orderColumns+` FROM acme_orders o WHERE o.id = $1`, id)
	return o, err
}

// OrderOf returns the order of that id if it is the account's. The database
// answers for both reasons of a no: nothing is read of another's order.
func (s *ACME) OrderOf(ctx context.Context, by acme.Signer, id string) (o acme.Order, err error) {
	err = s.one(ctx, "reading order", func(r Row) (err error) { o, err = scanOrder(r); return err },
		`SELECT `+orderColumns+` FROM acme_orders o WHERE o.id = $1 AND o.account_id = $2 AND `+signs, id, by.AccountID, by.Thumbprint)
	return o, err
}

const listOrders = `SELECT o.id, o.status FROM acme_orders o
	WHERE o.account_id = $1 AND o.id > $2 AND o.status <> 'invalid' ORDER BY o.id LIMIT $3`

// ListOrders returns a page of an account's orders by rising id.
func (s *ACME) ListOrders(ctx context.Context, accountID, after string, limit int) ([]acme.OrderRef, error) {
	return many(ctx, s.db, "listing orders", func(r Row) (acme.OrderRef, error) {
		var id, status string
		err := r.Scan(&id, &status)
		return acme.OrderRef{ID: id, Status: acme.OrderStatus(status)}, err
	}, listOrders, accountID, after, int64(limit))
}

// Authorizations.

const authzColumns = `z.id, z.account_id, z.order_id, z.type, z.name, z.wildcard, z.status, z.token, z.offered, z.challenge,
	z.lease_until, z.attempts, z.error, z.created_at, z.expires, z.validated_at, z.purge_at,
	z.directory, z.profile, z.answer, z.caa_at, z.subdomains, z.key_hash`

func scanAuthz(row Row) (acme.Authorization, error) {
	var (
		a                                                    acme.Authorization
		typ, status, offered, challenge, problem             string
		wild, lease, try, created, expires, validated, purge int64
		caa, subdomains                                      int64
	)
	err := row.Scan(&a.ID, &a.AccountID, &a.OrderID, &typ, &a.Identifier.Value, &wild, &status, &a.Token, &offered, &challenge,
		&lease, &try, &problem, &created, &expires, &validated, &purge,
		&a.Directory, &a.Profile, &a.Answer, &caa, &subdomains, &a.AttestedKey)
	if err != nil {
		return a, err
	}
	a.Identifier.Type, a.Wildcard, a.Status = ca.IdentifierType(typ), wild != 0, acme.AuthzStatus(status)
	a.Challenge, a.Attempts, a.Subdomains = acme.ChallengeType(challenge), int(try), subdomains != 0
	a.CAAChecked = fromMicros(caa)
	a.Lease, a.CreatedAt, a.Expires, a.Validated, a.PurgeAt = fromMicros(lease), fromMicros(created), fromMicros(expires), fromMicros(validated), fromMicros(purge)
	if err := json.Unmarshal([]byte(offered), &a.Offered); err != nil {
		return a, fmt.Errorf("decoding challenges of authorization %s: %w", a.ID, err)
	}
	a.Error, err = readProblem(problem)
	return a, err
}

// Authorization returns the authorization of that id, as it is stored.
func (s *ACME) Authorization(ctx context.Context, id string) (a acme.Authorization, err error) {
	err = s.one(ctx, "reading authorization", func(r Row) (err error) { a, err = scanAuthz(r); return err },
		`SELECT `+authzColumns+` FROM acme_authzs z WHERE z.id = $1`, id)
	return a, err
}

// AuthorizationOf returns the authorization of that id if it is the account's.
func (s *ACME) AuthorizationOf(ctx context.Context, by acme.Signer, id string) (a acme.Authorization, err error) {
	err = s.one(ctx, "reading authorization", func(r Row) (err error) { a, err = scanAuthz(r); return err },
		`SELECT `+authzColumns+` FROM acme_authzs z WHERE z.id = $1 AND z.account_id = $2 AND `+signs, id, by.AccountID, by.Thumbprint)
	return a, err
}

// StartChallenge chooses the challenge of a pending authorization.
func (s *ACME) StartChallenge(ctx context.Context, id string, t acme.ChallengeType, lease, now time.Time) error {
	return s.write(ctx, "starting challenge", func(ctx context.Context, tx Tx) error {
		return move(ctx, tx, nil, `UPDATE acme_authzs SET challenge = $1, lease_until = $2
			WHERE id = $3 AND status = 'pending' AND challenge = '' AND expires > $4`, string(t), micros(lease), id, micros(now))
	})
}

// FinishValidation writes an outcome and what it means for the order.
func (s *ACME) FinishValidation(ctx context.Context, v acme.Validated, e audit.Entry) error {
	status, validated := acme.AuthzValid, v.At
	if v.Failed != nil {
		status, validated = acme.AuthzInvalid, time.Time{}
	}
	return s.write(ctx, "finishing validation", func(ctx context.Context, tx Tx) error {
		// Strangers may fail as often as they like: the audit log holds what
		// was proven, and what was and then contested.
		kept := &e
		if v.Failed != nil && !v.Contested {
			kept = nil
		}
		err := move(ctx, tx, kept, `UPDATE acme_authzs SET status = $1, error = $2, validated_at = $3, expires = $4, purge_at = $5, lease_until = 0,
				answer = NULL, key_hash = $6, caa_at = $7
			WHERE id = $8 AND status = 'pending' AND lease_until = $9`,
			string(status), problemJSON(v.Failed), micros(validated), micros(v.Expires), micros(v.PurgeAt), v.AttestedKey, micros(v.CAAAt), v.AuthzID, micros(v.Lease))
		if err != nil {
			return err
		}
		if v.Failed != nil {
			if v.Failure != nil {
				if err := countFailure(ctx, tx, *v.Failure); err != nil {
					return err
				}
			}
			return closeOrder(ctx, tx, v.OrderID, v.Closing)
		}
		// Two authorizations that become valid at once wait here for each
		// other, and the second sees the first's count.
		_, err = tx.Exec(ctx, `UPDATE acme_orders SET open_authzs = open_authzs - 1,
				status = CASE WHEN open_authzs <= 1 THEN 'ready' ELSE status END,
				expires = CASE WHEN expires > $1 THEN $1 ELSE expires END,
				sweep_at = CASE WHEN expires > $1 THEN $1 ELSE expires END
			WHERE id = $2 AND status = 'pending'`, micros(v.Expires), v.OrderID)
		return err
	})
}

// closeOrder ends an order that is not being issued.
func closeOrder(ctx context.Context, tx Tx, id string, c acme.Closing) error {
	_, err := tx.Exec(ctx, `UPDATE acme_orders SET status = 'invalid', error = $1, sweep_at = $2
		WHERE id = $3 AND status IN ('pending', 'ready')`, problemJSON(&c.Error), micros(c.PurgeAt), id)
	return err
}

// DeactivateAuthorization ends an authorization and the orders that rely on it.
func (s *ACME) DeactivateAuthorization(ctx context.Context, id string, now time.Time, closed acme.Closing, e audit.Entry) error {
	return s.write(ctx, "deactivating authorization", func(ctx context.Context, tx Tx) error {
		const give = `UPDATE acme_authzs SET status = 'deactivated', lease_until = 0, answer = NULL WHERE id = $1 AND expires > $2 AND status = `
		err := move(ctx, tx, &e, give+`'valid'`, id, micros(now))
		if errors.Is(err, acme.ErrMoved) {
			err = move(ctx, tx, nil, give+`'pending'`, id, micros(now)) // which proved nothing
		}
		if err != nil {
			return err
		}
		return closeRelying(ctx, tx, id, closed)
	})
}

// Holds reports whether an account has valid authorizations for all ids.
func (s *ACME) Holds(ctx context.Context, accountID string, ids []ca.Identifier, now time.Time) (bool, error) {
	if len(ids) == 0 {
		return false, nil
	}
	for _, id := range ids {
		name, wildcard := strings.CutPrefix(id.Value, "*.")
		names := []any{name}
		if id.Type == ca.DNS {
			names = append(names, anys(acme.Ancestors(name))...)
		}
		var n int64
		err := s.one(ctx, "looking for authorization", func(r Row) error { return r.Scan(&n) },
			`SELECT COUNT(*) FROM acme_authzs z WHERE z.account_id = $1 AND z.name IN (`+places(6, len(names))+`) AND z.status = 'valid'
				AND z.type = $2 AND z.expires > $3 AND (z.subdomains = 1 OR z.name = $4 AND z.wildcard = $5)`,
			append([]any{accountID, string(id.Type), micros(now), name, flag(wildcard)}, names...)...)
		if err != nil || n == 0 {
			return false, err
		}
	}
	return true, nil
}

// Issuances.

// Park accepts an order for later.
func (s *ACME) Park(ctx context.Context, c acme.Claim) error {
	return s.write(ctx, "parking order", func(ctx context.Context, tx Tx) error {
		return move(ctx, tx, nil, `UPDATE acme_orders SET status = 'processing', csr = $1, csr_hash = $2, due_at = $3, renewal = $4
			WHERE id = $5 AND status = 'ready' AND expires > $6`,
			c.CSR, c.CSRHash, micros(c.DueAt), flag(c.Renewal), c.OrderID, micros(c.Now))
	})
}

// BeginIssue claims an order and records what is to be signed for it.
func (s *ACME) BeginIssue(ctx context.Context, c acme.Claim, in ca.Intent) error {
	var unproven bool
	err := s.write(ctx, "claiming order", func(ctx context.Context, tx Tx) error {
		holds, args := proven(c, 9)
		err := move(ctx, tx, nil, `UPDATE acme_orders SET status = 'processing', csr = $1, csr_hash = $2, intent_id = $3, due_at = $4, renewal = $5,
				attempts = attempts + 1
			WHERE id = $6 AND intent_id = $7 AND expires > $8 AND (status = 'ready' OR (status = 'processing' AND csr_hash = $2)) AND `+holds,
			append([]any{c.CSR, c.CSRHash, in.ID, micros(c.DueAt), flag(c.Renewal), c.OrderID, c.Prev, micros(c.Now)}, args...)...)
		if unproven = false; errors.Is(err, acme.ErrMoved) {
			unproven, err = closeUnproven(ctx, tx, c, err)
			return err
		}
		if err != nil {
			return err
		}
		return beginIntent(ctx, tx, in)
	})
	if err == nil && unproven {
		return fmt.Errorf("claiming order: %w", acme.ErrUnproven)
	}
	return err
}

// CommitIssue makes an order valid together with its certificate.
func (s *ACME) CommitIssue(ctx context.Context, orderID string, in ca.Intent, c ca.Certificate, purgeAt time.Time) error {
	return s.write(ctx, "completing order", func(ctx context.Context, tx Tx) error {
		var done completed
		// The CSR of an order whose certificates are renewed is needed again.
		err := tx.QueryRow(ctx, `UPDATE acme_orders SET status = 'valid', certificate_id = $1, serial = $2, due_at = 0,
				csr = CASE WHEN auto_renewal = '' THEN NULL ELSE csr END, sweep_at = CASE WHEN keep_until > $3 THEN keep_until ELSE $3 END
			WHERE id = $4 AND status = 'processing' AND intent_id = $5 RETURNING replaces, auto_renewal, account_id, keep_until`,
			c.ID, string(c.Serial), micros(purgeAt), orderID, in.ID).Scan(&done.replaces, &done.renewal, &done.account, &done.keep)
		if errors.Is(err, ErrNoRows) {
			return ca.ErrLeaseLost
		}
		if err != nil {
			return err
		}
		if err := s.follow(ctx, tx, orderID, done, c); err != nil {
			return err
		}
		return commitIntent(ctx, tx, in, c)
	})
}

// AbortIssue ends an intent, and the order's attempt if it is still this one.
func (s *ACME) AbortIssue(ctx context.Context, orderID string, in ca.Intent, cause error, v acme.Verdict) error {
	return s.write(ctx, "aborting issuance", func(ctx context.Context, tx Tx) error {
		if err := settle(ctx, tx, orderID, in.ID, v, 1); err != nil && !errors.Is(err, acme.ErrMoved) {
			return err
		}
		return abortIntent(ctx, tx, in, cause)
	})
}

// Settle puts off or ends an order that was not begun.
func (s *ACME) Settle(ctx context.Context, orderID, intentID string, v acme.Verdict, e *audit.Entry) error {
	return s.write(ctx, "settling order", func(ctx context.Context, tx Tx) error {
		if err := settle(ctx, tx, orderID, intentID, v, 0); err != nil {
			return err
		}
		if e == nil {
			return nil
		}
		return appendAudit(ctx, tx, *e)
	})
}

// settle moves an order on after a try, which BeginIssue has counted already
// if it came that far.
func settle(ctx context.Context, tx Tx, orderID, intentID string, v acme.Verdict, counted int64) error {
	if v.Failed != nil {
		return move(ctx, tx, nil, `UPDATE acme_orders SET status = 'invalid', error = $1, csr = NULL, due_at = 0, sweep_at = $2
			WHERE id = $3 AND status = 'processing' AND intent_id = $4`,
			problemJSON(v.Failed), micros(v.PurgeAt), orderID, intentID)
	}
	return move(ctx, tx, nil, `UPDATE acme_orders SET intent_id = '', due_at = $1, attempts = attempts + $2
		WHERE id = $3 AND status = 'processing' AND intent_id = $4`,
		micros(v.DueAt), flag(v.Counts)-counted, orderID, intentID)
}

// ClaimDue takes an order that is due.
func (s *ACME) ClaimDue(ctx context.Context, orderID string, old, until time.Time) error {
	return s.write(ctx, "claiming due order", func(ctx context.Context, tx Tx) error {
		// An intent that is still there was left by an attempt that ended with
		// its process: it is counted as that.
		return move(ctx, tx, nil, `UPDATE acme_orders SET due_at = $1,
				attempts = CASE WHEN intent_id <> '' AND attempts > 0 THEN attempts - 1 ELSE attempts END,
				deaths = CASE WHEN intent_id <> '' THEN deaths + 1 ELSE deaths END
			WHERE id = $2 AND status = 'processing' AND due_at = $3`,
			micros(until), orderID, micros(old))
	})
}

// Certificates.

// CertificateOf returns a certificate that was issued to requester.
func (s *ACME) CertificateOf(ctx context.Context, requester, id string) (ca.Record, error) {
	return NewCA(s.db).one(ctx, `SELECT `+recordColumns+` FROM certificates c
		WHERE c.id = $1 AND c.state = 'issued' AND c.requester = $2`, id, requester)
}

// CertificateBy returns a certificate that was issued to who signs.
func (s *ACME) CertificateBy(ctx context.Context, by acme.Signer, id string) (ca.Record, error) {
	return NewCA(s.db).one(ctx, `SELECT `+recordColumns+` FROM certificates c
		WHERE c.id = $1 AND c.state = 'issued' AND c.requester = $4 AND `+signs, id, by.AccountID, by.Thumbprint, by.Actor())
}

// Record returns all that is known of a serial.
func (s *ACME) Record(ctx context.Context, serial ca.Serial) (ca.Record, error) {
	return NewCA(s.db).Record(ctx, serial)
}

// Sweep expires orders and deletes what ended long ago.
func (s *ACME) Sweep(ctx context.Context, w acme.Sweep) (int, error) {
	most := 0
	err := s.write(ctx, "sweeping", func(ctx context.Context, tx Tx) error {
		most = 0
		now, limit := micros(w.Now), int64(w.Limit)
		for _, step := range []struct {
			q    string
			args []any
		}{
			{
				`UPDATE acme_orders SET status = 'invalid', error = $1, sweep_at = $2 WHERE status IN ('pending', 'ready') AND id IN
				(SELECT o.id FROM acme_orders o WHERE o.status IN ('pending', 'ready') AND o.status <> 'processing' AND o.sweep_at <= $3 ORDER BY o.sweep_at LIMIT $4)`,
				[]any{problemJSON(&w.Closing.Error), micros(w.Closing.PurgeAt), now, limit},
			},
			{
				`DELETE FROM acme_orders WHERE status IN ('valid', 'invalid') AND id IN
				(SELECT o.id FROM acme_orders o WHERE o.status IN ('valid', 'invalid') AND o.status <> 'processing' AND o.sweep_at <= $1 ORDER BY o.sweep_at LIMIT $2)`,
				[]any{now, limit},
			},
			{
				`DELETE FROM acme_authzs WHERE id IN (SELECT z.id FROM acme_authzs z WHERE z.purge_at <= $1 ORDER BY z.purge_at LIMIT $2)`,
				[]any{now, limit},
			},
			{
				// The second look is at the row as it is once it is ours: an
				// order may have been debited to it meanwhile.
				`DELETE FROM quotas WHERE free_at <= $1 AND (kind, subject) IN
				(SELECT q.kind, q.subject FROM quotas q WHERE q.free_at <= $1 ORDER BY q.free_at LIMIT $2)`,
				[]any{now, limit},
			},
			{sweepFailures, []any{now, limit}},
		} {
			n, err := tx.Exec(ctx, step.q, step.args...)
			if err != nil {
				return err
			}
			most = max(most, int(n))
		}
		return nil
	})
	return most, err
}

// diedBefore is how much longer an order waits for each attempt that ended with
// its process before the last one, so that one that ends them all is not the
// first thing that every start does.
const diedBefore = 2 * time.Second

// EndLeases makes all that is under way due.
func (s *ACME) EndLeases(ctx context.Context, now time.Time) error {
	return s.write(ctx, "ending leases", func(ctx context.Context, tx Tx) error {
		_, err := tx.Exec(ctx, `UPDATE acme_orders SET due_at = $1 + $2 * deaths WHERE status = 'processing' AND due_at > $1 + $2 * deaths`,
			micros(now), diedBefore.Microseconds())
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE acme_authzs SET lease_until = $1 WHERE lease_until <> 0 AND lease_until > $1`, micros(now))
		return err
	})
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
