package catest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
)

// StoreSuite holds a ca.Store to its promises. Each test opens one of its own.
func StoreSuite(t *testing.T, open func(t *testing.T) ca.Store) {
	t.Helper()
	tests := []struct {
		law string
		run func(t *testing.T, s ca.Store)
	}{
		{"UnassignedSerialIsNotFound", unassigned},
		{"SerialIsAssignedOnce", serialOnce},
		{"IssuedCertificateComesBackWhole", comesBack},
		{"CommitHappensOnce", commitOnce},
		{"BusyIntentIsVoidAndNotRevoked", busyIsVoid},
		{"FailedIntentIsAbandonedAndRevoked", failedIsAbandoned},
		{"OnlyTheOwnerEndsAnIntent", ownerEnds},
		{"RevocationHappensOnce", revokeOnce},
		{"KeyCompromiseReplacesTheReasonAndKeepsTheTime", compromiseReplaces},
		{"CompromiseIsDatedBackAndNeverForth", compromiseBack},
		{"HoldIsReleasedOrBecomesFinal", hold},
		{"OnlyAHoldIsReleased", onlyHolds},
		{"EachChangeOfStatusTakesTheNextNumberOfItsIssuer", statusNumbers},
		{"ManyAreRevokedInOneStepAndEachForItself", revokeMany},
		{"AnAdoptedCertificateIsAsIfIssued", adopted},
		{"BlockedKeyStaysBlocked", blockedKey},
		{"OnlyIssuedCertificatesAreRevoked", onlyIssued},
		{"ExpiredIntentsComeOldestFirst", expired},
		{"LiveIntentIsNotAbandoned", liveStays},
		{"CommitAndAbandonHaveOneWinner", oneWinner},
		{"SerialsAreNotAssignedTwiceAtOnce", concurrentSerial},
	}
	for _, tt := range tests {
		t.Run(tt.law, func(t *testing.T) {
			t.Parallel()
			tt.run(t, open(t))
		})
	}
}

// suiteTime is the suite's now.
var suiteTime = time.Date(2026, time.October, 1, 12, 0, 0, 123456000, time.UTC)

var errCut = errors.New("the device was cut off")

// Intent makes an intent like those of an Authority, its serial counted by n.
func Intent(n int) ca.Intent {
	tbs := fmt.Appendf(nil, "to be signed %d", n)
	return ca.Intent{
		ID: audit.NewID(), Serial: ca.Serial(fmt.Sprintf("01%032x", n)), Issuer: "00112233445566778899aabbccddeeff", Profile: ProfileName,
		TBS: tbs, SPKIHash: sha256.Sum256(tbs),
		Names:     []ca.Identifier{{Type: ca.DNS, Value: fmt.Sprintf("host%d.example.com", n)}, {Type: ca.IP, Value: "192.0.2.1"}},
		NotBefore: suiteTime.Add(-time.Hour).Truncate(time.Second), NotAfter: suiteTime.Add(90 * 24 * time.Hour).Truncate(time.Second),
		Requester: ca.Requester{Actor: "test:suite"}, CreatedAt: suiteTime.Add(time.Duration(n) * time.Second), LeaseUntil: suiteTime.Add(time.Minute),
	}
}

// Signed makes the certificate that in becomes; its DER is no certificate.
func Signed(in ca.Intent) ca.Certificate {
	return ca.Certificate{
		ID: in.ID, Serial: in.Serial, Issuer: in.Issuer, Profile: in.Profile, DER: append([]byte("signed "), in.TBS...),
		NotBefore: in.NotBefore, NotAfter: in.NotAfter,
	}
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}

func begin(t *testing.T, s ca.Store, in ca.Intent) ca.Ledger {
	t.Helper()
	l := s.PlainLedger()
	wantErr(t, l.Begin(t.Context(), in), nil)
	return l
}

func issue(t *testing.T, s ca.Store, n int) ca.Intent {
	t.Helper()
	in := Intent(n)
	wantErr(t, begin(t, s, in).Commit(t.Context(), in, Signed(in)), nil)
	return in
}

func record(t *testing.T, s ca.Store, serial ca.Serial) ca.Record {
	t.Helper()
	r, err := s.Record(t.Context(), serial)
	wantErr(t, err, nil)
	return r
}

