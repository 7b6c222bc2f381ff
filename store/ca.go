package store

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
)

// CA keeps serials, certificates, revocations and blocked keys. It is a ca.Store.
type CA struct {
	db   *DB
	many int // how many certificates List sorts for a page, at the most
}

// maxSorted is how many rows are sorted in a few milliseconds.
const maxSorted = 5000

// NewCA returns the certificates in db.
func NewCA(db *DB) *CA { return &CA{db, maxSorted} }

var _ ca.Store = (*CA)(nil)

// beginIntent makes in durable before any key is used. A serial that was ever
// drawn before gives ca.ErrSerialTaken.
func beginIntent(ctx context.Context, tx Tx, in ca.Intent) error {
	names, err := json.Marshal(in.Names)
	if err != nil {
		return fmt.Errorf("encoding names: %w", err)
	}
	n, err := tx.Exec(ctx, `INSERT INTO certificates (serial, id, issuer, profile, state, tbs, spki_hash, names, requester,
			not_before, not_after, created_at, lease_until, names_hash, crl_shard)
		VALUES ($1, $2, $3, $4, 'pending', $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
		ON CONFLICT (serial) DO NOTHING`,
		string(in.Serial), in.ID, string(in.Issuer), in.Profile, in.TBS, hex.EncodeToString(in.SPKIHash[:]), string(names), in.Requester.Actor,
		micros(in.NotBefore), micros(in.NotAfter), micros(in.CreatedAt), micros(in.LeaseUntil), namesHash(in.Names), int64(in.CRLShard))
	if err != nil {
		return fmt.Errorf("recording intent: %w", err)
	}
	if n == 0 {
		return ca.ErrSerialTaken
	}
	if err := insertNames(ctx, tx, in.Serial, in.Names); err != nil {
		return err
	}
	return appendAudit(ctx, tx, in.Intended())
}

// Adopt records an authority's certificate that was signed outside of any ledger.
func (c *CA) Adopt(ctx context.Context, cert ca.Certificate, spki [32]byte, e audit.Entry) (added bool, err error) {
	err = c.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		n, err := tx.Exec(ctx, `INSERT INTO certificates (serial, id, issuer, profile, state, der, spki_hash, names, requester,
				not_before, not_after, created_at, lease_until, names_hash)
			VALUES ($1, $2, $3, $4, 'issued', $5, $6, '[]', $7, $8, $9, $10, 0, '')
			ON CONFLICT (serial) DO NOTHING`,
			string(cert.Serial), cert.ID, string(cert.Issuer), cert.Profile, cert.DER, hex.EncodeToString(spki[:]), e.Actor,
			micros(cert.NotBefore), micros(cert.NotAfter), micros(e.At))
		if err != nil {
			return err
		}
		if added = n == 1; added {
			return appendAudit(ctx, tx, e)
		}
		var issuer string
		var der []byte
		err = tx.QueryRow(ctx, `SELECT c.issuer, c.der FROM certificates c WHERE c.serial = $1`, string(cert.Serial)).Scan(&issuer, &der)
		if err == nil && (issuer != string(cert.Issuer) || !bytes.Equal(der, cert.DER)) {
			err = ca.ErrSerialTaken
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("adopting %s: %w", cert.Serial, err)
	}
	return added, nil
}

// commitIntent puts the signed certificate in place of the intent, or fails
// with ca.ErrLeaseLost if it is no longer pending.
func commitIntent(ctx context.Context, tx Tx, in ca.Intent, c ca.Certificate) error {
	n, err := tx.Exec(ctx, `UPDATE certificates SET state = 'issued', der = $1, tbs = NULL
		WHERE serial = $2 AND id = $3 AND state = 'pending'`, c.DER, string(in.Serial), in.ID)
	if err != nil {
		return fmt.Errorf("recording certificate: %w", err)
	}
	if n == 0 {
		return ca.ErrLeaseLost
	}
	return appendAudit(ctx, tx, in.Committed(c))
}

