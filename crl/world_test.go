package crl

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math/big"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys/keystest"
)

// A world is everything around a Server: one CA, what of it is revoked, and a
// store in memory that keeps the promises of Store.
type world struct {
	t      testing.TB
	issuer *ca.Issuer
	key    *ecdsa.PrivateKey
	keys   *keystest.Store

	mu         sync.Mutex // guards what follows
	seq        Seq
	revoked    map[ca.Serial]revoked
	scopes     map[Scope]*scopeState
	shards     []Shard
	list       []CRL // published, of all scopes, latest last
	bodies     map[BodyID][]byte
	puts       int
	forgotten  ca.Serial // by Revoked alone
	audits     []audit.Entry
	publishErr error
	headErr    error
}

// A revoked is a certificate whose status has changed; released ones have no date.
type revoked struct {
	Entry
	notAfter time.Time
	shard    int
	seq      Seq
}

// A scopeState is the store's row of one scope.
type scopeState struct {
	number     Number
	leaseUntil time.Time
	list       CRL // complete, the latest; zero: none
	scheduled  CRL
	delta      CRL
}

func (w *world) scopeLocked(s Scope) *scopeState {
	if w.scopes[s] == nil {
		w.scopes[s] = &scopeState{}
	}
	return w.scopes[s]
}

// kept is what the store has of a scope now.
func (w *world) kept(s Scope) scopeState {
	w.mu.Lock()
	defer w.mu.Unlock()
	return *w.scopeLocked(s)
}

func newWorld(t testing.TB) *world {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, key: key, keys: keystest.New(), revoked: map[ca.Serial]revoked{}, scopes: map[Scope]*scopeState{}, bodies: map[BodyID][]byte{}}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), RawSubject: oddSubject(t),
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(30, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	cert := w.certify(tmpl, tmpl, key)
	k, err := w.keys.Put("ca", key)
	if err != nil {
		t.Fatal(err)
	}
	w.issuer = &ca.Issuer{ID: ca.IDOf(cert), Name: "ca", Cert: cert, Key: k}
	w.issuer.CRLURL = "http://pki.example.com/crl/" + string(w.issuer.ID) + ".crl"
	return w
}

// oddSubject has its common name before its country, and in UTF8String though
// it would fit a PrintableString.
func oddSubject(t testing.TB) []byte {
	t.Helper()
	cn := append([]byte{0x31, 0x0d, 0x30, 0x0b, 6, 3, 0x55, 4, 3, 0x0c, 4}, "A CA"...)
	c := append([]byte{0x31, 0x0b, 0x30, 9, 6, 3, 0x55, 4, 6, 0x13, 2}, "CH"...)
	return append([]byte{0x30, byte(len(cn) + len(c))}, append(cn, c...)...)
}

func (w *world) certify(tmpl, parent *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	w.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, key.Public(), w.key)
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) leaf(serial ca.Serial) *x509.Certificate {
	w.t.Helper()
	n, err := serial.Int()
	if err != nil {
		w.t.Fatal(err)
	}
	return w.certify(&x509.Certificate{
		SerialNumber: n, Subject: pkix.Name{CommonName: "leaf"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}, w.issuer.Cert, w.key)
}

func (w *world) revoke(serial ca.Serial, reason ca.Reason, notAfter time.Time) {
	w.revokeIn(0, serial, reason, notAfter)
}

// revokeIn revokes a certificate of a shard; removeFromCRL releases it from hold.
func (w *world) revokeIn(shard int, serial ca.Serial, reason ca.Reason, notAfter time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := time.Now()
	if was, ok := w.revoked[serial]; ok && !was.RevokedAt.IsZero() {
		at = was.RevokedAt
	}
	if reason == ca.RemoveFromCRL {
		at = time.Time{}
	}
	w.seq++
	w.revoked[serial] = revoked{Entry{Serial: serial, RevokedAt: at, Reason: reason}, notAfter, shard, w.seq}
}

func (w *world) setHeadErr(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.headErr = err
}

// published counts the CRLs that were.
func (w *world) published() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.list)
}

func (w *world) config() Config {
	return Config{Issuers: []*ca.Issuer{w.issuer}, Store: w, Logger: slog.New(slog.DiscardHandler)}
}

