package storetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/crl"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/store"
)

// Audit is what both engines promise to the chain of audit entries.
func Audit(t *testing.T, open func(t *testing.T) *store.DB) {
	laws := map[string]func(t *testing.T, db *store.DB){
		"EntriesComeBackAsTheyWere":             auditRoundTrip,
		"PendingIsInOrderOfTimeAndID":           auditPendingOrder,
		"ChainBeginsEmpty":                      auditEmpty,
		"StaleHeadExtendsNothing":               auditStaleHead,
		"ExtendIsAllOrNothing":                  auditAllOrNothing,
		"SequencersShareOneChain":               auditSequencers,
		"VerifyingBesideSequencersFindsNothing": auditVerifyWhileBusy,
		"ChangesAreRefused":                     auditRefusesChange,
		"TamperingIsFound":                      auditTampering,
		"NothingHappensWithoutItsEntry":         auditNothingWithout,
		"ListingSelectsAndPages":                auditList,
	}
	for name, law := range laws {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			law(t, open(t))
		})
	}
}

// auditTime is in the past, so that entries of now come after it.
var auditTime = time.Date(2026, 3, 4, 5, 6, 7, 891000, time.UTC)

func auditEntry(n int) audit.Entry {
	e := audit.New("acme:account/1", "certificate.issued", fmt.Sprintf("certificate/%04x", n), map[string]int{"n": n})
	e.At = auditTime.Add(time.Duration(n) * time.Microsecond)
	e.Remote, e.Request = "2001:db8::1", audit.NewID()
	return e
}

