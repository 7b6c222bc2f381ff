package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

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
