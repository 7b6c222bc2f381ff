package storetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/crl"
	"github.com/secsy-pki/secsy-pki/ocsp"
	"github.com/secsy-pki/secsy-pki/store"
)

// Status is the suite of what OCSP and CRLs keep and read.
func Status(t *testing.T, open func(t *testing.T) *store.DB) {
	for name, law := range map[string]func(t *testing.T, db *store.DB){
		"StatusFollowsTheCertificate":          statusFollows,
		"LaterEndingResponderCertificateWins":  statusResponder,
		"OneReplicaHasTheWork":                 statusWork,
		"SignaturesMadeAheadComeBackWhole":     statusAhead,
		"AChangeOfStatusMakesASignatureDue":    statusAheadDue,
		"AllAssignedAreWalkedThroughInOrder":   statusAheadWalk,
		"CRLNumbersOnlyGrow":                   statusNumbers,
		"LeaseLetsOneBuild":                    statusLease,
		"LateCRLIsSuperseded":                  statusSuperseded,
		"OnlyTheLastCRLsStay":                  statusKeep,
		"SeqChangesWithWhateverACRLMustList":   statusCount,
		"CRLsComeBackInOnePiece":               statusBodies,
		"CRLsThatNobodyPublishedGo":            statusOrphans,
		"IncompleteCRLIsNotPublished":          statusIncomplete,
		"ExpiredAreListedUntilOneScheduledCRL": statusRevoked,
		"NumbersOfChangesFollowTheCommits":     statusSequence,
		"ChangesAreListedInTheirOrder":         statusChanges,
		"OlderProgramsAreGivenANumber":         statusOlder,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			law(t, open(t))
		})
	}
}

const (
	statusIssuer  ca.IssuerID = "00112233445566778899aabbccddeeff"
	statusSibling ca.IssuerID = "ffeeddccbbaa99887766554433221100"
)

// statusScope is all that statusIssuer certified.
var statusScope = crl.Scope{Issuer: statusIssuer}

// statusNow is a time that every engine gives back as it was.
func statusNow() time.Time { return time.Now().UTC().Truncate(time.Second) }

func statusIntent(issuer ca.IssuerID, serial ca.Serial, notAfter time.Time) ca.Intent {
	return ca.Intent{
		ID: audit.NewID(), Serial: serial, Issuer: issuer, Profile: "p", TBS: []byte{1}, NotBefore: statusNow().Add(-time.Hour),
		NotAfter: notAfter, Requester: ca.Requester{Actor: "system"}, CreatedAt: statusNow(), LeaseUntil: statusNow().Add(time.Minute),
	}
}

