package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/secsy-pki/secsy-pki/crl"
)

const (
	// crlChunk is how long the pieces of a CRL are: each is a parameter, and a
	// commit that nobody waits long for.
	crlChunk = 1 << 20
	// crlOrphaned is after what time nobody publishes any more what was put.
	crlOrphaned = time.Hour
)

// Put keeps what r gives, piece by piece, each in a transaction of its own. The
// first one sweeps away what others have put and never published.
func (c *CRL) Put(ctx context.Context, at time.Time, r io.Reader) (crl.BodyID, error) {
	id := rand.Text()
	if err := c.beginBody(ctx, id, at); err != nil {
		return "", fmt.Errorf("keeping a CRL: %w", err)
	}
	buf := make([]byte, crlChunk)
	for seq := 0; ; seq++ {
		n, err := io.ReadFull(r, buf)
		if errors.Is(err, io.EOF) {
			return crl.BodyID(id), nil
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return "", fmt.Errorf("reading the CRL to be kept: %w", err)
		}
		if err := c.putChunk(ctx, id, seq, buf[:n]); err != nil {
			return "", fmt.Errorf("keeping piece %d of a CRL: %w", seq, err)
		}
	}
}

func (c *CRL) beginBody(ctx context.Context, id string, at time.Time) error {
	return c.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM crl_bodies WHERE published = 0 AND put_at < $1`, micros(at.Add(-crlOrphaned)))
		if err != nil {
			return fmt.Errorf("sweeping what was never published: %w", err)
		}
		_, err = tx.Exec(ctx, `INSERT INTO crl_bodies (id, put_at, octets) VALUES ($1, $2, 0)`, id, micros(at))
		return err
	})
}

func (c *CRL) putChunk(ctx context.Context, id string, seq int, octets []byte) error {
	return c.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		// In a transaction of its own each: none may count twice.
		_, err := tx.Exec(ctx, `INSERT INTO crl_chunks (body, seq, octets) VALUES ($1, $2, $3)`, id, int64(seq), octets)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE crl_bodies SET octets = octets + $2 WHERE id = $1`, id, int64(len(octets)))
		return err
	})
}

// Get writes the octets of id, a piece at a time and all of one moment.
func (c *CRL) Get(ctx context.Context, id crl.BodyID, w io.Writer) error {
	err := c.db.Read(ctx, func(ctx context.Context, tx Tx) error {
		var want int64
		if err := tx.QueryRow(ctx, `SELECT b.octets FROM crl_bodies b WHERE b.id = $1`, string(id)).Scan(&want); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT k.octets FROM crl_chunks k WHERE k.body = $1 ORDER BY k.seq`, string(id))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var octets []byte
			if err := rows.Scan(&octets); err != nil {
				return err
			}
			if _, err := w.Write(octets); err != nil {
				return err
			}
			want -= int64(len(octets))
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if want != 0 {
			return crl.ErrIncomplete
		}
		return nil
	})
	if errors.Is(err, ErrNoRows) {
		return crl.ErrNone
	}
	if err != nil {
		return fmt.Errorf("reading the octets of a CRL: %w", err)
	}
	return nil
}

// Drop forgets id unless it is published, or just about to be.
func (c *CRL) Drop(ctx context.Context, id crl.BodyID) error {
	err := c.db.Write(ctx, func(ctx context.Context, tx Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM crl_bodies WHERE id = $1 AND published = 0`, string(id))
		return err
	})
	if err != nil {
		return fmt.Errorf("dropping the octets of a CRL: %w", err)
	}
	return nil
}
