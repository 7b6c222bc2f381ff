package catest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
)

// A Store is a ca.Store in memory that keeps the promises of the real one.
type Store struct {
	mu      sync.Mutex // guards all below
	rows    map[ca.Serial]*row
	blocked map[[32]byte]bool
	changes map[ca.IssuerID]int64 // of status
	entries []audit.Entry
}

type row struct {
	in     ca.Intent
	record ca.Record
}

var _ ca.Store = (*Store)(nil)

// NewStore makes an empty store.
func NewStore() *Store {
	return &Store{rows: map[ca.Serial]*row{}, blocked: map[[32]byte]bool{}, changes: map[ca.IssuerID]int64{}}
}

// Entries lists what was written to the audit log, in order.
func (s *Store) Entries() []audit.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.entries)
}

// Records lists all serials ever drawn, by serial.
func (s *Store) Records() []ca.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]ca.Record, 0, len(s.rows))
	for _, r := range s.rows {
		out = append(out, r.record)
	}
	slices.SortFunc(out, func(a, b ca.Record) int { return bytes.Compare([]byte(a.Serial), []byte(b.Serial)) })
	return out
}

// Block puts a key on the blocklist.
func (s *Store) Block(spki [32]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocked[spki] = true
}

// Record implements ca.Store.
func (s *Store) Record(_ context.Context, serial ca.Serial) (ca.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.rows[serial]
	if r == nil {
		return ca.Record{}, ca.ErrNotFound
	}
	return r.record, nil
}

// RecordsOf implements ca.Store.
func (s *Store) RecordsOf(_ context.Context, serials []ca.Serial) ([]ca.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []ca.Record
	for _, serial := range serials {
		if r := s.rows[serial]; r != nil {
			out = append(out, r.record)
		}
	}
	return out, nil
}

// Adopt implements ca.Store.
func (s *Store) Adopt(_ context.Context, c ca.Certificate, spki [32]byte, e audit.Entry) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if there := s.rows[c.Serial]; there != nil {
		if there.record.Issuer != c.Issuer || !bytes.Equal(there.record.DER, c.DER) {
			return false, ca.ErrSerialTaken
		}
		return false, nil
	}
	s.rows[c.Serial] = &row{record: ca.Record{Certificate: c, State: ca.Issued, SPKIHash: spki, Requester: e.Actor, CreatedAt: e.At}}
	s.entries = append(s.entries, e)
	return true, nil
}

// Revoke implements ca.Store.
func (s *Store) Revoke(_ context.Context, r ca.Revocation, e audit.Entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revokeLocked(r, e)
}

// RevokeAll implements ca.Store.
func (s *Store) RevokeAll(_ context.Context, rs []ca.Revocation) ([]error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	errs := make([]error, len(rs))
	for i, r := range rs {
		errs[i] = s.revokeLocked(r, r.Entry())
	}
	return errs, nil
}

func (s *Store) revokeLocked(r ca.Revocation, e audit.Entry) error {
	got := s.rows[r.Serial]
	if got == nil {
		return ca.ErrNotFound
	}
	rec, err := r.Apply(got.record)
	switch {
	case err == nil:
		got.record = rec
		s.changedLocked(&got.record)
	case errors.Is(err, ca.ErrNotFound), r.Reason != ca.KeyCompromise, !r.BlockKey, s.blocked[rec.SPKIHash]:
		return err
	}
	if r.BlockKey {
		s.blocked[rec.SPKIHash] = true
	}
	s.entries = append(s.entries, e)
	return nil
}

// changedLocked gives rec the number of a change of status.
func (s *Store) changedLocked(rec *ca.Record) {
	s.changes[rec.Issuer]++
	rec.StatusSeq = s.changes[rec.Issuer]
}

// Release implements ca.Store.
func (s *Store) Release(_ context.Context, serial ca.Serial, e audit.Entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.rows[serial]
	if got == nil {
		return ca.ErrNotFound
	}
	rec := &got.record
	if rec.State != ca.Issued || !rec.Revoked() || rec.Reason != ca.CertificateHold {
		return ca.ErrNotHeld
	}
	rec.RevokedAt, rec.Reason, rec.InvalidityAt = time.Time{}, 0, time.Time{}
	s.changedLocked(rec)
	s.entries = append(s.entries, e)
	return nil
}