// statusBegin records the intent for one serial.
func statusBegin(t *testing.T, db *store.DB, issuer ca.IssuerID, serial ca.Serial, notAfter time.Time) ca.Intent {
	t.Helper()
	in := statusIntent(issuer, serial, notAfter)
	if err := store.NewCA(db).PlainLedger().Begin(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	return in
}

// statusIssue records one certificate as issued.
func statusIssue(t *testing.T, db *store.DB, issuer ca.IssuerID, serial ca.Serial, notAfter time.Time) {
	t.Helper()
	in := statusBegin(t, db, issuer, serial, notAfter)
	c := ca.Certificate{ID: in.ID, Serial: serial, Issuer: issuer, Profile: in.Profile, DER: []byte{2}, NotBefore: in.NotBefore, NotAfter: notAfter}
	if err := store.NewCA(db).PlainLedger().Commit(t.Context(), in, c); err != nil {
		t.Fatal(err)
	}
}

func statusRevoke(t *testing.T, db *store.DB, serial ca.Serial, at time.Time, reason ca.Reason) {
	t.Helper()
	r := ca.Revocation{Serial: serial, Reason: reason, At: at, Requester: ca.Requester{Actor: "system"}}
	if err := store.NewCA(db).Revoke(t.Context(), r, audit.New("system", "certificate.revoked", "certificate/"+string(serial), nil)); err != nil {
		t.Fatal(err)
	}
}

func statusFollows(t *testing.T, db *store.DB) {
	o, now := store.NewOCSP(db), statusNow()
	end := now.Add(time.Hour)
	expect := func(when string, want ocsp.Status) {
		t.Helper()
		got, err := o.Status(t.Context(), statusIssuer, "0a0b")
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", when, got, err, want)
		}
	}
	absent := func(issuer ca.IssuerID, serial ca.Serial) {
		t.Helper()
		if got, err := o.Status(t.Context(), issuer, serial); !errors.Is(err, ca.ErrNotFound) {
			t.Errorf("serial %s of %s: %+v, %v", serial, issuer, got, err)
		}
	}
	absent(statusIssuer, "0a0b")
	in := statusBegin(t, db, statusIssuer, "0a0b", end)
	expect("pending", ocsp.Status{State: ca.Pending, NotAfter: end})
	if err := store.NewCA(db).PlainLedger().Commit(t.Context(), in, ca.Certificate{Serial: in.Serial, DER: []byte{2}}); err != nil {
		t.Fatal(err)
	}
	expect("issued", ocsp.Status{State: ca.Issued, NotAfter: end})
	absent(statusSibling, "0a0b")
	absent(statusIssuer, "0a0c")
	statusRevoke(t, db, "0a0b", now, ca.Superseded)
	expect("revoked", ocsp.Status{State: ca.Issued, RevokedAt: now, Reason: ca.Superseded, NotAfter: end})
	statusRevoke(t, db, "0a0b", now.Add(time.Minute), ca.KeyCompromise)
	expect("reason changed", ocsp.Status{State: ca.Issued, RevokedAt: now, Reason: ca.KeyCompromise, NotAfter: end})

	in = statusBegin(t, db, statusIssuer, "0a0d", end)
	if err := store.NewCA(db).PlainLedger().Abort(t.Context(), in, errors.New("device error")); err != nil {
		t.Fatal(err)
	}
	if st, err := o.Status(t.Context(), statusIssuer, "0a0d"); err != nil || st.State != ca.Abandoned || st.RevokedAt.IsZero() {
		t.Errorf("abandoned: %+v, %v", st, err)
	}
}

func statusChanges(t *testing.T, db *store.DB) {
	o, now := store.NewOCSP(db), statusNow()
	expect := func(since int64, limit int, want ...ocsp.Change) {
		t.Helper()
		got, err := o.Changes(t.Context(), statusIssuer, since, limit)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("after %d: %v, %v; want %v", since, got, err, want)
		}
	}
	head := func(want int64) {
		t.Helper()
		got, err := o.Heads(t.Context())
		if err != nil || got[statusIssuer] != want {
			t.Errorf("heads %v, %v; want %d", got, err, want)
		}
	}
	head(0)
	expect(0, 10)
	for _, serial := range []ca.Serial{"01", "02", "03"} {
		statusIssue(t, db, statusIssuer, serial, now.Add(time.Hour))
	}
	statusIssue(t, db, statusSibling, "04", now.Add(time.Hour))
	head(0)
	statusRevoke(t, db, "02", now, ca.Superseded)
	statusRevoke(t, db, "04", now, ca.Superseded)
	statusRevoke(t, db, "01", now, ca.Superseded)
	head(2)
	expect(0, 10, ocsp.Change{Serial: "02", Number: 1}, ocsp.Change{Serial: "01", Number: 2})
	expect(0, 1, ocsp.Change{Serial: "02", Number: 1})
	expect(1, 10, ocsp.Change{Serial: "01", Number: 2})
	expect(2, 10)
	statusRevoke(t, db, "02", now, ca.KeyCompromise)
	head(3)
	expect(0, 10, ocsp.Change{Serial: "01", Number: 2}, ocsp.Change{Serial: "02", Number: 3})
}

