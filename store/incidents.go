package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/admin"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
)

// Incidents keeps what must be replaced sooner. It is an admin.Incidents.
type Incidents struct{ db *DB }

var _ admin.Incidents = (*Incidents)(nil)

// NewIncidents returns the incidents in db.
func NewIncidents(db *DB) *Incidents { return &Incidents{db} }

// CreateIncident stores i, or returns the one of its name that is there, with false.
func (s *Incidents) CreateIncident(ctx context.Context, i ca.Incident, e audit.Entry) (out ca.Incident, created bool, err error) {
	err = s.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		created = false
		out, err = incident(ctx, tx, i.Name)
		if !errors.Is(err, ca.ErrNotFound) {
			return err
		}
		// Two at the same instant may both see the last free place: the bound is
		// on memory, and soft by as many as arrive at once.
		n, err := tx.Exec(ctx, `INSERT INTO acme_incidents (name, note, listed, issuer, profile, spki_hash, requester, issued_after, issued_before,
				window_start, window_end, url, created_at, created_by)
			SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14
			WHERE (SELECT COUNT(*) FROM acme_incidents i WHERE i.ended_at = 0) < $15
			ON CONFLICT (name) DO NOTHING`,
			i.Name, i.Note, flag(i.Listed), string(i.Issuer), i.Profile, i.SPKIHash, i.Requester, micros(i.IssuedAfter), micros(i.IssuedBefore),
			micros(i.Start), micros(i.End), i.URL, micros(i.CreatedAt), i.CreatedBy, int64(ca.MaxIncidents))
		if err != nil {
			return err
		}
		out, err = incident(ctx, tx, i.Name)
		switch {
		case errors.Is(err, ca.ErrNotFound):
			return ca.ErrTooManyIncidents
		case err != nil || n == 0: // somebody was faster
			return err
		}
		created = true
		return appendAudit(ctx, tx, e)
	})
	return out, created, inIncident(err, "creating incident")
}

func inIncident(err error, doing string) error {
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// incident reads one, ca.ErrNotFound for none.
func incident(ctx context.Context, tx Tx, name string) (ca.Incident, error) {
	i, err := scanIncident(tx.QueryRow(ctx, `SELECT `+incidentColumns+` FROM acme_incidents i WHERE i.name = $1`, name))
	if errors.Is(err, ErrNoRows) {
		return ca.Incident{}, ca.ErrNotFound
	}
	return i, err
}

// Incident returns one, ca.ErrNotFound for none.
func (s *Incidents) Incident(ctx context.Context, name string) (i ca.Incident, err error) {
	err = s.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		i, err = incident(ctx, tx, name)
		return err
	})
	return i, inIncident(err, "reading incident")
}

// ListIncidents lists incidents, those that are open first, then the newest.
func (s *Incidents) ListIncidents(ctx context.Context, limit int) ([]ca.Incident, error) {
	return many(ctx, s.db, "listing incidents", scanIncident,
		`SELECT `+incidentColumns+` FROM acme_incidents i
		ORDER BY CASE WHEN i.ended_at = 0 THEN 0 ELSE 1 END, i.created_at DESC, i.name LIMIT $1`, int64(limit))
}

// EndIncident ends an incident, or returns it as it is if it has ended. What it
// listed is forgotten, some at a time.
func (s *Incidents) EndIncident(ctx context.Context, name string, e audit.Entry) (out ca.Incident, err error) {
	err = s.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		n, err := tx.Exec(ctx, `UPDATE acme_incidents SET ended_at = $1 WHERE name = $2 AND ended_at = 0`, micros(e.At), name)
		if err == nil && n == 1 {
			err = appendAudit(ctx, tx, e)
		}
		if err != nil {
			return err
		}
		out, err = incident(ctx, tx, name)
		return err
	})
	for n := int64(1); err == nil && n > 0; {
		n = 0
		err = s.db.Write(ctx, func(ctx context.Context, tx Tx) (err error) {
			n, err = tx.Exec(ctx, `DELETE FROM acme_incident_serials WHERE incident = $1 AND serial IN
				(SELECT l.serial FROM acme_incident_serials l WHERE l.incident = $1 LIMIT $2)`, name, int64(forgottenAtOnce))
			return err
		})
	}
	return out, inIncident(err, "ending incident")
}

// forgottenAtOnce is how many serials one transaction deletes.
const forgottenAtOnce = 5000

