package store

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/enrol"
)

// Enrol keeps users, challenges and requests of devices. It is an enrol.Store.
type Enrol struct{ db *DB }

// NewEnrol returns what is in db.
func NewEnrol(db *DB) *Enrol { return &Enrol{db} }

var _ enrol.Store = (*Enrol)(nil)

func (s *Enrol) write(ctx context.Context, doing string, fn func(ctx context.Context, tx Tx) error) error {
	if err := s.db.Write(ctx, fn); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

func (s *Enrol) one(ctx context.Context, doing string, scan func(Row) error, q string, args ...any) error {
	err := s.db.ReadRow(ctx, scan, q, args...)
	if errors.Is(err, ErrNoRows) {
		return enrol.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// Key returns a secret that all replicas have: the one that is there, or fresh.
func (s *Enrol) Key(ctx context.Context, name string, fresh []byte) (secret []byte, err error) {
	err = s.write(ctx, "keeping the key of enrolment", func(ctx context.Context, tx Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO enrol_keys (name, secret) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING`, name, fresh)
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT k.secret FROM enrol_keys k WHERE k.name = $1`, name).Scan(&secret)
	})
	return secret, err
}

const enrolUserColumns = `u.name, u.password, u.endpoints, u.comment, u.created_at, u.created_by, u.disabled_at`

func scanEnrolUser(row Row) (enrol.UserRecord, error) {
	var (
		u                 enrol.UserRecord
		endpoints         string
		created, disabled int64
	)
	if err := row.Scan(&u.Name, &u.Password, &endpoints, &u.Comment, &created, &u.CreatedBy, &disabled); err != nil {
		return u, err
	}
	u.CreatedAt, u.DisabledAt = fromMicros(created), fromMicros(disabled)
	if err := json.Unmarshal([]byte(endpoints), &u.Endpoints); err != nil {
		return u, fmt.Errorf("decoding endpoints of user %s: %w", u.Name, err)
	}
	return u, nil
}

// User returns one.
func (s *Enrol) User(ctx context.Context, name string) (u enrol.UserRecord, err error) {
	err = s.one(ctx, "reading user", func(r Row) (err error) { u, err = scanEnrolUser(r); return err },
		`SELECT `+enrolUserColumns+` FROM enrol_users u WHERE u.name = $1`, name)
	return u, err
}

const enrolChallengeColumns = `h.id, h.digest, h.endpoint, h.subject, h.names, h.comment, h.max_uses, h.uses, h.created_at, h.created_by, h.expires, h.revoked_at`

func scanEnrolChallenge(row Row) (enrol.ChallengeRecord, error) {
	var (
		c                                     enrol.ChallengeRecord
		names                                 string
		most, uses, created, expires, revoked int64
	)
	err := row.Scan(&c.ID, &c.Digest, &c.Endpoint, &c.Subject, &names, &c.Comment, &most, &uses, &created, &c.CreatedBy, &expires, &revoked)
	if err != nil {
		return c, err
	}
	c.MaxUses, c.Uses = int(most), int(uses)
	c.CreatedAt, c.Expires, c.RevokedAt = fromMicros(created), fromMicros(expires), fromMicros(revoked)
	if err := json.Unmarshal([]byte(names), &c.Names); err != nil {
		return c, fmt.Errorf("decoding names of challenge %s: %w", c.ID, err)
	}
	return c, nil
}

// Challenge finds one by its digest.
func (s *Enrol) Challenge(ctx context.Context, endpoint, digest string) (c enrol.ChallengeRecord, err error) {
	err = s.one(ctx, "reading challenge", func(r Row) (err error) { c, err = scanEnrolChallenge(r); return err },
		`SELECT `+enrolChallengeColumns+` FROM enrol_challenges h WHERE h.digest = $1 AND h.endpoint = $2`, digest, endpoint)
	return c, err
}

const enrolRequestColumns = `q.id, q.request_key, q.endpoint, q.profile, q.principal, q.transaction_id, q.csr, q.spki_hash, q.names, q.renewal,
	q.challenge_id, q.state, q.intent_id, q.serial, q.created_at, q.lease_until, q.decided_at, q.decided_by, q.purge_at, c.der`

// fromEnrolRequests has the certificate of each that was not revoked.
const fromEnrolRequests = ` FROM enrol_requests q
	LEFT JOIN certificates c ON c.serial = q.serial AND q.serial <> '' AND c.state = 'issued' AND c.revoked_at = 0`

func scanEnrolRequest(row Row) (enrol.Record, error) {
	var (
		r                                       enrol.Record
		spki, names, state, serial              string
		renewal, created, lease, decided, purge int64
	)
	err := row.Scan(&r.ID, &r.Key, &r.Endpoint, &r.Profile, &r.Principal, &r.Transaction, &r.CSR, &spki, &names, &renewal,
		&r.Challenge, &state, &r.IntentID, &serial, &created, &lease, &decided, &r.DecidedBy, &purge, &r.Certificate)
	if err != nil {
		return r, err
	}
	r.Renewal, r.State, r.Serial = renewal != 0, enrol.State(state), ca.Serial(serial)
	r.CreatedAt, r.LeaseUntil, r.DecidedAt, r.PurgeAt = fromMicros(created), fromMicros(lease), fromMicros(decided), fromMicros(purge)
	if err := readKeyAndNames(&r.SPKI, &r.Names, spki, names); err != nil {
		return r, fmt.Errorf("reading request %s: %w", r.ID, err)
	}
	return r, nil
}

// RequestByKey finds a request that comes again.
func (s *Enrol) RequestByKey(ctx context.Context, key string, now time.Time) (enrol.Record, error) {
	return s.request(ctx, ` WHERE q.request_key = $1 AND q.purge_at > $2`, key, micros(now))
}

// RequestByTransaction finds what SCEP's CertPoll asks for.
func (s *Enrol) RequestByTransaction(ctx context.Context, endpoint, transaction string, spki [32]byte, now time.Time) (enrol.Record, error) {
	return s.request(ctx, ` WHERE q.endpoint = $1 AND q.transaction_id = $2 AND q.transaction_id <> '' AND q.spki_hash = $3 AND q.purge_at > $4
		ORDER BY q.created_at DESC LIMIT 1`, endpoint, transaction, hex.EncodeToString(spki[:]), micros(now))
}

// Request returns one by its id.
func (s *Enrol) Request(ctx context.Context, id string) (enrol.Record, error) {
	return s.request(ctx, ` WHERE q.id = $1`, id)
}

func (s *Enrol) request(ctx context.Context, where string, args ...any) (r enrol.Record, err error) {
	err = s.one(ctx, "reading request", func(row Row) (err error) { r, err = scanEnrolRequest(row); return err },
		`SELECT `+enrolRequestColumns+fromEnrolRequests+where, args...)
	return r, err
}

// insertEnrolRequest stores a new request and takes its challenge.
func insertEnrolRequest(ctx context.Context, tx Tx, r enrol.Record) error {
	names, err := json.Marshal(r.Names)
	if err != nil {
		return fmt.Errorf("encoding names: %w", err)
	}
	// One that is over is not the same any more.
	_, err = tx.Exec(ctx, `DELETE FROM enrol_requests WHERE request_key = $1 AND state <> 'processing' AND purge_at <= $2`, r.Key, micros(r.CreatedAt))
	if err != nil {
		return err
	}
	n, err := tx.Exec(ctx, `INSERT INTO enrol_requests (id, request_key, endpoint, profile, principal, transaction_id, csr, spki_hash, names, renewal,
			challenge_id, state, intent_id, created_at, lease_until, purge_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) ON CONFLICT (request_key) DO NOTHING`,
		r.ID, r.Key, r.Endpoint, r.Profile, r.Principal, r.Transaction, r.CSR, hex.EncodeToString(r.SPKI[:]), string(names), flag(r.Renewal),
		r.Challenge, string(r.State), r.IntentID, micros(r.CreatedAt), micros(r.LeaseUntil), micros(r.PurgeAt))
	if err != nil {
		return err
	}
	if n == 0 {
		return enrol.ErrMoved
	}
	if r.Challenge == "" {
		return nil
	}
	n, err = tx.Exec(ctx, `UPDATE enrol_challenges SET uses = uses + 1
		WHERE id = $1 AND revoked_at = 0 AND (expires = 0 OR expires > $2) AND (max_uses = 0 OR uses < max_uses)`, r.Challenge, micros(r.CreatedAt))
	if err == nil && n == 0 {
		err = enrol.ErrSpent
	}
	return err
}

// Keep stores a request that waits.
func (s *Enrol) Keep(ctx context.Context, r enrol.Record, most int, e audit.Entry) error {
	return s.write(ctx, "keeping request", func(ctx context.Context, tx Tx) error {
		var n int64
		err := tx.QueryRow(ctx, `SELECT COUNT(*) FROM enrol_requests q WHERE q.state = 'waiting' AND q.endpoint = $1`, r.Endpoint).Scan(&n)
		if err != nil {
			return err
		}
		if n >= int64(most) {
			return enrol.ErrFull
		}
		if err := insertEnrolRequest(ctx, tx, r); err != nil {
			return err
		}
		return appendAudit(ctx, tx, e)
	})
}

// Begin claims a request and records what is to be signed for it.
func (s *Enrol) Begin(ctx context.Context, r enrol.Record, in ca.Intent) error {
	return s.write(ctx, "claiming request", func(ctx context.Context, tx Tx) error {
		if r.State != enrol.Approved {
			r.State = enrol.Processing
			if err := insertEnrolRequest(ctx, tx, r); err != nil {
				return err
			}
			return beginIntent(ctx, tx, in)
		}
		n, err := tx.Exec(ctx, `UPDATE enrol_requests SET state = 'processing', intent_id = $1, lease_until = $2 WHERE id = $3 AND state = 'approved'`,
			in.ID, micros(r.LeaseUntil), r.ID)
		if err != nil {
			return err
		}
		if n == 0 {
			return enrol.ErrMoved
		}
		return beginIntent(ctx, tx, in)
	})
}

// Commit makes a request issued together with its certificate.
func (s *Enrol) Commit(ctx context.Context, r enrol.Record, in ca.Intent, c ca.Certificate) error {
	return s.write(ctx, "completing request", func(ctx context.Context, tx Tx) error {
		n, err := tx.Exec(ctx, `UPDATE enrol_requests SET state = 'issued', serial = $1, lease_until = 0, purge_at = $2
			WHERE id = $3 AND state = 'processing' AND intent_id = $4`, string(c.Serial), micros(r.PurgeAt), r.ID, in.ID)
		if err != nil {
			return err
		}
		if n == 0 {
			return ca.ErrLeaseLost
		}
		return commitIntent(ctx, tx, in, c)
	})
}

// Abort gives a request back.
func (s *Enrol) Abort(ctx context.Context, r enrol.Record, in ca.Intent, cause error) error {
	return s.write(ctx, "aborting request", func(ctx context.Context, tx Tx) error {
		if err := giveBack(ctx, tx, r.ID, in.ID); err != nil {
			return err
		}
		return abortIntent(ctx, tx, in, cause)
	})
}

// giveBack has an attempt not have been made, if it is still under way.
func giveBack(ctx context.Context, tx Tx, id, intent string) error {
	n, err := tx.Exec(ctx, `UPDATE enrol_requests SET state = 'approved', intent_id = '', lease_until = 0
		WHERE id = $1 AND intent_id = $2 AND state = 'processing' AND decided_at <> 0`, id, intent)
	if err != nil || n == 1 {
		return err
	}
	var challenge string
	err = tx.QueryRow(ctx, `DELETE FROM enrol_requests WHERE id = $1 AND intent_id = $2 AND state = 'processing' RETURNING challenge_id`, id, intent).Scan(&challenge)
	if errors.Is(err, ErrNoRows) {
		return nil
	}
	if err != nil || challenge == "" {
		return err
	}
	_, err = tx.Exec(ctx, `UPDATE enrol_challenges SET uses = uses - 1 WHERE id = $1 AND uses > 0`, challenge)
	return err
}

// Sweep gives back what nobody works on, and deletes what is over.
func (s *Enrol) Sweep(ctx context.Context, now time.Time, limit int) (found int, err error) {
	type attempt struct{ id, intent string }
	dead, err := many(ctx, s.db, "listing abandoned requests", func(r Row) (a attempt, err error) { err = r.Scan(&a.id, &a.intent); return a, err },
		`SELECT q.id, q.intent_id FROM enrol_requests q WHERE q.state = 'processing' AND q.lease_until <= $1 ORDER BY q.lease_until LIMIT $2`,
		micros(now), int64(limit))
	if err != nil {
		return 0, err
	}
	err = s.write(ctx, "sweeping requests", func(ctx context.Context, tx Tx) error {
		for _, a := range dead {
			if err := giveBack(ctx, tx, a.id, a.intent); err != nil {
				return err
			}
		}
		n, err := tx.Exec(ctx, `DELETE FROM enrol_requests WHERE state <> 'processing' AND id IN
			(SELECT q.id FROM enrol_requests q WHERE q.purge_at <= $1 AND q.state <> 'processing' ORDER BY q.purge_at LIMIT $2)`, micros(now), int64(limit))
		found = max(len(dead), int(n))
		return err
	})
	return found, err
}

// Record returns all that is known of a serial.
func (s *Enrol) Record(ctx context.Context, serial ca.Serial) (ca.Record, error) {
	return NewCA(s.db).Record(ctx, serial)
}