// abortIntent ends an intent that did not become a certificate: void if cause
// says that no device was called, abandoned and revoked otherwise.
func abortIntent(ctx context.Context, tx Tx, in ca.Intent, cause error) error {
	e := in.Aborted(cause)
	if !ca.NeverSigned(cause) {
		seq, err := nextStatus(ctx, tx, in.Issuer)
		if err != nil {
			return err
		}
		n, err := tx.Exec(ctx, `UPDATE certificates SET state = 'abandoned', revoked_at = $1, reason = $2, revocation_seq = $3
			WHERE serial = $4 AND id = $5 AND state = 'pending'`, micros(e.At), int64(ca.AbandonedReason), seq, string(in.Serial), in.ID)
		return ended(ctx, tx, n, err, e)
	}
	n, err := tx.Exec(ctx, `UPDATE certificates SET state = 'void', tbs = NULL
		WHERE serial = $1 AND id = $2 AND state = 'pending'`, string(in.Serial), in.ID)
	if err == nil && n == 1 {
		// Nobody can hold a certificate of these names.
		_, err = tx.Exec(ctx, `DELETE FROM certificate_names WHERE serial = $1`, string(in.Serial))
	}
	return ended(ctx, tx, n, err, e)
}

// ended closes the move of one pending row with its audit entry.
func ended(ctx context.Context, tx Tx, n int64, err error, e audit.Entry) error {
	if err != nil {
		return fmt.Errorf("ending intent: %w", err)
	}
	if n == 0 {
		return ca.ErrLeaseLost
	}
	return appendAudit(ctx, tx, e)
}

// nameRows is how many names one statement inserts: both engines bound the
// number of parameters.
const nameRows = 100

func insertNames(ctx context.Context, tx Tx, s ca.Serial, names []ca.Identifier) error {
	keys := make([]string, 0, len(names))
	for _, n := range names {
		keys = append(keys, nameKey(n.Value))
	}
	for chunk := range slices.Chunk(keys, nameRows) {
		var q strings.Builder
		q.WriteString(`INSERT INTO certificate_names (serial, name_reversed) VALUES `)
		args := []any{string(s)}
		for i, k := range chunk {
			if i > 0 {
				q.WriteString(", ")
			}
			args = append(args, k)
			fmt.Fprintf(&q, "($1, $%d)", len(args))
		}
		q.WriteString(` ON CONFLICT (name_reversed, serial) DO NOTHING`)
		if _, err := tx.Exec(ctx, q.String(), args...); err != nil {
			return fmt.Errorf("recording names: %w", err)
		}
	}
	return nil
}

// nameKey writes a domain name from its root on: "com.example.www". Addresses
// stay as they are; no domain name looks like one.
func nameKey(name string) string {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if a, err := netip.ParseAddr(name); err == nil {
		return a.String()
	}
	labels := strings.Split(name, ".")
	slices.Reverse(labels)
	return strings.Join(labels, ".")
}

// PlainLedger records issuances that belong to no edge.
func (c *CA) PlainLedger() ca.Ledger { return plainLedger{c.db} }

type plainLedger struct{ db *DB }

func (l plainLedger) Begin(ctx context.Context, in ca.Intent) error {
	return l.db.Write(ctx, func(ctx context.Context, tx Tx) error { return beginIntent(ctx, tx, in) })
}

func (l plainLedger) Commit(ctx context.Context, in ca.Intent, c ca.Certificate) error {
	return l.db.Write(ctx, func(ctx context.Context, tx Tx) error { return commitIntent(ctx, tx, in, c) })
}

func (l plainLedger) Abort(ctx context.Context, in ca.Intent, cause error) error {
	return l.db.Write(ctx, func(ctx context.Context, tx Tx) error { return abortIntent(ctx, tx, in, cause) })
}

// recordColumns are those that scanRecord reads, of a table called c.
const recordColumns = `c.serial, c.id, c.issuer, c.profile, c.state, c.der, c.spki_hash, c.names, c.requester,
	c.not_before, c.not_after, c.created_at, c.revoked_at, c.reason, c.replaced_by, c.auto_renewed,
	c.revocation_seq, c.invalidity_at`

