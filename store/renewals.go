package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
)

// renewable reads no certificate, which lies on pages of its own.
const renewable = `SELECT c.issuer, c.profile, c.spki_hash, c.names, c.requester, c.not_before, c.not_after, c.created_at, c.revoked_at, c.reason, c.replaced_by
	FROM certificates c WHERE c.serial = $1 AND c.state = 'issued'`

const listedBy = `SELECT l.incident FROM acme_incident_serials l JOIN acme_incidents i ON i.name = l.incident
	WHERE l.serial = $1 AND i.ended_at = 0`

// Renewable returns what is known of an issued certificate.
func (s *ACME) Renewable(ctx context.Context, serial ca.Serial, lists bool) (acme.Renewable, error) {
	var r acme.Renewable
	err := s.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		r = acme.Renewable{}
		r.Serial, r.State = serial, ca.Issued
		var (
			issuer, spki, names, replacedBy         string
			notBefore, notAfter, created, at, cause int64
		)
		err := tx.QueryRow(ctx, renewable, string(serial)).Scan(&issuer, &r.Profile, &spki, &names, &r.Requester,
			&notBefore, &notAfter, &created, &at, &cause, &replacedBy)
		if err != nil {
			return err
		}
		r.Issuer, r.ReplacedBy, r.Reason = ca.IssuerID(issuer), ca.Serial(replacedBy), ca.Reason(cause)
		r.NotBefore, r.NotAfter, r.CreatedAt, r.RevokedAt = fromMicros(notBefore), fromMicros(notAfter), fromMicros(created), fromMicros(at)
		if err := readKeyAndNames(&r.SPKIHash, &r.Names, spki, names); err != nil {
			return err
		}
		if lists {
			r.ListedBy, err = texts(ctx, tx, listedBy, string(serial))
		}
		return err
	})
	if errors.Is(err, ErrNoRows) {
		return acme.Renewable{}, ca.ErrNotFound
	}
	if err != nil {
		return acme.Renewable{}, fmt.Errorf("reading certificate to renew: %w", err)
	}
	return r, nil
}

// texts reads a column of text.
func texts(ctx context.Context, tx Tx, q string, args ...any) ([]string, error) {
	rows, err := tx.Query(ctx, q, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, rows.Err()
}

// OrderReplacing returns the order that replaces a certificate.
func (s *ACME) OrderReplacing(ctx context.Context, id acme.CertID) (o acme.Order, err error) {
	err = s.one(ctx, "finding the replacing order", func(r Row) (err error) { o, err = scanOrder(r); return err },
		`SELECT `+orderColumns+` FROM acme_orders o WHERE o.replaces = $1 AND o.replaces <> '' AND o.status <> 'invalid'`, string(id))
	return o, err
}

// expireReplacing ends an order for the same certificate that ran out and was not
// swept yet: it must not stand in the way of this one.
func expireReplacing(ctx context.Context, tx Tx, o acme.Order) error {
	p := acme.OrderExpired()
	_, err := tx.Exec(ctx, `UPDATE acme_orders SET status = 'invalid', error = $1, sweep_at = $2
		WHERE replaces = $3 AND replaces <> '' AND status IN ('pending', 'ready') AND expires <= $4`,
		problemJSON(&p), micros(o.Expires), string(o.Replaces), micros(o.CreatedAt))
	return err
}

// replaced notes at a certificate which one took its place, for good.
func replaced(ctx context.Context, tx Tx, id acme.CertID, by ca.Serial) error {
	_, err := tx.Exec(ctx, `UPDATE certificates SET replaced_by = $1 WHERE serial = $2 AND replaced_by = ''`, string(by), string(id.Serial()))
	return err
}

// OpenIncidents lists the incidents that have not ended.
func (s *ACME) OpenIncidents(ctx context.Context) ([]ca.Incident, error) {
	return many(ctx, s.db, "listing open incidents", scanIncident,
		`SELECT `+incidentColumns+` FROM acme_incidents i WHERE i.ended_at = 0 ORDER BY i.created_at, i.name LIMIT $1`, int64(ca.MaxIncidents))
}

const incidentColumns = `i.name, i.note, i.listed, i.issuer, i.profile, i.spki_hash, i.requester, i.issued_after, i.issued_before,
	i.window_start, i.window_end, i.url, i.created_at, i.created_by, i.ended_at, i.serials`

func scanIncident(row Row) (ca.Incident, error) {
	var (
		i                                                            ca.Incident
		issuer                                                       string
		listed, after, before, start, end, created, endedAt, serials int64
	)
	err := row.Scan(&i.Name, &i.Note, &listed, &issuer, &i.Profile, &i.SPKIHash, &i.Requester, &after, &before,
		&start, &end, &i.URL, &created, &i.CreatedBy, &endedAt, &serials)
	if err != nil {
		return ca.Incident{}, err
	}
	i.Listed, i.Issuer, i.Serials = listed != 0, ca.IssuerID(issuer), int(serials)
	i.IssuedAfter, i.IssuedBefore, i.Start, i.End = fromMicros(after), fromMicros(before), fromMicros(start), fromMicros(end)
	i.CreatedAt, i.EndedAt = fromMicros(created), fromMicros(endedAt)
	return i, nil
}
