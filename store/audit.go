package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
)

const insertAudit = `INSERT INTO audit_entries (id, at, actor, action, object, remote, request, detail) VALUES `

// appendAudit writes e in the transaction that makes its fact true. It has no
// place in the chain yet.
func appendAudit(ctx context.Context, tx Tx, e audit.Entry) error {
	_, err := tx.Exec(ctx, insertAudit+`($1, $2, $3, $4, $5, $6, $7, $8)`, auditValues(e)...)
	if err != nil {
		return fmt.Errorf("writing audit entry %s: %w", e.Action, err)
	}
	return nil
}

// appendAudits is appendAudit for a few hundred facts, in one statement.
func appendAudits(ctx context.Context, tx Tx, entries []audit.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	var (
		rows []string
		args []any
	)
	for _, e := range entries {
		values := auditValues(e)
		rows = append(rows, "("+holders(len(args)+1, len(values))+")")
		args = append(args, values...)
	}
	if _, err := tx.Exec(ctx, insertAudit+strings.Join(rows, ", "), args...); err != nil {
		return fmt.Errorf("writing audit entries: %w", err)
	}
	return nil
}

func auditValues(e audit.Entry) []any {
	e = e.Bounded() // fields may have been set since audit.New
	return []any{e.ID, e.At.UnixMicro(), e.Actor, e.Action, e.Object, e.Remote, e.Request, string(e.Detail)}
}

// Audit keeps audit entries and the chain over them. It is an audit.Log and an
// audit.Reader.
type Audit struct{ db *DB }

// NewAudit returns the audit entries in db.
func NewAudit(db *DB) *Audit { return &Audit{db} }

var (
	_ audit.Log    = (*Audit)(nil)
	_ audit.Reader = (*Audit)(nil)
)

// Append writes an entry whose fact has no transaction of its own, because it
// changes nothing in the database.
func (a *Audit) Append(ctx context.Context, e audit.Entry) error {
	return a.db.Write(ctx, func(ctx context.Context, tx Tx) error { return appendAudit(ctx, tx, e) })
}

// Head returns the end of the chain.
func (a *Audit) Head(ctx context.Context) (h audit.Head, err error) {
	err = a.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		return tx.QueryRow(ctx, `SELECT h.seq, h.hash FROM audit_head h WHERE h.id = 1`).Scan(&h.Seq, &h.Hash)
	})
	if err != nil {
		return audit.Head{}, fmt.Errorf("reading audit head: %w", err)
	}
	return h, nil
}

// End returns the head and the highest place of any entry. One statement reads
// both: at READ COMMITTED two would be of two moments.
func (a *Audit) End(ctx context.Context) (end audit.End, err error) {
	err = a.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		return tx.QueryRow(ctx, `SELECT h.seq, h.hash,
				COALESCE((SELECT e.seq FROM audit_entries e WHERE e.seq IS NOT NULL ORDER BY e.seq DESC LIMIT 1), 0)
			FROM audit_head h WHERE h.id = 1`).Scan(&end.Seq, &end.Hash, &end.Last)
	})
	if err != nil {
		return audit.End{}, fmt.Errorf("reading audit head: %w", err)
	}
	return end, nil
}

// Backlog counts the entries without a place.
func (a *Audit) Backlog(ctx context.Context) (audit.Backlog, error) {
	var n, oldest int64
	err := a.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		return tx.QueryRow(ctx, `SELECT COUNT(*), COALESCE(MIN(e.at), 0) FROM audit_entries e WHERE e.seq IS NULL`).Scan(&n, &oldest)
	})
	if err != nil {
		return audit.Backlog{}, fmt.Errorf("counting pending audit entries: %w", err)
	}
	b := audit.Backlog{Count: n}
	if n > 0 {
		b.Oldest = time.UnixMicro(oldest).UTC()
	}
	return b, nil
}

// auditColumns are those that scanEntry reads, of a table called e.
const auditColumns = `e.id, e.at, e.actor, e.action, e.object, e.remote, e.request, e.detail`

// scanEntry reads auditColumns, and what follows them into more. A time of 0
// stays 1970 here: each stored value has a text of its own in the chain.
func scanEntry(row Row, more ...any) (audit.Entry, error) {
	var (
		e      audit.Entry
		at     int64
		detail string
	)
	dest := append([]any{&e.ID, &at, &e.Actor, &e.Action, &e.Object, &e.Remote, &e.Request, &detail}, more...)
	if err := row.Scan(dest...); err != nil {
		return audit.Entry{}, err
	}
	e.At = time.UnixMicro(at).UTC()
	if detail != "" {
		e.Detail = []byte(detail)
	}
	return e, nil
}