func statusResponder(t *testing.T, db *store.DB) {
	o, end := store.NewOCSP(db), statusNow()
	key, other := [32]byte{1}, [32]byte{2}
	save := func(spki [32]byte, der string, notAfter time.Time) {
		t.Helper()
		if err := o.SaveResponder(t.Context(), statusIssuer, spki, []byte(der), notAfter); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(spki [32]byte, want string) {
		t.Helper()
		if der, err := o.Responder(t.Context(), statusIssuer, spki); err != nil || string(der) != want {
			t.Errorf("%q, %v; want %q", der, err, want)
		}
	}
	if _, err := o.Responder(t.Context(), statusIssuer, key); !errors.Is(err, ca.ErrNotFound) {
		t.Errorf("before the first: %v", err)
	}
	save(key, "first", end)
	save(other, "other", end)
	expect(key, "first")
	save(key, "second", end.Add(time.Hour))
	save(key, "late", end.Add(time.Minute)) // a slow replica's
	expect(key, "second")
	expect(other, "other")
	if _, err := o.Responder(t.Context(), statusSibling, key); !errors.Is(err, ca.ErrNotFound) {
		t.Errorf("another issuer's: %v", err)
	}
}

// statusReserve takes the next number with a lease that has ended already.
func statusReserve(t *testing.T, c *store.CRL, floor crl.Number) crl.Number {
	t.Helper()
	now := statusNow()
	n, err := c.Reserve(t.Context(), statusScope, crl.Lease{Floor: floor, Now: now, Until: now})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func statusNumbers(t *testing.T, db *store.DB) {
	c := store.NewCRL(db)
	var last crl.Number
	for _, step := range []struct{ floor, want crl.Number }{{100, 100}, {100, 101}, {5, 102}, {200, 200}, {200, 201}} {
		if last = statusReserve(t, c, step.floor); last != step.want {
			t.Errorf("floor %d gave %d, want %d", step.floor, last, step.want)
		}
	}
	// Nothing of this was published, and yet no number comes again.
	if _, err := c.Latest(t.Context(), crl.Series{Scope: statusScope}); !errors.Is(err, crl.ErrNone) {
		t.Errorf("latest: %v", err)
	}
	if h, err := c.Head(t.Context(), statusScope); err != nil || h != (crl.Head{}) {
		t.Errorf("head: %+v, %v", h, err)
	}
	if n, err := c.Reserve(t.Context(), crl.Scope{Issuer: statusSibling}, crl.Lease{Floor: 1, Now: statusNow(), Until: statusNow()}); err != nil || n != 1 {
		t.Errorf("another issuer's: %d, %v", n, err)
	}
}

func statusLease(t *testing.T, db *store.DB) {
	c, now := store.NewCRL(db), statusNow()
	lease := crl.Lease{Floor: 1, Now: now, Until: now.Add(time.Minute)}
	var (
		wg     sync.WaitGroup
		won    atomic.Int64
		number atomic.Int64
	)
	for range 8 {
		wg.Go(func() {
			n, err := c.Reserve(t.Context(), statusScope, lease)
			switch {
			case err == nil:
				won.Add(1)
				number.Store(int64(n))
			case !errors.Is(err, crl.ErrHeld):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Fatalf("%d of 8 may build", won.Load())
	}
	first := crl.Number(number.Load())
	if err := c.Release(t.Context(), statusScope, first-1); err != nil { // somebody else's
		t.Fatal(err)
	}
	if _, err := c.Reserve(t.Context(), statusScope, lease); !errors.Is(err, crl.ErrHeld) {
		t.Errorf("held: %v", err)
	}
	if err := c.Release(t.Context(), statusScope, first); err != nil {
		t.Fatal(err)
	}
	second, err := c.Reserve(t.Context(), statusScope, lease)
	if err != nil || second <= first {
		t.Errorf("released: %d after %d, %v", second, first, err)
	}
	lease.Now = lease.Until // whoever held it is gone
	if third, err := c.Reserve(t.Context(), statusScope, lease); err != nil || third <= second {
		t.Errorf("ended: %d after %d, %v", third, second, err)
	}
}

func statusPublication(n crl.Number, scheduled bool) crl.Publication {
	now := statusNow()
	return crl.Publication{
		CRL: crl.CRL{
			Scope: statusScope, Number: n, ThisUpdate: now.Add(time.Duration(n) * time.Second), NextUpdate: now.Add(time.Hour), Entries: 7,
			Seq: 9,
		},
		Scheduled: scheduled, Keep: 3, Audit: audit.New("system", "crl.issued", fmt.Sprintf("crl/%s/%d", statusIssuer, n), nil),
	}
}

// statusPut keeps the octets of p.
func statusPut(t *testing.T, c *store.CRL, p crl.Publication, content string) crl.Publication {
	t.Helper()
	var err error
	if p.Body, err = c.Put(t.Context(), statusNow(), strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	p.Octets = int64(len(content))
	return p
}

func statusGet(t *testing.T, c *store.CRL, id crl.BodyID) string {
	t.Helper()
	var content strings.Builder
	if err := c.Get(t.Context(), id, &content); err != nil {
		t.Error(err)
	}
	return content.String()
}

// statusChunks counts the bodies and the pieces that are there.
func statusChunks(t *testing.T, db *store.DB) (bodies, chunks int64) {
	t.Helper()
	err := db.Read(t.Context(), func(ctx context.Context, tx store.Tx) error {
		return tx.QueryRow(ctx, `SELECT (SELECT COUNT(*) FROM crl_bodies), (SELECT COUNT(*) FROM crl_chunks)`).Scan(&bodies, &chunks)
	})
	if err != nil {
		t.Fatal(err)
	}
	return bodies, chunks
}

// statusBodies: octets come back as they were put, however many pieces they are.
func statusBodies(t *testing.T, db *store.DB) {
	c := store.NewCRL(db)
	long := make([]byte, 3<<20+5)
	for i := range long {
		long[i] = byte(i >> 8)
	}
	for _, n := range []int{0, 1, 1<<20 - 1, 1 << 20, 1<<20 + 1, len(long)} {
		p := statusPut(t, c, statusPublication(1, true), string(long[:n]))
		if got := statusGet(t, c, p.Body); got != string(long[:n]) {
			t.Errorf("%d octets came back as %d", n, len(got))
		}
	}
	if bodies, chunks := statusChunks(t, db); bodies != 6 || chunks != 1+1+1+2+4 {
		t.Errorf("%d bodies in %d pieces", bodies, chunks)
	}
	if err := c.Get(t.Context(), "none", io.Discard); !errors.Is(err, crl.ErrNone) {
		t.Errorf("what is not there: %v", err)
	}
	full := errors.New("the disk is full")
	if err := c.Get(t.Context(), statusPut(t, c, crl.Publication{}, "x").Body, failingWriter{full}); !errors.Is(err, full) {
		t.Errorf("a reader that fails: %v", err)
	}
	if _, err := c.Put(t.Context(), statusNow(), iotest.ErrReader(full)); !errors.Is(err, full) {
		t.Errorf("a writer that fails: %v", err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// statusOrphans: what was put and not published goes when it is dropped, or in
// time; what was published stays whatever is said.
func statusOrphans(t *testing.T, db *store.DB) {
	c := store.NewCRL(db)
	p := statusPut(t, c, statusPublication(statusReserve(t, c, 1), true), "published")
	if err := c.Publish(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := c.Drop(t.Context(), p.Body); err != nil {
		t.Error(err)
	}
	dropped := statusPut(t, c, statusPublication(1, true), "dropped")
	if err := c.Drop(t.Context(), dropped.Body); err != nil {
		t.Error(err)
	}
	if err := c.Get(t.Context(), dropped.Body, io.Discard); !errors.Is(err, crl.ErrNone) {
		t.Errorf("dropped: %v", err)
	}
	left := statusPut(t, c, statusPublication(1, true), "left behind by a crash")
	for _, step := range []struct {
		after time.Duration
		want  int64
	}{{59 * time.Minute, 3}, {2 * time.Hour, 2}} {
		if _, err := c.Put(t.Context(), statusNow().Add(step.after), strings.NewReader("another")); err != nil {
			t.Fatal(err)
		}
		if bodies, _ := statusChunks(t, db); bodies != step.want {
			t.Errorf("%d bodies after %v, want %d", bodies, step.after, step.want)
		}
	}
	if err := c.Get(t.Context(), left.Body, io.Discard); !errors.Is(err, crl.ErrNone) {
		t.Errorf("left behind: %v", err)
	}
	if got := statusGet(t, c, p.Body); got != "published" {
		t.Errorf("published: %q", got)
	}
}

// statusIncomplete: a CRL whose octets are not all there is not published, nor
// are the octets of another one.
func statusIncomplete(t *testing.T, db *store.DB) {
	c := store.NewCRL(db)
	p := statusPut(t, c, statusPublication(statusReserve(t, c, 1), true), "octets")
	short, none := p, p
	short.Octets++
	none.Body = "none"
	for _, bad := range []crl.Publication{short, none} {
		if err := c.Publish(t.Context(), bad); !errors.Is(err, crl.ErrIncomplete) {
			t.Errorf("%+v: %v", bad.CRL, err)
		}
	}
	if _, err := c.Latest(t.Context(), crl.Series{Scope: statusScope}); !errors.Is(err, crl.ErrNone) {
		t.Errorf("latest: %v", err)
	}
	if err := c.Publish(t.Context(), p); err != nil {
		t.Error(err)
	}
	again := statusPublication(statusReserve(t, c, 1), true)
	again.Body, again.Octets = p.Body, p.Octets
	if err := c.Publish(t.Context(), again); !errors.Is(err, crl.ErrIncomplete) {
		t.Errorf("octets of another CRL: %v", err)
	}
}

func statusSuperseded(t *testing.T, db *store.DB) {
	c := store.NewCRL(db)
	if err := c.Publish(t.Context(), statusPublication(1, true)); !errors.Is(err, crl.ErrSuperseded) {
		t.Errorf("a number never taken: %v", err)
	}
	slow, quick := statusReserve(t, c, 1), statusReserve(t, c, 1)
	want := statusPut(t, c, statusPublication(quick, true), "quick")
	if err := c.Publish(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	for _, n := range []crl.Number{slow, quick} {
		if err := c.Publish(t.Context(), statusPublication(n, true)); !errors.Is(err, crl.ErrSuperseded) {
			t.Errorf("number %d after %d: %v", n, quick, err)
		}
	}
	got, err := c.Latest(t.Context(), crl.Series{Scope: statusScope})
	if err != nil || got.Number != quick || got.Body != want.Body || got.Octets != want.Octets || got.Seq != want.Seq || got.Entries != want.Entries ||
		!got.ThisUpdate.Equal(want.ThisUpdate) || !got.NextUpdate.Equal(want.NextUpdate) {
		t.Errorf("latest %+v, %v; want %+v", got, err, want.CRL)
	}
	h, err := c.Head(t.Context(), statusScope)
	if err != nil || h.Published != quick || h.Base.Seq != want.Seq || h.Base.Number != quick || !h.Base.NextUpdate.Equal(want.NextUpdate) || !h.ScheduledAt.Equal(want.ThisUpdate) {
		t.Errorf("head %+v, %v", h, err)
	}
	// A CRL out of schedule leaves the schedule as it is.
	early := statusPut(t, c, statusPublication(statusReserve(t, c, 1), false), "early")
	if err := c.Publish(t.Context(), early); err != nil {
		t.Fatal(err)
	}
	if h, err := c.Head(t.Context(), statusScope); err != nil || h.Published <= quick || !h.ScheduledAt.Equal(want.ThisUpdate) {
		t.Errorf("head %+v, %v", h, err)
	}
}

func statusKeep(t *testing.T, db *store.DB) {
	c := store.NewCRL(db)
	for range 6 {
		p := statusPut(t, c, statusPublication(statusReserve(t, c, 1), true), "octets")
		if err := c.Publish(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	if bodies, chunks := statusChunks(t, db); bodies != 3 || chunks != 3 {
		t.Errorf("%d bodies in %d pieces", bodies, chunks)
	}
	var n, lowest int64
	err := db.Read(t.Context(), func(ctx context.Context, tx store.Tx) error {
		return tx.QueryRow(ctx, `SELECT COUNT(*), MIN(number) FROM crls`).Scan(&n, &lowest)
	})
	if err != nil || n != 3 || lowest != 4 {
		t.Errorf("%d CRLs from %d on, %v", n, lowest, err)
	}
}

func statusCount(t *testing.T, db *store.DB) {
	c, now := store.NewCRL(db), statusNow()
	expect := func(when string, want crl.Seq) {
		t.Helper()
		if h, err := c.Head(t.Context(), statusScope); err != nil || h.Seq != want || h.Changed != (want > 0) {
			t.Errorf("%s: %+v, %v; want %d", when, h, err, want)
		}
	}
	statusIssue(t, db, statusIssuer, "0a", now.Add(time.Hour))
	statusIssue(t, db, statusIssuer, "0b", now.Add(time.Hour))
	statusIssue(t, db, statusSibling, "0c", now.Add(time.Hour))
	expect("nothing revoked", 0)
	statusRevoke(t, db, "0a", now, ca.Superseded)
	expect("one", 1)
	statusRevoke(t, db, "0c", now, ca.Superseded)
	expect("another issuer's", 1)
	statusRevoke(t, db, "0b", now, ca.KeyCompromise)
	expect("two", 2)
	statusRevoke(t, db, "0a", now, ca.KeyCompromise)
	expect("a reason changed", 3)
}

func statusEntries(t *testing.T, c *store.CRL, s crl.Selection) (entries []crl.Entry) {
	t.Helper()
	for e, err := range c.Revoked(t.Context(), s) {
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	return entries
}

func statusRevoked(t *testing.T, db *store.DB) {
	c, now := store.NewCRL(db), statusNow()
	long := now.Add(-48 * time.Hour)
	statusIssue(t, db, statusIssuer, "7f00", now.Add(time.Hour))
	statusIssue(t, db, statusIssuer, "0a", now.Add(time.Hour))
	statusIssue(t, db, statusIssuer, "0b", long)
	statusIssue(t, db, statusIssuer, "0c", long)
	statusIssue(t, db, statusIssuer, "0d", now.Add(time.Hour))
	statusIssue(t, db, statusSibling, "0e", now.Add(time.Hour))
	statusRevoke(t, db, "7f00", long, ca.Superseded)
	statusRevoke(t, db, "0a", long.Add(time.Microsecond), ca.Unspecified)
	statusRevoke(t, db, "0b", long, ca.Superseded)
	statusRevoke(t, db, "0c", long, ca.KeyCompromise)
	statusRevoke(t, db, "0e", now, ca.Superseded)
	in := statusBegin(t, db, statusIssuer, "0f", now.Add(time.Hour))
	if err := store.NewCA(db).PlainLedger().Abort(t.Context(), in, errors.New("device error")); err != nil {
		t.Fatal(err)
	}
	serials := func(cutoff time.Time, seen crl.Seq) []ca.Serial {
		t.Helper()
		var out []ca.Serial
		sel := crl.Selection{Series: crl.Series{Scope: statusScope}, ExpiredBy: cutoff, Seen: seen}
		for _, e := range statusEntries(t, c, sel) {
			out = append(out, e.Serial)
		}
		still, err := c.StillRevoked(t.Context(), sel, []ca.Serial{"0a", "0b", "0c", "0d", "0e", "0f", "7f00", "ff"})
		if err != nil || !slices.Equal(still, out) {
			t.Errorf("still revoked: %v, %v; want %v", still, err, out)
		}
		return out
	}
	if got, want := serials(time.Time{}, 0), []ca.Serial{"0a", "0b", "0c", "0f", "7f00"}; !slices.Equal(got, want) {
		t.Errorf("all: %v, want %v", got, want)
	}
	// 0b had expired and been seen by then; 0c was revoked only afterwards, whatever
	// its time says.
	if got, want := serials(now.Add(-24*time.Hour), 3), []ca.Serial{"0a", "0c", "0f", "7f00"}; !slices.Equal(got, want) {
		t.Errorf("since: %v, want %v", got, want)
	}
	list := statusEntries(t, c, crl.Selection{Series: crl.Series{Scope: statusScope}})
	if got, want := list[0], (crl.Entry{Serial: "0a", RevokedAt: long.Add(time.Microsecond)}); got != want {
		t.Errorf("entry %+v, want %+v", got, want)
	}
	if got, want := list[2], (crl.Entry{Serial: "0c", RevokedAt: long, Reason: ca.KeyCompromise}); got != want {
		t.Errorf("entry %+v, want %+v", got, want)
	}
}

// statusSequence has many revoke at once: whoever reads a number must have read
// all below it, or what follows the changes by number misses one for ever.
func statusSequence(t *testing.T, db *store.DB) {
	const writers, each = 4, 12
	end := statusNow().Add(time.Hour)
	serial := func(w, i int) ca.Serial { return ca.Serial(fmt.Sprintf("01%02x%02x", w, i)) }
	for w := range writers {
		for i := range each {
			statusIssue(t, db, statusIssuer, serial(w, i), end)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg, reader sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				r := ca.Revocation{Serial: serial(w, i), Reason: ca.Superseded, At: statusNow()}
				if err := store.NewCA(db).Revoke(t.Context(), r, audit.New("system", ca.ActionRevoked, "certificate/"+string(r.Serial), nil)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	look := func() (seen int64) {
		var highest int64
		err := db.ReadRow(context.WithoutCancel(ctx), func(r store.Row) error { return r.Scan(&seen, &highest) },
			`SELECT COUNT(DISTINCT c.revocation_seq), COALESCE(MAX(c.revocation_seq), 0) FROM certificates c
			WHERE c.issuer = $1 AND c.revocation_seq > 0`, string(statusIssuer))
		if err != nil || seen != highest {
			t.Errorf("%d numbers up to %d are seen, error %v", seen, highest, err)
		}
		return seen
	}
	reader.Go(func() {
		for ctx.Err() == nil {
			look()
		}
	})
	wg.Wait()
	stop()
	reader.Wait()
	if seen := look(); seen != writers*each {
		t.Errorf("%d changes have a number, want %d", seen, writers*each)
	}
}

// statusOlder does what a program that knows no numbers does.
func statusOlder(t *testing.T, db *store.DB) {
	end := statusNow().Add(time.Hour)
	statusIssue(t, db, statusIssuer, "0a01", end)
	statusIssue(t, db, statusIssuer, "0a02", end)
	older := func(set string) {
		t.Helper()
		if err := db.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
			_, err := tx.Exec(ctx, `UPDATE certificates SET `+set+` WHERE serial = '0a01'`)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(serial ca.Serial, seq int64) {
		t.Helper()
		if r, err := store.NewCA(db).Record(t.Context(), serial); err != nil || r.StatusSeq != seq {
			t.Errorf("serial %s has number %d, want %d (%v)", serial, r.StatusSeq, seq, err)
		}
	}
	older(`revoked_at = 5, reason = 4`)
	want("0a01", 1)
	statusRevoke(t, db, "0a02", statusNow(), ca.Superseded)
	want("0a02", 2)
	older(`reason = 1`)
	want("0a01", 3)
	older(`reason = 1, replaced_by = 'x'`)
	want("0a01", 3)
	want("0a02", 2)
}