func revocation(in ca.Intent, reason ca.Reason, at time.Time) (ca.Revocation, audit.Entry) {
	return ca.Revocation{Serial: in.Serial, Reason: reason, At: at, Requester: in.Requester},
		audit.New("test:suite", ca.ActionRevoked, "certificate/"+string(in.Serial), nil)
}

func revoke(ctx context.Context, s ca.Store, in ca.Intent, reason ca.Reason, at time.Time, block bool) error {
	r, e := revocation(in, reason, at)
	r.BlockKey = block
	return s.Revoke(ctx, r, e)
}

func abandon(ctx context.Context, s ca.Store, in ca.Intent, now time.Time) error {
	return s.Abandon(ctx, in.Serial, now, audit.New("system", ca.ActionAbandoned, "certificate/"+string(in.Serial), nil))
}

func unassigned(t *testing.T, s ca.Store) {
	_, err := s.Record(t.Context(), "01ff")
	wantErr(t, err, ca.ErrNotFound)
	in := Intent(1)
	wantErr(t, revoke(t.Context(), s, in, ca.Superseded, suiteTime, false), ca.ErrNotFound)
	wantErr(t, s.PlainLedger().Commit(t.Context(), in, Signed(in)), ca.ErrLeaseLost)
	wantErr(t, abandon(t.Context(), s, in, suiteTime), ca.ErrLeaseLost)
}

func serialOnce(t *testing.T, s ca.Store) {
	begin(t, s, Intent(1))
	again := Intent(1)
	wantErr(t, s.PlainLedger().Begin(t.Context(), again), ca.ErrSerialTaken)
	if r := record(t, s, again.Serial); r.ID == again.ID {
		t.Error("the second intent replaced the first")
	}
}

func comesBack(t *testing.T, s ca.Store) {
	in := Intent(1)
	l := begin(t, s, in)
	r := record(t, s, in.Serial)
	if r.State != ca.Pending || r.DER != nil || r.Revoked() {
		t.Errorf("pending record %+v", r)
	}
	c := Signed(in)
	wantErr(t, l.Commit(t.Context(), in, c), nil)
	r = record(t, s, in.Serial)
	if r.State != ca.Issued || r.ID != c.ID || r.Serial != c.Serial || r.Issuer != c.Issuer || r.Profile != c.Profile || string(r.DER) != string(c.DER) {
		t.Errorf("record %+v", r)
	}
	if !r.NotBefore.Equal(in.NotBefore) || !r.NotAfter.Equal(in.NotAfter) || !r.CreatedAt.Equal(in.CreatedAt) {
		t.Errorf("times %s %s %s", r.NotBefore, r.NotAfter, r.CreatedAt)
	}
	if r.SPKIHash != in.SPKIHash || fmt.Sprint(r.Names) != fmt.Sprint(in.Names) || r.Requester != in.Requester.Actor {
		t.Errorf("key %x, names %v, requester %q", r.SPKIHash, r.Names, r.Requester)
	}
}

func commitOnce(t *testing.T, s ca.Store) {
	in := issue(t, s, 1)
	c := Signed(in)
	c.DER = []byte("another")
	wantErr(t, s.PlainLedger().Commit(t.Context(), in, c), ca.ErrLeaseLost)
	wantErr(t, s.PlainLedger().Abort(t.Context(), in, errCut), ca.ErrLeaseLost)
	if r := record(t, s, in.Serial); r.State != ca.Issued || r.Revoked() || string(r.DER) == "another" {
		t.Errorf("record %+v", r)
	}
}

func busyIsVoid(t *testing.T, s ca.Store) {
	in := Intent(1)
	l := begin(t, s, in)
	wantErr(t, l.Abort(t.Context(), in, fmt.Errorf("signing: %w", keys.ErrBusy)), nil)
	if r := record(t, s, in.Serial); r.State != ca.Void || r.Revoked() || r.DER != nil {
		t.Errorf("record %+v", r)
	}
	wantErr(t, l.Commit(t.Context(), in, Signed(in)), ca.ErrLeaseLost)
	wantErr(t, l.Begin(t.Context(), Intent(1)), ca.ErrSerialTaken)
}