func scanRecord(row Row) (ca.Record, error) {
	var (
		r                                       ca.Record
		serial, issuer, state, spki, names      string
		notBefore, notAfter, created, at, cause int64
		replacedBy                              string
		auto, invalid                           int64
	)
	err := row.Scan(&serial, &r.ID, &issuer, &r.Profile, &state, &r.DER, &spki, &names, &r.Requester,
		&notBefore, &notAfter, &created, &at, &cause, &replacedBy, &auto, &r.StatusSeq, &invalid)
	if err != nil {
		return ca.Record{}, err
	}
	r.Serial, r.Issuer, r.State, r.Reason = ca.Serial(serial), ca.IssuerID(issuer), ca.State(state), ca.Reason(cause)
	r.ReplacedBy, r.AutoRenewed = ca.Serial(replacedBy), auto != 0
	r.NotBefore, r.NotAfter, r.CreatedAt, r.RevokedAt = fromMicros(notBefore), fromMicros(notAfter), fromMicros(created), fromMicros(at)
	r.InvalidityAt = fromMicros(invalid)
	if err := readKeyAndNames(&r.SPKIHash, &r.Names, spki, names); err != nil {
		return ca.Record{}, fmt.Errorf("reading certificate %s: %w", serial, err)
	}
	return r, nil
}

func readKeyAndNames(hash *[32]byte, names *[]ca.Identifier, spki, list string) error {
	b, err := hex.DecodeString(spki)
	if err != nil || len(b) != len(hash) {
		return fmt.Errorf("key hash %q is not 32 octets of hex", spki)
	}
	copy(hash[:], b)
	if err := json.Unmarshal([]byte(list), names); err != nil {
		return fmt.Errorf("decoding names: %w", err)
	}
	return nil
}

// Record returns all that is known of s.
func (c *CA) Record(ctx context.Context, s ca.Serial) (ca.Record, error) {
	return c.one(ctx, `SELECT `+recordColumns+` FROM certificates c WHERE c.serial = $1`, string(s))
}

// CertificateByID returns an issued certificate, and ca.ErrNotFound for none.
func (c *CA) CertificateByID(ctx context.Context, id string) (ca.Certificate, error) {
	r, err := c.one(ctx, `SELECT `+recordColumns+` FROM certificates c WHERE c.id = $1 AND c.state = 'issued'`, id)
	return r.Certificate, err
}

func (c *CA) one(ctx context.Context, q string, args ...any) (r ca.Record, err error) {
	err = c.db.ReadRow(ctx, func(row Row) (err error) { r, err = scanRecord(row); return err }, q, args...)
	if errors.Is(err, ErrNoRows) {
		return ca.Record{}, ca.ErrNotFound
	}
	if err != nil {
		return ca.Record{}, fmt.Errorf("reading certificate: %w", err)
	}
	return r, nil
}

// RecordsOf returns all that is known of those of serials that were assigned.
func (c *CA) RecordsOf(ctx context.Context, serials []ca.Serial) ([]ca.Record, error) {
	if len(serials) == 0 {
		return nil, nil
	}
	return many(ctx, c.db, "reading certificates", scanRecord,
		`SELECT `+recordColumns+` FROM certificates c WHERE c.serial IN (`+holders(1, len(serials))+`)`, anys(serials)...)
}

// Revoke takes back one issued certificate.
func (c *CA) Revoke(ctx context.Context, r ca.Revocation, e audit.Entry) error {
	return c.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		errs, err := revoke(ctx, tx, []ca.Revocation{r}, []audit.Entry{e})
		if err == nil {
			err = errs[0]
		}
		return err
	})
}

// RevokeAll takes back many issued certificates in one transaction.
func (c *CA) RevokeAll(ctx context.Context, rs []ca.Revocation) (errs []error, err error) {
	entries := make([]audit.Entry, len(rs))
	for i, r := range rs {
		entries[i] = r.Entry()
	}
	err = c.db.Write(ctx, func(ctx context.Context, tx Tx) (err error) {
		errs, err = revoke(ctx, tx, rs, entries)
		return err
	})
	return errs, err
}