// KeyBlocked implements ca.Store.
func (s *Store) KeyBlocked(_ context.Context, spki [32]byte) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blocked[spki], nil
}

// Expired implements ca.Store.
func (s *Store) Expired(_ context.Context, now time.Time, limit int) ([]ca.Intent, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []ca.Intent
	for _, r := range s.rows {
		if r.record.State == ca.Pending && r.in.LeaseUntil.Before(now) {
			out = append(out, r.in)
		}
	}
	slices.SortFunc(out, func(a, b ca.Intent) int { return a.LeaseUntil.Compare(b.LeaseUntil) })
	return out[:min(limit, len(out))], nil
}

// Abandon implements ca.Store.
func (s *Store) Abandon(_ context.Context, serial ca.Serial, now time.Time, e audit.Entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.rows[serial]
	if r == nil || r.record.State != ca.Pending || !r.in.LeaseUntil.Before(now) {
		return ca.ErrLeaseLost
	}
	s.abandonLocked(r, e)
	s.entries = append(s.entries, e)
	return nil
}

func (s *Store) abandonLocked(r *row, e audit.Entry) {
	r.record.State, r.record.RevokedAt, r.record.Reason = ca.Abandoned, e.At, ca.AbandonedReason
	s.changedLocked(&r.record)
}

// PlainLedger implements ca.Store.
func (s *Store) PlainLedger() ca.Ledger { return &Ledger{Store: s} }

// A Ledger records in a Store, and fails when told to. Its fields are set
// before use; the errors are returned without recording anything.
type Ledger struct {
	Store *Store

	OnBegin  func(ca.Intent) error // nil: no error
	OnCommit func(ca.Intent, ca.Certificate) error
	OnAbort  func(in ca.Intent, cause error) error
}

var _ ca.Ledger = (*Ledger)(nil)

// Begin implements ca.Ledger.
func (l *Ledger) Begin(_ context.Context, in ca.Intent) error {
	if l.OnBegin != nil {
		if err := l.OnBegin(in); err != nil {
			return err
		}
	}
	s := l.Store
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rows[in.Serial] != nil {
		return ca.ErrSerialTaken
	}
	s.rows[in.Serial] = &row{in: in, record: ca.Record{
		Certificate: ca.Certificate{ID: in.ID, Serial: in.Serial, Issuer: in.Issuer, Profile: in.Profile, NotBefore: in.NotBefore, NotAfter: in.NotAfter},
		State:       ca.Pending, SPKIHash: in.SPKIHash, Names: in.Names, Requester: in.Requester.Actor, CreatedAt: in.CreatedAt,
	}}
	s.entries = append(s.entries, in.Intended())
	return nil
}

// Commit implements ca.Ledger.
func (l *Ledger) Commit(_ context.Context, in ca.Intent, c ca.Certificate) error {
	if l.OnCommit != nil {
		if err := l.OnCommit(in, c); err != nil {
			return err
		}
	}
	s := l.Store
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.pendingLocked(in)
	if r == nil {
		return ca.ErrLeaseLost
	}
	r.record.State, r.record.DER = ca.Issued, c.DER
	s.entries = append(s.entries, in.Committed(c))
	return nil
}

// Abort implements ca.Ledger.
func (l *Ledger) Abort(_ context.Context, in ca.Intent, cause error) error {
	if l.OnAbort != nil {
		if err := l.OnAbort(in, cause); err != nil {
			return fmt.Errorf("ending intent: %w", err)
		}
	}
	s := l.Store
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.pendingLocked(in)
	if r == nil {
		return ca.ErrLeaseLost
	}
	e := in.Aborted(cause)
	if ca.NeverSigned(cause) {
		r.record.State = ca.Void
	} else {
		s.abandonLocked(r, e)
	}
	s.entries = append(s.entries, e)
	return nil
}

func (s *Store) pendingLocked(in ca.Intent) *row {
	r := s.rows[in.Serial]
	if r == nil || r.record.ID != in.ID || r.record.State != ca.Pending {
		return nil
	}
	return r
}