func failedIsAbandoned(t *testing.T, s ca.Store) {
	in := Intent(1)
	l := begin(t, s, in)
	wantErr(t, l.Abort(t.Context(), in, errCut), nil)
	if r := record(t, s, in.Serial); r.State != ca.Abandoned || !r.Revoked() || r.Reason != ca.AbandonedReason || r.DER != nil {
		t.Errorf("record %+v", r)
	}
	wantErr(t, l.Commit(t.Context(), in, Signed(in)), ca.ErrLeaseLost)
}

func ownerEnds(t *testing.T, s ca.Store) {
	in := Intent(1)
	l := begin(t, s, in)
	thief := in
	thief.ID = audit.NewID()
	wantErr(t, l.Commit(t.Context(), thief, Signed(thief)), ca.ErrLeaseLost)
	wantErr(t, l.Abort(t.Context(), thief, errCut), ca.ErrLeaseLost)
	wantErr(t, l.Abort(t.Context(), thief, keys.ErrBusy), ca.ErrLeaseLost)
	wantErr(t, l.Commit(t.Context(), in, Signed(in)), nil)
}

func revokeOnce(t *testing.T, s ca.Store) {
	in := issue(t, s, 1)
	wantErr(t, revoke(t.Context(), s, in, ca.Superseded, suiteTime, false), nil)
	wantErr(t, revoke(t.Context(), s, in, ca.CessationOfOperation, suiteTime.Add(time.Hour), false), ca.ErrAlreadyRevoked)
	r := record(t, s, in.Serial)
	if r.State != ca.Issued || !r.RevokedAt.Equal(suiteTime) || r.Reason != ca.Superseded || r.DER == nil {
		t.Errorf("record %+v", r)
	}
}

func compromiseReplaces(t *testing.T, s ca.Store) {
	in := issue(t, s, 1)
	wantErr(t, revoke(t.Context(), s, in, ca.Superseded, suiteTime, false), nil)
	wantErr(t, revoke(t.Context(), s, in, ca.KeyCompromise, suiteTime.Add(time.Hour), false), nil)
	wantErr(t, revoke(t.Context(), s, in, ca.KeyCompromise, suiteTime.Add(time.Hour), false), ca.ErrAlreadyRevoked)
	wantErr(t, revoke(t.Context(), s, in, ca.Superseded, suiteTime, false), ca.ErrAlreadyRevoked)
	if r := record(t, s, in.Serial); !r.RevokedAt.Equal(suiteTime) || r.Reason != ca.KeyCompromise {
		t.Errorf("revoked %s for %s", r.RevokedAt, r.Reason)
	}
}

func compromiseBack(t *testing.T, s ca.Store) {
	in := issue(t, s, 1)
	lost := suiteTime.Add(-48 * time.Hour)
	wantErr(t, revoke(t.Context(), s, in, ca.KeyCompromise, suiteTime, false), nil)
	r, e := revocation(in, ca.KeyCompromise, suiteTime.Add(-time.Hour))
	r.InvalidityAt = lost
	wantErr(t, s.Revoke(t.Context(), r, e), nil)
	wantErr(t, revoke(t.Context(), s, in, ca.KeyCompromise, suiteTime, false), ca.ErrAlreadyRevoked)
	if r := record(t, s, in.Serial); !r.RevokedAt.Equal(suiteTime.Add(-time.Hour)) || !r.InvalidityAt.Equal(lost) {
		t.Errorf("revoked %s, invalid since %s", r.RevokedAt, r.InvalidityAt)
	}
	// Another reason is replaced with its time, if that was earlier.
	in = issue(t, s, 2)
	wantErr(t, revoke(t.Context(), s, in, ca.Superseded, suiteTime, false), nil)
	wantErr(t, revoke(t.Context(), s, in, ca.KeyCompromise, lost, false), nil)
	if r := record(t, s, in.Serial); !r.RevokedAt.Equal(lost) || r.Reason != ca.KeyCompromise {
		t.Errorf("revoked %s for %s", r.RevokedAt, r.Reason)
	}
}

func release(t *testing.T, s ca.Store, in ca.Intent) error {
	t.Helper()
	return s.Release(t.Context(), in.Serial, audit.New("test:suite", ca.ActionReleased, "certificate/"+string(in.Serial), nil))
}