// revoke writes what each of rs makes of its certificate. Nobody else changes
// the status of their issuers' certificates meanwhile.
func revoke(ctx context.Context, tx Tx, rs []ca.Revocation, entries []audit.Entry) ([]error, error) {
	serials := make([]ca.Serial, len(rs))
	for i, r := range rs {
		serials[i] = r.Serial
	}
	heads, err := lockStatus(ctx, tx, serials)
	if err != nil {
		return nil, err
	}
	now, err := statusOf(ctx, tx, serials)
	if err != nil {
		return nil, err
	}
	errs := make([]error, len(rs))
	var done []audit.Entry
	changes := statusChanges{was: make(map[ca.Serial]int64, len(rs))}
	for i, r := range rs {
		rec, known := now[r.Serial]
		if !known {
			errs[i] = ca.ErrNotFound
			continue
		}
		next, err := r.Apply(rec)
		if err == nil {
			heads[rec.Issuer]++
			next.StatusSeq = heads[rec.Issuer]
			now[r.Serial] = next
			changes.add(rec)
		}
		if r.BlockKey && !errors.Is(err, ca.ErrNotFound) {
			blocked, blockErr := blockKey(ctx, tx, r)
			if blockErr != nil {
				return nil, fmt.Errorf("blocking key: %w", blockErr)
			}
			if blocked && r.Reason == ca.KeyCompromise {
				err = nil // the proof may come after a revocation for the same reason
			}
		}
		if errs[i] = err; err == nil {
			done = append(done, entries[i])
		}
	}
	if err := changes.write(ctx, tx, now); err != nil {
		return nil, err
	}
	if err := appendAudits(ctx, tx, done); err != nil {
		return nil, err
	}
	return errs, moveHeads(ctx, tx, heads)
}

// lockStatus returns the last number of each issuer that has one of serials, and
// lets nobody else take one. It comes before all else that a change of status
// locks, and in the order of issuers, so that no two wait for each other.
func lockStatus(ctx context.Context, tx Tx, serials []ca.Serial) (map[ca.IssuerID]int64, error) {
	issuers, err := texts(ctx, tx, `SELECT DISTINCT c.issuer FROM certificates c WHERE c.serial IN (`+holders(1, len(serials))+`) ORDER BY c.issuer`, anys(serials)...)
	if err != nil {
		return nil, fmt.Errorf("reading issuers: %w", err)
	}
	heads := make(map[ca.IssuerID]int64, len(issuers))
	for _, issuer := range issuers {
		var seq int64
		err := tx.QueryRow(ctx, `INSERT INTO revocation_heads (issuer, seq) VALUES ($1, 0)
			ON CONFLICT (issuer) DO UPDATE SET seq = revocation_heads.seq RETURNING seq`, issuer).Scan(&seq)
		if err != nil {
			return nil, fmt.Errorf("reading the number of the last change of status: %w", err)
		}
		heads[ca.IssuerID(issuer)] = seq
	}
	return heads, nil
}

func moveHeads(ctx context.Context, tx Tx, heads map[ca.IssuerID]int64) error {
	for issuer, seq := range heads {
		if _, err := tx.Exec(ctx, `UPDATE revocation_heads SET seq = $1 WHERE issuer = $2`, seq, string(issuer)); err != nil {
			return fmt.Errorf("keeping the number of the last change of status: %w", err)
		}
	}
	return nil
}

