package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/crl"
	"github.com/secsy-pki/secsy-pki/store"
)

// CRLShards is the suite of the parts of a list.
func CRLShards(t *testing.T, open func(t *testing.T) *store.DB) {
	for name, law := range map[string]func(t *testing.T, db *store.DB){
		"ShardKeepsItsAddress":            shardAddress,
		"ShardsAreNeededUntilTheLastWord": shardNeeded,
		"ReplicasShareShards":             shardReplicas,
		"CertificateIsRecordedInItsShard": shardRecorded,
		"ShardListsItsOwn":                shardLists,
		"DeltaListsWhatChanged":           deltaLists,
		"DeltaAndCompleteShareNumbers":    deltaNumbers,
		"BaseStaysForItsDeltas":           deltaBase,
		"CrashAtAnyStepRepeatsNoNumber":   crashNumbers,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			law(t, open(t))
		})
	}
}

const shardList = "http://pki.example.com/crl/" + string(statusIssuer) + ".crl"

func shardAddress(t *testing.T, db *store.DB) {
	c, until := store.NewCRL(db), statusNow().Add(time.Hour)
	shards := func(n int, list string) []int {
		t.Helper()
		got, err := crl.OpenShards(t.Context(), c, statusIssuer, n, list, until)
		if err != nil {
			t.Fatal(err)
		}
		var ids []int
		for _, s := range got {
			if want := fmt.Sprintf("%s/%d.crl", list[:len(list)-len(".crl")], s.ID); s.URL != want {
				t.Errorf("shard %d at %s, want %s", s.ID, s.URL, want)
			}
			ids = append(ids, s.ID)
		}
		return ids
	}
	const moved = "http://new.example.com/crl/x.crl"
	for i, step := range []struct {
		n    int
		list string
		want []int
	}{
		{2, shardList, []int{1, 2}},
		{3, shardList, []int{1, 2, 3}},
		{2, shardList, []int{1, 2}},
		{2, moved, []int{4, 5}}, // certificates say where 1 to 3 are
		{4, shardList, []int{1, 2, 3, 6}},
		{3, moved, []int{4, 5, 7}},
	} {
		if got := shards(step.n, step.list); !reflect.DeepEqual(got, step.want) {
			t.Errorf("step %d: shards %v, want %v", i, got, step.want)
		}
	}
	err := c.NeedShards(t.Context(), statusIssuer, []ca.CRLShard{{ID: 8, URL: "http://a/8"}, {ID: 1, URL: "http://a/1"}}, until)
	if !errors.Is(err, crl.ErrShardTaken) {
		t.Errorf("another address: %v", err)
	}
	if all, err := c.Shards(t.Context(), statusIssuer); err != nil || len(all) != 7 {
		t.Errorf("%d shards, error %v: half of a refused list is kept", len(all), err)
	}
	if all, err := c.Shards(t.Context(), statusSibling); err != nil || len(all) != 0 {
		t.Errorf("another issuer's: %v, %v", all, err)
	}
}

func shardNeeded(t *testing.T, db *store.DB) {
	c, now := store.NewCRL(db), statusNow()
	shard := []ca.CRLShard{{ID: 1, URL: shardList}}
	var latest time.Time
	for _, in := range []time.Duration{time.Hour, 3 * time.Hour, 2 * time.Hour} {
		if err := c.NeedShards(t.Context(), statusIssuer, shard, now.Add(in)); err != nil {
			t.Fatal(err)
		}
		if until := now.Add(in); until.After(latest) {
			latest = until
		}
		all, err := c.Shards(t.Context(), statusIssuer)
		if err != nil || len(all) != 1 || !all[0].NeededUntil.Equal(latest) || all[0].CRLShard != shard[0] {
			t.Errorf("needed for %s: %+v, %v", in, all, err)
		}
	}
}