func hold(t *testing.T, s ca.Store) {
	in := issue(t, s, 1)
	later := suiteTime.Add(time.Hour)
	wantErr(t, revoke(t.Context(), s, in, ca.CertificateHold, suiteTime, false), nil)
	wantErr(t, revoke(t.Context(), s, in, ca.CertificateHold, later, false), ca.ErrAlreadyRevoked)
	if r := record(t, s, in.Serial); !r.Revoked() || r.Reason != ca.CertificateHold {
		t.Errorf("on hold: %+v", r)
	}
	wantErr(t, release(t, s, in), nil)
	if r := record(t, s, in.Serial); r.Revoked() || r.Reason != ca.Unspecified || r.StatusSeq != 2 {
		t.Errorf("released: %+v", r)
	}
	wantErr(t, release(t, s, in), ca.ErrNotHeld)
	wantErr(t, revoke(t.Context(), s, in, ca.CertificateHold, later, false), nil)
	wantErr(t, revoke(t.Context(), s, in, ca.Superseded, later.Add(time.Hour), false), nil)
	if r := record(t, s, in.Serial); !r.RevokedAt.Equal(later) || r.Reason != ca.Superseded {
		t.Errorf("revoked %s for %s; want the time of the hold", r.RevokedAt, r.Reason)
	}
	wantErr(t, release(t, s, in), ca.ErrNotHeld)
}

func onlyHolds(t *testing.T, s ca.Store) {
	revoked, good, failed := issue(t, s, 1), issue(t, s, 2), Intent(3)
	wantErr(t, revoke(t.Context(), s, revoked, ca.Superseded, suiteTime, false), nil)
	wantErr(t, begin(t, s, failed).Abort(t.Context(), failed, errCut), nil)
	for _, in := range []ca.Intent{revoked, good, failed} {
		wantErr(t, release(t, s, in), ca.ErrNotHeld)
	}
	if r := record(t, s, failed.Serial); !r.Revoked() {
		t.Error("an abandoned certificate was released")
	}
	wantErr(t, release(t, s, Intent(4)), ca.ErrNotFound)
}

func statusNumbers(t *testing.T, s ca.Store) {
	want := func(in ca.Intent, seq int64) {
		t.Helper()
		if got := record(t, s, in.Serial).StatusSeq; got != seq {
			t.Errorf("serial %s has number %d, want %d", in.Serial, got, seq)
		}
	}
	a, b, lost, cut := issue(t, s, 1), issue(t, s, 2), Intent(3), Intent(4)
	want(a, 0)
	wantErr(t, revoke(t.Context(), s, b, ca.Superseded, suiteTime, false), nil)
	wantErr(t, revoke(t.Context(), s, a, ca.CertificateHold, suiteTime, false), nil)
	wantErr(t, revoke(t.Context(), s, b, ca.KeyCompromise, suiteTime, false), nil)
	want(a, 2)
	want(b, 3)
	begin(t, s, lost)
	wantErr(t, abandon(t.Context(), s, lost, lost.LeaseUntil.Add(time.Second)), nil)
	want(lost, 4)
	wantErr(t, begin(t, s, cut).Abort(t.Context(), cut, errCut), nil)
	want(cut, 5)
	wantErr(t, release(t, s, a), nil)
	want(a, 6)
	// What does not happen takes no number.
	wantErr(t, revoke(t.Context(), s, b, ca.Superseded, suiteTime, false), ca.ErrAlreadyRevoked)
	wantErr(t, release(t, s, a), ca.ErrNotHeld)
	wantErr(t, abandon(t.Context(), s, lost, lost.LeaseUntil.Add(time.Second)), ca.ErrLeaseLost)
	other := Intent(5)
	other.Issuer = "ffeeddccbbaa99887766554433221100"
	wantErr(t, begin(t, s, other).Commit(t.Context(), other, Signed(other)), nil)
	wantErr(t, revoke(t.Context(), s, other, ca.Superseded, suiteTime, false), nil)
	want(other, 1)
	wantErr(t, revoke(t.Context(), s, a, ca.Superseded, suiteTime, false), nil)
	want(a, 7)
}