// statusOf reads of each certificate what its status depends on.
func statusOf(ctx context.Context, tx Tx, serials []ca.Serial) (map[ca.Serial]ca.Record, error) {
	rows, err := tx.Query(ctx, `SELECT c.serial, c.issuer, c.state, c.revoked_at, c.reason, c.invalidity_at, c.revocation_seq
		FROM certificates c WHERE c.serial IN (`+holders(1, len(serials))+`)`, anys(serials)...)
	if err != nil {
		return nil, fmt.Errorf("reading status: %w", err)
	}
	defer rows.Close()
	out := make(map[ca.Serial]ca.Record, len(serials))
	for rows.Next() {
		var (
			serial, issuer, state string
			at, reason, invalid   int64
			rec                   ca.Record
		)
		if err := rows.Scan(&serial, &issuer, &state, &at, &reason, &invalid, &rec.StatusSeq); err != nil {
			return nil, fmt.Errorf("reading status: %w", err)
		}
		rec.Serial, rec.Issuer, rec.State, rec.Reason = ca.Serial(serial), ca.IssuerID(issuer), ca.State(state), ca.Reason(reason)
		rec.RevokedAt, rec.InvalidityAt = fromMicros(at), fromMicros(invalid)
		out[rec.Serial] = rec
	}
	return out, rows.Err()
}

// errStatusMoved says that a program of an older version, which takes no lock,
// was there at the same time.
var errStatusMoved = errors.New("store: the status changed meanwhile")

// statusChanges are the certificates whose status one transaction changes, each
// once, and the numbers of their last changes before it.
type statusChanges struct {
	serials []ca.Serial
	was     map[ca.Serial]int64
}

func (c *statusChanges) add(was ca.Record) {
	if _, twice := c.was[was.Serial]; !twice {
		c.serials = append(c.serials, was.Serial)
		c.was[was.Serial] = was.StatusSeq
	}
}

// write makes of all of them what is says, in one statement.
func (c *statusChanges) write(ctx context.Context, tx Tx, is map[ca.Serial]ca.Record) error {
	if len(c.serials) == 0 {
		return nil
	}
	var q strings.Builder
	q.WriteString(`UPDATE certificates SET revoked_at = v.column2, reason = v.column3, invalidity_at = v.column4, revocation_seq = v.column5
		FROM (VALUES `)
	var (
		args []any
		keys []string
	)
	for i, serial := range c.serials {
		if i > 0 {
			q.WriteString(", ")
		}
		rec := is[serial]
		args = append(args, string(serial), micros(rec.RevokedAt), int64(rec.Reason), micros(rec.InvalidityAt), rec.StatusSeq, c.was[serial])
		n := len(args)
		keys = append(keys, "$"+strconv.Itoa(n-5))
		fmt.Fprintf(&q, `($%d, CAST($%d AS BIGINT), CAST($%d AS BIGINT), CAST($%d AS BIGINT), CAST($%d AS BIGINT), CAST($%d AS BIGINT))`, n-5, n-4, n-3, n-2, n-1, n)
	}
	// SQLite would rather read the whole table than the few rows of v first.
	q.WriteString(`) v WHERE certificates.serial IN (` + strings.Join(keys, ", ") + `)
		AND certificates.serial = v.column1 AND certificates.state = 'issued' AND certificates.revocation_seq = v.column6`)
	n, err := tx.Exec(ctx, q.String(), args...)
	if err != nil {
		return fmt.Errorf("writing status: %w", err)
	}
	if n != int64(len(c.serials)) {
		return errStatusMoved
	}
	return nil
}

// nextStatus takes the number of a change of status. It comes before all else
// that such a change locks, so that two of them never wait for each other.
func nextStatus(ctx context.Context, tx Tx, issuer ca.IssuerID) (seq int64, err error) {
	err = tx.QueryRow(ctx, `INSERT INTO revocation_heads (issuer, seq) VALUES ($1, 1)
		ON CONFLICT (issuer) DO UPDATE SET seq = revocation_heads.seq + 1 RETURNING seq`, string(issuer)).Scan(&seq)
	if err != nil {
		return 0, fmt.Errorf("taking the number of a change of status: %w", err)
	}
	return seq, nil
}

// nextStatusOf is nextStatus for whoever knows no more than the serial.
func nextStatusOf(ctx context.Context, tx Tx, s ca.Serial) (int64, error) {
	var issuer string
	err := tx.QueryRow(ctx, `SELECT c.issuer FROM certificates c WHERE c.serial = $1`, string(s)).Scan(&issuer)
	if errors.Is(err, ErrNoRows) {
		return 0, ca.ErrNotFound
	}
	if err != nil {
		return 0, fmt.Errorf("reading issuer: %w", err)
	}
	return nextStatus(ctx, tx, ca.IssuerID(issuer))
}