func auditAppend(t *testing.T, a *store.Audit, es ...audit.Entry) {
	t.Helper()
	for _, e := range es {
		if err := a.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
}

func auditEntries(n int) []audit.Entry {
	out := make([]audit.Entry, 0, n)
	for i := range n {
		out = append(out, auditEntry(i))
	}
	return out
}

func auditSequencer(t *testing.T, a *store.Audit, batch int) *audit.Sequencer {
	t.Helper()
	s, err := audit.NewSequencer(audit.SequencerConfig{Log: a, Logger: slog.New(slog.DiscardHandler), Batch: batch, Gather: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func auditVerify(t *testing.T, a *store.Audit) audit.Report {
	t.Helper()
	rep, err := audit.Verify(t.Context(), a, audit.VerifyOptions{PageSize: 7})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func auditWhole(t *testing.T, a *store.Audit, entries int64) {
	t.Helper()
	rep := auditVerify(t, a)
	if !rep.OK() || rep.Entries != entries || rep.Head.Seq != entries || rep.Backlog.Count != 0 {
		t.Errorf("want %d entries, all chained: %+v", entries, rep)
	}
}

func auditRoundTrip(t *testing.T, db *store.DB) {
	a := store.NewAudit(db)
	plain := audit.New("system", "x", "y", nil)
	ugly := audit.New("a\x00\xffb", "it's \"quoted\" $1 ?2", "öffnung/\u2028", map[string]string{"html": "<&>\x00", "u": "\u2029é"})
	ugly.At, ugly.Remote, ugly.Request = auditTime, strings.Repeat("€", 300), "\x00"
	auditAppend(t, a, plain, ugly)
	got, err := a.Pending(t.Context(), 10)
	if err != nil {
		t.Fatal(err)
	}
	if want := []audit.Entry{ugly.Bounded(), plain}; !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
	if err := auditSequencer(t, a, 0).Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	auditWhole(t, a, 2)
}

func auditPendingOrder(t *testing.T, db *store.DB) {
	a := store.NewAudit(db)
	es := auditEntries(6)
	es[3].At, es[3].ID, es[4].ID = es[4].At, "1", "2"
	auditAppend(t, a, es[5], es[4], es[1], es[3], es[0], es[2])
	got, err := a.Pending(t.Context(), 5)
	if err != nil || !reflect.DeepEqual(got, es[:5]) {
		t.Errorf("got %+v, %v", got, err)
	}
	b, err := a.Backlog(t.Context())
	if err != nil || b.Count != 6 || !b.Oldest.Equal(es[0].At) {
		t.Errorf("backlog %+v, %v", b, err)
	}
}

func auditEmpty(t *testing.T, db *store.DB) {
	a := store.NewAudit(db)
	head, err := a.Head(t.Context())
	if want := (audit.Head{Hash: audit.ZeroHash}); err != nil || head != want {
		t.Errorf("head %v, %v", head, err)
	}
	auditWhole(t, a, 0)
}

func auditStaleHead(t *testing.T, db *store.DB) {
	a := store.NewAudit(db)
	es := auditEntries(2)
	auditAppend(t, a, es...)
	zero := audit.Head{Hash: audit.ZeroHash}
	first := zero.Next(es[0])
	if err := a.Extend(t.Context(), zero, []audit.Record{first}); err != nil {
		t.Fatal(err)
	}
	for _, stale := range []audit.Head{zero, {Seq: 1, Hash: audit.ZeroHash}, {Seq: 0, Hash: first.Hash}, {Seq: 2, Hash: first.Hash}} {
		if err := a.Extend(t.Context(), stale, []audit.Record{stale.Next(es[1])}); !errors.Is(err, audit.ErrHeadMoved) {
			t.Errorf("extending from %v: %v", stale, err)
		}
	}
	head, err := a.Head(t.Context())
	if err != nil || head != first.Head() {
		t.Errorf("head %v, %v", head, err)
	}
}

func auditAllOrNothing(t *testing.T, db *store.DB) {
	a := store.NewAudit(db)
	es := auditEntries(200) // several statements
	auditAppend(t, a, es[:199]...)
	head := audit.Head{Hash: audit.ZeroHash}
	at, recs := head, []audit.Record(nil)
	for _, e := range es {
		r := at.Next(e)
		recs, at = append(recs, r), r.Head()
	}
	if err := a.Extend(t.Context(), head, recs); err == nil {
		t.Error("an entry that is not there got a place")
	}
	if got, err := a.Head(t.Context()); err != nil || got != head {
		t.Errorf("head %v, %v", got, err)
	}
	if b, err := a.Backlog(t.Context()); err != nil || b.Count != 199 {
		t.Errorf("backlog %+v, %v", b, err)
	}
	if err := a.Extend(t.Context(), head, recs[:199]); err != nil {
		t.Error(err)
	}
	auditWhole(t, a, 199)
}

// auditBusy has writers and two replicas' sequencers at work while fn runs.
func auditBusy(t *testing.T, a *store.Audit, fn func()) (written int64) {
	t.Helper()
	const writers, each = 4, 50
	ctx, cancel := context.WithCancel(t.Context())
	var runs, writes sync.WaitGroup
	for _, s := range []*audit.Sequencer{auditSequencer(t, a, 3), auditSequencer(t, a, 5)} {
		runs.Go(func() { s.Run(ctx) })
		for w := range writers / 2 {
			writes.Go(func() {
				for i := range each {
					if err := a.Append(ctx, auditEntry(w*each+i)); err != nil {
						t.Error(err)
					}
					s.Notify()
				}
			})
		}
	}
	fn()
	writes.Wait()
	cancel()
	runs.Wait()
	return writers * each
}

func auditSequencers(t *testing.T, db *store.DB) {
	a := store.NewAudit(db)
	n := auditBusy(t, a, func() {})
	var last sync.WaitGroup
	for range 2 {
		s := auditSequencer(t, a, 4)
		last.Go(func() {
			if err := s.Flush(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	last.Wait()
	auditWhole(t, a, n)
	recs, err := a.Records(t.Context(), math.MinInt64, 1000)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for i, r := range recs {
		if ids[r.ID] || r.Seq != int64(i+1) {
			t.Errorf("entry %d is %d, seen before: %v", i+1, r.Seq, ids[r.ID])
		}
		ids[r.ID] = true
	}
	if int64(len(ids)) != n {
		t.Errorf("%d of %d entries are chained", len(ids), n)
	}
}

func auditVerifyWhileBusy(t *testing.T, db *store.DB) {
	a := store.NewAudit(db)
	auditBusy(t, a, func() {
		for range 20 {
			if rep := auditVerify(t, a); !rep.OK() {
				t.Errorf("%+v", rep)
			}
		}
	})
}

func auditExec(t *testing.T, db *store.DB, q string) error {
	t.Helper()
	return db.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
		_, err := tx.Exec(ctx, q)
		return err
	})
}

func auditRefusesChange(t *testing.T, db *store.DB) {
	a := store.NewAudit(db)
	auditAppend(t, a, auditEntry(0))
	if err := auditSequencer(t, a, 0).Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	auditAppend(t, a, auditEntry(1))
	for _, q := range []string{
		`UPDATE audit_entries SET actor = 'somebody else'`,
		`UPDATE audit_entries SET detail = '{}' WHERE seq IS NULL`,
		`UPDATE audit_entries SET seq = 2, hash = 'x', at = at + 1 WHERE seq IS NULL`,
		`UPDATE audit_entries SET seq = NULL, hash = NULL WHERE seq = 1`,
		`UPDATE audit_entries SET seq = 7 WHERE seq = 1`,
		`UPDATE audit_entries SET seq = 1, hash = 'x' WHERE seq IS NULL`,
		`UPDATE audit_entries SET seq = 2 WHERE seq IS NULL`,
		`DELETE FROM audit_entries WHERE seq = 1`,
		`DELETE FROM audit_entries WHERE seq IS NULL`,
		`UPDATE audit_head SET seq = 0`,
		`UPDATE audit_head SET hash = 'x'`,
		`DELETE FROM audit_head`,
		`INSERT INTO audit_head (id, seq, hash) VALUES (2, 0, 'x')`,
	} {
		if err := auditExec(t, db, q); err == nil {
			t.Errorf("done: %s", q)
		}
	}
	if err := auditSequencer(t, a, 0).Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	auditWhole(t, a, 2)
}

// auditNothingWithout takes the entries' table away: whatever has an entry must
// not happen then.
func auditNothingWithout(t *testing.T, db *store.DB) {
	c, accounts, crls := store.NewCA(db), store.NewACME(db), store.NewCRL(db)
	l := c.PlainLedger()
	issued, pending, fresh := caIssue(t, c, 1), catest.Intent(2), catest.Intent(3)
	must(t, l.Begin(t.Context(), pending))
	number := statusReserve(t, crls, 1)
	account := acme.Account{
		ID: audit.NewID(), Key: []byte(`{"kty":"x"}`), Thumbprint: "tp", Status: acme.AccountValid, CreatedAt: acmeNow,
	}
	must(t, auditExec(t, db, `ALTER TABLE audit_entries RENAME TO audit_gone`))
	for fact, err := range map[string]error{
		"an intent":       l.Begin(t.Context(), fresh),
		"a certificate":   l.Commit(t.Context(), pending, catest.Signed(pending)),
		"a void intent":   l.Abort(t.Context(), pending, keys.ErrBusy),
		"a failed intent": l.Abort(t.Context(), pending, context.DeadlineExceeded),
		"abandoning":      caAbandon(t, c, pending),
		"revoking":        caRevoke(t, c, issued, ca.KeyCompromise),
		"a CRL":           crls.Publish(t.Context(), statusPublication(number, true)),
		"an account": func() error {
			_, _, err := accounts.CreateAccount(t.Context(), account, acmeEntry())
			return err
		}(),
	} {
		if err == nil {
			t.Errorf("%s came about without an entry", fact)
		}
	}
	_, err := c.Record(t.Context(), fresh.Serial)
	wantErr(t, err, ca.ErrNotFound)
	for serial, want := range map[ca.Serial]ca.State{pending.Serial: ca.Pending, issued.Serial: ca.Issued} {
		r, err := c.Record(t.Context(), serial)
		must(t, err)
		if r.State != want || r.Revoked() {
			t.Errorf("certificate %s is %s, revoked %t; want %s", serial, r.State, r.Revoked(), want)
		}
	}
	blocked, err := c.KeyBlocked(t.Context(), issued.SPKIHash)
	must(t, err)
	if blocked {
		t.Error("the key is blocked")
	}
	_, err = accounts.AccountByKey(t.Context(), account.Thumbprint)
	wantErr(t, err, acme.ErrNotFound)
	_, err = crls.Latest(t.Context(), crl.Series{Scope: statusScope})
	wantErr(t, err, crl.ErrNone)
}

// auditDisarm takes the triggers away, as somebody with the database's own
// rights can.
func auditDisarm(t *testing.T, db *store.DB) {
	t.Helper()
	for trigger, table := range map[string]string{
		"audit_entries_fixed": "audit_entries", "audit_entries_kept": "audit_entries",
		"audit_head_forward": "audit_head", "audit_head_kept": "audit_head",
	} {
		if auditExec(t, db, `DROP TRIGGER `+trigger) == nil {
			continue // SQLite
		}
		if err := auditExec(t, db, `DROP TRIGGER `+trigger+` ON `+table); err != nil {
			t.Fatal(err)
		}
	}
}

func auditTampering(t *testing.T, db *store.DB) {
	a := store.NewAudit(db)
	auditAppend(t, a, auditEntries(20)...)
	if err := auditSequencer(t, a, 0).Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	auditDisarm(t, db)
	for _, q := range []string{
		`UPDATE audit_entries SET id = 'x' WHERE seq = 5`,
		`UPDATE audit_entries SET at = at + 1 WHERE seq = 5`,
		`UPDATE audit_entries SET at = 0 WHERE seq = 1`,
		`UPDATE audit_entries SET actor = 'x' WHERE seq = 20`,
		`UPDATE audit_entries SET action = 'x' WHERE seq = 5`,
		`UPDATE audit_entries SET object = 'x' WHERE seq = 5`,
		`UPDATE audit_entries SET remote = '' WHERE seq = 5`,
		`UPDATE audit_entries SET request = '' WHERE seq = 5`,
		`UPDATE audit_entries SET detail = detail || ' ' WHERE seq = 5`,
		`UPDATE audit_entries SET hash = UPPER(hash) WHERE seq = 5`,
		`UPDATE audit_entries SET hash = '' WHERE seq = 20`,
		`UPDATE audit_entries SET seq = -5 WHERE seq = 5`,
		`UPDATE audit_entries SET seq = 0 WHERE seq = 1`,
		`UPDATE audit_entries SET seq = 25 WHERE seq = 20`,
		`UPDATE audit_entries SET seq = NULL, hash = NULL WHERE seq = 7`,
		`UPDATE audit_entries SET actor = action, action = actor WHERE seq = 7`,
		`DELETE FROM audit_entries WHERE seq = 1`,
		`DELETE FROM audit_entries WHERE seq = 12`,
		`DELETE FROM audit_entries WHERE seq > 18`,
		`DELETE FROM audit_entries`,
		`INSERT INTO audit_entries (id, at, actor, action, object, remote, request, detail, seq, hash) VALUES ('x', 1, '', '', '', '', '', '', 21, '')`,
		`INSERT INTO audit_entries (id, at, actor, action, object, remote, request, detail, seq, hash) VALUES ('x', 1, '', '', '', '', '', '', 0, '')`,
		`UPDATE audit_head SET seq = 19`,
		`UPDATE audit_head SET seq = 21`,
		`UPDATE audit_head SET seq = -1`,
		`UPDATE audit_head SET hash = UPPER(hash)`,
	} {
		auditUndone(t, db, q, func(view *store.Audit) {
			if rep := auditVerify(t, view); rep.OK() {
				t.Errorf("not found: %s", q)
			}
		})
	}
	auditWhole(t, a, 20)
}

var errUndo = errors.New("undo")

// auditUndone runs fn on what q makes of the database, and undoes q. It sees
// the open transaction through an engine of its own.
func auditUndone(t *testing.T, db *store.DB, q string, fn func(*store.Audit)) {
	t.Helper()
	err := db.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
		if n, err := tx.Exec(ctx, q); err != nil || n == 0 {
			return fmt.Errorf("%s: changed %d rows: %w", q, n, err)
		}
		fn(store.NewAudit(store.New(inside{tx})))
		return errUndo
	})
	if !errors.Is(err, errUndo) {
		t.Errorf("%v", err)
	}
}

// inside is an engine that reads within one open transaction.
type inside struct{ tx store.Tx }

func (i inside) Write(ctx context.Context, fn func(ctx context.Context, tx store.Tx) error) error {
	return fn(ctx, i.tx)
}

func (i inside) Read(ctx context.Context, fn func(ctx context.Context, tx store.Tx) error) error {
	return fn(ctx, i.tx)
}

func (i inside) ReadRow(ctx context.Context, scan func(store.Row) error, q string, args ...any) error {
	return scan(i.tx.QueryRow(ctx, q, args...))
}

func (inside) Ping(context.Context) error { return nil }
func (inside) Close() error               { return nil }

func auditList(t *testing.T, db *store.DB) {
	a := store.NewAudit(db)
	es := auditEntries(30)
	for i := range es {
		if i%3 == 0 {
			es[i].Action = "certificate.revoked"
		}
		if i%5 == 0 {
			es[i].Object = "certificate/00"
		}
	}
	auditAppend(t, a, es...)
	if err := auditSequencer(t, a, 0).Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	auditAppend(t, a, audit.New("system", "certificate.revoked", "certificate/00", nil)) // no place yet: not listed
	for _, c := range []struct {
		name string
		q    audit.Query
		want []int64
	}{
		{"first page", audit.Query{Limit: 3}, []int64{1, 2, 3}},
		{"next page", audit.Query{Limit: 3, After: 3}, []int64{4, 5, 6}},
		{"past the end", audit.Query{After: 30}, nil},
		{"newest", audit.Query{Limit: 2, Newest: true}, []int64{30, 29}},
		{"newest, next page", audit.Query{Limit: 2, Newest: true, Before: 29}, []int64{28, 27}},
		{"newest after", audit.Query{Newest: true, After: 28}, []int64{30, 29}},
		{"by action", audit.Query{Action: "certificate.revoked", Limit: 3, After: 1}, []int64{4, 7, 10}},
		{"by object", audit.Query{Object: "certificate/00"}, []int64{1, 6, 11, 16, 21, 26}},
		{"by both", audit.Query{Object: "certificate/00", Action: "certificate.revoked", Newest: true}, []int64{16, 1}},
	} {
		recs, err := a.List(t.Context(), c.q)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var got []int64
		for _, r := range recs {
			got = append(got, r.Seq)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}