func revokeMany(t *testing.T, s ca.Store) {
	a, b, gone, pending := issue(t, s, 1), issue(t, s, 2), issue(t, s, 3), Intent(4)
	other := Intent(5)
	other.Issuer = "ffeeddccbbaa99887766554433221100"
	wantErr(t, begin(t, s, other).Commit(t.Context(), other, Signed(other)), nil)
	begin(t, s, pending)
	wantErr(t, revoke(t.Context(), s, gone, ca.Superseded, suiteTime, false), nil)
	many := []ca.Serial{a.Serial, "01ff", gone.Serial, pending.Serial, other.Serial, b.Serial, a.Serial}
	var rs []ca.Revocation
	for _, serial := range many {
		rs = append(rs, ca.Revocation{Serial: serial, Reason: ca.Superseded, At: suiteTime, Requester: a.Requester})
	}
	errs, err := s.RevokeAll(t.Context(), rs)
	wantErr(t, err, nil)
	for i, want := range []error{nil, ca.ErrNotFound, ca.ErrAlreadyRevoked, ca.ErrNotFound, nil, nil, ca.ErrAlreadyRevoked} {
		wantErr(t, errs[i], want)
	}
	found, err := s.RecordsOf(t.Context(), many[:6])
	wantErr(t, err, nil)
	numbers := map[ca.Serial]int64{}
	for _, r := range found {
		numbers[r.Serial] = r.StatusSeq
	}
	want := map[ca.Serial]int64{gone.Serial: 1, a.Serial: 2, b.Serial: 3, other.Serial: 1, pending.Serial: 0}
	if fmt.Sprint(numbers) != fmt.Sprint(want) {
		t.Errorf("numbers %v, want %v", numbers, want)
	}
	wantErr(t, revoke(t.Context(), s, a, ca.KeyCompromise, suiteTime, false), nil)
	if r := record(t, s, a.Serial); r.StatusSeq != 4 {
		t.Errorf("the next number is %d", r.StatusSeq)
	}
}

func blockedKey(t *testing.T, s ca.Store) {
	in, other := issue(t, s, 1), issue(t, s, 2)
	blocked := func(in ca.Intent) bool {
		b, err := s.KeyBlocked(t.Context(), in.SPKIHash)
		wantErr(t, err, nil)
		return b
	}
	wantErr(t, revoke(t.Context(), s, in, ca.KeyCompromise, suiteTime, false), nil)
	if blocked(in) {
		t.Error("blocked without being asked to")
	}
	wantErr(t, revoke(t.Context(), s, in, ca.KeyCompromise, suiteTime, true), nil)
	wantErr(t, revoke(t.Context(), s, in, ca.KeyCompromise, suiteTime, true), ca.ErrAlreadyRevoked)
	if !blocked(in) || blocked(other) {
		t.Error("not exactly the one key is blocked")
	}
}

func onlyIssued(t *testing.T, s ca.Store) {
	pending, void, failed := Intent(1), Intent(2), Intent(3)
	begin(t, s, pending)
	wantErr(t, begin(t, s, void).Abort(t.Context(), void, keys.ErrBusy), nil)
	wantErr(t, begin(t, s, failed).Abort(t.Context(), failed, errCut), nil)
	for _, in := range []ca.Intent{pending, void, failed} {
		wantErr(t, revoke(t.Context(), s, in, ca.KeyCompromise, suiteTime, true), ca.ErrNotFound)
		b, err := s.KeyBlocked(t.Context(), in.SPKIHash)
		wantErr(t, err, nil)
		if b {
			t.Error("a refused revocation blocked the key")
		}
	}
}

func expired(t *testing.T, s ca.Store) {
	for n, lease := range map[int]time.Duration{1: 3, 2: 1, 3: 2, 4: 60, 5: 1} {
		in := Intent(n)
		in.LeaseUntil = suiteTime.Add(lease * time.Second)
		l := begin(t, s, in)
		if n == 5 {
			wantErr(t, l.Commit(t.Context(), in, Signed(in)), nil)
		}
	}
	now := suiteTime.Add(10 * time.Second)
	got, err := s.Expired(t.Context(), now, 2)
	wantErr(t, err, nil)
	if len(got) != 2 || got[0].Serial != Intent(2).Serial || got[1].Serial != Intent(3).Serial {
		t.Fatalf("expired %v", got)
	}
	in := got[0]
	if string(in.TBS) != "to be signed 2" || !in.LeaseUntil.Equal(suiteTime.Add(time.Second)) || in.Requester.Actor != "test:suite" || len(in.Names) != 2 {
		t.Errorf("intent %+v", in)
	}
	wantErr(t, abandon(t.Context(), s, in, now), nil)
	got, err = s.Expired(t.Context(), now, 10)
	wantErr(t, err, nil)
	if len(got) != 2 {
		t.Errorf("%d are left, want 2", len(got))
	}
}