// Release ends the hold of one certificate.
func (c *CA) Release(ctx context.Context, s ca.Serial, e audit.Entry) error {
	return c.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		seq, err := nextStatusOf(ctx, tx, s)
		if err != nil {
			return fmt.Errorf("releasing: %w", err)
		}
		n, err := tx.Exec(ctx, `UPDATE certificates SET revoked_at = 0, reason = 0, invalidity_at = 0, revocation_seq = $1
			WHERE serial = $2 AND state = 'issued' AND revoked_at <> 0 AND reason = $3`, seq, string(s), int64(ca.CertificateHold))
		if err != nil {
			return fmt.Errorf("releasing: %w", err)
		}
		if n == 0 {
			return ca.ErrNotHeld
		}
		return appendAudit(ctx, tx, e)
	})
}

func blockKey(ctx context.Context, tx Tx, r ca.Revocation) (bool, error) {
	n, err := tx.Exec(ctx, `INSERT INTO blocked_keys (spki_hash, serial, blocked_at, blocked_by)
		SELECT c.spki_hash, c.serial, $1, $2 FROM certificates c WHERE c.serial = $3 AND c.state = 'issued'
		ON CONFLICT (spki_hash) DO NOTHING`, micros(r.At), r.Requester.Actor, string(r.Serial))
	return n == 1, err
}

// KeyBlocked reports whether a SubjectPublicKeyInfo hash is on the blocklist.
func (c *CA) KeyBlocked(ctx context.Context, spki [32]byte) (bool, error) {
	var n int64
	err := c.db.ReadRow(ctx, func(r Row) error { return r.Scan(&n) },
		`SELECT COUNT(*) FROM blocked_keys b WHERE b.spki_hash = $1`, hex.EncodeToString(spki[:]))
	if err != nil {
		return false, fmt.Errorf("looking for blocked key: %w", err)
	}
	return n > 0, nil
}

// Expired lists pending intents whose lease ended before now, oldest first.
func (c *CA) Expired(ctx context.Context, now time.Time, limit int) ([]ca.Intent, error) {
	var out []ca.Intent
	err := c.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		out = nil
		rows, err := tx.Query(ctx, `SELECT c.serial, c.id, c.issuer, c.profile, c.tbs, c.spki_hash, c.names, c.requester,
				c.not_before, c.not_after, c.created_at, c.lease_until
			FROM certificates c WHERE c.state = 'pending' AND c.lease_until < $1
			ORDER BY c.lease_until LIMIT $2`, micros(now), int64(limit))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			in, err := scanIntent(rows)
			if err != nil {
				return err
			}
			out = append(out, in)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("listing expired intents: %w", err)
	}
	return out, nil
}

func scanIntent(row Row) (ca.Intent, error) {
	var (
		in                                  ca.Intent
		serial, issuer, spki, names         string
		notBefore, notAfter, created, lease int64
	)
	err := row.Scan(&serial, &in.ID, &issuer, &in.Profile, &in.TBS, &spki, &names, &in.Requester.Actor,
		&notBefore, &notAfter, &created, &lease)
	if err != nil {
		return ca.Intent{}, err
	}
	in.Serial, in.Issuer = ca.Serial(serial), ca.IssuerID(issuer)
	in.NotBefore, in.NotAfter, in.CreatedAt, in.LeaseUntil = fromMicros(notBefore), fromMicros(notAfter), fromMicros(created), fromMicros(lease)
	if err := readKeyAndNames(&in.SPKIHash, &in.Names, spki, names); err != nil {
		return ca.Intent{}, fmt.Errorf("reading intent %s: %w", serial, err)
	}
	return in, nil
}

