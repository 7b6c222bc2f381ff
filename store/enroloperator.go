package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/enrol"
)

// AddUser stores a user.
func (s *Enrol) AddUser(ctx context.Context, u enrol.UserRecord, e audit.Entry) error {
	return s.write(ctx, "storing user", func(ctx context.Context, tx Tx) error {
		n, err := tx.Exec(ctx, `INSERT INTO enrol_users (name, password, endpoints, comment, created_at, created_by, disabled_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (name) DO NOTHING`,
			u.Name, u.Password, asJSON(u.Endpoints), u.Comment, micros(u.CreatedAt), u.CreatedBy, micros(u.DisabledAt))
		return changedOne(ctx, tx, n, err, enrol.ErrExists, e)
	})
}

// changedOne closes a change of one row with its entry; none is the error that says so.
func changedOne(ctx context.Context, tx Tx, n int64, err, none error, e audit.Entry) error {
	if err != nil {
		return err
	}
	if n == 0 {
		return none
	}
	return appendAudit(ctx, tx, e)
}

// ListUsers returns users by name, from after on.
func (s *Enrol) ListUsers(ctx context.Context, after string, limit int) ([]enrol.UserRecord, error) {
	list, err := many(ctx, s.db, "listing users", scanEnrolUser,
		`SELECT `+enrolUserColumns+` FROM enrol_users u WHERE u.name > $1 ORDER BY u.name LIMIT $2`, after, int64(limit))
	for i := range list {
		list[i].Password = ""
	}
	return list, err
}

// SetPassword replaces the hash of a user's password.
func (s *Enrol) SetPassword(ctx context.Context, name, hash string, e audit.Entry) error {
	return s.write(ctx, "setting password", func(ctx context.Context, tx Tx) error {
		n, err := tx.Exec(ctx, `UPDATE enrol_users SET password = $1 WHERE name = $2`, hash, name)
		return changedOne(ctx, tx, n, err, enrol.ErrNotFound, e)
	})
}

// DisableUser keeps a user from enrolling, or lets them again, at zero.
func (s *Enrol) DisableUser(ctx context.Context, name string, at time.Time, e audit.Entry) error {
	return s.write(ctx, "disabling user", func(ctx context.Context, tx Tx) error {
		n, err := tx.Exec(ctx, `UPDATE enrol_users SET disabled_at = $1 WHERE name = $2`, micros(at), name)
		return changedOne(ctx, tx, n, err, enrol.ErrNotFound, e)
	})
}

// RemoveUser forgets a user.
func (s *Enrol) RemoveUser(ctx context.Context, name string, e audit.Entry) error {
	return s.write(ctx, "removing user", func(ctx context.Context, tx Tx) error {
		n, err := tx.Exec(ctx, `DELETE FROM enrol_users WHERE name = $1`, name)
		return changedOne(ctx, tx, n, err, enrol.ErrNotFound, e)
	})
}

// AddChallenge stores a challenge.
func (s *Enrol) AddChallenge(ctx context.Context, c enrol.ChallengeRecord, e audit.Entry) error {
	return s.write(ctx, "storing challenge", func(ctx context.Context, tx Tx) error {
		n, err := tx.Exec(ctx, `INSERT INTO enrol_challenges (id, digest, endpoint, subject, names, comment, max_uses, created_at, created_by, expires)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT (digest) DO NOTHING`,
			c.ID, c.Digest, c.Endpoint, c.Subject, asJSON(c.Names), c.Comment, int64(c.MaxUses), micros(c.CreatedAt), c.CreatedBy, micros(c.Expires))
		return changedOne(ctx, tx, n, err, enrol.ErrExists, e)
	})
}

// ListChallenges returns a page of challenges, newest first, without their digests.
func (s *Enrol) ListChallenges(ctx context.Context, before string, limit int) ([]enrol.ChallengeRecord, string, error) {
	w, err := newestFirst("h", "id", before)
	if err != nil {
		return nil, "", err
	}
	list, err := many(ctx, s.db, "listing challenges", scanEnrolChallenge, `SELECT `+enrolChallengeColumns+` FROM enrol_challenges h`+w.page(limit), w.args...)
	for i := range list {
		list[i].Digest = ""
	}
	if err != nil || len(list) <= limit {
		return list, "", err
	}
	last := list[limit-1]
	return list[:limit], listPlace(last.CreatedAt, last.ID), nil
}

// RevokeChallenge ends a challenge.
func (s *Enrol) RevokeChallenge(ctx context.Context, id string, at time.Time, e audit.Entry) error {
	return s.write(ctx, "revoking challenge", func(ctx context.Context, tx Tx) error {
		n, err := tx.Exec(ctx, `UPDATE enrol_challenges SET revoked_at = $1 WHERE id = $2 AND revoked_at = 0`, micros(at), id)
		return changedOne(ctx, tx, n, err, enrol.ErrNotFound, e)
	})
}

// ListRequests returns a page of requests, newest first; state "" is all.
func (s *Enrol) ListRequests(ctx context.Context, state enrol.State, before string, limit int) ([]enrol.Record, string, error) {
	w, err := newestFirst("q", "id", before)
	if err != nil {
		return nil, "", err
	}
	if state != "" {
		w.and("q.state = ", string(state))
	}
	list, err := many(ctx, s.db, "listing requests", scanEnrolRequest, `SELECT `+enrolRequestColumns+fromEnrolRequests+w.page(limit), w.args...)
	if err != nil || len(list) <= limit {
		return list, "", err
	}
	last := list[limit-1]
	return list[:limit], listPlace(last.CreatedAt, last.ID), nil
}

// DecideRequest approves or denies a request that waits: enrol.ErrMoved if it does not.
func (s *Enrol) DecideRequest(ctx context.Context, id string, to enrol.State, by string, at, purge time.Time, e audit.Entry) error {
	return s.write(ctx, "deciding request", func(ctx context.Context, tx Tx) error {
		n, err := tx.Exec(ctx, `UPDATE enrol_requests SET state = $1, decided_by = $2, decided_at = $3, purge_at = $4 WHERE id = $5 AND state = 'waiting'`,
			string(to), by, micros(at), micros(purge), id)
		if err != nil || n == 1 {
			return changedOne(ctx, tx, n, err, nil, e)
		}
		var state string
		err = tx.QueryRow(ctx, `SELECT q.state FROM enrol_requests q WHERE q.id = $1`, id).Scan(&state)
		if errors.Is(err, ErrNoRows) {
			return enrol.ErrNotFound
		}
		if err != nil {
			return err
		}
		return fmt.Errorf("%w: it is %s", enrol.ErrMoved, state)
	})
}