func liveStays(t *testing.T, s ca.Store) {
	in := Intent(1)
	l := begin(t, s, in)
	wantErr(t, abandon(t.Context(), s, in, in.LeaseUntil), ca.ErrLeaseLost)
	wantErr(t, abandon(t.Context(), s, in, in.LeaseUntil.Add(time.Second)), nil)
	wantErr(t, abandon(t.Context(), s, in, in.LeaseUntil.Add(time.Second)), ca.ErrLeaseLost)
	wantErr(t, l.Commit(t.Context(), in, Signed(in)), ca.ErrLeaseLost)
	if r := record(t, s, in.Serial); r.State != ca.Abandoned || !r.Revoked() || r.Reason != ca.AbandonedReason {
		t.Errorf("record %+v", r)
	}
}

func oneWinner(t *testing.T, s ca.Store) {
	const rounds = 20
	for n := range rounds {
		in := Intent(n)
		l := begin(t, s, in)
		var won atomic.Int32
		var wg sync.WaitGroup
		for _, end := range []func() error{
			func() error { return l.Commit(t.Context(), in, Signed(in)) },
			func() error { return abandon(t.Context(), s, in, in.LeaseUntil.Add(time.Second)) },
			func() error { return l.Abort(t.Context(), in, errCut) },
		} {
			wg.Go(func() {
				switch err := end(); {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, ca.ErrLeaseLost):
					t.Errorf("the loser heard %v", err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("%d winners", won.Load())
		}
		if r := record(t, s, in.Serial); (r.State == ca.Issued) == r.Revoked() {
			t.Fatalf("state %s, revoked %t", r.State, r.Revoked())
		}
	}
}

func concurrentSerial(t *testing.T, s ca.Store) {
	var won atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			switch err := s.PlainLedger().Begin(t.Context(), Intent(1)); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, ca.ErrSerialTaken):
				t.Errorf("the loser heard %v", err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Fatalf("%d own the serial", won.Load())
	}
}

func adopted(t *testing.T, s ca.Store) {
	in := Intent(1)
	c := ca.Certificate{
		ID: in.ID, Serial: in.Serial, Issuer: in.Issuer, Profile: ca.ProfileAuthority, DER: []byte{1, 2, 3},
		NotBefore: in.NotBefore, NotAfter: in.NotAfter,
	}
	entry := func() audit.Entry { return audit.New("system", ca.ActionAdopted, "certificate/"+string(c.Serial), nil) }
	for _, want := range []bool{true, false, false} {
		if got, err := s.Adopt(t.Context(), c, in.SPKIHash, entry()); err != nil || got != want {
			t.Fatalf("%v, %v; want %v", got, err, want)
		}
	}
	rec, err := s.Record(t.Context(), c.Serial)
	if err != nil || rec.State != ca.Issued || !bytes.Equal(rec.DER, c.DER) || rec.Issuer != c.Issuer || rec.SPKIHash != in.SPKIHash || !rec.NotAfter.Equal(c.NotAfter) || rec.CreatedAt.IsZero() {
		t.Errorf("%+v, %v", rec, err)
	}
	other := c
	other.ID, other.DER = Intent(2).ID, []byte{3, 2, 1}
	if _, err := s.Adopt(t.Context(), other, in.SPKIHash, entry()); !errors.Is(err, ca.ErrSerialTaken) {
		t.Errorf("another one with its serial: %v", err)
	}
	if err := s.PlainLedger().Begin(t.Context(), in); !errors.Is(err, ca.ErrSerialTaken) {
		t.Errorf("the serial was assigned again: %v", err)
	}
	r := ca.Revocation{Serial: c.Serial, Reason: ca.CessationOfOperation, At: suiteTime, Requester: ca.Requester{Actor: "test"}}
	if err := s.Revoke(t.Context(), r, r.Entry()); err != nil {
		t.Errorf("revoking it: %v", err)
	}
	if rec, err := s.Record(t.Context(), c.Serial); err != nil || !rec.Revoked() || rec.StatusSeq == 0 {
		t.Errorf("%+v, %v", rec, err)
	}
}