// Abandon gives up one pending intent whose lease ended before now. It is
// revoked as of e's time.
func (c *CA) Abandon(ctx context.Context, s ca.Serial, now time.Time, e audit.Entry) error {
	return c.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		seq, err := nextStatusOf(ctx, tx, s)
		if errors.Is(err, ca.ErrNotFound) {
			return ca.ErrLeaseLost
		}
		if err != nil {
			return fmt.Errorf("ending intent: %w", err)
		}
		n, err := tx.Exec(ctx, `UPDATE certificates SET state = 'abandoned', revoked_at = $1, reason = $2, revocation_seq = $3
			WHERE serial = $4 AND state = 'pending' AND lease_until < $5`,
			micros(e.At), int64(ca.AbandonedReason), seq, string(s), micros(now))
		return ended(ctx, tx, n, err, e)
	})
}

// List returns a page of records, newest first, and the cursor of the next
// page, which is empty on the last one.
func (c *CA) List(ctx context.Context, q ca.ListQuery) ([]ca.Record, string, error) {
	if q.Limit <= 0 {
		q.Limit = 50
	}
	q.Limit = min(q.Limit, ca.MaxList)
	var out []ca.Record
	err := c.db.Read(ctx, func(ctx context.Context, tx Tx) (err error) {
		out, err = c.list(ctx, tx, q)
		return err
	})
	if err != nil {
		return nil, "", fmt.Errorf("listing certificates: %w", err)
	}
	if len(out) <= q.Limit {
		return out, "", nil
	}
	out = out[:q.Limit]
	last := out[q.Limit-1]
	return out, strconv.FormatInt(micros(last.CreatedAt), 10) + "." + string(last.Serial), nil
}