func shardReplicas(t *testing.T, db *store.DB) {
	c := store.NewCRL(db)
	var wg sync.WaitGroup
	lists := make([][]ca.CRLShard, 4)
	for i := range lists {
		wg.Go(func() {
			list := shardList
			if i%2 == 1 {
				list = "http://new.example.com/crl/x.crl"
			}
			var err error
			if lists[i], err = crl.OpenShards(t.Context(), c, statusIssuer, 3, list, statusNow()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if !reflect.DeepEqual(lists[0], lists[2]) || !reflect.DeepEqual(lists[1], lists[3]) {
		t.Errorf("replicas of one configuration have different shards: %v", lists)
	}
	all, err := c.Shards(t.Context(), statusIssuer)
	if err != nil || len(all) != 6 {
		t.Errorf("%d shards, %v; want 3 at each address", len(all), err)
	}
}

func shardRecorded(t *testing.T, db *store.DB) {
	in := statusIntent(statusIssuer, "0a01", statusNow().Add(time.Hour))
	in.CRLShard = 7
	if err := store.NewCA(db).PlainLedger().Begin(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	var shard int64
	err := db.Read(t.Context(), func(ctx context.Context, tx store.Tx) error {
		return tx.QueryRow(ctx, `SELECT crl_shard FROM certificates WHERE serial = '0a01'`).Scan(&shard)
	})
	if err != nil || shard != 7 {
		t.Errorf("shard %d, %v", shard, err)
	}
}

// shardIssue records certificates of one shard as issued.
func shardIssue(t *testing.T, db *store.DB, shard int, serials ...ca.Serial) {
	t.Helper()
	for _, serial := range serials {
		in := statusIntent(statusIssuer, serial, statusNow().Add(time.Hour))
		in.CRLShard = shard
		led := store.NewCA(db).PlainLedger()
		if err := led.Begin(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		if err := led.Commit(t.Context(), in, ca.Certificate{ID: in.ID, Serial: serial, DER: []byte{2}}); err != nil {
			t.Fatal(err)
		}
	}
}

func serialsOf(entries []crl.Entry) (out []ca.Serial) {
	for _, e := range entries {
		out = append(out, e.Serial)
	}
	return out
}

// shardLists: a shard's list has its own revoked ones and no others, that of all
// has all, and a shard is touched by its own alone.
func shardLists(t *testing.T, db *store.DB) {
	c, now := store.NewCRL(db), statusNow()
	shardIssue(t, db, 0, "0a01")
	shardIssue(t, db, 1, "0a02", "0a05")
	shardIssue(t, db, 2, "0a03")
	shardIssue(t, db, 3, "0a04")
	for _, s := range []ca.Serial{"0a03", "0a01", "0a02"} {
		statusRevoke(t, db, s, now, ca.Superseded)
	}
	for shard, want := range map[int][]ca.Serial{0: {"0a01", "0a02", "0a03"}, 1: {"0a02"}, 2: {"0a03"}, 3: nil} {
		scope := crl.Scope{Issuer: statusIssuer, Shard: shard}
		got := serialsOf(statusEntries(t, c, crl.Selection{Series: crl.Series{Scope: scope}}))
		if !reflect.DeepEqual(got, want) {
			t.Errorf("shard %d lists %v, want %v", shard, got, want)
		}
		if h, err := c.Head(t.Context(), scope); err != nil || h.Seq != 3 || h.Changed != (want != nil) {
			t.Errorf("shard %d: %+v, %v", shard, h, err)
		}
	}
	one := crl.Scope{Issuer: statusIssuer, Shard: 1}
	publishScope(t, c, one, 3, 0, true)
	changed := func() bool {
		t.Helper()
		h, err := c.Head(t.Context(), one)
		if err != nil {
			t.Fatal(err)
		}
		return h.Changed
	}
	if changed() {
		t.Error("changed though all was seen")
	}
	statusRevoke(t, db, "0a04", now, ca.Superseded)
	if changed() {
		t.Error("touched by another shard's")
	}
	statusRevoke(t, db, "0a05", now, ca.Superseded)
	if !changed() {
		t.Error("not touched by its own")
	}
}

// publishScope publishes a CRL of that scope under the next number.
func publishScope(t *testing.T, c *store.CRL, scope crl.Scope, seq crl.Seq, base crl.Number, scheduled bool) crl.CRL {
	t.Helper()
	now := statusNow()
	n, err := c.Reserve(t.Context(), scope, crl.Lease{Floor: 1, Now: now, Until: now})
	if err != nil {
		t.Fatal(err)
	}
	p := statusPublication(n, scheduled)
	p.Scope, p.Seq, p.Base = scope, seq, base
	p = statusPut(t, c, p, fmt.Sprintf("%s %d", scope, n))
	if err := c.Publish(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	return p.CRL
}

// deltaLists: a delta has what changed after its base, as it is now, and the
// changes have no time.
func deltaLists(t *testing.T, db *store.DB) {
	c, now := store.NewCRL(db), statusNow()
	shardIssue(t, db, 1, "0a01", "0a02", "0a03", "0a04", "0a05")
	shardIssue(t, db, 2, "0b01")
	hold := func(s ca.Serial) { t.Helper(); statusRevoke(t, db, s, now, ca.CertificateHold) }
	release := func(s ca.Serial) {
		t.Helper()
		if err := store.NewCA(db).Release(t.Context(), s, audit.New("system", "certificate.released", "certificate/"+string(s), nil)); err != nil {
			t.Fatal(err)
		}
	}
	statusRevoke(t, db, "0a01", now, ca.Superseded)
	hold("0a02")
	hold("0a03")
	statusRevoke(t, db, "0a04", now, ca.Superseded)
	const base = 4
	// Stamped long before the base, and yet it came after.
	statusRevoke(t, db, "0b01", now.Add(-24*time.Hour), ca.Superseded)
	release("0a02")
	release("0a03")
	hold("0a03")
	statusRevoke(t, db, "0a04", now, ca.KeyCompromise)
	statusRevoke(t, db, "0a05", now, ca.Superseded)
	want := []crl.Entry{
		{Serial: "0a02", Reason: ca.RemoveFromCRL},
		{Serial: "0a03", RevokedAt: now, Reason: ca.CertificateHold},
		{Serial: "0a04", RevokedAt: now, Reason: ca.KeyCompromise},
		{Serial: "0a05", RevokedAt: now, Reason: ca.Superseded},
		{Serial: "0b01", RevokedAt: now.Add(-24 * time.Hour), Reason: ca.Superseded},
	}
	sel := crl.Selection{Series: crl.Series{Scope: statusScope, Delta: true}, Since: base}
	if got := statusEntries(t, c, sel); !reflect.DeepEqual(got, want) {
		t.Errorf("delta of all:\n%+v, want\n%+v", got, want)
	}
	sel.Shard = 1
	if got := statusEntries(t, c, sel); !reflect.DeepEqual(got, want[:4]) {
		t.Errorf("delta of a shard:\n%+v", got)
	}
	// The complete one has no entry of what was released.
	sel.Delta = false
	if got := serialsOf(statusEntries(t, c, sel)); !reflect.DeepEqual(got, []ca.Serial{"0a01", "0a03", "0a04", "0a05"}) {
		t.Errorf("complete: %v", got)
	}
}

// deltaNumbers: complete CRLs and deltas of a scope take numbers from one
// sequence, and neither is published below the other.
func deltaNumbers(t *testing.T, db *store.DB) {
	c := store.NewCRL(db)
	latest := func(delta bool) crl.CRL {
		t.Helper()
		l, err := c.Latest(t.Context(), crl.Series{Scope: statusScope, Delta: delta})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if _, err := c.Latest(t.Context(), crl.Series{Scope: statusScope, Delta: true}); !errors.Is(err, crl.ErrNone) {
		t.Errorf("no delta yet: %v", err)
	}
	base := publishScope(t, c, statusScope, 5, 0, true)
	slow := statusReserve(t, c, 1)
	delta := publishScope(t, c, statusScope, 6, base.Number, true)
	if delta.Number <= slow || latest(true).Base != base.Number || latest(true).Seq != 6 || latest(false).Number != base.Number {
		t.Errorf("delta %+v, complete %+v", latest(true), latest(false))
	}
	late := statusPut(t, c, statusPublication(slow, false), "slow")
	if err := c.Publish(t.Context(), late); !errors.Is(err, crl.ErrSuperseded) {
		t.Errorf("a complete one below the delta: %v", err)
	}
	early := publishScope(t, c, statusScope, 7, 0, false)
	h, err := c.Head(t.Context(), statusScope)
	if err != nil || h.Published != early.Number || h.Base.Number != base.Number || h.Delta != delta.Number || h.DeltaBase != base.Number ||
		!h.DeltaAt.Equal(delta.ThisUpdate) || !h.UpdatedAt.Equal(early.ThisUpdate) || !h.ScheduledAt.Equal(base.ThisUpdate) {
		t.Errorf("head %+v, %v", h, err)
	}
	if other, err := c.Head(t.Context(), crl.Scope{Issuer: statusIssuer, Shard: 1}); err != nil || other.Published != 0 {
		t.Errorf("another scope: %+v, %v", other, err)
	}
}

func deltaBase(t *testing.T, db *store.DB) {
	c := store.NewCRL(db)
	base := publishScope(t, c, statusScope, 1, 0, true)
	for range 5 {
		publishScope(t, c, statusScope, 1, base.Number, true)
		publishScope(t, c, statusScope, 1, 0, false)
	}
	h, err := c.Head(t.Context(), statusScope)
	if err != nil || h.Base.Number != base.Number || !h.Base.NextUpdate.Equal(base.NextUpdate) || h.Base.Seq != 1 {
		t.Errorf("after many early ones: %+v, %v", h, err)
	}
	// Three of each series, and the base.
	if bodies, _ := statusChunks(t, db); bodies != 7 {
		t.Errorf("%d CRLs are kept", bodies)
	}
	publishScope(t, c, statusScope, 1, 0, true)
	if bodies, _ := statusChunks(t, db); bodies != 6 {
		t.Errorf("%d CRLs are kept once there is another base", bodies)
	}
}
