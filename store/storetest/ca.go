package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/store"
)

// CA is the suite of store.CA: what the authority asks of every store, and what
// operators ask of this one.
func CA(t *testing.T, open func(t *testing.T) *store.DB) {
	t.Helper()
	t.Run("promises", func(t *testing.T) {
		t.Parallel()
		catest.StoreSuite(t, func(t *testing.T) ca.Store { return store.NewCA(open(t)) })
	})
	tests := []struct {
		law string
		run func(t *testing.T, db *store.DB)
	}{
		{"EveryMoveHasItsAuditEntry", caAudit},
		{"CertificateIsFoundByID", caByID},
		{"ListingGoesFromNewToOldInPages", caPages},
		{"ListingFindsNamesAndAllBelow", caNames},
		{"ListingSelects", caSelect},
		{"ListingSelectsWhatIsToBeRevoked", caSelectToRevoke},
		{"ManyNamesAreKept", caManyNames},
	}
	for _, tt := range tests {
		t.Run(tt.law, func(t *testing.T) {
			t.Parallel()
			tt.run(t, open(t))
		})
	}
}

func caIssue(t *testing.T, c *store.CA, n int, names ...string) ca.Intent {
	t.Helper()
	in := catest.Intent(n)
	if len(names) > 0 {
		in.Names = catest.IDs(names...)
	}
	l := c.PlainLedger()
	caOK(t, l.Begin(t.Context(), in))
	caOK(t, l.Commit(t.Context(), in, catest.Signed(in)))
	return in
}