// Pending lists entries without a place, by time and id.
func (a *Audit) Pending(ctx context.Context, limit int) ([]audit.Entry, error) {
	var out []audit.Entry
	err := a.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		out = nil
		rows, err := tx.Query(ctx, `SELECT `+auditColumns+` FROM audit_entries e
			WHERE e.seq IS NULL ORDER BY e.at, e.id LIMIT $1`, int64(limit))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			e, err := scanEntry(rows)
			if err != nil {
				return err
			}
			out = append(out, e)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("listing pending audit entries: %w", err)
	}
	return out, nil
}

// chainRows is how many entries one statement gives their places: both engines
// bound the number of parameters.
const chainRows = 64

// Extend moves the head from from and gives recs the places up to it.
func (a *Audit) Extend(ctx context.Context, from audit.Head, recs []audit.Record) error {
	if len(recs) == 0 {
		return nil
	}
	to := recs[len(recs)-1].Head()
	return a.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		n, err := tx.Exec(ctx, `UPDATE audit_head SET seq = $1, hash = $2 WHERE id = 1 AND seq = $3 AND hash = $4`,
			to.Seq, to.Hash, from.Seq, from.Hash)
		if err != nil {
			return fmt.Errorf("moving audit head: %w", err)
		}
		if n != 1 {
			return audit.ErrHeadMoved
		}
		for chunk := range slices.Chunk(recs, chainRows) {
			if err := place(ctx, tx, chunk); err != nil {
				return err
			}
		}
		return nil
	})
}

// errNotPending can be met only by entries that were tampered with: whoever
// holds the head is alone in giving places.
var errNotPending = errors.New("an entry is gone or has its place already")

func place(ctx context.Context, tx Tx, recs []audit.Record) error {
	var q strings.Builder
	q.WriteString(`UPDATE audit_entries SET seq = v.column2, hash = v.column3 FROM (VALUES `)
	args := make([]any, 0, 3*len(recs))
	for i, r := range recs {
		if i > 0 {
			q.WriteString(", ")
		}
		args = append(args, r.ID, r.Seq, r.Hash)
		fmt.Fprintf(&q, "(CAST($%d AS TEXT), CAST($%d AS BIGINT), CAST($%d AS TEXT))", len(args)-2, len(args)-1, len(args))
	}
	q.WriteString(`) AS v WHERE audit_entries.id = v.column1 AND audit_entries.seq IS NULL`)
	n, err := tx.Exec(ctx, q.String(), args...)
	if err != nil {
		return fmt.Errorf("chaining audit entries from %d: %w", recs[0].Seq, err)
	}
	if n != int64(len(recs)) {
		return fmt.Errorf("chaining audit entries from %d: %w", recs[0].Seq, errNotPending)
	}
	return nil
}

// Records lists chained entries after a place, in their order.
func (a *Audit) Records(ctx context.Context, after int64, limit int) ([]audit.Record, error) {
	return a.records(ctx, ` WHERE e.seq > $1 ORDER BY e.seq LIMIT $2`, after, int64(limit))
}

// List returns the chained entries that q selects.
func (a *Audit) List(ctx context.Context, q audit.Query) ([]audit.Record, error) {
	if q.Limit <= 0 {
		q.Limit = 50
	}
	args := []any{q.After}
	where := ` WHERE e.seq > $1`
	add := func(cond string, v any) {
		args = append(args, v)
		where += ` AND ` + cond + ` $` + strconv.Itoa(len(args))
	}
	if q.Before > 0 {
		add(`e.seq <`, q.Before)
	}
	if q.Action != "" {
		add(`e.action =`, q.Action)
	}
	if q.Object != "" {
		add(`e.object =`, q.Object)
	}
	order := ` ORDER BY e.seq`
	if q.Newest {
		order += ` DESC`
	}
	args = append(args, int64(min(q.Limit, audit.MaxList)))
	return a.records(ctx, where+order+` LIMIT $`+strconv.Itoa(len(args)), args...)
}

func (a *Audit) records(ctx context.Context, clauses string, args ...any) ([]audit.Record, error) {
	var out []audit.Record
	err := a.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		out = nil
		rows, err := tx.Query(ctx, `SELECT `+auditColumns+`, e.seq, e.hash FROM audit_entries e`+clauses, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var r audit.Record
			if r.Entry, err = scanEntry(rows, &r.Seq, &r.Hash); err != nil {
				return err
			}
			out = append(out, r)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("listing audit entries: %w", err)
	}
	return out, nil
}