// AddIncidentSerials puts serials on the list of an open incident. Those that
// were never issued are left out, and returned; those that are listed already
// are as good as new.
func (s *Incidents) AddIncidentSerials(ctx context.Context, name string, serials []ca.Serial, e audit.Entry) (out ca.Incident, unknown []ca.Serial, err error) {
	err = s.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		// Whoever else adds waits here, so that the count is right.
		n, err := tx.Exec(ctx, `UPDATE acme_incidents SET serials = serials WHERE name = $1 AND listed = 1 AND ended_at = 0`, name)
		if err != nil {
			return err
		}
		if out, err = incident(ctx, tx, name); err != nil {
			return err
		}
		if n == 0 {
			return ca.ErrIncidentEnded
		}
		known, err := issuedOf(ctx, tx, serials)
		if err != nil {
			return err
		}
		unknown = slices.DeleteFunc(slices.Clone(serials), func(x ca.Serial) bool { return slices.Contains(known, string(x)) })
		added, err := listSerials(ctx, tx, name, known)
		if err != nil || added == 0 {
			return err
		}
		if out.Serials += added; out.Serials > ca.MaxIncidentSerials {
			return ca.ErrIncidentFull
		}
		if _, err := tx.Exec(ctx, `UPDATE acme_incidents SET serials = $1 WHERE name = $2`, int64(out.Serials), name); err != nil {
			return err
		}
		return appendAudit(ctx, tx, e)
	})
	return out, unknown, inIncident(err, "listing serials of an incident")
}

// holders writes "$from, …", one for each of n parameters.
func holders(from, n int) string {
	var q strings.Builder
	for i := range n {
		if i > 0 {
			q.WriteString(", ")
		}
		q.WriteString("$" + strconv.Itoa(from+i))
	}
	return q.String()
}

func issuedOf(ctx context.Context, tx Tx, serials []ca.Serial) ([]string, error) {
	if len(serials) == 0 {
		return nil, nil
	}
	args := make([]any, 0, len(serials))
	for _, x := range serials {
		args = append(args, string(x))
	}
	return texts(ctx, tx, `SELECT c.serial FROM certificates c WHERE c.state = 'issued' AND c.serial IN (`+holders(1, len(args))+`)`, args...)
}

func listSerials(ctx context.Context, tx Tx, name string, serials []string) (int, error) {
	if len(serials) == 0 {
		return 0, nil
	}
	var q strings.Builder
	q.WriteString(`INSERT INTO acme_incident_serials (incident, serial) VALUES `)
	args := []any{name}
	for i, x := range serials {
		if i > 0 {
			q.WriteString(", ")
		}
		args = append(args, x)
		fmt.Fprintf(&q, "($1, $%d)", len(args))
	}
	q.WriteString(` ON CONFLICT (serial, incident) DO NOTHING`)
	n, err := tx.Exec(ctx, q.String(), args...)
	return int(n), err
}

// examined is how many certificates are looked at to count those that an
// incident selects, where no index leads to them: the newest ones, which is a
// second of work.
const examined = 100_000

// CountSelected counts the certificates that an incident selects, and which are
// to be replaced: issued, neither revoked nor expired. name is that of the
// incident whose list counts.
func (s *Incidents) CountSelected(ctx context.Context, name string, sel ca.Selector, now time.Time) (out ca.Selected, err error) {
	q, args := selected(name, sel, now)
	err = s.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		var all, matching, replaced int64
		if err := tx.QueryRow(ctx, q, args...).Scan(&all, &matching, &replaced); err != nil {
			return err
		}
		out = ca.Selected{Certificates: int(matching), Replaced: int(replaced), AtLeast: all > examined}
		return nil
	})
	return out, inIncident(err, "counting certificates")
}

// selected writes the count. Only what an index finds is narrowed inside of the
// limit.
func selected(name string, sel ca.Selector, now time.Time) (string, []any) {
	var in, out selection
	from := `certificates c`
	switch {
	case sel.Listed:
		from = `acme_incident_serials l JOIN certificates c ON c.serial = l.serial`
		in.add(`l.incident = %s`, name)
	case sel.SPKIHash != "":
		in.add(`c.spki_hash = %s`, sel.SPKIHash)
	}
	if !sel.IssuedAfter.IsZero() {
		in.add(`c.created_at >= %s`, micros(sel.IssuedAfter))
	}
	if !sel.IssuedBefore.IsZero() {
		in.add(`c.created_at < %s`, micros(sel.IssuedBefore))
	}
	out.args = in.args
	out.add(`x.state = 'issued' AND x.revoked_at = 0 AND x.not_after > %s`, micros(now))
	for _, is := range []struct{ column, v string }{
		{"issuer", string(sel.Issuer)}, {"profile", sel.Profile}, {"spki_hash", sel.SPKIHash}, {"requester", sel.Requester},
	} {
		if is.v != "" {
			out.add(`x.`+is.column+` = %s`, is.v)
		}
	}
	match := strings.Join(out.conds, ` AND `)
	out.args = append(out.args, int64(examined+1))
	order := ` ORDER BY c.created_at DESC`
	if sel.Listed || sel.SPKIHash != "" {
		order = ``
	}
	return `SELECT COUNT(*), CAST(COALESCE(SUM(CASE WHEN ` + match + ` THEN 1 ELSE 0 END), 0) AS BIGINT),
			CAST(COALESCE(SUM(CASE WHEN ` + match + ` AND x.replaced_by <> '' THEN 1 ELSE 0 END), 0) AS BIGINT)
		FROM (SELECT c.state, c.revoked_at, c.not_after, c.issuer, c.profile, c.spki_hash, c.requester, c.replaced_by
			FROM ` + from + in.where() + order + ` LIMIT $` + strconv.Itoa(len(out.args)) + `) x`, out.args
}