func caOK(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func caAudit(t *testing.T, db *store.DB) {
	c := store.NewCA(db)
	l := c.PlainLedger()
	actions := func(action string) (n int64) {
		caOK(t, db.Read(t.Context(), func(ctx context.Context, tx store.Tx) error {
			return tx.QueryRow(ctx, `SELECT COUNT(*) FROM audit_entries WHERE action = $1`, action).Scan(&n)
		}))
		return n
	}
	caIssue(t, c, 1)
	void, failed := catest.Intent(2), catest.Intent(3)
	caOK(t, l.Begin(t.Context(), void))
	caOK(t, l.Abort(t.Context(), void, keys.ErrBusy))
	caOK(t, l.Begin(t.Context(), failed))
	caOK(t, l.Abort(t.Context(), failed, context.DeadlineExceeded))
	revoked, lost := caIssue(t, c, 4), catest.Intent(5)
	caOK(t, caRevoke(t, c, revoked, ca.Superseded))
	caOK(t, caRevoke(t, c, revoked, ca.KeyCompromise))
	caOK(t, l.Begin(t.Context(), lost))
	caOK(t, caAbandon(t, c, lost))
	// What does not happen leaves no entry.
	if caRevoke(t, c, revoked, ca.KeyCompromise) == nil || caRevoke(t, c, lost, ca.Superseded) == nil || caAbandon(t, c, lost) == nil {
		t.Error("a second end was accepted")
	}
	if l.Begin(t.Context(), catest.Intent(1)) == nil || l.Commit(t.Context(), void, catest.Signed(void)) == nil || l.Abort(t.Context(), failed, nil) == nil {
		t.Error("a second end was accepted")
	}
	for action, want := range map[string]int64{
		ca.ActionIntended: 5, ca.ActionIssued: 2, ca.ActionVoided: 1, ca.ActionAbandoned: 2, ca.ActionRevoked: 2,
	} {
		if got := actions(action); got != want {
			t.Errorf("%d entries %s, want %d", got, action, want)
		}
	}
}

func caRevoke(t *testing.T, c *store.CA, in ca.Intent, reason ca.Reason) error {
	t.Helper()
	r := ca.Revocation{Serial: in.Serial, Reason: reason, At: in.CreatedAt, BlockKey: reason == ca.KeyCompromise}
	return c.Revoke(t.Context(), r, audit.New("test", ca.ActionRevoked, "certificate/"+string(in.Serial), nil))
}

func caAbandon(t *testing.T, c *store.CA, in ca.Intent) error {
	t.Helper()
	e := audit.New("test", ca.ActionAbandoned, "certificate/"+string(in.Serial), nil)
	return c.Abandon(t.Context(), in.Serial, in.LeaseUntil.Add(time.Second), e)
}

func caByID(t *testing.T, db *store.DB) {
	c := store.NewCA(db)
	in := caIssue(t, c, 1)
	got, err := c.CertificateByID(t.Context(), in.ID)
	caOK(t, err)
	if want := catest.Signed(in); got.Serial != want.Serial || string(got.DER) != string(want.DER) {
		t.Errorf("certificate %+v", got)
	}
	pending := catest.Intent(2)
	caOK(t, c.PlainLedger().Begin(t.Context(), pending))
	for _, id := range []string{pending.ID, "", "no such id"} {
		if _, err := c.CertificateByID(t.Context(), id); !errors.Is(err, ca.ErrNotFound) {
			t.Errorf("id %q: %v", id, err)
		}
	}
}

// caList reads a whole listing in pages of limit, as the numbers of its serials.
func caList(t *testing.T, c *store.CA, q ca.ListQuery) []ca.Serial {
	t.Helper()
	var out []ca.Serial
	for {
		page, next, err := c.List(t.Context(), q)
		caOK(t, err)
		for _, r := range page {
			out = append(out, r.Serial)
		}
		if next == "" {
			return out
		}
		if len(page) != q.Limit {
			t.Fatalf("a page of %d before the last, want %d", len(page), q.Limit)
		}
		q.Before = next
	}
}

func caWant(t *testing.T, got []ca.Serial, want ...int) {
	t.Helper()
	serials := make([]ca.Serial, 0, len(want))
	for _, n := range want {
		serials = append(serials, catest.Intent(n).Serial)
	}
	if fmt.Sprint(got) != fmt.Sprint(serials) {
		t.Errorf("listed %v, want %v", got, serials)
	}
}

func caPages(t *testing.T, db *store.DB) {
	c := store.NewCA(db)
	for n := range 5 {
		caIssue(t, c, n)
	}
	// Two of the same microsecond have an order too.
	twin := catest.Intent(5)
	twin.CreatedAt = catest.Intent(4).CreatedAt
	caOK(t, c.PlainLedger().Begin(t.Context(), twin))
	for _, limit := range []int{1, 2, 3, 5, 6, 7} {
		caWant(t, caList(t, c, ca.ListQuery{Limit: limit}), 5, 4, 3, 2, 1, 0)
	}
	if _, _, err := c.List(t.Context(), ca.ListQuery{Before: "nonsense"}); err == nil {
		t.Error("a cursor that is none was accepted")
	}
}

func caNames(t *testing.T, db *store.DB) {
	c := store.NewCA(db)
	caIssue(t, c, 0, "example.com")
	caIssue(t, c, 1, "www.example.com", "example.org")
	caIssue(t, c, 2, "*.example.com", "a.example.com", "b.example.com")
	caIssue(t, c, 3, "notexample.com", "example.com.evil.test", "example-a.com")
	caIssue(t, c, 4, "192.0.2.7", "2001:db8::7")
	void := catest.Intent(5)
	void.Names = catest.IDs("www.example.com")
	caOK(t, c.PlainLedger().Begin(t.Context(), void))
	caOK(t, c.PlainLedger().Abort(t.Context(), void, keys.ErrBusy))
	for name, want := range map[string][]int{
		"example.com": {2, 1, 0}, "EXAMPLE.com.": {2, 1, 0}, "www.example.com": {1}, "*.example.com": {2}, "com": {3, 2, 1, 0},
		"example.net": nil, "192.0.2.7": {4}, "2001:DB8:0::7": {4}, "%.com": nil, "": {5, 4, 3, 2, 1, 0},
	} {
		caWant(t, caList(t, c, ca.ListQuery{Name: name, Limit: 2}), want...)
	}
}

func caSelect(t *testing.T, db *store.DB) {
	c := store.NewCA(db)
	caIssue(t, c, 0)
	revoked := caIssue(t, c, 1)
	caOK(t, c.Revoke(t.Context(), ca.Revocation{Serial: revoked.Serial, Reason: ca.Superseded, At: time.Now()}, revoked.Intended()))
	pending := catest.Intent(2)
	caOK(t, c.PlainLedger().Begin(t.Context(), pending))
	caWant(t, caList(t, c, ca.ListQuery{State: ca.Pending}), 2)
	caWant(t, caList(t, c, ca.ListQuery{Revoked: true}), 1)
	caWant(t, caList(t, c, ca.ListQuery{Unrevoked: true}), 2, 0)
	caWant(t, caList(t, c, ca.ListQuery{Issuer: "other"}))
	caWant(t, caList(t, c, ca.ListQuery{Issuer: pending.Issuer, State: ca.Issued}), 1, 0)
	caWant(t, caList(t, c, ca.ListQuery{SerialPrefix: string(pending.Serial)}), 2)
	caWant(t, caList(t, c, ca.ListQuery{SerialPrefix: "0100"}), 2, 1, 0)
	caWant(t, caList(t, c, ca.ListQuery{SerialPrefix: "02"}))
	caWant(t, caList(t, c, ca.ListQuery{SerialPrefix: "01%"}))
}

func caSelectToRevoke(t *testing.T, db *store.DB) {
	c := store.NewCA(db)
	ins := make([]ca.Intent, 5)
	for n := range ins {
		in := catest.Intent(n)
		in.Profile, in.Requester.Actor = "p"+in.ID[:1], "acme:account/"+in.ID
		in.NotBefore, in.NotAfter = in.CreatedAt.Add(time.Duration(n)*time.Hour), in.CreatedAt.Add(time.Duration(10*n)*time.Hour)
		if n == 4 {
			in.SPKIHash = ins[1].SPKIHash
		}
		ins[n] = in
		caOK(t, c.PlainLedger().Begin(t.Context(), in))
		caOK(t, c.PlainLedger().Commit(t.Context(), in, catest.Signed(in)))
	}
	caOK(t, caRevoke(t, c, ins[0], ca.CertificateHold))
	caOK(t, caRevoke(t, c, ins[1], ca.Superseded))
	incidents := store.NewIncidents(db)
	_, _, err := incidents.CreateIncident(t.Context(), ca.Incident{Name: "some", Selector: ca.Selector{Listed: true}, CreatedAt: time.Now()},
		audit.New("test", "incident.created", "incident/some", nil))
	caOK(t, err)
	_, _, err = incidents.AddIncidentSerials(t.Context(), "some", []ca.Serial{ins[3].Serial, ins[1].Serial}, audit.New("test", "incident.serials-added", "incident/some", nil))
	caOK(t, err)
	for _, tt := range []struct {
		q    ca.ListQuery
		want []int
	}{
		{ca.ListQuery{Requester: ins[2].Requester.Actor}, []int{2}},
		{ca.ListQuery{Profile: "none"}, nil},
		{ca.ListQuery{Profile: ins[3].Profile, Requester: ins[3].Requester.Actor}, []int{3}},
		{ca.ListQuery{SPKIHash: fmt.Sprintf("%x", ins[1].SPKIHash)}, []int{4, 1}},
		{ca.ListQuery{ListedBy: "some"}, []int{3, 1}},
		{ca.ListQuery{ListedBy: "some", Unrevoked: true}, []int{3}},
		{ca.ListQuery{ListedBy: "none"}, nil},
		{ca.ListQuery{Reason: ca.CertificateHold}, []int{0}},
		{ca.ListQuery{IssuedAfter: ins[1].CreatedAt, IssuedBefore: ins[3].CreatedAt}, []int{2, 1}},
		{ca.ListQuery{NotBeforeFrom: ins[2].NotBefore, NotBeforeTo: ins[4].NotBefore}, []int{3, 2}},
		{ca.ListQuery{NotAfterFrom: ins[3].NotAfter}, []int{4, 3}},
	} {
		tt.q.Limit = 1
		caWant(t, caList(t, c, tt.q), tt.want...)
	}
}

func caManyNames(t *testing.T, db *store.DB) {
	c := store.NewCA(db)
	names := make([]string, 0, 1001)
	for n := range 1000 {
		names = append(names, fmt.Sprintf("host%d.example.com", n))
	}
	in := caIssue(t, c, 0, append(names, "host7.example.com")...)
	r, err := c.Record(t.Context(), in.Serial)
	caOK(t, err)
	if len(r.Names) != 1001 {
		t.Errorf("%d names came back", len(r.Names))
	}
	caWant(t, caList(t, c, ca.ListQuery{Name: "host999.example.com"}), 0)
}