func (w *world) server(change func(*Config)) *Server {
	w.t.Helper()
	cfg := w.config()
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) prepared(change func(*Config)) *Server {
	w.t.Helper()
	s := w.server(change)
	if err := s.Prepare(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// run starts s and returns what stops it.
func run(t *testing.T, s *Server) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// current parses what s serves and verifies it.
func (w *world) current(s *Server) *x509.RevocationList {
	w.t.Helper()
	l, err := x509.ParseRevocationList(w.der(s))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := l.CheckSignatureFrom(w.issuer.Cert); err != nil {
		w.t.Fatal(err)
	}
	return l
}

// der is what s serves.
func (w *world) der(s *Server) []byte {
	w.t.Helper()
	l, ok := s.shelf(Scope{Issuer: w.issuer.ID}).list.take()
	if !ok {
		w.t.Fatal("no CRL")
	}
	defer func() { _ = l.file.body.Release() }()
	return bytesOf(w.t, l.file.body)
}

func serials(l *x509.RevocationList) []ca.Serial {
	var out []ca.Serial
	for _, e := range l.RevokedCertificateEntries {
		out = append(out, ca.SerialOf(e.SerialNumber))
	}
	return out
}

func (w *world) changedLocked(s Scope, since Seq) bool {
	for _, r := range w.revoked {
		if r.seq > since && (s.Shard == 0 || r.shard == s.Shard) {
			return true
		}
	}
	return false
}

func (w *world) Head(_ context.Context, s Scope) (Head, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.headErr != nil {
		return Head{}, w.headErr
	}
	st := w.scopeLocked(s)
	h := Head{Seq: w.seq, Published: st.list.Number, Changed: w.changedLocked(s, st.list.Seq), UpdatedAt: st.list.ThisUpdate}
	if st.scheduled.Number != 0 {
		h.ScheduledAt = st.scheduled.ThisUpdate
		h.Base = Base{st.scheduled.Number, st.scheduled.ThisUpdate, st.scheduled.NextUpdate, st.scheduled.Seq}
	}
	if st.delta.Number != 0 {
		h.Delta, h.DeltaAt, h.DeltaBase, h.DeltaChanged = st.delta.Number, st.delta.ThisUpdate, st.delta.Base, w.changedLocked(s, st.delta.Seq)
		if st.delta.ThisUpdate.After(h.UpdatedAt) {
			h.UpdatedAt = st.delta.ThisUpdate
		}
	}
	return h, nil
}

func (w *world) Latest(_ context.Context, s Series) (CRL, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.scopeLocked(s.Scope).list
	if s.Delta {
		c = w.scopeLocked(s.Scope).delta
	}
	if c.Number == 0 {
		return CRL{}, ErrNone
	}
	return c, nil
}

func (w *world) Reserve(_ context.Context, s Scope, l Lease) (Number, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	st := w.scopeLocked(s)
	if st.leaseUntil.After(l.Now) {
		return 0, ErrHeld
	}
	st.number, st.leaseUntil = max(st.number+1, l.Floor), l.Until
	return st.number, nil
}

func (w *world) Release(_ context.Context, s Scope, n Number) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if st := w.scopeLocked(s); n == st.number {
		st.leaseUntil = time.Time{}
	}
	return nil
}

func (w *world) Revoked(_ context.Context, s Selection) iter.Seq2[Entry, error] {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Entry
	for _, r := range w.revoked {
		if r.listed(s) && r.Serial != w.forgotten {
			out = append(out, r.Entry)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int { return bytes.Compare([]byte(a.Serial), []byte(b.Serial)) })
	return each(out)
}

func (r revoked) listed(s Selection) bool {
	switch {
	case s.Shard != 0 && s.Shard != r.shard:
		return false
	case s.Delta:
		return r.seq > s.Since
	}
	return !r.RevokedAt.IsZero() && (!r.notAfter.Before(s.ExpiredBy) || r.seq > s.Seen)
}

func (w *world) StillRevoked(_ context.Context, sel Selection, serials []ca.Serial) ([]ca.Serial, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var still []ca.Serial
	for _, s := range serials {
		if r, ok := w.revoked[s]; ok && r.listed(sel) {
			still = append(still, s)
		}
	}
	return still, nil
}

func (w *world) Shards(context.Context, ca.IssuerID) ([]Shard, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.shards), nil
}

func (w *world) NeedShards(_ context.Context, _ ca.IssuerID, list []ca.CRLShard, until time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range list {
		i := slices.IndexFunc(w.shards, func(have Shard) bool { return have.ID == s.ID })
		switch {
		case i < 0:
			w.shards = append(w.shards, Shard{s, until})
		case w.shards[i].URL != s.URL:
			return ErrShardTaken
		case until.After(w.shards[i].NeededUntil):
			w.shards[i].NeededUntil = until
		}
	}
	return nil
}

func (w *world) Put(_ context.Context, _ time.Time, r io.Reader) (BodyID, error) {
	content, err := io.ReadAll(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.puts++
	id := BodyID(fmt.Sprint("body ", w.puts))
	w.bodies[id] = content
	return id, err
}

func (w *world) Get(_ context.Context, id BodyID, to io.Writer) error {
	w.mu.Lock()
	content, ok := w.bodies[id]
	w.mu.Unlock()
	if !ok {
		return ErrNone
	}
	_, err := to.Write(content)
	return err
}

func (w *world) Drop(_ context.Context, id BodyID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.bodies, id)
	return nil
}

func (w *world) Publish(_ context.Context, p Publication) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.publishErr != nil {
		return w.publishErr
	}
	st := w.scopeLocked(p.Scope)
	if p.Number <= max(st.list.Number, st.delta.Number) || p.Number > st.number {
		return ErrSuperseded
	}
	if int64(len(w.bodies[p.Body])) != p.Octets {
		return ErrIncomplete
	}
	w.list, w.audits = append(w.list, p.CRL), append(w.audits, p.Audit)
	switch {
	case p.Base != 0:
		st.delta = p.CRL
	case p.Scheduled:
		st.list, st.scheduled = p.CRL, p.CRL
	default:
		st.list = p.CRL
	}
	if p.Number == st.number {
		st.leaseUntil = time.Time{}
	}
	return nil
}

func manyEntries(n int) []Entry {
	out := make([]Entry, 0, n)
	for i := range n {
		out = append(out, Entry{Serial: ca.Serial(fmt.Sprintf("01%032x", i)), RevokedAt: time.Unix(1_800_000_000, 0), Reason: ca.Superseded})
	}
	return out
}
