package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/bench/measure"
	pgserver "github.com/secsy-pki/secsy-pki/bench/postgres"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/crl"
	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/postgres"
	"github.com/secsy-pki/secsy-pki/store/sqlite"
)

// A build is what making CRLs from one database has cost.
type build struct {
	wall   measure.Sample // seconds
	cpu    measure.Sample // seconds, of this process
	memory measure.Sample // MiB beyond what was there before, at the peak
}

func (b *bench) fromSQLite(ctx context.Context) (build, error) {
	e, err := sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(b.dir, "pki.db")})
	if err != nil {
		return build{}, err
	}
	defer func() { _ = e.Close() }()
	if _, err := e.Migrate(ctx); err != nil {
		return build{}, err
	}
	return b.from(ctx, "SQLite", store.New(e), "lower(hex(randomblob(12)))", "printf('01%08x', i)")
}

func (b *bench) fromPostgres(ctx context.Context, s *pgserver.Server) (build, error) {
	e, err := postgres.Open(ctx, postgres.Config{URL: s.URL})
	if err != nil {
		return build{}, err
	}
	defer func() { _ = e.Close() }()
	if _, err := e.Migrate(ctx); err != nil {
		return build{}, err
	}
	return b.from(ctx, "PostgreSQL", store.New(e), "substr(md5(i::text), 1, 24)", "'01' || lpad(to_hex(i), 8, '0')")
}

// from fills db with revoked certificates and makes a CRL of them each round:
// the first when there was none, the others held against the one before.
func (b *bench) from(ctx context.Context, name string, db *store.DB, random, number string) (build, error) {
	is, _, err := newIssuer()
	if err != nil {
		return build{}, err
	}
	began := time.Now()
	if err := b.fill(ctx, db, is.ID, number+" || "+random); err != nil {
		return build{}, fmt.Errorf("filling it: %w", err)
	}
	filled := time.Since(began)
	now := time.Now()
	s, err := crl.New(crl.Config{Issuers: []*ca.Issuer{is}, Store: store.NewCRL(db), Now: func() time.Time { return now }})
	if err != nil {
		return build{}, err
	}
	var m build
	for range b.rounds + 1 {
		if err := m.round(ctx, s); err != nil {
			return build{}, err
		}
		c, ok := s.Current(is.ID)
		if !ok || c.Entries != b.entries {
			return build{}, errors.New("not all entries are on the CRL")
		}
		now = now.Add(13 * time.Hour) // the next one is due
	}
	fmt.Fprintf(b.out, "\n%-28s %22s %22s %22s   filled in %.0f s\n", "from "+name, "s", "s of CPU", "MiB more at the peak", filled.Seconds())
	fmt.Fprintf(b.out, "%-28s %22s %22s %22s\n", "the first", m.wall[:1], m.cpu[:1], m.memory[:1])
	fmt.Fprintf(b.out, "%-28s %22s %22s %22s\n", "each after another", m.wall[1:], m.cpu[1:], m.memory[1:])
	m.wall = m.wall[1:]
	return m, nil
}

func (m *build) round(ctx context.Context, s *crl.Server) error {
	p, err := startPeak()
	if err != nil {
		return err
	}
	began, before := time.Now(), measure.CPU()
	if err := s.Prepare(ctx); err != nil {
		return err
	}
	m.wall, m.cpu = append(m.wall, time.Since(began).Seconds()), append(m.cpu, (measure.CPU()-before).Seconds())
	grown, err := p.grown()
	m.memory = append(m.memory, grown)
	return err
}

// fill writes certificates that are revoked, a part of them at a time.
func (b *bench) fill(ctx context.Context, db *store.DB, issuer ca.IssuerID, serial string) error {
	const part = 50_000
	far := time.Now().AddDate(5, 0, 0).UnixMicro()
	for from := 0; from < b.entries; from += part {
		err := db.Write(ctx, func(ctx context.Context, tx store.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO certificates (serial, id, issuer, profile, state, spki_hash, names, requester,
					not_before, not_after, created_at, lease_until, revoked_at, reason, revocation_seq)
				WITH RECURSIVE n(i) AS (SELECT CAST($1 AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < CAST($2 AS BIGINT) - 1)
				SELECT `+serial+`, 'id' || i, CAST($3 AS TEXT), 'p', 'issued', 'key' || i, '[]', 'r',
					0, CAST($4 AS BIGINT), i, 0, CAST($5 AS BIGINT) + i, 4, i + 1 FROM n`,
				int64(from), int64(min(from+part, b.entries)), string(issuer), far, time.Now().Add(-time.Hour).UnixMicro())
			return err
		})
		if err != nil {
			return err
		}
	}
	return db.Write(ctx, func(ctx context.Context, tx store.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO revocation_heads (issuer, seq) VALUES ($1, $2)`, string(issuer), int64(b.entries))
		return err
	})
}

// resetPeak has the kernel forget the most that was in memory, and returns what is.
func resetPeak() (float64, error) {
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		return 0, fmt.Errorf("resetting the peak of memory: %w", err)
	}
	return statusMiB("VmRSS:")
}

func statusMiB(field string) (float64, error) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if v, ok := strings.CutPrefix(sc.Text(), field); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(v, "kB")), 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("the kernel does not tell of %s", field)
}