// list asks for one row more than the page has, to know whether there is a next one.
func (c *CA) list(ctx context.Context, tx Tx, q ca.ListQuery) ([]ca.Record, error) {
	var s selection
	if err := c.narrow(ctx, tx, &s, q); err != nil {
		return nil, err
	}
	if q.State != "" {
		s.add(`c.state = %s`, string(q.State))
	}
	if q.Revoked {
		s.add(`c.revoked_at <> 0`)
	}
	if q.Unrevoked {
		s.add(`c.revoked_at = 0`)
	}
	for _, is := range []struct{ column, v string }{{"profile", q.Profile}, {"requester", q.Requester}} {
		if is.v != "" {
			s.add(`c.`+is.column+` = %s`, is.v)
		}
	}
	if q.Reason != ca.Unspecified {
		s.add(`c.reason = %s AND c.revoked_at <> 0`, int64(q.Reason))
	}
	for _, bound := range []struct {
		cond string
		at   time.Time
	}{
		{`c.created_at >= %s`, q.IssuedAfter},
		{`c.created_at < %s`, q.IssuedBefore},
		{`c.not_before >= %s`, q.NotBeforeFrom},
		{`c.not_before < %s`, q.NotBeforeTo},
		{`c.not_after >= %s`, q.NotAfterFrom},
	} {
		if !bound.at.IsZero() {
			s.add(bound.cond, micros(bound.at))
		}
	}
	if q.Before != "" {
		at, serial, ok := strings.Cut(q.Before, ".")
		us, err := strconv.ParseInt(at, 10, 64)
		if err != nil || !ok {
			return nil, fmt.Errorf("%w: cursor %q", ca.ErrNotFound, q.Before)
		}
		s.add(`(c.created_at < %s OR (c.created_at = %s AND c.serial < %s))`, us, us, serial)
	}
	where := s.where()
	s.args = append(s.args, int64(q.Limit+1))
	rows, err := tx.Query(ctx, `SELECT `+recordColumns+` FROM certificates c`+where+
		` ORDER BY c.created_at DESC, c.serial DESC LIMIT $`+strconv.Itoa(len(s.args)), s.args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []ca.Record
	for rows.Next() {
		r, err := scanRecord(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, rows.Err()
}

// narrow adds the conditions that have an index of their own. What they find is
// sorted by time for each page. If it is too much for that, they are written so
// that no index serves them: the database then walks back in time until the
// page is full, which does not take long, for so many are found.
func (c *CA) narrow(ctx context.Context, tx Tx, s *selection, q ca.ListQuery) error {
	if q.Name != "" {
		k := nameKey(q.Name)
		// '/' follows '.', so the range is everything below the name.
		const below = `(n.name_reversed = %s OR (n.name_reversed >= %s AND n.name_reversed < %s))`
		many, err := c.finds(ctx, tx, `certificate_names n`, below, k, k+".", k+"/")
		if err != nil {
			return err
		}
		if many {
			s.add(`EXISTS (SELECT 1 FROM certificate_names n WHERE n.serial = c.serial AND `+below+`)`, k, k+".", k+"/")
		} else {
			s.add(`c.serial IN (SELECT n.serial FROM certificate_names n WHERE `+below+`)`, k, k+".", k+"/")
		}
	}
	if q.SerialPrefix != "" {
		p := strings.ToLower(q.SerialPrefix)
		const prefixed = `c.serial >= %s AND c.serial < %s` // 'g' follows every hex digit
		many, err := c.finds(ctx, tx, `certificates c`, prefixed, p, p+"g")
		if err != nil {
			return err
		}
		if many {
			s.add(`c.serial || '' >= %s AND c.serial || '' < %s`, p, p+"g")
		} else {
			s.add(prefixed, p, p+"g")
		}
	}
	if q.SPKIHash != "" {
		many, err := c.finds(ctx, tx, `certificates c`, `c.spki_hash = %s`, q.SPKIHash)
		if err != nil {
			return err
		}
		if many {
			s.add(`c.spki_hash || '' = %s`, q.SPKIHash)
		} else {
			s.add(`c.spki_hash = %s`, q.SPKIHash)
		}
	}
	if q.ListedBy != "" {
		many, err := c.finds(ctx, tx, `acme_incident_serials l`, `l.incident = %s`, q.ListedBy)
		if err != nil {
			return err
		}
		if many {
			s.add(`EXISTS (SELECT 1 FROM acme_incident_serials l WHERE l.serial = c.serial AND l.incident = %s)`, q.ListedBy)
		} else {
			s.add(`c.serial IN (SELECT l.serial FROM acme_incident_serials l WHERE l.incident = %s)`, q.ListedBy)
		}
	}
	if q.Issuer != "" {
		id := string(q.Issuer)
		many, err := c.finds(ctx, tx, `certificates c`, `c.issuer = %s AND c.revoked_at <> 0`, id)
		if err != nil {
			return err
		}
		if many {
			s.add(`c.issuer || '' = %s`, id)
		} else {
			s.add(`c.issuer = %s`, id)
		}
	}
	return nil
}

// finds says whether a condition finds more rows than are sorted for a page.
func (c *CA) finds(ctx context.Context, tx Tx, from, cond string, vals ...any) (many bool, err error) {
	var (
		s selection
		n int64
	)
	s.add(cond, vals...)
	s.args = append(s.args, int64(c.many+1))
	q := `SELECT COUNT(*) FROM (SELECT 1 FROM ` + from + s.where() + ` LIMIT $` + strconv.Itoa(len(s.args)) + `) found`
	if err := tx.QueryRow(ctx, q, s.args...).Scan(&n); err != nil {
		return false, fmt.Errorf("counting what is found: %w", err)
	}
	return n > int64(c.many), nil
}

// A selection is a WHERE clause in the making.
type selection struct {
	conds []string
	args  []any
}

// add adds a condition; each %s of it becomes the parameter's number.
func (s *selection) add(cond string, vals ...any) {
	refs := make([]any, 0, len(vals))
	for _, v := range vals {
		s.args = append(s.args, v)
		refs = append(refs, "$"+strconv.Itoa(len(s.args)))
	}
	s.conds = append(s.conds, fmt.Sprintf(cond, refs...))
}

func (s *selection) where() string {
	if len(s.conds) == 0 {
		return ""
	}
	return ` WHERE ` + strings.Join(s.conds, ` AND `)
}
